// The event stream of the page. It updates the query cache, so that pages need not handle events.
import type { QueryClient } from "@tanstack/react-query";
import { useSyncExternalStore } from "react";

import { ApiError, request, type Call, type Server } from "./client";
import { events, type StreamEvent } from "./sse";

/** `connecting` at first; `polling` without a stream; `lost` while the gateway does not respond. */
export type Liveness = "connecting" | "live" | "polling" | "lost";

let liveness: Liveness = "connecting";
const listeners = new Set<() => void>();
const callListeners = new Set<(call: Call) => void>();

function become(next: Liveness) {
  if (liveness === next) return;
  liveness = next;
  for (const listener of listeners) listener();
}

export const seen = (server: Server): Server => ({ ...server, seen: Date.now() });

export const isLive = () => liveness === "live";

export function useLiveness(): Liveness {
  return useSyncExternalStore(
    (listener) => (listeners.add(listener), () => listeners.delete(listener)),
    () => liveness,
  );
}

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
      const response = await request("/api/v1/events", { headers: { accept: "text/event-stream", ...(last ? { "last-event-id": last } : {}) }, signal: over });
      opened = true;
      backoff = MIN_BACKOFF_MS;
      become("live");
      // Events may have been missed, so everything is fetched again.
      void client.invalidateQueries();
      for await (const event of events(response)) {
        last = event.id ?? last;
        take(client, event);
      }
    } catch (error) {
      if (over.aborted) return;
      const status = error instanceof ApiError ? error.status : 0;
      // The session has ended: `request` is opening the sign-in page.
      if (status === 401) return;
      if (status >= 400) {
        // Refused, for example because there are too many streams: pages poll until a stream is accepted.
        become("polling");
        if (opened) void client.invalidateQueries();
        if (status === 404) return;
      } else become("lost");
    }
    if (over.aborted) return;
    if (liveness === "live") become("lost");
    await pause(backoff * (0.5 + Math.random() / 2), over);
    backoff = Math.min(backoff * 2, MAX_BACKOFF_MS);
  }
}

const pause = (ms: number, over: AbortSignal) =>
  new Promise<void>((done) => {
    const timer = setTimeout(done, ms);
    over.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });

/** Updates the cache with an event. */
function take(client: QueryClient, { event, data }: StreamEvent) {
  const told: unknown = JSON.parse(data);
  switch (event) {
    case "server": {
      const server = seen(told as Server);
      client.setQueryData<Server[]>(["servers"], (all) => {
        if (!all) return all;
        const at = all.findIndex((one) => one.id === server.id);
        return at < 0 ? [...all, server] : all.with(at, { ...all[at], ...server });
      });
      client.setQueryData<Server>(["server", server.id!], (old) => (old ? { ...old, ...server } : old));
      return;
    }
    case "server_removed": {
      const { id } = told as { id: string };
      client.setQueryData<Server[]>(["servers"], (all) => all?.filter((one) => one.id !== id));
      return void client.invalidateQueries({ queryKey: ["server", id] });
    }
    case "tools":
      return void client.invalidateQueries({ queryKey: ["tools"] });
    case "call":
      return callListeners.forEach((listener) => listener(told as Call));
    case "replicas":
      return void client.invalidateQueries({ queryKey: ["replicas"] });
    case "calls_skipped":
      return void client.invalidateQueries({ queryKey: ["calls"] });
  }
}
