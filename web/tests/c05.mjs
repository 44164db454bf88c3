// Calls are filtered, charted and shown live. One is opened with its bodies and replayed.
import { api, assert, call, run } from "./support.mjs";

await run(async (open) => {
  for (let b = 0; b < 30; b++) await call("everything", "get-sum", { a: 1, b });
  await call("everything", "get-sum", { a: "no number", b: 1 });
  const page = await open("/calls");
  await page.getByRole("img", { name: /Calls over time: 31/ }).locator("canvas").waitFor();
  const rows = page.getByRole("list", { name: "Calls" }).getByRole("listitem");
  await rows.first().waitFor();
  // Live.
  await call("everything", "echo", { message: "just now" });
  await rows.filter({ hasText: "everything/echo" }).waitFor();
  await page.getByRole("textbox", { name: "Tool" }).fill("echo");
  await page.keyboard.press("Enter");
  await rows.filter({ hasText: "get-sum" }).first().waitFor({ state: "detached" });
  await rows.filter({ hasText: "everything/echo" }).waitFor();
  assert.equal(await rows.count(), 1);
  assert.match(page.url(), /tool=echo/);

  await rows.getByRole("link").click();
  await page.getByRole("heading", { name: "everything/echo" }).waitFor();
  await page.getByText("Answered", { exact: true }).waitFor();
  await page.getByLabel("Arguments", { exact: true }).getByText('"just now"').waitFor();
  await page.getByLabel("Result", { exact: true }).getByText("Echo: just now").first().waitFor();
  const made = async () => (await api("GET", "/calls?tool=echo")).body.calls.length;
  await page.getByRole("button", { name: "Replay" }).click();
  assert.equal(await made(), 1);
  await page.getByRole("dialog").getByRole("button", { name: "Call it" }).click();
  await page.getByText("Replayed just now").waitFor();
  assert.equal(await made(), 2);
  // The phases of a call, and links between a call and its replay.
  const span = page.getByRole("list", { name: "Phases" }).getByRole("listitem");
  await span.filter({ hasText: "The server worked on it" }).waitFor();
  assert.equal(await span.count(), 4);
  const original = page.url().split("/").at(-1);
  const [replay] = (await api("GET", `/calls/${original}`)).body.replays;
  await page.getByRole("main").getByRole("link", { name: replay }).click();
  await page.getByRole("main").getByRole("link", { name: original }).waitFor();
  const told = (await api("GET", `/calls/${replay}`)).body;
  assert.equal(told.replay_of, original);
  assert.ok(told.turn_us <= told.sent_us && told.sent_us <= told.answered_us && told.answered_us <= told.duration_us, JSON.stringify(told));
  assert.equal(told.questions, 0);
  assert.equal((await call("everything", "echo", { message: "x" }, { replay_of: "no-such-call" })).status, 422);
});
