import { useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { ArrowUp, History, MessageSquare, MessageSquarePlus, Square, Trash2 } from "lucide-react";
import { useCallback, useContext, useEffect, useMemo, useRef, useState, type ReactNode } from "react";

import { api, ApiError, ok, type Schemas } from "@/api/client";
import { chatTools, settings } from "@/api/queries";
import { events } from "@/api/sse";
import { cx, moment } from "@/lib";
import { asJson, CopyButton, pretty } from "@/ui/json";
import { useIsWide, useTitle } from "@/ui/media";
import { attempt, Confirm, Dialog } from "@/ui/overlay";
import { Button, Empty, message, Notice } from "@/ui/parts";
import { Questions } from "@/pages/tools/questions";
import type { Asked } from "@/pages/tools/run";
import { AppOf, ApprovalOf, AppsOf } from "./app";
import { Text } from "./markdown";
import { RecipeCard } from "./recipe";
import { answer, asking, heard, over, told, whole, type Part, type Said, type ToolUse } from "./said";

const route = getRouteApi("/chat");
/** Maximum length of shown tool arguments and results, in characters. */
const MAX_SHOWN_CHARS = 20_000;

type Info = Schemas["ConversationInfo"];
type Kept = Parameters<typeof told>[0];

const CONVERSATION = "/api/v1/conversations/{conversation}";
/** The parameters of a request about a conversation. */
const about = (conversation: string, project: string | undefined) => ({ path: { conversation }, query: { project } });

const stored = async (conversation: string, project: string | undefined, signal?: AbortSignal) => (await ok(api.GET(CONVERSATION, { params: about(conversation, project), signal }))) as unknown as Kept;

export function Chat() {
  const { project, c } = route.useSearch();
  const navigate = useNavigate();
  const client = useQueryClient();
  const isWide = useIsWide();
  useTitle("Chat");
  const [said, setSaid] = useState<Said[]>([]);
  const [status, setStatus] = useState("");
  const [isOpen, setIsOpen] = useState(false);
  const [isBusy, setIsBusy] = useState(false);
  const [draft, setDraft] = useState("");
  /** Context from Apps for the model, by call. It is sent with the next message. */
  const contexts = useRef(new Map<string, string>());
  const turn = useRef<AbortController>(null);
  /** The conversation that is shown. The URL may already name another one. */
  const shown = useRef<string | undefined>(undefined);
  const known = useQuery({
    queryKey: ["conversations", project ?? ""],
    queryFn: async ({ signal }) => (await ok(api.GET("/api/v1/conversations", { params: { query: { limit: 100, project } }, signal }))).conversations.filter((one) => project || !one.project),
  });
  const set = useQuery({ ...settings, retry: false });
  const lacksModel = set.data?.settings.some((one) => one.key === "agent.model" && one.value == null);

  /** Stops the turn, and clears the page for conversation `next`. */
  const leave = useCallback((next: string | undefined) => {
    turn.current?.abort();
    turn.current = null;
    shown.current = next;
    contexts.current.clear();
    setSaid([]);
    setStatus("");
    setIsBusy(false);
  }, []);

  useEffect(() => {
    if (shown.current === c) return;
    leave(c);
    if (!c) return;
    const over = new AbortController();
    stored(c, project, over.signal)
      // A message may have been sent in the meantime.
      .then((kept) => setSaid((since) => [...told(kept), ...since]))
      .catch((error: unknown) => over.signal.aborted || setSaid([{ whose: "theirs", parts: [{ kind: "wrong", text: message(error) }] }]));
    return () => over.abort();
  }, [c, project, leave]);
  useEffect(() => () => turn.current?.abort(), []);

  const go = useCallback((id: string | undefined) => void navigate({ to: "/chat", search: { ...(project ? { project } : {}), ...(id ? { c: id } : {}) } as never }), [navigate, project]);

  const fresh = () => {
    leave(undefined);
    go(undefined);
  };

  const send = async (typed: string) => {
    const text = [typed, ...contexts.current.values()].join("\n\n");
    contexts.current.clear();
    const over_ = (turn.current = new AbortController());
    setIsBusy(true);
    setSaid((old) => [...old, { whose: "mine", text }, { whose: "theirs", parts: [] }]);
    /** Changes the page, unless another conversation was opened in the meantime. */
    const change = (how: (old: Said[]) => Said[]) => turn.current === over_ && setSaid(how);
    const note = (kind: "wrong" | "note", what: string) => change((old) => answer(old, (parts) => [...parts, { kind, text: what }]));
    let isOver = false;
    try {
      const stream = await begun(project, { message: text, can_answer: true, ...(shown.current ? { conversation: shown.current } : {}) }, over_.signal);
      for await (const { event, data } of events(stream)) {
        if (over_.signal.aborted) break;
        const what = JSON.parse(data) as { id?: string | null; pause_ms?: number };
        if (event === "conversation" && what.id) {
          shown.current = what.id;
          void navigate({ to: "/chat", search: { ...(project ? { project } : {}), c: what.id } as never, replace: true });
        }
        setStatus(event === "retrying" ? `The model's provider is busy; asking again in ${Math.ceil((what.pause_ms ?? 0) / 1000)} s.` : "");
        isOver ||= event === "done" || event === "error";
        change((old) => heard(old, event, what));
      }
      if (over_.signal.aborted) note("note", "Stopped.");
      else if (!isOver) note("wrong", "The connection was lost. Everything that was complete is kept: open the conversation again to see it.");
    } catch (error) {
      note(over_.signal.aborted ? "note" : "wrong", over_.signal.aborted ? "Stopped." : message(error));
    }
    change((old) => answer(old, over));
    if (turn.current === over_) {
      setIsBusy(false);
      const id = shown.current;
      if (id && isOver)
        void stored(id, project)
          .then((kept) => shown.current === id && setSaid((old) => whole(old, told(kept))))
          .catch(() => {});
    }
    void client.invalidateQueries({ queryKey: ["conversations"] });
  };

  const now = useRef(send);
  now.current = send;
  const apps = useMemo(
    () => ({
      project,
      send: isBusy ? undefined : (text: string) => void now.current(text),
      onMessage: (text: string) => setDraft((old) => [old, text].filter(Boolean).join("\n")),
      onContext: (call: string, text: string) => contexts.current.set(call, text),
      onAnswer: (call: string, answers: Record<string, unknown>, asked: Record<string, Asked>) => {
        setSaid((old) => asking(old, call, undefined));
        void attempt(() => ok(api.POST(`${CONVERSATION}/answers`, { params: about(shown.current!, project), body: { call, answers } as never }))).then(
          (done) => done || setSaid((old) => asking(old, call, asked)),
        );
      },
    }),
    [project, isBusy],
  );
  const history = (
    <Conversations
      known={known.data}
      current={c}
      onOpen={(id) => (setIsOpen(false), go(id))}
      onRemove={async (id) => {
        await ok(api.DELETE(CONVERSATION, { params: about(id, project) }));
        if (id === c) go(undefined);
        await known.refetch();
      }}
    />
  );
  return (
    <div className="flex h-full">
      {isWide && (
        <nav aria-label="Conversations" className="flex w-64 shrink-0 flex-col border-r">
          <div className="p-3">
            <Button className="w-full" icon={<MessageSquarePlus />} onClick={fresh}>
              New chat
            </Button>
          </div>
          {history}
        </nav>
      )}
      <section className="flex min-w-0 flex-1 flex-col">
        <header className="flex min-h-12 items-center gap-2 border-b px-4">
          <h1 className="min-w-0 flex-1 truncate font-semibold">
            {known.data?.find((one) => one.id === c)?.title ?? "Chat"}
            {project && <span className="font-normal text-faint"> · {project}</span>}
          </h1>
          {!isWide && (
            <>
              <Button look="quiet" aria-label="Conversations" icon={<History />} onClick={() => setIsOpen(true)} />
              <Button look="quiet" aria-label="New chat" icon={<MessageSquarePlus />} onClick={fresh} />
            </>
          )}
        </header>
        <AppsOf.Provider value={apps}>
          <Log said={said} isBusy={isBusy}>
            {!said.length && !c && (lacksModel ? <NoModel /> : <Welcome project={project} />)}
          </Log>
        </AppsOf.Provider>
        <Say text={draft} setText={setDraft} isBusy={isBusy} onSend={(text) => void send(text)} onStop={() => turn.current?.abort()} />
        <p id="status" role="status" className="min-h-5 px-4 pb-1 text-center text-xs text-faint">
          {status}
        </p>
      </section>
      <Dialog open={isOpen && !isWide} onClose={() => setIsOpen(false)} title="Conversations">
        {history}
      </Dialog>
    </div>
  );
}

/** Begins a turn. Waits if a stopped turn has not ended at the gateway yet. */
async function begun(project: string | undefined, body: Schemas["ChatRequest"], signal: AbortSignal): Promise<Response["body"]> {
  for (let tries = 1; ; tries++) {
    try {
      return await ok(api.POST("/api/v1/chat", { params: { query: { project } }, body, signal, parseAs: "stream" }));
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 409) || tries >= 5) throw error;
      await new Promise((go) => setTimeout(go, 300 * tries));
    }
  }
}

