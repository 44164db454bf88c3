// ⌘K and a search term find any page, server, tool or action.
import { api, assert, run, signIn, url } from "./support.mjs";

await run(async (open) => {
  const page = await open();
  await signIn(page);
  await page.getByText("Running").waitFor();
  const find = async (words, name) => {
    await page.keyboard.press("Control+k");
    await page.getByRole("combobox", { name: "Search everything" }).fill(words);
    await page.getByRole("option", { name }).first().waitFor();
    await page.keyboard.press("Enter");
    await page.getByRole("dialog").waitFor({ state: "detached" });
  };
  await find("calls", "Calls");
  await page.waitForURL(`${url}/calls`);
  await find("time", /^time/);
  await page.waitForURL(`${url}/servers/time`);
  await find("convert_time", /convert_time/);
  await page.waitForURL(/\/tools\?.*tool=convert_time/);
  await find("stop time", "Stop time");
  await page.getByText("time is stopped.").waitFor();
  assert.equal((await api("GET", "/mcp/servers/time")).body.status, "stopped");
  await find("theme light", "Theme: light");
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "light");
  // The choice is kept.
  await page.reload();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "light");
});
