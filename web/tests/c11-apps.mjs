// Hostile Apps try every way out of the sandbox, and none works. A forbidden listener counts its visitors.
import { assert, run, SCREENS, signIn, url, watch } from "./support.mjs";

await run(async (open) => {
  const page = await open(undefined, { screen: SCREENS[1], isAttacked: true });
  await watch(page);
  let popups = 0;
  page.context().on("page", () => popups++);
  await signIn(page, "/tools?of=hostile");
  const answer = page.getByRole("region", { name: "Run" });
  const start = async (tool) => {
    await page.goto(`${url}/tools?of=hostile`);
    await page.getByRole("list", { name: "Tools" }).getByRole("link", { name: tool }).first().click();
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await answer.getByText("done", { exact: true }).waitFor();
  };
  await start("attack");
  const here = page.url();
  const log = answer.frameLocator("iframe").frameLocator("iframe").locator("#log");
  await log.filter({ hasText: "over: all tried" }).waitFor();
  const tried = (await log.innerText()).trim().split("\n");
  console.log(tried.join("\n"));
  assert.equal(tried.length, 16);
  for (const line of tried.slice(0, -1)) assert.match(line, /: (refused|-?\d+)$/, line);
  assert.ok(tried.includes("unknown: -32601") && tried.includes("other server: -32602") && tried.includes("not for Apps: -32602"));
  assert.equal(page.url(), here);
  assert.equal(await answer.getByText("FAKED").count(), 0);
  const box = await answer.locator("iframe").boundingBox();
  assert.ok(box.height <= 1200 && box.width <= 390, JSON.stringify(box));

  await start("flood");
  await answer.getByText("The App was stopped. It sent too many messages.").waitFor();
  await start("large");
  await answer.getByText(/^The App was stopped. It sent a message of more than/).waitFor();
  // Removed before its page has loaded: there is nothing to stop.
  for (const tool of ["early", "submit"]) {
    await start(tool);
    await answer.frameLocator("iframe").locator("iframe").waitFor();
  }
  await start("leave");
  await answer.getByText("The App was stopped. It left its page.").waitFor();
  await start("huge");
  await answer.getByText(/at most 10485760 are allowed/).waitFor();
  // An endless loop in an App does not block the console.
  await start("busy");
  await page.getByRole("button", { name: "JSON", exact: true }).click();
  await page.getByRole("textbox", { name: "Arguments" }).waitFor();
  assert.deepEqual(await page.evaluate(() => window.harmed), []);
  assert.equal(popups, 0);
});
