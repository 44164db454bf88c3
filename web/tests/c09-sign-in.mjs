// Shows who is signed in to a server, with which scopes and until when; signs out and in again.
import { api, assert, visit } from "./support.mjs";

const login = async () => (await api("GET", "/mcp/servers/files/login")).body;

await visit("/servers/files?tab=sign-in", async (page, { main }) => {
  await main.getByText("signed in", { exact: true }).waitFor();
  await main.getByText("files:read").waitFor();
  await main.getByText("Token expires").waitFor();
  await main.getByRole("button", { name: "Sign out" }).click();
  await main.getByText("not signed in").waitFor();
  assert.equal((await login()).state, "absent");
  const [popup] = await Promise.all([page.context().waitForEvent("page"), main.getByRole("button", { name: "Sign in" }).click()]);
  assert.match(popup.url() === "about:blank" ? (await popup.waitForURL(/login/), popup.url()) : popup.url(), /login|interaction/);
});
