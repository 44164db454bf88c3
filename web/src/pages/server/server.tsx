import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { CircleDot, MoreHorizontal, Trash2 } from "lucide-react";
import { lazy, Suspense, useRef, useState, type ReactNode } from "react";

import { useChange, type Server } from "@/api/client";
import { chatTools, remove, server as serverQuery } from "@/api/queries";
import { clashes } from "@/api/tools";
import { ago, bytes, count, cx, duration, moment, plural, sandboxWord } from "@/lib";
import { useNow, useTitle } from "@/ui/media";
import { Crumbs, Tabs, type Tab } from "@/ui/navigation";
import { Confirm, Menu, toast } from "@/ui/overlay";
import { Badge, Button, Missing, Notice, Skeleton } from "@/ui/parts";
import { RecordingNotice, useRecording } from "@/ui/recording";
import { State, tone, uptime, wait } from "@/ui/state";
import { Unset } from "../projects/secrets";
import { useOrders } from "../servers";
import { ServerTools } from "./tools";

const Logs = lazy(() => import("./logs").then((file) => ({ default: file.Logs })));
const ServerEvents = lazy(() => import("./events").then((file) => ({ default: file.ServerEvents })));
const Configuration = lazy(() => import("./entry").then((file) => ({ default: file.Configuration })));
const Isolation = lazy(() => import("./isolation").then((file) => ({ default: file.Isolation })));
const SignIn = lazy(() => import("./sign-in").then((file) => ({ default: file.SignIn })));
const Resources = lazy(() => import("./resources").then((file) => ({ default: file.Resources })));

const TABS: Tab<Server>[] = [
  { id: "tools", label: "Tools", show: (server) => <ServerTools server={server} /> },
  { id: "resources", label: "Resources and prompts", show: (server) => <Resources server={server} /> },
  { id: "logs", label: "Logs", show: (server) => <Logs id={server.id!} name={server.name!} /> },
  { id: "events", label: "Events", show: (server) => <ServerEvents id={server.id!} /> },
  { id: "configuration", label: "Configuration", show: (server) => <Configuration server={server} /> },
  { id: "sign-in", label: "Sign-in", show: (server) => <SignIn server={server} /> },
  { id: "isolation", label: "Isolation", show: (server) => <Isolation server={server} /> },
];

const route = getRouteApi("/servers/$id");

/** The tab that shows most about the state of a server. */
function opening(server: Server): string {
  if (["blocked", "unusable"].includes(server.status!)) return "configuration";
  if (server.status === "needs_login") return "sign-in";
  if (tone(server.status) !== "bad" && !(server.status === "starting" && server.reason)) return "tools";
  return server.transport === "stdio" ? "logs" : "events";
}

export function ServerPage() {
  const { id } = route.useParams();
  const { tab, added } = route.useSearch();
  const { data, error, refetch } = useQuery(serverQuery(id));
  // Chosen when the page is opened: it does not change with the state of the server.
  const first = useRef<{ id: string; tab: string }>(undefined);
  useTitle(data?.name);
  if (!data) return <Missing error={error} retry={refetch} />;
  if (first.current?.id !== id) first.current = { id, tab: opening(data) };
  const opened = first.current.tab;
  const shown = TABS.find((one) => one.id === (tab ?? opened)) ?? TABS[0]!;
  return (
    <div className="flex min-h-full flex-col">
      <Head server={data} />
      <Trouble server={data} />
      {data.bodies_recorded_until && <div className="px-4 pb-3 md:px-6"><RecordingNotice server={data} /></div>}
      <NewNames server={data} isOpen={added !== undefined} />
      <Numbers server={data} />
      <Tabs label="Parts of this server" tabs={TABS} shown={shown} first={opened} to="/servers/$id" params={{ id }} />
      <div className="flex min-h-0 flex-1 flex-col">
        <Suspense fallback={<Skeleton />}>{shown.show(data)}</Suspense>
      </div>
    </div>
  );
}

