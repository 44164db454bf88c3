// A client on this machine is connected after a preview of the change. Disconnecting restores its file byte for byte.
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";

import { assert, run, signIn } from "./support.mjs";

const file = join(dirname(process.env.TOOLWHARF_ANSWERS), ".cursor/mcp.json");

await run(async (open) => {
  const before = readFileSync(file);
  const page = await open();
  await signIn(page, "/connect");
  const cursor = page.getByRole("listitem").filter({ hasText: "Cursor" });
  await cursor.getByText("not connected").waitFor();
  await cursor.getByRole("button", { name: "Connect" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText('"toolwharf": {').waitFor();
  // Nothing is written before confirmation.
  assert.deepEqual(readFileSync(file), before);
  await dialog.getByRole("button", { name: "Connect", exact: true }).click();
  await cursor.getByText("connected", { exact: true }).waitFor();
  const after = readFileSync(file, "utf8");
  assert.match(after, /"toolwharf"/);
  assert.match(after, /\/\/ mine/);

  await cursor.getByRole("button", { name: "Disconnect" }).click();
  await dialog.getByRole("button", { name: "Disconnect" }).click();
  await cursor.getByText("not connected").waitFor();
  assert.deepEqual(readFileSync(file), before);
});
