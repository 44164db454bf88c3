// Building blocks of pages: headers, loading, empty and error states, buttons, badges, fields, differences.
import { Link, type LinkProps } from "@tanstack/react-router";
import { CircleAlert, Search } from "lucide-react";
import { useEffect, useRef, type ComponentProps, type ReactNode } from "react";

import { ApiError } from "@/api/client";
import { cx } from "@/lib";
import { useTitle } from "./media";
import { Scroller } from "./scroller";

/** `above` is shown above the title. */
export function Page({ above, title, lead, actions, children, wide }: { above?: ReactNode; title: string; lead?: ReactNode; actions?: ReactNode; children: ReactNode; wide?: boolean }) {
  useTitle(title);
  return (
    <div className="flex min-h-full flex-col">
      <header className="flex flex-wrap items-center gap-x-4 gap-y-2 border-b px-4 py-3 md:px-6">
        <div className="min-w-0 basis-full sm:flex-1 sm:basis-auto">
          {above}
          <h1 className="truncate text-xl font-semibold tracking-tight">{title}</h1>
          {lead && <p className="mt-0.5 text-sm text-muted">{lead}</p>}
        </div>
        {actions && <div className="flex w-full flex-wrap items-center gap-2 sm:w-auto">{actions}</div>}
      </header>
      <div className={cx("flex min-h-0 flex-1 flex-col", !wide && "p-4 md:p-6")}>{children}</div>
    </div>
  );
}

/** `inner` is the class of an element around the contents. */
export function Panel({ title, actions, children, className, inner }: { title?: ReactNode; actions?: ReactNode; children: ReactNode; className?: string; inner?: string }) {
  return (
    <section className={cx("overflow-hidden rounded-lg border bg-panel", className)}>
      {title && (
        <div className="flex min-h-10 flex-wrap items-center justify-between gap-x-3 gap-y-1 border-b px-3.5 py-1.5">
          {typeof title === "string" ? <h2 className="text-sm font-semibold">{title}</h2> : title}
          {actions}
        </div>
      )}
      {inner ? <div className={inner}>{children}</div> : children}
    </section>
  );
}

type Look = "solid" | "plain" | "quiet" | "danger";

const LOOKS: Record<Look, string> = {
  solid: "bg-solid text-white hover:bg-solid-hover",
  plain: "bg-panel border border-edge hover:bg-hover",
  quiet: "text-muted hover:bg-hover hover:text-text",
  danger: "bg-panel border border-edge text-bad hover:bg-bad-soft",
};

const SHAPE =
  "inline-flex h-8 shrink-0 items-center justify-center gap-1.5 rounded-md text-sm font-medium whitespace-nowrap transition-colors select-none disabled:opacity-50 pointer-coarse:h-9 [&_svg]:size-4 [&_svg]:shrink-0";

export type ButtonProps = ComponentProps<"button"> & { look?: Look; icon?: ReactNode; busy?: boolean };

export function Button({ look = "plain", icon, busy, children, className, disabled, ...rest }: ButtonProps) {
  return (
    <button
      type="button"
      disabled={disabled || busy}
      className={cx(SHAPE, children ? "px-2.5" : "w-8 pointer-coarse:w-9", LOOKS[look], className)}
      {...rest}
    >
      {busy ? <Spinner /> : icon}
      {children}
    </button>
  );
}

/** A link to another page in the style of a button. */
export function Go({ to, look = "plain", icon, children }: { to: LinkProps["to"]; look?: Look; icon?: ReactNode; children: ReactNode }) {
  return (
    <Link to={to} className={cx(SHAPE, "px-2.5", LOOKS[look])}>
      {icon}
      {children}
    </Link>
  );
}

export function Spinner() {
  return <span aria-hidden className="size-3.5 animate-spin rounded-full border-2 border-current border-r-transparent" />;
}

const TONES = {
  ok: "bg-ok-soft text-ok",
  warn: "bg-warn-soft text-warn",
  bad: "bg-bad-soft text-bad",
  info: "bg-info-soft text-info",
  accent: "bg-accent-soft text-accent",
  plain: "bg-raised text-muted",
};
export type Tone = keyof typeof TONES;