function Head({ server }: { server: Server }) {
  const change = useChange("servers");
  const navigate = useNavigate();
  const { run, restart, power } = useOrders(server);
  const recording = useRecording(server);
  const [removing, setRemoving] = useState(false);
  return (
    <header className="flex flex-wrap items-center gap-x-4 gap-y-2 px-4 pt-3 pb-2 md:px-6">
      <div className="min-w-0 basis-full sm:flex-1 sm:basis-auto">
        <Crumbs to="/servers" list="Servers">
          <span className="truncate">{server.project ?? (server.declared === "registered" ? "registered over the API" : "configuration file")}</span>
        </Crumbs>
        <div className="flex flex-wrap items-center gap-x-3 gap-y-1">
          <h1 className="truncate text-xl font-semibold tracking-tight">{server.name}</h1>
          <State server={server} />
        </div>
        {server.description && <p className="text-sm break-words text-muted">{server.description}</p>}
        <p className="font-mono text-xs break-all text-faint">{server.target}</p>
      </div>
      <div className="flex items-center gap-2">
        {[run, restart].map(({ label, icon, disabled, onSelect }, at) => (
          <Button key={at} icon={icon} disabled={disabled} onClick={onSelect}>
            {label}
          </Button>
        ))}
        <Menu
          trigger={<Button aria-label="More" icon={<MoreHorizontal />} />}
          items={[power, { label: "Record bodies for an hour", icon: <CircleDot />, disabled: !!server.bodies_recorded_until, onSelect: () => void recording.start() }, "line", { label: "Remove", icon: <Trash2 />, danger: true, onSelect: () => setRemoving(true) }]}
        />
      </div>
      <Confirm
        open={removing}
        onClose={() => setRemoving(false)}
        title={`Remove ${server.name}?`}
        action="Remove"
        onConfirm={async () => {
          await change(remove(server.id!).then(() => toast(`${server.name} is removed.`)));
          await navigate({ to: "/servers" });
        }}
      >
        It is stopped, and its entry is removed from {server.declared === "file" ? "the configuration file" : "the database"}. Its call records are kept.
      </Confirm>
    </header>
  );
}

/** Returns whether the notices about missing secrets say all that the reason says. */
const lacksOnlySecrets = (server: Server) => !!server.unset?.length && !!server.reason?.split("; ").every((part) => part.includes(" is not set"));

/** Returns the parts of a text that the reason does not contain. */
const beyond = (text: string, reason?: string | null) => text.split("; ").filter((part) => !reason?.includes(part)).join("; ");

/** Shows the reason for a problem, and the last output of the process. */
function Trouble({ server }: { server: Server }) {
  const seconds = wait(server, useNow());
  const hue = tone(server.status);
  const crash = server.last_crash;
  const bad = hue === "bad" || hue === "warn";
  const { reason } = server;
  if (!bad && !reason && !server.unset?.length && !server.kept_back && !server.notices?.length && !server.problems?.length && !server.remarks?.length) return null;
  return (
    <div className="flex flex-col gap-2 px-4 pb-3 md:px-6">
      <Unset server={server} />
      {reason && !lacksOnlySecrets(server) && (
        <Notice tone={bad ? hue : "warn"}>
          {/[.!?]$/.test(reason) ? reason : `${reason}.`}
          {seconds !== undefined && <span className="tabular font-semibold"> Next attempt in {duration(seconds)}.</span>}
        </Notice>
      )}
      {(bad || reason) && crash && (
        <details open className="overflow-hidden rounded-md border bg-panel">
          <summary className="px-3 py-2 text-sm">
            <strong className="font-medium">{beyond(crash.cause, reason) || "Its last output"}</strong> <span className="text-faint">· {ago(crash.at)}</span>
          </summary>
          {crash.stderr && <pre className="max-h-56 overflow-auto border-t bg-raised px-3 py-2 text-xs leading-5 whitespace-pre-wrap break-all">{crash.stderr}</pre>}
        </details>
      )}
      {!!server.problems?.length && (
        <Notice tone="warn">
          <ul>{server.problems.map((problem) => <li key={problem} className="break-words">{problem}</li>)}</ul>
        </Notice>
      )}
      {!!server.remarks?.length && (
        <details className="overflow-hidden rounded-md border bg-panel">
          <summary className="px-3 py-2 text-sm">{plural(server.remarks.length, "remark")}</summary>
          <ul className="border-t px-3 py-2 text-xs text-muted">{server.remarks.map((remark) => <li key={remark} className="break-words">{remark}</li>)}</ul>
        </details>
      )}
      {!!server.kept_back && (
        <Notice tone="warn" actions={<Link to={"/approvals" as never} className="text-sm font-medium underline">See the changes</Link>}>
          {server.kept_back === 1 ? "One tool is" : `${server.kept_back} tools are`} kept back, because the definition changed.
        </Notice>
      )}
    </div>
  );
}

