import { useQuery } from "@tanstack/react-query";
import { Check, ShieldCheck, ShieldOff, X } from "lucide-react";

import { api, ok, type Server } from "@/api/client";
import { bytes, reach } from "@/lib";
import { Empty, Fact, Facts, Panel } from "@/ui/parts";
import { Confine, FileList } from "./confine";

export function Isolation({ server }: { server: Server }) {
  if (!server.sandbox)
    return server.transport === "stdio" ? (
      <Confine key={server.id} server={server} />
    ) : (
      <Empty icon={<ShieldOff />} title="This server runs elsewhere">Toolwharf connects to it at {server.target} and cannot put it in a sandbox.</Empty>
    );
  const enforced = server.enforced ?? [];
  return (
    <div className="grid gap-4 p-4 md:p-6 xl:grid-cols-2 xl:items-start">
      <Panel title="Protections">
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
          <p className="px-3.5 py-3 text-sm text-muted">Shown while the server runs, as read back from the kernel.</p>
        )}
      </Panel>
      <Panel title="Files it can read and write" className="xl:order-last xl:col-span-2">
        <Files server={server} />
      </Panel>
      <Panel title="Access and limits" actions={<ShieldCheck aria-hidden className="size-4 text-accent" />}>
        <Facts>
          <Fact name="Sandboxed by">{server.provider ?? server.sandbox}{server.provider_reason && <span className="text-muted"> ({server.provider_reason})</span>}</Fact>
          <Fact name="Network">{reach(server.network)}</Fact>
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
  return (
    <>
      {!!server.files_missing?.length && (
        <p className="border-b px-3.5 py-2 text-sm break-words text-warn">
          Its entry refers to files outside its sandbox: {server.files_missing.join(", ")}. Add them to <code>"sandbox": {'{"show": […]}'}</code> if the server needs them.
        </p>
      )}
      <FileList files={files} />
    </>
  );
}
