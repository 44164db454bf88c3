// The settings of the list of tools: of a project, which can be changed here, or of the gateway.
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { X } from "lucide-react";

import { TOOL_LISTS, useProjectChange, type Project } from "@/api/projects";
import { settings } from "@/api/queries";
import { ChoiceField } from "@/ui/form";
import { attempt } from "@/ui/overlay";
import { Button, Fact, Facts, Panel } from "@/ui/parts";

export function ProjectLists({ project }: { project: Project }) {
  const change = useProjectChange(project);
  const choose = (tools: string) => attempt(() => change({ tools: (tools || null) as Project["tools"] }), "Saved.");
  const remove = (tool: string) => attempt(() => change({ listed_tools: project.listed_tools.filter((one) => one !== tool) }), `${tool} is found only by searching.`);
  return (
    <Panel title={`Settings of ${project.name || project.id}`} inner="flex flex-col gap-4 p-3.5">
      <ChoiceField label="Tools in the lists of clients" value={project.tools ?? ""} onChange={(tools) => void choose(tools)} none="the default of the gateway" choices={TOOL_LISTS} />
      <div>
        <h3 className="text-sm font-medium">Always listed</h3>
        {project.listed_tools.length ? (
          <ul aria-label="Always listed" className="mt-1">
            {project.listed_tools.map((tool) => (
              <li key={tool} className="flex items-center justify-between gap-2">
                <code className="min-w-0 text-sm break-all">{tool}</code>
                <Button look="quiet" aria-label={`No longer list ${tool}`} icon={<X />} onClick={() => void remove(tool)} />
              </li>
            ))}
          </ul>
        ) : (
          <p className="mt-1 text-sm text-muted">A short list contains only the tools that search. The pin of a found tool adds it.</p>
        )}
      </div>
    </Panel>
  );
}

const SETTINGS = ["tools", "search_above", "listed_tools"];

export function GatewayLists() {
  const { data } = useQuery(settings);
  if (!data) return null;
  const of = (key: string) => data.settings.find((one) => one.key === key);
  return (
    <Panel title="Settings of the gateway" actions={<Link to="/settings" className="text-sm text-accent underline">All settings</Link>}>
      <Facts>
        {SETTINGS.map((key) => (
          <Fact key={key} name={key}>
            <code className="break-all">{of(key)?.value ?? of(key)?.default ?? "–"}</code>
          </Fact>
        ))}
      </Facts>
    </Panel>
  );
}
