// Recorded calls: lists, statistics over time, and single calls with their bodies.
import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";

import { api, ok, type Call } from "./client";

export type Status = Call["status"];
export const STATUSES: Status[] = ["ok", "tool_error", "error", "timeout", "cancelled", "open", "unknown"];

export type Filter = { server?: string; tool?: string; project?: string; status?: Status; caller?: string; span?: string; view?: string };

/** The view that shows one line for each tool. */
export const TOOLS = "tools";

/** Returns true if the filter has a condition in addition to the time. */
export const isNarrowed = (filter: Filter) => Object.keys(filter).some((key) => key !== "span" && key !== "view");

/** Selectable time ranges, in seconds. */
export const SPANS: Record<string, { label: string; seconds: number }> = {
  "15m": { label: "15 minutes", seconds: 900 },
  "1h": { label: "1 hour", seconds: 3600 },
  "24h": { label: "24 hours", seconds: 86_400 },
  "7d": { label: "7 days", seconds: 7 * 86_400 },
  "30d": { label: "30 days", seconds: 30 * 86_400 },
};
export const DEFAULT_SPAN = "1h";

const seconds = (filter: Filter) => (SPANS[filter.span ?? DEFAULT_SPAN] ?? SPANS[DEFAULT_SPAN]!).seconds;
const since = (filter: Filter) => new Date(Date.now() - seconds(filter) * 1000).toISOString();

function asked(filter: Filter) {
  const { span: _, view: __, ...rest } = filter;
  return { ...rest, since: since(filter) };
}

const PAGE_SIZE = 100;

export const calls = (filter: Filter) =>
  infiniteQueryOptions({
    queryKey: ["calls", filter],
    initialPageParam: undefined as string | undefined,
    placeholderData: keepPreviousData,
    queryFn: ({ pageParam, signal }) => ok(api.GET("/api/v1/calls", { params: { query: { ...asked(filter), limit: PAGE_SIZE, ...(pageParam ? { after: pageParam } : {}) } }, signal })),
    getNextPageParam: (page) => page.next ?? undefined,
  });

export const statistics = (filter: Filter) =>
  queryOptions({
    queryKey: ["calls", "statistics", filter],
    placeholderData: keepPreviousData,
    refetchInterval: 5_000,
    retry: false,
    queryFn: ({ signal }) => ok(api.GET("/api/v1/calls/statistics", { params: { query: { ...asked(filter), buckets: 60, ...(filter.view === TOOLS ? { by_tool: true } : {}) } }, signal })),
  });

export const call = (id: string) =>
  queryOptions({
    queryKey: ["calls", "one", id],
    queryFn: ({ signal }) => ok(api.GET("/api/v1/calls/{call}", { params: { path: { call: id } }, signal })),
    refetchInterval: (query) => (query.state.data?.status === "open" ? 1_000 : false),
  });

/** Returns whether a new call matches the filter. */
export const fits = (call: Call, filter: Filter) =>
  (["server", "tool", "project", "status"] as const).every((key) => !filter[key] || call[key] === filter[key]) && (!filter.caller || [call.caller, call.caller_name].includes(filter.caller));
