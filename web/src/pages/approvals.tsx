import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { BadgeCheck } from "lucide-react";
import { useState } from "react";

import type { Server, Tool } from "@/api/client";
import { allTools, servers } from "@/api/queries";
import { approve, ownerOf, refuse } from "@/api/tools";
import { plural } from "@/lib";
import { Button } from "@/ui/button";
import { Diff } from "@/ui/diff";
import { attempt, Confirm } from "@/ui/overlay";
import { Empty, Failure, Field, Notice, Page, Panel, Select, Skeleton } from "@/ui/parts";
import { Changes } from "./tools/changes";

export function Approvals() {
  const client = useQueryClient();
  const tools = useQuery(allTools);
  const known = useQuery(servers);
  const [past, setPast] = useState<string>();
  const [all, setAll] = useState<{ server: Server; tools: Tool[] }>();
  if (tools.error && !tools.data) return <Failure error={tools.error} retry={() => void tools.refetch()} />;
  if (!tools.data || !known.data) return <Skeleton />;
  const groups = new Map<string, { server: Server; tools: Tool[] }>();
  for (const tool of tools.data) {
    const server = tool.kept_back || tool.quarantine ? ownerOf(tool, known.data) : undefined;
    if (!server) continue;
    const group = groups.get(server.id!) ?? { server, tools: [] };
    group.tools.push(tool);
    groups.set(server.id!, group);
  }
  const decided = () => client.invalidateQueries({ queryKey: ["tools"] });
  const waiting = [...groups.values()];
  const looked = known.data.find((server) => server.id === past) ?? known.data[0];
  return (
    <Page title="Approvals" lead="A tool whose definition changed after it was approved is kept back until you review the change.">
      {!waiting.length ? (
        <Empty icon={<BadgeCheck />} title="Nothing to approve">
          When a server changes the description or arguments of a tool, you see the change here first. Clients see it once you approve it.
        </Empty>
      ) : (
        <div className="flex flex-col gap-6">
          {waiting.map(({ server, tools }) => {
            const ready = tools.filter((tool) => tool.quarantine);
            return (
              <section key={server.id} aria-label={server.name} className="flex flex-col gap-3">
                <div className="flex flex-wrap items-center justify-between gap-2">
                  <h2 className="text-lg font-semibold">
                    <Link to="/servers/$id" params={{ id: server.id! }} className="hover:underline">
                      {server.name}
                    </Link>{" "}
                    <span className="text-sm font-normal text-faint">{plural(tools.length, "tool")}</span>
                  </h2>
                  {ready.length > 1 && <Button onClick={() => setAll({ server, tools: ready })}>Approve all {ready.length}</Button>}
                </div>
                {tools.map((tool) => (
                  <Panel
                    key={tool.native}
                    title={<h3 className="font-mono text-sm font-semibold break-all">{tool.native}</h3>}
                    actions={
                      <div className="flex gap-2">
                        {tool.enabled && (
                          <Button look="danger" onClick={() => void attempt(() => refuse(server, tool).then(decided), `${tool.native} is switched off.`)}>
                            Switch it off
                          </Button>
                        )}
                        {tool.quarantine && (
                          <Button look="solid" onClick={() => void attempt(() => approve(server, [tool]).then(decided), `${tool.native} is offered as it is now.`)}>
                            Approve
                          </Button>
                        )}
                      </div>
                    }
                  >
                    {tool.quarantine?.diff ? <Diff text={tool.quarantine.diff} /> : <p className="px-3.5 py-3 text-sm text-muted">{tool.kept_back}</p>}
                    {!tool.enabled && <Notice>It is switched off, so clients do not see it whether or not it is approved.</Notice>}
                  </Panel>
                ))}
              </section>
            );
          })}
        </div>
      )}
      {looked && (
        <section aria-label="Past" className="mt-8 flex flex-col gap-3">
          <Field label="Previously approved definitions of">
            <Select value={looked.id} onChange={(event) => setPast(event.target.value)}>
              {known.data.map((server) => (
                <option key={server.id} value={server.id}>
                  {server.name}
                </option>
              ))}
            </Select>
          </Field>
          <Changes key={looked.id} server={looked} />
        </section>
      )}
      <Confirm open={!!all} onOpenChange={(open) => !open && setAll(undefined)} title={`Approve ${all?.tools.length ?? 0} tools of ${all?.server.name ?? ""}?`} action="Approve all" look="solid" onConfirm={() => approve(all!.server, all!.tools).then(decided)}>
        Clients see all of the new definitions at once.
      </Confirm>
    </Page>
  );
}
