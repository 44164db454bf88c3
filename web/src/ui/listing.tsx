// Tables, and lists that come from a query, whose items can be added and removed.
import { Plus, Trash2 } from "lucide-react";
import { useState, type ReactNode } from "react";

import { cx } from "@/lib";
import { Confirm } from "./overlay";
import { Button, Empty, Missing, Panel } from "./parts";
import { direction, Heading, useSorting, type Sortable, type Sorting } from "./sort";

/** The removal of an item, after a confirmation. */
type Removal<T> = { verb: string; name: (item: T) => string; warning: string; run: (item: T) => Promise<unknown> };

type Props<T> = {
  query: { data: T[] | undefined; error: unknown; refetch: () => unknown };
  label: string;
  title?: string;
  id: (item: T) => string;
  columns: Column<T>[];
  /** Buttons of an item. */
  orders?: (item: T) => ReactNode;
  removal?: Removal<T>;
  /** The label of the button that adds an item. */
  add?: string;
  onAdd?: () => void;
  icon?: ReactNode;
  empty: string;
  /** The explanation that an empty list shows. */
  children: ReactNode;
};

export const AddButton = ({ label, onClick }: { label: string; onClick: (() => void) | undefined }) => (
  <Button look="solid" icon={<Plus />} onClick={onClick}>
    {label}
  </Button>
);

export function Listing<T>({ query, label, title = label, id, columns, orders, removal, add, onAdd, icon, empty, children }: Props<T>) {
  const [removing, setRemoving] = useState<T>();
  const { data, error, refetch } = query;
  if (!data) return <Missing error={error} retry={refetch} />;
  const adding = add && <AddButton label={add} onClick={onAdd} />;
  const last = (item: T) => (
    <>
      {orders?.(item)}
      {removal && <Button look="quiet" aria-label={`${removal.verb} ${removal.name(item)}`} icon={<Trash2 />} onClick={() => setRemoving(item)} />}
    </>
  );
  return (
    <>
      {data.length ? (
        <Panel title={title} actions={adding}>
          <Table label={label} items={data} id={id} columns={orders || removal ? [...columns, { name: "", right: true, show: last }] : columns} />
        </Panel>
      ) : (
        <Empty icon={icon} title={empty} action={adding}>
          {children}
        </Empty>
      )}
      {removal && (
        <Confirm
          open={removing !== undefined}
          onClose={() => setRemoving(undefined)}
          title={removing === undefined ? "" : `${removal.verb} ${removal.name(removing)}?`}
          action={removal.verb}
          onConfirm={() => removal.run(removing!)}
        >
          {removal.warning}
        </Confirm>
      )}
    </>
  );
}

export type Column<T> = Sortable<T> & { show: (item: T) => ReactNode; wide?: boolean };

/** A small table, for lists that fit on a page. Columns with `sort` have a button in their heading. */
export function Table<T>({ label, items: unsorted, columns, id, initial }: { label: string; items: T[]; columns: Column<T>[]; id: (item: T) => string; initial?: Sorting }) {
  const { items, sorting, toggle } = useSorting(unsorted, columns, initial);
  return (
    <div className="overflow-x-auto">
      <table aria-label={label} className="w-full text-sm">
        <thead>
          <tr className="border-b text-left text-xs text-faint">
            {columns.map((one) => (
              <th key={one.name} scope="col" aria-sort={one.sort && direction(one.name, sorting)} className={cx("h-8 px-3.5 font-medium whitespace-nowrap", one.wide && "hidden md:table-cell", one.right && "text-right")}>
                <Heading column={one} sorting={sorting} toggle={toggle} />
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
