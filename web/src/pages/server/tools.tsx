import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Wrench } from "lucide-react";
import { Switch } from "radix-ui";
import { useDeferredValue, useState } from "react";

import { useChange, type Server, type Tool } from "@/api/client";
import { serverTools } from "@/api/queries";
import { offer } from "@/api/tools";
import { attempt } from "@/ui/overlay";
import { Badge, Empty, Missing, SearchBox } from "@/ui/parts";
import { Rows } from "@/ui/rows";

export function ServerTools({ server }: { server: Server }) {
  const { data, error, refetch } = useQuery(serverTools(server.id!));
  const [typed, setTyped] = useState("");
  const words = useDeferredValue(typed).toLowerCase();
  if (error && !server.enabled) return <Empty icon={<Wrench />} title="The server is off">{server.unset?.length ? "Set what it lacks to see its tools." : "Switch it on to see its tools."}</Empty>;
  if (!data) return <Missing error={error} retry={refetch} />;
  if (!data.length)
    return (
      <Empty icon={<Wrench />} title="No tools">
        {server.status === "running" ? "This server offers none." : "Tools are listed once the server has run. Start it to see them."}
      </Empty>
    );
  const rows = data.filter((tool) => `${tool.native} ${tool.name ?? ""} ${tool.description}`.toLowerCase().includes(words));
  return (
    <>
      {data.length > 8 && (
        <div className="border-b px-4 py-2 md:px-6">
          <SearchBox value={typed} onChange={setTyped} placeholder="Search these tools" className="max-w-80" />
        </div>
      )}
      <Rows items={rows} height={56} label="Tools" id={(tool) => tool.native} render={(tool) => <Row server={server} tool={tool} />} />
    </>
  );
}

function Row({ server, tool }: { server: Server; tool: Tool }) {
  const change = useChange("tools");
  const turn = (enabled: boolean) => attempt(() => change(offer(server, tool, enabled)), `${tool.native} is switched ${enabled ? "on" : "off"}.`);
  return (
    <div className="relative flex h-full items-center gap-4 border-b px-4 hover:bg-hover md:px-6">
      <div className="min-w-0 flex-1">
        <div className="flex items-center gap-2">
          <Link
            to="/tools"
            search={{ server: server.id, tool: tool.native } as never}
            className="truncate font-mono text-sm font-medium after:absolute after:inset-0"
          >
            {tool.native}
          </Link>
          {tool.name && tool.name !== tool.native && <Badge title="What clients call it">{tool.name}</Badge>}
          {tool.kept_back && <Badge tone="warn">kept back</Badge>}
        </div>
        <p className="truncate text-xs text-muted" title={tool.description}>{tool.description}</p>
      </div>
      <Switch.Root
        checked={tool.enabled}
        onCheckedChange={(on) => void turn(on)}
        aria-label={`Offer ${tool.native}`}
        className="relative z-10 h-5 w-9 shrink-0 rounded-full border border-edge bg-raised transition-colors data-[state=checked]:border-transparent data-[state=checked]:bg-solid"
      >
        <Switch.Thumb className="block size-3.5 translate-x-0.5 rounded-full bg-faint transition-transform data-[state=checked]:translate-x-4.5 data-[state=checked]:bg-white" />
      </Switch.Root>
    </div>
  );
}