export function Badge({ tone = "plain", children, title }: { tone?: Tone; children: ReactNode; title?: string | undefined }) {
  return (
    <span title={title} className={cx("inline-flex h-5 max-w-full items-center gap-1 rounded px-1.5 text-xs font-medium whitespace-nowrap", TONES[tone])}>
      {children}
    </span>
  );
}

export function Empty({ icon, title, children, action }: { icon?: ReactNode; title: string; children?: ReactNode; action?: ReactNode }) {
  return (
    <div className="mx-auto flex max-w-md flex-col items-center gap-2 px-6 py-16 text-center">
      {icon && <div className="mb-1 grid size-11 place-items-center rounded-xl border bg-panel text-faint [&_svg]:size-5">{icon}</div>}
      <h2 className="text-lg font-semibold">{title}</h2>
      {children && <div className="text-sm text-balance text-muted [&_code]:rounded [&_code]:bg-raised [&_code]:px-1 [&_code]:py-0.5 [&_code]:text-text">{children}</div>}
      {action && <div className="mt-3">{action}</div>}
    </div>
  );
}

export function Failure({ error, retry }: { error: unknown; retry?: () => void }) {
  const status = error instanceof ApiError ? error.status : undefined;
  const title = status === 403 ? "Your key has no access to this" : status === 404 ? "Not found" : "This could not be loaded";
  return (
    <Empty icon={<CircleAlert />} title={title} action={retry && <Button onClick={retry}>Try again</Button>}>
      <span role="alert">{message(error)}</span>
    </Empty>
  );
}

export const message = (error: unknown) => (error instanceof Error ? error.message : String(error));

export function Notice({ tone = "info", children, actions }: { tone?: Tone; children: ReactNode; actions?: ReactNode }) {
  return (
    <div role={tone === "bad" ? "alert" : "status"} className={cx("flex flex-wrap items-center gap-x-3 gap-y-2 rounded-md px-3 py-2 text-sm", TONES[tone])}>
      <div className="min-w-0 flex-1 break-words">{children}</div>
      {actions}
    </div>
  );
}

/** Shows one notice for each text. */
export const Notices = ({ texts, tone = "warn" }: { texts: string[] | undefined; tone?: Tone }) =>
  texts?.map((text) => (
    <Notice key={text} tone={tone}>
      <span className="whitespace-pre-line">{text}</span>
    </Notice>
  ));

/** Problems of an input, each with a JSON pointer to the invalid value. */
export function Problems({ of }: { of: { pointer: string; detail: string }[] }) {
  return (
    <ul className="mt-1 list-disc pl-4">
      {of.map((one) => (
        <li key={one.pointer + one.detail}>
          <code>{one.pointer || "/"}</code> {one.detail}
        </li>
      ))}
    </ul>
  );
}

export function Skeleton({ rows = 6 }: { rows?: number | undefined }) {
  return (
    <div aria-busy="true" aria-label="Loading" role="status" className="flex flex-col gap-2.5 p-4 md:p-6">
      {Array.from({ length: rows }, (_, row) => (
        <div key={row} className="skeleton h-8" style={{ opacity: 1 - row / (rows + 2) }} />
      ))}
    </div>
  );
}

/** Shown in place of data: the error if loading failed, otherwise a loading indicator. */
export const Missing = ({ error, retry, rows }: { error: unknown; retry: () => unknown; rows?: number }) =>
  error ? <Failure error={error} retry={() => void retry()} /> : <Skeleton rows={rows} />;

/** A field has full width unless its class sets a width. */
const width = (className?: string) => (/(^|\s)w-/.test(className ?? "") ? className : cx("w-full", className));

const FIELD = "rounded-md border border-edge bg-panel px-2.5 text-sm placeholder:text-faint disabled:opacity-60 aria-invalid:border-bad";

export function Input({ className, ...rest }: ComponentProps<"input">) {
  return <input autoComplete="off" spellCheck={false} className={cx(FIELD, "h-8 pointer-coarse:h-10 pointer-coarse:text-[16px]", width(className))} {...rest} />;
}

export function Textarea({ className, ...rest }: ComponentProps<"textarea">) {
  return <textarea spellCheck={false} className={cx(FIELD, "min-h-16 py-1.5 pointer-coarse:text-[16px]", width(className))} {...rest} />;
}

