// The link that `serve` prints signs in and opens the live list of servers.
import { api, assert, run, url } from "./support.mjs";

await run(async (open) => {
  const page = await open();
  await page.goto(process.env.TOOLWHARF_LINK);
  await page.waitForURL(`${url}/servers`);
  const servers = page.getByRole("list", { name: "Servers" });
  for (const name of ["everything", "time"]) await servers.getByRole("listitem").filter({ hasText: name }).getByText("Running").waitFor();
  assert.equal(await page.title(), "Servers · Toolwharf");
  // A change made outside the page appears without a reload.
  await api("POST", "/mcp/servers/time/stop");
  const time = servers.getByRole("listitem").filter({ hasText: "time" });
  await time.getByText("Stopped").waitFor();
  // A change made in the page takes effect.
  await time.getByRole("button", { name: "Actions for time" }).click();
  await page.getByRole("menuitem", { name: "Start", exact: true }).click();
  await time.getByText("Running").waitFor();
  const told = await api("GET", "/mcp/servers/time");
  assert.equal(told.body.status, "running");
  // The next steps are one click away.
  const main = page.getByRole("main");
  await main.getByRole("link", { name: "Install" }).click();
  await page.waitForURL(`${url}/install`);
  await page.goBack();
  await main.getByRole("link", { name: "Connect" }).click();
  await page.waitForURL(`${url}/connect`);
  await page.getByText("None of the clients that Toolwharf supports").waitFor();

  // Without a session, the user signs in first and returns to the requested page.
  const other = await open();
  await other.goto(`${url}/servers/everything?tab=events`);
  await other.waitForURL(/\/sign-in\?next=/);
  await other.fill("#key", process.env.TOOLWHARF_TOKEN);
  await other.getByRole("button", { name: "Sign in" }).click();
  await other.waitForURL(`${url}/servers/everything?tab=events`);
  await other.getByRole("heading", { name: "everything" }).waitFor();
  await other.getByRole("list", { name: "Events" }).getByText("ready").first().waitFor();
  // Signing out ends the session.
  await other.getByRole("button", { name: "Sign out" }).click();
  await other.waitForURL(`${url}/sign-in`);
  await other.goto(`${url}/servers`);
  await other.waitForURL(/\/sign-in\?next=/);
});
