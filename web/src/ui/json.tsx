// Shows JSON, read-only or in an editor.
import { Check, Copy } from "lucide-react";
import { lazy, Suspense, useState } from "react";

import { copy } from "@/lib";
import { Button } from "./parts";
import type { EditorProps } from "./json-editor";
import { toast } from "./overlay";

const Editor = lazy(() => import("./json-editor"));

export function Json(props: EditorProps) {
  return (
    <Suspense fallback={<div className="skeleton h-32" />}>
      <Editor {...props} />
    </Suspense>
  );
}

export const pretty = (value: unknown) => JSON.stringify(value, null, 2);

/** Formats text that is a JSON object or array. */
export function asJson(text: string): string | undefined {
  if (!/^\s*[[{]/.test(text)) return undefined;
  try {
    return pretty(JSON.parse(text));
  } catch {
    return undefined;
  }
}

export function CopyButton({ text, label = "Copy" }: { text: string | (() => string); label?: string }) {
  const [done, setDone] = useState(false);
  return (
    <Button
      look="quiet"
      aria-label={label}
      title={label}
      icon={done ? <Check className="text-ok" /> : <Copy />}
      onClick={() =>
        void copy(typeof text === "string" ? text : text()).then((copied) => {
          if (!copied) return toast("The browser does not allow this page to copy.", true);
          setDone(true);
          setTimeout(() => setDone(false), 1500);
        })
      }
    />
  );
}

/** A short text to copy, such as a command. */
export function Snippet({ text }: { text: string }) {
  return (
    <div className="flex items-start gap-1 rounded-md border bg-raised pl-3">
      <pre className="min-w-0 flex-1 overflow-x-auto py-2 text-xs leading-5 whitespace-pre-wrap break-all">{text}</pre>
      <CopyButton text={text} />
    </div>
  );
}
