import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { FolderKanban, Plus } from "lucide-react";
import { useState } from "react";

import { api, ok } from "@/api/client";
import { projects, servers } from "@/api/queries";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/overlay";
import { Badge, Empty, Failure, Field, Input, message, Notice, Page, Panel, Skeleton } from "@/ui/parts";
import { Table } from "@/ui/table";

export function Projects() {
  const { data, error, refetch } = useQuery(projects);
  const known = useQuery(servers);
  const [making, setMaking] = useState(false);
  if (error && !data) return <Failure error={error} retry={() => void refetch()} />;
  const add = (
    <Button look="solid" icon={<Plus />} onClick={() => setMaking(true)}>
      New project
    </Button>
  );
  return (
    <Page title="Projects" lead="A project has its own servers, keys and secrets, and an endpoint that shows only what it may see." actions={data?.length ? add : undefined}>
      {!data ? (
        <Skeleton />
      ) : data.length ? (
        <Panel>
          <Table
            label="Projects"
            items={data}
            id={(one) => one.id}
            columns={[
              { name: "Project", show: (one) => <Link to="/projects/$project" params={{ project: one.id }} className="font-medium hover:underline">{one.name || one.id}</Link> },
              { name: "Id", show: (one) => <code className="text-muted">{one.id}</code> },
              { name: "Description", wide: true, show: (one) => <span className="text-muted">{one.description}</span> },
              { name: "Servers", right: true, show: (one) => known.data?.filter((server) => server.project === one.id).length ?? "" },
              { name: "State", show: (one) => <Badge tone={one.enabled ? "ok" : "plain"}>{one.enabled ? "on" : "off"}</Badge> },
            ]}
          />
        </Panel>
      ) : (
        <Empty icon={<FolderKanban />} title="No projects yet" action={add}>
          You can start without one. A project gives a team or a product its own servers, keys and secrets.
        </Empty>
      )}
      <NewProject open={making} onOpenChange={setMaking} />
    </Page>
  );
}

function NewProject({ open, onOpenChange }: { open: boolean; onOpenChange: (open: boolean) => void }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [id, setId] = useState("");
  const [name, setName] = useState("");
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const make = async () => {
    setBusy(true);
    setError(undefined);
    try {
      await ok(api.PUT("/api/v1/projects/{project}", { params: { path: { project: id }, header: { "If-None-Match": "*" } }, body: { name: name || id } as never }));
      await client.invalidateQueries({ queryKey: ["projects"] });
      onOpenChange(false);
      await navigate({ to: "/projects/$project", params: { project: id } });
    } catch (failed) {
      setError(failed);
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog open={open} onOpenChange={onOpenChange} title="New project">
      <form className="flex flex-col gap-4" onSubmit={(event) => (event.preventDefault(), void make())}>
        <Field label="Id" help="It is part of the endpoint's address: /mcp/ID. It cannot be changed later.">
          <Input value={id} onChange={(event) => setId(event.target.value)} required autoFocus pattern="[a-z0-9][a-z0-9_\-]*" />
        </Field>
        <Field label="Name">
          <Input value={name} onChange={(event) => setName(event.target.value)} />
        </Field>
        {!!error && <Notice tone="bad">{message(error)}</Notice>}
        <div className="flex justify-end gap-2">
          <Button onClick={() => onOpenChange(false)}>Cancel</Button>
          <Button look="solid" type="submit" busy={busy}>
            Make it
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
