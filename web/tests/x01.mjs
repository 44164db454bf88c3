// Search mode: the page shows the tools that a model finds, why, and the tokens that this saves. A project's list is changed there.
import { api, assert, url, visit } from "./support.mjs";

const MODERN = "2026-07-28";

await visit("/tools", async (page, { main, open }) => {
  await main.getByRole("link", { name: "How models find tools" }).click();
  await page.waitForURL(`${url}/tools/find`);
  await main.getByText("Type a task").waitFor();
  await main.getByText(/^\d+ % fewer tokens$/).waitFor();
  await main.getByText("Clients get the list of all tools now.").waitFor();
  await main.getByText('tools = "search"').waitFor();

  // A task, a name, and neither.
  const task = main.getByLabel("What should the model do?");
  const found = main.getByRole("list", { name: "Found tools" }).getByRole("listitem");
  const first = found.first();
  await task.fill("report a bug");
  await first.getByRole("link", { name: "create_issue" }).waitFor();
  await first.getByText("Reports a bug in a repository.").waitFor();
  await first.getByText(/description \d/).waitFor();
  await page.waitForURL(/q=report/);
  await page.reload();
  await first.getByRole("link", { name: "create_issue" }).waitFor();
  await task.fill("merge_branch");
  await first.getByText("exact name").waitFor();
  await first.getByRole("link", { name: "merge_branch" }).waitFor();
  await task.fill("xylophone");
  await main.getByText("No tool fits").waitFor();
  await task.fill("tool_1");
  await main.getByText("10 tools found").first().waitFor();
  await main.getByRole("button", { name: "Show up to 50" }).click();
  await found.nth(10).waitFor();
  assert.ok(await page.evaluate(() => document.documentElement.scrollHeight <= innerHeight), "only the content scrolls");

  // A project lists a tool, and then gets the short list. The address has the task and the project.
  const shop = async () => (await api("GET", "/projects/shop")).body;
  await page.goto(`${url}/tools/find?q=create_issue`);
  await main.getByLabel("Whose tools").selectOption("shop");
  await main.getByRole("button", { name: "Always list create_issue" }).click();
  const listed = main.getByRole("list", { name: "Always listed" });
  await listed.getByText("forge/create_issue").waitFor();
  assert.deepEqual((await shop()).listed_tools, ["forge/create_issue"]);
  await main.getByLabel("Tools in the lists of clients").selectOption("search");
  await main.getByText("Clients get the short list now.").waitFor();
  await page.reload();
  await first.getByRole("button", { name: "Always list create_issue", pressed: true }).waitFor();
  await main.getByText("Clients get the short list now.").waitFor();
  // Other settings of the project keep their values.
  const { name, tools, listed_tools } = await shop();
  assert.deepEqual({ name, tools, listed_tools }, { name: "The shop", tools: "search", listed_tools: ["forge/create_issue"] });
  await main.getByRole("button", { name: "No longer list forge/create_issue" }).click();
  await listed.waitFor({ state: "detached" });
  assert.deepEqual((await shop()).listed_tools, []);
  await first.getByRole("link", { name: "create_issue" }).click();
  await main.getByRole("heading", { level: 2, name: "create_issue" }).waitFor();

  // A client gets the short list, and the servers' page shows what that saves.
  const _meta = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": { name: "t", version: "1" },
    "io.modelcontextprotocol/clientCapabilities": {},
    "dev.toolwharf/tools": "search",
  };
  const ask = async (method, params = {}) => {
    const headers = { "content-type": "application/json", accept: "application/json, text/event-stream", "mcp-protocol-version": MODERN, "mcp-method": method };
    if (params.name) headers["mcp-name"] = params.name;
    const asked = { jsonrpc: "2.0", id: 1, method, params: { ...params, _meta } };
    const answer = await fetch(`${url}/mcp/shop`, { method: "POST", headers, body: JSON.stringify(asked) });
    assert.equal(answer.status, 200, await answer.clone().text());
  };
  await ask("tools/list");
  await page.goto(`${url}/servers`);
  await main.getByRole("link", { name: /^Search mode saved about [\d.,K]+ tokens in the last day$/ }).click();
  await page.waitForURL(`${url}/tools/find`);

  // A word that has led to two calls finds the tool.
  const unknown = `${url}/tools/find?project=shop&q=zorp`;
  await page.goto(unknown);
  await main.getByText("No tool fits").waitFor();
  for (let time = 0; time < 2; time += 1) {
    await ask("tools/call", { name: "search_tools", arguments: { query: "report the zorp" } });
    await ask("tools/call", { name: "create_issue", arguments: {} });
  }
  await page.goto(unknown);
  await first.getByRole("link", { name: "create_issue" }).waitFor();
  await first.getByText(/earlier searches \d/).waitFor();
  await main.getByText("earlier searches", { exact: true }).waitFor();
  const folder = process.env.TOOLWHARF_PICTURES;
  for (const width of folder ? [1440, 390] : []) {
    for (const colorScheme of ["light", "dark"]) {
      await page.setViewportSize({ width, height: 800 });
      await page.emulateMedia({ colorScheme });
      await page.screenshot({ path: `${folder}/learned-${width}-${colorScheme}.png` });
    }
  }

  // A key of the project sees the same, but cannot change it.
  const { token } = (await api("POST", "/keys", { name: "reader", role: "read", projects: ["shop"] })).body;
  const reader = await open();
  await reader.goto(`${url}/sign-in?next=${encodeURIComponent("/tools/find?q=create_issue")}`);
  await reader.fill("#key", token);
  await reader.getByRole("button", { name: "Sign in" }).click();
  await reader.getByRole("list", { name: "Found tools" }).getByText("exact name").waitFor();
  await reader.getByText("Clients get the short list now. An administrator can change that.").waitFor();
  assert.equal(await reader.getByRole("button", { name: /Always list/ }).count(), 0);
  assert.equal(await reader.getByLabel("Whose tools").count(), 0);
});