/** Tools that clients see under new names, because other servers have tools with the same names. */
function NewNames({ server, isOpen }: { server: Server; isOpen: boolean }) {
  const { data } = useQuery(chatTools(server.project ?? undefined));
  const groups = clashes(server, data ?? []);
  if (!groups.length) return null;
  const others = [...new Set(groups.flatMap((tools) => tools.map((tool) => tool.server)))].filter((name) => name !== server.name);
  return (
    <details open={isOpen} className="mx-4 mb-3 overflow-hidden rounded-md border bg-panel text-sm md:mx-6">
      <summary className="px-3 py-2">
        {groups.length === 1 ? "One tool has a new name" : `${groups.length} tools have new names`}, because of tools with {groups.length === 1 ? "the same name" : "the same names"} on {others.join(" and ")}
      </summary>
      <ul aria-label="New names" className="max-h-56 overflow-y-auto border-t px-3 py-2 text-xs text-muted">
        {groups.flat().map((tool) => (
          <li key={`${tool.server} ${tool.native}`} className="break-words">
            <code>{tool.native}</code> of {tool.server} {tool.name === tool.native ? "keeps its name" : <>is now <code className="text-text">{tool.name}</code></>}
          </li>
        ))}
      </ul>
    </details>
  );
}

function Numbers({ server }: { server: Server }) {
  const up = uptime(server, useNow());
  const facts: [string, ReactNode, string?][] = [
    ["Up", up !== undefined ? duration(up) : "–"],
    ["Tools", count(server.tools ?? 0)],
    ["Calls", <>{count(server.calls ?? 0)}{!!server.in_flight && <span className="text-info"> +{server.in_flight}</span>}</>],
    ["Errors", <span className={cx(server.errors && "text-bad")}>{count(server.errors ?? 0)}</span>],
    ...(server.requests ? ([["Other requests", count(server.requests)]] as [string, ReactNode][]) : []),
    ["Memory", server.usage ? bytes(server.usage.memory) : "–"],
    ["CPU", server.usage?.cpu != null ? `${(server.usage.cpu * 100).toFixed(0)} %` : "–"],
    ["Starts", count(server.starts ?? 0)],
    ["Protocol", server.protocol_version ?? "–"],
    ["Isolation", server.sandbox ? <Badge tone="accent">{sandboxWord(server.sandbox)}</Badge> : "none"],
    ...(server.updated_at ? ([["Changed", moment(server.updated_at)]] as [string, ReactNode][]) : []),
  ];
  return (
    <dl className="grid grid-cols-[repeat(auto-fill,minmax(4.9rem,1fr))] gap-x-3 gap-y-2 whitespace-nowrap border-t px-4 py-2.5 md:flex md:flex-wrap md:gap-x-7 md:px-6" aria-label="Numbers">
      {facts.map(([name, value]) => (
        <div key={name} className="shrink-0">
          <dt className="text-xs text-faint">{name}</dt>
          <dd className="tabular text-sm font-medium">{value}</dd>
        </div>
      ))}
    </dl>
  );
}
