// The tokens of the list of tools: with all tools, and in search mode.
import type { Schemas } from "@/api/client";
import { count, cx } from "@/lib";
import { Badge, Panel, Quoted } from "@/ui/parts";

/** The scope in which to change the list: a project or the whole gateway. Unknown to keys that may not change it. */
export type Place = "project" | "gateway" | "unknown";

/** How to change it to another value of the setting `tools`. */
const CHANGES: Record<Place, (other: string) => string> = {
  project: () => "The settings below change that.",
  gateway: (other) => `To change that, set \`tools = "${other}"\` in \`toolwharf.toml\`.`,
  unknown: () => "An administrator can change that.",
};

export function Tokens({ of: { all, search, is_search }, place }: { of: Schemas["ListTokens"]; place: Place | undefined }) {
  const saved = all - search;
  const other = is_search ? "all" : "search";
  const most = Math.max(all, search, 1);
  return (
    <Panel title="Tokens of the list" inner="flex flex-col gap-4 p-3.5">
      {saved > 0 ? (
        <p className="text-sm text-muted">
          <span className="tabular block text-xl font-semibold text-text">{percent(saved, all)} fewer tokens</span>
          Search mode saves about {count(saved)} tokens in each conversation.
        </p>
      ) : (
        <p className="text-sm text-muted">
          <span className="block text-xl font-semibold text-text">Nothing to save</span>
          {all ? "The list of all tools is so short that search mode would need more tokens." : "There are no tools yet."}
        </p>
      )}
      <dl className="flex flex-col gap-3">
        <Length label="All tools" tokens={all} most={most} isNow={!is_search} color="bg-edge" />
        <Length label="Search mode" tokens={search} most={most} isNow={is_search} color="bg-accent" />
      </dl>
      <p className="text-sm text-muted">
        {is_search ? "Clients get the short list now." : "Clients get the list of all tools now."} {place && <Quoted text={CHANGES[place](other)} />}
      </p>
      <p className="text-sm text-muted">
        A client can ask for the other list itself: with the header <code className="whitespace-nowrap">X-Toolwharf-Tools: {other}</code>, or <code className="whitespace-nowrap">toolwharf stdio --tools {other}</code>.
      </p>
    </Panel>
  );
}

/** Rounded down, so that it is 100 % only if nothing is left. */
const percent = (part: number, whole: number) => `${Math.floor((100 * part) / whole)} %`;

function Length({ label, tokens, most, isNow, color }: { label: string; tokens: number; most: number; isNow: boolean; color: string }) {
  return (
    <div className="grid grid-cols-[1fr_auto] items-center gap-x-3 gap-y-1.5 text-sm">
      <dt className="flex items-center gap-2 font-medium">
        {label}
        {isNow && <Badge tone="accent">what clients get</Badge>}
      </dt>
      <dd className="tabular">{count(tokens)}</dd>
      <div aria-hidden className="col-span-2 h-2.5 rounded-sm bg-raised">
        <div className={cx("h-full min-w-0.5 rounded-sm", color)} style={{ width: `${(100 * tokens) / most}%` }} />
      </div>
    </div>
  );
}
