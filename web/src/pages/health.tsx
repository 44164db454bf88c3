import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { CircleAlert, CircleCheck, TriangleAlert } from "lucide-react";
import type { ReactNode } from "react";

import { replicas, report, servers, settings, status } from "@/api/queries";
import { moment, plural } from "@/lib";
import { Button, Empty, Failure, Page, Panel, Skeleton } from "@/ui/parts";
import { tone, word } from "@/ui/state";
import { useOrders } from "./servers";
import type { Replica, Server } from "@/api/client";

type Finding = { id: string; level: "bad" | "warn"; title: ReactNode; more?: ReactNode; mend?: ReactNode };

/** All problems, worst first, each with its fix. */
export function Health() {
  const state = useQuery(status);
  const known = useQuery(servers);
  const set = useQuery(settings);
  const doctor = useQuery(report);
  const others = useQuery(replicas);
  if (state.error && !state.data) return <Failure error={state.error} retry={() => void state.refetch()} />;
  if (!state.data || !known.data) return <Skeleton />;
  const { database, audit, version } = state.data;
  const findings: Finding[] = [];
  if (!database.answers) findings.push({ id: "database", level: "bad", title: "The database does not respond", more: database.reason });
  for (const problem of set.data?.problems ?? []) findings.push({ id: `problem ${problem}`, level: "bad", title: "A configuration file cannot be used", more: problem });
  for (const server of known.data) {
    const hue = tone(server.status);
    if (hue === "bad" || hue === "warn")
      findings.push({
        id: `server ${server.id}`,
        level: hue,
        title: <><Link to="/servers/$id" params={{ id: server.id! }} className="font-medium hover:underline">{server.name}</Link> is {word(server.status) === "Failed, retrying" ? "failing, and is retried" : word(server.status).toLowerCase()}</>,
        more: server.reason,
        mend: <Mend server={server} />,
      });
    for (const problem of server.problems ?? [])
      findings.push({ id: `problem ${server.id} ${problem}`, level: "warn", title: <><Link to="/servers/$id" params={{ id: server.id! }} className="font-medium hover:underline">{server.name}</Link> has a problem</>, more: problem });
    if (server.kept_back)
      findings.push({ id: `kept ${server.id}`, level: "warn", title: `${server.name}: ${plural(server.kept_back, "tool")} kept back`, more: "A definition changed after it was approved.", mend: <Link to="/approvals" className="text-sm font-medium text-accent hover:underline">Review the changes</Link> });
  }
  for (const warning of set.data?.warnings ?? []) findings.push({ id: `warning ${warning}`, level: "warn", title: "A configuration file has a warning", more: warning });
  // Findings that the page already lists, about servers and files, are not repeated.
  const isNew = (what: string) => !known.data.some((one) => what.includes(`\`${one.name}\``)) && !set.data?.problems.some((one) => what.includes(one));
  for (const one of doctor.data?.findings ?? []) if (one.level !== "ok" && isNew(one.what)) findings.push({ id: `doctor ${one.what}`, level: one.level === "problem" ? "bad" : "warn", title: one.what, more: one.help });
  if (!audit.enabled) findings.push({ id: "audit", level: "warn", title: "Calls are not recorded", more: "Set `enabled = true` under `[audit]` in toolwharf.toml to record them." });
  findings.sort((a, b) => (a.level === b.level ? 0 : a.level === "bad" ? -1 : 1));
  return (
    <Page title="Health" lead={`Toolwharf ${version}, ${database.kind}, ${plural(known.data.length, "server")}`}>
      {findings.length ? (
        <Panel title={plural(findings.length, "finding")}>
          <ul className="divide-y divide-line">
            {findings.map((one) => (
              <li key={one.id} className="flex flex-wrap items-center gap-x-3 gap-y-2 px-3.5 py-2.5">
                {one.level === "bad" ? <CircleAlert aria-label="Problem" className="size-4 shrink-0 text-bad" /> : <TriangleAlert aria-label="Warning" className="size-4 shrink-0 text-warn" />}
                <div className="min-w-0 flex-1 basis-60">
                  <p className="text-sm">{one.title}</p>
                  {one.more && <p className="text-xs break-words whitespace-pre-line text-muted">{one.more}</p>}
                </div>
                {one.mend}
              </li>
            ))}
          </ul>
        </Panel>
      ) : (
        <Empty icon={<CircleCheck />} title="Nothing is wrong">
          The database responds, the configuration is valid, and every server is in its expected state. <code>toolwharf doctor</code> also checks what only the command line can see.
        </Empty>
      )}
      {!!others.data?.length && <Replicas replicas={others.data} servers={known.data} />}
    </Page>
  );
}

/** The replicas on one database, with the leases of each. */
function Replicas({ replicas, servers }: { replicas: Replica[]; servers: Server[] }) {
  return (
    <Panel title={plural(replicas.length, "replica")} className="mt-5">
      <ul className="divide-y divide-line">
        {replicas.map((one) => {
          const held = one.leases.flatMap(({ name, since }) => {
            const server = servers.find(({ id }) => name === `server:${id}`);
            return server ? [{ server, since }] : [];
          });
          return (
            <li key={one.id} className="flex flex-wrap gap-x-6 gap-y-1 px-3.5 py-2.5 text-sm">
              <div className="min-w-0 flex-1 basis-60">
                <p>
                  <span className="font-medium break-words">{one.name}</span>
                  {one.is_self && <span className="text-muted"> (this one)</span>}
                </p>
                <p className="text-xs break-words text-muted">
                  {one.version}, since {moment(one.started_at)}
                  {one.address && <>, at <code>{one.address}</code></>}
                </p>
              </div>
              <ul aria-label={`Leases of ${one.name}`} className="min-w-0 flex-1 basis-60 text-xs">
                {held.map(({ server, since }) => (
                  <li key={server.id}>
                    <Link to="/servers/$id" params={{ id: server.id! }} className="font-medium hover:underline">{server.name}</Link>
                    <span className="text-muted"> since {moment(since)}</span>
                  </li>
                ))}
                {!held.length && <li className="text-muted">runs no registered server</li>}
              </ul>
            </li>
          );
        })}
      </ul>
    </Panel>
  );
}

function Mend({ server }: { server: Server }) {
  const { restart } = useOrders(server);
  return <Button onClick={restart.onSelect}>Start again</Button>;
}
