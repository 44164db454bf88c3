import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { RotateCcw } from "lucide-react";
import { useState } from "react";

import { call as callQuery } from "@/api/calls";
import { useChange, type Schemas } from "@/api/client";
import { servers } from "@/api/queries";
import { ownerOf } from "@/api/tools";
import { micros } from "@/lib";
import { asJson, CopyButton, Json } from "@/ui/json";
import { useTitle } from "@/ui/media";
import { Crumbs } from "@/ui/navigation";
import { Confirm } from "@/ui/overlay";
import { Badge, Button, Fact, Facts, Missing, Notice, Panel } from "@/ui/parts";
import { ResultView } from "../tools/result";
import { run, type Ended } from "../tools/run";
import { RecordButton, RecordingNotice } from "@/ui/recording";
import { statusWord, TONES } from "./calls";

const route = getRouteApi("/calls/$call");

export function CallPage() {
  const { call: id } = route.useParams();
  const { data, error, refetch } = useQuery(callQuery(id));
  useTitle(data ? `${data.server}/${data.tool}` : "Call");
  if (!data) return <Missing error={error} retry={refetch} />;
  return <Shown call={data} />;
}

function Shown({ call }: { call: Schemas["WholeCall"] }) {
  const change = useChange("calls", "one", call.id);
  const known = useQuery(servers);
  const server = ownerOf({ server: call.server, project: call.project ?? null }, known.data);
  const [asking, setAsking] = useState(false);
  const [again, setAgain] = useState<Ended>();
  const replay = async () => {
    const given = JSON.parse(call.arguments!) as Record<string, unknown>;
    const made = run(server!.id!, "tools/call", { name: call.tool, arguments: given }, AbortSignal.timeout(600_000), { progress: () => {}, log: () => {} }, call.id);
    await change(made.then(setAgain));
  };
  return (
    <article>
      <header className="flex flex-wrap items-center gap-x-4 gap-y-2 border-b px-4 py-3 md:px-6">
        <div className="min-w-0 basis-full sm:flex-1 sm:basis-auto">
          <Crumbs to="/calls" list="Calls">
            <span className="truncate font-mono">{call.id}</span>
          </Crumbs>
          <div className="flex flex-wrap items-center gap-3">
            <h1 className="font-mono text-lg font-semibold break-all">
              <span className="font-normal text-faint">{call.server}/</span>
              {call.tool}
            </h1>
            <Badge tone={TONES[call.status] ?? "plain"}>{statusWord(call.status)}</Badge>
          </div>
        </div>
        <div className="flex gap-2">
          {server && (
            <Link to="/tools" search={{ server: server.id, tool: call.tool } as never} className="inline-flex h-8 items-center rounded-md border border-edge bg-panel px-2.5 text-sm font-medium hover:bg-hover">
              Open the tool
            </Link>
          )}
          <Button icon={<RotateCcw />} disabled={!call.arguments || !server} title={call.arguments ? undefined : "The arguments of this call were not recorded"} onClick={() => setAsking(true)}>
            Replay
          </Button>
        </div>
      </header>
      <div className="grid gap-4 p-4 md:p-6 xl:grid-cols-[2fr_3fr] xl:items-start">
        <div className="flex flex-col gap-4">
          <Panel title="Timeline">
            <Timeline call={call} />
          </Panel>
          <Panel title="Record">
            <Facts>
              <Fact name="Caller"><span title={call.caller} className="break-all">{call.caller_name || call.caller}</span></Fact>
              {call.project && <Fact name="Project">{call.project}</Fact>}
              {call.replay_of && <Fact name="Replay of"><CallLink id={call.replay_of} /></Fact>}
              {!!call.replays?.length && (
                <Fact name="Replayed as">
                  <ul>
                    {call.replays.map((id) => (
                      <li key={id}>
                        <CallLink id={id} />
                      </li>
                    ))}
                  </ul>
                </Fact>
              )}
              {call.run && <Fact name="Agent run"><code className="break-all">{call.run}</code></Fact>}
              <Fact name="Arguments (digest)"><Digest of={call.arguments_digest} /></Fact>
              {call.result_digest && <Fact name="Result (digest)"><Digest of={call.result_digest} /></Fact>}
            </Facts>
          </Panel>
        </div>
        <div className="flex min-w-0 flex-col gap-4">
          {call.error && <Notice tone="bad">{call.error}</Notice>}
          {again && (
            <Panel title="Replayed just now" inner="p-3.5">
              {"result" in again ? <ResultView result={again.result} /> : <Notice tone="bad">{again.problem.detail ?? "It failed."}</Notice>}
            </Panel>
          )}
          <Body title="Arguments" text={call.arguments} />
          {call.finished_at && <Body title="Result" text={call.result} />}
          {call.arguments == null && (
            <Notice actions={server && !server.bodies_recorded_until && <RecordButton server={server} />}>
              The arguments and the result were not recorded. Set <code>bodies = "full"</code> under <code>[audit]</code> in toolwharf.toml to record them always.
            </Notice>
          )}
          {server && <RecordingNotice server={server} />}
        </div>
      </div>
      <Confirm open={asking} onClose={() => setAsking(false)} title={`Call ${call.tool} again?`} action="Call it" look="solid" onConfirm={replay}>
        The server <strong className="text-text">{call.server}</strong> gets the same arguments again, on your behalf. The tool repeats everything that it does.
      </Confirm>
    </article>
  );
}

