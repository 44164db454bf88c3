// CodeMirror for JSON. Use `Json` of `json.tsx`, which loads it on demand.
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { json, jsonParseLinter } from "@codemirror/lang-json";
import { bracketMatching, foldGutter, foldKeymap, HighlightStyle, indentOnInput, syntaxHighlighting } from "@codemirror/language";
import { linter, lintKeymap, setDiagnostics } from "@codemirror/lint";
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search";
import { Annotation, EditorState } from "@codemirror/state";
import { EditorView, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { useEffect, useRef } from "react";

const nonce = document.querySelector<HTMLMetaElement>("meta[property=csp-nonce]")?.nonce ?? "";

const LOOK = EditorView.theme({
  "&": { fontSize: "0.8125rem", backgroundColor: "transparent", color: "var(--color-text)" },
  "&.cm-focused": { outline: "2px solid var(--color-accent)", outlineOffset: "-1px" },
  ".cm-content": { fontFamily: "var(--font-mono)", caretColor: "var(--color-text)", padding: "8px 0" },
  ".cm-scroller": { fontFamily: "var(--font-mono)", lineHeight: "1.55" },
  ".cm-gutters": { backgroundColor: "transparent", color: "var(--color-faint)", border: "none" },
  ".cm-cursor": { borderLeftColor: "var(--color-text)" },
  ".cm-selectionBackground, &.cm-focused .cm-selectionBackground": { backgroundColor: "color-mix(in srgb, var(--color-accent) 24%, transparent) !important" },
  ".cm-matchingBracket": { backgroundColor: "var(--color-raised)", outline: "1px solid var(--color-edge)" },
  ".cm-panels": { backgroundColor: "var(--color-raised)", color: "var(--color-text)", borderColor: "var(--color-line)" },
  ".cm-panels input, .cm-panels button": { background: "var(--color-panel)", color: "var(--color-text)", border: "1px solid var(--color-edge)", borderRadius: "4px" },
  ".cm-tooltip": { backgroundColor: "var(--color-panel)", color: "var(--color-text)", border: "1px solid var(--color-edge)" },
  ".cm-foldPlaceholder": { backgroundColor: "var(--color-raised)", color: "var(--color-muted)", border: "none", padding: "0 6px" },
  ".cm-searchMatch": { backgroundColor: "var(--color-warn-soft)" },
});

const COLORS = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--color-info)" },
  { tag: tags.string, color: "var(--color-ok)" },
  { tag: tags.number, color: "var(--color-warn)" },
  { tag: [tags.bool, tags.null], color: "var(--color-accent)", fontWeight: "600" },
  { tag: tags.punctuation, color: "var(--color-faint)" },
]);

/** Marks a change that came from the parent, which need not be reported back. */
const fromOutside = Annotation.define<boolean>();

export type EditorProps = {
  value: string;
  onChange?: ((value: string) => void) | undefined;
  label: string;
  /** Errors from the gateway, with JSON pointers. */
  errors?: { pointer: string; detail: string }[] | undefined;
};

export default function JsonEditor({ value, onChange, label, errors }: EditorProps) {
  const host = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView>(null);
  const change = useRef(onChange);
  change.current = onChange;
  const editable = !!onChange;
  useEffect(() => {
    const made = new EditorView({
      parent: host.current!,
      state: EditorState.create({
        doc: value,
        extensions: [
          EditorView.cspNonce.of(nonce),
          json(),
          LOOK,
          syntaxHighlighting(COLORS),
          foldGutter(),
          bracketMatching(),
          highlightSelectionMatches(),
          EditorView.lineWrapping,
          EditorView.contentAttributes.of({ "aria-label": label, ...(editable ? {} : { tabindex: "0" }) }),
          keymap.of([...defaultKeymap, ...searchKeymap, ...foldKeymap, ...lintKeymap]),
          editable
            ? [lineNumbers(), history(), keymap.of(historyKeymap), indentOnInput(), linter(jsonParseLinter(), { delay: 400 }), EditorView.updateListener.of((update) => update.docChanged && !update.transactions.some((one) => one.annotation(fromOutside)) && change.current?.(update.state.doc.toString()))]
            : [EditorState.readOnly.of(true), EditorView.editable.of(false)],
        ],
      }),
    });
    view.current = made;
    return () => made.destroy();
    // `value` is no dependency: the next effect sets the text.
  }, [label, editable]);
  useEffect(() => {
    const now = view.current;
    if (now && now.state.doc.toString() !== value) now.dispatch({ changes: { from: 0, to: now.state.doc.length, insert: value }, annotations: fromOutside.of(true) });
  }, [value]);
  useEffect(() => {
    const now = view.current;
    if (!now) return;
    const text = now.state.doc.toString();
    const at = (pointer: string) => Math.max(0, text.indexOf(`"${pointer.split("/").at(-1)}"`));
    now.dispatch(
      setDiagnostics(
        now.state,
        (errors ?? []).map(({ pointer, detail }) => ({ from: at(pointer), to: Math.min(text.length, at(pointer) + 1), severity: "error" as const, message: `${pointer}: ${detail}` })),
      ),
    );
  }, [errors]);
  return <div ref={host} className="min-w-0 overflow-hidden rounded-md border border-edge bg-panel [&_.cm-editor]:max-h-[60vh]" />;
}
