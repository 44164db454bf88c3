// Tools and their definitions.
import { api, ok, type Server, type Tool } from "./client";
import { at } from "../root";

export type Definition = {
  name: string;
  title?: string;
  description?: string;
  inputSchema: Record<string, unknown>;
  outputSchema?: Record<string, unknown>;
  annotations?: { title?: string; readOnlyHint?: boolean; destructiveHint?: boolean; idempotentHint?: boolean; openWorldHint?: boolean };
  _meta?: { ui?: { resourceUri?: unknown; visibility?: unknown }; "ui/resourceUri"?: unknown };
};

/** Returns a tool's server. Server names are unique only within a project. */
export const ownerOf = (tool: { server: string; project?: string | null }, servers: Server[] | undefined) =>
  servers?.find((one) => one.name === tool.server && (one.project ?? null) === (tool.project ?? null)) ?? servers?.find((one) => one.name === tool.server);

/** Approves the current definitions of tools. */
export const approve = (server: Server, which: Tool[]) =>
  ok(
    api.POST("/api/v1/mcp/servers/{id}/approve", {
      params: { path: { id: server.id! } },
      body: { tools: Object.fromEntries(which.map((tool) => [tool.native, tool.quarantine!.digest])) } as never,
    }),
  );

/** Enables or disables a tool. */
export const offer = (server: Server, tool: Tool, enabled: boolean) =>
  ok(
    api.PUT("/api/v1/mcp/servers/{id}/tools/{tool}", {
      params: { path: { id: server.id!, tool: tool.native } },
      body: { name: null, description: null, ...tool.setting, enabled },
    }),
  );

/** The offered tools that have the same native name as one of this server's, in groups, if that changed a name. */
export function clashes(server: Server, all: Tool[]): Tool[][] {
  const offered = all.filter((tool) => tool.offered && !tool.setting?.name);
  const groups = [...Map.groupBy(offered, (tool) => tool.native).values()];
  return groups.filter((tools) => tools.length > 1 && tools.some((tool) => tool.server === server.name) && tools.some((tool) => tool.name !== tool.native));
}

export const matches = (tool: Tool, words: string[]) => {
  const text = `${tool.name ?? ""} ${tool.native} ${tool.server} ${tool.project ?? ""} ${tool.description}`.toLowerCase();
  return words.every((word) => text.includes(word));
};

export const wordsOf = (typed: string) => typed.toLowerCase().split(/\s+/).filter(Boolean);

/** A call that the user saved in this browser. */
export type Saved = { id: string; label: string; server: string; tool: string; arguments: Record<string, unknown> };

const SAVED_CALLS_KEY = "toolwharf.saved-calls";
const MAX_SAVED = 200;

export function saved(): Saved[] {
  try {
    const all = JSON.parse(localStorage.getItem(SAVED_CALLS_KEY) ?? "[]") as unknown;
    return Array.isArray(all) ? (all as Saved[]).filter((one) => typeof one?.tool === "string" && typeof one.server === "string") : [];
  } catch {
    return [];
  }
}

export function keep(all: Saved[]) {
  localStorage.setItem(SAVED_CALLS_KEY, JSON.stringify(all.slice(0, MAX_SAVED)));
}

/** Quotes a word for a POSIX shell. */
const quoted = (text: string) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

export function asCurl(server: string, tool: string, args: unknown): string {
  const body = JSON.stringify({ method: "tools/call", params: { name: tool, arguments: args } });
  const address = at(`api/v1/mcp/servers/${encodeURIComponent(server)}/call`);
  return `curl -s ${quoted(address)} -H "Authorization: Bearer $TOOLWHARF_TOKEN" -H 'content-type: application/json' -d ${quoted(body)}`;
}

export function asCommand(server: string, project: string | null | undefined, tool: string, args: unknown): string {
  return ["toolwharf", "tools", "call", ...(project ? ["--project", project] : []), "--server", server, "--", tool, JSON.stringify(args)].map(quoted).join(" ");
}
