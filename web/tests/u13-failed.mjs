// The page of a failed server opens at the reason, with the log. Each line has its time, and the whole log can be saved.
import { readFileSync } from "node:fs";

import { api, assert, visit } from "./support.mjs";

await visit("/servers", async (page, { log }) => {
  const row = page.getByRole("list", { name: "Servers" }).getByRole("listitem").filter({ hasText: "hopeless" });
  await row.getByText("Failed, retrying").waitFor();
  // The list shows the reason in full, and only then when the next attempt is.
  const { reason } = (await api("GET", "/mcp/servers/hopeless")).body;
  const said = row.locator("p").filter({ hasText: reason });
  await said.waitFor();
  assert.ok((await said.innerText()).startsWith(reason));
  assert.ok(await said.evaluate((node) => node.scrollWidth <= node.clientWidth), "the reason is cut off");
  for (const width of [390, 1440]) {
    await page.setViewportSize({ width, height: 900 });
    await row.getByText(reason).waitFor();
    // Rows are as high as their texts, so that none covers another.
    const boxes = await page.getByRole("list", { name: "Servers" }).getByRole("listitem").evaluateAll((rows) => rows.map((row) => row.getBoundingClientRect()).map(({ top, bottom }) => ({ top, bottom })));
    for (const [at, box] of boxes.entries()) if (at) assert.ok(box.top >= boxes[at - 1].bottom - 1, JSON.stringify(boxes));
  }

  await row.getByRole("link", { name: "hopeless" }).click();
  await page.getByRole("alert").getByText(reason).waitFor();
  await page.getByRole("navigation", { name: "Parts of this server" }).getByRole("link", { name: "Logs" }).and(page.locator("[aria-current=page]")).waitFor();
  const line = log.locator("[data-index]").filter({ hasText: "Error: the index is gone" }).first();
  const at = await line.locator("time").getAttribute("datetime");
  assert.match(at, /^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\dZ$/);
  assert.ok(Math.abs(Date.now() - Date.parse(at)) < 600_000, at);

  // A cleared view still saves everything.
  await page.getByRole("button", { name: "Clear" }).click();
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download" }).click()]);
  assert.equal(download.suggestedFilename(), "hopeless.log");
  const text = readFileSync(await download.path(), "utf8");
  assert.ok(text.includes(`${at} Error: the index is gone\n`), text);
  // Another tab keeps its place in the address, and the first one is not changed by the next attempt.
  await page.getByRole("navigation", { name: "Parts of this server" }).getByRole("link", { name: "Tools" }).click();
  await page.waitForURL(/tab=tools/);
  await page.getByText("Tools are listed once the server has run").waitFor();
});
