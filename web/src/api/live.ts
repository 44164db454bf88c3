// The event stream of the page. It updates the query cache, so that pages need not handle events.
import type { QueryClient } from "@tanstack/react-query";

import { store } from "../lib";
import { api, ApiError, ok, type Attention, type Call, type Server } from "./client";
import { events, type StreamEvent } from "./sse";

/** `connecting` at first; `polling` without a stream; `lost` while the gateway does not respond. */
type Liveness = "connecting" | "live" | "polling" | "lost";

/** The latest event about each server, by id. `undefined`: it was removed. */
type Changes = Map<string, Server | undefined>;

/** The changes since the start of each fetch of servers in progress. */
const fetches = new Set<Changes>();

const liveness = store<Liveness>("connecting");
const callListeners = new Set<(call: Call) => void>();

export const seen = (server: Server): Server => ({ ...server, seen: Date.now() });

/** Fetches servers. The response may be older than events that arrive while it is fetched, so these are applied to it. */
export async function withChanges<T>(fetch: () => Promise<T>, apply: (fetched: T, changes: Changes) => T): Promise<T> {
  const changes: Changes = new Map();
  fetches.add(changes);
  try {
    return apply(await fetch(), changes);
  } finally {
    fetches.delete(changes);
  }
}

/** A list of servers after these changes. */
export function changed(all: Server[], changes: Changes): Server[] {
  const rest = new Map(changes);
  const known = all.flatMap((one) => {
    if (!rest.has(one.id!)) return [one];
    const change = rest.get(one.id!);
    rest.delete(one.id!);
    return change ? [{ ...one, ...change }] : [];
  });
  return [...known, ...[...rest.values()].filter((one) => one !== undefined)];
}

export const isLive = () => liveness.get() === "live";

export const useLiveness = liveness.use;

/** Registers a listener for each call that starts or ends. */
export function onCall(listener: (call: Call) => void): () => void {
  callListeners.add(listener);
  return () => void callListeners.delete(listener);
}

/** Limits of the wait before a reconnect, in milliseconds. It doubles after each failure. */
const [MIN_BACKOFF_MS, MAX_BACKOFF_MS] = [500, 15_000];

export function follow(client: QueryClient): () => void {
  const over = new AbortController();
  void stay(client, over.signal);
  return () => over.abort();
}

/** Keeps the stream open until `over` is aborted. */
async function stay(client: QueryClient, over: AbortSignal) {
  let opened = false;
  let backoff = MIN_BACKOFF_MS;
  let last: string | undefined;
  while (!over.aborted) {
    try {
      const headers = { accept: "text/event-stream", ...(last ? { "last-event-id": last } : {}) };
      const stream = await ok(api.GET("/api/v1/events", { headers, signal: over, parseAs: "stream" }));
      opened = true;
      backoff = MIN_BACKOFF_MS;
      liveness.set("live");
      // Events may have been missed, so everything is fetched again.
      void client.invalidateQueries();
      for await (const event of events(stream)) {
        last = event.id ?? last;
        take(client, event);
      }
    } catch (error) {
      if (over.aborted) return;
      const status = error instanceof ApiError ? error.status : 0;
      // The session has ended: `ok` is opening the sign-in page.
      if (status === 401) return;
      if (status >= 400) {
        // The gateway refused the stream, for example because there are too many: pages poll until it accepts one.
        liveness.set("polling");
        if (opened) void client.invalidateQueries();
        if (status === 404) return;
      } else liveness.set("lost");
    }
    if (over.aborted) return;
    if (isLive()) liveness.set("lost");
    await pause(backoff * (0.5 + Math.random() / 2), over);
    backoff = Math.min(backoff * 2, MAX_BACKOFF_MS);
  }
}

const pause = (ms: number, over: AbortSignal) =>
  new Promise<void>((done) => {
    const timer = setTimeout(done, ms);
    over.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });

/** Updates the list of servers, and the fetches in progress. */
function note(client: QueryClient, id: string, server: Server | undefined) {
  for (const changes of fetches) changes.set(id, server);
  client.setQueryData<Server[]>(["servers"], (all) => all && changed(all, new Map([[id, server]])));
}

/** Updates the cache with an event. */
function take(client: QueryClient, { event, data }: StreamEvent) {
  const told: unknown = JSON.parse(data);
  switch (event) {
    case "server": {
      const server = seen(told as Server);
      note(client, server.id!, server);
      client.setQueryData<Server>(["server", server.id!], (old) => (old ? { ...old, ...server } : old));
      return;
    }
    case "server_removed": {
      const { id } = told as { id: string };
      note(client, id, undefined);
      return void client.invalidateQueries({ queryKey: ["server", id] });
    }
    case "tools":
      return void client.invalidateQueries({ queryKey: ["tools"] });
    case "attention":
      return void client.setQueryData<Attention>(["attention"], told as Attention);
    case "call":
      return callListeners.forEach((listener) => listener(told as Call));
    case "replicas":
      return void client.invalidateQueries({ queryKey: ["replicas"] });
    case "calls_skipped":
      return void client.invalidateQueries({ queryKey: ["calls"] });
  }
}
