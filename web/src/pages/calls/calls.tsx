import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { Activity } from "lucide-react";
import { lazy, Suspense, useEffect, useMemo, useState, type ReactNode } from "react";

import { calls as callsQuery, DEFAULT_SPAN, fits, isNarrowed, SPANS, statistics, STATUSES, TOOLS, type Filter } from "@/api/calls";
import type { Call, Schemas } from "@/api/client";
import { onCall } from "@/api/live";
import { projects, servers } from "@/api/queries";
import { count, cx, micros, moment } from "@/lib";
import { Choose } from "@/ui/form";
import { Table, type Column } from "@/ui/listing";
import { useIsWide } from "@/ui/media";
import { Badge, Button, Chips, Empty, Failure, Input, Missing, Page, Skeleton, type Tone } from "@/ui/parts";
import { Rows } from "@/ui/rows";
import { Headings, useSorting, type Sortable, type Sorting } from "@/ui/sort";
import type { Series } from "@/ui/chart";

const Chart = lazy(() => import("@/ui/chart"));
const route = getRouteApi("/calls");

export const TONES: Record<string, Tone> = { ok: "ok", tool_error: "warn", error: "bad", timeout: "bad", cancelled: "plain", open: "info", unknown: "warn" };
const WORDS: Record<string, string> = { tool_error: "tool failed", open: "in progress", timeout: "timed out", unknown: "outcome unknown" };
export const statusWord = (status: string) => WORDS[status] ?? status;

export function Calls() {
  const filter = route.useSearch() as Filter;
  const navigate = useNavigate();
  const set = (change: Partial<Filter>) => void navigate({ to: "/calls", search: Object.fromEntries(Object.entries({ ...filter, ...change }).filter(([, value]) => value)) as never, replace: true });
  return (
    <Page
      title="Calls"
      wide
      actions={
        <Chips label="Time" value={filter.span ?? DEFAULT_SPAN} onChange={(span) => set({ span })} choices={Object.entries(SPANS).map(([value, { label }]) => [value, label] as const)} />
      }
    >
      <Figures filter={filter} />
      <Filters filter={filter} set={set} />
      {filter.view === TOOLS ? <ToolTable filter={filter} /> : <CallList filter={filter} />}
    </Page>
  );
}

const NoCalls = ({ filter }: { filter: Filter }) => (
  <Empty icon={<Activity />} title="No calls">
    No call was made in this period{isNarrowed(filter) && " that matches the filter"}. Calls by clients and from the tools' pages appear here.
  </Empty>
);

function CallList({ filter }: { filter: Filter }) {
  const isWide = useIsWide();
  const { data, error, refetch, hasNextPage, fetchNextPage, isFetchingNextPage } = useInfiniteQuery(callsQuery(filter));
  const fresh = useFresh(filter);
  const loaded = useMemo(() => {
    const known = data?.pages.flatMap((page) => page.calls) ?? [];
    const ids = new Set(known.map((one) => one.id));
    const newer = [...fresh.values()].filter((one) => !ids.has(one.id)).reverse();
    return [...newer, ...known.map((one) => fresh.get(one.id) ?? one)].filter((one) => fits(one, filter));
  }, [data, fresh, filter]);
  const { items: rows, sorting, setSorting, toggle } = useSorting(loaded, COLUMNS, NEWEST);
  if (error && !data) return <Failure error={error} retry={() => void refetch()} />;
  if (!data) return <Skeleton />;
  if (!rows.length) return <NoCalls filter={filter} />;
  const isPart = hasNextPage && (sorting?.by !== NEWEST.by || !sorting.down);
  return (
    <>
      {isWide ? (
        <Headings label="calls" columns={COLUMNS} grid={GRID} sorting={sorting} toggle={toggle} />
      ) : (
        <div className="border-b px-4 py-2">
          <Choose
            aria-label="Sort by"
            className="w-auto"
            value={sorting?.by ?? ""}
            onChange={(by) => setSorting({ by, down: by === NEWEST.by || by === "Duration" })}
            choices={COLUMNS.map(({ name }) => [name, `Sort by ${name}`] as const)}
          />
        </div>
      )}
      {isPart && (
        <p role="status" className="border-b px-4 py-1.5 text-xs text-muted md:px-6">
          Sorted: the newest {count(rows.length)} calls. “Older calls” at the end of the list loads more.
        </p>
      )}
      <Rows items={rows} label="Calls" height={isWide ? 40 : 60} id={(one) => one.id} render={(one) => <Row call={one} caller={callerOf(one)} isWide={isWide} />} />
      {hasNextPage && (
        <div className="p-4 text-center">
          <Button busy={isFetchingNextPage} onClick={() => void fetchNextPage()}>
            Older calls
          </Button>
        </div>
      )}
    </>
  );
}

/** The initial order of the list. */
const NEWEST: Sorting = { by: "Time", down: true };

/** The caller's name, or its id if it has none. */
const callerOf = (call: Call) => call.caller_name || call.caller;

