// Links in a result to this computer or its network ask first. Other links open at once.
import { isLocal } from "../src/ui/local.ts";
import { assert, run, signIn } from "./support.mjs";

const LOCAL = [
  "http://127.0.0.1", "http://127.9.9.9:6280/x", "http://localhost", "http://LOCALHOST.", "http://app.localhost", "http://2130706433", "http://0x7f.1",
  "http://0177.0.0.1", "http://127.1", "http://0.0.0.0", "http://10.1.2.3", "http://172.16.0.1", "http://172.31.255.255", "http://192.168.1.1", "http://169.254.169.254",
  "http://100.64.0.1", "http://[::1]", "http://[::]", "http://[::ffff:127.0.0.1]", "http://[::ffff:a00:1]", "http://[fe80::1]", "http://[fc00::1]", "http://[fd12::1]",
  "http://[64:ff9b::7f00:1]", "http://[2002:7f00:1::]", "http://printer", "http://router.local", "https://nas.lan", "https://x.internal", "https://user:pass@127.0.0.1/",
  "http://①②⑦.0.0.1", "http://evil.example@localhost",
];
const PUBLIC = [
  "https://example.com", "http://8.8.8.8", "http://172.32.0.1", "http://172.15.0.1", "http://192.169.0.1", "http://11.0.0.1", "http://[2606:4700::1111]",
  "http://[::ffff:8.8.8.8]", "https://localhost.example.com", "https://127.0.0.1.example.com", "mailto:a@localhost", "not a link",
];
for (const address of LOCAL) assert.equal(isLocal(address), true, address);
for (const address of PUBLIC) assert.equal(isLocal(address), false, address);

const HERE = "http://2130706433:9/here";

await run(async (open) => {
  // An opened link is requested by a new tab, not by the console's page.
  const page = await open(undefined, { isAttacked: true });
  await page.context().route("http://127.0.0.1:9/**", (route) => route.fulfill({ body: "here" }));
  await page.context().route("https://elsewhere.example/**", (route) => route.fulfill({ body: "elsewhere" }));
  await signIn(page, "/tools?of=links");
  await page.getByRole("list", { name: "Tools" }).getByRole("link").first().click();
  await page.getByRole("button", { name: "Run", exact: true }).click();
  const main = page.getByRole("main");
  const local = main.getByRole("link", { name: `Open ${HERE}` });
  await local.waitFor();
  const pages = () => page.context().pages().length;
  for (const how of [{}, { button: "middle" }, { modifiers: ["Control"] }]) {
    await local.click(how);
    assert.equal(pages(), 1);
    if (how.button) continue;
    const dialog = page.getByRole("dialog");
    await dialog.getByText(HERE, { exact: true }).waitFor();
    if (process.env.TOOLWHARF_PICTURES) await page.screenshot({ path: `${process.env.TOOLWHARF_PICTURES}/links.png` });
    await dialog.getByRole("button", { name: "Cancel" }).click();
    await dialog.waitFor({ state: "hidden" });
    assert.equal(pages(), 1);
  }
  await local.click();
  const [opened] = await Promise.all([page.context().waitForEvent("page"), page.getByRole("dialog").getByRole("button", { name: "Open it" }).click()]);
  await opened.waitForURL("http://127.0.0.1:9/here");
  assert.equal(await opened.evaluate(() => window.opener), null);
  const [outside] = await Promise.all([page.context().waitForEvent("page"), main.getByRole("link", { name: "Open https://elsewhere.example/" }).click()]);
  await outside.waitForURL("https://elsewhere.example/");
});
