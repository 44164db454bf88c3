// Links from servers, models and Apps. All of them are rendered or opened here, so that a link to this computer or its network
// opens only after a confirmation.
import { useState, type ReactNode } from "react";

import { store } from "@/lib";
import { isLocal } from "./local";
import { Confirm } from "./overlay";

const WEB = /^https?:/i;
const SAFE = /^(https?|mailto):/i;
const WARNING = "This address is on your computer or in your network. A program there may do something just because you open it. Open it only if you know what it is.";

type Question = { url: string; decide: (allowed: boolean) => void };

const question = store<Question | undefined>(undefined);

/** Asks in a dialog. If a dialog is already open, the new link counts as refused. */
function ask(url: string): Promise<boolean> {
  if (question.get()) return Promise.resolve(false);
  return new Promise((decide) => question.set({ url, decide: (allowed) => (question.set(undefined), decide(allowed)) }));
}

/** Returns whether a link can be opened. */
export const isLink = (url: string | undefined): url is string => !!url && SAFE.test(url) && URL.canParse(url);

/**
 * Opens a web page in a new tab and returns whether it did. An address on this computer or its network asks first. `decide` replaces the
 * dialog, and is called for every address.
 */
export async function openOutside(url: string, decide?: (url: string, warning: string | undefined) => Promise<boolean>): Promise<boolean> {
  if (!WEB.test(url) || !URL.canParse(url)) return false;
  const warning = isLocal(url) ? WARNING : undefined;
  if (decide ? !(await decide(url, warning)) : warning && !(await ask(url))) return false;
  open(url, "_blank", "noopener,noreferrer");
  return true;
}

/** A link. A link that asks first is a button, so that a middle click, the context menu or dragging cannot bypass the question. */
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

/** The dialog, shared by all pages. */
export function AskOutside() {
  const asked = question.use();
  const [last, setLast] = useState<string>();
  if (asked && asked.url !== last) setLast(asked.url);
  return (
    <Confirm open={!!asked} onClose={() => asked?.decide(false)} title="Open an address on your computer or network?" action="Open it" look="solid" onConfirm={async () => asked?.decide(true)}>
      <p>This link is from a server or a model:</p>
      <p className="my-2 rounded-md border bg-raised px-3 py-2 font-mono text-xs break-all text-text">{asked?.url ?? last}</p>
      <p>{WARNING}</p>
    </Confirm>
  );
}
