// One tool: its parameters, its description, and a form to run it.
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Bookmark, ChevronDown, Play, ShieldAlert, Square, Terminal, Trash2 } from "lucide-react";
import { useEffect, useMemo, useRef, useState } from "react";

import type { Schemas, Server, Tool } from "@/api/client";
import { listed } from "@/api/queries";
import { asCommand, asCurl, keep, saved, type Definition, type Saved } from "@/api/tools";
import { AppView } from "@/apps/app";
import { appOf } from "@/apps/host";
import { loadForm, SchemaForm } from "@/form/lazy";
import { copy, micros } from "@/lib";
import { Json, pretty } from "@/ui/json";
import { Menu, toast } from "@/ui/overlay";
import { Badge, Button, Chips, Go, message, Notice, Panel, Skeleton } from "@/ui/parts";
import { Changes } from "./changes";
import { Questions } from "./questions";
import { ResultView } from "./result";
import { run, type LogLine, type Params, type Progress, type Result } from "./run";

/** The state of a run. `asked` holds the server's requests that must be answered first. */
type Stage =
  | { at: "rest" }
  | { at: "running"; since: number }
  | { at: "asked"; result: Result; since: number }
  | { at: "done"; result: Result; args: Params; run: number; us: number }
  | { at: "failed"; problem: Partial<Schemas["Problem"]>; us: number };

const MAX_LOG_LINES = 500;

export function OneTool({ server, tool }: { server: Server; tool: Tool }) {
  const known = useQuery(listed<Definition>(server.id!, "tools/list", "tools"));
  const definition = known.data?.find((one) => one.name === tool.native);
  return (
    <article className="flex flex-col gap-4 p-4 md:p-6">
      <header>
        <div className="flex flex-wrap items-center gap-2">
          <h2 className="font-mono text-lg font-semibold break-all">{tool.native}</h2>
          {definition?.annotations?.readOnlyHint && <Badge tone="ok" title="The server says that it changes nothing">read-only</Badge>}
          {definition?.annotations?.destructiveHint && !definition.annotations.readOnlyHint && <Badge tone="bad" title="The server says that it can delete or overwrite something">destructive</Badge>}
          {definition?.annotations?.openWorldHint && <Badge tone="info" title="The server says that it uses services outside of it">uses outside services</Badge>}
          {tool.name && tool.name !== tool.native && <Badge title="What clients call it">{tool.name}</Badge>}
          {!tool.enabled && <Badge>switched off</Badge>}
        </div>
        <p className="mt-1 text-sm text-faint">
          Server{" "}
          <Link to="/servers/$id" params={{ id: server.id! }} className="text-accent underline">
            {server.name}
          </Link>
          {definition?.title && ` · ${definition.title}`}
        </p>
        {(definition?.description ?? tool.description) && <p className="mt-2 max-w-prose text-sm break-words whitespace-pre-line text-muted">{definition?.description ?? tool.description}</p>}
      </header>
      {tool.kept_back && <Notice tone="warn" actions={<Link to={"/approvals" as never} className="font-medium underline">See the change</Link>}>{tool.kept_back}</Notice>}
      {known.error ? (
        <Notice tone="bad" actions={<Button onClick={() => void known.refetch()}>Try again</Button>}>
          {message(known.error)}
        </Notice>
      ) : known.isPending ? (
        <Skeleton rows={3} />
      ) : (
        <Runner server={server} tool={tool} definition={definition ?? { name: tool.native, inputSchema: { type: "object" } }} />
      )}
      <Changes server={server} tool={tool.native} />
    </article>
  );
}

