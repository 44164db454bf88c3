// The App of a tool that the agent called. Shown while the tool runs, and again when the conversation is reopened.
import { useQuery } from "@tanstack/react-query";
import { createContext, useContext, useMemo } from "react";

import { AppView } from "@/apps/app";
import { appOf } from "@/apps/host";
import { useChange, type Tool } from "@/api/client";
import { chatTools, listed, servers } from "@/api/queries";
import { approve, offer, ownerOf, type Definition } from "@/api/tools";
import { KeptBack } from "@/pages/tools/changes";
import type { Asked, Params, Result } from "@/pages/tools/run";
import { attempt } from "@/ui/overlay";
import type { ToolUse } from "./said";

/** The page's handlers for messages from Apps and for approvals of tools. `send` is absent during a turn. */
export const AppsOf = createContext<{ project: string | undefined; send?: ((text: string) => void) | undefined; onMessage: (text: string) => void; onContext: (call: string, text: string) => void; /** Sends the answers to a server's questions during a call. */ onAnswer: (call: string, answers: Params, asked: Record<string, Asked>) => void }>({
  project: undefined,
  onMessage: () => {},
  onContext: () => {},
  onAnswer: () => {},
});

/** Finds the tool of a call, with its server. Returns nothing if the agent's tool name is ambiguous. */
function useTool(tool: ToolUse) {
  const { project } = useContext(AppsOf);
  const tools = useQuery(chatTools(project));
  const all = useQuery(servers);
  const meant = tools.data?.filter((one) => (one.native === tool.name || one.name === tool.name) && (!tool.server || one.server === tool.server));
  const one = meant?.length === 1 ? meant[0] : undefined;
  const owner = one && ownerOf(one, all.data);
  return one && owner ? { one, owner } : undefined;
}

export function AppOf({ tool }: { tool: ToolUse }) {
  const known = useTool(tool);
  return known ? <Known tool={tool} one={known.one} server={known.owner.id!} /> : null;
}

/** The changed definition of a tool that the agent called and that is kept back, with buttons to decide. */
export function ApprovalOf({ tool }: { tool: ToolUse }) {
  const known = useTool(tool);
  const { send } = useContext(AppsOf);
  const change = useChange("tools");
  if (!known?.one.kept_back || !known.one.enabled) return null;
  const { one, owner } = known;
  const decide = (deciding: () => Promise<unknown>, said: string) => void attempt(() => change(deciding()).then(() => send?.(said)));
  return (
    <KeptBack
      tool={one}
      title={
        <h3 className="text-sm font-semibold">
          The definition of <span className="font-mono">{one.native}</span> changed
        </h3>
      }
      approval="Approve and go on"
      disabled={!send}
      onRefuse={() => decide(() => offer(owner, one, false), `I switched the tool ${one.native} off. Go on without it.`)}
      onApprove={() => decide(() => approve(owner, [one]), `I approved the changed tool ${one.native}. Go on.`)}
    />
  );
}

function Known({ tool, one, server }: { tool: ToolUse; one: Tool; server: string }) {
  const { onMessage, onContext } = useContext(AppsOf);
  const definitions = useQuery(listed<Definition>(server, "tools/list", "tools"));
  const definition = definitions.data?.find((each) => each.name === one.native);
  const uri = appOf(definition);
  const { state, result: text, pictures, bytes, whole } = tool;
  // A truncated result is not usable. The whole result is loaded when the turn is over.
  const isCut = bytes !== undefined && new Blob([text ?? ""]).size < bytes;
  const result = useMemo<Result | undefined>(() => {
    if (whole) return whole;
    if (isCut || (state !== "done" && state !== "failed")) return undefined;
    const images = (pictures ?? []).map((picture) => {
      const [, mimeType = "", data = ""] = /^data:([^;]*);base64,(.*)$/s.exec(picture) ?? [];
      return { type: "image", mimeType, data };
    });
    return { content: [...(text ? [{ type: "text", text }] : []), ...images], isError: state === "failed" };
  }, [isCut, state, text, pictures, whole]);
  if (!uri || !definition) return null;
  return (
    <AppView
      server={server}
      definition={definition}
      uri={uri}
      args={(tool.input ?? {}) as Params}
      result={result}
      cancelled={state === "ended" ? "The turn was stopped." : undefined}
      onMessage={onMessage}
      onContext={(told) => onContext(tool.id, `[The App of ${one.native} says]\n${told}`)}
    />
  );
}
