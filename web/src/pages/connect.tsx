import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";

import { projects } from "@/api/queries";
import { pretty, Snippet } from "@/ui/json";
import { Field, Page, Panel, Select } from "@/ui/parts";

/** What clients are to be told. */
export function Connect() {
  const { data } = useQuery({ ...projects, retry: false });
  const [project, setProject] = useState("");
  const url = `${location.origin}/mcp${project ? `/${project}` : ""}`;
  const headers = { Authorization: "Bearer ${TOOLWHARF_TOKEN}" };
  return (
    <Page title="Connect" lead="All servers are at one endpoint. A client that is not on this machine needs a key, too.">
      <div className="flex max-w-3xl flex-col gap-4">
        {!!data?.length && (
          <Field label="What the client sees">
            <Select value={project} onChange={(event) => setProject(event.target.value)}>
              <option value="">all servers</option>
              {data.map((one) => (
                <option key={one.id} value={one.id}>
                  the project {one.name || one.id}
                </option>
              ))}
            </Select>
          </Field>
        )}
        <Panel title="Endpoint">
          <div className="p-3">
            <Snippet text={url} />
          </div>
        </Panel>
        <Panel title="Claude Code">
          <div className="p-3">
            <Snippet text={`claude mcp add --transport http toolwharf ${url}`} />
          </div>
        </Panel>
        <Panel title="Clients with an mcp.json (Cursor, Windsurf, VS Code and others)">
          <div className="p-3">
            <Snippet text={pretty({ mcpServers: { toolwharf: { url } } })} />
          </div>
        </Panel>
        <Panel title="Clients that start a program (Claude Desktop)">
          <div className="p-3">
            <Snippet text={pretty({ mcpServers: { toolwharf: { command: "toolwharf", args: ["stdio"] } } })} />
          </div>
        </Panel>
        <Panel title="With a key" actions={<Link to="/keys" className="text-sm font-medium text-accent hover:underline">Make a key</Link>}>
          <div className="p-3">
            <Snippet text={pretty({ mcpServers: { toolwharf: { url, headers } } })} />
          </div>
        </Panel>
      </div>
    </Page>
  );
}
