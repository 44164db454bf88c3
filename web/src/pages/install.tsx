import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { Check, ChevronRight, PackageSearch, X } from "lucide-react";
import { Suspense, useDeferredValue, useMemo, useState } from "react";

import { api, ApiError, ok, useChange, type Schemas } from "@/api/client";
import { chatTools, order, settings } from "@/api/queries";
import { LazyForm } from "@/form/lazy";
import { plural, reach } from "@/lib";
import { Decide, ProjectField, TextField, useSubmit } from "@/ui/form";
import { Json, pretty } from "@/ui/json";
import { attempt, Dialog, toast } from "@/ui/overlay";
import { Badge, Button, Chips, Empty, Fact, Facts, Failure, message, Notice, Notices, Page, Panel, Problems, SearchBox, Skeleton, type Tone } from "@/ui/parts";

const route = getRouteApi("/install");

/** Installs a server from a registry, or from an entry. */
export function Install() {
  const { by } = route.useSearch();
  const navigate = useNavigate();
  const choose = (to: "registry" | "hand") => void navigate({ to: "/install", search: (to === "hand" ? { by: to } : {}) as never, replace: true });
  return (
    <Page
      title="Install"
      lead="A server in a sandbox cannot read your files or use the network unless you allow it."
      actions={
        <Chips label="Source" value={by === "hand" ? "hand" : "registry"} onChange={choose} choices={[["registry", "From a registry"], ["hand", "By its entry"]]} />
      }
    >
      {by === "hand" ? <ByHand /> : <Registry />}
    </Page>
  );
}

function Registry() {
  const [typed, setTyped] = useState("");
  const search = useDeferredValue(typed);
  const [chosen, setChosen] = useState<Schemas["RegistryEntry"]>();
  const { data, error, refetch } = useQuery({
    queryKey: ["registry", search],
    placeholderData: keepPreviousData,
    queryFn: ({ signal }) => ok(api.GET("/api/v1/registry/servers", { params: { query: { limit: 100, ...(search ? { search } : {}) } }, signal })),
  });
  if (error && !data) return <Failure error={error} retry={() => void refetch()} />;
  const title = (one: Schemas["RegistryEntry"]) => one.title ?? one.name;
  // The results of a search are in the order of the registries.
  const listed = data && (search ? data.servers : data.servers.toSorted((a, b) => title(a).localeCompare(title(b), "en")));
  return (
    <div className="flex flex-col gap-4">
      <SearchBox value={typed} onChange={setTyped} placeholder="Search the registries" className="w-full max-w-xl" />
      <Notices texts={data?.notices} />
      {!listed ? (
        <Skeleton />
      ) : listed.length ? (
        <ul aria-label="Servers of the registries" className="grid gap-3 lg:grid-cols-2 2xl:grid-cols-3">
          {listed.map((one) => (
            <li key={`${one.registry} ${one.name}`}>
              <button type="button" onClick={() => setChosen(one)} className="flex h-full w-full items-center gap-3 rounded-lg border bg-panel px-3.5 py-3 text-left hover:bg-hover">
                <span className="min-w-0 flex-1">
                  <span className="flex flex-wrap items-center gap-2">
                    <span className="truncate text-sm font-semibold">{title(one)}</span>
                    {one.runs.map((how) => (
                      <Badge key={how}>{how}</Badge>
                    ))}
                  </span>
                  <span className="block truncate font-mono text-xs text-faint">{one.name}</span>
                  <span className="line-clamp-2 text-sm text-muted">{one.description}</span>
                </span>
                <ChevronRight aria-hidden className="size-4 shrink-0 text-faint" />
              </button>
            </li>
          ))}
        </ul>
      ) : (
        <Empty icon={<PackageSearch />} title="No matching server">
          Search for another word, or add a server from its entry.
        </Empty>
      )}
      {chosen && <One key={chosen.name} entry={chosen} onClose={() => setChosen(undefined)} />}
    </div>
  );
}

/** The schema of the inputs without the duty to enter secrets that are set already. */
function relaxed(option: Schemas["InstallOption"], project: string): unknown {
  const inputs = option.inputs as { required?: string[] };
  return project ? inputs : { ...inputs, required: inputs.required?.filter((name) => !option.set?.includes(name)) };
}

