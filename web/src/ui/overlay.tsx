// Overlays: dialogs, menus, and toasts.
import { X } from "lucide-react";
import { Dialog as D, DropdownMenu as M } from "radix-ui";
import type { ComponentProps, ReactNode } from "react";

import { cx, store } from "@/lib";
import { Decide, useSubmit } from "./form";
import { Button, message } from "./parts";

type ModalProps = ComponentProps<typeof D.Content> & Pick<ComponentProps<typeof D.Root>, "open" | "onOpenChange">;

/** An element above the page. The page is darkened and cannot be used until the element is closed. */
export function Modal({ open, onOpenChange, className, ...rest }: ModalProps) {
  return (
    <D.Root open={open} onOpenChange={onOpenChange}>
      <D.Portal>
        <D.Overlay className="fixed inset-0 z-40 bg-black/45" />
        <D.Content className={cx("fixed z-50 border-edge shadow-2xl outline-none", className)} {...rest} />
      </D.Portal>
    </D.Root>
  );
}

export function Dialog({ open = true, onClose, title, description, children, wide }: { open?: boolean; onClose: () => void; title: ReactNode; description?: ReactNode; children: ReactNode; wide?: boolean }) {
  return (
    <Modal
      open={open}
      onOpenChange={(isOpen) => isOpen || onClose()}
      {...(description ? {} : { "aria-describedby": undefined })}
      className={cx(
        "appear inset-x-0 bottom-0 mx-auto flex max-h-[92dvh] flex-col rounded-t-xl border bg-panel sm:top-[10vh] sm:bottom-auto sm:max-h-[80vh] sm:rounded-xl",
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
    </Modal>
  );
}

/** Asks before something that cannot be undone. */
export function Confirm({ open, onClose, title, children, action, onConfirm, look = "danger" }: { open: boolean; onClose: () => void; title: string; children: ReactNode; action: string; onConfirm: () => Promise<unknown>; look?: "danger" | "solid" }) {
  const { busy, error, submit } = useSubmit();
  return (
    <Dialog open={open} onClose={onClose} title={title}>
      <div className="text-sm text-muted">{children}</div>
      {!!error && (
        <p role="alert" className="mt-3 text-sm text-bad">
          {message(error)}
        </p>
      )}
      <Decide className="mt-5" onCancel={onClose} action={action} look={look} busy={busy} onClick={() => void submit(() => onConfirm().then(onClose))} />
    </Dialog>
  );
}

export type MenuItem = { label: string; icon?: ReactNode; onSelect: () => void; danger?: boolean; disabled?: boolean } | "line";

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
              </M.Item>
            ),
          )}
        </M.Content>
      </M.Portal>
    </M.Root>
  );
}

type Toast = { id: number; text: string; bad: boolean };
const toasts = store<Toast[]>([]);
let next = 0;

export function toast(text: string, bad = false) {
  const id = next++;
  toasts.set([...toasts.get().slice(-3), { id, text, bad }]);
  setTimeout(() => toasts.set(toasts.get().filter((one) => one.id !== id)), bad ? 9000 : 3500);
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
  return (
    <div role="status" aria-live="polite" className="pointer-events-none fixed right-4 bottom-4 left-4 z-60 flex flex-col items-end gap-2">
      {toasts.use().map((one) => (
        <div key={one.id} className={cx("appear pointer-events-auto max-w-md rounded-lg border px-3 py-2 text-sm break-words shadow-xl", one.bad ? "border-bad bg-bad-soft text-bad" : "border-edge bg-panel")}>
          {one.text}
        </div>
      ))}
    </div>
  );
}
