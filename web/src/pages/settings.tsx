import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { settings } from "@/api/queries";
import { at } from "@/root";
import { Badge, Missing, Notices, Page, Panel, SearchBox } from "@/ui/parts";
import { Table } from "@/ui/listing";

export function Settings() {
  const { data, error, refetch } = useQuery(settings);
  const [typed, setTyped] = useState("");
  if (!data) return <Missing error={error} retry={refetch} />;
  const words = typed.toLowerCase();
  const rows = data.settings.filter((one) => `${one.key} ${one.about}`.toLowerCase().includes(words));
  const isSet = (one: (typeof rows)[number]) => one.from !== "default";
  rows.sort((a, b) => Number(isSet(b)) - Number(isSet(a)) || a.key.localeCompare(b.key));
  return (
    <Page title="Settings" lead="All settings, and where their values come from. Change them in the file; some changes need a restart." actions={<SearchBox className="w-full sm:w-64" value={typed} onChange={setTyped} placeholder="Search settings" />}>
      <div className="flex flex-col gap-4">
        <Notices texts={data.problems} tone="bad" />
        <Notices texts={data.warnings} />
        <Panel title="Files">
          <ul className="px-3.5 py-2 font-mono text-xs leading-6 break-all">
            {data.files.map((one) => (
              <li key={one}>{one}</li>
            ))}
          </ul>
        </Panel>
        <Panel>
          <Table
            label="Settings"
            items={rows}
            id={(one) => one.key}
            columns={[
              { name: "Setting", show: (one) => <><code className="font-medium break-all">{one.key}</code><p className="text-xs text-muted">{one.about}</p></> },
              { name: "Value", show: (one) => <code className="break-all">{one.value ?? one.default ?? "–"}</code> },
              { name: "From", wide: true, show: (one) => (isSet(one) ? <code className="text-xs break-all text-accent">{one.from}</code> : <Badge>default</Badge>) },
            ]}
          />
        </Panel>
        <p className="text-xs text-muted">
          Licences of the software in this page: <a className="text-accent hover:underline" href={at("licenses/npm.txt")}>packages</a>, and the typefaces{" "}
          <a className="text-accent hover:underline" href={at("licenses/inter.txt")}>Inter</a> and{" "}
          <a className="text-accent hover:underline" href={at("licenses/jetbrains-mono.txt")}>JetBrains Mono</a>.
        </p>
      </div>
    </Page>
  );
}
