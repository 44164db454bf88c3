// A server writes ten thousand lines per second: the log is followed, searched and paused smoothly, with bounded memory.
import { assert, frames, p95, visit } from "./support.mjs";

await visit("/servers/chatty?tab=logs", async (page, { log }) => {
  await log.getByText(/line \d+/).first().waitFor();
  const lines = async () => Number((await page.getByText(/[\d,.]+K? lines$/).innerText()).replace(/[^\d.]/g, "")) || 0;
  const nodes = () => log.evaluate((node) => node.querySelectorAll("[data-index]").length);
  const gaps = await frames(page);
  console.log(`${gaps.length} frames in 3 s, 95 % within ${p95(gaps).toFixed(0)} ms, ${await nodes()} lines drawn, ${await lines()} (thousand) lines`);
  assert.ok(gaps.length > 30, `${gaps.length} frames in 3 s`);
  assert.ok((await nodes()) < 200);
  await page.getByRole("button", { name: "Pause" }).click();
  const first = await log.innerText();
  await page.getByRole("searchbox", { name: "Search the log" }).fill("777");
  await page.getByText(/^[\d.,K]+ of [\d.,K]+ lines$/).waitFor();
  assert.match(await log.innerText(), /777/);
  await page.getByRole("searchbox", { name: "Search the log" }).fill("");
  await page.getByRole("button", { name: "Resume" }).click();
  await page.waitForFunction((old) => document.querySelector("[role=log]").innerText !== old, first);
});
