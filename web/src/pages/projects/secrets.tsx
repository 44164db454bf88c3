import { useQuery } from "@tanstack/react-query";
import { RotateCcw, ShieldEllipsis } from "lucide-react";
import { useState } from "react";

import { api, ok, useChange, type Schemas, type Server } from "@/api/client";
import { order } from "@/api/queries";
import { ago } from "@/lib";
import { DialogForm, TextField, useSubmit } from "@/ui/form";
import { Listing } from "@/ui/listing";
import { Dialog, toast } from "@/ui/overlay";
import { Badge, Button, Notice, Page } from "@/ui/parts";

/** The secrets of a project, or without one of the configuration file. */
type Of = { project?: string | undefined };

const save = ({ project }: Of, name: string, value: string): Promise<Schemas["Secret"]> =>
  project
    ? ok(api.PUT("/api/v1/projects/{project}/secrets/{name}", { params: { path: { project, name } }, body: { value } }))
    : ok(api.PUT("/api/v1/secrets/{name}", { params: { path: { name } }, body: { value } }));

const remove = ({ project }: Of, name: string) =>
  project
    ? ok(api.DELETE("/api/v1/projects/{project}/secrets/{name}", { params: { path: { project, name } } }))
    : ok(api.DELETE("/api/v1/secrets/{name}", { params: { path: { name } } }));

const list = ({ project }: Of, signal: AbortSignal) =>
  project
    ? ok(api.GET("/api/v1/projects/{project}/secrets", { params: { path: { project }, query: { limit: 1000 } }, signal }))
    : ok(api.GET("/api/v1/secrets", { params: { query: { limit: 1000 } }, signal }));

/** The page with the secrets of the configuration file. */
export function AllSecrets() {
  return (
    <Page title="Secrets" lead="API keys and tokens for the servers of the configuration file. Each project has its own.">
      <Secrets />
    </Page>
  );
}

export function Secrets({ project }: Of) {
  const change = useChange("secrets", project ?? "");
  const query = useQuery({
    queryKey: ["secrets", project ?? ""],
    queryFn: async ({ signal }) => (await list({ project }, signal)).secrets,
  });
  const [setting, setSetting] = useState<{ name: string; isNew: boolean }>();
  return (
    <>
      <Listing
        query={query}
        label="Secrets"
        id={(one) => one.name}
        columns={[
          {
            name: "Name",
            show: (one) => (
              <span className="flex flex-wrap items-center gap-2">
                <code className="font-medium">{one.name}</code>
                {one.overridden && <Badge tone="warn" title="The environment of the gateway sets a variable of this name, which takes precedence.">not used</Badge>}
              </span>
            ),
          },
          { name: "Version", show: (one) => one.version },
          { name: "Set", wide: true, show: (one) => <span className="text-muted">{ago(one.updated_at)}</span> },
        ]}
        orders={(one) => <Button look="quiet" aria-label={`Set ${one.name} again`} title="Set again" icon={<RotateCcw />} onClick={() => setSetting({ name: one.name, isNew: false })} />}
        removal={{ verb: "Remove", name: (one) => one.name, run: (one) => change(remove({ project }, one.name)), warning: "Servers that use it are blocked until it is set again. The value cannot be recovered." }}
        add="New secret"
        onAdd={() => setSetting({ name: "", isNew: true })}
        icon={<ShieldEllipsis />}
        empty="No secrets yet"
      >
        Entries of {project ? "this project's servers" : "the configuration file"} use them as <code>{"${NAME}"}</code>. A value is encrypted when it is saved, and never shown again.
      </Listing>
      {setting && <SetSecret project={project} name={setting.name} isNew={setting.isNew} onClose={() => setSetting(undefined)} />}
    </>
  );
}

function SetSecret({ project, name: named, isNew, server, onClose }: Of & { name: string; isNew: boolean; server?: Server; onClose: () => void }) {
  const change = useChange("secrets", project ?? "");
  const refreshOne = useChange("server");
  const refreshAll = useChange("servers");
  const [name, setName] = useState(named);
  const [value, setValue] = useState("");
  const [notices, setNotices] = useState<string[]>();
  const { busy, error, submit } = useSubmit();
  // A server that is off lacks only this value, so it is switched on with it.
  const isLast = server && !server.enabled && server.unset?.length === 1;
  const set = () =>
    submit(async () => {
      const saved = await change(save({ project }, name, value));
      if (isLast) await order(server.id!, "enable");
      await refreshAll(refreshOne(Promise.resolve()));
      if (saved.notices?.length) return setNotices(saved.notices);
      toast(isLast ? `${name} is set, and ${server.name} is switched on.` : `${name} is set.`);
      onClose();
    });
  const title = server ? `Set ${named}` : isNew ? "New secret" : `Set ${named} again`;
  return (
    <Dialog onClose={onClose} title={title} description={server ? `${server.name} gets this value as \${${named}}. It is encrypted when it is saved.` : "Servers that use it are restarted with the new value."}>
      {notices ? (
        <div className="flex flex-col gap-4">
          {notices.map((text) => (
            <Notice key={text} tone="warn">
              {text}
            </Notice>
          ))}
          <div className="flex justify-end">
            <Button look="solid" onClick={onClose}>
              Close
            </Button>
          </div>
        </div>
      ) : (
        <DialogForm onSubmit={set} onCancel={onClose} action={isLast ? "Save and switch on" : "Save"} error={error} busy={busy}>
          <TextField label="Name" value={name} onChange={setName} disabled={!isNew} required autoFocus={isNew} />
          <TextField label="Value" type="password" autoComplete="new-password" value={value} onChange={setValue} required autoFocus={!isNew} />
        </DialogForm>
      )}
    </Dialog>
  );
}

/** Lists the variables that a server lacks, each with a button that sets it. */
export function Unset({ server }: { server: Server }) {
  const [setting, setSetting] = useState<string>();
  const names = server.unset ?? [];
  if (server.declared === "registered" && !server.project) return null;
  return (
    <>
      {names.map((name) => (
        <Notice key={name} tone="warn" actions={<Button look="solid" onClick={() => setSetting(name)}>Set {name}</Button>}>
          <code>{name}</code> is not set.
        </Notice>
      ))}
      {setting && <SetSecret project={server.project ?? undefined} name={setting} isNew={false} server={server} onClose={() => setSetting(undefined)} />}
    </>
  );
}
