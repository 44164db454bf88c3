// From the built-in catalogue to a tool call: a server is shown, tried in its sandbox, reviewed and switched on.
import { api, assert, call, url, visit } from "./support.mjs";

await visit("/install", async (page, { dialog }) => {
  await page.getByPlaceholder("Search the registries").fill("time zones");
  await page.getByRole("button", { name: /dev\.toolwharf\/time/ }).click();
  await dialog.getByText("mcp-server-time").waitFor();
  await dialog.getByRole("button", { name: "Install and try it" }).click();
  // The package is fetched, verified and run in a sandbox.
  await dialog.getByText("The trial run found 2 tools").waitFor({ timeout: 120_000 });
  await dialog.getByText("convert_time").waitFor();
  await dialog.getByText("process", { exact: true }).waitFor();
  const before = (await api("GET", "/mcp/servers/time")).body;
  assert.equal(before.enabled, false);
  assert.equal((await call("time", "get_current_time", { timezone: "Asia/Tokyo" })).status, 409);

  await dialog.getByRole("button", { name: "Switch it on" }).click();
  await page.waitForURL(`${url}/servers/time`);
  await page.getByText("Running").first().waitFor();
  const told = await call("time", "get_current_time", { timezone: "Asia/Tokyo" });
  assert.equal(told.status, 200, JSON.stringify(told.body));
  assert.match(JSON.stringify(told.body), /Asia\/Tokyo/);
  assert.equal((await api("GET", "/mcp/servers/time")).body.provider, "process");
});
