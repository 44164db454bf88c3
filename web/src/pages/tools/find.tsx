// The results for a model in search mode: the tools for a typed task with the reasons, and the tokens of the list.
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { ScanSearch, SearchX, Wrench } from "lucide-react";
import { useEffect, useState } from "react";

import type { Schemas } from "@/api/client";
import type { Project } from "@/api/projects";
import { foundTools, oneProject, projects } from "@/api/queries";
import { plural } from "@/lib";
import { Choose } from "@/ui/form";
import { useIsWide, useSettled } from "@/ui/media";
import { Crumbs } from "@/ui/navigation";
import { Button, Empty, message, Missing, Notice, Page, Panel, SearchBox } from "@/ui/parts";
import { Found, Legend } from "./found";
import { GatewayLists, ProjectLists } from "./lists";
import { Tokens } from "./tokens";

const route = getRouteApi("/tools/find");

/** The number of results of a search that asks for no other, and the most that a model can ask for. */
const USUAL_FOUND = 10;
const MAX_FOUND = 50;
const MAX_TASK_CHARS = 500;
/** A search begins when nothing has been typed for this time. */
const TYPING_MS = 250;

export function FindTools() {
  const { q = "", project } = route.useSearch();
  const navigate = useNavigate();
  const isWide = useIsWide();
  const [typed, setTyped] = useState(q);
  const [limit, setLimit] = useState(USUAL_FOUND);
  const task = useSettled(typed, TYPING_MS).trim();
  useEffect(() => {
    if (task !== q) void navigate({ to: "/tools/find", search: (old) => ({ ...old, q: task || undefined }) as never, replace: true });
    setLimit(USUAL_FOUND);
  }, [task]);
  // Only administrators get the list of projects. Other keys see their own project.
  const known = useQuery({ ...projects, retry: false });
  const chosen = useQuery({ ...oneProject(project ?? ""), enabled: !!project, retry: false });
  const found = useQuery({ ...foundTools(task, project, limit), placeholderData: keepPreviousData, retry: false });
  const isAdministrator = known.isSuccess;
  const place = isAdministrator ? (project ? "project" : "gateway") : known.isError ? "unknown" : undefined;
  const changing = isAdministrator ? chosen.data : undefined;
  return (
    <Page
      above={<Crumbs to="/tools" list="Tools">Search mode</Crumbs>}
      title="How models find tools"
      lead="With a short list of tools, a model searches for the ones that its task needs. Try what it finds."
      actions={
        !!known.data?.length && (
          <Choose
            aria-label="Whose tools"
            className="w-full sm:w-56"
            value={project ?? ""}
            onChange={(id) => void navigate({ to: "/tools/find", search: (old) => ({ ...old, project: id || undefined }) as never, replace: true })}
            none="All projects"
            choices={known.data.map((one) => [one.id, `The project ${one.name || one.id}`])}
          />
        )
      }
    >
      <div className="grid items-start gap-4 xl:grid-cols-[minmax(0,1fr)_22rem]">
        <div className="flex min-w-0 flex-col gap-4">
          <div className="flex flex-col gap-1">
            <label htmlFor="task" className="text-sm font-medium">
              What should the model do?
            </label>
            <SearchBox id="task" value={typed} onChange={setTyped} placeholder="For example: report a bug on GitHub" maxLength={MAX_TASK_CHARS} autoFocus={isWide} />
          </div>
          <Results found={found} task={task} changing={changing} limit={limit} more={limit < MAX_FOUND ? () => setLimit(MAX_FOUND) : undefined} />
        </div>
        <div className="flex min-w-0 flex-col gap-4">
          {!!found.data?.tokens.all && <Tokens of={found.data.tokens} place={place} />}
          {isAdministrator && (project ? changing && <ProjectLists project={changing} /> : <GatewayLists />)}
        </div>
      </div>
    </Page>
  );
}

type ResultsProps = {
  found: { data: Schemas["FoundTools"] | undefined; error: unknown; isPlaceholderData: boolean; refetch: () => unknown };
  task: string;
  /** The project whose list can be changed. */
  changing: Project | undefined;
  limit: number;
  /** Shows more tools, unless all that a search can find are shown. */
  more: (() => void) | undefined;
};

function Results({ found: { data, error, isPlaceholderData, refetch }, task, changing, limit, more }: ResultsProps) {
  if (!data) return <Missing error={error} retry={refetch} rows={4} />;
  const { tools, tokens } = data;
  if (!tokens.all)
    return (
      <Empty icon={<Wrench />} title="No tools yet">
        Tools appear here when a server that has some is running.
      </Empty>
    );
  if (!task)
    return (
      <Empty icon={<ScanSearch />} title="Type a task">
        Or the name of a tool. You see which tools <code>search_tools</code> finds for a model, and why.
      </Empty>
    );
  return (
    <>
      {!!error && (
        <Notice tone="bad" actions={<Button onClick={() => void refetch()}>Try again</Button>}>
          {message(error)}
        </Notice>
      )}
      <div aria-busy={isPlaceholderData} className="flex flex-col gap-3">
        <p role="status" className="sr-only">
          {!isPlaceholderData && `${plural(tools.length, "tool")} found`}
        </p>
        {tools.length ? (
          <Panel title={`${plural(tools.length, "tool")} found, best first`} actions={<Legend tools={tools} />}>
            <Found tools={tools} project={changing} />
          </Panel>
        ) : (
          !isPlaceholderData && (
            <Empty icon={<SearchX />} title="No tool fits">
              Use words that occur in the descriptions of tools. Tools that are switched off or kept back are not found.
            </Empty>
          )
        )}
        {more && tools.length >= limit && (
          <div>
            <Button onClick={more}>Show up to {MAX_FOUND}</Button>
          </div>
        )}
      </div>
    </>
  );
}
