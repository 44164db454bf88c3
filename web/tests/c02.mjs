// A server crashes, is restarted, and fails to start: the page shows each within a second, with the reason and the output.
import { api, assert, call, visit } from "./support.mjs";

/** Time limit from the change in the gateway until the page shows it. */
const LATE_MS = 1_000;

await visit("/servers", async (page, { open }) => {
  const row = page.getByRole("list", { name: "Servers" }).getByRole("listitem").filter({ hasText: "fragile" });
  await row.getByText("Running").waitFor();

  // The server exits: the events say why, and it runs again.
  await call("fragile", "crash");
  await row.getByText("Running").waitFor();
  const one = await open("/servers/fragile?tab=logs");
  await one.getByRole("log").getByText("fragile says hello").first().waitFor();

  // Stopped manually over the API: measured from the response until the page shows it.
  await api("POST", "/mcp/servers/fragile/stop");
  const from = performance.now();
  await row.getByText("Stopped").waitFor();
  const took = performance.now() - from;
  console.log(`seen after ${took.toFixed(0)} ms`);
  assert.ok(took < LATE_MS, `seen after ${took} ms`);

  // An event arrives while the list is fetched: the list, which is older, does not undo it.
  const list = /\/api\/v1\/mcp\/servers\?/;
  const [fetched, release] = [Promise.withResolvers(), Promise.withResolvers()];
  await page.route(list, async (route) => {
    const response = await route.fetch();
    const { servers, ...rest } = await response.json();
    fetched.resolve();
    await release.promise;
    await route.fulfill({ response, json: { ...rest, servers: [...servers, { ...servers[0], id: "older", name: "older" }] } });
  });
  await row.getByRole("button", { name: "Actions for fragile" }).click();
  await page.getByRole("menuitem", { name: "Start", exact: true }).click();
  await fetched.promise;
  await api("POST", "/mcp/servers", { name: "newer", command: ["true"], enabled: false });
  await page.getByRole("link", { name: "newer" }).waitFor();
  release.resolve();
  await page.getByRole("link", { name: "older" }).waitFor();
  assert.equal(await page.getByRole("link", { name: "newer" }).count(), 1);
  await page.unroute(list);

  // It is counted in the sidebar and linked above the list.
  await page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name: /Servers\s*1 server needs attention/ }).waitFor();
  await page.getByRole("status", { name: "Needs attention" }).getByRole("link", { name: "hopeless failed" }).waitFor();

  // A server that cannot start: the reason, the time of the next attempt, its last output.
  await page.getByRole("list", { name: "Servers" }).getByRole("link", { name: "hopeless" }).click();
  await page.getByText("Failed, retrying").first().waitFor();
  await page.getByText("it ended with exit code 5 before it answered the handshake").first().waitFor();
  await page.getByText(/Next attempt in \d+s/).waitFor();
  await page.getByText("Error: the index is gone").first().waitFor();
});
