import "./app.css";

import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { setNonce } from "get-nonce";
import { createRoot } from "react-dom/client";

import { ApiError } from "./api/client";
import { at, here } from "./root";
import { makeRouter } from "./router";

/** The nonce of this page's content security policy, for libraries that add styles. */
const nonce = document.querySelector<HTMLMetaElement>("meta[property=csp-nonce]")?.nonce;
if (nonce) setNonce(nonce);

const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 2_000,
      retry: (failures, error) => failures < 2 && !(error instanceof ApiError && error.status >= 400 && error.status < 500),
    },
  },
});

/** A link may contain a key after the #, which browsers do not send. The sign-in page reads it from there. */
function signInWithKey(): boolean {
  const key = new URLSearchParams(location.hash.slice(1)).get("key");
  if (!key) return false;
  location.replace(at(`sign-in?${new URLSearchParams({ next: here() })}#${new URLSearchParams({ key })}`));
  return true;
}

if (!signInWithKey()) createRoot(document.getElementById("root")!).render(
  <QueryClientProvider client={client}>
    <RouterProvider router={makeRouter(client)} />
  </QueryClientProvider>,
);
