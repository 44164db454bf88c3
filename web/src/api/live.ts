// The one event stream: it puts what it brings into the cache, so that pages need not know of it.
import type { QueryClient } from "@tanstack/react-query";
import { useSyncExternalStore } from "react";

import type { Call, Server } from "./client";

/** `connecting` at first; `polling` where the gateway has no stream; `lost` while it does not answer. */
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

/** Hears each call that begins or ends. */
export function onCall(listener: (call: Call) => void): () => void {
  callListeners.add(listener);
  return () => void callListeners.delete(listener);
}

export function follow(client: QueryClient): () => void {
  const source = new EventSource("/api/v1/events");
  let opened = false;
  source.onopen = () => {
    opened = true;
    become("live");
    // Whatever happened while nothing was heard.
    void client.invalidateQueries();
  };
  source.onerror = () => {
    if (!opened && source.readyState === EventSource.CLOSED) become("polling");
    else become("lost");
    if (opened && source.readyState === EventSource.CLOSED) {
      // Refused for good: a session that ended says so with the next request.
      become("polling");
      void client.invalidateQueries();
    }
  };
  const on = <T,>(name: string, take: (data: T) => void) =>
    source.addEventListener(name, (event) => take(JSON.parse((event as MessageEvent<string>).data) as T));
  on<Server>("server", (told) => {
    const server = seen(told);
    client.setQueryData<Server[]>(["servers"], (all) => {
      if (!all) return all;
      const at = all.findIndex((one) => one.id === server.id);
      return at < 0 ? [...all, server] : all.with(at, { ...all[at], ...server });
    });
    client.setQueryData<Server>(["server", server.id!], (old) => (old ? { ...old, ...server } : old));
  });
  on<{ id: string }>("server_removed", ({ id }) => {
    client.setQueryData<Server[]>(["servers"], (all) => all?.filter((one) => one.id !== id));
    void client.invalidateQueries({ queryKey: ["server", id] });
  });
  on<{ id: string }>("tools", () => void client.invalidateQueries({ queryKey: ["tools"] }));
  on<Call>("call", (call) => callListeners.forEach((listener) => listener(call)));
  on("replicas", () => void client.invalidateQueries({ queryKey: ["replicas"] }));
  on("calls_skipped", () => void client.invalidateQueries({ queryKey: ["calls"] }));
  return () => source.close();
}