export function Select({ className, ...rest }: ComponentProps<"select">) {
  return <select className={cx(FIELD, "h-8 pr-7 pointer-coarse:h-10 pointer-coarse:text-[16px]", width(className))} {...rest} />;
}

type SearchBoxProps = Omit<ComponentProps<"input">, "onChange" | "value"> & { value: string; onChange: (value: string) => void };

/** A search box. `/` focuses it from anywhere on the page. Its name is its placeholder, unless it has a label. */
export function SearchBox({ value, onChange, className, ...rest }: SearchBoxProps) {
  const box = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      const at = event.target as HTMLElement;
      if (event.key !== "/" || event.ctrlKey || event.metaKey || at.closest("input, textarea, select, [contenteditable=true]")) return;
      event.preventDefault();
      box.current?.focus();
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, []);
  return (
    <div className={cx("relative min-w-40", className)}>
      <Search aria-hidden className="pointer-events-none absolute top-1/2 left-2.5 size-3.5 -translate-y-1/2 text-faint" />
      <Input
        ref={box}
        type="search"
        aria-label={rest.id ? undefined : rest.placeholder}
        {...rest}
        value={value}
        onChange={(event) => onChange(event.target.value)}
        onKeyDown={(event) => event.key === "Escape" && (value ? onChange("") : event.currentTarget.blur())}
        className="w-full pl-8 [&::-webkit-search-cancel-button]:hidden"
      />
    </div>
  );
}

export function Field({ label, help, error, children }: { label: string; help?: ReactNode; error?: string | undefined; children: ReactNode }) {
  return (
    <label className="flex flex-col gap-1">
      <span className="text-sm font-medium">{label}</span>
      {children}
      {help && <span className="text-xs text-faint">{help}</span>}
      {error && (
        <span role="alert" className="text-xs text-bad">
          {error}
        </span>
      )}
    </label>
  );
}

/** A list of names and values. */
export function Facts({ children }: { children: ReactNode }) {
  return <dl className="grid grid-cols-[minmax(7rem,auto)_1fr] gap-x-5 gap-y-2 px-3.5 py-3 text-sm">{children}</dl>;
}

export function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <>
      <dt className="text-muted">{name}</dt>
      <dd className="min-w-0 break-words">{children}</dd>
    </>
  );
}

/** A text, with its parts between backquotes as code. */
export const Quoted = ({ text }: { text: string }) => text.split("`").map((part, at) => (at % 2 ? <code key={at}>{part}</code> : part));

/** A row of choices, one of which is selected. */
export function Chips<T extends string>({ label, value, choices, onChange }: { label: string; value: T; choices: readonly (readonly [value: T, label: ReactNode])[]; onChange: (value: T) => void }) {
  return (
    <div role="group" aria-label={label} className="max-w-full min-w-0">
      <Scroller what="choices" className="items-center gap-1 p-0.5">
        {choices.map(([choice, name]) => (
          <button
            key={choice}
            type="button"
            aria-pressed={choice === value}
            onClick={() => onChange(choice)}
            className={cx(
              "inline-flex h-7 shrink-0 items-center gap-1.5 rounded-md px-2 text-sm whitespace-nowrap transition-colors pointer-coarse:h-9 pointer-coarse:px-3",
              choice === value ? "bg-line font-medium text-text" : "text-muted hover:bg-hover hover:text-text",
            )}
          >
            {name}
          </button>
        ))}
      </Scroller>
    </div>
  );
}

/** A unified diff from the gateway. */
export function Diff({ text }: { text: string }) {
  return (
    <pre tabIndex={0} aria-label="Difference" className="max-h-[60vh] overflow-auto bg-panel py-2 text-xs leading-5">
      {text.replace(/\n$/, "").split("\n").map((line, at) => {
        const kind = /^(\+\+\+|---)/.test(line) ? "head" : line[0];
        return (
          <span key={at} className={cx("block px-3.5 break-all whitespace-pre-wrap", kind === "+" && "bg-ok-soft text-ok", kind === "-" && "bg-bad-soft text-bad", (kind === "@" || kind === "head") && "text-faint")}>
            {line || " "}
          </span>
        );
      })}
    </pre>
  );
}
