// Entries from each kind of source are edited as a form and as JSON: the change is previewed, and errors are shown at their fields.
import { readFileSync } from "node:fs";

import { api, assert, visit, write } from "./support.mjs";

const file = process.env.TOOLWHARF_ANSWERS.replace("answers.json", "mcp.json");

await visit("/servers/notes?tab=configuration", async (page, { dialog }) => {
  const review = () => page.getByRole("button", { name: "Review" }).click();
  const saved = async () => {
    await dialog.getByRole("button", { name: "Save" }).click();
    await dialog.waitFor({ state: "detached" });
    await page.getByText("Saved. The server is restarted").last().waitFor();
  };

  // An entry of the configuration file, as a form.
  const form = page.locator("form#entry");
  await form.getByLabel("timeout").fill("-5");
  await review();
  await form.getByRole("alert").first().waitFor();
  assert.ok(!(await page.content()).includes("sk-hidden"));
  await form.getByLabel("timeout").fill("7000");
  await review();
  await dialog.getByText('+  "timeout": 7000').waitFor();
  assert.ok(!readFileSync(file, "utf8").includes("7000"));
  await saved();
  const text = readFileSync(file, "utf8");
  for (const kept of ["// of mine", "sk-hidden", "7000"]) assert.ok(text.includes(kept), text);
  assert.equal((await api("GET", "/mcp/servers/notes")).body.call_timeout_ms, 7000);

  // As JSON. Errors from the gateway are shown with their location.
  await page.getByRole("button", { name: "JSON", exact: true }).click();
  const editor = page.getByRole("textbox", { name: "Entry of this server" });
  const change = async (entry) => {
    await write(page, editor, JSON.stringify(entry));
    await review();
  };
  const entry = (await api("GET", "/mcp/servers/notes/entry")).body.entry;
  await change({ ...entry, args: ["a", 1] });
  await page.getByText("/args/1").first().waitFor();
  await change({ ...entry, timeout: 8000 });
  await saved();
  assert.ok(readFileSync(file, "utf8").includes("8000"));

  // An entry of a project.
  const id = (await api("GET", "/mcp/servers/web?project=shop")).body.id;
  await page.goto(`${process.env.TOOLWHARF_URL}/servers/${id}?tab=configuration`);
  await form.getByLabel("url").fill("https://y.example.com/mcp");
  await review();
  await dialog.getByText("y.example.com").waitFor();
  await saved();
  assert.equal((await api("GET", `/mcp/servers/${id}`)).body.config.url, "https://y.example.com/mcp");

  // A registration.
  const hosted = (await api("GET", "/mcp/servers")).body.servers.find((one) => one.name === "hosted");
  await page.goto(`${process.env.TOOLWHARF_URL}/servers/${hosted.id}?tab=configuration`);
  await form.getByLabel("description").fill("changed here");
  await review();
  await saved();
  assert.equal((await api("GET", `/mcp/servers/${hosted.id}`)).body.description, "changed here");
});
