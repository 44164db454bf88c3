import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Cable, MoreHorizontal, Play, Plus, Power, RotateCw, Server as ServerIcon, ShieldCheck, Square } from "lucide-react";
import { useDeferredValue, useMemo, useState, type ReactNode } from "react";

import type { Schemas, Server } from "@/api/client";
import { attention, DONE, figuresOf, lastHour, order, servers, status, type Order } from "@/api/queries";
import { bytes, count, cx, duration, micros, plural, sandboxWord } from "@/lib";
import { Choose } from "@/ui/form";
import { useIsWide, useNow } from "@/ui/media";
import { attempt, Menu } from "@/ui/overlay";
import { Badge, Button, Chips, Empty, Failure, Go, Page, SearchBox, Skeleton } from "@/ui/parts";
import { Rows } from "@/ui/rows";
import { Headings, initially, useSorting, type Sortable } from "@/ui/sort";
import { Dot, State, tone, uptime, wait } from "@/ui/state";

type Group = "all" | "up" | "trouble" | "quiet";

/** Returns the filter group of a server. */
function group(server: Server): Exclude<Group, "all"> {
  const hue = tone(server.status);
  // A server that is idle after failed starts has a reason.
  const hasFailed = server.status === "idle" && server.reason;
  if (hue === "bad" || hue === "warn" || hasFailed || server.kept_back || server.problems?.length) return "trouble";
  return hue === "plain" ? "quiet" : "up";
}