const COLUMNS: Sortable<Call>[] = [
  // Calls with the same millisecond keep the order of the API.
  { name: "Time", down: true, sort: (one) => Date.parse(one.started_at) },
  { name: "Outcome", sort: (one) => statusWord(one.status) },
  { name: "Tool", sort: (one) => `${one.server}/${one.tool}` },
  { name: "Caller", sort: callerOf },
  { name: "Duration", right: true, sort: (one) => one.duration_us },
];

type OfTool = Schemas["CallsOfTool"];

const toolColumns: Column<OfTool>[] = [
  {
    name: "Tool",
    sort: (one) => `${one.tool} ${one.server}`,
    show: (one) => (
      <Link to="/calls" search={(old: object) => ({ ...old, view: undefined, server: one.server, tool: one.tool, ...(one.project ? { project: one.project } : {}) }) as never} className="font-mono text-[0.8125rem] break-all hover:underline">
        {one.tool}
      </Link>
    ),
  },
  {
    name: "Server",
    sort: (one) => `${one.server} ${one.project ?? ""}`,
    show: (one) => (
      <span className="text-muted">
        {one.server} {one.project && <Badge>{one.project}</Badge>}
      </span>
    ),
  },
  { name: "Calls", right: true, sort: (one) => one.calls, show: (one) => <span className="tabular">{count(one.calls)}</span> },
  { name: "Errors", right: true, sort: (one) => one.errors, show: (one) => <span className={cx("tabular", one.errors ? "text-bad" : "text-faint")}>{count(one.errors)}</span> },
  { name: "p50", right: true, wide: true, sort: (one) => one.p50_us, show: (one) => <Took us={one.p50_us} /> },
  { name: "p95", right: true, sort: (one) => one.p95_us, show: (one) => <Took us={one.p95_us} /> },
];

const Took = ({ us }: { us: number | null | undefined }) => <span className="tabular whitespace-nowrap text-muted">{us != null ? micros(us) : "–"}</span>;

/** The calls of each tool, the slowest first. */
function ToolTable({ filter }: { filter: Filter }) {
  const { data, error, refetch } = useQuery(statistics(filter));
  if (!data) return <Missing error={error} retry={refetch} />;
  if (!data.tools?.length) return <NoCalls filter={filter} />;
  return (
    <div className="md:px-2.5">
      <Table label="Calls by tool" items={data.tools} columns={toolColumns} id={(one) => `${one.project ?? ""}/${one.server}/${one.tool}`} initial={{ by: "p95", down: true }} />
    </div>
  );
}

/** Calls received from the event stream since the list was fetched. */
function useFresh(filter: Filter): Map<string, Call> {
  const [fresh, setFresh] = useState(new Map<string, Call>());
  useEffect(() => {
    setFresh(new Map());
    const waiting = new Map<string, Call>();
    const timer = setInterval(() => {
      if (!waiting.size) return;
      setFresh((old) => new Map([...old, ...waiting].slice(-2_000)));
      waiting.clear();
    }, 300);
    const stop = onCall((call) => waiting.set(call.id, call));
    return () => (clearInterval(timer), stop());
  }, [filter]);
  return fresh;
}

const GRID = "grid grid-cols-[6rem_7rem_minmax(14rem,1fr)_minmax(9rem,14rem)_6rem] items-center gap-4 px-6";

function Row({ call, caller, isWide }: { call: Call; caller: string; isWide: boolean }) {
  const name = (
    <Link to="/calls/$call" params={{ call: call.id }} className="truncate font-mono text-[0.8125rem] after:absolute after:inset-0">
      <span className="text-faint">{call.server}/</span>
      <span className="font-medium">{call.tool}</span>
    </Link>
  );
  const status = <Badge tone={TONES[call.status] ?? "plain"} title={call.error ?? undefined}>{statusWord(call.status)}</Badge>;
  const took = <span className="tabular text-right text-sm whitespace-nowrap text-muted">{call.duration_us != null ? micros(call.duration_us) : "…"}</span>;
  if (!isWide)
    return (
      <div className="relative flex h-full flex-col justify-center gap-1 border-b px-4 hover:bg-hover">
        <div className="flex items-center gap-2">
          <span className="min-w-0 flex-1 truncate">{name}</span>
          {status}
        </div>
        <div className="flex justify-between gap-2 text-xs text-faint">
          <span className="truncate">
            {moment(call.started_at)} · {caller}
          </span>
          {took}
        </div>
      </div>
    );
  return (
    <div className={cx(GRID, "relative h-full border-b hover:bg-hover")}>
      <time dateTime={call.started_at} title={call.started_at} className="tabular text-sm text-muted">
        {moment(call.started_at)}
      </time>
      <span>{status}</span>
      <span className="flex min-w-0 items-center gap-2">
        {name}
        {call.project && <Badge>{call.project}</Badge>}
        {call.error && <span className="truncate text-xs text-bad">{call.error}</span>}
      </span>
      <span title={call.caller} className="truncate text-sm text-muted">
        {caller}
      </span>
      {took}
    </div>
  );
}

