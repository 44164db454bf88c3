// A server's state as one word and one colour.
import type { Server } from "@/api/client";
import { cx, plural } from "@/lib";
import type { Tone } from "./parts";

const STATES: Record<string, [word: string, tone: Tone]> = {
  running: ["Running", "ok"],
  idle: ["Idle", "plain"],
  starting: ["Starting", "info"],
  restarting: ["Restarting", "info"],
  stopping: ["Stopping", "info"],
  backoff: ["Failed, retrying", "bad"],
  failed: ["Failed", "bad"],
  unavailable: ["Unavailable", "bad"],
  unusable: ["Invalid entry", "bad"],
  blocked: ["Blocked", "warn"],
  unresponsive: ["Unresponsive", "warn"],
  needs_login: ["Needs sign-in", "warn"],
  stopped: ["Stopped", "plain"],
  disabled: ["Off", "plain"],
  unknown: ["Unknown", "warn"],
};

/** The colours of each tone, for the dot and for the text. */
const HUES: Record<Tone, [dot: string, text: string]> = {
  ok: ["bg-ok", "text-ok"],
  warn: ["bg-warn", "text-warn"],
  bad: ["bg-bad", "text-bad"],
  info: ["bg-info", "text-info"],
  accent: ["bg-accent", "text-accent"],
  plain: ["bg-edge", "text-muted"],
};

export const tone = (status: string | undefined): Tone => STATES[status ?? ""]?.[1] ?? "plain";
export const word = (status: string | undefined) => STATES[status ?? ""]?.[0] ?? status ?? "";

export function Dot({ status, className }: { status: string | undefined; className?: string }) {
  const moving = ["starting", "restarting", "stopping"].includes(status ?? "");
  return <span aria-hidden className={cx("inline-block size-2 shrink-0 rounded-full", HUES[tone(status)][0], moving && "pulse-dot", className)} />;
}

/** The state of a server. A running server is not green while some of its tools are kept back. */
export function State({ server }: { server: Server }) {
  const isHeld = server.status === "running" && !!server.kept_back;
  return (
    <span className={cx("inline-flex items-center gap-2 text-sm font-medium whitespace-nowrap", isHeld ? HUES.warn[1] : HUES[tone(server.status)][1])}>
      {isHeld ? <Dot status="blocked" /> : <Dot status={server.status} />}
      {isHeld ? `${plural(server.kept_back!, "tool")} kept back` : word(server.status)}
    </span>
  );
}

/** Returns the uptime in seconds. */
export function uptime(server: Server, now: number): number | undefined {
  if (server.uptime_seconds == null) return undefined;
  return server.uptime_seconds + Math.max(0, now - (server.seen ?? now)) / 1000;
}

/** Returns the seconds until the next start attempt. */
export function wait(server: Server, now: number): number | undefined {
  if (server.next_attempt_ms == null) return undefined;
  return Math.max(0, Math.ceil((server.next_attempt_ms - (now - (server.seen ?? now))) / 1000));
}
