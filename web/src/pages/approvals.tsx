import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { BadgeCheck } from "lucide-react";
import { useState } from "react";

import { useChange, type Server, type Tool } from "@/api/client";
import { allTools, servers } from "@/api/queries";
import { approve, offer, ownerOf } from "@/api/tools";
import { plural } from "@/lib";
import { ChoiceField } from "@/ui/form";
import { attempt, Confirm } from "@/ui/overlay";
import { Button, Empty, Failure, Notice, Page, Skeleton } from "@/ui/parts";
import { Changes, KeptBack } from "./tools/changes";

export function Approvals() {
  const change = useChange("tools");
  const tools = useQuery(allTools);
  const known = useQuery(servers);
  const [past, setPast] = useState<string>();
  const [all, setAll] = useState<{ server: Server; tools: Tool[] }>();
  if (tools.error && !tools.data) return <Failure error={tools.error} retry={() => void tools.refetch()} />;
  if (!tools.data || !known.data) return <Skeleton />;
  const isHeld = (tool: Tool) => tool.kept_back || tool.quarantine;
  const groups = Map.groupBy(tools.data.filter(isHeld), (tool) => ownerOf(tool, known.data));
  const waiting = [...groups].flatMap(([server, tools]) => (server ? [{ server, tools }] : []));
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
                  <KeptBack
                    key={tool.native}
                    tool={tool}
                    title={<h3 className="font-mono text-sm font-semibold break-all">{tool.native}</h3>}
                    approval="Approve"
                    onRefuse={() => void attempt(() => change(offer(server, tool, false)), `${tool.native} is switched off.`)}
                    onApprove={() => void attempt(() => change(approve(server, [tool])), `The new definition of ${tool.native} is approved.`)}
                  >
                    {!tool.enabled && <Notice>It is switched off, so clients do not see it whether or not it is approved.</Notice>}
                  </KeptBack>
                ))}
              </section>
            );
          })}
        </div>
      )}
      {looked && (
        <section aria-label="Past" className="mt-8 flex flex-col gap-3">
          <ChoiceField label="Previously approved definitions of" value={looked.id!} onChange={setPast} choices={known.data.map((server) => [server.id!, server.name!])} />
          <Changes key={looked.id} server={looked} />
        </section>
      )}
      <Confirm open={!!all} onClose={() => setAll(undefined)} title={`Approve ${all?.tools.length ?? 0} tools of ${all?.server.name ?? ""}?`} action="Approve all" look="solid" onConfirm={() => change(approve(all!.server, all!.tools))}>
        Clients see all of the new definitions at once.
      </Confirm>
    </Page>
  );
}
