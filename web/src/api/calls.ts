// Recorded calls: lists, statistics over time, and single calls with their bodies.
import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";

import { api, get, ok, type Call } from "./client";

export type Status = Call["status"];
export const STATUSES: Status[] = ["ok", "tool_error", "error", "timeout", "cancelled", "open", "unknown"];

export type Filter = { server?: string; tool?: string; project?: string; status?: Status; caller?: string; span?: string };

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
  const { span: _, ...rest } = filter;
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

export type Figures = { calls: number; errors: number; p50_us?: number | null; p95_us?: number | null };
export type Statistics = Figures & { bucket_seconds?: number; buckets: (Figures & { start: string })[]; servers?: (Figures & { server: string; project?: string | null })[] };

export const statistics = (filter: Filter) =>
  queryOptions({
    queryKey: ["calls", "statistics", filter],
    placeholderData: keepPreviousData,
    refetchInterval: 5_000,
    retry: false,
    queryFn: ({ signal }) => get<Statistics>(`/api/v1/calls/statistics?${new URLSearchParams({ ...asked(filter), buckets: "60" })}`, signal),
  });

export const call = (id: string) =>
  queryOptions({
    queryKey: ["calls", "one", id],
    queryFn: ({ signal }) => ok(api.GET("/api/v1/calls/{call}", { params: { path: { call: id } }, signal })),
    refetchInterval: (query) => (query.state.data?.status === "open" ? 1_000 : false),
  });

/** Returns whether a new call matches the filter. */
export const fits = (call: Call, filter: Filter) =>
  (!filter.server || call.server === filter.server) &&
  (!filter.tool || call.tool === filter.tool) &&
  (!filter.project || call.project === filter.project) &&
  (!filter.status || call.status === filter.status) &&
  (!filter.caller || call.caller === filter.caller);
