// A call is saved and repeated. Copied as curl and as a command, it returns the same result.
import { execFileSync } from "node:child_process";

import { assert, visit } from "./support.mjs";

await visit("/tools?server=everything&tool=echo", async (page, { answer }) => {
  const said = "it's a \"wharf\" $HOME `id` \\";
  await page.getByLabel(/^message/).fill(said);
  await page.getByRole("button", { name: "Save this call" }).click();
  await page.reload();
  const kept = page.getByRole("list", { name: "Saved calls" });
  await kept.getByRole("button", { name: "Run it again" }).click();
  await answer.getByText(`Echo: ${said}`).waitFor();
  assert.equal(await page.getByLabel(/^message/).inputValue(), said);

  for (const [kind, reads] of [
    ["Copy as curl", (text) => JSON.parse(text).result.content[0].text],
    ["Copy as command", (text) => text.trimEnd()],
  ]) {
    await page.getByRole("button", { name: "Copy this call" }).click();
    await page.getByRole("menuitem", { name: kind }).click();
    const command = await page.evaluate(() => navigator.clipboard.readText());
    const printed = execFileSync("sh", ["-c", command], { encoding: "utf8" });
    assert.equal(reads(printed), `Echo: ${said}`, command);
  }
}, { permissions: ["clipboard-read", "clipboard-write"] });
