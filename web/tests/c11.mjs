// Hostile names, descriptions, results and logs stay text, and no request goes to another host (`support.mjs` checks both).
import { assert, run, signIn, watch } from "./support.mjs";

await run(async (open) => {
  const page = await open();
  await watch(page);
  await signIn(page, "/tools?of=hostile");
  const list = page.getByRole("list", { name: "Tools" });
  await list.getByText("<img src=x onerror=alert(1)>").first().waitFor();
  await list.getByRole("link").first().click();
  await page.getByText("<script>alert(2)</script>").first().waitFor();
  await page.getByRole("button", { name: "JSON", exact: true }).click();
  await page.getByRole("button", { name: "Run", exact: true }).click();
  const answer = page.getByRole("region", { name: "Run" });
  await answer.getByText("<svg onload=alert(3)>").first().waitFor();
  // Only plain image formats are shown, and only URLs that browsers open safely become links.
  assert.equal(await answer.getByRole("img").count(), 0);
  const links = await answer.locator("a").evaluateAll((all) => all.map((one) => one.getAttribute("href")));
  assert.ok(links.every((link) => link.startsWith("https://") || link.startsWith("data:application/octet-stream")), links.join());
  // Ten megabytes do not stop the page.
  await answer.getByText(/more characters: copy the result/).waitFor();
  await answer.getByRole("button", { name: "Raw" }).click();
  await answer.getByLabel("Raw result").waitFor();

  await page.goto(`${process.env.TOOLWHARF_URL}/servers/hostile?tab=logs`);
  await page.getByRole("log").getByText("<img src=https://evil.example/ onerror=alert(4)>").waitFor();
  await page.goto(`${process.env.TOOLWHARF_URL}/servers`);
  await page.getByText("Running").first().waitFor();
  assert.deepEqual(await page.evaluate(() => window.harmed), []);
  assert.equal(await page.evaluate(() => document.querySelectorAll("main script, main svg[onload], main iframe").length), 0);
});
