// A small table, for lists that fit on a page.
import type { ReactNode } from "react";

import { cx } from "@/lib";

export type Column<T> = { name: string; show: (item: T) => ReactNode; wide?: boolean; right?: boolean };

export function Table<T>({ label, items, columns, id }: { label: string; items: T[]; columns: Column<T>[]; id: (item: T) => string }) {
  return (
    <div className="overflow-x-auto">
      <table aria-label={label} className="w-full text-sm">
        <thead>
          <tr className="border-b text-left text-xs text-faint">
            {columns.map((one) => (
              <th key={one.name} scope="col" className={cx("h-8 px-3.5 font-medium whitespace-nowrap", one.wide && "hidden md:table-cell", one.right && "text-right")}>
                {one.name || <span className="sr-only">Orders</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {items.map((item) => (
            <tr key={id(item)} className="border-b last:border-0 hover:bg-hover">
              {columns.map((one) => (
                <td key={one.name} className={cx("h-10 max-w-80 px-3.5 py-1.5 break-words", one.wide && "hidden md:table-cell", one.right && "text-right")}>
                  {one.show(item)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
