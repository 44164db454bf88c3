// A newcomer's first minutes, guided only by the pages: calls a tool, installs a server in a sandbox, and connects
// a client.
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";

import { assert, fill, run, url } from "./support.mjs";

const began = performance.now();
const file = join(dirname(process.env.TOOLWHARF_ANSWERS), ".cursor/mcp.json");
const shots = process.env.TOOLWHARF_WALK;

await run(async (open) => {
  const page = await open();
  const seen = async (name) => shots && (await page.screenshot({ path: `${shots}/walk-${name}.png`, animations: "disabled" }));
  const nav = page.getByRole("navigation", { name: "Pages" });
  const main = page.getByRole("main");
  await page.goto(process.env.TOOLWHARF_LINK);
  await page.waitForURL(`${url}/servers`);
  await main.getByText("Running").first().waitFor();
  await seen("1-servers");

  // A tool of a running server.
  await nav.getByRole("link", { name: "Tools" }).click();
  await page.getByRole("list", { name: "Tools" }).getByRole("link", { name: "echo" }).first().click();
  await fill(page, [[/^message/, "Hello, wharf"]], "Run");
  await page.getByRole("region", { name: "Run" }).getByText("Echo: Hello, wharf").waitFor();
  await seen("2-tool");

  // A server of the catalogue, in its sandbox.
  await nav.getByRole("link", { name: "Servers" }).click();
  await main.getByRole("link", { name: "Install" }).click();
  await page.getByPlaceholder("Search the registries").fill("calculator");
  await page.getByRole("button", { name: /dev\.toolwharf\/calculator/ }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("There are no fields to fill in").waitFor();
  await seen("3-entry");
  await dialog.getByRole("button", { name: "Install and try it" }).click();
  await dialog.getByText("The trial run found 1 tool").waitFor({ timeout: 120_000 });
  await seen("4-tried");
  await dialog.getByRole("button", { name: "Switch it on" }).click();
  await page.waitForURL(`${url}/servers/calculator`);
  await main.getByText("Running").first().waitFor();
  await main.getByText("process", { exact: true }).first().waitFor();
  await seen("5-installed");
  await main.getByRole("link", { name: "calculate" }).first().click();
  await fill(page, [[/^expression/i, "6 * 7"]], "Run");
  await page.getByRole("region", { name: "Run" }).getByText("42").first().waitFor();
  await seen("6-its-tool");

  // A client.
  await nav.getByRole("link", { name: "Servers" }).click();
  await main.getByRole("link", { name: "Connect" }).click();
  const cursor = page.getByRole("listitem").filter({ hasText: "Cursor" });
  await cursor.getByRole("button", { name: "Connect" }).click();
  await dialog.getByText('"toolwharf": {').waitFor();
  await seen("7-change");
  await dialog.getByRole("button", { name: "Connect", exact: true }).click();
  await cursor.getByText("connected", { exact: true }).waitFor();
  await seen("8-connected");
  assert.match(readFileSync(file, "utf8"), /"toolwharf"/);
  const seconds = (performance.now() - began) / 1000;
  console.log(`the walk took ${seconds.toFixed(1)} s`);
  assert.ok(seconds < 300);
});
