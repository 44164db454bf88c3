// A chat with a table, code, an image and usage. A reload during a turn keeps the conversation, which can be continued.
import { assert, say, url, visit } from "./support.mjs";

await visit("/chat", async (page, { log }) => {
  await page.locator("#servers").getByText("everything").waitFor();
  await say(page, "Compare two ports");
  await log.getByRole("cell", { name: "Rotterdam" }).waitFor();
  assert.equal(await log.getByRole("columnheader").count(), 2);
  await log.getByRole("link", { name: "a source" }).waitFor();
  // An external image becomes a link, and raw HTML is text.
  assert.equal(await log.getByRole("img").count(), 0);
  await log.getByText("<b onclick=alert(1)>").waitFor();
  await log.getByRole("button", { name: "Copy the code" }).click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "let ports = 2;");
  await log.getByText(/tokens read/).waitFor();
  await page.getByRole("button", { name: "Send" }).waitFor();

  await say(page, "Show me the logo");
  await log.getByText("get-tiny-image").first().waitFor();
  await log.getByText("There it is.").waitFor();
  await page.getByRole("button", { name: "Send" }).waitFor();
  await page.waitForURL(/\/chat\?c=/);
  await page.reload();
  await log.getByRole("cell", { name: "Rotterdam" }).waitFor();
  await log.getByRole("img", { name: "From get-tiny-image" }).waitFor();
  await log.getByText("Show me the logo").waitFor();

  // A server asks for input during a turn: the user answers in the page, and the turn continues.
  await say(page, "Ask me who I am");
  await log.getByText("The server asks you").waitFor();
  await log.getByLabel(/^(name|String)/i).first().fill("Ada");
  await log.getByRole("button", { name: "Answer" }).click();
  await log.getByText("Thank you, Ada.").waitFor();
  assert.equal(await log.getByText("The server asks you").count(), 0);
  await log.getByText("trigger-elicitation-request").first().click();
  await log.getByText(/User provided|Ada/).first().waitFor();
  await page.getByRole("button", { name: "Send" }).waitFor();

  // A tool's App is shown while the tool runs, and again after a reload. Its message is put into the input field.
  await say(page, "What time is it?");
  const app = log.frameLocator("iframe").frameLocator("iframe");
  await app.getByText(/20\d\d-\d\d-\d\dT/).first().waitFor();
  await log.getByText("Late.").waitFor();
  await page.getByRole("button", { name: "Send" }).waitFor();
  await page.reload();
  await log.getByText("Late.").waitFor();
  await app.getByText(/20\d\d-\d\d-\d\dT/).first().waitFor();
  await app.getByRole("button", { name: "Send Message" }).click();
  await page.waitForFunction(() => document.querySelector("#message").value !== "");

  // During a turn: a reload.
  await say(page, "Tell me a lot");
  await log.getByText("word word").first().waitFor();
  await page.reload();
  await log.getByText("Tell me a lot").waitFor();
  await log.getByText("There it is.").waitFor();

  // During a turn: another conversation, of which the turn changes nothing, and back.
  await say(page, "Tell me more");
  await log.getByText("more more").first().waitFor();
  await page.getByRole("button", { name: "New chat" }).click();
  await page.getByText("What can I do for you?").waitFor();
  await page.getByRole("button", { name: "Send" }).waitFor();
  assert.equal(await log.textContent(), "");
  const list = page.getByRole("navigation", { name: "Conversations" });
  await list.getByRole("button", { name: /^Compare two ports/ }).click();
  await log.getByText("Tell me more").waitFor();
  assert.equal(await log.getByText("Stopped.").count(), 0);
  await say(page, "Go on");
  await log.getByText("Back again.").waitFor();

  // A conversation is removed.
  await list.getByRole("button", { name: "Delete: Compare two ports" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await list.getByText("No conversations yet.").waitFor();
  await page.waitForURL(`${url}/chat`);
}, { permissions: ["clipboard-read", "clipboard-write"] });
