// A server is put in a sandbox: the page says what it would lose, and keeps what the user chooses.
import { readFileSync } from "node:fs";

import { api, assert, visit } from "./support.mjs";

const file = process.env.TOOLWHARF_ANSWERS.replace("answers.json", "mcp.json");
const folder = process.env.TOOLWHARF_FOLDER;

await visit("/servers/notes?tab=isolation", async (page, { main, dialog }) => {
  const losses = main.getByRole("list", { name: "What it would lose" }).getByRole("listitem");
  await losses.filter({ hasText: "The network" }).waitFor();
  await losses.filter({ hasText: "Your home directory" }).waitFor();
  await main.getByRole("list", { name: "Files" }).getByText(folder, { exact: true }).first().waitFor();
  await losses.getByLabel(`Keep writing to ${folder}`).check();
  await losses.getByRole("button", { name: "Only some hosts" }).click();
  await losses.getByLabel("Hosts").fill("api.example.com");
  await main.getByRole("button", { name: "Review" }).click();
  // Nothing changes before the change was seen.
  await dialog.getByText('+  "sandbox": true').waitFor();
  assert.ok(!readFileSync(file, "utf8").includes("sandbox"));
  await dialog.getByRole("button", { name: "Confine it" }).click();
  await dialog.waitFor({ state: "detached" });
  const entry = JSON.parse(readFileSync(file, "utf8")).mcpServers.notes;
  assert.equal(entry.sandbox, true);
  assert.deepEqual(entry.network, ["api.example.com"]);
  assert.deepEqual(entry.mounts, [{ host: folder, path: folder, read_only: false }]);
  await main.getByText("Protections").waitFor();
  await page.getByText("Running").first().waitFor();
  assert.deepEqual((await api("GET", "/mcp/servers/notes")).body.network, { allow: ["api.example.com"] });
});
