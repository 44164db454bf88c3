import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";

import { api, ApiError, ok } from "@/api/client";
import { Button } from "@/ui/button";
import { Json, pretty } from "@/ui/json";
import { toast } from "@/ui/overlay";
import { Chips, Field, Input, message, Notice, Panel } from "@/ui/parts";

type Kind = "npm" | "pypi" | "url" | "command" | "image";

/** An initial entry of each kind. Packages are sandboxed by default. */
const ENTRIES: Record<Kind, { label: string; entry: unknown }> = {
  npm: { label: "npm", entry: { command: "npx", args: ["-y", "@modelcontextprotocol/server-memory"], toolwharf: { sandbox: true } } },
  pypi: { label: "PyPI", entry: { command: "uvx", args: ["mcp-server-time"], toolwharf: { sandbox: true } } },
  url: { label: "Address", entry: { url: "https://mcp.example.com/mcp" } },
  command: { label: "Program", entry: { command: "/usr/local/bin/my-server", args: [], env: {} } },
  image: { label: "Image", entry: { image: "my-server:1", port: 9000 } },
};

/** Adds a server from an entry as in mcp.json. */
export function ByHand() {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [kind, setKind] = useState<Kind>("npm");
  const [name, setName] = useState("");
  const [text, setText] = useState(pretty(ENTRIES.npm.entry));
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const choose = (next: Kind) => {
    setKind(next);
    setText(pretty(ENTRIES[next].entry));
    setError(undefined);
  };
  const add = async () => {
    setBusy(true);
    setError(undefined);
    try {
      const entry = JSON.parse(text) as never;
      const made = await ok(api.PUT("/api/v1/mcp/servers/{id}", { params: { path: { id: name }, header: { "If-None-Match": "*" } }, body: entry }));
      await client.invalidateQueries({ queryKey: ["servers"] });
      toast(`${name} is added.`);
      await navigate({ to: "/servers/$id", params: { id: made.id ?? name } });
    } catch (failed) {
      setError(failed);
    } finally {
      setBusy(false);
    }
  };
  const wrong = error instanceof ApiError ? error.problem?.errors : undefined;
  return (
    <>
      <form className="flex max-w-2xl flex-col gap-4" onSubmit={(event) => (event.preventDefault(), void add())}>
        <Chips label="Kind" value={kind} onChange={choose} choices={(Object.keys(ENTRIES) as Kind[]).map((value) => ({ value, label: ENTRIES[value].label }))} />
        <Field label="Name">
          <Input value={name} onChange={(event) => setName(event.target.value)} required placeholder="memory" />
        </Field>
        <Panel title="Entry">
          <div className="p-2">
            <Json label="Entry" value={text} onChange={setText} errors={wrong} />
          </div>
        </Panel>
        {!!error && (
          <Notice tone="bad">
            {message(error)}
            {wrong && (
              <ul className="mt-1 list-disc pl-4">
                {wrong.map((one) => (
                  <li key={one.pointer + one.detail}>
                    <code>{one.pointer || "/"}</code> {one.detail}
                  </li>
                ))}
              </ul>
            )}
          </Notice>
        )}
        <div>
          <Button look="solid" type="submit" busy={busy}>
            Add it
          </Button>
        </div>
      </form>
    </>
  );
}
