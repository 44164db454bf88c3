// A client on this machine is connected after a preview of the change. Disconnecting restores its file byte for byte.
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";

import { assert, visit } from "./support.mjs";

const file = join(dirname(process.env.TOOLWHARF_ANSWERS), ".cursor/mcp.json");
const before = readFileSync(file);

await visit("/connect", async (page, { dialog }) => {
  const cursor = page.getByRole("listitem").filter({ hasText: "Cursor" });
  await cursor.getByText("not connected").waitFor();
  await cursor.getByRole("button", { name: "Connect" }).click();
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
