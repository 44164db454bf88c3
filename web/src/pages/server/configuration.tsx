import type { Server } from "@/api/client";
import { Fact, Facts, Panel } from "@/ui/parts";
import { EntryOf } from "./entry";

export function Configuration({ server }: { server: Server }) {
  return (
    <div className="grid gap-4 p-4 md:p-6 xl:grid-cols-[3fr_2fr] xl:items-start">
      <EntryOf key={server.id} server={server} />
      <Panel title="Effective configuration">
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
          <Fact name="Restart">{server.restart_policy ?? "the default for its kind"}</Fact>
        </Facts>
      </Panel>
    </div>
  );
}
