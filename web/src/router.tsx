// Which page is where. Each page is a file of its own that is loaded when it is opened first.
import type { QueryClient } from "@tanstack/react-query";
import { createRootRouteWithContext, createRoute, createRouter, lazyRouteComponent, redirect } from "@tanstack/react-router";

import { Lost, RouteFailure, Shell } from "./shell";

const root = createRootRouteWithContext<{ client: QueryClient }>()({ component: Shell, notFoundComponent: Lost, errorComponent: RouteFailure });

const text = (value: unknown) => (typeof value === "string" && value ? value : undefined);
const page = { getParentRoute: () => root } as const;

export const routes = {
  home: createRoute({ ...page, path: "/", beforeLoad: () => { throw redirect({ to: "/servers" }); } }),
  servers: createRoute({
    ...page,
    path: "/servers",
    component: lazyRouteComponent(() => import("./pages/servers"), "Servers"),
  }),
  server: createRoute({
    ...page,
    path: "/servers/$id",
    validateSearch: (search): { tab?: string } => ({ ...(text(search["tab"]) ? { tab: text(search["tab"])! } : {}) }),
    component: lazyRouteComponent(() => import("./pages/server/server"), "ServerPage"),
  }),
};

const tree = root.addChildren(Object.values(routes));

export function makeRouter(client: QueryClient) {
  return createRouter({ routeTree: tree, context: { client }, defaultPreload: "intent", scrollRestoration: false });
}

declare module "@tanstack/react-router" {
  interface Register {
    router: ReturnType<typeof makeRouter>;
  }
}
