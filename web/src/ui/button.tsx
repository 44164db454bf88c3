import { Link, type LinkProps } from "@tanstack/react-router";
import type { ButtonHTMLAttributes, ReactNode, Ref } from "react";

import { cx } from "@/lib";

type Look = "solid" | "plain" | "quiet" | "danger";

const LOOKS: Record<Look, string> = {
  solid: "bg-solid text-white hover:bg-solid-hover",
  plain: "bg-panel border border-edge hover:bg-hover",
  quiet: "text-muted hover:bg-hover hover:text-text",
  danger: "bg-panel border border-edge text-bad hover:bg-bad-soft",
};

const SHAPE =
  "inline-flex h-8 shrink-0 items-center justify-center gap-1.5 rounded-md text-sm font-medium whitespace-nowrap transition-colors select-none disabled:opacity-50 pointer-coarse:h-9 [&_svg]:size-4 [&_svg]:shrink-0";

export type ButtonProps = ButtonHTMLAttributes<HTMLButtonElement> & {
  look?: Look;
  icon?: ReactNode;
  busy?: boolean;
  ref?: Ref<HTMLButtonElement>;
};

export function Button({ look = "plain", icon, busy, children, className, disabled, ...rest }: ButtonProps) {
  return (
    <button
      type="button"
      disabled={disabled || busy}
      className={cx(
        SHAPE,
        children ? "px-2.5" : "w-8 pointer-coarse:w-9",
        LOOKS[look],
        className,
      )}
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
