// Puts a server in a sandbox. Shows first what the server would lose, and lets the user keep parts of it.
import { queryOptions, useQuery, useQueryClient } from "@tanstack/react-query";
import { ShieldCheck, ShieldOff } from "lucide-react";
import { useState } from "react";

import { api, ApiError, ok, type Schemas, type Server } from "@/api/client";
import { Decide, useSubmit } from "@/ui/form";
import { Dialog, toast } from "@/ui/overlay";
import { Badge, Button, Chips, Diff, Empty, Field, Input, message, Missing, Notice, Notices, Panel, Quoted } from "@/ui/parts";
import { kept } from "./entry";

type Entry = Record<string, unknown>;
type Files = NonNullable<Server["files"]>;

const confinement = (id: string) =>
  queryOptions({
    queryKey: ["server", id, "confinement"],
    retry: false,
    queryFn: ({ signal }) => ok(api.GET("/api/v1/mcp/servers/{id}/confinement", { params: { path: { id } }, signal })),
  });

/** The network of the sandbox: none, only some hosts, or open. */
type Reach = "none" | "hosts" | "open";

export function Confine({ server }: { server: Server }) {
  const { data, error, refetch } = useQuery(confinement(server.id!));
  if (error instanceof ApiError && error.status === 403)
    return (
      <Empty icon={<ShieldOff />} title="This server has no sandbox">
        It runs as the user of Toolwharf, and can read that user's files and use the network. Only an administrator can put it in a sandbox.
      </Empty>
    );
  if (!data) return <Missing error={error} retry={refetch} rows={4} />;
  return <Offer server={server} told={data} />;
}

function Offer({ server, told }: { server: Server; told: Schemas["Confinement"] }) {
  const client = useQueryClient();
  const [reach, setReach] = useState<Reach>("none");
  const [hosts, setHosts] = useState("");
  const [keeping, setKeeping] = useState<ReadonlySet<string>>(new Set());
  const { busy, error, submit } = useSubmit();
  const [change, setChange] = useState<{ entry: Entry; tag: string; told: Schemas["EntryChange"] }>();
  const isNetwork = (loss: Schemas["Loss"]) => !!loss.keep && "network" in loss.keep;

  const put = (entry: Entry, tag: string, dry_run: boolean) =>
    ok(api.PUT("/api/v1/mcp/servers/{id}/entry", { params: { path: { id: server.id! }, query: { dry_run }, header: { "If-Match": tag } }, body: entry as never }));
  const review = () =>
    submit(async () => {
      const { entry, tag } = await client.fetchQuery({ ...kept(server.id!), staleTime: 0 });
      const keys: Entry = { sandbox: true };
      if (reach === "open") keys["network"] = "open";
      if (reach === "hosts") keys["network"] = hosts.split(/[\s,]+/).filter(Boolean);
      const mounts = told.losses.filter((loss) => keeping.has(loss.what)).flatMap((loss) => (loss.keep as { mounts?: unknown[] }).mounts ?? []);
      if (mounts.length) keys["mounts"] = mounts;
      const confined = withSandbox(entry.entry as Entry, keys);
      setChange({ entry: confined, tag, told: await put(confined, tag, true) });
    });
  const save = () =>
    submit(async () => {
      const { entry, tag } = change!;
      const { notices } = await put(entry, tag, false).finally(() => setChange(undefined));
      for (const notice of notices) toast(notice, true);
      toast(`${server.name} is restarted in a sandbox.`);
      await client.invalidateQueries({ queryKey: ["entry", server.id!] });
      await client.invalidateQueries({ queryKey: ["server", server.id!] });
    });
  const toggle = (what: string) => setKeeping((old) => new Set(old.has(what) ? [...old].filter((one) => one !== what) : [...old, what]));

  return (
    <div className="grid gap-4 p-4 md:p-6 xl:grid-cols-2 xl:items-start">
      <Panel
        title="Confine this server"
        actions={
          <Button look="solid" icon={<ShieldCheck />} busy={busy} disabled={reach === "hosts" && !hosts.trim()} onClick={() => void review()}>
            Review
          </Button>
        }
      >
        <div className="flex flex-col gap-3 border-b p-3.5 text-sm">
          <p className="text-muted">
            This server has no sandbox: it runs as the user of Toolwharf, and can read that user's files and use the network. In a sandbox it would lose what is listed here. Choose what it keeps; nothing
            changes before you have seen the change to its entry.
          </p>
          {told.refused.map((why) => (
            <Notice key={why} tone="warn">
              It would not start in a sandbox: {why}
            </Notice>
          ))}
          {!!error && <Notice tone="bad">{message(error)}</Notice>}
        </div>
        <ul aria-label="What it would lose" className="divide-y divide-line text-sm">
          {told.losses.map((loss) => (
            <li key={loss.what} className="flex flex-col gap-2 px-3.5 py-2.5">
              {isNetwork(loss) ? (
                <>
                  <div className="flex flex-wrap items-center justify-between gap-2">
                    <span className="font-medium">The network</span>
                    <Chips label="Network" value={reach} onChange={setReach} choices={[["none", "None"], ["hosts", "Only some hosts"], ["open", "Keep all"]]} />
                  </div>
                  {reach === "hosts" && (
                    <Field label="Hosts" help="Separated by spaces. A server that ignores proxy variables needs the whole network.">
                      <Input value={hosts} placeholder="api.example.com" onChange={(event) => setHosts(event.target.value)} />
                    </Field>
                  )}
                </>
              ) : loss.keep ? (
                <label className="flex items-start gap-2">
                  <input type="checkbox" className="mt-0.5 size-4 accent-solid" checked={keeping.has(loss.what)} onChange={() => toggle(loss.what)} />
                  <span className="min-w-0 break-words">
                    Keep <Quoted text={loss.what} />
                  </span>
                </label>
              ) : (
                <p className="break-words">
                  <Quoted text={upper(loss.what)} />
                  {loss.remedy && <span className="block text-xs text-muted">What restores it: <Quoted text={loss.remedy} /></span>}
                </p>
              )}
            </li>
          ))}
        </ul>
      </Panel>
      <Panel title="What it could still read and write">
        {!!told.files_missing.length && (
          <p className="border-b px-3.5 py-2 text-sm break-words text-warn">Its entry refers to files that the sandbox would not show: {told.files_missing.join(", ")}</p>
        )}
        {told.files.length ? <FileList files={told.files} /> : <p className="px-3.5 py-3 text-sm text-muted">Its package, which Toolwharf installs beforehand, and the files that every sandbox has.</p>}
      </Panel>
      <Dialog open={!!change} onClose={() => setChange(undefined)} title={`Confine ${server.name}?`} description="The server is restarted in a sandbox.">
        <div className="flex flex-col gap-3">
          {change?.told.diff ? <Diff text={change.told.diff} /> : <p className="text-sm text-muted">Nothing changes.</p>}
          <Notices texts={change?.told.notices} />
          <Decide onCancel={() => setChange(undefined)} action="Confine it" busy={busy} onClick={() => void save()} />
        </div>
      </Dialog>
    </div>
  );
}

