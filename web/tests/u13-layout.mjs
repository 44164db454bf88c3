// The layout follows the window: charts become narrower with it, and rows that do not fit say that there is more.
import { assert, call, visit } from "./support.mjs";

const isWide = (page) => page.evaluate(() => document.documentElement.scrollWidth > innerWidth);

await visit("/calls", async (page, { main }) => {
  await call("index", "search");
  const charts = main.getByRole("img", { name: /over time/ });
  await charts.first().locator("canvas").waitFor();
  for (const width of [1440, 390, 800, 390]) {
    await page.setViewportSize({ width, height: 844 });
    await page.waitForFunction(
      () => [...document.querySelectorAll("[role=img] canvas")].every((canvas) => Math.abs(canvas.getBoundingClientRect().width - canvas.closest("[role=img]").clientWidth) <= 1 && canvas.getBoundingClientRect().right <= innerWidth),
    );
    assert.ok(!(await isWide(page)), `${width} px`);
  }

  await page.goto(`${process.env.TOOLWHARF_URL}/servers/index`);
  const tabs = page.getByRole("navigation", { name: "Parts of this server" });
  const more = tabs.getByRole("button", { name: "Show more tabs" });
  const last = tabs.getByRole("link", { name: "Isolation" });
  await more.waitFor();
  assert.ok(!(await isInside(last)));
  // With the keyboard alone: the last tab comes into view when it is focused, and then there is no more.
  await tabs.getByRole("link", { name: "Tools" }).focus();
  for (let steps = 0; steps < 12 && !(await last.evaluate((node) => node === document.activeElement)); steps++) await page.keyboard.press("Tab");
  await page.waitForFunction(() => !document.querySelector("[aria-label='Show more tabs']"));
  assert.ok(await isInside(last));
  await tabs.getByRole("button", { name: "Show the tabs before" }).click();
  await more.waitFor();
  await page.setViewportSize({ width: 1440, height: 900 });
  await more.waitFor({ state: "detached" });
});

async function isInside(link) {
  return link.evaluate((node) => node.getBoundingClientRect().right <= node.parentElement.getBoundingClientRect().right + 1);
}
