import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { LogIn, LogOut, Package } from "lucide-react";
import { useState } from "react";

import { api, ok, useChange, type Schemas } from "@/api/client";
import { beginLogin, endLogin, LOGIN_WORDS } from "@/api/logins";
import { TOOL_LISTS, useProjectChange } from "@/api/projects";
import { oneProject, servers } from "@/api/queries";
import { plural } from "@/lib";
import { at } from "@/root";
import { ChoiceField, Decide, TextField, useSubmit } from "@/ui/form";
import { Json, pretty, Snippet } from "@/ui/json";
import { Listing } from "@/ui/listing";
import { useTitle } from "@/ui/media";
import { Crumbs, Tabs, type Tab } from "@/ui/navigation";
import { attempt, Confirm, Dialog, toast } from "@/ui/overlay";
import { Badge, Button, message, Missing, Notice, Panel, Skeleton } from "@/ui/parts";
import { State } from "@/ui/state";
import { Keys } from "./keys";
import { Secrets } from "./secrets";

const route = getRouteApi("/projects/$project");

const TABS: Tab<Schemas["Project"]>[] = [
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
  const { data, error, refetch } = useQuery(oneProject(id));
  useTitle(data?.name || id);
  if (!data) return <Missing error={error} retry={refetch} />;
  const shown = TABS.find((one) => one.id === tab) ?? TABS[0]!;
  return (
    <div>
      <header className="px-4 pt-3 pb-2 md:px-6">
        <Crumbs to="/projects" list="Projects">
          <code>{data.id}</code>
        </Crumbs>
        <div className="flex items-center gap-3">
          <h1 className="truncate text-xl font-semibold tracking-tight">{data.name || data.id}</h1>
          {!data.enabled && <Badge>off</Badge>}
        </div>
        {data.description && <p className="text-sm text-muted">{data.description}</p>}
      </header>
      <Tabs label="Parts of this project" tabs={TABS} shown={shown} to="/projects/$project" params={{ project: id }} />
      <div className="p-4 md:p-6">{shown.show(data)}</div>
    </div>
  );
}

function Servers({ project }: { project: string }) {
  const known = useQuery(servers);
  const mine = known.data?.filter((one) => one.project === project || !one.projects?.length || one.projects.includes(project)).filter((one) => !one.project || one.project === project).sort((a, b) => a.name!.localeCompare(b.name!));
  if (!mine) return <Skeleton />;
  return (
    <div className="flex flex-col gap-4">
      <Panel title="Endpoint for clients" inner="p-3">
        <Snippet text={at(`mcp/${project}`)} />
      </Panel>
      <Listing
        query={{ ...known, data: mine }}
        label="Servers of this project"
        title={plural(mine.length, "server")}
        id={(one) => one.id!}
        columns={[
          { name: "Name", show: (one) => <Link to="/servers/$id" params={{ id: one.id! }} className="font-medium hover:underline">{one.name}</Link> },
          { name: "State", show: (one) => <><State server={one} />{one.reason && <p className="text-xs text-muted">{one.reason}</p>}</> },
          { name: "Belongs to", wide: true, show: (one) => <span className="text-muted">{one.project ? "this project" : "all projects"}</span> },
          { name: "Tools", right: true, show: (one) => one.tools },
        ]}
        empty="No servers"
      >
        Add one with <code>toolwharf add --project {project} NAME URL</code>.
      </Listing>
    </div>
  );
}

function Logins({ project }: { project: string }) {
  const change = useChange("logins");
  const known = useQuery(servers);
  const query = useQuery({
    queryKey: ["logins", project],
    queryFn: async ({ signal }) => (await ok(api.GET("/api/v1/logins", { params: { query: { project } }, signal }))).logins,
    refetchInterval: 3_000,
  });
  const idOf = (one: Schemas["Login"]) => known.data?.find((server) => server.name === one.server && (server.project ?? null) === (one.project ?? null))?.id ?? one.server;
  const begin = (one: Schemas["Login"]) => attempt(() => beginLogin(idOf(one)));
  const end = (one: Schemas["Login"]) => attempt(() => change(endLogin(idOf(one))), `${one.server} is signed out.`);
  return (
    <Listing
      query={query}
      label="Sign-ins"
      id={(one) => `${one.project} ${one.server}`}
      columns={[
        { name: "Server", show: (one) => <span className="font-medium">{one.server}</span> },
        { name: "State", show: (one) => <Badge tone={LOGIN_WORDS[one.state]?.[1] ?? "plain"} title={one.reason ?? undefined}>{LOGIN_WORDS[one.state]?.[0] ?? one.state}</Badge> },
        { name: "Used for", wide: true, show: (one) => <span className="text-muted">{one.mode === "user" ? "your calls" : "all callers"}</span> },
        { name: "Issuer", wide: true, show: (one) => <span className="break-all text-muted">{one.issuer}</span> },
      ]}
      orders={(one) => (one.state === "signed_in" ? <Button icon={<LogOut />} onClick={() => void end(one)}>Sign out</Button> : <Button look="solid" icon={<LogIn />} onClick={() => void begin(one)}>Sign in</Button>)}
      icon={<LogIn />}
      empty="No sign-ins"
    >
      Servers at a URL that ask for a sign-in are listed here.
    </Listing>
  );
}

