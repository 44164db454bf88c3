// A server needs an API key: its page says so, and the key is entered there, on the page of all secrets, and when a server is installed.
import { api, assert, call, fill, url, visit } from "./support.mjs";

const value = async (server) => JSON.stringify((await call(server, "env", {})).body);

await visit("/servers/needs", async (page, { dialog, main }) => {
  await main.getByText("U13_TOKEN is not set.").waitFor();
  await main.getByRole("button", { name: "Set U13_TOKEN" }).click();
  await fill(dialog, [["Value", "canary-one"]], "Save");
  await dialog.waitFor({ state: "detached" });
  await main.getByText("Running").first().waitFor();
  await main.getByText("U13_TOKEN is not set.").waitFor({ state: "detached" });
  assert.match(await value("needs"), /<canary-one>/);

  // A server that is off says what it lacks, and is switched on with it.
  await page.goto(`${url}/servers/off`);
  await main.getByText("U13_OTHER is not set.").waitFor();
  await main.getByRole("button", { name: "Set U13_OTHER" }).click();
  await fill(dialog, [["Value", "canary-two"]], "Save and switch on");
  await dialog.waitFor({ state: "detached" });
  await main.getByText("Running").first().waitFor();

  // Each project has its own secrets, and the same button.
  const shops = (await api("GET", "/mcp/servers?project=shop")).body.servers.find((one) => one.project === "shop");
  await page.goto(`${url}/servers/${shops.id}`);
  await main.getByRole("button", { name: "Set U13_SHOP" }).click();
  await fill(dialog, [["Value", "canary-shop"]], "Save");
  await dialog.waitFor({ state: "detached" });
  await main.getByText("U13_SHOP is not set.").waitFor({ state: "detached" });
  assert.equal((await api("GET", "/projects/shop/secrets")).body.secrets[0].name, "U13_SHOP");

  await page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name: "Secrets" }).click();
  await page.waitForURL(`${url}/secrets`);
  await page.getByRole("row", { name: /U13_TOKEN/ }).waitFor();
  await page.getByRole("button", { name: "Set U13_TOKEN again" }).click();
  await fill(dialog, [["Value", "canary-three"]], "Save");
  await dialog.waitFor({ state: "detached" });
  await page.getByRole("row", { name: /U13_TOKEN 2/ }).waitFor();
  await page.getByRole("button", { name: "New secret" }).click();
  await fill(dialog, [["Name", "U13_OUTSIDE"], ["Value", "canary-four"]], "Save");
  await dialog.getByText("takes precedence").waitFor();
  await dialog.getByRole("button", { name: "Close" }).last().click();
  await page.getByRole("row", { name: /U13_OUTSIDE not used/ }).waitFor();
  await page.getByRole("button", { name: "Remove U13_OUTSIDE" }).click();
  await dialog.getByRole("button", { name: "Remove", exact: true }).click();
  await page.getByRole("row", { name: /U13_OUTSIDE/ }).waitFor({ state: "detached" });
  assert.ok(!(await page.content()).includes("canary"));

  // The secret of a server that is installed is stored, too.
  await page.goto(`${url}/install`);
  await page.getByPlaceholder("Search the registries").fill("weather");
  await page.getByRole("button", { name: /com\.example\/weather/ }).click();
  await dialog.getByLabel("X-Key").fill("canary-installed");
  await dialog.getByRole("button", { name: "Install and try it" }).click();
  await dialog.getByText("The trial run found").waitFor();
  await dialog.getByText("X_KEY", { exact: true }).waitFor();
  await dialog.getByRole("button", { name: "Switch it on" }).click();
  await page.waitForURL(`${url}/servers/weather`);
  await main.getByText("Running").first().waitFor();
  const entry = (await api("GET", "/mcp/servers/weather/entry")).body.entry;
  assert.equal(entry.headers["X-Key"], "${X_KEY}");
  const told = await call("weather", "headers", {});
  assert.match(JSON.stringify(told.body), /canary-installed/);
});
