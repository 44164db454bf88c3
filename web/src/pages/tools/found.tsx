// The tools that a search found, with the reasons.
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Pin } from "lucide-react";

import type { FoundTool } from "@/api/client";
import { useProjectChange, type Project } from "@/api/projects";
import { servers } from "@/api/queries";
import { ownerOf } from "@/api/tools";
import { cx } from "@/lib";
import { attempt } from "@/ui/overlay";
import { Badge, Button } from "@/ui/parts";

/** The parts of a score, in the order of the bar. The legend has an optional part only if it contributes to a score. */
const PARTS: { label: string; color: string; isOptional?: boolean; of: (scores: FoundTool["scores"]) => number }[] = [
  { label: "name", color: "bg-part-1", of: (scores) => scores.name },
  { label: "description", color: "bg-part-2", of: (scores) => scores.description },
  { label: "parameters", color: "bg-part-3", of: (scores) => scores.parameters + scores.parameter_text },
  { label: "server", color: "bg-part-4", of: (scores) => scores.server },
  { label: "earlier searches", color: "bg-part-5", isOptional: true, of: (scores) => scores.past },
];

/** Reasons that are more important than the score. */
const REASONS: Partial<Record<FoundTool["why"], string>> = {
  name: "exact name",
  spelling: "name in another spelling",
  prefix: "beginning of the name",
  typo: "similar name",
};

/** A contribution below this is not shown. */
const MIN_SHOWN = 0.05;

export function Legend({ tools }: { tools: FoundTool[] }) {
  const shown = PARTS.filter(({ isOptional, of }) => !isOptional || tools.some(({ scores }) => of(scores) >= MIN_SHOWN));
  return (
    <div className="flex flex-wrap items-center gap-x-3 gap-y-0.5 text-xs text-muted">
      <span>Score from:</span>
      {shown.map(({ label, color }) => (
        <span key={label} className="inline-flex items-center gap-1.5">
          <span aria-hidden className={cx("size-2 rounded-xs", color)} />
          {label}
        </span>
      ))}
    </div>
  );
}

/** `project`: the project for which tools can be kept in the list. */
export function Found({ tools, project }: { tools: FoundTool[]; project: Project | undefined }) {
  const known = useQuery(servers);
  const best = Math.max(...tools.map((tool) => tool.score), MIN_SHOWN);
  return (
    <ol aria-label="Found tools" className="divide-y divide-line">
      {tools.map((tool) => (
        <li key={`${tool.project} ${tool.server} ${tool.native}`} className="group flex gap-2 px-3.5 py-3">
          <div className="grid min-w-0 flex-1 gap-x-6 gap-y-2 lg:grid-cols-[minmax(0,1fr)_15rem]">
            <p title={tool.signature} className="self-start font-mono text-xs leading-5 break-words text-muted group-focus-within:line-clamp-none lg:line-clamp-4">
              <Link to="/tools" search={{ server: ownerOf(tool, known.data)?.id ?? tool.server, tool: tool.native } as never} className="text-[0.8125rem] font-medium text-text hover:underline">
                {tool.name}
              </Link>
              {tool.signature.startsWith(tool.name) ? tool.signature.slice(tool.name.length) : ` ${tool.signature}`}
            </p>
            <Why tool={tool} best={best} />
          </div>
          {project && <KeepListed tool={tool} project={project} />}
        </li>
      ))}
    </ol>
  );
}

/** Why a tool was found: the match of its name, and how much each part of its definition contributes to the score. */
function Why({ tool, best }: { tool: FoundTool; best: number }) {
  const reason = REASONS[tool.why];
  const parts = PARTS.map(({ of, ...part }) => ({ ...part, score: of(tool.scores) })).filter(({ score }) => score >= MIN_SHOWN);
  return (
    <div className="flex min-w-0 flex-col gap-1.5 text-xs">
      <div className="flex flex-wrap items-center gap-x-2 gap-y-1">
        <span className="min-w-0 truncate text-muted">
          <span className="sr-only">Server </span>
          {tool.server}
          {tool.project && ` (${tool.project})`}
        </span>
        {reason && <Badge tone="accent">{reason}</Badge>}
        {tool.score >= MIN_SHOWN && (
          <span className="tabular ml-auto font-medium">
            <span className="sr-only">Score </span>
            {tool.score.toFixed(1)}
          </span>
        )}
      </div>
      {!!parts.length && (
        <>
          <div aria-hidden className="flex h-2 gap-0.5">
            {parts.map(({ label, color, score }) => (
              <span key={label} className={cx("min-w-0.5 rounded-xs", color)} style={{ width: `${(100 * score) / best}%` }} />
            ))}
          </div>
          <p className="text-faint">{parts.map(({ label, score }) => `${label} ${score.toFixed(1)}`).join(", ")}</p>
        </>
      )}
    </div>
  );
}

/** Keeps a tool in the short list for clients of the project. */
function KeepListed({ tool, project }: { tool: FoundTool; project: Project }) {
  const change = useProjectChange(project);
  const listed = `${tool.server}/${tool.native}`;
  const isListed = project.listed_tools.includes(listed);
  const others = project.listed_tools.filter((one) => one !== listed);
  const toggle = () => attempt(() => change({ listed_tools: isListed ? others : [...others, listed] }), isListed ? `${tool.name} is found only by searching.` : `${tool.name} is always listed.`);
  return <Button look="quiet" aria-label={`Always list ${tool.name}`} title="Always list it" aria-pressed={isListed} className={cx("-mt-1.5", isListed && "text-accent")} icon={<Pin className={cx(isListed && "fill-current")} />} onClick={() => void toggle()} />;
}
