import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Cable, MoreHorizontal, Play, Plus, Power, RotateCw, Server as ServerIcon, ShieldCheck, Square } from "lucide-react";
import { useDeferredValue, useMemo, useState, type ReactNode } from "react";

import type { Schemas, Server } from "@/api/client";
import { DONE, figuresOf, lastHour, order, servers, type Order } from "@/api/queries";
import { bytes, count, cx, duration, micros, plural } from "@/lib";
import { useIsWide, useNow } from "@/ui/media";
import { attempt, Menu } from "@/ui/overlay";
import { Badge, Button, Chips, Empty, Failure, Go, Page, SearchBox, Skeleton } from "@/ui/parts";
import { Rows } from "@/ui/rows";
import { Dot, State, tone, uptime, wait } from "@/ui/state";

type Group = "all" | "up" | "trouble" | "quiet";

/** Returns the filter group of a server. */
function group(server: Server): Exclude<Group, "all"> {
  const hue = tone(server.status);
  if (hue === "bad" || hue === "warn" || server.kept_back || server.problems?.length) return "trouble";
  return hue === "plain" ? "quiet" : "up";
}

export function Servers() {
  const { data, error, refetch } = useQuery(servers);
  const { data: figures } = useQuery(lastHour);
  const isWide = useIsWide();
  const now = useNow();
  const [typed, setTyped] = useState("");
  const [shown, setShown] = useState<Group>("all");
  const words = useDeferredValue(typed).toLowerCase();
  const rows = useMemo(() => {
    const named = (data ?? []).filter((one) => `${one.name} ${one.project ?? ""} ${one.target} ${one.description}`.toLowerCase().includes(words));
    return named.filter((one) => shown === "all" || group(one) === shown).sort((a, b) => a.name!.localeCompare(b.name!));
  }, [data, words, shown]);
  if (error && !data) return <Failure error={error} retry={() => void refetch()} />;
  const total = (which: Group) => (data ?? []).filter((one) => which === "all" || group(one) === which).length;
  const troubled = total("trouble");
  return (
    <Page
      title="Servers"
      lead={data && `${plural(data.length, "server")}, ${plural(data.reduce((sum, one) => sum + (one.tools ?? 0), 0), "tool")}`}
      actions={
        <>
          <SearchBox className="min-w-0 flex-1 sm:w-64" value={typed} onChange={setTyped} placeholder="Search servers" />
          <Go to="/connect" look="plain" icon={<Cable />}>
            Connect
          </Go>
          <Go to="/install" look="solid" icon={<Plus />}>
            Install
          </Go>
        </>
      }
      wide
    >
      {!data ? (
        <Skeleton />
      ) : !data.length ? (
        <Empty icon={<ServerIcon />} title="No servers yet">
          <Link to="/install" className="font-medium text-accent hover:underline">Install one</Link>, add one with <code>toolwharf add NAME -- COMMAND</code>, or copy a client's servers with <code>toolwharf import claude-desktop</code>. It appears here by itself.
        </Empty>
      ) : (
        <>
          <div className="border-b px-3 py-1.5 md:px-5">
            <Chips
              label="State"
              value={shown}
              onChange={setShown}
              choices={[
                ["all", <>All <Number of={data.length} /></>],
                ["up", <><Dot status="running" /> Up <Number of={total("up")} /></>],
                ["trouble", <><Dot status={troubled ? "failed" : "stopped"} /> Needs attention <Number of={troubled} /></>],
                ["quiet", <><Dot status="stopped" /> Inactive <Number of={total("quiet")} /></>],
              ]}
            />
          </div>
          {isWide && (
            <div aria-hidden className={cx(GRID, "h-8 border-b bg-side text-xs font-medium text-faint")}>
              <span>Name</span>
              <span>State</span>
              <span>Transport</span>
              <span className="text-right">Tools</span>
              <span className="text-right">Calls</span>
              <span className="text-right">Errors</span>
              <span className="text-right" title="Duration of calls in the last hour: median and 95th percentile">p50 · p95</span>
              <span className="text-right">CPU</span>
              <span className="text-right">Memory</span>
              <span className="text-right">Up</span>
              <span />
            </div>
          )}
          {rows.length ? (
            <Rows items={rows} label="Servers" height={isWide ? 52 : 76} id={(one) => one.id!} render={(one) => (isWide ? <Row server={one} figures={figures?.get(figuresOf(one.name!, one.project))} now={now} /> : <Card server={one} now={now} />)} />
          ) : (
            <Empty title="No matching server">Change the search or the filter.</Empty>
          )}
        </>
      )}
    </Page>
  );
}

const Number = ({ of }: { of: number }) => <span className="tabular text-faint">{of}</span>;

const GRID = "grid grid-cols-[minmax(9rem,1.3fr)_minmax(9.5rem,1.6fr)_minmax(5.5rem,7.5rem)_3rem_4rem_3.5rem_7rem_3rem_4.5rem_3rem_2rem] items-center gap-3 px-6";

