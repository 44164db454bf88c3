import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { ChevronLeft, Wrench } from "lucide-react";
import { useDeferredValue, useMemo, useState } from "react";

import type { Server, Tool } from "@/api/client";
import { allTools, servers } from "@/api/queries";
import { matches, ownerOf, wordsOf } from "@/api/tools";
import { cx, plural } from "@/lib";
import { Choose } from "@/ui/form";
import { useIsWide, useTitle } from "@/ui/media";
import { Badge, Empty, Failure, SearchBox, Skeleton } from "@/ui/parts";
import { Rows } from "@/ui/rows";
import { Dot } from "@/ui/state";
import { OneTool } from "./one";

const route = getRouteApi("/tools");

export function Tools() {
  const { server: serverId, tool: toolName } = route.useSearch();
  const isWide = useIsWide();
  const tools = useQuery(allTools);
  const known = useQuery(servers);
  useTitle(toolName ?? "Tools");
  const chosen = toolName && known.data?.find((one) => one.id === serverId);
  const of = (tool: Tool) => ownerOf(tool, known.data);
  const tool = chosen && tools.data?.find((one) => one.native === toolName && of(one)?.id === chosen.id);
  if ((tools.error && !tools.data) || (known.error && !known.data)) return <Failure error={tools.error ?? known.error} retry={() => void (tools.refetch(), known.refetch())} />;
  if (!tools.data || !known.data) return <Skeleton />;
  if (!isWide && toolName)
    return (
      <div>
        <Link to="/tools" className="flex items-center gap-1 px-3 pt-3 text-sm text-muted">
          <ChevronLeft aria-hidden className="size-4" /> All tools
        </Link>
        {chosen && tool ? <OneTool key={`${chosen.id} ${tool.native}`} server={chosen} tool={tool} /> : <Gone name={toolName} />}
      </div>
    );
  return (
    <div className="flex min-h-full flex-col md:flex-row">
      <div className="md:w-[21rem] md:shrink-0 md:border-r">
        <List tools={tools.data} of={of} servers={known.data} chosen={chosen ? `${chosen.id} ${toolName}` : ""} />
      </div>
      {isWide && (
        <div className="min-w-0 flex-1">
          <div className="sticky top-0">
            <div className="h-[100dvh] overflow-y-auto">
              {chosen && tool ? <OneTool key={`${chosen.id} ${tool.native}`} server={chosen} tool={tool} /> : toolName ? <Gone name={toolName} /> : <Empty icon={<Wrench />} title="Choose a tool">Its arguments are shown here as a form. Run it to see its result.</Empty>}
            </div>
          </div>
        </div>
      )}
    </div>
  );
}

const Gone = ({ name }: { name: string }) => <Empty icon={<Wrench />} title="Tool not found">No server that you see offers <code>{name}</code> now.</Empty>;

function List({ tools, servers, of, chosen }: { tools: Tool[]; servers: Server[]; of: (tool: Tool) => Server | undefined; chosen: string }) {
  const search = route.useSearch();
  const navigate = useNavigate();
  const [typed, setTyped] = useState(search.q ?? "");
  const words = useDeferredValue(typed);
  const rows = useMemo(() => {
    const wanted = wordsOf(words);
    return tools
      .filter((tool) => (!search.of || of(tool)?.id === search.of) && matches(tool, wanted))
      .sort((a, b) => a.server.localeCompare(b.server) || a.native.localeCompare(b.native));
    // `of` is not a dependency, because it depends only on `servers`.
  }, [tools, servers, words, search.of]);
  return (
    <>
      <div className="sticky top-0 z-10 flex flex-col gap-2 border-b bg-bg px-4 py-3">
        <div className="flex items-baseline justify-between">
          <h1 className="text-xl font-semibold tracking-tight">Tools</h1>
          <span role="status" className="tabular text-xs text-faint">
            {plural(rows.length, "tool")}
          </span>
        </div>
        <Link to="/tools/find" className="-mt-1.5 self-start text-sm text-accent underline">
          How models find tools
        </Link>
        <SearchBox value={typed} onChange={setTyped} placeholder="Search tools" />
        <Choose
          aria-label="Server"
          value={search.of ?? ""}
          onChange={(id) => void navigate({ to: "/tools", search: { ...search, of: id || undefined } as never, replace: true })}
          none="All servers"
          choices={servers.map((one) => [one.id!, `${one.name}${one.project ? ` (${one.project})` : ""}`])}
        />
      </div>
      {rows.length ? (
        <Rows
          items={rows}
          height={52}
          label="Tools"
          id={(tool) => `${tool.project} ${tool.server} ${tool.native}`}
          render={(tool) => {
            const owner = of(tool);
            const isChosen = `${owner?.id} ${tool.native}` === chosen;
            return (
              <Link
                to="/tools"
                search={{ ...search, server: owner?.id, tool: tool.native } as never}
                aria-current={isChosen ? "true" : undefined}
                className={cx("flex h-full flex-col justify-center border-b px-4 hover:bg-hover", isChosen && "bg-raised")}
              >
                <span className="flex items-center gap-2">
                  <Dot status={owner?.status} className="size-1.5" />
                  <span className={cx("truncate font-mono text-[0.8125rem] font-medium", !tool.enabled && "text-faint line-through")}>{tool.native}</span>
                  {tool.kept_back && <Badge tone="warn">kept back</Badge>}
                  <span className="ml-auto shrink-0 text-xs text-faint">{tool.server}</span>
                </span>
                <span className="truncate text-xs text-muted">{tool.description}</span>
              </Link>
            );
          }}
        />
      ) : (
        <Empty icon={<Wrench />} title={tools.length ? "No matching tool" : "No tools yet"}>
          {tools.length ? "Change the search or the filter." : "Tools appear here when a server that has some is running."}
        </Empty>
      )}
    </>
  );
}
