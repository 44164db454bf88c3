import { useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { ChevronRight, LogIn, LogOut, Package, Plus, RotateCcw, ShieldEllipsis, Trash2 } from "lucide-react";
import { useState, type ReactNode } from "react";

import { api, ok, type Schemas } from "@/api/client";
import { beginLogin, endLogin, LOGIN_WORDS } from "@/api/logins";
import { servers } from "@/api/queries";
import { ago, plural } from "@/lib";
import { Button } from "@/ui/button";
import { Json, pretty, Snippet } from "@/ui/json";
import { useTitle } from "@/ui/media";
import { attempt, Confirm, Dialog, toast } from "@/ui/overlay";
import { Badge, Empty, Failure, Field, Input, message, Notice, Panel, Select, Skeleton } from "@/ui/parts";
import { State } from "@/ui/state";
import { Table } from "@/ui/table";
import { Keys } from "./keys";

const route = getRouteApi("/projects/$project");

const TABS: { id: string; label: string; show: (project: Schemas["Project"]) => ReactNode }[] = [
  { id: "servers", label: "Servers", show: (one) => <Servers project={one.id} /> },
  { id: "keys", label: "Keys", show: (one) => <Keys project={one.id} /> },
  { id: "secrets", label: "Secrets", show: (one) => <Secrets project={one.id} /> },
  { id: "logins", label: "Sign-ins", show: (one) => <Logins project={one.id} /> },
  { id: "products", label: "Products", show: (one) => <Products project={one.id} /> },
  { id: "settings", label: "Settings", show: (one) => <Settings key={one.updated_at} project={one} /> },
];

export function ProjectPage() {
  const { project: id } = route.useParams();
  const { tab = "servers" } = route.useSearch();
  const { data, error, refetch } = useQuery({
    queryKey: ["projects", id],
    queryFn: ({ signal }) => ok(api.GET("/api/v1/projects/{project}", { params: { path: { project: id } }, signal })),
  });
  useTitle(data?.name || id);
  if (error && !data) return <Failure error={error} retry={() => void refetch()} />;
  if (!data) return <Skeleton />;
  const shown = TABS.find((one) => one.id === tab) ?? TABS[0]!;
  return (
    <div>
      <header className="px-4 pt-3 pb-2 md:px-6">
        <div className="flex items-center gap-1 text-xs text-faint">
          <Link to="/projects" className="hover:text-text hover:underline">
            Projects
          </Link>
          <ChevronRight aria-hidden className="size-3" />
          <code>{data.id}</code>
        </div>
        <div className="flex items-center gap-3">
          <h1 className="truncate text-xl font-semibold tracking-tight">{data.name || data.id}</h1>
          {!data.enabled && <Badge>off</Badge>}
        </div>
        {data.description && <p className="text-sm text-muted">{data.description}</p>}
      </header>
      <nav aria-label="Parts of this project" className="flex gap-1 overflow-x-auto border-b px-2 md:px-4">
        {TABS.map((one) => (
          <Link
            key={one.id}
            to="/projects/$project"
            params={{ project: id }}
            search={one.id === "servers" ? {} : { tab: one.id }}
            replace
            activeOptions={{ exact: true, includeSearch: true }}
            aria-current={one === shown ? "page" : undefined}
            className="shrink-0 border-b-2 border-transparent px-2 py-2.5 text-sm font-medium text-muted hover:text-text aria-[current=page]:border-accent aria-[current=page]:text-text"
          >
            {one.label}
          </Link>
        ))}
      </nav>
      <div className="p-4 md:p-6">{shown.show(data)}</div>
    </div>
  );
}

function Servers({ project }: { project: string }) {
  const { data } = useQuery(servers);
  const mine = data?.filter((one) => one.project === project || !one.projects?.length || one.projects.includes(project)).filter((one) => !one.project || one.project === project);
  if (!mine) return <Skeleton />;
  return (
    <div className="flex flex-col gap-4">
      <Panel title="Its endpoint">
        <div className="p-3">
          <Snippet text={`${location.origin}/mcp/${project}`} />
        </div>
      </Panel>
      {mine.length ? (
        <Panel title={plural(mine.length, "server")}>
          <Table
            label="Servers of this project"
            items={mine}
            id={(one) => one.id!}
            columns={[
              { name: "Name", show: (one) => <Link to="/servers/$id" params={{ id: one.id! }} className="font-medium hover:underline">{one.name}</Link> },
              { name: "State", show: (one) => <State server={one} /> },
              { name: "Whose", wide: true, show: (one) => <span className="text-muted">{one.project ? "the project's" : "everybody's"}</span> },
              { name: "Tools", right: true, show: (one) => one.tools },
            ]}
          />
        </Panel>
      ) : (
        <Empty title="No servers">
          Add one with <code>toolwharf add --project {project} NAME URL</code>.
        </Empty>
      )}
    </div>
  );
}

function Secrets({ project }: { project: string }) {
  const client = useQueryClient();
  const key = ["secrets", project];
  const { data, error, refetch } = useQuery({
    queryKey: key,
    queryFn: async ({ signal }) => (await ok(api.GET("/api/v1/projects/{project}/secrets", { params: { path: { project }, query: { limit: 1000 } }, signal }))).secrets,
  });
  const [setting, setSetting] = useState<{ name: string; isNew: boolean }>();
  const [removing, setRemoving] = useState<string>();
  if (error && !data) return <Failure error={error} retry={() => void refetch()} />;
  if (!data) return <Skeleton />;
  const add = (
    <Button look="solid" icon={<Plus />} onClick={() => setSetting({ name: "", isNew: true })}>
      New secret
    </Button>
  );
  return (
    <>
      {data.length ? (
        <Panel title="Secrets" actions={add}>
          <Table
            label="Secrets"
            items={data}
            id={(one) => one.name}
            columns={[
              { name: "Name", show: (one) => <code className="font-medium">{one.name}</code> },
              { name: "Version", show: (one) => one.version },
              { name: "Set", wide: true, show: (one) => <span className="text-muted">{ago(one.updated_at)}</span> },
              {
                name: "",
                right: true,
                show: (one) => (
                  <>
                    <Button look="quiet" aria-label={`Set ${one.name} again`} title="Set again" icon={<RotateCcw />} onClick={() => setSetting({ name: one.name, isNew: false })} />
                    <Button look="quiet" aria-label={`Remove ${one.name}`} icon={<Trash2 />} onClick={() => setRemoving(one.name)} />
                  </>
                ),
              },
            ]}
          />
        </Panel>
      ) : (
        <Empty icon={<ShieldEllipsis />} title="No secrets yet" action={add}>
          Entries of this project's servers use them as <code>{"${NAME}"}</code>. A value is encrypted when it is saved, and never shown again.
        </Empty>
      )}
      {setting && <SetSecret project={project} name={setting.name} isNew={setting.isNew} onClose={() => setSetting(undefined)} onDone={() => client.invalidateQueries({ queryKey: key })} />}
      <Confirm
        open={!!removing}
        onOpenChange={(open) => !open && setRemoving(undefined)}
        title={`Remove ${removing ?? ""}?`}
        action="Remove"
        onConfirm={async () => {
          await ok(api.DELETE("/api/v1/projects/{project}/secrets/{name}", { params: { path: { project, name: removing! } } }));
          await client.invalidateQueries({ queryKey: key });
        }}
      >
        Servers that use it are blocked until it is set again. The value cannot be recovered.
      </Confirm>
    </>
  );
}

function SetSecret({ project, name: named, isNew, onClose, onDone }: { project: string; name: string; isNew: boolean; onClose: () => void; onDone: () => Promise<void> }) {
  const [name, setName] = useState(named);
  const [value, setValue] = useState("");
  const [error, setError] = useState<unknown>();
  const save = async () => {
    setError(undefined);
    try {
      await ok(api.PUT("/api/v1/projects/{project}/secrets/{name}", { params: { path: { project, name } }, body: { value } }));
      await onDone();
      toast(`${name} is set.`);
      onClose();
    } catch (failed) {
      setError(failed);
    }
  };
  return (
    <Dialog open onOpenChange={onClose} title={isNew ? "New secret" : `Set ${named} again`} description="Servers that use it are restarted with the new value.">
      <form className="flex flex-col gap-4" onSubmit={(event) => (event.preventDefault(), void save())}>
        <Field label="Name">
          <Input value={name} onChange={(event) => setName(event.target.value)} disabled={!isNew} required autoFocus={isNew} />
        </Field>
        <Field label="Value">
          <Input type="password" autoComplete="new-password" value={value} onChange={(event) => setValue(event.target.value)} required autoFocus={!isNew} />
        </Field>
        {!!error && <Notice tone="bad">{message(error)}</Notice>}
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Cancel</Button>
          <Button look="solid" type="submit">
            Save
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

function Logins({ project }: { project: string }) {
  const client = useQueryClient();
  const known = useQuery(servers);
  const { data, error, refetch } = useQuery({
    queryKey: ["logins", project],
    queryFn: async ({ signal }) => (await ok(api.GET("/api/v1/logins", { params: { query: { project } }, signal }))).logins,
    refetchInterval: 3_000,
  });
  if (error && !data) return <Failure error={error} retry={() => void refetch()} />;
  if (!data) return <Skeleton />;
  if (!data.length) return <Empty icon={<LogIn />} title="No sign-ins">Servers at a URL that ask for a sign-in are listed here.</Empty>;
  const idOf = (one: Schemas["Login"]) => known.data?.find((server) => server.name === one.server && (server.project ?? null) === (one.project ?? null))?.id ?? one.server;
  const begin = (one: Schemas["Login"]) =>
    attempt(() => beginLogin(idOf(one)));
  const end = (one: Schemas["Login"]) =>
    attempt(async () => {
      await endLogin(idOf(one));
      await client.invalidateQueries({ queryKey: ["logins"] });
    }, `${one.server} is signed out.`);
  return (
    <Panel title="Sign-ins">
      <Table
        label="Sign-ins"
        items={data}
        id={(one) => `${one.project} ${one.server}`}
        columns={[
          { name: "Server", show: (one) => <span className="font-medium">{one.server}</span> },
          { name: "State", show: (one) => <Badge tone={LOGIN_WORDS[one.state]?.[1] ?? "plain"} title={one.reason ?? undefined}>{LOGIN_WORDS[one.state]?.[0] ?? one.state}</Badge> },
          { name: "Whose", wide: true, show: (one) => <span className="text-muted">{one.mode === "user" ? "yours" : "everybody's"}</span> },
          { name: "Issuer", wide: true, show: (one) => <span className="break-all text-muted">{one.issuer}</span> },
          { name: "", right: true, show: (one) => (one.state === "signed_in" ? <Button icon={<LogOut />} onClick={() => void end(one)}>Sign out</Button> : <Button look="solid" icon={<LogIn />} onClick={() => void begin(one)}>Sign in</Button>) },
        ]}
      />
    </Panel>
  );
}

function Products({ project }: { project: string }) {
  const client = useQueryClient();
  const key = ["products", project];
  const { data, error, refetch } = useQuery({
    queryKey: key,
    queryFn: async ({ signal }) => (await ok(api.GET("/api/v1/projects/{project}/products", { params: { path: { project }, query: { limit: 1000 } }, signal }))).products,
  });
  const [text, setText] = useState<string>();
  const [wrong, setWrong] = useState<unknown>();
  const [removing, setRemoving] = useState<string>();
  if (error && !data) return <Failure error={error} retry={() => void refetch()} />;
  if (!data) return <Skeleton />;
  const begin = () => setText(pretty({ name: "", version: "1.0.0", mcp: { servers: {} } }));
  const edit = (name: string) =>
    attempt(async () => {
      const whole = await ok(api.GET("/api/v1/projects/{project}/products/{name}", { params: { path: { project, name } } }));
      setText(pretty(whole.manifest ?? {}));
    });
  const save = async () => {
    setWrong(undefined);
    try {
      const manifest = JSON.parse(text!) as { name: string };
      await ok(api.PUT("/api/v1/projects/{project}/products/{name}", { params: { path: { project, name: manifest.name } }, body: manifest as never }));
      await client.invalidateQueries({ queryKey: key });
      toast(`${manifest.name} is installed.`);
      setText(undefined);
    } catch (failed) {
      setWrong(failed);
    }
  };
  const add = (
    <Button look="solid" icon={<Plus />} onClick={begin}>
      Install a product
    </Button>
  );
  return (
    <>
      {data.length ? (
        <Panel title="Products" actions={add}>
          <Table
            label="Products"
            items={data}
            id={(one) => one.name}
            columns={[
              { name: "Name", show: (one) => <button type="button" className="font-medium hover:underline" onClick={() => void edit(one.name)}>{one.name}</button> },
              { name: "Version", show: (one) => <code>{one.version}</code> },
              { name: "Servers", wide: true, show: (one) => <span className="text-muted">{one.servers.join(", ")}</span> },
              { name: "", right: true, show: (one) => <Button look="quiet" aria-label={`Remove ${one.name}`} icon={<Trash2 />} onClick={() => setRemoving(one.name)} /> },
            ]}
          />
        </Panel>
      ) : (
        <Empty icon={<Package />} title="No products" action={add}>
          A product is a manifest with servers that come and go together.
        </Empty>
      )}
      <Dialog open={text !== undefined} onOpenChange={(open) => !open && (setText(undefined), setWrong(undefined))} title="Manifest" description="What is not usable in it is said, and then nothing is changed." wide>
        <div className="flex flex-col gap-3">
          <Json label="Manifest" value={text ?? ""} onChange={setText} />
          {!!wrong && <Notice tone="bad">{message(wrong)}</Notice>}
          <div className="flex justify-end gap-2">
            <Button onClick={() => setText(undefined)}>Cancel</Button>
            <Button look="solid" onClick={() => void save()}>
              Install
            </Button>
          </div>
        </div>
      </Dialog>
      <Confirm
        open={!!removing}
        onOpenChange={(open) => !open && setRemoving(undefined)}
        title={`Remove ${removing ?? ""}?`}
        action="Remove"
        onConfirm={async () => {
          await ok(api.DELETE("/api/v1/projects/{project}/products/{name}", { params: { path: { project, name: removing! } } }));
          await client.invalidateQueries({ queryKey: key });
        }}
      >
        Its servers are stopped and removed with it.
      </Confirm>
    </>
  );
}

function Settings({ project }: { project: Schemas["Project"] }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [form, setForm] = useState({ name: project.name, description: project.description, enabled: project.enabled, naming: project.naming ?? "", start: project.start ?? "" });
  const [removing, setRemoving] = useState(false);
  const change = (more: Partial<typeof form>) => setForm((old) => ({ ...old, ...more }));
  const save = () =>
    attempt(async () => {
      await ok(api.PUT("/api/v1/projects/{project}", { params: { path: { project: project.id } }, body: { ...form, naming: form.naming || null, start: form.start || null } as never }));
      await client.invalidateQueries({ queryKey: ["projects"] });
    }, "Saved.");
  return (
    <div className="flex max-w-xl flex-col gap-6">
      <form className="flex flex-col gap-4" onSubmit={(event) => (event.preventDefault(), void save())}>
        <Field label="Name">
          <Input value={form.name} onChange={(event) => change({ name: event.target.value })} />
        </Field>
        <Field label="Description">
          <Input value={form.description} onChange={(event) => change({ description: event.target.value })} />
        </Field>
        <Field label="Names of tools" help="What happens where two servers have a tool of the same name.">
          <Select value={form.naming} onChange={(event) => change({ naming: event.target.value as never })}>
            <option value="">as for all projects</option>
            {["prefix-on-conflict", "always-prefix", "last-wins", "preserve"].map((one) => (
              <option key={one}>{one}</option>
            ))}
          </Select>
        </Field>
        <Field label="Start of servers for a chat">
          <Select value={form.start} onChange={(event) => change({ start: event.target.value as never })}>
            <option value="">as for all projects</option>
            <option>sequential</option>
            <option>parallel</option>
          </Select>
        </Field>
        <label className="flex items-center gap-2 text-sm">
          <input type="checkbox" className="size-4 accent-solid" checked={form.enabled} onChange={(event) => change({ enabled: event.target.checked })} /> The project is on
        </label>
        <div>
          <Button look="solid" type="submit">
            Save
          </Button>
        </div>
      </form>
      <Panel title="Remove this project">
        <div className="flex flex-wrap items-center justify-between gap-3 p-3.5">
          <p className="text-sm text-muted">Its servers, keys, secrets and products go with it.</p>
          <Button look="danger" onClick={() => setRemoving(true)}>
            Remove
          </Button>
        </div>
      </Panel>
      <Confirm
        open={removing}
        onOpenChange={setRemoving}
        title={`Remove ${project.name || project.id}?`}
        action="Remove the project"
        onConfirm={async () => {
          await ok(api.DELETE("/api/v1/projects/{project}", { params: { path: { project: project.id } } }));
          await client.invalidateQueries({ queryKey: ["projects"] });
          await navigate({ to: "/projects" });
        }}
      >
        This cannot be undone. Its servers are stopped, its keys stop working, its secrets are lost. Its call records are kept.
      </Confirm>
    </div>
  );
}
