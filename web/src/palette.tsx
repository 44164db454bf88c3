// The command palette (⌘K), which finds any page, server, tool or action.
import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { Command } from "cmdk";
import { Play, RotateCw, ScanSearch, Square, Sun, Wrench } from "lucide-react";
import { Dialog as D } from "radix-ui";
import { useState, type ReactNode } from "react";

import { allTools, DONE, order, servers } from "./api/queries";
import { matches, ownerOf, wordsOf } from "./api/tools";
import { PLACES, type Place } from "./shell";
import { setTheme } from "./ui/media";
import { attempt, Modal } from "./ui/overlay";
import { Dot } from "./ui/state";

const GROUP = "[&_[cmdk-group-heading]]:px-3 [&_[cmdk-group-heading]]:pt-2.5 [&_[cmdk-group-heading]]:pb-1 [&_[cmdk-group-heading]]:text-xs [&_[cmdk-group-heading]]:font-medium [&_[cmdk-group-heading]]:text-faint";
const ACTIONS = [
  ["restart", "Restart", <RotateCw className="size-4" />],
  ["stop", "Stop", <Square className="size-4" />],
  ["start", "Start", <Play className="size-4" />],
] as const;
/** Pages that the sidebar does not list. */
const MORE_PLACES: Place[] = [{ to: "/tools/find", label: "How models find tools", icon: ScanSearch, words: "search mode tokens" }];
/** Maximum number of tools shown. Tools are searched only after the user has typed something. */
const MAX_TOOLS = 30;

export default function Palette({ open, onOpenChange }: { open: boolean; onOpenChange: (open: boolean) => void }) {
  const navigate = useNavigate();
  const [typed, setTyped] = useState("");
  const known = useQuery({ ...servers, enabled: open });
  const tools = useQuery({ ...allTools, enabled: open });
  const then = (chosen: () => void) => () => {
    onOpenChange(false);
    setTyped("");
    chosen();
  };
  const go = (to: string, search: Record<string, string> = {}) => then(() => void navigate({ to, search } as never));
  const act = (doing: () => Promise<unknown>, done: string) => then(() => void attempt(doing, done));
  const words = wordsOf(typed);
  const found = (words.length ? (tools.data ?? []) : []).filter((tool) => matches(tool, words)).slice(0, MAX_TOOLS);
  return (
    <Modal open={open} onOpenChange={onOpenChange} aria-describedby={undefined} className="appear inset-x-2 top-[8vh] mx-auto max-w-xl overflow-hidden rounded-xl border bg-panel">
      <D.Title className="sr-only">Search everything</D.Title>
      <Command label="Search everything" loop>
        <Command.Input
          value={typed}
          onValueChange={setTyped}
          placeholder="A page, server, tool or action"
          className="h-12 w-full border-b bg-transparent px-4 text-base outline-none placeholder:text-faint pointer-coarse:text-[16px]"
        />
        <Command.List className="max-h-[min(24rem,60vh)] overflow-y-auto p-1.5">
          <Command.Empty className="px-3 py-8 text-center text-sm text-muted">No match.</Command.Empty>
          <Command.Group heading="Pages" className={GROUP}>
            {[...PLACES.flat(), ...MORE_PLACES].map(({ to, label, icon: Icon, words }) => (
              <Item key={to} value={`page ${label} ${words ?? ""}`} onSelect={go(to)} icon={<Icon className="size-4" />}>
                {label}
              </Item>
            ))}
          </Command.Group>
          {!!known.data?.length && (
            <Command.Group heading="Servers" className={GROUP}>
              {known.data.map((one) => (
                <Item key={one.id} value={`server ${one.name} ${one.project ?? ""} ${one.id}`} onSelect={go(`/servers/${encodeURIComponent(one.id!)}`)} icon={<Dot status={one.status} className="mx-1" />} more={one.project ?? one.target}>
                  {one.name}
                </Item>
              ))}
            </Command.Group>
          )}
          {!!found.length && (
            <Command.Group heading="Tools" className={GROUP}>
              {found.map((tool) => (
                <Item key={`${tool.project} ${tool.server} ${tool.native}`} value={`tool ${tool.name} ${tool.native} ${tool.server} ${tool.project ?? ""}`} onSelect={go("/tools", { server: ownerOf(tool, known.data)?.id ?? "", tool: tool.native })} icon={<Wrench className="size-4" />} more={tool.server}>
                  {tool.name ?? tool.native}
                </Item>
              ))}
            </Command.Group>
          )}
          {!!words.length && (
            <Command.Group heading="Actions" className={GROUP}>
              {(known.data ?? []).flatMap((one) =>
                ACTIONS.map(([verb, label, icon]) => (
                  <Item key={`${verb} ${one.id}`} value={`action ${verb} ${one.name} ${one.id}`} onSelect={act(() => order(one.id!, verb), `${one.name} is ${DONE[verb]}.`)} icon={icon} more={one.project}>
                    {label} {one.name}
                  </Item>
                )),
              )}
              {(["light", "dark", "system"] as const).map((to) => (
                <Item key={to} value={`action theme ${to}`} onSelect={act(async () => setTheme(to), `The theme is ${to}.`)} icon={<Sun className="size-4" />}>
                  Theme: {to}
                </Item>
              ))}
            </Command.Group>
          )}
        </Command.List>
      </Command>
    </Modal>
  );
}

function Item({ value, onSelect, icon, more, children }: { value: string; onSelect: () => void; icon: ReactNode; more?: string | null | undefined; children: ReactNode }) {
  return (
    <Command.Item value={value} onSelect={onSelect} className="flex h-9 cursor-pointer items-center gap-2.5 rounded-md px-3 text-sm data-[selected=true]:bg-hover">
      <span className="text-faint">{icon}</span>
      <span className="truncate">{children}</span>
      {more && <span className="ml-auto truncate text-xs text-faint">{more}</span>}
    </Command.Item>
  );
}
