import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { api, ApiError, ok, type Server } from "@/api/client";
import { Button } from "@/ui/button";
import { Json, pretty } from "@/ui/json";
import { toast } from "@/ui/overlay";
import { Fact, Facts, message, Notice, Panel } from "@/ui/parts";

export function Configuration({ server }: { server: Server }) {
  return (
    <div className="grid gap-4 p-4 md:p-6 xl:grid-cols-[3fr_2fr] xl:items-start">
      {server.config ? (
        <Entry key={server.updated_at ?? server.id} server={server} />
      ) : (
        <Notice>
          {server.declared === "registered"
            ? "A program registered this server. Register it again to change it."
            : "The entry of this server is in the configuration file. Save that file, and Toolwharf takes the change in within a second."}
        </Notice>
      )}
      <Panel title="As it is used">
        <Facts>
          <Fact name="Declared">{server.declared}</Fact>
          <Fact name="Target"><code className="break-all">{server.target}</code>{!!server.arguments && <span className="text-muted"> and {server.arguments} arguments</span>}</Fact>
          {!!server.environment?.length && <Fact name="Variables"><code className="break-all">{server.environment.join(", ")}</code></Fact>}
          {!!server.headers?.length && <Fact name="Headers"><code>{server.headers.join(", ")}</code></Fact>}
          <Fact name="Projects">{server.project ?? (server.projects?.length ? server.projects.join(", ") : "all")}</Fact>
          <Fact name="Calls at a time">{server.max_concurrency}</Fact>
          <Fact name="Call timeout">{(server.call_timeout_ms ?? 0) / 1000} s</Fact>
          <Fact name="Start timeout">{(server.start_timeout_ms ?? 0) / 1000} s</Fact>
          <Fact name="Connection">{server.sharing}</Fact>
          <Fact name="Restart">{server.restart_policy ?? "as is usual for its kind"}</Fact>
        </Facts>
      </Panel>
    </div>
  );
}

/** The entry as it is kept, to be changed. The gateway checks it before it is saved. */
function Entry({ server }: { server: Server }) {
  const client = useQueryClient();
  const before = pretty(server.config);
  const [text, setText] = useState(before);
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const save = async () => {
    setError(undefined);
    let entry: unknown;
    try {
      entry = JSON.parse(text);
    } catch (failed) {
      return setError(failed);
    }
    setBusy(true);
    try {
      const told = await ok(api.PUT("/api/v1/mcp/servers/{id}", { params: { path: { id: server.id! } }, body: entry as never }));
      client.setQueryData(["server", server.id!], (old: Server | undefined) => ({ ...old, ...told }));
      await client.invalidateQueries({ queryKey: ["server", server.id!] });
      toast("Saved. The server is started anew with it.");
    } catch (failed) {
      setError(failed);
    } finally {
      setBusy(false);
    }
  };
  const wrong = error instanceof ApiError ? error.problem?.errors : undefined;
  return (
    <Panel
      title="Entry"
      actions={
        <div className="flex gap-2">
          <Button look="quiet" disabled={text === before} onClick={() => (setText(before), setError(undefined))}>
            Undo
          </Button>
          <Button look="solid" busy={busy} disabled={text === before} onClick={() => void save()}>
            Save
          </Button>
        </div>
      }
    >
      <div className="flex flex-col gap-2 p-2">
        <Json label="Entry of this server" value={text} onChange={setText} errors={wrong} />
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
      </div>
    </Panel>
  );
}
