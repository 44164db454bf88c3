import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Cable, Unplug } from "lucide-react";
import { useState } from "react";

import { api, ok, type Schemas } from "@/api/client";
import { projects } from "@/api/queries";
import { plural } from "@/lib";
import { Button } from "@/ui/button";
import { Diff } from "@/ui/diff";
import { pretty, Snippet } from "@/ui/json";
import { attempt, Confirm, Dialog, toast } from "@/ui/overlay";
import { Badge, Field, message, Notice, Page, Panel, Select, type Tone } from "@/ui/parts";

type Client = Schemas["Client"];

const STATES: Record<Client["state"], [string, Tone]> = {
  connected: ["connected", "ok"],
  not_connected: ["not connected", "plain"],
  removed: ["entry removed", "warn"],
  by_hand: ["connected by hand", "ok"],
  unusable: ["file unusable", "bad"],
};

/** The clients on the gateway's machine. Each is connected with one click, after a preview of the change. */
function Clients({ project }: { project: string }) {
  const client = useQueryClient();
  const { data, error } = useQuery({ queryKey: ["clients"], retry: false, queryFn: async ({ signal }) => (await ok(api.GET("/api/v1/clients", { signal }))).clients });
  const [asked, setAsked] = useState<Client>();
  const [leaving, setLeaving] = useState<Client>();
  const again = () => client.invalidateQueries({ queryKey: ["clients"] });
  if (error) return <Notice tone="warn">{message(error)}</Notice>;
  if (!data) return <div className="skeleton h-32" />;
  if (!data.length) return <Notice>None of the clients that Toolwharf supports is installed on the gateway's machine. Copy the configuration for your client from below, or run <code>toolwharf connect</code> on the client's machine.</Notice>;
  return (
    <Panel title="Clients on this machine">
      <ul className="divide-y divide-line">
        {data.map((one) => (
          <li key={one.name} className="flex flex-wrap items-center gap-x-3 gap-y-2 px-3.5 py-2.5">
            <div className="min-w-0 flex-1 basis-60">
              <p className="flex flex-wrap items-center gap-2 text-sm font-medium">
                {one.title} <Badge tone={STATES[one.state]?.[1] ?? "plain"}>{STATES[one.state]?.[0] ?? one.state}</Badge>
                {one.project && <Badge>{one.project}</Badge>}
              </p>
              <p className="font-mono text-xs break-all text-faint">{one.file}</p>
              {one.problem && <p className="text-xs break-words text-bad">{one.problem}</p>}
            </div>
            {one.state === "connected" ? (
              <Button icon={<Unplug />} onClick={() => setLeaving(one)}>
                Disconnect
              </Button>
            ) : (
              one.state !== "unusable" && (
                <Button look="solid" icon={<Cable />} onClick={() => setAsked(one)}>
                  Connect
                </Button>
              )
            )}
          </li>
        ))}
      </ul>
      {asked && <Ask client={asked} project={project} onClose={() => setAsked(undefined)} onDone={again} />}
      <Confirm
        open={!!leaving}
        onOpenChange={(open) => !open && setLeaving(undefined)}
        title={`Disconnect ${leaving?.title ?? ""}?`}
        action="Disconnect"
        onConfirm={async () => {
          await ok(api.POST("/api/v1/clients/{client}/disconnect", { params: { path: { client: leaving!.name } } }));
          await again();
        }}
      >
        Its file is restored, and servers that were moved go back into it.
      </Confirm>
    </Panel>
  );
}

function Ask({ client, project, onClose, onDone }: { client: Client; project: string; onClose: () => void; onDone: () => Promise<void> }) {
  const [move, setMove] = useState(false);
  const body = { move, project: project || null };
  const shown = useQuery({
    queryKey: ["clients", client.name, body],
    retry: false,
    queryFn: () => ok(api.POST("/api/v1/clients/{client}/connect", { params: { path: { client: client.name } }, body: { ...body, dry_run: true } as never })),
  });
  const connect = () =>
    attempt(async () => {
      const done = await ok(api.POST("/api/v1/clients/{client}/connect", { params: { path: { client: client.name } }, body: body as never }));
      for (const warning of done.warnings) toast(warning);
      await onDone();
      onClose();
    }, `${client.title} is connected. Restart it.`);
  return (
    <Dialog open onOpenChange={onClose} title={`Connect ${client.title}`} description="Its file is changed as shown. A backup is kept next to it." wide>
      <div className="flex flex-col gap-4">
        {shown.error ? <Notice tone="bad">{message(shown.error)}</Notice> : shown.data ? <div className="overflow-hidden rounded-md border"><Diff text={shown.data.diff || "nothing changes"} /></div> : <div className="skeleton h-32" />}
        {shown.data?.staying.map((one) => (
          <Notice key={one.name} tone="warn">
            {one.name} stays: {one.why}
          </Notice>
        ))}
        {!!client.servers.length && (
          <label className="flex items-start gap-2 text-sm">
            <input type="checkbox" className="mt-0.5 size-4 accent-solid" checked={move} onChange={(event) => setMove(event.target.checked)} />
            Move its {plural(client.servers.length, "server")} into Toolwharf: {client.servers.join(", ")}
          </label>
        )}
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Cancel</Button>
          <Button look="solid" disabled={!shown.data} onClick={() => void connect()}>
            Connect
          </Button>
        </div>
      </div>
    </Dialog>
  );
}

/** Instructions for connecting clients. */
export function Connect() {
  const { data } = useQuery({ ...projects, retry: false });
  const [project, setProject] = useState("");
  const url = `${location.origin}/mcp${project ? `/${project}` : ""}`;
  const headers = { Authorization: "Bearer ${TOOLWHARF_TOKEN}" };
  return (
    <Page title="Connect" lead="All servers share one endpoint. A client on another machine also needs a key.">
      <div className="flex max-w-3xl flex-col gap-4">
        {!!data?.length && (
          <Field label="What the client sees">
            <Select value={project} onChange={(event) => setProject(event.target.value)}>
              <option value="">all servers</option>
              {data.map((one) => (
                <option key={one.id} value={one.id}>
                  the project {one.name || one.id}
                </option>
              ))}
            </Select>
          </Field>
        )}
        <Clients project={project} />
        <Panel title="Endpoint">
          <div className="p-3">
            <Snippet text={url} />
          </div>
        </Panel>
        <Panel title="Claude Code">
          <div className="p-3">
            <Snippet text={`claude mcp add --transport http toolwharf ${url}`} />
          </div>
        </Panel>
        <Panel title="Clients with an mcp.json (Cursor, Windsurf, VS Code and others)">
          <div className="p-3">
            <Snippet text={pretty({ mcpServers: { toolwharf: { url } } })} />
          </div>
        </Panel>
        <Panel title="Clients that start a program (Claude Desktop)">
          <div className="p-3">
            <Snippet text={pretty({ mcpServers: { toolwharf: { command: "toolwharf", args: ["stdio"] } } })} />
          </div>
        </Panel>
        <Panel title="With a key" actions={<Link to="/keys" className="text-sm font-medium text-accent hover:underline">Make a key</Link>}>
          <div className="p-3">
            <Snippet text={pretty({ mcpServers: { toolwharf: { url, headers } } })} />
          </div>
        </Panel>
      </div>
    </Page>
  );
}