function NoModel() {
  return (
    <Empty icon={<MessageSquare />} title="No model is configured yet">
      An agent needs a model. Write <code>[agent]</code> and <code>model = "claude-sonnet-4-5"</code> into toolwharf.toml, set <code>ANTHROPIC_API_KEY</code>, and start <code>toolwharf serve</code> again.
    </Empty>
  );
}

function Welcome({ project }: { project: string | undefined }) {
  const { data } = useQuery({ ...chatTools(project), refetchInterval: 3_000 });
  const servers = new Map<string, number>();
  for (const tool of data ?? []) if (tool.enabled) servers.set(tool.server, (servers.get(tool.server) ?? 0) + 1);
  return (
    <div className="mx-auto max-w-xl px-4 py-16 text-center">
      <h2 className="text-xl font-semibold tracking-tight">What can I do for you?</h2>
      <p className="mt-1 text-sm text-muted">{servers.size ? "Ask something. The agent uses the tools of these servers:" : "Ask something, or paste a link."}</p>
      <ul id="servers" className="mt-4 flex flex-wrap justify-center gap-2">
        {[...servers].map(([name, many]) => (
          <li key={name} className="rounded-full border bg-panel px-3 py-1 text-sm">
            {name} <span className="text-faint">{many === 1 ? "1 tool" : `${many} tools`}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}

function Conversations({ known, current, onOpen, onRemove }: { known: Info[] | undefined; current: string | undefined; onOpen: (id: string) => void; onRemove: (id: string) => Promise<void> }) {
  const [removing, setRemoving] = useState<Info>();
  return (
    <>
      {known?.length === 0 && <p className="px-4 pb-4 text-sm text-faint">No conversations yet.</p>}
      <ul id="list" className="min-h-0 flex-1 overflow-y-auto px-2 pb-2">
        {known?.map((one) => (
          <li key={one.id} className={cx("group flex items-center rounded-md hover:bg-hover", one.id === current && "bg-raised")}>
            <button type="button" aria-current={one.id === current ? "true" : undefined} onClick={() => onOpen(one.id)} className="open min-w-0 flex-1 px-2 py-1.5 text-left">
              <span className="block truncate text-sm">{one.title || "Untitled"}</span>
              <time dateTime={one.updated_at} className="text-xs text-faint">
                {moment(one.updated_at)}
              </time>
            </button>
            <Button look="quiet" className="icon" aria-label={`Delete: ${one.title}`} icon={<Trash2 />} onClick={() => setRemoving(one)} />
          </li>
        ))}
      </ul>
      <Confirm open={!!removing} onClose={() => setRemoving(undefined)} title="Delete this conversation?" action="Delete" onConfirm={() => onRemove(removing!.id)}>
        {removing?.title}
      </Confirm>
    </>
  );
}

function Log({ said, isBusy, children }: { said: Said[]; isBusy: boolean; children: ReactNode }) {
  const area = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  useEffect(() => {
    if (follows.current) area.current!.scrollTop = area.current!.scrollHeight;
  }, [said]);
  return (
    <div
      ref={area}
      tabIndex={0}
      role="region"
      aria-label="Conversation"
      className="min-h-0 flex-1 overflow-y-auto"
      onScroll={(event) => {
        const at = event.currentTarget;
        follows.current = at.scrollHeight - at.scrollTop - at.clientHeight < 80;
      }}
    >
      <div id="log" role="log" aria-live="polite" className="mx-auto flex max-w-3xl flex-col gap-5 px-4 py-6">
        {said.map((one, at) =>
          one.whose === "mine" ? (
            <article key={at} aria-label="You" className="mine ml-auto max-w-[85%] rounded-2xl rounded-br-md bg-raised px-4 py-2.5 break-words whitespace-pre-wrap">
              {one.text}
            </article>
          ) : (
            <article key={at} aria-label="Agent" aria-busy={isBusy && at === said.length - 1} className="theirs flex min-w-0 flex-col gap-3">
              {one.parts.map((part, place) => (
                <PartView key={place} part={part} />
              ))}
              {isBusy && at === said.length - 1 && <span aria-hidden className="pulse-dot size-2 rounded-full bg-accent" />}
            </article>
          ),
        )}
      </div>
      {children}
    </div>
  );
}

function PartView({ part }: { part: Part }) {
  switch (part.kind) {
    case "text":
      return <Text text={part.text} />;
    case "thinking":
      return (
        <details className="rounded-md border text-sm">
          <summary className="px-3 py-1.5 text-muted">Thinking</summary>
          <div className="border-t px-3 py-2 text-muted">
            <Text text={part.text} />
          </div>
        </details>
      );
    case "tool":
      return <ToolView tool={part} />;
    case "recipe":
      return <RecipeCard recipe={part.recipe} />;
    case "wrong":
      return (
        <div className="wrong">
          <Notice tone="bad">{part.text}</Notice>
        </div>
      );
    case "note":
      return <p className="note text-sm text-faint">{part.text}</p>;
    case "usage":
      return <p className="usage tabular text-xs text-faint">{part.text}</p>;
  }
}

/** Summarizes a call's input in a few words. */
function gist(input: unknown): string {
  if (typeof input !== "object" || input === null) return "";
  const all = input as Record<string, unknown>;
  const first = ["url", "title", "query", "text", "id", "path", "name"].map((key) => all[key]).find((one) => typeof one === "string" && one) ?? Object.values(all).find((one) => typeof one === "string" && one);
  return String(first ?? "").slice(0, 120);
}

function asText(value: unknown): string {
  const text = typeof value === "string" ? (asJson(value) ?? value) : pretty(value);
  return text.length > MAX_SHOWN_CHARS ? `${text.slice(0, MAX_SHOWN_CHARS)}\n… (${text.length} characters in all)` : text;
}

const DOTS = { running: "bg-info pulse-dot", done: "bg-ok", failed: "bg-bad", ended: "bg-edge" };

function ToolView({ tool }: { tool: ToolUse }) {
  const { onAnswer } = useContext(AppsOf);
  return (
    <>
      <details className="tool rounded-md border bg-panel text-sm">
        <summary className="flex items-center gap-2 px-3 py-1.5">
          <span aria-hidden className={cx("size-2 shrink-0 rounded-full", DOTS[tool.state])} />
          <span className="name font-mono text-[0.8125rem] font-medium">{tool.name}</span>
          {tool.server && <span className="server text-xs text-faint">{tool.server}</span>}
          <span className="min-w-0 flex-1 truncate text-xs text-muted">{gist(tool.input)}</span>
          <span className={cx("state text-xs", tool.state === "failed" ? "text-bad" : "text-faint")}>{tool.state}</span>
        </summary>
        <Bytes title="Arguments" text={asText(tool.input)} />
        {tool.result !== undefined && <Bytes title={tool.state === "failed" ? "Error" : "Result"} text={asText(tool.result)} />}
      </details>
      {tool.asked && tool.state === "running" && <Questions key={Object.keys(tool.asked).join()} result={{ inputRequests: tool.asked }} onAnswer={(answers) => onAnswer(tool.id, answers, tool.asked!)} />}
      <AppOf tool={tool} />
      {tool.state === "failed" && <ApprovalOf tool={tool} />}
      {tool.pictures?.map((picture, at) => <img key={at} src={picture} alt={`From ${tool.name}`} className="max-h-96 max-w-full self-start rounded-md border" />)}
    </>
  );
}

const Bytes = ({ title, text }: { title: string; text: string }) => (
  <div className="border-t px-3 py-2">
    <div className="flex items-center justify-between">
      <h3 className="text-xs font-medium text-faint">{title}</h3>
      <CopyButton text={text} />
    </div>
    <pre tabIndex={0} className="max-h-72 overflow-auto text-xs leading-5 break-words whitespace-pre-wrap">{text}</pre>
  </div>
);

function Say({ text, setText, isBusy, onSend, onStop }: { text: string; setText: (text: string) => void; isBusy: boolean; onSend: (text: string) => void; onStop: () => void }) {
  const send = () => {
    const what = text.trim();
    if (!what || isBusy) return;
    setText("");
    onSend(what);
  };
  return (
    <form className="mx-auto flex w-full max-w-3xl items-end gap-2 px-4 pt-2" onSubmit={(event) => (event.preventDefault(), send())}>
      <textarea
        id="message"
        aria-label="Message"
        rows={1}
        placeholder="Write a message"
        enterKeyHint="send"
        value={text}
        maxLength={500_000}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) {
            event.preventDefault();
            send();
          } else if (event.key === "Escape" && isBusy) onStop();
        }}
        className="field-sizing-content max-h-60 min-h-11 flex-1 resize-none rounded-xl border border-edge bg-panel px-3.5 py-2.5 pointer-coarse:text-[16px]"
      />
      {isBusy ? (
        <Button id="stop" className="h-11! w-11! rounded-xl" aria-label="Stop" icon={<Square />} onClick={onStop} />
      ) : (
        <Button id="send" type="submit" look="solid" className="h-11! w-11! rounded-xl" aria-label="Send" icon={<ArrowUp />} />
      )}
    </form>
  );
}
