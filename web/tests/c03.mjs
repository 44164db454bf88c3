// A tool is run from its form, asks for input, sends progress, and returns an image, structured content and links.
import { apps, assert, fill, url, visit, write } from "./support.mjs";

await visit("/tools", async (page, { answer }) => {
  const search = page.getByRole("searchbox", { name: "Search tools" });
  const choose = async (tool) => {
    await search.fill(tool);
    await page.getByRole("list", { name: "Tools" }).getByRole("link", { name: tool }).first().click();
    await page.getByRole("heading", { level: 2, name: tool, exact: true }).waitFor();
  };
  const start = () => page.getByRole("button", { name: "Run", exact: true }).click();

  // A missing argument is shown at its field, and nothing is sent.
  await choose("get-sum");
  await start();
  await page.getByText("is required").first().waitFor();
  await fill(page, [[/^a \*/, "19"], [/^b \*/, "23"]], "Run");
  await answer.getByText("The sum of 19 and 23 is 42.").waitFor();

  // The same as JSON.
  await page.getByRole("button", { name: "JSON", exact: true }).click();
  const editor = page.getByRole("textbox", { name: "Arguments" });
  assert.match(await editor.innerText(), /"a": 19/);
  await write(page, editor, '{"a": 1, "b": 2}');
  await start();
  await answer.getByText("The sum of 1 and 2 is 3.").waitFor();

  await choose("trigger-long-running-operation");
  await fill(page, [["duration", "2"], ["steps", "4"]], "Run");
  await answer.getByRole("progressbar").waitFor();
  await answer.getByText(/[1-4] of 4/).waitFor();
  await answer.getByText("Long running operation completed").waitFor();

  await choose("get-tiny-image");
  await start();
  const image = answer.getByRole("img", { name: "Image of the result" });
  await image.waitFor();
  assert.ok((await image.evaluate((node) => node.decode().then(() => node.naturalWidth))) > 0);

  await choose("get-structured-content");
  await page.getByLabel(/^location/).selectOption("New York");
  await start();
  await answer.getByRole("button", { name: "Structured" }).click();
  await answer.getByText('"temperature"').waitFor();

  await choose("get-resource-links");
  await start();
  await answer.getByText("demo://resource/").first().waitFor();

  // The server asks for input during the call: the user answers in the page, and the call continues.
  await choose("trigger-elicitation-request");
  await start();
  await answer.getByText("The server asks you").waitFor();
  await answer.getByLabel(/^(name|String)/i).first().fill("Ada");
  await answer.getByRole("button", { name: "Answer" }).click();
  await answer.getByText("Ada").first().waitFor();

  // A real App: it gets the result, calls its server's tool after confirmation, and sends a message.
  await choose("get-time");
  await start();
  const app = answer.frameLocator("iframe").frameLocator("iframe");
  await app.getByText(/20\d\d-\d\d-\d\dT/).first().waitFor();
  const frame = page.frames().find((one) => one.url().startsWith(apps));
  assert.notEqual(new URL(frame.url()).origin, new URL(url).origin);
  assert.equal(await frame.childFrames()[0].evaluate(() => self.origin), "null");
  const before = await app.locator("code").first().innerText();
  await app.getByRole("button", { name: "Get Server Time" }).click();
  const question = answer.getByRole("alertdialog", { name: "The App wants to run get-time" });
  await question.getByRole("button", { name: "Run it" }).click();
  await app.locator("code").first().filter({ hasNotText: before }).waitFor();
  await app.getByRole("button", { name: "Send Message" }).click();
  await answer.getByText(/^The App says: /).waitFor();
  await app.getByRole("button", { name: "Open Link" }).click();
  await answer.getByRole("alertdialog", { name: "The App wants to open a page" }).getByRole("button", { name: "Refuse" }).click();

  await choose("trigger-sampling-request");
  await fill(page, [[/^prompt/, "What is a wharf?"]], "Run");
  await answer.getByText("What is a wharf?").first().waitFor();
  await fill(answer, [["Answer", "A place where ships are unloaded."]], "Answer");
  await answer.getByText("A place where ships are unloaded.").first().waitFor();
});
