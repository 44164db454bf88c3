// A server that crashes, is started again, and gives up: the page shows it within a second, with the reason and what it wrote.
import { api, assert, call, run, signIn } from "./support.mjs";

/** From the gateway's knowing it to the page's showing it. */
const LATE_MS = 1_000;

await run(async (open) => {
  const page = await open();
  await signIn(page, "/servers");
  const row = page.getByRole("list", { name: "Servers" }).getByRole("listitem").filter({ hasText: "fragile" });
  await row.getByText("Running").waitFor();

  // It ends by itself: the events say why, and it is up again.
  await call("fragile", "crash");
  await row.getByText("Running").waitFor();
  const one = await open();
  await signIn(one, "/servers/fragile?tab=logs");
  await one.getByRole("log").getByText("fragile says hello").first().waitFor();

  // Stopped by hand, from elsewhere: measured from the answer to what is seen.
  await api("POST", "/mcp/servers/fragile/stop");
  const from = performance.now();
  await row.getByText("Stopped").waitFor();
  const took = performance.now() - from;
  console.log(`seen after ${took.toFixed(0)} ms`);
  assert.ok(took < LATE_MS, `seen after ${took} ms`);

  // A server that cannot start: the reason, the time of the next attempt, what it wrote last.
  await page.getByRole("link", { name: "hopeless" }).click();
  await page.getByText("Restarting later").waitFor();
  await page.getByText("it ended with exit code 5 before it answered the handshake").first().waitFor();
  await page.getByText(/Next attempt in \d+s/).waitFor();
  await page.getByText("Error: the index is gone").waitFor();
});
