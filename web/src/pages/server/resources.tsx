import { useQuery } from "@tanstack/react-query";
import { FileText, MessageSquareText } from "lucide-react";

import type { Server } from "@/api/client";
import { listed } from "@/api/queries";
import { Badge, Empty, Failure, Panel, Skeleton } from "@/ui/parts";

type Resource = { uri?: string; uriTemplate?: string; name?: string; description?: string; mimeType?: string };
type Prompt = { name: string; description?: string; arguments?: { name: string; required?: boolean }[] };

/** If the server does not know the method, it has no such items. */
const isNone = (error: unknown) => error instanceof Error && "status" in error && (error.status === 404 || error.status === 400);

export function Resources({ server }: { server: Server }) {
  const isUp = server.status === "running" || server.status === "unresponsive";
  const resources = useQuery(listed<Resource>(server.id!, "resources/list", "resources", isUp));
  const templates = useQuery(listed<Resource>(server.id!, "resources/templates/list", "resourceTemplates", isUp));
  const prompts = useQuery(listed<Prompt>(server.id!, "prompts/list", "prompts", isUp));
  if (!isUp) return <Empty icon={<FileText />} title="The server is not running">Start it to see its resources and prompts.</Empty>;
  if (resources.isPending || prompts.isPending) return <Skeleton />;
  const failed = [resources.error, prompts.error].find((error) => error && !isNone(error));
  if (failed) return <Failure error={failed} retry={() => void (resources.refetch(), prompts.refetch())} />;
  const files = [...(resources.data ?? []), ...(templates.data ?? [])];
  if (!files.length && !prompts.data?.length) return <Empty icon={<FileText />} title="No resources and no prompts">This server offers neither.</Empty>;
  return (
    <div className="grid gap-4 p-4 md:p-6 xl:grid-cols-2 xl:items-start">
      {!!files.length && (
        <Panel title={`Resources (${files.length})`}>
          <ul tabIndex={0} aria-label="Resources" className="max-h-[70vh] divide-y divide-line overflow-y-auto">
            {files.map((one) => (
              <li key={one.uri ?? one.uriTemplate} className="px-3.5 py-2">
                <div className="flex items-center gap-2 text-sm font-medium">
                  <span className="truncate">{one.name ?? one.uri}</span>
                  {one.mimeType && <Badge>{one.mimeType}</Badge>}
                  {one.uriTemplate && <Badge tone="info">template</Badge>}
                </div>
                <p className="font-mono text-xs break-all text-muted">{one.uri ?? one.uriTemplate}</p>
                {one.description && <p className="text-xs text-faint">{one.description}</p>}
              </li>
            ))}
          </ul>
        </Panel>
      )}
      {!!prompts.data?.length && (
        <Panel title={`Prompts (${prompts.data.length})`}>
          <ul className="divide-y divide-line">
            {prompts.data.map((one) => (
              <li key={one.name} className="px-3.5 py-2">
                <div className="flex flex-wrap items-center gap-2 text-sm font-medium">
                  <MessageSquareText aria-hidden className="size-3.5 text-faint" />
                  <span className="font-mono">{one.name}</span>
                  {one.arguments?.map((argument) => <Badge key={argument.name} tone={argument.required ? "info" : "plain"}>{argument.name}</Badge>)}
                </div>
                {one.description && <p className="text-xs text-muted">{one.description}</p>}
              </li>
            ))}
          </ul>
        </Panel>
      )}
    </div>
  );
}
