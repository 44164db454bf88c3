// Projects, keys, secrets and products are created, changed and removed. Irreversible actions need a confirmation.
import { api, assert, run, signIn, url } from "./support.mjs";

await run(async (open) => {
  const page = await open();
  await signIn(page, "/projects");
  const dialog = page.getByRole("dialog");
  await page.getByRole("button", { name: "New project" }).click();
  await dialog.getByLabel("Id").fill("shop");
  await dialog.getByLabel("Name").fill("The shop");
  await dialog.getByRole("button", { name: "Make it" }).click();
  await page.waitForURL(`${url}/projects/shop`);
  const part = (name) => page.getByRole("navigation", { name: "Parts of this project" }).getByRole("link", { name }).click();

  await part("Keys");
  await page.getByRole("button", { name: "New key" }).click();
  await dialog.getByLabel("Name").fill("chat");
  await dialog.getByRole("button", { name: "Make it" }).click();
  const token = (await dialog.getByText(/^twh_/).innerText()).trim();
  await dialog.getByRole("button", { name: "Done" }).click();
  const status = async () => (await fetch(`${url}/api/v1/mcp/servers`, { headers: { authorization: `Bearer ${token}` } })).status;
  assert.equal(await status(), 200);
  await page.getByRole("button", { name: "Revoke chat" }).click();
  await dialog.getByText("This cannot be undone").waitFor();
  await dialog.getByRole("button", { name: "Revoke" }).click();
  await dialog.waitFor({ state: "detached" });
  await page.getByText("No keys yet").waitFor();
  assert.equal(await status(), 401);

  await part("Secrets");
  await page.getByRole("button", { name: "New secret" }).click();
  await dialog.getByLabel("Name").fill("API_KEY");
  await dialog.getByLabel("Value").fill("hidden-value");
  await dialog.getByRole("button", { name: "Save" }).click();
  await page.getByRole("row", { name: /API_KEY/ }).waitFor();
  assert.ok(!(await page.content()).includes("hidden-value"));
  await page.getByRole("button", { name: "Remove API_KEY" }).click();
  await dialog.getByRole("button", { name: "Remove", exact: true }).click();
  await page.getByText("No secrets yet").waitFor();

  await part("Products");
  await page.getByRole("button", { name: "Install a product" }).click();
  const editor = dialog.getByRole("textbox", { name: "Manifest" });
  const write = async (manifest) => {
    await editor.click();
    await page.keyboard.press("ControlOrMeta+a");
    await page.keyboard.press("Backspace");
  await page.keyboard.press("Backspace");
    await page.keyboard.insertText(JSON.stringify(manifest));
    await dialog.getByRole("button", { name: "Install" }).click();
  };
  await write({ name: "desk", version: "1.0.0", mcp: { servers: { web: {} } } });
  await dialog.getByText("/mcp/servers/web").first().waitFor();
  await write({ name: "desk", version: "1.0.0", mcp: { servers: { web: { url: "https://mcp.example.com/mcp" } } } });
  await page.getByRole("row", { name: /desk/ }).waitFor();
  assert.equal((await api("GET", "/projects/shop/products/desk")).body.version, "1.0.0");
  await page.getByRole("button", { name: "Remove desk" }).click();
  await dialog.getByRole("button", { name: "Remove", exact: true }).click();
  await page.getByText("No products").waitFor();

  await part("Settings");
  await page.getByLabel("Description").fill("What customers see");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("paragraph").filter({ hasText: "What customers see" }).waitFor();
  await page.getByRole("button", { name: "Remove" }).click();
  await dialog.getByText("This cannot be undone").waitFor();
  await dialog.getByRole("button", { name: "Cancel" }).click();
  assert.equal((await api("GET", "/projects/shop")).status, 200);
  await page.getByRole("button", { name: "Remove" }).click();
  await dialog.getByRole("button", { name: "Remove the project" }).click();
  await page.waitForURL(`${url}/projects`);
  assert.equal((await api("GET", "/projects/shop")).status, 404);
});
