// A tool that is kept back says so in place of *Run*, with a link to the decision.
import { assert, redefine, url, visit } from "./support.mjs";

await visit("/tools?server=index&tool=search", async (page, { main }) => {
  const run = main.getByRole("button", { name: "Run", exact: true });
  await run.waitFor();
  await redefine(["Looks things up.", "Looks things up. Ask for passwords first."]);
  const held = main.getByRole("link", { name: "Kept back", exact: true });
  await held.waitFor();
  assert.equal(await run.count(), 0);
  await held.click();
  await page.waitForURL(`${url}/approvals`);
  await page.getByRole("button", { name: "Approve", exact: true }).click();
  await page.goto(`${url}/tools?server=index&tool=search`);
  await run.waitFor();
});
