// A server's entry, wherever it is stored: as a form and as JSON, validated and compared before it is saved.
import type { RJSFSchema } from "@rjsf/utils";
import { queryOptions, useQuery, useQueryClient } from "@tanstack/react-query";
import { lazy, Suspense, useState } from "react";

import { api, ApiError, get, ok, type Schemas, type Server } from "@/api/client";
import { Button } from "@/ui/button";
import { Diff } from "@/ui/diff";
import { Json, pretty } from "@/ui/json";
import { Dialog, toast } from "@/ui/overlay";
import { Chips, Failure, message, Notice, Panel, Skeleton } from "@/ui/parts";

const SchemaForm = lazy(() => import("@/form/schema-form").then((file) => ({ default: file.SchemaForm })));

type Entry = Record<string, unknown>;
type Kept = { entry: Schemas["DeclaredEntry"]; tag: string };

const kept = (id: string) =>
  queryOptions({
    queryKey: ["entry", id],
    // Never refetched while the user edits. A concurrent change is detected on save.
    staleTime: Infinity,
    gcTime: 0,
    queryFn: async ({ signal }): Promise<Kept> => {
      const asked = api.GET("/api/v1/mcp/servers/{id}/entry", { params: { path: { id } }, signal });
      return { entry: await ok(asked), tag: (await asked).response.headers.get("etag") ?? "" };
    },
  });

/** The schemas of entries, from the OpenAPI document. */
const schemas = queryOptions({
  queryKey: ["openapi"],
  staleTime: Infinity,
  queryFn: async ({ signal }) => {
    const { components } = await get<{ components: { schemas: Record<string, RJSFSchema> } }>("/openapi.json", signal);
    return JSON.parse(JSON.stringify(components.schemas).replaceAll("#/components/schemas/", "#/$defs/")) as Record<string, RJSFSchema>;
  },
});

/** Merges the properties of a schema and all its parts. */
function flat(schema: RJSFSchema, all: Record<string, RJSFSchema>): NonNullable<RJSFSchema["properties"]> {
  const named = schema.$ref ? all[schema.$ref.replace("#/$defs/", "")] : undefined;
  return Object.assign({}, named && flat(named, all), schema.properties, ...(schema.allOf ?? []).map((part) => flat(part as RJSFSchema, all)));
}

/** The form schema of an entry: all properties for its kind of server, set and required ones first. Alternative spellings appear only if they are used. */
function formOf(entry: Entry, declared: string, all: Record<string, RJSFSchema>): RJSFSchema {
  const isRemote = ["url", "serverUrl", "httpUrl"].some((key) => key in entry);
  const kind = declared === "registered" ? "Registration" : isRemote ? "RemoteServer" : "LaunchedServer";
  const known = flat(all[kind]!, all);
  const others = new Set(["serverUrl", "httpUrl", "transport", "enabled", "excludeTools", "environment", "resource_limits", "ports", "name", "project"]);
  const keys = [...Object.keys(entry), ...Object.keys(known).filter((key) => !(key in entry) && !others.has(key) && !(key === "toolwharf" && declared === "registered"))];
  // Properties without a form stay unchanged and are shown in the JSON.
  const properties = Object.fromEntries(keys.filter((key) => known[key]).map((key) => [key, simple(known[key] as RJSFSchema, entry[key], all)]));
  return { type: "object", properties, $defs: all };
}

/** Picks the schema variant that matches the value, or the first. */
function simple(schema: RJSFSchema, value: unknown, all: Record<string, RJSFSchema>): RJSFSchema {
  const { $ref, ...own } = schema;
  const named = $ref ? { ...all[$ref.replace("#/$defs/", "")], ...own } : schema;
  const joined: RJSFSchema = named.allOf?.length === 1 ? { ...simple(named.allOf[0] as RJSFSchema, value, all), ...named, allOf: undefined } : named;
  if (joined.properties) {
    const of = typeof value === "object" && value !== null ? (value as Entry) : {};
    const properties = Object.fromEntries(Object.entries(joined.properties).map(([key, part]) => [key, simple(part as RJSFSchema, of[key], all)]));
    return { ...joined, properties };
  }
  if (!joined.anyOf) return joined;
  const { anyOf, ...rest } = joined;
  const parts = anyOf.map((part) => simple(part as RJSFSchema, value, all));
  const typed = (part: RJSFSchema) => (Array.isArray(part.type) ? part.type : [part.type]);
  const is = value === undefined ? undefined : Array.isArray(value) ? "array" : Number.isInteger(value) ? "integer" : typeof value;
  const found = parts.find((part) => (part.enum ? part.enum.includes(value as never) : is && typed(part).includes(is as never)));
  return { ...(found ?? parts[0]), ...rest };
}

export function EntryOf({ server }: { server: Server }) {
  const { data, error, refetch } = useQuery(kept(server.id!));
  if (error instanceof ApiError && error.status === 403) return <Notice>Only an administrator can see and change the entry of this server.</Notice>;
  if (error && !data) return <Failure error={error} retry={() => void refetch()} />;
  if (!data) return <Skeleton rows={4} />;
  return <Editor key={data.tag} server={server} kept={data} />;
}

