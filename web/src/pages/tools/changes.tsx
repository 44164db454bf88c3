import { useInfiniteQuery } from "@tanstack/react-query";

import { api, ok, type Server } from "@/api/client";
import { moment } from "@/lib";
import { Button } from "@/ui/button";
import { Diff } from "@/ui/diff";
import { Badge, Panel } from "@/ui/parts";

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
                <Badge>{CAUSES[one.cause] ?? one.cause}</Badge>
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
