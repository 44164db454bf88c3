// Changed tool definitions: the ones to approve now, and the history.
import { useInfiniteQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";

import { api, ok, type Server, type Tool } from "@/api/client";
import { moment } from "@/lib";
import { Badge, Button, Diff, Panel } from "@/ui/parts";

const CAUSES: Record<string, string> = { approved: "approved", configuration: "the server's entry was changed" };

/** The history of replaced definitions, of one tool or of all tools of a server. Shows nothing if it is empty. */
export function Changes({ server, tool }: { server: Server; tool?: string }) {
  const { data, hasNextPage, fetchNextPage } = useInfiniteQuery({
    queryKey: ["tools", "changes", server.id],
    initialPageParam: undefined as string | undefined,
    queryFn: ({ pageParam, signal }) =>
      ok(api.GET("/api/v1/mcp/servers/{id}/changes", { params: { path: { id: server.id! }, query: { limit: 100, ...(pageParam ? { after: pageParam } : {}) } }, signal })),
    getNextPageParam: (page) => page.next ?? undefined,
    retry: false,
  });
  const all = data?.pages.flatMap((page) => page.changes) ?? [];
  const shown = tool === undefined ? all : all.filter((one) => one.tool === tool);
  if (!shown.length && !hasNextPage) return tool === undefined && data ? <p className="text-sm text-muted">No definition of {server.name} has changed.</p> : null;
  return (
    <Panel title={tool === undefined ? `Past changes of ${server.name}` : "Past definitions"}>
      <ul aria-label="Past definitions">
        {shown.map((one) => (
          <li key={one.id} className="border-b last:border-0">
            <details>
              <summary className="flex cursor-pointer flex-wrap items-center gap-2 px-3.5 py-2 text-sm hover:bg-hover">
                {tool === undefined && <span className="font-mono text-[0.8125rem] break-all">{one.tool}</span>}
                <Badge>{CAUSES[one.cause] ?? one.cause}{one.caller_name && ` by ${one.caller_name}`}</Badge>
                <time dateTime={one.at} title={one.at} className="text-faint">
                  {moment(one.at)}
                </time>
              </summary>
              <Diff text={one.diff} />
            </details>
          </li>
        ))}
      </ul>
      {hasNextPage && (
        <div className="p-2">
          <Button look="quiet" onClick={() => void fetchNextPage()}>
            Earlier changes
          </Button>
        </div>
      )}
    </Panel>
  );
}

type KeptBackProps = { tool: Tool; title: ReactNode; approval: string; disabled?: boolean; onRefuse: () => void; onApprove: () => void; children?: ReactNode };

/** The changed definition of a tool that is kept back, with buttons to decide. */
export function KeptBack({ tool, title, approval, disabled, onRefuse, onApprove, children }: KeptBackProps) {
  const actions = (
    <div className="flex gap-2">
      {tool.enabled && (
        <Button look="danger" disabled={disabled} onClick={onRefuse}>
          Switch it off
        </Button>
      )}
      {tool.quarantine && (
        <Button look="solid" disabled={disabled} onClick={onApprove}>
          {approval}
        </Button>
      )}
    </div>
  );
  return (
    <Panel title={title} actions={actions}>
      {tool.quarantine?.diff ? <Diff text={tool.quarantine.diff} /> : <p className="px-3.5 py-3 text-sm text-muted">{tool.kept_back}</p>}
      {children}
    </Panel>
  );
}
