import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { MoreHorizontal, Trash2 } from "lucide-react";
import { lazy, Suspense, useState, type ReactNode } from "react";

import { useChange, type Server } from "@/api/client";
import { remove, server as serverQuery } from "@/api/queries";
import { ago, bytes, count, cx, duration, moment, plural } from "@/lib";
import { useNow, useTitle } from "@/ui/media";
import { Crumbs, Tabs, type Tab } from "@/ui/navigation";
import { Confirm, Menu, toast } from "@/ui/overlay";
import { Badge, Button, Missing, Notice, Skeleton } from "@/ui/parts";
import { State, tone, uptime, wait } from "@/ui/state";
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
  { id: "logs", label: "Logs", show: (server) => <Logs id={server.id!} /> },
  { id: "events", label: "Events", show: (server) => <ServerEvents id={server.id!} /> },
  { id: "configuration", label: "Configuration", show: (server) => <Configuration server={server} /> },
  { id: "sign-in", label: "Sign-in", show: (server) => <SignIn server={server} /> },
  { id: "isolation", label: "Isolation", show: (server) => <Isolation server={server} /> },
];

const route = getRouteApi("/servers/$id");

export function ServerPage() {
  const { id } = route.useParams();
  const { tab = "tools" } = route.useSearch();
  const { data, error, refetch } = useQuery(serverQuery(id));
  useTitle(data?.name);
  if (!data) return <Missing error={error} retry={refetch} />;
  const shown = TABS.find((one) => one.id === tab) ?? TABS[0]!;
  return (
    <div className="flex min-h-full flex-col">
      <Head server={data} />
      <Trouble server={data} />
      <Numbers server={data} />
      <Tabs label="Parts of this server" tabs={TABS} shown={shown} to="/servers/$id" params={{ id }} />
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
  const [removing, setRemoving] = useState(false);
  return (
    <header className="flex flex-wrap items-center gap-x-4 gap-y-2 px-4 pt-3 pb-2 md:px-6">
      <div className="min-w-0 basis-full sm:flex-1 sm:basis-auto">
        <Crumbs to="/servers" list="Servers">
          <span className="truncate">{server.project ?? (server.declared === "registered" ? "registered" : "of the configuration file")}</span>
        </Crumbs>
        <div className="flex flex-wrap items-center gap-x-3 gap-y-1">
          <h1 className="truncate text-xl font-semibold tracking-tight">{server.name}</h1>
          <State server={server} />
        </div>
        <p className="truncate text-sm text-muted">{server.description || server.target}</p>
      </div>
      <div className="flex items-center gap-2">
        {[run, restart].map(({ label, icon, disabled, onSelect }, at) => (
          <Button key={at} icon={icon} disabled={disabled} onClick={onSelect}>
            {label}
          </Button>
        ))}
        <Menu
          trigger={<Button aria-label="More" icon={<MoreHorizontal />} />}
          items={[power, "line", { label: "Remove", icon: <Trash2 />, danger: true, onSelect: () => setRemoving(true) }]}
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

/** Shows the reason for a problem, and the last output of the process. */
function Trouble({ server }: { server: Server }) {
  const seconds = wait(server, useNow());
  const hue = tone(server.status);
  const crash = server.last_crash;
  const bad = hue === "bad" || hue === "warn";
  if (!bad && !server.kept_back && !server.notices?.length && !server.problems?.length && !server.remarks?.length) return null;
  return (
    <div className="flex flex-col gap-2 px-4 pb-3 md:px-6">
      {bad && server.reason && (
        <Notice tone={hue}>
          {server.reason}.{seconds !== undefined && <strong className="font-semibold"> Next attempt in {duration(seconds)}.</strong>}
        </Notice>
      )}
      {bad && crash && (
        <details open className="overflow-hidden rounded-md border bg-panel">
          <summary className="px-3 py-2 text-sm">
            <strong className="font-medium">{crash.cause}</strong> <span className="text-faint">· {ago(crash.at)}</span>
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

function Numbers({ server }: { server: Server }) {
  const up = uptime(server, useNow());
  const facts: [string, ReactNode, string?][] = [
    ["Up", up !== undefined ? duration(up) : "–"],
    ["Tools", count(server.tools ?? 0)],
    ["Calls", <>{count(server.calls ?? 0)}{!!server.in_flight && <span className="text-info"> +{server.in_flight}</span>}</>],
    ["Errors", <span className={cx(server.errors && "text-bad")}>{count(server.errors ?? 0)}</span>],
    ["Memory", server.usage ? bytes(server.usage.memory) : "–"],
    ["CPU", server.usage?.cpu != null ? `${(server.usage.cpu * 100).toFixed(0)} %` : "–"],
    ["Starts", count(server.starts ?? 0)],
    ["Protocol", server.protocol_version ?? "–"],
    ["Isolation", server.sandbox ? <Badge tone="accent">{server.sandbox}</Badge> : "none"],
    ...(server.updated_at ? ([["Changed", moment(server.updated_at)]] as [string, ReactNode][]) : []),
  ];
  return (
    <dl className="flex gap-x-7 gap-y-2 overflow-x-auto border-t px-4 py-2.5 md:flex-wrap md:px-6" tabIndex={0} aria-label="Numbers">
      {facts.map(([name, value]) => (
        <div key={name} className="shrink-0">
          <dt className="text-xs text-faint">{name}</dt>
          <dd className="tabular text-sm font-medium">{value}</dd>
        </div>
      ))}
    </dl>
  );
}