const Digest = ({ of }: { of: string }) => <code title={of} className="break-all text-muted">{of.slice(0, 24)}…</code>;

function Body({ title, text }: { title: string; text?: string | null | undefined }) {
  if (text == null) return null;
  const shown = asJson(text) ?? text;
  return (
    <Panel title={title} actions={<CopyButton label={`Copy: ${title}`} text={text} />} inner="p-2">
      <Json label={title} value={shown.slice(0, 200_000)} />
    </Panel>
  );
}

const CallLink = ({ id }: { id: string }) => (
  <Link to="/calls/$call" params={{ call: id }} className="font-mono text-xs break-all text-accent underline">
    {id}
  </Link>
);

type Span = { name: string; from: number; to: number; hue: string; more?: string };

/** The phases of a call, in microseconds since its start. Phases missing in older records are left out. */
function spans(call: Schemas["WholeCall"]): Span[] {
  const { turn_us: turn, sent_us: sent, answered_us: answered, duration_us: end } = call;
  const questions = call.questions ? `The server asked for input ${call.questions === 1 ? "once" : `${call.questions} times`}.` : "";
  const found: Span[] = [];
  const add = (name: string, from: number | null | undefined, to: number | null | undefined, hue: string, more?: string) => {
    if (from != null && to != null) found.push({ name, from, to: Math.max(from, to), hue, ...(more ? { more } : {}) });
  };
  add("Waiting for its turn", 0, turn ?? (end != null && sent == null && call.questions != null ? end : null), "fill-warn");
  add("Sent to the server", turn, sent, "fill-accent");
  add(answered == null ? "The server did not answer" : "The server worked on it", sent, answered ?? end, answered == null ? "fill-bad" : "fill-info", questions);
  add("Returned to the client", answered, end, "fill-ok");
  return found;
}

function Timeline({ call }: { call: Schemas["WholeCall"] }) {
  const parts = spans(call);
  const whole = Math.max(1, call.duration_us ?? 0, ...parts.map((part) => part.to));
  const last = call.finished_at
    ? { name: call.status === "ok" ? "Answered" : `Ended: ${statusWord(call.status)}`, hue: call.status === "ok" ? "bg-ok" : "bg-bad" }
    : { name: call.status === "open" ? "In progress" : "Outcome unknown", hue: "bg-warn" };
  return (
    <div className="flex flex-col gap-3 px-4 py-3 text-sm">
      <p>
        <span className="font-medium">Request received</span> <span className="tabular text-xs text-faint">{call.started_at}</span>
      </p>
      {!!parts.length && (
        <ol aria-label="Phases" className="flex flex-col gap-2">
          {parts.map((part) => (
            <li key={part.name}>
              <div className="flex justify-between gap-3">
                <span>
                  {part.name}
                  {part.more && <span className="text-muted">. {part.more}</span>}
                </span>
                <span className="tabular shrink-0 text-faint">{micros(part.to - part.from)}</span>
              </div>
              <svg aria-hidden viewBox="0 0 1000 8" preserveAspectRatio="none" className="mt-0.5 h-2 w-full rounded-full bg-raised">
                <rect x={(1000 * part.from) / whole} width={Math.max(4, (1000 * (part.to - part.from)) / whole)} height="8" className={part.hue} />
              </svg>
            </li>
          ))}
        </ol>
      )}
      <p>
        <span aria-hidden className={`mr-2 inline-block size-2.5 rounded-full ${last.hue}`} />
        <span className="font-medium">{last.name}</span>{" "}
        <span className="tabular text-xs text-faint">
          {call.finished_at}
          {call.duration_us != null && <span className="text-text"> · after {micros(call.duration_us)}</span>}
        </span>
      </p>
    </div>
  );
}
