// Sorting of lists by their columns.
import { ArrowDown, ArrowUp } from "lucide-react";
import { useMemo, useState } from "react";

import { cx } from "@/lib";

/** The value that a column is sorted by. Items without a value come last. Columns on the right, which are numbers, and columns with `down` are sorted descending at first. */
export type Sortable<T> = { name: string; right?: boolean; down?: boolean; title?: string; sort?: (item: T) => string | number | null | undefined };

/** The column that a list is sorted by. */
export type Sorting = { by: string; down: boolean };

/** Returns the order of the first click on a column. */
export const initially = <T,>({ name, right, down }: Sortable<T>): Sorting => ({ by: name, down: Boolean(right || down) });

function compare(a: string | number, b: string | number): number {
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

/** Returns the items in the order of a column. Items with equal values keep their order. Without a column, returns the items unchanged. */
export function sorted<T>(items: T[], columns: Sortable<T>[], sorting: Sorting | undefined): T[] {
  const value = columns.find((one) => one.name === sorting?.by)?.sort;
  if (!value || !sorting) return items;
  const valued = items.map((item) => ({ item, value: value(item) }));
  valued.sort((a, b) => {
    if (a.value == null || b.value == null) return Number(a.value == null) - Number(b.value == null);
    return sorting.down ? compare(b.value, a.value) : compare(a.value, b.value);
  });
  return valued.map((one) => one.item);
}

/** The sorted items, and what the headings need. */
export function useSorting<T>(items: T[], columns: Sortable<T>[], initial?: Sorting) {
  const [sorting, setSorting] = useState(initial);
  const inOrder = useMemo(() => sorted(items, columns, sorting), [items, columns, sorting]);
  const toggle = (column: Sortable<T>) => setSorting((old) => (old?.by === column.name ? { ...old, down: !old.down } : initially(column)));
  return { items: inOrder, sorting, setSorting, toggle };
}

/** The value of `aria-sort` for a column. */
export function direction(name: string, sorting: Sorting | undefined): "ascending" | "descending" | "none" {
  if (sorting?.by !== name) return "none";
  return sorting.down ? "descending" : "ascending";
}

/** The name of a column: a button if the list can be sorted by it. */
export function Heading<T>({ column, sorting, toggle }: { column: Sortable<T>; sorting: Sorting | undefined; toggle: (column: Sortable<T>) => void }) {
  if (!column.sort) return column.name || <span className="sr-only">Actions</span>;
  const isIt = sorting?.by === column.name;
  const Arrow = sorting?.down ? ArrowDown : ArrowUp;
  return (
    <button type="button" title={column.title} onClick={() => toggle(column)} className={cx("inline-flex max-w-full items-center gap-1 rounded-sm font-medium hover:text-text", isIt && "text-text", column.right && "flex-row-reverse")}>
      <span className="truncate">{column.name}</span>
      {isIt && <Arrow aria-hidden className="size-3 shrink-0" />}
    </button>
  );
}

/** The headings of a list whose rows are a grid. */
export function Headings<T>({ label, columns, grid, sorting, toggle }: { label: string; columns: Sortable<T>[]; grid: string; sorting: Sorting | undefined; toggle: (column: Sortable<T>) => void }) {
  return (
    <div role="table" aria-label={`Columns: ${label}`} className="border-b bg-side text-xs font-medium text-faint">
      <div role="row" className={cx(grid, "h-8")}>
        {columns.map((column) => (
          <span key={column.name} role="columnheader" aria-sort={column.sort && direction(column.name, sorting)} className={cx("min-w-0", column.right && "text-right")}>
            <Heading column={column} sorting={sorting} toggle={toggle} />
          </span>
        ))}
      </div>
    </div>
  );
}
