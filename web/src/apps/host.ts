// The host side of an App (MCP Apps, 2026-01-26): JSON-RPC with the sandbox on another origin. All messages from there are untrusted.
import type { Definition } from "@/api/tools";
import type { Params, Result } from "@/pages/tools/run";

export const VERSION = "2026-01-26";
const MAX_RUNNING = 8;

type Message = { jsonrpc: "2.0"; id?: string | number; method?: string; params?: Params; result?: unknown; error?: unknown };

/** The requests that an App may make. A rejected promise becomes an error response with its message. */
export type Abilities = {
  call: (tool: string, args: Params) => Promise<unknown>;
  read: (uri: string) => Promise<unknown>;
  open: (url: string) => Promise<boolean>;
  say: (text: string) => void;
  tell: (text: string) => void;
  resize: (height: number) => void;
  begun: () => void;
  closed: (reason: string) => void;
};

export class Refusal extends Error {
  constructor(
    readonly code: number,
    message: string,
  ) {
    super(message);
  }
}

const INVALID_PARAMS = -32602;

/** Returns the URI of a tool's App. */
export function appOf(definition: Definition | undefined): string | undefined {
  const meta = definition?._meta;
  const uri = meta?.ui?.resourceUri ?? meta?.["ui/resourceUri"];
  return typeof uri === "string" && uri.startsWith("ui://") ? uri : undefined;
}

/** Returns whether Apps may call a tool. By default, both models and Apps may. */
export const isForApps = (definition: Definition) => {
  const visibility = definition._meta?.ui?.visibility;
  return !Array.isArray(visibility) || visibility.includes("app");
};

/** Returns the origin for Apps, or undefined if the gateway has none for this browser. */
export function sandbox(): string | undefined {
  const origin = document.querySelector<HTMLMetaElement>("meta[name=apps-origin]")?.content ?? "";
  return /^https?:\/\//.test(origin) ? origin : undefined;
}

/** Returns the text of content blocks, for users and models. */
function texts(params: Params): string {
  const content = Array.isArray(params["content"]) ? (params["content"] as { type?: string; text?: unknown }[]) : [];
  const words = content.filter((one) => one?.type === "text").map((one) => String(one.text));
  if (params["structuredContent"] !== undefined) words.push(JSON.stringify(params["structuredContent"]));
  return words.join("\n");
}

/** Runs the protocol with the App in this frame, until `end` is called. */
export function talk(frame: HTMLIFrameElement, origin: string, html: string, context: () => Params, can: Abilities) {
  let running = 0;
  let isDrawn = false;
  let isBegun = false;
  const waiting: Message[] = [];
  const post = (message: Message) => frame.contentWindow?.postMessage(message, origin);
  const notify = (method: string, params: object) => {
    const message = { jsonrpc: "2.0" as const, method: `ui/notifications/${method}`, params: params as Params };
    if (isBegun || method.startsWith("sandbox-")) post(message);
    else waiting.push(message);
  };

  const asked = async (method: string, params: Params): Promise<unknown> => {
    switch (method) {
      case "ping":
        return {};
      case "ui/initialize":
        return {
          protocolVersion: VERSION,
          hostInfo: { name: "toolwharf", version: "1" },
          hostCapabilities: { openLinks: {}, serverTools: {}, serverResources: {}, message: { text: {} }, updateModelContext: { text: {}, structuredContent: {} } },
          hostContext: context(),
        };
      case "tools/call":
        if (typeof params["name"] !== "string") throw new Refusal(INVALID_PARAMS, "`name` is not a string");
        return can.call(params["name"], (params["arguments"] ?? {}) as Params);
      case "resources/read":
        if (typeof params["uri"] !== "string") throw new Refusal(INVALID_PARAMS, "`uri` is not a string");
        return can.read(params["uri"]);
      case "ui/open-link": {
        const url = String(params["url"]);
        if (!/^https?:\/\//i.test(url) || !URL.canParse(url)) return { isError: true };
        return (await can.open(url)) ? {} : { isError: true };
      }
      case "ui/message":
        can.say(texts(params));
        return {};
      case "ui/update-model-context":
        can.tell(texts(params));
        return {};
      default:
        throw new Refusal(-32601, `This host does not support ${method}.`);
    }
  };

  const answer = async (id: string | number, method: string, params: Params) => {
    const reply = (said: { result: unknown } | { error: unknown }) => post({ jsonrpc: "2.0", id, ...said });
    if (running >= MAX_RUNNING) return reply({ error: { code: -32000, message: `${MAX_RUNNING} requests are in progress: wait for one of them.` } });
    running++;
    try {
      reply({ result: await asked(method, params) });
    } catch (error) {
      const code = error instanceof Refusal ? error.code : -32000;
      reply({ error: { code, message: error instanceof Error ? error.message : String(error) } });
    } finally {
      running--;
    }
  };

  const listen = ({ source, origin: from, data }: MessageEvent) => {
    if (source !== frame.contentWindow || from !== origin || data?.jsonrpc !== "2.0" || typeof data.method !== "string") return;
    const { id, method } = data as { id?: unknown; method: string };
    const params = (typeof data.params === "object" && data.params !== null ? data.params : {}) as Params;
    if (typeof id === "string" || typeof id === "number") void answer(id, method, params);
    else if (method === "ui/notifications/sandbox-proxy-ready" && !isDrawn) {
      isDrawn = true;
      notify("sandbox-resource-ready", { html });
      can.begun();
    } else if (method === "ui/notifications/sandbox-closed") can.closed(String(params["reason"]));
    else if (method === "ui/notifications/initialized" && !isBegun) {
      isBegun = true;
      waiting.splice(0).forEach(post);
    } else if (method === "ui/notifications/size-changed" && typeof params["height"] === "number") can.resize(params["height"]);
  };
  addEventListener("message", listen);
  return {
    input: (args: Params) => notify("tool-input", { arguments: args }),
    result: (result: Result) => notify("tool-result", result),
    cancelled: (reason: string) => notify("tool-cancelled", { reason }),
    changed: (what: Params) => notify("host-context-changed", what),
    end() {
      removeEventListener("message", listen);
      if (isBegun) post({ jsonrpc: "2.0", id: "teardown", method: "ui/resource-teardown", params: {} });
    },
  };
}
