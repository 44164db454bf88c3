// The REST API, typed by docs/openapi.json. A session needs the browser's cookie and a page secret. Browsers send the cookie to every
// port of this host. The secret is in this origin's storage, which only pages of this origin can read.
import { useQueryClient } from "@tanstack/react-query";
import createClient from "openapi-fetch";

import { at, here, root } from "../root";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];
/** `seen`: when this page received the data, in milliseconds since 1970. Wait times and ages in it are relative to that moment. */
export type Server = Schemas["Server"] & { seen?: number };
export type Tool = Schemas["Tool"];
export type FoundTool = Schemas["FoundTool"];
export type Call = Schemas["Call"];
export type Replica = Schemas["Replica"];
export type Attention = Schemas["Attention"];

/** A problem detail (RFC 9457), or a request without a response. */
export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly problem?: Schemas["Problem"],
  ) {
    super(message);
  }
}

/** The header that carries the page secret. */
const PAGE_SECRET = "toolwharf-session";
/** The storage key in which `/sign-in` stores it. All tabs share it. Gateways below different paths of a host have different keys. */
const SESSION = `${PAGE_SECRET}${root.pathname.slice(0, -1)}`;

/** Headers that prove that a script of this origin makes the request, with the secret of this origin's session. */
function credentials(): Record<string, string> {
  const secret = localStorage.getItem(SESSION);
  return { "x-requested-with": "toolwharf", ...(secret ? { [PAGE_SECRET]: secret } : {}) };
}

/** Opens the sign-in page, which returns to this page. */
export function signIn(): never {
  location.assign(at(`sign-in?next=${encodeURIComponent(here())}`));
  throw new ApiError("signing in", 401);
}

export const api = createClient<paths>({ baseUrl: root.href });
// The secret is read for each request, because another tab may have signed in or out.
api.use({
  onRequest({ request }) {
    for (const [name, value] of Object.entries(credentials())) request.headers.set(name, value);
    return request;
  },
});

/** Ends the session, for all tabs. */
export async function signOut(): Promise<void> {
  const left = await fetch(at("sign-out"), { method: "POST", headers: credentials() }).catch(() => undefined);
  if (!left?.ok) throw new ApiError("Toolwharf does not respond, so you are still signed in. Try again.", left?.status ?? 0);
  localStorage.removeItem(SESSION);
  location.assign(at("sign-in"));
}

type Answer<T> = { data?: T; error?: unknown; response: Response };

/** Returns the body of a response, or throws an `ApiError`. */
export async function ok<T>(asked: Promise<Answer<T>>): Promise<T> {
  const answer = await asked.catch((error: unknown) => {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError("Toolwharf does not answer. Is `toolwharf serve` still running?", 0);
  });
  if (answer.response.status === 401) signIn();
  if (answer.response.ok) return answer.data as T;
  const problem = answer.error as Schemas["Problem"] | undefined;
  const said = typeof problem === "object" && problem ? (problem.detail ?? problem.title) : undefined;
  throw new ApiError(said ?? `The gateway answered ${answer.response.status}.`, answer.response.status, problem);
}

/** Returns a function that waits for a change, and then refetches all queries whose keys begin with these words. */
export function useChange(...queryKey: string[]) {
  const client = useQueryClient();
  return async <T>(change: Promise<T>): Promise<T> => {
    const changed = await change;
    await client.invalidateQueries({ queryKey });
    return changed;
  };
}
