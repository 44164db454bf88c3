// Many servers, tools and calls: each list loads and renders fast, and scrolls smoothly with few rows in the page.
import { api, assert, call, frames, p95, run, url } from "./support.mjs";

const SERVERS = Number(process.env.TOOLWHARF_SERVERS);
/** Queries per list, and the limit for their 95th percentile in milliseconds. */
const QUERIES = 100;
const BOUND_MS = 200;

await run(async (open) => {
  for (let at = 0; at < 200; at++) await call(`server-${at % SERVERS}`, "tool-0", { at });
  for (const path of ["/mcp/servers", "/tools", "/calls", "/calls?tool=tool-0&status=ok", "/calls/statistics"]) {
    const took = [];
    for (let at = 0; at < QUERIES; at++) {
      const start = performance.now();
      assert.equal((await api("GET", path)).status, 200, path);
      took.push(performance.now() - start);
    }
    console.log(`GET ${path}: 95 % of ${QUERIES} within ${p95(took).toFixed(1)} ms`);
    assert.ok(p95(took) <= BOUND_MS, `GET ${path}: 95 % within ${p95(took).toFixed(1)} ms`);
  }

  const page = await open("/servers");
  for (const [path, row, rows] of [
    ["/servers", "server-0", SERVERS],
    ["/tools", "tool-0", SERVERS * 10],
    ["/calls", "tool-0", 0],
  ]) {
    const start = performance.now();
    await page.goto(url + path);
    await page.locator("main").getByText(row, { exact: true }).first().waitFor();
    const drawn = performance.now() - start;
    const gaps = await frames(page, (at) => {
      const areas = [...document.querySelectorAll("main, main *")].filter((node) => node.scrollHeight > node.clientHeight + 40 && /auto|scroll/.test(getComputedStyle(node).overflowY));
      // Down and up again.
      for (const area of areas) area.scrollTop += Math.floor(at / 60) % 2 ? -60 : 60;
    });
    const items = await page.locator("main li").count();
    console.log(`${path}: drawn in ${drawn.toFixed(0)} ms, ${gaps.length} frames in 3 s, 95 % within ${p95(gaps).toFixed(0)} ms, ${items} rows in the page of ${rows}`);
    assert.ok(gaps.length > 60, `${path}: ${gaps.length} frames in 3 s`);
    if (rows > 100) assert.ok(items < rows / 2, `${path}: ${items} rows in the page`);
  }

  // A search term finds one of them.
  await page.goto(`${url}/tools`);
  const start = performance.now();
  await page.getByPlaceholder("Search tools").fill(`${SERVERS - 1} answers 7`);
  await page.locator("main").getByText("tool-7", { exact: true }).first().waitFor();
  await page.locator("main").getByText("tool-6", { exact: true }).first().waitFor({ state: "detached" });
  console.log(`one of ${SERVERS * 10} tools found in ${(performance.now() - start).toFixed(0)} ms`);
});
