// A new user gets ten real servers running from the console alone. Three are broken in usual ways: no key, a certificate that
// is not trusted, a Node.js that is too old. Each step follows from what the page before it shows.
import { mkdirSync } from "node:fs";

import { api, assert, fill, SCREENS, url, visit, write } from "./support.mjs";

const { servers, caFile, nodeFolder, key } = JSON.parse(process.env.TOOLWHARF_FIRST_HOUR);
const folder = process.env.TOOLWHARF_PICTURES;
/** Servers start for the first time, on a busy machine. */
const START = { timeout: 180_000 };

await visit("/servers", async (page, { main, dialog }) => {
  const begun = Date.now();
  const picture = async (name) => {
    if (!folder) return;
    mkdirSync(folder, { recursive: true });
    for (const screen of SCREENS) {
      await page.emulateMedia({ colorScheme: screen.colorScheme });
      await page.setViewportSize(screen.viewport);
      await page.screenshot({ path: `${folder}/u13-${name}-${screen.name}.png`, fullPage: true });
    }
    await page.setViewportSize({ width: 1440, height: 900 });
  };
  await picture("0-empty");

  // The user pastes the file of the client they have used so far.
  await page.goto(`${url}/install?by=hand`);
  await write(page, main.getByRole("textbox", { name: "Entry" }), JSON.stringify(servers, null, 2));
  await main.getByRole("button", { name: "Add them" }).click();
  const outcome = main.getByRole("list", { name: "What happened" }).getByRole("listitem");
  await outcome.first().waitFor();
  assert.equal(await outcome.count(), 10);
  await outcome.filter({ hasText: "keyed" }).getByText(key).first().waitFor();
  await picture("1-added");

  // No key: the page of the server has the button.
  await outcome.getByRole("link", { name: "keyed" }).click();
  await main.getByText(`${key} is not set.`).waitFor();
  await main.getByText("Set what it lacks to see its tools.").waitFor();
  await picture("2-no-key");
  await main.getByRole("button", { name: `Set ${key}` }).click();
  await dialog.getByLabel("Value").fill("a-key");
  await dialog.getByRole("button", { name: /^Save/ }).click();
  await dialog.waitFor({ state: "detached" });
  await main.getByText("Running").first().waitFor(START);

  /** Sets variables in the entry of a server. */
  const set = async (name, variables) => {
    await page.goto(`${url}/servers/${name}?tab=configuration`);
    await page.getByRole("button", { name: "JSON", exact: true }).click();
    const entry = (await api("GET", `/mcp/servers/${name}/entry`)).body.entry;
    Object.assign(entry.env, variables);
    await write(page, page.getByRole("textbox", { name: "Entry of this server" }), JSON.stringify(entry));
    await page.getByRole("button", { name: "Review" }).click();
    await dialog.getByRole("button", { name: "Save" }).click();
    await dialog.waitFor({ state: "detached" });
    await main.getByText("Running").first().waitFor(START);
  };

  // The list shows the reasons.
  await page.goto(`${url}/servers`);
  const row = (name) => page.getByRole("list", { name: "Servers" }).getByRole("listitem").filter({ hasText: name });
  await row("company").getByText(/certificate.*SSL_CERT_FILE.*env/).waitFor(START);
  await row("notes").getByText(/Node\.js.*PATH.*env/).waitFor(START);
  await picture("3-reasons");
  for (const name of ["company", "notes"]) {
    await page.goto(`${url}/servers/${name}`);
    await page.getByRole("alert").getByText(/`env` of its entry/).waitFor(START);
    await main.getByText("Its last output").waitFor();
    await picture(`4-${name}`);
  }
  await set("company", { SSL_CERT_FILE: caFile });
  await set("notes", { PATH: `${nodeFolder}:/usr/bin:/bin` });
  await picture("5-repaired");

  await page.goto(`${url}/servers`);
  await page.getByRole("list", { name: "Servers" }).getByText("Running", { exact: true }).nth(9).waitFor(START);
  await picture("6-all");
  const minutes = (Date.now() - begun) / 60_000;
  console.error(`ten servers ran after ${minutes.toFixed(1)} minutes`);
  assert.ok(minutes <= 10);
  for (const { name, status, tools } of (await api("GET", "/mcp/servers")).body.servers) {
    assert.equal(status, "running", name);
    assert.ok(tools > 0, name);
  }
  assert.ok(!(await page.content()).includes("a-key"));
});