/** A registry entry: its description, its inputs, and after the trial run its tools. */
function One({ entry, onClose }: { entry: Schemas["RegistryEntry"]; onClose: () => void }) {
  const change = useChange("servers");
  const navigate = useNavigate();
  const { data, error } = useQuery({
    queryKey: ["registry", "one", entry.registry, entry.name],
    queryFn: ({ signal }) => ok(api.GET("/api/v1/registry/servers/{name}", { params: { path: { name: entry.name }, query: { registry: entry.registry } }, signal })),
  });
  const [which, setWhich] = useState<string>();
  const [name, setName] = useState(entry.name.split("/").at(-1)!.toLowerCase().replace(/[^a-z0-9_-]+/g, "-"));
  const [project, setProject] = useState("");
  const [values, setValues] = useState<Record<string, unknown>>({});
  const { busy, error: failed, submit } = useSubmit();
  const [done, setDone] = useState<Schemas["Installed"]>();
  const option = data?.options.find((one) => one.id === which) ?? data?.options.find((one) => !one.refused.length) ?? data?.options[0];
  const install = (given: Record<string, unknown>) => {
    const installed = () =>
      ok(
        api.POST("/api/v1/registry/servers/{name}/install", {
          params: { path: { name: entry.name }, query: { registry: entry.registry, ...(project ? { project } : {}) } },
          body: { name, digest: data!.digest, option: option!.id, values: given } as never,
        }),
      );
    return submit(() => change(installed().then(setDone)));
  };
  const enable = () =>
    attempt(async () => {
      const id = done!.server.id ?? name;
      await change(order(id, "enable"));
      await navigate({ to: "/servers/$id", params: { id } });
    }, `${name} is switched on.`);
  return (
    <Dialog onClose={onClose} title={entry.title ?? entry.name} description={entry.description} wide>
      {error ? (
        <Notice tone="bad">{message(error)}</Notice>
      ) : !data || !option ? (
        <Skeleton rows={3} />
      ) : done ? (
        <div className="flex flex-col gap-4">
          <Notice tone="ok">{done.unseen ?? `The trial run found ${plural(done.tools.length, "tool")}. The server is off until you switch it on.`}</Notice>
          <Notices texts={done.notices} />
          <Clashes name={name} project={project} tools={done.tools.map((tool) => tool.name)} />
          <Panel title="What it will be able to do">
            <Facts>
              <Fact name="Sandbox">{done.provider ?? "none"}</Fact>
              <Fact name="Network">{reach(done.network)}</Fact>
              <Fact name="Files">{[...done.mounts, ...done.volumes].join(", ") || "none of yours"}</Fact>
              {!!done.secrets.length && <Fact name="Secrets">{done.secrets.join(", ")}</Fact>}
            </Facts>
            {!!done.enforced.length && (
              <ul className="flex flex-wrap gap-x-4 gap-y-1 border-t px-3.5 py-2.5 text-sm">
                {done.enforced.map((one) => (
                  <li key={one.what} title={one.how} className="flex items-center gap-1.5">
                    {one.holds ? <Check aria-label="enforced" className="size-3.5 text-ok" /> : <X aria-label="not enforced" className="size-3.5 text-warn" />}
                    {one.holds ? one.what : `${one.what}: ${one.how}`}
                  </li>
                ))}
              </ul>
            )}
          </Panel>
          {!!done.tools.length && (
            <Panel title={plural(done.tools.length, "tool")}>
              <ul tabIndex={0} aria-label="Tools of the trial run" className="max-h-56 divide-y divide-line overflow-y-auto">
                {done.tools.map((one) => (
                  <li key={one.name} className="px-3.5 py-2">
                    <code className="text-sm font-medium">{one.name}</code>
                    <p className="line-clamp-2 text-xs text-muted">{one.description}</p>
                  </li>
                ))}
              </ul>
            </Panel>
          )}
          <Decide onCancel={onClose} cancel="Leave it off" action="Switch it on" onClick={() => void enable()} />
        </div>
      ) : (
        <div className="flex flex-col gap-4">
          {data.options.length > 1 && <Chips label="Installation option" value={option.id} onChange={setWhich} choices={data.options.map((one) => [one.id, one.kind] as const)} />}
          <Panel>
            <Facts>
              <Fact name="Package"><code className="break-all">{option.target}</code>{option.version && <span className="text-muted"> {option.version}</span>}</Fact>
              <Fact name="Registry">{entry.registry}</Fact>
              {(data.repository ?? data.website) && (
                <Fact name="Source">
                  <span className="break-all">{data.repository ?? data.website}</span>
                  {data.checked && <span className="text-muted">, checked on {data.checked}</span>}
                </Fact>
              )}
              <Fact name="Sandbox">{option.sandbox ? "yes" : "no: it can read your files and use the network"}</Fact>
              <Fact name="Network">{reach(option.network)}</Fact>
              {!!option.volumes.length && <Fact name="Data it keeps">{option.volumes.join(", ")}</Fact>}
            </Facts>
          </Panel>
          <Notices texts={option.notices} />
          {option.refused.map((one) => (
            <Notice key={one.pointer + one.detail} tone="bad">
              <code>{one.pointer}</code> {one.detail}
            </Notice>
          ))}
          <TextField label="Name" value={name} onChange={setName} />
          <ProjectField label="Available to" none="all clients of this machine" value={project} onChange={setProject} />
          <Suspense fallback={<Skeleton rows={2} />}>
            {!project && !!option.set?.length && <p className="text-sm text-muted">Set already: {option.set.join(", ")}. Leave the field empty to use that value.</p>}
            <LazyForm key={option.id} id="install" schema={relaxed(option, project) as never} value={values} onChange={setValues} onSubmit={(given) => void install(given)} />
            {!!failed && <Notice tone="bad">{message(failed)}</Notice>}
            <div className="flex items-center justify-end gap-2">
              <span className="flex-1 text-xs text-faint">{busy ? "Installing it, and starting a trial run in its sandbox. This can take a minute." : ""}</span>
              <Button onClick={onClose}>Cancel</Button>
              <Button look="solid" type="submit" form="install" busy={busy} disabled={!!option.refused.length}>
                Install and try it
              </Button>
            </div>
          </Suspense>
        </div>
      )}
    </Dialog>
  );
}

