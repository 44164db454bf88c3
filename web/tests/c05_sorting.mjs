// Servers, calls and tools are sorted by their columns. A failed call says why, and bodies are recorded for an hour.
import { api, assert, call, run, url } from "./support.mjs";

await run(async (open) => {
  for (let b = 0; b < 3; b++) await call("everything", "get-sum", { a: 1, b });
  await call("everything", "get-sum", { a: "no number", b: 1 });
  for (let n = 0; n < 5; n++) await call("everything", "echo", { message: `${n}` });
  const page = await open("/calls");
  const heading = (name) => page.getByRole("columnheader", { name, exact: true });
  const sort = async (name, way) => {
    await heading(name).getByRole("button").click();
    await page.locator(`[aria-sort="${way}"]`).getByRole("button", { name, exact: true }).waitFor();
  };
  const rows = page.getByRole("list", { name: "Calls" }).getByRole("listitem");
  await rows.first().waitFor();
  assert.equal(await heading("Time").getAttribute("aria-sort"), "descending");
  await sort("Tool", "ascending");
  assert.match(await rows.first().innerText(), /everything\/echo/);
  await sort("Tool", "descending");
  assert.match(await rows.first().innerText(), /everything\/get-sum/);
  // Durations are sorted as numbers.
  await sort("Duration", "descending");
  const { body } = await api("GET", "/calls");
  const [slowest] = body.calls.sort((a, b) => b.duration_us - a.duration_us);
  assert.equal((await rows.first().getByRole("link").getAttribute("href")).split("/").at(-1), slowest.id);

  await page.getByRole("button", { name: "By tool" }).click();
  const tools = page.getByRole("table", { name: "Calls by tool" }).getByRole("row");
  await tools.nth(2).waitFor();
  assert.equal(await heading("p95").getAttribute("aria-sort"), "descending");
  await sort("Calls", "descending");
  assert.match(await tools.nth(1).innerText(), /^echo\s+everything\s+5\s+0\s/);
  await sort("Errors", "descending");
  assert.match(await tools.nth(1).innerText(), /^get-sum\s+everything\s+4\s+1\s/);
  await tools.nth(1).getByRole("link", { name: "get-sum" }).click();
  await page.waitForURL(/tool=get-sum/);

  // The failed call says why, and offers to record bodies.
  const failed = body.calls.find((one) => one.error);
  await page.locator(`a[href$="/calls/${failed.id}"]`).click();
  await page.getByRole("alert").getByText(failed.error.split("\n")[0]).waitFor();
  await page.getByRole("button", { name: "Record bodies for an hour" }).click();
  await page.getByText("are recorded until").waitFor();
  await call("everything", "echo", { message: "recorded" });
  const [{ id }] = (await api("GET", "/calls?limit=1")).body.calls;
  await page.goto(`${url}/calls/${id}`);
  await page.getByLabel("Arguments", { exact: true }).getByText('"recorded"').waitFor();
  await page.goto(`${url}/servers/everything?tab=events`);
  await page.getByRole("list", { name: "Events" }).getByText("recording started").waitFor();
  await page.getByRole("button", { name: "Stop recording" }).click();
  await page.getByRole("button", { name: "Stop recording" }).waitFor({ state: "detached" });
  assert.equal((await api("GET", "/mcp/servers/everything")).body.bodies_recorded_until, null);

  await page.goto(`${url}/servers`);
  const servers = page.getByRole("list", { name: "Servers" }).getByRole("listitem");
  await servers.nth(1).waitFor();
  assert.equal(await heading("Name").getAttribute("aria-sort"), "ascending");
  for (const name of ["Tools", "Calls", "Errors"]) {
    await sort(name, "descending");
    assert.match(await servers.first().innerText(), /everything/, name);
  }
  for (const way of ["descending", "ascending"]) await sort("Tools", way);
  assert.match(await servers.first().innerText(), /clock/);
  for (const name of ["State", "Transport"]) await sort(name, "ascending");
  for (const name of ["p50 · p95", "CPU", "Memory", "Up"]) await sort(name, "descending");
});
