import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { Check, ChevronRight, PackageSearch, X } from "lucide-react";
import { Suspense, useDeferredValue, useState } from "react";

import { api, ApiError, ok, useChange, type Schemas } from "@/api/client";
import { order } from "@/api/queries";
import { LazyForm } from "@/form/lazy";
import { plural } from "@/lib";
import { Decide, ProjectField, TextField, useSubmit } from "@/ui/form";
import { Json, pretty } from "@/ui/json";
import { attempt, Dialog, toast } from "@/ui/overlay";
import { Badge, Button, Chips, Empty, Fact, Facts, Failure, message, Notice, Notices, Page, Panel, Problems, SearchBox, Skeleton } from "@/ui/parts";

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
        <Chips label="Source" value={by === "hand" ? "hand" : "registry"} onChange={choose} choices={[["registry", "From a registry"], ["hand", "From an entry"]]} />
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
  return (
    <div className="flex flex-col gap-4">
      <SearchBox value={typed} onChange={setTyped} placeholder="Search the registries" className="w-full max-w-xl" />
      <Notices texts={data?.notices} />
      {!data ? (
        <Skeleton />
      ) : data.servers.length ? (
        <ul aria-label="Servers of the registries" className="grid gap-3 lg:grid-cols-2 2xl:grid-cols-3">
          {data.servers.map((one) => (
            <li key={`${one.registry} ${one.name}`}>
              <button type="button" onClick={() => setChosen(one)} className="flex h-full w-full items-center gap-3 rounded-lg border bg-panel px-3.5 py-3 text-left hover:bg-hover">
                <span className="min-w-0 flex-1">
                  <span className="flex flex-wrap items-center gap-2">
                    <span className="truncate text-sm font-semibold">{one.title ?? one.name}</span>
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

type Network = unknown;
const reach = (network: Network) => (Array.isArray(network) ? network.join(", ") || "none" : typeof network === "string" ? network : JSON.stringify(network ?? "none"));

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
                    {one.what}
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
              <Fact name="Sandbox">{option.sandbox ? "yes" : "no"}</Fact>
              <Fact name="Network">{reach(option.network)}</Fact>
              {!!option.volumes.length && <Fact name="Keeps">{option.volumes.join(", ")}</Fact>}
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
            <LazyForm key={option.id} id="install" schema={option.inputs as never} value={values} onChange={setValues} onSubmit={(given) => void install(given)} />
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

type Kind = "npm" | "pypi" | "url" | "command" | "image";

/** An initial entry of each kind. Packages are sandboxed by default. */
const ENTRIES: Record<Kind, { label: string; entry: unknown }> = {
  npm: { label: "npm", entry: { command: "npx", args: ["-y", "@modelcontextprotocol/server-memory"], toolwharf: { sandbox: true } } },
  pypi: { label: "PyPI", entry: { command: "uvx", args: ["mcp-server-time"], toolwharf: { sandbox: true } } },
  url: { label: "Address", entry: { url: "https://mcp.example.com/mcp" } },
  command: { label: "Program", entry: { command: "/usr/local/bin/my-server", args: [], env: {} } },
  image: { label: "Image", entry: { image: "my-server:1", port: 9000 } },
};

/** Adds a server from an entry in the format of mcp.json. */
function ByHand() {
  const change = useChange("servers");
  const navigate = useNavigate();
  const [kind, setKind] = useState<Kind>("npm");
  const [name, setName] = useState("");
  const [text, setText] = useState(pretty(ENTRIES.npm.entry));
  const { busy, error, submit, setError } = useSubmit();
  const choose = (next: Kind) => {
    setKind(next);
    setText(pretty(ENTRIES[next].entry));
    setError(undefined);
  };
  const add = () =>
    submit(async () => {
      const entry = JSON.parse(text) as never;
      const made = await change(ok(api.PUT("/api/v1/mcp/servers/{id}", { params: { path: { id: name }, header: { "If-None-Match": "*" } }, body: entry })));
      toast(`${name} is added.`);
      await navigate({ to: "/servers/$id", params: { id: made.id ?? name } });
    });
  const wrong = error instanceof ApiError ? error.problem?.errors : undefined;
  return (
    <form className="flex max-w-2xl flex-col gap-4" onSubmit={(event) => (event.preventDefault(), void add())}>
      <Chips label="Kind" value={kind} onChange={choose} choices={(Object.keys(ENTRIES) as Kind[]).map((value) => [value, ENTRIES[value].label] as const)} />
      <TextField label="Name" value={name} onChange={setName} required placeholder="memory" />
      <Panel title="Entry" inner="p-2">
        <Json label="Entry" value={text} onChange={setText} errors={wrong} />
      </Panel>
      {!!error && (
        <Notice tone="bad">
          {message(error)}
          {wrong && <Problems of={wrong} />}
        </Notice>
      )}
      <div>
        <Button look="solid" type="submit" busy={busy}>
          Add it
        </Button>
      </div>
    </form>
  );
}
