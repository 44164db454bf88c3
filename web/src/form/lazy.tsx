// The form of a JSON Schema, loaded when a page first shows one.
import { lazy, Suspense, type ComponentProps } from "react";

import { Skeleton } from "@/ui/parts";

export const loadForm = () => import("./schema-form").then((file) => ({ default: file.SchemaForm }));
export const LazyForm = lazy(loadForm);

/** `rows` is the height of the placeholder until the form is loaded. */
export const SchemaForm = ({ rows, ...props }: ComponentProps<typeof LazyForm> & { rows: number }) => (
  <Suspense fallback={<Skeleton rows={rows} />}>
    <LazyForm {...props} />
  </Suspense>
);