/** Explains a server's state: when it starts again, why it failed, or that tools are kept back. */
function why(server: Server, now: number): string | undefined {
  const seconds = wait(server, now);
  if (seconds !== undefined) return `again in ${duration(seconds)}${server.reason ? `: ${server.reason}` : ""}`;
  if (server.reason) return server.reason;
  if (server.problems?.length) return server.problems[0];
  if (server.kept_back) return `${plural(server.kept_back, "tool")} kept back: a definition changed`;
  return undefined;
}

/** Returns a command without its directory, or a URL without its scheme. */
const short = (server: Server) => (server.transport === "stdio" ? server.target!.split("/").at(-1) : server.target!.replace(/^https?:\/\//, ""));

function Name({ server }: { server: Server }) {
  return (
    <div className="min-w-0">
      <div className="flex items-center gap-2">
        <Link to="/servers/$id" params={{ id: server.id! }} className="truncate font-medium after:absolute after:inset-0">
          {server.name}
        </Link>
        {server.project && <Badge>{server.project}</Badge>}
      </div>
      <p title={server.target} className="truncate text-xs text-faint">{server.description || short(server)}</p>
    </div>
  );
}

function Row({ server, figures, now }: { server: Server; figures: Schemas["CallsOfServer"] | undefined; now: number }) {
  const reason = why(server, now);
  const up = uptime(server, now);
  return (
    <div className={cx(GRID, "relative h-full border-b hover:bg-hover")}>
      <Name server={server} />
      <div className="min-w-0">
        <State server={server} />
        {reason && (
          <p title={reason} className="truncate text-xs text-muted">
            {reason}
          </p>
        )}
      </div>
      <span className="flex items-center gap-1.5 text-sm text-muted">
        {server.transport}
        {server.sandbox && <Badge tone="accent" title={`In a sandbox: ${server.sandbox}`}><ShieldCheck aria-hidden className="size-3" />{server.sandbox}</Badge>}
      </span>
      <span className="tabular text-right text-sm">{count(server.tools ?? 0)}</span>
      <span className="tabular text-right text-sm">{count(server.calls ?? 0)}</span>
      <span className={cx("tabular text-right text-sm", server.errors ? "text-bad" : "text-faint")}>{count(server.errors ?? 0)}</span>
      <span className="tabular truncate text-right text-sm text-muted">{figures?.p50_us != null && figures.p95_us != null ? `${micros(figures.p50_us)} · ${micros(figures.p95_us)}` : "–"}</span>
      <span className="tabular text-right text-sm text-muted">{server.usage?.cpu != null ? `${Math.round(server.usage.cpu * 100)} %` : "–"}</span>
      <span className="tabular text-right text-sm text-muted">{server.usage ? bytes(server.usage.memory) : "–"}</span>
      <span className="tabular text-right text-sm text-muted">{up !== undefined ? duration(up).split(" ")[0] : "–"}</span>
      <Orders server={server} />
    </div>
  );
}

function Card({ server, now }: { server: Server; now: number }) {
  const reason = why(server, now);
  return (
    <div className="relative flex h-full items-center gap-3 border-b px-4">
      <div className="min-w-0 flex-1">
        <div className="flex items-center justify-between gap-3">
          <Name server={server} />
          <State server={server} />
        </div>
        <p className="tabular mt-0.5 truncate text-xs text-muted">
          {reason ?? `${plural(server.tools ?? 0, "tool")} · ${plural(server.calls ?? 0, "call")} · ${plural(server.errors ?? 0, "error")} · ${server.transport}${server.sandbox ? ` · ${server.sandbox}` : ""}`}
        </p>
      </div>
      <Orders server={server} />
    </div>
  );
}

/** The commands that are possible for a server now, as menu items. */
export function useOrders(server: Server) {
  const client = useQueryClient();
  const give = (verb: Order) =>
    attempt(async () => {
      const told = await order(server.id!, verb);
      client.setQueryData(["server", server.id!], told);
      await client.invalidateQueries({ queryKey: ["servers"] });
    }, `${server.name} is ${DONE[verb]}.`);
  const item = (label: string, icon: ReactNode, verb: Order, disabled = false) => ({ label, icon, disabled, onSelect: () => void give(verb) });
  const isUp = ["running", "starting", "unresponsive", "backoff", "restarting"].includes(server.status!);
  return {
    run: isUp ? item("Stop", <Square />, "stop") : item("Start", <Play />, "start", !server.enabled),
    restart: item("Restart", <RotateCw />, "restart", !server.enabled),
    power: server.enabled ? item("Switch off", <Power />, "disable") : item("Switch on", <Power />, "enable"),
  };
}

function Orders({ server }: { server: Server }) {
  const { run, restart, power } = useOrders(server);
  return (
    <div className="relative z-10">
      <Menu
        trigger={<Button look="quiet" aria-label={`Actions for ${server.name}`} icon={<MoreHorizontal />} />}
        items={[run, restart, "line", { ...power, danger: !!server.enabled }]}
      />
    </div>
  );
}