/** Says which tools of a new server have the name of a tool that is offered already. */
function Clashes({ name, project, tools }: { name: string; project: string; tools: string[] }) {
  const { data } = useQuery(chatTools(project || undefined));
  const naming = useQuery({ ...settings, retry: false }).data?.settings.find((one) => one.key === "naming");
  const clashing = Map.groupBy((data ?? []).filter((tool) => tool.offered && tool.server !== name && tools.includes(tool.native)), (tool) => tool.native);
  if (!clashing.size) return null;
  const isPrefixed = (naming?.value ?? naming?.default ?? "").includes("prefix-on-conflict");
  return (
    <Notice tone="warn">
      <p>{clashing.size === 1 ? "One tool has the name of a tool" : `${clashing.size} tools have the names of tools`} that clients have already{isPrefixed ? ". When this server is on, both get the names of their servers in front:" : ":"}</p>
      <ul className="mt-1 list-disc pl-4">
        {[...clashing].map(([native, others]) => (
          <li key={native} className="break-words">
            <code>{native}</code> of {others.map((tool) => tool.server).join(" and ")}
            {isPrefixed && <>: <code>{[name, ...others.map((tool) => tool.server)].map((server) => `${server}__${native}`).join(", ")}</code></>}
          </li>
        ))}
      </ul>
    </Notice>
  );
}

type Kind = "npm" | "pypi" | "url" | "command" | "image" | "file";

/** An initial entry of each kind. Packages are sandboxed by default. */
const ENTRIES: Record<Kind, { label: string; entry: unknown }> = {
  npm: { label: "npm", entry: { command: "npx", args: ["-y", "@modelcontextprotocol/server-memory"], toolwharf: { sandbox: true } } },
  pypi: { label: "PyPI", entry: { command: "uvx", args: ["mcp-server-time"], toolwharf: { sandbox: true } } },
  url: { label: "Address", entry: { url: "https://mcp.example.com/mcp" } },
  command: { label: "Program", entry: { command: "/usr/local/bin/my-server", args: [], env: {} } },
  image: { label: "Image", entry: { image: "my-server:1", port: 9000 } },
  file: { label: "Whole file", entry: { mcpServers: { memory: { command: "npx", args: ["-y", "@modelcontextprotocol/server-memory"] } } } },
};

/** The keys under which clients list their servers. */
const LISTS = /"(mcpServers|servers|context_servers)"\s*:/;
const isObject = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null && !Array.isArray(value);
const isEntry = (value: unknown) => isObject(value) && ["command", "url", "serverUrl", "httpUrl", "image"].some((key) => key in value);

