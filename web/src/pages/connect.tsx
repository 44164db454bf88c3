import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Cable, Unplug } from "lucide-react";
import { useState } from "react";

import { api, ok, useChange, type Schemas } from "@/api/client";
import { plural } from "@/lib";
import { at } from "@/root";
import { Decide, ProjectField } from "@/ui/form";
import { pretty, Snippet } from "@/ui/json";
import { attempt, Confirm, Dialog, toast } from "@/ui/overlay";
import { Badge, Button, Diff, message, Notice, Page, Panel, type Tone } from "@/ui/parts";

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
  const change = useChange("clients");
  const { data, error } = useQuery({ queryKey: ["clients"], retry: false, queryFn: async ({ signal }) => (await ok(api.GET("/api/v1/clients", { signal }))).clients });
  const [asked, setAsked] = useState<Client>();
  const [leaving, setLeaving] = useState<Client>();
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
      {asked && <Ask client={asked} project={project} onClose={() => setAsked(undefined)} />}
      <Confirm
        open={!!leaving}
        onClose={() => setLeaving(undefined)}
        title={`Disconnect ${leaving?.title ?? ""}?`}
        action="Disconnect"
        onConfirm={() => change(ok(api.POST("/api/v1/clients/{client}/disconnect", { params: { path: { client: leaving!.name } } })))}
      >
        Its file is restored, and servers that were moved go back into it.
      </Confirm>
    </Panel>
  );
}

function Ask({ client, project, onClose }: { client: Client; project: string; onClose: () => void }) {
  const change = useChange("clients");
  const [move, setMove] = useState(false);
  const body = { move, project: project || null };
  const shown = useQuery({
    queryKey: ["clients", client.name, body],
    retry: false,
    queryFn: () => ok(api.POST("/api/v1/clients/{client}/connect", { params: { path: { client: client.name } }, body: { ...body, dry_run: true } as never })),
  });
  const connect = () =>
    attempt(async () => {
      const done = ok(api.POST("/api/v1/clients/{client}/connect", { params: { path: { client: client.name } }, body: body as never }));
      await change(done.then(({ warnings }) => warnings.forEach((warning) => toast(warning))));
      onClose();
    }, `${client.title} is connected. Restart it.`);
  return (
    <Dialog onClose={onClose} title={`Connect ${client.title}`} description="Its file is changed as shown. A backup is kept in the gateway's data directory." wide>
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
        <Decide onCancel={onClose} action="Connect" disabled={!shown.data} onClick={() => void connect()} />
      </div>
    </Dialog>
  );
}

/** Instructions for connecting clients. */
export function Connect() {
  const [project, setProject] = useState("");
  const url = at(`mcp${project ? `/${project}` : ""}`);
  const headers = { Authorization: "Bearer ${TOOLWHARF_TOKEN}" };
  const ways = [
    ["Endpoint", url],
    ["Claude Code", `claude mcp add --transport http toolwharf ${url}`],
    ["Clients with an mcp.json (Cursor, Windsurf, VS Code and others)", pretty({ mcpServers: { toolwharf: { url } } })],
    ["Clients that start a program (Claude Desktop)", pretty({ mcpServers: { toolwharf: { command: "toolwharf", args: ["stdio"] } } })],
  ] as const;
  return (
    <Page title="Connect" lead="All servers share one endpoint. A client on another machine also needs a key.">
      <div className="flex max-w-3xl flex-col gap-4">
        <ProjectField label="What the client sees" none="all servers" value={project} onChange={setProject} />
        <Clients project={project} />
        {ways.map(([title, text]) => (
          <Panel key={title} title={title} inner="p-3">
            <Snippet text={text} />
          </Panel>
        ))}
        <Panel title="With a key" actions={<Link to="/keys" className="text-sm font-medium text-accent hover:underline">Make a key</Link>} inner="p-3">
          <Snippet text={pretty({ mcpServers: { toolwharf: { url, headers } } })} />
        </Panel>
      </div>
    </Page>
  );
}
