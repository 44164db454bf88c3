import { useQuery } from "@tanstack/react-query";
import { KeyRound } from "lucide-react";
import { useState } from "react";

import { api, ok, useChange, type Schemas } from "@/api/client";
import { TOOL_LISTS } from "@/api/projects";
import { projects } from "@/api/queries";
import { ago, moment } from "@/lib";
import { ChoiceField, DialogForm, TextField, useSubmit } from "@/ui/form";
import { Snippet } from "@/ui/json";
import { Listing } from "@/ui/listing";
import { Dialog, toast } from "@/ui/overlay";
import { Badge, Button, Notice, Page } from "@/ui/parts";

type Key = Schemas["Key"];
type Role = "read" | "call" | "manage" | "admin";

const ROLES: Record<Role, string> = {
  read: "see servers and tools",
  call: "call tools, and chat",
  manage: "change servers with a URL, secrets and keys",
  admin: "do everything, in all projects",
};

/** The page with all keys. */
export function AllKeys() {
  return (
    <Page title="Keys" lead="Give each client its own key, so that you can tell their calls apart and revoke one key without the others.">
      <Keys />
    </Page>
  );
}

export function Keys({ project }: { project?: string }) {
  const change = useChange("keys");
  const query = useQuery({
    queryKey: ["keys", project ?? ""],
    queryFn: async ({ signal }) => (await ok(api.GET("/api/v1/keys", { params: { query: { limit: 1000, ...(project ? { project } : {}) } }, signal }))).keys,
    select: (keys) => keys.filter((key) => !key.revoked_at),
  });
  const [making, setMaking] = useState(false);
  const revoke = async (key: Key) => {
    await change(ok(api.DELETE("/api/v1/keys/{key}", { params: { path: { key: key.id } } })));
    toast(`${key.name} is revoked.`);
  };
  return (
    <>
      <Listing
        query={query}
        label="Keys"
        id={(key) => key.id}
        columns={[
          { name: "Name", show: (key) => <span className="font-medium">{key.name}</span> },
          { name: "Role", show: (key) => <Badge tone={key.role === "admin" ? "warn" : "plain"}>{key.role}</Badge> },
          { name: "Projects", show: (key) => <span className="text-muted">{key.projects?.length ? key.projects.join(", ") : "all"}</span> },
          { name: "Tool lists", wide: true, show: (key) => <span className="text-muted">{key.tools ?? "default"}</span> },
          { name: "Ends in", wide: true, show: (key) => <code className="text-faint">…{key.hint}</code> },
          { name: "Used", wide: true, show: (key) => <span className="text-muted">{key.last_used_at ? ago(key.last_used_at) : "never"}</span> },
          { name: "Expires", wide: true, show: (key) => <span className="text-muted">{key.expires_at ? moment(key.expires_at) : "never"}</span> },
        ]}
        removal={{ verb: "Revoke", name: (key) => key.name, run: revoke, warning: "Clients that use it are rejected at once. This cannot be undone, but you can create a new key." }}
        add="New key"
        onAdd={() => setMaking(true)}
        icon={<KeyRound />}
        empty="No keys yet"
      >
        Clients that are not on this machine need a key.
      </Listing>
      {making && <NewKey project={project} onClose={() => setMaking(false)} />}
    </>
  );
}

/** The projects of a key. None means all. */
function ProjectChoice({ chosen, onChange }: { chosen: string[]; onChange: (chosen: string[]) => void }) {
  const { data } = useQuery({ ...projects, retry: false });
  if (!data?.length) return null;
  return (
    <fieldset className="flex flex-col gap-1.5">
      <legend className="mb-1 text-sm font-medium">Projects</legend>
      <div className="flex max-h-40 flex-wrap gap-x-4 gap-y-1 overflow-y-auto">
        {data.map(({ id }) => (
          <label key={id} className="flex items-center gap-1.5 text-sm">
            <input type="checkbox" checked={chosen.includes(id)} onChange={(event) => onChange(event.target.checked ? [...chosen, id] : chosen.filter((one) => one !== id))} />
            {id}
          </label>
        ))}
      </div>
      <p className="text-xs text-muted">{chosen.length ? "The key is valid for these projects only." : "Nothing is chosen: the key is valid for all projects, and for servers of no project."}</p>
    </fieldset>
  );
}

function NewKey({ project, onClose }: { project: string | undefined; onClose: () => void }) {
  const change = useChange("keys");
  const [name, setName] = useState("");
  const [role, setRole] = useState<Role>("call");
  const [chosen, setChosen] = useState<string[]>(project ? [project] : []);
  const [days, setDays] = useState("");
  const [tools, setTools] = useState("");
  const [token, setToken] = useState<string>();
  const { error, submit } = useSubmit();
  const make = () => {
    const expires_at = days ? new Date(Date.now() + Number(days) * 86_400_000).toISOString() : null;
    const projects = role === "admin" ? [] : chosen;
    const query = projects[0] ? { project: projects[0] } : {};
    // Without a role, the key is an administrator's.
    const asked = ok(api.POST("/api/v1/keys", { params: { query }, body: { name, ...(role === "admin" ? {} : { role, projects }), expires_at, tools: tools || null } as never }));
    return submit(() => change(asked.then((made) => setToken(made.token))));
  };
  return (
    <Dialog onClose={onClose} title={token ? "Key created" : "New key"} description={token ? "Copy it now: it is not shown again." : undefined}>
      {token ? (
        <div className="flex flex-col gap-4">
          <Snippet text={token} />
          <div className="flex justify-end">
            <Button look="solid" onClick={onClose}>
              Done
            </Button>
          </div>
        </div>
      ) : (
        <DialogForm onSubmit={make} onCancel={onClose} action="Make it" error={error}>
          <TextField label="Name" help="Call records show this name." value={name} onChange={setName} required autoFocus />
          <ChoiceField label="Role" help={`It may ${ROLES[role]}.`} value={role} onChange={(chosen) => setRole(chosen as Role)} choices={Object.keys(ROLES)} />
          {role === "admin" ? <Notice tone="warn">An administrator key may do everything. Most clients need only the role call.</Notice> : <ProjectChoice chosen={chosen} onChange={setChosen} />}
          <ChoiceField label="Tools in the lists of clients" help="With a short list, models find tools by searching, which saves tokens." value={tools} onChange={setTools} none={project ? "the default of the project" : "the default"} choices={TOOL_LISTS} />
          <ChoiceField label="Expires" value={days} onChange={setDays} none="never" choices={[["30", "in 30 days"], ["90", "in 90 days"], ["365", "in a year"]]} />
        </DialogForm>
      )}
    </Dialog>
  );
}
