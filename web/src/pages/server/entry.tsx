// The configuration of a server. Every entry can be edited as a form and as JSON, regardless of where it is stored. It is
// validated, and compared with the stored one, before it is saved.
import type { RJSFSchema } from "@rjsf/utils";
import { queryOptions, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { api, ApiError, ok, type Schemas, type Server } from "@/api/client";
import { SchemaForm } from "@/form/lazy";
import { plural } from "@/lib";
import { Decide, useSubmit } from "@/ui/form";
import { Json, pretty } from "@/ui/json";
import { Dialog, toast } from "@/ui/overlay";
import { Button, Chips, Diff, Fact, Facts, message, Missing, Notice, Notices, Panel, Problems, Skeleton } from "@/ui/parts";

type Entry = Record<string, unknown>;
type Kept = { entry: Schemas["DeclaredEntry"]; tag: string };

export const kept = (id: string) =>
  queryOptions({
    queryKey: ["entry", id],
    // The entry is never refetched while the user edits it. A concurrent change is detected on save.
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
    // The document does not describe its own route.
    const get = api.GET as unknown as (path: string, init: RequestInit) => Promise<{ data?: unknown; response: Response }>;
    const { components } = (await ok(get("/openapi.json", { signal }))) as { components: { schemas: Record<string, RJSFSchema> } };
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

const PLACES: Record<string, string> = { file: "the configuration file", project: "its project", registered: "a registration over the API" };

export function Configuration({ server }: { server: Server }) {
  return (
    <div className="grid gap-4 p-4 md:p-6 xl:grid-cols-[3fr_2fr] xl:items-start">
      <EntryOf key={server.id} server={server} />
      <Panel title="Effective configuration">
        <Facts>
          <Fact name="Defined in">{PLACES[server.declared!] ?? server.declared}</Fact>
          <Fact name={server.transport === "stdio" ? "Runs" : "Address"}><code className="break-all">{server.target}</code>{!!server.arguments && <span className="text-muted"> with {plural(server.arguments, "argument")}</span>}</Fact>
          {!!server.environment?.length && <Fact name="Variables"><code className="break-all">{server.environment.join(", ")}</code></Fact>}
          {!!server.headers?.length && <Fact name="Headers"><code>{server.headers.join(", ")}</code></Fact>}
          <Fact name="Visible in projects">{server.project ?? (server.projects?.length ? server.projects.join(", ") : "all")}</Fact>
          <Fact name="Concurrent calls">at most {server.max_concurrency}</Fact>
          <Fact name="Call timeout">{(server.call_timeout_ms ?? 0) / 1000} s</Fact>
          <Fact name="Start timeout">{(server.start_timeout_ms ?? 0) / 1000} s</Fact>
          <Fact name="Connection">{server.sharing === "session" ? "one for each client session" : "shared by all clients"}</Fact>
          <Fact name="Restart after an exit">{server.restart_policy ?? "always (the default)"}</Fact>
        </Facts>
      </Panel>
    </div>
  );
}

function EntryOf({ server }: { server: Server }) {
  const { data, error, refetch } = useQuery(kept(server.id!));
  if (error instanceof ApiError && error.status === 403) return <Notice>Only an administrator can see and change the entry of this server.</Notice>;
  if (!data) return <Missing error={error} retry={refetch} rows={4} />;
  return <Editor key={data.tag} server={server} kept={data} />;
}

function Editor({ server, kept: { entry: told, tag } }: { server: Server; kept: Kept }) {
  const client = useQueryClient();
  const before = told.entry as Entry;
  const known = useQuery(schemas);
  const [view, setView] = useState<"form" | "json">("form");
  const [entry, setEntry] = useState<Entry>(before);
  const [text, setText] = useState(() => pretty(before));
  const { busy, error, submit, setError } = useSubmit();
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
  const check = () =>
    submit(async () => {
      const given = written();
      setChange({ entry: given, told: await put(given, true) });
    });
  const save = () =>
    submit(async () => {
      const { notices } = await put(change!.entry, false).finally(() => setChange(undefined));
      for (const notice of notices) toast(notice, true);
      toast("Saved. The server is restarted with the new entry.");
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
      title={<Chips label="How the entry is written" value={view} onChange={show} choices={[["form", "Form"], ["json", "JSON"]]} />}
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
            {wrong && view === "json" && <Problems of={wrong} />}
          </Notice>
        )}
        {view === "json" ? (
          <Json label="Entry of this server" value={text} onChange={setText} errors={wrong} />
        ) : known.error ? (
          <Notice tone="warn">The form cannot be shown: {message(known.error)}</Notice>
        ) : form ? (
          <SchemaForm rows={4} id="entry" schema={form} value={entry} onChange={setEntry} onSubmit={() => void check()} errors={wrong} />
        ) : (
          <Skeleton rows={4} />
        )}
      </div>
      <Dialog open={!!change} onClose={() => setChange(undefined)} title={`Change ${server.name}?`}>
        <div className="flex flex-col gap-3">
          {change?.told.diff ? <Diff text={change.told.diff} /> : <p className="text-sm text-muted">Nothing changes.</p>}
          <Notices texts={change?.told.notices} />
          <Decide onCancel={() => setChange(undefined)} action="Save" busy={busy} onClick={() => void save()} />
        </div>
      </Dialog>
    </Panel>
  );
}
