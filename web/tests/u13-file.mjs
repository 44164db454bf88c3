// A whole configuration file of a client is installed at once. Each server is reported: added, there already, or refused.
import { api, assert, visit, write } from "./support.mjs";

const other = JSON.parse(process.env.TOOLWHARF_OTHER);

await visit("/install?by=hand", async (page, { main }) => {
  const editor = main.getByRole("textbox", { name: "Entry" });
  const add = async (text) => {
    await write(page, editor, text);
    await main.getByRole("button", { name: "Add them" }).click();
  };
  const outcome = (name) => main.getByRole("list", { name: "What happened" }).getByRole("listitem").filter({ has: page.getByText(name, { exact: true }) });
  const servers = { "tea-pot": other, index: { command: "other" }, broken: { args: [] } };
  // People copy files with comments.
  await add(`// of mine\n${JSON.stringify({ mcpServers: servers }, null, 2)}`);
  await outcome("tea-pot").getByText("added", { exact: true }).waitFor();
  await outcome("index").getByText("name exists already").waitFor();
  await outcome("broken").getByText("not added").waitFor();
  assert.equal((await api("GET", "/mcp/servers/broken")).status, 404);

  // A part of a file is accepted, too. Nothing is added twice.
  await add(`"tea-pot": ${JSON.stringify(other)},`);
  await outcome("tea-pot").getByText("exists already", { exact: true }).waitFor();
  assert.equal(await main.getByRole("list", { name: "What happened" }).getByRole("listitem").count(), 1);

  // Both servers have a tool `search`: the page of the new server says which names clients see.
  await outcome("tea-pot").getByRole("link", { name: "tea-pot" }).click();
  await page.getByText("One tool has a new name, because of tools with the same name on index").waitFor();
  const names = page.getByRole("list", { name: "New names" });
  await names.getByText("tea-pot__search").waitFor();
  await names.getByText("index__search").waitFor();

  // One entry still needs a name.
  await page.goto(`${process.env.TOOLWHARF_URL}/install?by=hand`);
  await write(page, editor, JSON.stringify({ ...other, enabled: false }));
  await main.getByRole("textbox", { name: "Name" }).fill("third");
  await main.getByRole("button", { name: "Add it" }).click();
  await page.waitForURL(/\/servers\/third/);
});
