// Projects, and what they choose.
import { useQueryClient } from "@tanstack/react-query";

import { api, ok, type Schemas } from "./client";

export type Project = Schemas["Project"];

/** The tools in the lists of clients: values of the setting `tools`. */
export const TOOL_LISTS: [value: NonNullable<Project["tools"]>, label: string][] = [
  ["all", "all tools"],
  ["auto", "all tools, or a short list if there are many"],
  ["search", "a short list"],
];

/** Returns a function that changes settings of a project. The others keep their values. */
export function useProjectChange({ id, name, description, enabled, naming, start, tools, listed_tools, max_result_tokens, compact_results }: Project) {
  const client = useQueryClient();
  return async (changes: Partial<Schemas["ProjectConfig"]>) => {
    const kept = { name, description, enabled, naming, start, tools, listed_tools, max_result_tokens, compact_results };
    const body = { ...kept, ...changes } as Schemas["ProjectConfig"];
    await ok(api.PUT("/api/v1/projects/{project}", { params: { path: { project: id } }, body }));
    await Promise.all(["projects", "tools"].map((noun) => client.invalidateQueries({ queryKey: [noun] })));
  };
}
