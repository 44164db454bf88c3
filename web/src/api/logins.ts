// Sign-ins to remote servers.
import { queryOptions } from "@tanstack/react-query";

import { api, ok, type Schemas, type Server } from "./client";

export type Login = Schemas["Login"];

export const LOGIN_WORDS: Record<string, [string, "ok" | "warn" | "plain"]> = { signed_in: ["signed in", "ok"], needs_login: ["needs sign-in", "warn"], absent: ["not signed in", "plain"] };

export const login = (server: Server) =>
  queryOptions({
    queryKey: ["logins", "server", server.id],
    queryFn: ({ signal }) => ok(api.GET("/api/v1/mcp/servers/{id}/login", { params: { path: { id: server.id! } }, signal })),
    // Polled, because the user signs in on the issuer's page in another tab.
    refetchInterval: 3_000,
    retry: false,
  });

/** Opens the page where the user signs in. */
export async function beginLogin(id: string): Promise<void> {
  const begun = await ok(api.POST("/api/v1/mcp/servers/{id}/login", { params: { path: { id } }, body: {} as never }));
  if (begun.link) open(begun.link, "_blank", "noopener");
}

export const endLogin = (id: string) => ok(api.DELETE("/api/v1/mcp/servers/{id}/login", { params: { path: { id } } }));