export function Servers() {
  const { data, error, refetch } = useQuery(servers);
  const { data: figures } = useQuery(lastHour);
  const saved = useSaved();
  const isWide = useIsWide();
  const now = useNow();
  const [typed, setTyped] = useState("");
  const [shown, setShown] = useState<Group>("all");
  const words = useDeferredValue(typed).toLowerCase();
  const matching = useMemo(() => {
    const named = (data ?? []).filter((one) => `${one.name} ${one.project ?? ""} ${one.target} ${one.description}`.toLowerCase().includes(words));
    return named.filter((one) => shown === "all" || group(one) === shown).sort((a, b) => a.name!.localeCompare(b.name!));
  }, [data, words, shown]);
  const columns = useMemo(() => columnsOf(figures, now), [figures, now]);
  const { items: rows, sorting, setSorting, toggle } = useSorting(matching, columns, { by: "Name", down: false });
  if (error && !data) return <Failure error={error} retry={() => void refetch()} />;
  const total = (which: Group) => (data ?? []).filter((one) => which === "all" || group(one) === which).length;
  const troubled = total("trouble");
  return (
    <Page
      title="Servers"
      lead={
        data && (
          <>
            {plural(data.length, "server")}, {plural(data.reduce((sum, one) => sum + (one.tools ?? 0), 0), "tool")}
            {saved > 0 && <Link to="/tools/find" className="block hover:underline">Search mode saved about {count(saved)} tokens in the last day</Link>}
          </>
        )
      }
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
          <Needs />
          <div className="flex flex-wrap items-center gap-2 border-b px-3 py-1.5 md:px-5">
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
            {!isWide && (
              <Choose
                aria-label="Sort by"
                className="w-auto"
                value={sorting?.by ?? ""}
                onChange={(by) => setSorting(initially(columns.find((one) => one.name === by)!))}
                choices={columns.flatMap(({ name, sort }) => (sort ? [[name, `Sort by ${name}`] as const] : []))}
              />
            )}
          </div>
          {isWide && <Headings label="servers" columns={columns} grid={GRID} sorting={sorting} toggle={toggle} />}
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

/** The tokens that search mode saved in the last day. Only administrators may know. */
function useSaved(): number {
  const { data } = useQuery({ ...status, retry: false, refetchInterval: ({ state }) => !state.error && 30_000 });
  return data?.saved_tokens?.last_day ?? 0;
}

/** The number of needs that the line names. */
const MAX_NAMED = 4;

const WHAT: Record<Schemas["NeedKind"], string> = { approval: "", blocked: "is blocked", failed: "failed", sign_in: "needs a sign-in" };

/** A line about the servers that need a person, with a link to each. */
function Needs() {
  const { data } = useQuery(attention);
  if (!data?.needs.length) return null;
  const more = data.needs.length - MAX_NAMED;
  return (
    <div role="status" aria-label="Needs attention" className="flex flex-wrap items-center gap-x-4 gap-y-1 border-b bg-warn-soft px-4 py-2 text-sm text-warn md:px-6">
      {data.needs.slice(0, MAX_NAMED).map((need) =>
        need.what === "approval" ? (
          <Link key={`approval ${need.id}`} to="/approvals" className="font-medium underline">
            {need.server}: {plural(need.tools ?? 0, "tool waits", "tools wait")} for approval
          </Link>
        ) : (
          <Link key={`${need.what} ${need.id}`} to="/servers/$id" params={{ id: need.id }} title={need.reason ?? undefined} className="font-medium underline">
            {need.server} {WHAT[need.what]}
          </Link>
        ),
      )}
      {more > 0 && <span>and {more} more</span>}
    </div>
  );
}

const Number = ({ of }: { of: number }) => <span className="tabular text-faint">{of}</span>;

const GRID = "grid grid-cols-[minmax(9rem,1.3fr)_minmax(9.5rem,1.6fr)_minmax(5.5rem,7.5rem)_3rem_4rem_3.5rem_7rem_3rem_4.5rem_3rem_2rem] items-center gap-3 px-6";

/** The columns of the list, with the values that they are sorted by. */
const columnsOf = (figures: Map<string, Schemas["CallsOfServer"]> | undefined, now: number): Sortable<Server>[] => [
  { name: "Name", sort: (one) => one.name },
  { name: "State", sort: (one) => one.status },
  { name: "Transport", sort: (one) => `${one.transport} ${one.sandbox ?? ""}` },
  { name: "Tools", right: true, sort: (one) => one.tools ?? 0 },
  { name: "Calls", right: true, title: "Since the gateway started", sort: (one) => one.calls ?? 0 },
  { name: "Errors", right: true, title: "Since the gateway started", sort: (one) => one.errors ?? 0 },
  { name: "p50 · p95", right: true, title: "Duration of calls in the last hour: median and 95th percentile. Sorted by the latter.", sort: (one) => figures?.get(figuresOf(one.name!, one.project))?.p95_us },
  { name: "CPU", right: true, sort: (one) => one.usage?.cpu },
  { name: "Memory", right: true, sort: (one) => one.usage?.memory },
  { name: "Up", right: true, sort: (one) => uptime(one, now) },
  { name: "" },
];

/** Explains a server's state: why it failed, or that tools are kept back. */
function why(server: Server): string | undefined {
  if (server.reason) return server.reason;
  if (!server.enabled && server.unset?.length) return `not set: ${server.unset.join(", ")}`;
  if (server.problems?.length) return server.problems[0];
  if (server.kept_back) return "Clients do not see them until you approve their definitions";
  return undefined;
}

/** The reason for a server's state in full, and when it is started again. */
function Reason({ server, now, className }: { server: Server; now: number; className: string }) {
  const reason = why(server);
  const seconds = wait(server, now);
  if (!reason && seconds === undefined) return null;
  return (
    <p className={cx("text-xs break-words text-muted", className)}>
      {reason}
      {seconds !== undefined && <span className="tabular text-faint">{reason && " · "}next attempt in {duration(seconds)}</span>}
    </p>
  );
}

/** Returns a target without the directory of its command, or a URL without its scheme. */
const short = (server: Server) => (server.transport === "stdio" ? server.target!.replace(/^\/\S*\//, "") : server.target!.replace(/^https?:\/\//, ""));

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
  const up = uptime(server, now);
  return (
    <div className={cx(GRID, "relative h-full border-b py-1.5 hover:bg-hover")}>
      <Name server={server} />
      <State server={server} />
      <span className="flex items-center gap-1.5 text-sm text-muted">
        {server.transport}
        {server.sandbox && <Badge tone="accent" title="In a sandbox"><ShieldCheck aria-hidden className="size-3" />{sandboxWord(server.sandbox)}</Badge>}
      </span>
      <span className="tabular text-right text-sm">{count(server.tools ?? 0)}</span>
      <span className="tabular text-right text-sm">{count(server.calls ?? 0)}</span>
      <span className={cx("tabular text-right text-sm", server.errors ? "text-bad" : "text-faint")}>{count(server.errors ?? 0)}</span>
      <span className="tabular truncate text-right text-sm text-muted">{figures?.p50_us != null && figures.p95_us != null ? `${micros(figures.p50_us)} · ${micros(figures.p95_us)}` : "–"}</span>
      <span className="tabular text-right text-sm text-muted">{server.usage?.cpu != null ? `${Math.round(server.usage.cpu * 100)} %` : "–"}</span>
      <span className="tabular text-right text-sm text-muted">{server.usage ? bytes(server.usage.memory) : "–"}</span>
      <span className="tabular text-right text-sm text-muted">{up !== undefined ? duration(up).split(" ")[0] : "–"}</span>
      <Orders server={server} />
      <Reason server={server} now={now} className="col-span-full -mt-2 max-w-[75rem]" />
    </div>
  );
}

function Card({ server, now }: { server: Server; now: number }) {
  return (
    <div className="relative flex h-full items-center gap-3 border-b px-4 py-2">
      <div className="min-w-0 flex-1">
        <div className="flex items-center justify-between gap-3">
          <Name server={server} />
          <State server={server} />
        </div>
        {why(server) ? (
          <Reason server={server} now={now} className="mt-0.5" />
        ) : (
          <p className="tabular mt-0.5 truncate text-xs text-muted">
            {`${plural(server.tools ?? 0, "tool")} · ${plural(server.calls ?? 0, "call")} · ${plural(server.errors ?? 0, "error")} · ${server.transport}${server.sandbox ? ` · ${sandboxWord(server.sandbox)}` : ""}`}
          </p>
        )}
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
      if ((verb === "start" || verb === "restart") && told.reason && told.status !== "running") throw new Error(`${server.name} did not start: ${told.reason}`);
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
