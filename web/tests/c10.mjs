// A server that writes ten thousand lines a second: the log is followed, searched and paused smoothly, with bounded memory.
import { assert, run, signIn } from "./support.mjs";

await run(async (open) => {
  const page = await open();
  await signIn(page, "/servers/chatty?tab=logs");
  const log = page.getByRole("log");
  await log.getByText(/line \d+/).first().waitFor();
  const lines = async () => Number((await page.getByText(/[\d,.]+K? lines$/).innerText()).replace(/[^\d.]/g, "")) || 0;
  const nodes = () => log.evaluate((node) => node.querySelectorAll("[data-index]").length);
  // The longest time between two frames while it comes in.
  const frames = await page.evaluate(
    () =>
      new Promise((done) => {
        const gaps = [];
        let last = performance.now();
        const until = last + 3000;
        const frame = (now) => {
          gaps.push(now - last);
          last = now;
          if (now < until) requestAnimationFrame(frame);
          else done(gaps.sort((a, b) => a - b));
        };
        requestAnimationFrame(frame);
      }),
  );
  const p95 = frames[Math.floor(frames.length * 0.95)];
  console.log(`${frames.length} frames in 3 s, 95 % within ${p95.toFixed(0)} ms, ${await nodes()} lines drawn, ${await lines()} (thousand) lines`);
  assert.ok(frames.length > 30, `${frames.length} frames in 3 s`);
  assert.ok((await nodes()) < 200);
  await page.getByRole("button", { name: "Pause" }).click();
  const first = await log.innerText();
  await page.getByRole("searchbox", { name: "Search the log" }).fill("777");
  await page.getByText(/ of .* lines/).waitFor();
  assert.match(await log.innerText(), /777/);
  await page.getByRole("searchbox", { name: "Search the log" }).fill("");
  await page.getByRole("button", { name: "Go on" }).click();
  await page.waitForFunction((old) => document.querySelector("[role=log]").innerText !== old, first);
});
