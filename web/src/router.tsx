// The routes of all pages. Each page is a separate chunk that is loaded when it is first opened.
import type { QueryClient } from "@tanstack/react-query";
import { createRootRouteWithContext, createRoute, createRouter, lazyRouteComponent, redirect } from "@tanstack/react-router";

import { root as gateway } from "./root";
import { Lost, RouteFailure, Shell } from "./shell";

const root = createRootRouteWithContext<{ client: QueryClient }>()({ component: Shell, notFoundComponent: Lost, errorComponent: RouteFailure });

const text = (value: unknown) => (typeof value === "string" && value ? value : undefined);
/** Picks the string values with these names from a search. */
function some<K extends string>(search: Record<string, unknown>, ...names: K[]): { [name in K]?: string } {
  const found = names.flatMap((name) => (text(search[name]) ? [[name, text(search[name])] as const] : []));
  return Object.fromEntries(found) as { [name in K]?: string };
}

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
    validateSearch: (search) => some(search, "tab", "added"),
    component: lazyRouteComponent(() => import("./pages/server/server"), "ServerPage"),
  }),
  tools: createRoute({
    ...page,
    path: "/tools",
    validateSearch: (search) => some(search, "server", "tool", "of", "q"),
    component: lazyRouteComponent(() => import("./pages/tools/tools"), "Tools"),
  }),
  findTools: createRoute({
    ...page,
    path: "/tools/find",
    validateSearch: (search) => some(search, "q", "project"),
    component: lazyRouteComponent(() => import("./pages/tools/find"), "FindTools"),
  }),
  calls: createRoute({
    ...page,
    path: "/calls",
    validateSearch: (search) => some(search, "server", "tool", "project", "status", "caller", "span", "view"),
    component: lazyRouteComponent(() => import("./pages/calls/calls"), "Calls"),
  }),
  call: createRoute({ ...page, path: "/calls/$call", component: lazyRouteComponent(() => import("./pages/calls/call"), "CallPage") }),
  approvals: createRoute({ ...page, path: "/approvals", component: lazyRouteComponent(() => import("./pages/approvals"), "Approvals") }),
  projects: createRoute({ ...page, path: "/projects", component: lazyRouteComponent(() => import("./pages/projects/projects"), "Projects") }),
  project: createRoute({
    ...page,
    path: "/projects/$project",
    validateSearch: (search) => some(search, "tab"),
    component: lazyRouteComponent(() => import("./pages/projects/project"), "ProjectPage"),
  }),
  keys: createRoute({ ...page, path: "/keys", component: lazyRouteComponent(() => import("./pages/projects/keys"), "AllKeys") }),
  secrets: createRoute({ ...page, path: "/secrets", component: lazyRouteComponent(() => import("./pages/projects/secrets"), "AllSecrets") }),
  chat: createRoute({ ...page, path: "/chat", validateSearch: (search) => some(search, "project", "c"), component: lazyRouteComponent(() => import("./pages/chat/chat"), "Chat") }),
  install: createRoute({ ...page, path: "/install", validateSearch: (search) => some(search, "by"), component: lazyRouteComponent(() => import("./pages/install"), "Install") }),
  connect: createRoute({ ...page, path: "/connect", component: lazyRouteComponent(() => import("./pages/connect"), "Connect") }),
  health: createRoute({ ...page, path: "/health", component: lazyRouteComponent(() => import("./pages/health"), "Health") }),
  settings: createRoute({ ...page, path: "/settings", component: lazyRouteComponent(() => import("./pages/settings"), "Settings") }),
};

const tree = root.addChildren(Object.values(routes));

export function makeRouter(client: QueryClient) {
  return createRouter({ routeTree: tree, basepath: gateway.pathname, context: { client }, defaultPreload: "intent", scrollRestoration: false });
}

declare module "@tanstack/react-router" {
  interface Register {
    router: ReturnType<typeof makeRouter>;
  }
}
