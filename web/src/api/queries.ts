// Queries of the pages, and commands for servers. Keys begin with the noun, so that the event stream can invalidate them.
import { queryOptions } from "@tanstack/react-query";

import { api, ok, type Server, type Tool } from "./client";
import { changed, isLive, seen, withChanges } from "./live";

/** While there is no event stream, data that can change is polled at this interval. */
const POLL_MS = 800;
const polled = (every = POLL_MS) => () => (isLive() ? false : every);

export const servers = queryOptions({
  queryKey: ["servers"],
  queryFn: ({ signal }) => withChanges(() => allServers(signal), changed),
  refetchInterval: polled(),
});

async function allServers(signal: AbortSignal): Promise<Server[]> {
  const all: Server[] = [];
  let after: string | undefined;
  do {
    const page = await ok(api.GET("/api/v1/mcp/servers", { params: { query: { limit: 1000, ...(after ? { after } : {}) } }, signal }));
    all.push(...page.servers.map(seen));
    after = page.next ?? undefined;
  } while (after);
  return all;
}

export const server = (id: string) =>
  queryOptions({
    queryKey: ["server", id],
    queryFn: ({ signal }) =>
      withChanges(
        async () => seen(await ok(api.GET("/api/v1/mcp/servers/{id}", { params: { path: { id } }, signal }))),
        (one, changes) => ({ ...one, ...changes.get(id) }),
      ),
    refetchInterval: polled(),
  });

/** Number and duration of calls in the last hour, by server. */
export const lastHour = queryOptions({
  queryKey: ["statistics", "last-hour"],
  queryFn: async ({ signal }) => {
    const { servers } = await ok(api.GET("/api/v1/calls/statistics", { params: { query: { buckets: 1 } }, signal }));
    return new Map(servers.map((one) => [figuresOf(one.server, one.project), one]));
  },
  retry: false,
  refetchInterval: 10_000,
});

/** The key of a server's statistics. */
export const figuresOf = (server: string, project: string | null | undefined) => `${project ?? ""}/${server}`;

export const status = queryOptions({
  queryKey: ["status"],
  queryFn: ({ signal }) => ok(api.GET("/api/v1/status", { signal })),
  refetchInterval: 10_000,
});

/** The servers and tools that need a person. Pushed by the event stream. */
export const attention = queryOptions({
  queryKey: ["attention"],
  retry: false,
  queryFn: ({ signal }) => ok(api.GET("/api/v1/attention", { signal })),
  refetchInterval: polled(5_000),
});

/** The gateways that share this one's database. */
export const replicas = queryOptions({
  queryKey: ["replicas"],
  retry: false,
  queryFn: async ({ signal }) => (await ok(api.GET("/api/v1/replicas", { signal }))).replicas,
  refetchInterval: polled(5_000),
});

export const settings = queryOptions({
  queryKey: ["settings"],
  queryFn: ({ signal }) => ok(api.GET("/api/v1/settings", { signal })),
});

/** The findings of `toolwharf doctor`. */
export const report = queryOptions({
  queryKey: ["doctor"],
  retry: false,
  refetchInterval: 30_000,
  queryFn: ({ signal }) => ok(api.GET("/api/v1/doctor", { signal })),
});

export const serverTools = (id: string) =>
  queryOptions({
    queryKey: ["tools", "server", id],
    queryFn: async ({ signal }) => (await ok(api.GET("/api/v1/mcp/servers/{id}/tools", { params: { path: { id } }, signal }))).tools,
    refetchInterval: polled(5_000),
  });

const offered = async (signal: AbortSignal, project?: string) => ((await ok(api.GET("/api/v1/tools", { params: { query: { project } }, signal }))) as { tools: Tool[] }).tools;

export const allTools = queryOptions({
  queryKey: ["tools", "all"],
  queryFn: ({ signal }) => offered(signal),
  refetchInterval: polled(5_000),
});

/** The tools that a search for a task finds in search mode, and the lengths of the lists. An empty task finds none. */
export const foundTools = (query: string, project: string | undefined, limit: number) =>
  queryOptions({
    queryKey: ["tools", "found", project ?? "", query, limit],
    queryFn: ({ signal }) => ok(api.GET("/api/v1/tools/search", { params: { query: { query, project, limit } }, signal })),
    refetchInterval: polled(5_000),
  });

/** The tools that an agent has. */
export const chatTools = (project: string | undefined) =>
  queryOptions({
    queryKey: ["tools", "chat", project ?? ""],
    queryFn: ({ signal }) => offered(signal, project),
  });

/** All pages of a server's list: `tools`, `resources`, `resources/templates` or `prompts`. */
export const listed = <T,>(id: string, method: string, key: string, enabled = true) =>
  queryOptions({
    queryKey: ["tools", "listed", id, method],
    enabled,
    staleTime: 30_000,
    retry: false,
    queryFn: async ({ signal }) => {
      const all: T[] = [];
      let cursor: string | undefined;
      for (let page = 0; page < 100; page++) {
        const body = { method, params: cursor ? { cursor } : {} } as never;
        const { result } = (await ok(api.POST("/api/v1/mcp/servers/{id}/call", { params: { path: { id } }, body, signal }))) as {
          result: Record<string, unknown>;
        };
        all.push(...((result[key] as T[] | undefined) ?? []));
        cursor = result["nextCursor"] as string | undefined;
        if (!cursor) break;
      }
      return all;
    },
  });

export const serverEvents = (id: string) =>
  queryOptions({
    queryKey: ["events", id],
    queryFn: async ({ signal }) =>
      (await ok(api.GET("/api/v1/mcp/servers/{id}/events", { params: { path: { id }, query: { limit: 200 } }, signal }))).events,
    refetchInterval: 2_000,
  });

export const projects = queryOptions({
  queryKey: ["projects"],
  queryFn: async ({ signal }) => (await ok(api.GET("/api/v1/projects", { params: { query: { limit: 1000 } }, signal }))).projects,
});

export const oneProject = (id: string) =>
  queryOptions({
    queryKey: ["projects", id],
    queryFn: ({ signal }) => ok(api.GET("/api/v1/projects/{project}", { params: { path: { project: id } }, signal })),
  });

/** Commands for servers. */
export type Order = "start" | "stop" | "restart" | "enable" | "disable";

export const DONE: Record<Order, string> = { start: "started", stop: "stopped", restart: "restarted", enable: "switched on", disable: "switched off" };

export const order = (id: string, verb: Order) => ok(api.POST(`/api/v1/mcp/servers/{id}/${verb}`, { params: { path: { id } } }));

export const remove = (id: string) => ok(api.DELETE("/api/v1/mcp/servers/{id}", { params: { path: { id } } }));
