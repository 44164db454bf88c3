// Links that come from servers, models and Apps. Every one of them is drawn or opened here, so that one that leads to this computer or its
// network asks first.
import { useState, useSyncExternalStore, type ReactNode } from "react";

import { isLocal } from "./local";
import { Confirm } from "./overlay";

const WEB = /^https?:/i;
const SAFE = /^(https?|mailto):/i;
const WARNING = "This address is on your computer or in your network. A program there may do something just because you open it. Open it only if you know what it is.";

type Question = { url: string; decide: (allowed: boolean) => void };

let question: Question | undefined;
const listeners = new Set<() => void>();
const change = (to: Question | undefined) => {
  question = to;
  listeners.forEach((listener) => listener());
};

/** Asks in a dialog. A question that is open already is not replaced: the new one counts as refused. */
function ask(url: string): Promise<boolean> {
  if (question) return Promise.resolve(false);
  return new Promise((decide) => change({ url, decide: (allowed) => (change(undefined), decide(allowed)) }));
}

/** Whether a link can be opened at all. */
export const isLink = (url: string | undefined): url is string => !!url && SAFE.test(url) && URL.canParse(url);

/**
 * Opens a page of the web in a new tab; whether it did. An address on this computer or its network asks first. `decide` asks in another
 * way, and for every address.
 */
export async function openOutside(url: string, decide?: (url: string, warning: string | undefined) => Promise<boolean>): Promise<boolean> {
  if (!WEB.test(url) || !URL.canParse(url)) return false;
  const warning = isLocal(url) ? WARNING : undefined;
  if (decide ? !(await decide(url, warning)) : warning && !(await ask(url))) return false;
  open(url, "_blank", "noopener,noreferrer");
  return true;
}

/** A link. One that asks first is a button, so that no way of opening a link (a middle click, the context menu, dragging) goes past the question. */
export function Outside({ href, className, label, children }: { href: string; className?: string; label?: string; children?: ReactNode }) {
  if (isLocal(href) && WEB.test(href))
    return (
      <button type="button" role="link" aria-label={label} className={className ?? "outside"} onClick={() => void openOutside(href)}>
        {children}
      </button>
    );
  return (
    <a href={href} target="_blank" rel="noopener noreferrer" aria-label={label} className={className}>
      {children}
    </a>
  );
}

/** The dialog, once for all pages. */
export function AskOutside() {
  const asked = useSyncExternalStore(
    (listener) => (listeners.add(listener), () => listeners.delete(listener)),
    () => question,
  );
  const [last, setLast] = useState<string>();
  if (asked && asked.url !== last) setLast(asked.url);
  return (
    <Confirm open={!!asked} onOpenChange={(open) => !open && asked?.decide(false)} title="Open an address on your computer or network?" action="Open it" look="solid" onConfirm={() => asked?.decide(true)}>
      <p>A server or a model gave this link:</p>
      <p className="my-2 rounded-md border bg-raised px-3 py-2 font-mono text-xs break-all text-text">{asked?.url ?? last}</p>
      <p>{WARNING}</p>
    </Confirm>
  );
}
