import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { FolderKanban } from "lucide-react";
import { useState } from "react";

import { api, ok, useChange } from "@/api/client";
import { projects, servers } from "@/api/queries";
import { DialogForm, TextField, useSubmit } from "@/ui/form";
import { AddButton, Listing } from "@/ui/listing";
import { Dialog } from "@/ui/overlay";
import { Badge, Failure, Page } from "@/ui/parts";

export function Projects() {
  const query = useQuery(projects);
  const known = useQuery(servers);
  const [making, setMaking] = useState(false);
  const { data, error, refetch } = query;
  if (error && !data) return <Failure error={error} retry={() => void refetch()} />;
  const begin = () => setMaking(true);
  return (
    <Page title="Projects" lead="A project has its own servers, keys and secrets, and an endpoint that shows only what it may see." actions={data?.length ? <AddButton label="New project" onClick={begin} /> : undefined}>
      <Listing
        query={query}
        label="Projects"
        title=""
        id={(one) => one.id}
        columns={[
          { name: "Project", show: (one) => <Link to="/projects/$project" params={{ project: one.id }} className="font-medium hover:underline">{one.name || one.id}</Link> },
          { name: "Id", show: (one) => <code className="text-muted">{one.id}</code> },
          { name: "Description", wide: true, show: (one) => <span className="text-muted">{one.description}</span> },
          { name: "Servers", right: true, show: (one) => known.data?.filter((server) => server.project === one.id).length ?? "" },
          { name: "State", show: (one) => <Badge tone={one.enabled ? "ok" : "plain"}>{one.enabled ? "on" : "off"}</Badge> },
        ]}
        add="New project"
        onAdd={begin}
        icon={<FolderKanban />}
        empty="No projects yet"
      >
        You can start without one. A project gives a team or a product its own servers, keys and secrets.
      </Listing>
      <NewProject open={making} onClose={() => setMaking(false)} />
    </Page>
  );
}

function NewProject({ open, onClose }: { open: boolean; onClose: () => void }) {
  const change = useChange("projects");
  const navigate = useNavigate();
  const [id, setId] = useState("");
  const [name, setName] = useState("");
  const { busy, error, submit } = useSubmit();
  const make = () =>
    submit(async () => {
      await change(ok(api.PUT("/api/v1/projects/{project}", { params: { path: { project: id }, header: { "If-None-Match": "*" } }, body: { name: name || id } as never })));
      onClose();
      await navigate({ to: "/projects/$project", params: { project: id } });
    });
  return (
    <Dialog open={open} onClose={onClose} title="New project">
      <DialogForm onSubmit={make} onCancel={onClose} action="Create" error={error} busy={busy}>
        <TextField label="Id" help="It is part of the endpoint's address: /mcp/ID. It cannot be changed later." value={id} onChange={setId} required autoFocus pattern="[a-z0-9][a-z0-9_\-]*" />
        <TextField label="Name" value={name} onChange={setName} />
      </DialogForm>
    </Dialog>
  );
}
