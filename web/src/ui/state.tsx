// A server's state as one word and one colour.
import type { Server } from "@/api/client";
import { cx } from "@/lib";
import type { Tone } from "./parts";

const TONE_OF: Record<string, Tone> = {
  running: "ok",
  idle: "plain",
  starting: "info",
  stopping: "info",
  backoff: "bad",
  failed: "bad",
  unavailable: "bad",
  unusable: "bad",
  blocked: "warn",
  unresponsive: "warn",
  needs_login: "warn",
  stopped: "plain",
  disabled: "plain",
};

export const WORDS: Record<string, string> = {
  running: "Running",
  idle: "Idle",
  starting: "Starting",
  stopping: "Stopping",
  backoff: "Restarting later",
  failed: "Failed",
  unavailable: "Unavailable",
  unusable: "Unusable",
  blocked: "Blocked",
  unresponsive: "Unresponsive",
  needs_login: "Needs sign-in",
  stopped: "Stopped",
  disabled: "Off",
};

const DOTS: Record<Tone, string> = {
  ok: "bg-ok",
  warn: "bg-warn",
  bad: "bg-bad",
  info: "bg-info",
  accent: "bg-accent",
  plain: "bg-edge",
};

export const tone = (status: string | undefined): Tone => TONE_OF[status ?? ""] ?? "plain";
export const word = (status: string | undefined) => WORDS[status ?? ""] ?? status ?? "";

export function Dot({ status, className }: { status: string | undefined; className?: string }) {
  const moving = status === "starting" || status === "stopping";
  return <span aria-hidden className={cx("inline-block size-2 shrink-0 rounded-full", DOTS[tone(status)], moving && "pulse-dot", className)} />;
}

export function State({ server }: { server: Server }) {
  const hue = { ok: "text-ok", warn: "text-warn", bad: "text-bad", info: "text-info", accent: "text-accent", plain: "text-muted" }[tone(server.status)];
  return (
    <span className={cx("inline-flex items-center gap-2 text-sm font-medium whitespace-nowrap", hue)}>
      <Dot status={server.status} />
      {word(server.status)}
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
