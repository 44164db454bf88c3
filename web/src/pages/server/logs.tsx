// A server's stderr, live. At most MAX_LINES lines are kept, and rendered once per frame.
import { useVirtualizer } from "@tanstack/react-virtual";
import { ArrowDown, Download, Pause, Play, ScrollText, Trash2 } from "lucide-react";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";

import { api, ok } from "@/api/client";
import { events } from "@/api/sse";
import { count, cx, moment, plural, save } from "@/lib";
import { Button, Empty, message, Notice, SearchBox } from "@/ui/parts";

const MAX_LINES = 100_000;
/** More than the gateway keeps. */
const TAIL_LINES = 10_000;
/** Longer lines are truncated for display, but searched in full. */
const MAX_SHOWN_CHARS = 4_000;

/** `at`: when the line arrived (RFC 3339). */
type Line = { at: string; text: string; notice: boolean; number: number };

/** Length of the time that the gateway puts in front of each line. */
const STAMP_CHARS = "2026-01-01T00:00:00.000Z".length;

const written = (line: Line) => `${line.at} ${line.notice ? "-- " : ""}${line.text}\n`;

export function Logs({ id, name }: { id: string; name: string }) {
  const [lines, setLines] = useState<Line[]>([]);
  const [error, setError] = useState<string>();
  const [isOpen, setIsOpen] = useState(false);
  const [paused, setPaused] = useState(false);
  const [typed, setTyped] = useState("");
  const arrived = useRef<Line[]>([]);
  const number = useRef(0);
  /** The number of the first line that is shown. Earlier ones were cleared, and are only downloaded. */
  const [from, setFrom] = useState(0);
  const isPaused = useRef(paused);
  isPaused.current = paused;

  useEffect(() => {
    const over = new AbortController();
    let frame = 0;
    setLines([]);
    setFrom(0);
    number.current = 0;
    arrived.current = [];
    const draw = () => {
      frame = 0;
      if (isPaused.current || !arrived.current.length) return;
      const fresh = arrived.current;
      arrived.current = [];
      setLines((old) => (old.length + fresh.length > MAX_LINES ? [...old, ...fresh].slice(-MAX_LINES * 0.9) : [...old, ...fresh]));
    };
    const read = async () => {
      const params = { path: { id }, query: { follow: true, tail: TAIL_LINES, timestamps: true } };
      const stream = await ok(api.GET("/api/v1/mcp/servers/{id}/logs", { params, signal: over.signal, parseAs: "stream" }));
      setIsOpen(true);
      for await (const { event, data } of events(stream)) {
        const [at, text] = [data.slice(0, STAMP_CHARS), data.slice(STAMP_CHARS + 1)];
        arrived.current.push({ at, text, notice: event === "notice", number: number.current++ });
        if (arrived.current.length > MAX_LINES) arrived.current.splice(0, MAX_LINES / 10);
        frame ||= requestAnimationFrame(draw);
      }
    };
    read().catch((failed: unknown) => over.signal.aborted || setError(message(failed)));
    return () => {
      over.abort();
      cancelAnimationFrame(frame);
    };
  }, [id]);

  const resume = useCallback(() => {
    setPaused(false);
    const fresh = arrived.current;
    arrived.current = [];
    setLines((old) => [...old, ...fresh].slice(-MAX_LINES));
  }, []);

  const words = typed.toLowerCase();
  // Also those that wait for the page to be resumed.
  const download = () => save(`${name}.log`, [...lines, ...arrived.current].map(written));
  const uncleared = useMemo(() => (from ? lines.slice(Math.max(0, from - (lines[0]?.number ?? 0))) : lines), [lines, from]);
  const shown = useMemo(() => (words ? uncleared.filter((line) => line.text.toLowerCase().includes(words)) : uncleared), [uncleared, words]);

  const area = useRef<HTMLDivElement>(null);
  const [following, setFollowing] = useState(true);
  const rows = useVirtualizer({ count: shown.length, estimateSize: () => 20, getScrollElement: () => area.current, overscan: 30, getItemKey: (at) => shown[at]!.number });
  useEffect(() => {
    if (following && shown.length) rows.scrollToIndex(shown.length - 1, { align: "end" });
  }, [shown, following, rows]);

  return (
    <div className="flex min-h-[24rem] flex-1 flex-col">
      <div className="flex flex-wrap items-center gap-2 border-b px-4 py-2 md:px-6">
        <SearchBox value={typed} onChange={setTyped} placeholder="Search the log" className="w-full flex-1 sm:max-w-80" />
        <span className="tabular flex-1 text-xs text-faint" role="status">
          {words ? `${count(shown.length)} of ${plural(uncleared.length, "line")}` : plural(uncleared.length, "line")}
        </span>
        <Button look="quiet" icon={paused ? <Play /> : <Pause />} onClick={() => (paused ? resume() : setPaused(true))}>
          {paused ? "Resume" : "Pause"}
        </Button>
        <Button look="quiet" icon={<Trash2 />} title="Empties this view. The log itself stays." onClick={() => setFrom((lines.at(-1)?.number ?? -1) + 1)}>
          Clear
        </Button>
        <Button look="quiet" icon={<Download />} disabled={!lines.length} onClick={download}>
          Download
        </Button>
      </div>
      {error && (
        <div className="p-4">
          <Notice tone="bad">{error}</Notice>
        </div>
      )}
      {!uncleared.length && !error && isOpen && <Empty icon={<ScrollText />} title="Nothing written yet">What the server writes to its standard error appears here.</Empty>}
      <div className="relative min-h-0 flex-1">
        <div
          ref={area}
          tabIndex={0}
          role="log"
          aria-label="Log"
          aria-live="off"
          onScroll={(event) => {
            const at = event.currentTarget;
            setFollowing(at.scrollHeight - at.scrollTop - at.clientHeight < 40);
          }}
          className="absolute inset-0 overflow-y-auto bg-panel py-1"
        >
          <div style={{ height: rows.getTotalSize(), position: "relative" }}>
            {rows.getVirtualItems().map((row) => {
              const line = shown[row.index]!;
              return (
                <div
                  key={row.key}
                  ref={rows.measureElement}
                  data-index={row.index}
                  style={{ transform: `translateY(${row.start}px)` }}
                  className={cx("absolute inset-x-0 top-0 flex gap-x-3 px-4 font-mono text-xs leading-5 md:px-6", line.notice ? "text-info italic" : hue(line.text))}
                >
                  <time dateTime={line.at} title={line.at} className="tabular shrink-0 text-faint not-italic">
                    {moment(line.at)}
                  </time>
                  <span className="min-w-0 flex-1 break-all whitespace-pre-wrap">
                    {line.text.length > MAX_SHOWN_CHARS ? `${line.text.slice(0, MAX_SHOWN_CHARS)}… (${count(line.text.length)} characters)` : line.text || " "}
                  </span>
                </div>
              );
            })}
          </div>
        </div>
        {!following && shown.length > 0 && (
          <Button className="absolute right-4 bottom-4 shadow-lg" icon={<ArrowDown />} onClick={() => setFollowing(true)}>
            Newest
          </Button>
        )}
      </div>
    </div>
  );
}

function hue(text: string): string {
  if (/\b(error|fatal|panic|exception|traceback)\b/i.test(text.slice(0, 400))) return "text-bad";
  if (/\bwarn(ing)?\b/i.test(text.slice(0, 400))) return "text-warn";
  return "";
}
