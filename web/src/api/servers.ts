// Commands for servers.
import { api, ok } from "./client";

export type Order = "start" | "stop" | "restart" | "enable" | "disable";

export const DONE: Record<Order, string> = { start: "started", stop: "stopped", restart: "restarted", enable: "switched on", disable: "switched off" };

export const order = (id: string, verb: Order) => ok(api.POST(`/api/v1/mcp/servers/{id}/${verb}`, { params: { path: { id } } }));

export const remove = (id: string) => ok(api.DELETE("/api/v1/mcp/servers/{id}", { params: { path: { id } } }));