function Products({ project }: { project: string }) {
  const change = useChange("products", project);
  const query = useQuery({
    queryKey: ["products", project],
    queryFn: async ({ signal }) => (await ok(api.GET("/api/v1/projects/{project}/products", { params: { path: { project }, query: { limit: 1000 } }, signal }))).products,
  });
  const [text, setText] = useState<string>();
  const { error, submit, setError } = useSubmit();
  const edit = (name: string) =>
    attempt(async () => {
      const whole = await ok(api.GET("/api/v1/projects/{project}/products/{name}", { params: { path: { project, name } } }));
      setText(pretty(whole.manifest ?? {}));
    });
  const save = () =>
    submit(async () => {
      const manifest = JSON.parse(text!) as { name: string };
      await change(ok(api.PUT("/api/v1/projects/{project}/products/{name}", { params: { path: { project, name: manifest.name } }, body: manifest as never })));
      toast(`${manifest.name} is installed.`);
      setText(undefined);
    });
  const remove = (name: string) => change(ok(api.DELETE("/api/v1/projects/{project}/products/{name}", { params: { path: { project, name } } })));
  return (
    <>
      <Listing
        query={query}
        label="Products"
        id={(one) => one.name}
        columns={[
          { name: "Name", show: (one) => <button type="button" className="font-medium hover:underline" onClick={() => void edit(one.name)}>{one.name}</button> },
          { name: "Version", show: (one) => <code>{one.version}</code> },
          { name: "Servers", wide: true, show: (one) => <span className="text-muted">{one.servers.join(", ")}</span> },
        ]}
        removal={{ verb: "Remove", name: (one) => one.name, run: (one) => remove(one.name), warning: "Its servers are stopped and removed with it." }}
        add="Install a product"
        onAdd={() => setText(pretty({ name: "", version: "1.0.0", mcp: { servers: {} } }))}
        icon={<Package />}
        empty="No products"
      >
        A product is a manifest with servers that are installed and removed together.
      </Listing>
      <Dialog open={text !== undefined} onClose={() => (setText(undefined), setError(undefined))} title="Manifest" description="If the manifest has an error, nothing is changed, and the error is shown here." wide>
        <div className="flex flex-col gap-3">
          <Json label="Manifest" value={text ?? ""} onChange={setText} />
          {!!error && <Notice tone="bad">{message(error)}</Notice>}
          <Decide onCancel={() => setText(undefined)} action="Install" onClick={() => void save()} />
        </div>
      </Dialog>
    </>
  );
}

function Settings({ project }: { project: Schemas["Project"] }) {
  const change = useChange("projects");
  const changeSettings = useProjectChange(project);
  const navigate = useNavigate();
  const [form, setForm] = useState({ name: project.name, description: project.description, enabled: project.enabled, naming: project.naming ?? "", start: project.start ?? "", tools: project.tools ?? "" });
  const [removing, setRemoving] = useState(false);
  const set = (key: keyof typeof form) => (value: string) => setForm((old) => ({ ...old, [key]: value }));
  const save = () => {
    const changes = { ...form, naming: form.naming || null, start: form.start || null, tools: form.tools || null } as Partial<Schemas["ProjectConfig"]>;
    return attempt(() => changeSettings(changes), "Saved.");
  };
  return (
    <div className="flex max-w-xl flex-col gap-6">
      <form className="flex flex-col gap-4" onSubmit={(event) => (event.preventDefault(), void save())}>
        <TextField label="Name" value={form.name} onChange={set("name")} />
        <TextField label="Description" value={form.description} onChange={set("description")} />
        <ChoiceField
          label="Names of tools"
          help="How tools are named if two servers have a tool of the same name."
          value={form.naming}
          onChange={set("naming")}
          none="the default of the gateway"
          choices={[
            ["prefix-on-conflict", "add the server's name if names clash"],
            ["always-prefix", "always add the server's name"],
            ["last-wins", "offer the tool of the last server"],
            ["preserve", "keep names, and report clashes"],
          ]}
        />
        <ChoiceField
          label="Tools in the lists of clients"
          help={
            <>
              With a short list, models find tools by searching, which saves tokens.{" "}
              <Link to="/tools/find" search={{ project: project.id }} className="text-accent underline">
                See what they find
              </Link>
            </>
          }
          value={form.tools}
          onChange={set("tools")}
          none="the default of the gateway"
          choices={TOOL_LISTS}
        />
        <ChoiceField label="When a chat starts, start its servers" value={form.start} onChange={set("start")} none="the default of the gateway" choices={[["sequential", "one after another"], ["parallel", "all at once"]]} />
        <label className="flex items-center gap-2 text-sm">
          <input type="checkbox" className="size-4 accent-solid" checked={form.enabled} onChange={(event) => setForm((old) => ({ ...old, enabled: event.target.checked }))} /> The project is switched on
        </label>
        <div>
          <Button look="solid" type="submit">
            Save
          </Button>
        </div>
      </form>
      <Panel title="Remove this project" inner="flex flex-wrap items-center justify-between gap-3 p-3.5">
        <p className="text-sm text-muted">Its servers, keys, secrets and products are removed with it.</p>
        <Button look="danger" onClick={() => setRemoving(true)}>
          Remove
        </Button>
      </Panel>
      <Confirm
        open={removing}
        onClose={() => setRemoving(false)}
        title={`Remove ${project.name || project.id}?`}
        action="Remove the project"
        onConfirm={async () => {
          await change(ok(api.DELETE("/api/v1/projects/{project}", { params: { path: { project: project.id } } })));
          await navigate({ to: "/projects" });
        }}
      >
        This cannot be undone. Its servers are stopped, its keys stop working, its secrets are lost. Its call records are kept.
      </Confirm>
    </div>
  );
}
