// A long list that renders only visible rows, which can have different heights. It scrolls with the page's scroll area.
import { useVirtualizer } from "@tanstack/react-virtual";
import { useLayoutEffect, useRef, useState, type KeyboardEvent, type ReactNode } from "react";

/** Id of the scrolling element (`shell.tsx`). */
export const SCROLL_ID = "main";

/** `height` is the least height of a row. */
export function Rows<T>({ items, height, render, label, id }: { items: T[]; height: number; render: (item: T) => ReactNode; label: string; id: (item: T) => string }) {
  const list = useRef<HTMLUListElement>(null);
  const [margin, setMargin] = useState(0);
  useLayoutEffect(() => {
    const area = document.getElementById(SCROLL_ID)!;
    const at = list.current!.getBoundingClientRect().top - area.getBoundingClientRect().top + area.scrollTop;
    setMargin((old) => (Math.abs(old - at) > 1 ? at : old));
  });
  const rows = useVirtualizer({
    count: items.length,
    estimateSize: () => height,
    getScrollElement: () => document.getElementById(SCROLL_ID),
    getItemKey: (at) => id(items[at]!),
    scrollMargin: margin,
    overscan: 12,
    indexAttribute: "data-at",
  });
  const move = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    const row = (event.target as HTMLElement).closest("li");
    if (!step || !row || (event.target as HTMLElement).matches("input, textarea, select")) return;
    const next = Number(row.dataset["at"]) + step;
    if (next < 0 || next >= items.length) return;
    event.preventDefault();
    rows.scrollToIndex(next);
    requestAnimationFrame(() => list.current?.querySelector<HTMLElement>(`[data-at="${next}"] :is(a, button)`)?.focus());
  };
  return (
    <ul ref={list} aria-label={label} onKeyDown={move} style={{ height: rows.getTotalSize(), position: "relative" }}>
      {rows.getVirtualItems().map((row) => (
        <li key={row.key} ref={rows.measureElement} data-at={row.index} className="absolute inset-x-0 top-0 grid grid-cols-1" style={{ minHeight: height, transform: `translateY(${row.start - margin}px)` }}>
          {render(items[row.index]!)}
        </li>
      ))}
    </ul>
  );
}