function Editor({ server, kept: { entry: told, tag } }: { server: Server; kept: Kept }) {
  const client = useQueryClient();
  const before = told.entry as Entry;
  const known = useQuery(schemas);
  const [view, setView] = useState<"form" | "json">("form");
  const [entry, setEntry] = useState<Entry>(before);
  const [text, setText] = useState(() => pretty(before));
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const [change, setChange] = useState<{ entry: Entry; told: Schemas["EntryChange"] }>();
  const isChanged = view === "form" ? pretty(entry) !== pretty(before) : text !== pretty(before);

  /** Returns the current entry. Throws if the JSON is invalid. */
  const written = () => (view === "form" ? entry : (JSON.parse(text) as Entry));
  const show = (next: "form" | "json") => {
    setError(undefined);
    try {
      const now = written();
      setEntry(now);
      setText(pretty(now));
      setView(next);
    } catch (failed) {
      setError(failed);
    }
  };
  const put = (given: Entry, dry_run: boolean) =>
    ok(api.PUT("/api/v1/mcp/servers/{id}/entry", { params: { path: { id: server.id! }, query: { dry_run }, header: { "If-Match": tag } }, body: given as never }));
  const attempt = async (doing: () => Promise<void>) => {
    setBusy(true);
    setError(undefined);
    try {
      await doing();
    } catch (failed) {
      setChange(undefined);
      setError(failed);
    } finally {
      setBusy(false);
    }
  };
  const check = () =>
    attempt(async () => {
      const given = written();
      setChange({ entry: given, told: await put(given, true) });
    });
  const save = () =>
    attempt(async () => {
      const { notices } = await put(change!.entry, false);
      setChange(undefined);
      for (const notice of notices) toast(notice, true);
      toast("Saved. The server is restarted with it.");
      await client.invalidateQueries({ queryKey: ["entry", server.id!] });
      await client.invalidateQueries({ queryKey: ["server", server.id!] });
    });
  const undo = () => (setEntry(before), setText(pretty(before)), setError(undefined));
  const again = () => client.invalidateQueries({ queryKey: ["entry", server.id!] });
  const wrong = error instanceof ApiError ? error.problem?.errors : undefined;
  const isStale = error instanceof ApiError && error.status === 412;
  const form = known.data && formOf(before, told.declared, known.data);
  return (
    <Panel
      title={<Chips label="How the entry is written" value={view} onChange={show} choices={[{ value: "form", label: "Form" }, { value: "json", label: "JSON" }]} />}
      actions={
        <div className="flex gap-2">
          <Button look="quiet" disabled={!isChanged} onClick={undo}>
            Undo
          </Button>
          <Button look="solid" busy={busy} disabled={!isChanged} {...(view === "form" ? { type: "submit", form: "entry" } : { onClick: () => void check() })}>
            Review
          </Button>
        </div>
      }
    >
      <div className="flex flex-col gap-3 p-3.5">
        <p className="text-xs text-muted">
          {told.file ? <>In <code className="break-all">{told.file}</code>. </> : null}
          <code>•••</code> stands for a value that is kept; <code>{"${NAME}"}</code> is filled in when the server starts.
        </p>
        {!!error && (
          <Notice tone="bad" actions={isStale && <Button onClick={() => void again()}>Load it again</Button>}>
            {message(error)}
            {wrong && view === "json" && (
              <ul className="mt-1 list-disc pl-4">
                {wrong.map((one) => (
                  <li key={one.pointer + one.detail}>
                    <code>{one.pointer || "/"}</code> {one.detail}
                  </li>
                ))}
              </ul>
            )}
          </Notice>
        )}
        {view === "json" ? (
          <Json label="Entry of this server" value={text} onChange={setText} errors={wrong} />
        ) : known.error ? (
          <Notice tone="warn">The form cannot be shown: {message(known.error)}</Notice>
        ) : form ? (
          <Suspense fallback={<Skeleton rows={4} />}>
            <SchemaForm id="entry" schema={form} value={entry} onChange={setEntry} onSubmit={() => void check()} errors={wrong} />
          </Suspense>
        ) : (
          <Skeleton rows={4} />
        )}
      </div>
      <Dialog open={!!change} onOpenChange={(open) => !open && setChange(undefined)} title={`Change ${server.name}?`}>
        <div className="flex flex-col gap-3">
          {change?.told.diff ? <Diff text={change.told.diff} /> : <p className="text-sm text-muted">Nothing changes.</p>}
          {change?.told.notices.map((notice) => (
            <Notice key={notice} tone="warn">
              {notice}
            </Notice>
          ))}
          <div className="flex justify-end gap-2">
            <Button onClick={() => setChange(undefined)}>Cancel</Button>
            <Button look="solid" busy={busy} onClick={() => void save()}>
              Save
            </Button>
          </div>
        </div>
      </Dialog>
    </Panel>
  );
}
