import { useQuery } from "@tanstack/react-query";
import { Check, ShieldCheck, ShieldOff, X } from "lucide-react";

import { api, ok, type Server } from "@/api/client";
import { bytes } from "@/lib";
import { Badge, Empty, Fact, Facts, Panel } from "@/ui/parts";

export function Isolation({ server }: { server: Server }) {
  if (!server.sandbox)
    return server.transport === "stdio" ? (
      <Empty icon={<ShieldOff />} title="This server has no sandbox">
        It runs as your user, and can read your files and use your network. Add <code>"sandbox": true</code> to its configuration to run it in a sandbox.
      </Empty>
    ) : (
      <Empty icon={<ShieldOff />} title="This server runs elsewhere">Toolwharf connects to it at {server.target} and cannot put it in a sandbox.</Empty>
    );
  const enforced = server.enforced ?? [];
  return (
    <div className="grid gap-4 p-4 md:p-6 xl:grid-cols-2 xl:items-start">
      <Panel title="What is enforced">
        {enforced.length ? (
          <ul className="divide-y divide-line">
            {enforced.map((one) => (
              <li key={one.what} className="flex gap-3 px-3.5 py-2">
                {one.holds ? <Check aria-label="enforced" className="mt-0.5 size-4 shrink-0 text-ok" /> : <X aria-label="not enforced" className="mt-0.5 size-4 shrink-0 text-warn" />}
                <div className="min-w-0 text-sm">
                  <span className="font-medium">{one.what}</span>
                  <p className="text-xs break-words text-muted">{one.how}</p>
                </div>
              </li>
            ))}
          </ul>
        ) : (
          <p className="px-3.5 py-3 text-sm text-muted">This is read back from the kernel while the server runs.</p>
        )}
      </Panel>
      <Panel title="Files it can read and write" className="xl:order-last xl:col-span-2">
        <Files server={server} />
      </Panel>
      <Panel title="Access and limits" actions={<ShieldCheck aria-hidden className="size-4 text-accent" />}>
        <Facts>
          <Fact name="Provider">{server.provider ?? server.sandbox}{server.provider_reason && <span className="text-muted"> ({server.provider_reason})</span>}</Fact>
          <Fact name="Network">{server.network ? (typeof server.network === "string" ? server.network : JSON.stringify(server.network)) : "none"}</Fact>
          <Fact name="Volumes">{server.volumes?.join(", ") || "none"}</Fact>
          {server.resource_limits && (
            <>
              <Fact name="Processors">{server.resource_limits.cpu}</Fact>
              <Fact name="Memory">{bytes(server.resource_limits.memory)}{server.usage && <span className="text-muted"> ({bytes(server.usage.memory)} used, {bytes(server.usage.memory_peak)} at most)</span>}</Fact>
              <Fact name="Disk">{bytes(server.resource_limits.disk)}</Fact>
              <Fact name="Processes">{server.resource_limits.pids}{server.usage && <span className="text-muted"> ({server.usage.pids} now)</span>}</Fact>
            </>
          )}
        </Facts>
      </Panel>
    </div>
  );
}

function Files({ server }: { server: Server }) {
  // Lists and events do not contain the files. They are fetched again for each instance, which may see other files.
  const params = { path: { id: server.id! } };
  const { data } = useQuery({ queryKey: ["server files", server.id, server.starts], queryFn: ({ signal }) => ok(api.GET("/api/v1/mcp/servers/{id}", { params, signal })) });
  const files = data?.files ?? [];
  if (!files.length) return <p className="px-3.5 py-3 text-sm text-muted">Listed when the server runs under bubblewrap. A container sees its image, its volumes and its mounts.</p>;
  const sorted = [...files].sort((a, b) => Number(isOwn(a)) - Number(isOwn(b)) || a.path.localeCompare(b.path));
  return (
    <>
      {!!server.files_missing?.length && (
        <p className="border-b px-3.5 py-2 text-sm text-warn">
          Its entry refers to files outside its sandbox: {server.files_missing.join(", ")}. Add them to <code>"sandbox": {'{"show": […]}'}</code> if the server needs them.
        </p>
      )}
      <ul className="max-h-96 divide-y divide-line overflow-y-auto">
        {sorted.map((one) => (
          <li key={one.path} className="flex flex-wrap items-baseline gap-x-3 px-3.5 py-1.5 text-sm">
            <Badge tone={one.access === "write" ? "warn" : "plain"}>{one.access}</Badge>
            <code className="min-w-0 break-all">{one.path}</code>
            {isOwn(one) && <span className="text-xs text-muted">{one.host ? "the system's" : "the sandbox's own"}</span>}
            {one.host && one.host !== one.path && <span className="text-xs break-all text-muted">{one.host} of the host</span>}
            {!!one.hidden?.length && <span className="basis-full text-xs break-all text-muted">hidden: {one.hidden.join(", ")}</span>}
          </li>
        ))}
      </ul>
    </>
  );
}

/** Returns whether every sandbox has this file or directory. */
function isOwn(one: NonNullable<Server["files"]>[number]) {
  return !one.host || /^\/(usr|bin|sbin|lib\w*|etc|nix)(\/|$)/.test(one.host);
}
