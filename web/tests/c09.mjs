// Projects, keys, secrets and products are created, changed and removed. Irreversible actions need a confirmation.
import { api, assert, fill, url, visit, write } from "./support.mjs";

await visit("/projects", async (page, { dialog, open }) => {
  await page.getByRole("button", { name: "New project" }).click();
  await fill(dialog, [["Id", "shop"], ["Name", "The shop"]], "Create");
  await page.waitForURL(`${url}/projects/shop`);
  const part = (name) => page.getByRole("navigation", { name: "Parts of this project" }).getByRole("link", { name }).click();
  const remove = async (name) => {
    await page.getByRole("button", { name: `Remove ${name}` }).click();
    await dialog.getByRole("button", { name: "Remove", exact: true }).click();
  };

  await part("Keys");
  await page.getByRole("button", { name: "New key" }).click();
  await dialog.getByRole("checkbox", { name: "shop", exact: true }).isChecked().then((is) => assert.ok(is));
  await fill(dialog, [["Name", "chat"]], "Make it");
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

  // On the page of all keys, a key has a role, and several projects.
  await api("PUT", "/projects/desk", {});
  const all = await open("/keys");
  const form = all.getByRole("dialog");
  await all.getByRole("button", { name: "New key" }).click();
  await form.getByLabel("Role").selectOption("read");
  await form.getByLabel("Tools in the lists of clients").selectOption("search");
  for (const name of ["desk", "shop"]) await form.getByRole("checkbox", { name, exact: true }).check();
  await fill(form, [["Name", "report"]], "Make it");
  const reader = (await form.getByText(/^twh_/).innerText()).trim();
  await form.getByRole("button", { name: "Done" }).click();
  const row = all.getByRole("row", { name: /report/ });
  await row.getByText("desk, shop").waitFor();
  await row.getByText("read", { exact: true }).waitFor();
  await row.getByText("search", { exact: true }).waitFor();
  for (const [project, status] of [["desk", 200], ["shop", 200], ["none", 404]]) {
    const response = await fetch(`${url}/api/v1/mcp/servers?project=${project}`, { headers: { authorization: `Bearer ${reader}` } });
    assert.equal(response.status, status, project);
  }
  // Its name is taken until it is revoked.
  await all.getByRole("button", { name: "New key" }).click();
  await fill(form, [["Name", "report"]], "Make it");
  await form.getByText("the name is taken").waitFor();
  await form.getByRole("button", { name: "Cancel" }).click();
  await api("DELETE", "/projects/desk");
  await all.reload();
  await row.getByText("shop", { exact: true }).waitFor();

  await part("Secrets");
  await page.getByRole("button", { name: "New secret" }).click();
  await fill(dialog, [["Name", "API_KEY"], ["Value", "hidden-value"]], "Save");
  await page.getByRole("row", { name: /API_KEY/ }).waitFor();
  assert.ok(!(await page.content()).includes("hidden-value"));
  await remove("API_KEY");
  await page.getByText("No secrets yet").waitFor();

  await part("Products");
  await page.getByRole("button", { name: "Install a product" }).click();
  const editor = dialog.getByRole("textbox", { name: "Manifest" });
  const install = async (manifest) => {
    await write(page, editor, JSON.stringify(manifest));
    await dialog.getByRole("button", { name: "Install" }).click();
  };
  await install({ name: "desk", version: "1.0.0", mcp: { servers: { web: {} } } });
  await dialog.getByText("/mcp/servers/web").first().waitFor();
  await install({ name: "desk", version: "1.0.0", mcp: { servers: { web: { url: "https://mcp.example.com/mcp" } } } });
  await page.getByRole("row", { name: /desk/ }).waitFor();
  assert.equal((await api("GET", "/projects/shop/products/desk")).body.version, "1.0.0");
  await remove("desk");
  await page.getByText("No products").waitFor();

  await part("Settings");
  await fill(page, [["Description", "What customers see"]], "Save");
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
