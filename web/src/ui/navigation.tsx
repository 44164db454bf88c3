// Links above the parts of a page.
import { Link, type LinkProps } from "@tanstack/react-router";
import { ChevronRight } from "lucide-react";
import { useEffect, useRef, type ReactNode } from "react";

import { Scroller } from "./scroller";

/** A tab of a page about one object, such as a server or a project. */
export type Tab<T> = { id: string; label: string; show: (about: T) => ReactNode };

/** Links to the parts of a page. The address of the part with the id `first` has no `tab`. */
export function Tabs<T>({ label, tabs, shown, first = tabs[0]!.id, to, params }: { label: string; tabs: Tab<T>[]; shown: Tab<T>; first?: string; to: LinkProps["to"]; params: Record<string, string> }) {
  const nav = useRef<HTMLElement>(null);
  // Browsers may return a promise from `scrollIntoView`.
  useEffect(() => void nav.current?.querySelector("[aria-current=page]")?.scrollIntoView({ block: "nearest", inline: "nearest" }), [shown.id]);
  return (
    <nav ref={nav} aria-label={label} className="border-b">
      <Scroller what="tabs" className="gap-1 px-2 md:px-4">
        {tabs.map((one) => (
          <Link
            key={one.id}
            to={to}
            params={params as never}
            search={(one.id === first ? {} : { tab: one.id }) as never}
            replace
            activeOptions={{ exact: true, includeSearch: true }}
            aria-current={one === shown ? "page" : undefined}
            className="shrink-0 scroll-mx-10 border-b-2 border-transparent px-2 py-2.5 text-sm font-medium whitespace-nowrap text-muted hover:text-text aria-[current=page]:border-accent aria-[current=page]:text-text"
          >
            {one.label}
          </Link>
        ))}
      </Scroller>
    </nav>
  );
}

/** The link from a page back to the list that the page belongs to. */
export function Crumbs({ to, list, children }: { to: LinkProps["to"]; list: string; children: ReactNode }) {
  return (
    <div className="flex items-center gap-1 text-xs text-faint">
      <Link to={to} className="hover:text-text hover:underline">
        {list}
      </Link>
      <ChevronRight aria-hidden className="size-3" />
      {children}
    </div>
  );
}