function Filters({ filter, set }: { filter: Filter; set: (change: Partial<Filter>) => void }) {
  const known = useQuery(servers);
  const all = useQuery(projects);
  const names = [...new Set(known.data?.map((one) => one.name!))].sort();
  if (filter.server && !names.includes(filter.server)) names.push(filter.server);
  return (
    <div className="flex flex-wrap items-center gap-2 border-b px-4 py-2 md:px-6">
      <Chips label="View" value={filter.view === TOOLS ? TOOLS : ""} onChange={(view) => set({ view })} choices={[["", "Calls"], [TOOLS, "By tool"]]} />
      <Choose aria-label="Server" className="w-auto max-w-44" value={filter.server ?? ""} onChange={(server) => set({ server })} none="All servers" choices={names} />
      <Choose aria-label="Outcome" className="w-auto" value={filter.status ?? ""} onChange={(status) => set({ status: status as never })} none="All outcomes" choices={STATUSES.map((one) => [one, statusWord(one)])} />
      {!!all.data?.length && (
        <Choose aria-label="Project" className="w-auto max-w-44" value={filter.project ?? ""} onChange={(project) => set({ project })} none="All projects" choices={all.data.map((one) => one.id)} />
      )}
      <Typed label="Tool" value={filter.tool} onChange={(tool) => set({ tool })} />
      <Typed label="Caller" value={filter.caller} onChange={(caller) => set({ caller })} />
      {isNarrowed(filter) && (
        <Button look="quiet" onClick={() => set({ server: "", status: undefined as never, project: "", tool: "", caller: "" })}>
          Clear
        </Button>
      )}
    </div>
  );
}

/** A filter input that takes effect when the user stops typing. */
function Typed({ label, value = "", onChange }: { label: string; value?: string | undefined; onChange: (value: string) => void }) {
  const [typed, setTyped] = useState(value);
  useEffect(() => setTyped(value), [value]);
  const give = () => typed !== value && onChange(typed.trim());
  return <Input aria-label={label} placeholder={label} className="w-36" value={typed} onChange={(event) => setTyped(event.target.value)} onBlur={give} onKeyDown={(event) => event.key === "Enter" && give()} />;
}

const asMicros = (value: number) => micros(Math.round(value));
const asCount = (value: number) => (Number.isInteger(value) ? count(value) : "");

function Figures({ filter }: { filter: Filter }) {
  const { data } = useQuery(statistics(filter));
  const drawn = useMemo(() => data && series(data), [data]);
  if (!data || !drawn) return null;
  const rate = data.calls ? (100 * data.errors) / data.calls : 0;
  return (
    <section aria-label="Figures" className="grid border-b lg:grid-cols-2">
      <div className="min-w-0 px-4 pt-3 pb-1 md:px-6 lg:border-r">
        <div className="mb-1 flex gap-6">
          <Figure name="Calls">{count(data.calls)}</Figure>
          <Figure name="Failed">
            <span className={cx(data.errors && "text-bad")}>
              {count(data.errors)} <span className="text-sm font-normal text-faint">{rate.toFixed(rate && rate < 10 ? 1 : 0)} %</span>
            </span>
          </Figure>
        </div>
        <Suspense fallback={<div className="h-30" />}>
          <Chart label={`Calls over time: ${data.calls}, of which ${data.errors} failed`} times={drawn.times} series={drawn.counts} format={asCount} />
        </Suspense>
      </div>
      <div className="min-w-0 px-4 pt-3 pb-1 md:px-6">
        <div className="mb-1 flex gap-6">
          <Figure name="Half took less than">{data.p50_us != null ? micros(data.p50_us) : "–"}</Figure>
          <Figure name="95 % took less than">{data.p95_us != null ? micros(data.p95_us) : "–"}</Figure>
        </div>
        <Suspense fallback={<div className="h-30" />}>
          <Chart label="Call duration over time" times={drawn.times} series={drawn.times_taken} format={asMicros} />
        </Suspense>
      </div>
    </section>
  );
}

const Figure = ({ name, children }: { name: string; children: ReactNode }) => (
  <div>
    <p className="text-xs text-faint">{name}</p>
    <p className="tabular text-lg font-semibold">{children}</p>
  </div>
);

function series(data: Schemas["CallStatistics"]): { times: number[]; counts: Series[]; times_taken: Series[] } {
  const { buckets } = data;
  return {
    times: buckets.map((one) => new Date(one.start).getTime() / 1000),
    counts: [
      { label: "Calls", color: "accent", bars: true, values: buckets.map((one) => one.calls) },
      { label: "Failed", color: "bad", bars: true, values: buckets.map((one) => one.errors || null) },
    ],
    times_taken: [
      { label: "p95", color: "info", fill: true, values: buckets.map((one) => one.p95_us ?? null) },
      { label: "p50", color: "accent", values: buckets.map((one) => one.p50_us ?? null) },
    ],
  };
}
