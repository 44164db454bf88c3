import { useQuery } from "@tanstack/react-query";
import { History } from "lucide-react";

import { serverEvents } from "@/api/queries";
import { cx, moment } from "@/lib";
import { Empty, Missing } from "@/ui/parts";

type Detail = Record<string, unknown> & { message?: string; stderr?: string };

/** Formats the event details that are not part of its message. */
function rest({ message: _, stderr: __, name: ___, ...more }: Detail): string {
  return Object.entries(more)
    .filter(([, value]) => value !== null && value !== "" && value !== false && typeof value !== "object")
    .map(([key, value]) => `${key}: ${String(value)}`)
    .join(" · ");
}

const HUES: Record<string, string> = { ready: "bg-ok", crashed: "bg-bad", backoff: "bg-warn", failed: "bg-bad", blocked: "bg-warn" };

/** Words for kinds of events that do not explain themselves. */
const WORDS: Record<string, string> = { backoff: "will retry" };

export function ServerEvents({ id }: { id: string }) {
  const { data, error, refetch } = useQuery(serverEvents(id));
  if (!data) return <Missing error={error} retry={refetch} />;
  if (!data.length) return <Empty icon={<History />} title="Nothing has happened yet">Starts, exits, changes and approvals are recorded here.</Empty>;
  return (
    <ol aria-label="Events" className="px-5 py-4 md:px-7">
      {data.map((one) => {
        const detail = one.detail as Detail;
        return (
          <li key={one.id} className="relative grid grid-cols-[5.5rem_1fr] gap-x-3 border-l-2 pb-3 pl-4 text-sm last:pb-0 sm:grid-cols-[6.5rem_8rem_1fr]">
            <span aria-hidden className={cx("absolute top-1 -left-[6px] size-2.5 rounded-full border-2 border-bg", HUES[one.kind] ?? "bg-edge")} />
            <time dateTime={one.at} title={one.at} className="tabular text-faint">
              {moment(one.at)}
            </time>
            <span className="font-medium">{WORDS[one.kind] ?? one.kind.replaceAll("_", " ")}</span>
            <div className="col-span-2 min-w-0 sm:col-span-1">
              <p className="break-words text-muted">{detail.message ?? rest(detail)}</p>
              {detail.stderr && <pre className="mt-1 max-h-40 overflow-auto rounded-md bg-raised px-2.5 py-1.5 text-xs leading-5 whitespace-pre-wrap break-all">{detail.stderr}</pre>}
            </div>
          </li>
        );
      })}
    </ol>
  );
}
