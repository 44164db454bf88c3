// The App of a tool that the agent called: drawn while the tool runs, and again when the conversation is opened again.
import { useQuery } from "@tanstack/react-query";
import { createContext, useContext, useMemo } from "react";

import { AppView } from "@/apps/app";
import { appOf } from "@/apps/host";
import { get, type Schemas, type Tool } from "@/api/client";
import { listed, servers } from "@/api/queries";
import { ownerOf, type Definition } from "@/api/tools";
import type { Result } from "@/pages/tools/run";
import type { ToolUse } from "./said";

type Args = Record<string, unknown>;

/** What the page does with what Apps say. */
export const AppsOf = createContext<{ project: string | undefined; onMessage: (text: string) => void; onContext: (call: string, text: string) => void }>({
  project: undefined,
  onMessage: () => {},
  onContext: () => {},
});

export function AppOf({ tool }: { tool: ToolUse }) {
  const { project } = useContext(AppsOf);
  const tools = useQuery({
    queryKey: ["tools", "chat", project ?? ""],
    queryFn: async ({ signal }) => (await get<{ tools: Schemas["Tool"][] }>(`/api/v1/tools${project ? `?project=${encodeURIComponent(project)}` : ""}`, signal)).tools,
  });
  const all = useQuery(servers);
  // An agent's name for a tool: its server's, or the gateway's where two servers have it. Which of two is meant, nobody can tell later.
  const meant = tools.data?.filter((one) => (one.native === tool.name || one.name === tool.name) && (!tool.server || one.server === tool.server));
  const one = meant?.length === 1 ? meant[0] : undefined;
  const owner = one && ownerOf(one, all.data);
  return one && owner ? <Known tool={tool} one={one} server={owner.id!} /> : null;
}

function Known({ tool, one, server }: { tool: ToolUse; one: Tool; server: string }) {
  const { onMessage, onContext } = useContext(AppsOf);
  const definitions = useQuery(listed<Definition>(server, "tools/list", "tools"));
  const definition = definitions.data?.find((each) => each.name === one.native);
  const uri = appOf(definition);
  const { state, result: text, pictures, bytes } = tool;
  // The beginning of a result is no result: the rest comes when the turn is over.
  const isCut = bytes !== undefined && new Blob([text ?? ""]).size < bytes;
  const result = useMemo<Result | undefined>(() => {
    if (isCut || (state !== "done" && state !== "failed")) return undefined;
    const images = (pictures ?? []).map((picture) => {
      const [, mimeType = "", data = ""] = /^data:([^;]*);base64,(.*)$/s.exec(picture) ?? [];
      return { type: "image", mimeType, data };
    });
    return { content: [...(text ? [{ type: "text", text }] : []), ...images], isError: state === "failed" };
  }, [isCut, state, text, pictures]);
  if (!uri || !definition) return null;
  return (
    <AppView
      server={server}
      definition={definition}
      uri={uri}
      args={(tool.input ?? {}) as Args}
      result={result}
      cancelled={state === "ended" ? "The turn was stopped." : undefined}
      onMessage={onMessage}
      onContext={(told) => onContext(tool.id, `[The App of ${one.native} says]\n${told}`)}
    />
  );
}
