// ⌘K and a search term find any page, server, tool or action.
import { api, assert, find, url, visit } from "./support.mjs";

await visit("/servers", async (page) => {
  await page.getByText("Running").waitFor();
  await find(page, "calls", "Calls");
  await page.waitForURL(`${url}/calls`);
  await find(page, "time", /^time/);
  await page.waitForURL(`${url}/servers/time`);
  await find(page, "convert_time", /convert_time/);
  await page.waitForURL(/\/tools\?.*tool=convert_time/);
  await find(page, "stop time", "Stop time");
  await page.getByText("time is stopped.").waitFor();
  assert.equal((await api("GET", "/mcp/servers/time")).body.status, "stopped");
  await find(page, "theme light", "Theme: light");
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "light");
  // The choice is kept.
  await page.reload();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "light");
});
