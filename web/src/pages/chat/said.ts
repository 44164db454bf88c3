// The state of a conversation, built from stream events or from the stored messages. Pure functions, so that a reload shows the same as the stream.
import type { Asked, Result } from "@/pages/tools/run";
import { isRecipe } from "./recipe";

export type ToolUse = { kind: "tool"; id: string; name: string; server?: string | null; input: unknown; state: "running" | "done" | "failed" | "ended"; result?: string; pictures?: string[]; bytes?: number | undefined; /** The whole result as the server sent it, for the tool's App. */ whole?: Result | undefined; /** The server's questions, which must be answered before the call continues. */ asked?: Record<string, Asked> | undefined };
export type Part = { kind: "text" | "thinking"; text: string } | ToolUse | { kind: "recipe"; recipe: Record<string, unknown> } | { kind: "note" | "wrong" | "usage"; text: string };
export type Said = { whose: "mine"; text: string } | { whose: "theirs"; parts: Part[] };

/** Changes the agent's last message, or adds one. */
export function answer(said: Said[], change: (parts: Part[]) => Part[]): Said[] {
  const last = said.at(-1);
  if (last?.whose !== "theirs") return [...said, { whose: "theirs", parts: change([]) }];
  return [...said.slice(0, -1), { whose: "theirs", parts: change(last.parts) }];
}

const grow = (kind: "text" | "thinking", text: string) => (parts: Part[]): Part[] => {
  const last = parts.at(-1);
  return last?.kind === kind ? [...parts.slice(0, -1), { kind, text: last.text + text }] : [...parts, { kind, text }];
};

const add = (part: Part) => (parts: Part[]): Part[] => [...parts, part];

const ended = (id: string, change: Partial<ToolUse>) => (parts: Part[]): Part[] => parts.map((part) => (part.kind === "tool" && part.id === id ? { ...part, ...change } : part));

/** Sets or clears the open server requests of a call. */
export const asking = (said: Said[], call: string, asked: Record<string, Asked> | undefined): Said[] => answer(said, ended(call, { asked }));

/** Replaces the truncated results from the stream with the whole stored results. */
export function whole(said: Said[], kept: Said[]): Said[] {
  const results = new Map(kept.flatMap((one) => (one.whose === "theirs" ? one.parts : [])).flatMap((part) => (part.kind === "tool" ? [[part.id, part] as const] : [])));
  const full = (part: Part): Part => {
    const { result, pictures } = (part.kind === "tool" && results.get(part.id)) || {};
    return part.kind === "tool" && result !== undefined ? { ...part, result, pictures: pictures ?? [], bytes: undefined } : part;
  };
  return said.map((one) => (one.whose === "theirs" ? { ...one, parts: one.parts.map(full) } : one));
}

const usage = (text: string) => (parts: Part[]): Part[] => [...parts.filter((part) => part.kind !== "usage"), { kind: "usage", text }];

/** Marks running calls as ended, and moves the usage figures to the end. */
export const over = (parts: Part[]): Part[] => {
  const all = parts.map((part) => (part.kind === "tool" && part.state === "running" ? { ...part, state: "ended" as const } : part));
  return [...all.filter((part) => part.kind !== "usage"), ...all.filter((part) => part.kind === "usage")];
};

const number = new Intl.NumberFormat("en");

export function spent({ input, output, cache_read, cache_write, cost_micros }: Record<string, number | undefined>): string {
  const read = (input ?? 0) + (cache_read ?? 0) + (cache_write ?? 0);
  const price = cost_micros ? ` · $${(cost_micros / 1e6).toFixed(cost_micros < 10_000 ? 4 : 2)}` : "";
  return `${number.format(read)} tokens read · ${number.format(output ?? 0)} written${price}`;
}

/** Applies an event. Unknown events of later versions change nothing. */
export function heard(said: Said[], event: string, data: any): Said[] {
  switch (event) {
    case "text_delta":
      return answer(said, grow("text", String(data.text)));
    case "thinking_delta":
      return answer(said, grow("thinking", String(data.text)));
    case "servers_missing":
      return (data.servers as { server: string; reason: string }[]).reduce((all, one) => answer(all, add({ kind: "note", text: `Without the tools of ${one.server}: ${one.reason}` })), said);
    case "tool_call":
      return answer(said, add({ kind: "tool", id: data.id, name: data.name, server: data.server, input: data.arguments, state: "running" }));
    case "questions":
      return asking(said, data.id, data.requests);
    case "tool_result":
      return answer(said, ended(data.id, { state: data.is_error ? "failed" : "done", result: data.preview, bytes: data.bytes, whole: data.result, asked: undefined }));
    case "native":
      return data.tool === "display_recipe" && isRecipe(data.payload) ? answer(said, add({ kind: "recipe", recipe: data.payload })) : said;
    case "usage":
      return answer(said, usage(spent(data)));
    case "done":
      return data.stop_reason === "max_tokens" ? answer(said, add({ kind: "note", text: "The answer was cut off here because it is too long." })) : said;
    case "error":
      return answer(said, add({ kind: "wrong", text: String(data.message) }));
    default:
      return said;
  }
}

type Block = { type: string; text?: string; thinking?: string; id?: string; name?: string; input?: unknown; tool_use_id?: string; content?: unknown; is_error?: boolean };
type ResultPart = { type: string; text?: string; source?: { media_type?: string; data?: string }; media_type?: string; data?: string };
export type Message = { role: string; content: Block[] };

const PICTURE = /^image\/(png|jpeg|gif|webp)$/;

/** Builds the state from a stored conversation. */
export function told({ messages, results }: { messages: Message[]; results?: Record<string, Result> }): Said[] {
  let said: Said[] = [];
  const names = new Map<string, { name: string; input: unknown }>();
  for (const { role, content } of messages) {
    for (const block of content) {
      // System notes are from the gateway to the model. The page showed their content when it arrived.
      if (role === "user" && block.type === "text" && !block.text!.startsWith("[System note] ")) said = [...said, { whose: "mine", text: block.text! }];
      else if (block.type === "tool_result") {
        const parts = (Array.isArray(block.content) ? block.content : []) as ResultPart[];
        const texts = parts.filter((part) => part.type === "text").map((part) => part.text ?? "");
        const pictures = parts.flatMap((part) => {
          const { media_type, data } = part.source ?? part;
          return part.type === "image" && data && PICTURE.test(media_type ?? "") ? [`data:${media_type};base64,${data}`] : [];
        });
        said = answer(said, ended(block.tool_use_id!, { state: block.is_error ? "failed" : "done", result: texts.join("\n"), pictures, whole: results?.[block.tool_use_id!] }));
        const call = names.get(block.tool_use_id!);
        if (call?.name === "display_recipe" && !block.is_error && isRecipe(call.input)) said = answer(said, add({ kind: "recipe", recipe: call.input }));
      } else if (role === "assistant") {
        if (block.type === "text") said = answer(said, grow("text", block.text!));
        if (block.type === "thinking" && block.thinking) said = answer(said, grow("thinking", block.thinking));
        if (block.type === "tool_use") {
          names.set(block.id!, { name: block.name!, input: block.input });
          said = answer(said, add({ kind: "tool", id: block.id!, name: block.name!, input: block.input, state: "running" }));
        }
      }
    }
  }
  return said.map((one) => (one.whose === "theirs" ? { ...one, parts: over(one.parts) } : one));
}
