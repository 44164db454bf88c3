import { useQuery, useQueryClient } from "@tanstack/react-query";
import { KeyRound, Plus, Trash2 } from "lucide-react";
import { useState } from "react";

import { api, ok, type Schemas } from "@/api/client";
import { ago, moment } from "@/lib";
import { Button } from "@/ui/button";
import { Snippet } from "@/ui/json";
import { Confirm, Dialog, toast } from "@/ui/overlay";
import { Badge, Empty, Failure, Field, Input, message, Notice, Page, Panel, Select, Skeleton } from "@/ui/parts";
import { Table } from "@/ui/table";

type Key = Schemas["Key"];
type Role = "read" | "call" | "manage";

const ROLES: Record<Role, string> = {
  read: "see servers and tools",
  call: "call tools, and chat",
  manage: "change servers with a URL, secrets and keys",
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
  const client = useQueryClient();
  const { data, error, refetch } = useQuery({
    queryKey: ["keys", project ?? ""],
    queryFn: async ({ signal }) => (await ok(api.GET("/api/v1/keys", { params: { query: { limit: 1000, ...(project ? { project } : {}) } }, signal }))).keys,
  });
  const [making, setMaking] = useState(false);
  const [revoking, setRevoking] = useState<Key>();
  if (error && !data) return <Failure error={error} retry={() => void refetch()} />;
  if (!data) return <Skeleton />;
  const living = data.filter((key) => !key.revoked_at);
  const add = (
    <Button look="solid" icon={<Plus />} onClick={() => setMaking(true)}>
      New key
    </Button>
  );
  return (
    <>
      {living.length ? (
        <Panel title="Keys" actions={add}>
          <Table
            label="Keys"
            items={living}
            id={(key) => key.id}
            columns={[
              { name: "Name", show: (key) => <span className="font-medium">{key.name}</span> },
              { name: "Role", show: (key) => <Badge tone={key.role === "admin" ? "warn" : "plain"}>{key.role}</Badge> },
              ...(project ? [] : [{ name: "Project", show: (key: Key) => <span className="text-muted">{key.project ?? "all"}</span> }]),
              { name: "Ends in", wide: true, show: (key) => <code className="text-faint">…{key.hint}</code> },
              { name: "Used", wide: true, show: (key) => <span className="text-muted">{key.last_used_at ? ago(key.last_used_at) : "never"}</span> },
              { name: "Expires", wide: true, show: (key) => <span className="text-muted">{key.expires_at ? moment(key.expires_at) : "never"}</span> },
              { name: "", right: true, show: (key) => <Button look="quiet" aria-label={`Revoke ${key.name}`} icon={<Trash2 />} onClick={() => setRevoking(key)} /> },
            ]}
          />
        </Panel>
      ) : (
        <Empty icon={<KeyRound />} title="No keys yet" action={add}>
          Clients that are not on this machine need one.
        </Empty>
      )}
      {making && <NewKey project={project} onClose={() => setMaking(false)} />}
      <Confirm
        open={!!revoking}
        onOpenChange={(open) => !open && setRevoking(undefined)}
        title={`Revoke ${revoking?.name ?? "the key"}?`}
        action="Revoke"
        onConfirm={async () => {
          await ok(api.DELETE("/api/v1/keys/{key}", { params: { path: { key: revoking!.id } } }));
          await client.invalidateQueries({ queryKey: ["keys"] });
          toast(`${revoking!.name} is revoked.`);
        }}
      >
        Clients that use it are rejected at once. This cannot be undone, but you can create a new key.
      </Confirm>
    </>
  );
}

function NewKey({ project, onClose }: { project: string | undefined; onClose: () => void }) {
  const client = useQueryClient();
  const [name, setName] = useState("");
  const [role, setRole] = useState<Role>("call");
  const [days, setDays] = useState("");
  const [token, setToken] = useState<string>();
  const [error, setError] = useState<unknown>();
  const make = async () => {
    setError(undefined);
    try {
      const expires_at = days ? new Date(Date.now() + Number(days) * 86_400_000).toISOString() : null;
      const made = await ok(api.POST("/api/v1/keys", { params: { query: project ? { project } : {} }, body: { name, ...(project ? { role } : {}), expires_at } as never }));
      setToken(made.token);
      await client.invalidateQueries({ queryKey: ["keys"] });
    } catch (failed) {
      setError(failed);
    }
  };
  return (
    <Dialog open onOpenChange={onClose} title={token ? "Key created" : project ? `New key for ${project}` : "New administrator key"} description={token ? "Copy it now: it is not shown again." : undefined}>
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
        <form className="flex flex-col gap-4" onSubmit={(event) => (event.preventDefault(), void make())}>
          <Field label="Name" help="Records of calls have it.">
            <Input value={name} onChange={(event) => setName(event.target.value)} required autoFocus />
          </Field>
          {project ? (
            <Field label="Role" help={`It may ${ROLES[role]}.`}>
              <Select value={role} onChange={(event) => setRole(event.target.value as Role)}>
                {Object.keys(ROLES).map((one) => (
                  <option key={one}>{one}</option>
                ))}
              </Select>
            </Field>
          ) : (
            <Notice tone="warn">A key without a project is an administrator key and may do everything. Create keys with fewer permissions in a project.</Notice>
          )}
          <Field label="Expires">
            <Select value={days} onChange={(event) => setDays(event.target.value)}>
              <option value="">never</option>
              <option value="30">in 30 days</option>
              <option value="90">in 90 days</option>
              <option value="365">in a year</option>
            </Select>
          </Field>
          {!!error && <Notice tone="bad">{message(error)}</Notice>}
          <div className="flex justify-end gap-2">
            <Button onClick={onClose}>Cancel</Button>
            <Button look="solid" type="submit">
              Make it
            </Button>
          </div>
        </form>
      )}
    </Dialog>
  );
}
