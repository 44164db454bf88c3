// Overlays: dialogs, menus, tooltips, and toasts.
import { X } from "lucide-react";
import { Dialog as D, DropdownMenu as M, Tooltip as T } from "radix-ui";
import { useState, useSyncExternalStore, type ReactNode } from "react";

import { cx } from "@/lib";
import { Button } from "./button";
import { message } from "./parts";

export function Dialog({ open, onOpenChange, title, description, children, wide }: { open: boolean; onOpenChange: (open: boolean) => void; title: ReactNode; description?: ReactNode; children: ReactNode; wide?: boolean }) {
  return (
    <D.Root open={open} onOpenChange={onOpenChange}>
      <D.Portal>
        <D.Overlay className="fixed inset-0 z-40 bg-black/45" />
        <D.Content
          {...(description ? {} : { "aria-describedby": undefined })}
          className={cx(
            "appear fixed inset-x-0 bottom-0 z-50 mx-auto flex max-h-[92dvh] flex-col rounded-t-xl border border-edge bg-panel shadow-2xl outline-none sm:top-[10vh] sm:bottom-auto sm:max-h-[80vh] sm:rounded-xl",
            wide ? "sm:max-w-3xl" : "sm:max-w-lg",
          )}
        >
          <div className="flex items-start justify-between gap-4 border-b px-4 py-3">
            <div>
              <D.Title className="text-lg font-semibold">{title}</D.Title>
              {description && <D.Description className="mt-0.5 text-sm text-muted">{description}</D.Description>}
            </div>
            <D.Close asChild>
              <Button look="quiet" aria-label="Close" icon={<X />} />
            </D.Close>
          </div>
          <div className="overflow-y-auto p-4">{children}</div>
        </D.Content>
      </D.Portal>
    </D.Root>
  );
}

/** Asks before something that cannot be undone. */
export function Confirm({ open, onOpenChange, title, children, action, onConfirm, look = "danger" }: { open: boolean; onOpenChange: (open: boolean) => void; title: string; children: ReactNode; action: string; onConfirm: () => Promise<unknown> | void; look?: "danger" | "solid" }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string>();
  const confirm = async () => {
    setBusy(true);
    setError(undefined);
    try {
      await onConfirm();
      onOpenChange(false);
    } catch (failed) {
      setError(message(failed));
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog open={open} onOpenChange={onOpenChange} title={title}>
      <div className="text-sm text-muted">{children}</div>
      {error && (
        <p role="alert" className="mt-3 text-sm text-bad">
          {error}
        </p>
      )}
      <div className="mt-5 flex justify-end gap-2">
        <Button onClick={() => onOpenChange(false)}>Cancel</Button>
        <Button look={look} busy={busy} onClick={() => void confirm()}>
          {action}
        </Button>
      </div>
    </Dialog>
  );
}

export type MenuItem = { label: string; icon?: ReactNode; onSelect: () => void; danger?: boolean; disabled?: boolean; hint?: string } | "line";

export function Menu({ trigger, items }: { trigger: ReactNode; items: MenuItem[] }) {
  return (
    <M.Root>
      <M.Trigger asChild>{trigger}</M.Trigger>
      <M.Portal>
        <M.Content align="end" sideOffset={4} className="appear z-50 min-w-44 rounded-lg border border-edge bg-panel p-1 shadow-xl">
          {items.map((item, at) =>
            item === "line" ? (
              <M.Separator key={at} className="my-1 h-px bg-line" />
            ) : (
              <M.Item
                key={item.label}
                disabled={item.disabled ?? false}
                onSelect={item.onSelect}
                className={cx(
                  "flex h-8 cursor-pointer items-center gap-2 rounded px-2 text-sm outline-none select-none data-disabled:cursor-default data-disabled:opacity-45 data-highlighted:bg-hover pointer-coarse:h-10 [&_svg]:size-4",
                  item.danger ? "text-bad" : "[&_svg]:text-faint",
                )}
              >
                {item.icon}
                <span className="flex-1">{item.label}</span>
                {item.hint && <kbd className="text-xs text-faint">{item.hint}</kbd>}
              </M.Item>
            ),
          )}
        </M.Content>
      </M.Portal>
    </M.Root>
  );
}

export function Tip({ text, children }: { text: ReactNode; children: ReactNode }) {
  return (
    <T.Root>
      <T.Trigger asChild>{children}</T.Trigger>
      <T.Portal>
        <T.Content sideOffset={5} className="appear z-50 max-w-80 rounded-md border border-edge bg-panel px-2 py-1 text-xs text-text shadow-lg">
          {text}
        </T.Content>
      </T.Portal>
    </T.Root>
  );
}

type Toast = { id: number; text: string; bad: boolean };
let toasts: Toast[] = [];
let next = 0;
const listeners = new Set<() => void>();
const change = (to: Toast[]) => {
  toasts = to;
  listeners.forEach((listener) => listener());
};

export function toast(text: string, bad = false) {
  const id = next++;
  change([...toasts.slice(-3), { id, text, bad }]);
  setTimeout(() => change(toasts.filter((one) => one.id !== id)), bad ? 9000 : 3500);
}

/** Runs an action and shows a toast with the result or the error. */
export async function attempt(doing: () => Promise<unknown>, done?: string): Promise<boolean> {
  try {
    await doing();
    if (done) toast(done);
    return true;
  } catch (error) {
    toast(message(error), true);
    return false;
  }
}

export function Toasts() {
  const shown = useSyncExternalStore(
    (listener) => (listeners.add(listener), () => listeners.delete(listener)),
    () => toasts,
  );
  return (
    <div role="status" aria-live="polite" className="pointer-events-none fixed right-4 bottom-4 left-4 z-60 flex flex-col items-end gap-2">
      {shown.map((one) => (
        <div key={one.id} className={cx("appear pointer-events-auto max-w-md rounded-lg border px-3 py-2 text-sm break-words shadow-xl", one.bad ? "border-bad bg-bad-soft text-bad" : "border-edge bg-panel")}>
          {one.text}
        </div>
      ))}
    </div>
  );
}