/** Returns the text of a file with a list of servers, or undefined if the text is one entry. People also paste a part of a file. */
function wholeFile(text: string): string | undefined {
  for (const given of [text, `{${text.trim().replace(/,$/, "")}}`]) {
    try {
      const value = JSON.parse(given) as unknown;
      if (!isObject(value) || isEntry(value)) return undefined;
      if (LISTS.test(given)) return given;
      const all = Object.values(value);
      return all.length && all.every(isEntry) ? pretty({ mcpServers: value }) : undefined;
    } catch {
      // Comments and TOML are no JSON. The gateway reads them.
      if (given === text && (LISTS.test(text) || /^\s*\[mcp_servers\./m.test(text))) return text;
    }
  }
  return undefined;
}

/** Adds a server from an entry in the format of mcp.json. */
function ByHand() {
  const change = useChange("servers");
  const navigate = useNavigate();
  const [kind, setKind] = useState<Kind>("npm");
  const [name, setName] = useState("");
  const [text, setText] = useState(pretty(ENTRIES.npm.entry));
  const { busy, error, submit, setError } = useSubmit();
  const [imported, setImported] = useState<Schemas["Imported"]>();
  const file = useMemo(() => wholeFile(text), [text]);
  const choose = (next: Kind) => {
    setKind(next);
    setText(pretty(ENTRIES[next].entry));
    setError(undefined);
    setImported(undefined);
  };
  const add = () =>
    submit(async () => {
      setImported(undefined);
      if (file !== undefined) return setImported(await change(ok(api.POST("/api/v1/import", { body: { from: "the text", text: file } }))));
      const entry = JSON.parse(text) as never;
      const made = await change(ok(api.PUT("/api/v1/mcp/servers/{id}", { params: { path: { id: name }, header: { "If-None-Match": "*" } }, body: entry })));
      toast(`${name} is added.`);
      await navigate({ to: "/servers/$id", params: { id: made.id ?? name }, search: { added: "yes" } as never });
    });
  const wrong = error instanceof ApiError ? error.problem?.errors : undefined;
  return (
    <form className="flex max-w-2xl flex-col gap-4" onSubmit={(event) => (event.preventDefault(), void add())}>
      <Chips label="Kind" value={file === undefined ? kind : "file"} onChange={choose} choices={(Object.keys(ENTRIES) as Kind[]).map((value) => [value, ENTRIES[value].label] as const)} />
      {file === undefined ? (
        <TextField label="Name" value={name} onChange={setName} required placeholder="memory" />
      ) : (
        <p className="text-sm text-muted">These servers are added to the configuration file under their own names, as they are. A server whose name exists already is left alone.</p>
      )}
      <Panel title={file === undefined ? "Entry" : "Servers"} inner="p-2">
        <Json label="Entry" value={text} onChange={setText} errors={wrong} />
      </Panel>
      {file === undefined && <p className="text-xs text-faint">You can also paste a whole configuration file of a client, with all its servers.</p>}
      {!!error && (
        <Notice tone="bad">
          {message(error)}
          {wrong && <Problems of={wrong} />}
        </Notice>
      )}
      <div>
        <Button look="solid" type="submit" busy={busy}>
          {file === undefined ? "Add it" : "Add them"}
        </Button>
      </div>
      {imported && <Outcome of={imported} />}
    </form>
  );
}

/** The result for each server of a file. */
function Outcome({ of: done }: { of: Schemas["Imported"] }) {
  const off = new Map(done.off?.map((one) => [one.name, one.why]));
  const rows: [name: string, what: string, tone: Tone, why?: string | undefined][] = [
    ...done.added.map((name): (typeof rows)[number] => (off.has(name) ? [name, "added, switched off", "warn", off.get(name)] : [name, "added", "ok"])),
    ...done.unchanged.map((name): (typeof rows)[number] => [name, "exists already", "plain", "With the same entry. Nothing changed."]),
    ...done.clashes.map((name): (typeof rows)[number] => [name, "name exists already", "warn", "With another entry, which was kept. Add this server under another name."]),
    ...done.refused.map(({ name, why }): (typeof rows)[number] => [name, "not added", "bad", why]),
    ...(done.skipped ?? []).map(({ name, why }): (typeof rows)[number] => [name, "left out", "plain", why]),
  ];
  const exists = (name: string) => [done.added, done.unchanged, done.clashes].some((names) => names.includes(name));
  const notes = Map.groupBy(done.notes ?? [], (one) => one.name);
  return (
    <Panel title="What happened" className="min-w-0">
      <ul aria-label="What happened" className="divide-y divide-line">
        {rows.map(([name, what, tone, why]) => (
          <li key={name} className="px-3.5 py-2.5 text-sm">
            <p className="flex flex-wrap items-center gap-2">
              {exists(name) ? (
                <Link to="/servers/$id" params={{ id: name }} search={{ added: "yes" } as never} className="font-medium text-accent hover:underline">
                  {name}
                </Link>
              ) : (
                <span className="font-medium">{name}</span>
              )}
              <Badge tone={tone}>{what}</Badge>
            </p>
            {why && <p className="text-xs break-words text-muted">{why}</p>}
            {notes.get(name)?.map((note) => (
              <p key={note.why} className="text-xs break-words text-muted">
                {note.why}
              </p>
            ))}
          </li>
        ))}
        {!rows.length && <li className="px-3.5 py-2.5 text-sm text-muted">The text lists no servers.</li>}
      </ul>
      {!!done.warnings?.length && (
        <div className="flex flex-col gap-2 border-t p-3.5">
          <Notices texts={done.warnings} />
        </div>
      )}
      <p className="border-t px-3.5 py-2 text-xs break-all text-faint">In {done.file}</p>
    </Panel>
  );
}