const upper = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

/** Adds keys of a sandbox to an entry, where the entry has such keys already. A sandbox has no `cwd` of the host. */
function withSandbox({ cwd: _, ...entry }: Entry, keys: Entry): Entry {
  const ours = entry["toolwharf"];
  if (typeof ours !== "object" || ours === null) return { ...entry, ...keys };
  return { ...Object.fromEntries(Object.entries(entry).filter(([key]) => !(key in keys))), toolwharf: { ...ours, ...keys } };
}

/** The files that a server in a sandbox sees. Those that every sandbox has come last. */
export function FileList({ files }: { files: Files }) {
  const sorted = [...files].sort((a, b) => Number(isOwn(a)) - Number(isOwn(b)) || a.path.localeCompare(b.path));
  return (
    <ul tabIndex={0} aria-label="Files" className="max-h-96 divide-y divide-line overflow-y-auto">
      {sorted.map((one) => (
        <li key={one.path} className="flex flex-wrap items-baseline gap-x-3 px-3.5 py-1.5 text-sm">
          <Badge tone={one.access === "write" ? "warn" : "plain"}>{one.access === "write" ? "read and write" : "read"}</Badge>
          <code className="min-w-0 break-all">{one.path}</code>
          {isOwn(one) && <span className="text-xs text-muted">{one.host ? "part of the system" : "exists only in the sandbox"}</span>}
          {one.host && one.host !== one.path && <span className="text-xs break-all text-muted">on this machine: {one.host}</span>}
          {!!one.hidden?.length && <span className="basis-full text-xs break-all text-muted">hidden: {one.hidden.join(", ")}</span>}
        </li>
      ))}
    </ul>
  );
}

/** Returns whether every sandbox has this file or directory. */
function isOwn(one: Files[number]) {
  return !one.host || /^\/(usr|bin|sbin|lib\w*|etc|nix)(\/|$)/.test(one.host);
}
