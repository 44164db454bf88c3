// Names of keys: call records contain only ids.
import { useQuery } from "@tanstack/react-query";

import { api, ok } from "./client";

/** Replaces a caller `key:ID` with the key's name. Other callers stay unchanged. */
export function useCallerNames(): (caller: string) => string {
  const { data } = useQuery({
    queryKey: ["keys", "names"],
    staleTime: 60_000,
    retry: false,
    queryFn: async ({ signal }) => {
      const { keys } = await ok(api.GET("/api/v1/keys", { params: { query: { limit: 1000 } }, signal }));
      return new Map(keys.map((key) => [`key:${key.id}`, key.name]));
    },
  });
  return (caller) => data?.get(caller) ?? caller;
}