function Runner({ server, tool, definition }: { server: Server; tool: Tool; definition: Definition }) {
  const [args, setArgs] = useState<Params>({});
  const [text, setText] = useState("{}");
  const [view, setView] = useState<"form" | "json" | "schema">("form");
  const [wrong, setWrong] = useState<string>();
  const [stage, setStage] = useState<Stage>({ at: "rest" });
  const [progress, setProgress] = useState<Progress>();
  const [lines, setLines] = useState<LogLine[]>([]);
  const [mine, setMine] = useState<Saved[]>(() => saved().filter((one) => one.server === server.id && one.tool === tool.native));
  const going = useRef<AbortController>(null);
  useEffect(() => () => going.current?.abort(), []);
  const [hasForm, setHasForm] = useState(false);
  useEffect(() => void loadForm().then(() => setHasForm(true)), []);

  const change = (next: "form" | "json" | "schema") => {
    if (next === "json" && view === "form") setText(pretty(args));
    setView(next);
  };
  /** Returns the current arguments, or undefined if the JSON is invalid. */
  const now = (): Params | undefined => {
    if (view !== "json") return args;
    try {
      const parsed = JSON.parse(text) as unknown;
      if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) throw new Error("The arguments have to be a JSON object.");
      setWrong(undefined);
      setArgs(parsed as Params);
      return parsed as Params;
    } catch (error) {
      setWrong(message(error));
      return undefined;
    }
  };

  const go = async (params: Params) => {
    going.current?.abort();
    const over = (going.current = new AbortController());
    const since = performance.now();
    setStage({ at: "running", since });
    setProgress(undefined);
    const us = () => Math.round((performance.now() - since) * 1000);
    try {
      const ended = await run(server.id!, "tools/call", params, over.signal, {
        progress: setProgress,
        log: (line) => setLines((old) => [...old, line].slice(-MAX_LOG_LINES)),
      });
      if (over.signal.aborted) return;
      if ("problem" in ended) setStage({ at: "failed", problem: ended.problem, us: us() });
      else if (ended.result.resultType === "input_required") setStage({ at: "asked", result: ended.result, since });
      else setStage({ at: "done", result: ended.result, args: params["arguments"] as Params, run: since, us: us() });
    } catch (error) {
      if (over.signal.aborted) return;
      setStage({ at: "failed", problem: { detail: message(error) }, us: us() });
    }
  };
  const start = (given: Params) => {
    // The gateway would refuse the call.
    if (tool.kept_back) return;
    setLines([]);
    void go({ name: tool.native, arguments: given });
  };
  const stop = () => {
    going.current?.abort();
    setStage({ at: "failed", problem: { detail: "You stopped this call. The server was notified." }, us: 0 });
  };
  const put = (given: Params) => {
    setArgs(given);
    setText(pretty(given));
  };
  const save = () => {
    const given = now();
    if (!given) return;
    const one: Saved = { id: crypto.randomUUID(), label: JSON.stringify(given).slice(0, 80), server: server.id!, tool: tool.native, arguments: given };
    keep([one, ...saved()]);
    setMine((old) => [one, ...old]);
    toast("The call is saved in this browser.");
  };
  const forget = (id: string) => {
    keep(saved().filter((one) => one.id !== id));
    setMine((old) => old.filter((one) => one.id !== id));
  };
  const copied = (what: string) => void copy(what).then((done) => (done ? toast("Copied.") : toast("The browser does not allow this page to copy.", true)));
  const app = appOf(definition);
  const isRunning = stage.at === "running";
  const form = useMemo(() => `try-${tool.native.replace(/\W/g, "-")}`, [tool.native]);

  return (
    <div className="grid gap-4 2xl:grid-cols-2 2xl:items-start">
      <Panel
        title={<Chips label="How the arguments are written" value={view} onChange={change} choices={[["form", "Form"], ["json", "JSON"], ["schema", "Schema"]]} />}
        actions={
          <div className="flex items-center gap-1">
            <Button look="quiet" aria-label="Save this call" title="Save this call" icon={<Bookmark />} onClick={save} />
            <Menu
              trigger={<Button look="quiet" aria-label="Copy this call" icon={<Terminal />}><ChevronDown /></Button>}
              items={[
                { label: "Copy as curl", onSelect: () => copied(asCurl(server.id!, tool.native, now() ?? {})) },
                { label: "Copy as command", onSelect: () => copied(asCommand(server.name!, server.project, tool.native, now() ?? {})) },
                { label: "Copy the arguments", onSelect: () => copied(pretty(now() ?? {})) },
              ]}
            />
            {tool.kept_back ? (
              <Go to="/approvals" icon={<ShieldAlert />}>
                Kept back
              </Go>
            ) : isRunning ? (
              <Button icon={<Square />} onClick={stop}>
                Stop
              </Button>
            ) : view === "form" ? (
              <Button look="solid" icon={<Play />} type="submit" form={form} disabled={!hasForm}>
                Run
              </Button>
            ) : (
              <Button look="solid" icon={<Play />} onClick={() => { const given = now(); if (given) start(given); }}>
                Run
              </Button>
            )}
          </div>
        }
      >
        <div className="p-3.5">
          {view === "form" && <SchemaForm rows={3} id={form} schema={definition.inputSchema} value={args} onChange={setArgs} onSubmit={start} />}
          {view === "json" && (
            <div className="flex flex-col gap-2">
              <Json label="Arguments" value={text} onChange={setText} />
              {wrong && <Notice tone="bad">{wrong}</Notice>}
            </div>
          )}
          {view === "schema" && (
            <div className="flex flex-col gap-3">
              <Json label="Schema of the arguments" value={pretty(definition.inputSchema)} />
              {definition.outputSchema && (
                <>
                  <h3 className="text-sm font-medium">Structured result</h3>
                  <Json label="Schema of the structured result" value={pretty(definition.outputSchema)} />
                </>
              )}
            </div>
          )}
        </div>
        {!!mine.length && (
          <ul aria-label="Saved calls" className="border-t">
            {mine.map((one) => (
              <li key={one.id} className="flex items-center gap-1 border-b px-2 last:border-0">
                <button type="button" className="min-w-0 flex-1 truncate py-2 pl-1.5 text-left font-mono text-xs text-muted hover:text-text" onClick={() => put(one.arguments)}>
                  {one.label}
                </button>
                <Button look="quiet" aria-label="Run it again" icon={<Play />} disabled={!!tool.kept_back} onClick={() => (put(one.arguments), start(one.arguments))} />
                <Button look="quiet" aria-label="Delete it" icon={<Trash2 />} onClick={() => forget(one.id)} />
              </li>
            ))}
          </ul>
        )}
      </Panel>
      <section aria-label="Run" aria-live="polite" className="flex min-w-0 flex-col gap-3">
        {isRunning && <Running progress={progress} />}
        {stage.at === "asked" && (
          <Questions
            result={stage.result}
            onAnswer={(inputResponses) =>
              void go({ name: tool.native, arguments: args, inputResponses, ...(stage.result.requestState === undefined ? {} : { requestState: stage.result.requestState }) })
            }
          />
        )}
        {stage.at === "failed" && <Failed problem={stage.problem} />}
        {stage.at === "done" && (
          <>
            <div className="flex items-center gap-2 text-sm">
              <Badge tone={stage.result.isError ? "bad" : "ok"}>{stage.result.isError ? "the tool failed" : "ok"}</Badge>
              <span className="tabular text-faint">{micros(stage.us)}</span>
            </div>
            <ResultView result={stage.result} />
            {app && <AppView key={stage.run} server={server.id!} definition={definition} uri={app} args={stage.args} result={stage.result} />}
          </>
        )}
        {!!lines.length && (
          <Panel title="Log messages of this call">
            <ul className="max-h-48 overflow-y-auto px-3.5 py-2 font-mono text-xs leading-5">
              {lines.map((line, at) => (
                <li key={at} className="break-all">
                  <span className="text-faint">{line.level}</span> {typeof line.data === "string" ? line.data : JSON.stringify(line.data)}
                </li>
              ))}
            </ul>
          </Panel>
        )}
      </section>
    </div>
  );
}

function Running({ progress }: { progress: Progress | undefined }) {
  const total = progress?.total;
  return (
    <div className="flex flex-col gap-2 rounded-lg border bg-panel px-3.5 py-3 text-sm">
      <div className="flex items-center justify-between gap-3">
        <span className="font-medium">{progress?.message ?? "Running"}</span>
        {progress && (
          <span className="tabular text-faint">
            {progress.progress}
            {total !== undefined && ` of ${total}`}
          </span>
        )}
      </div>
      <div role="progressbar" aria-label="Progress" {...(total ? { "aria-valuenow": progress!.progress, "aria-valuemax": total } : {})} className="h-1 overflow-hidden rounded-full bg-raised">
        <div className={total ? "h-full bg-accent transition-[width]" : "h-full w-1/3 pulse-dot bg-accent"} style={total ? { width: `${Math.min(100, (100 * progress!.progress) / total)}%` } : {}} />
      </div>
    </div>
  );
}

function Failed({ problem }: { problem: Partial<Schemas["Problem"]> }) {
  return (
    <>
      <Notice tone="bad">{problem.detail ?? problem.title ?? "The call failed."}</Notice>
      {problem.mcp && <Json label="The server's error" value={pretty(problem.mcp)} />}
    </>
  );
}
