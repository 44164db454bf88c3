// One run of a tool: the request, notifications, server requests, and the result.
import { api, ok, type Schemas } from "@/api/client";
import { events } from "@/api/sse";

export type Progress = { progress: number; total?: number; message?: string };
export type LogLine = { level?: string; logger?: string; data: unknown };
export type Asked = { method: string; params: Record<string, unknown> };
export type Result = { content?: Content[]; structuredContent?: unknown; isError?: boolean; resultType?: string; inputRequests?: Record<string, Asked>; requestState?: string } & Record<string, unknown>;
export type Content = { type: string; text?: string; data?: string; mimeType?: string; uri?: string; name?: string; title?: string; description?: string; resource?: { uri?: string; text?: string; blob?: string; mimeType?: string } };

export type Params = Record<string, unknown>;
export type Ended = { result: Result } | { problem: Schemas["Problem"] };

/** The client capabilities of this page while a tool runs. */
const CAPABILITIES = { elicitation: { form: {}, url: {} }, sampling: {} };

export async function run(
  server: string,
  method: string,
  params: Params,
  signal: AbortSignal,
  heard: { progress: (progress: Progress) => void; log: (line: LogLine) => void },
  /** The recorded call that is repeated. */
  replay_of?: string,
): Promise<Ended> {
  const body = { method, params, capabilities: CAPABILITIES, ...(replay_of ? { replay_of } : {}) } as never;
  const headers = { accept: "text/event-stream" };
  const stream = await ok(api.POST("/api/v1/mcp/servers/{id}/call", { params: { path: { id: server } }, body, headers, signal, parseAs: "stream" }));
  for await (const { event, data } of events(stream)) {
    const said = JSON.parse(data) as never;
    if (event === "result") return { result: said };
    if (event === "error") return { problem: said };
    const { method: kind, params: told } = said as { method?: string; params?: never };
    if (kind === "notifications/progress") heard.progress(told!);
    if (kind === "notifications/message") heard.log(told!);
  }
  return { problem: { status: 0, detail: "The gateway closed the connection before the answer came." } };
}
