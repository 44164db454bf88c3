// The frame of every page: navigation, command palette, theme, and connection state.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, Outlet, useRouterState, type ErrorComponentProps } from "@tanstack/react-router";
import { Activity, BadgeCheck, Cable, Compass, Download, FolderKanban, HeartPulse, KeyRound, LogOut, Menu as MenuIcon, MessageSquare, Monitor, Moon, Search, Server as ServerIcon, ShieldEllipsis, SlidersHorizontal, Sun, Wrench, X } from "lucide-react";
import { Dialog as D } from "radix-ui";
import { lazy, Suspense, useEffect, useState, type ComponentType } from "react";

import { signOut } from "./api/client";
import { follow, useLiveness } from "./api/live";
import { attention } from "./api/queries";
import { cx, plural } from "./lib";
import { at } from "./root";
import { setTheme, theme, useIsWide, type Theme } from "./ui/media";
import { AskOutside } from "./ui/outside";
import { attempt, Menu, Modal, Toasts } from "./ui/overlay";
import { Button, Empty, Failure } from "./ui/parts";
import { SCROLL_ID } from "./ui/rows";

const loadPalette = () => import("./palette");
const Palette = lazy(loadPalette);

export type Place = { to: string; label: string; icon: ComponentType<{ className?: string }>; words?: string };

export const PLACES: Place[][] = [
  [{ to: "/servers", label: "Servers", icon: ServerIcon }, { to: "/tools", label: "Tools", icon: Wrench }, { to: "/calls", label: "Calls", icon: Activity }, { to: "/approvals", label: "Approvals", icon: BadgeCheck }, { to: "/chat", label: "Chat", icon: MessageSquare, words: "agent conversations" }],
  [{ to: "/projects", label: "Projects", icon: FolderKanban, words: "secrets products sign-ins" }, { to: "/keys", label: "Keys", icon: KeyRound }, { to: "/secrets", label: "Secrets", icon: ShieldEllipsis, words: "API keys tokens variables" }],
  [
    { to: "/install", label: "Install", icon: Download, words: "add a server" },
    { to: "/connect", label: "Connect", icon: Cable, words: "clients endpoint" },
  ],
  [
    { to: "/health", label: "Health", icon: HeartPulse, words: "doctor problems" },
    { to: "/settings", label: "Settings", icon: SlidersHorizontal, words: "configuration" },
  ],
];

export function Shell() {
  const client = useQueryClient();
  const isWide = useIsWide();
  const [menu, setMenu] = useState(false);
  const [palette, setPalette] = useState<"never" | "open" | "closed">("never");
  const path = useRouterState({ select: (state) => state.location.pathname });
  useEffect(() => follow(client), [client]);
  // Preloaded, so that no letter typed right after ⌘K is lost.
  useEffect(() => void requestIdleCallback(() => void loadPalette()), []);
  useEffect(() => {
    setMenu(false);
    document.getElementById(SCROLL_ID)?.scrollTo(0, 0);
  }, [path]);
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      if (event.key.toLowerCase() !== "k" || !(event.metaKey || event.ctrlKey) || event.shiftKey || event.altKey) return;
      event.preventDefault();
      setPalette((now) => (now === "open" ? "closed" : "open"));
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, []);
  const search = () => setPalette("open");
  return (
    <div className="flex h-dvh flex-col md:flex-row">
      <a href={`#${SCROLL_ID}`} className="fixed top-2 left-2 z-70 -translate-y-20 rounded-md bg-solid px-3 py-2 text-sm font-medium text-white focus:translate-y-0">
        Skip to the content
      </a>
      {isWide ? (
        <aside className="flex w-54 shrink-0 flex-col border-r bg-side">
          <Brand />
          <Side search={search} />
        </aside>
      ) : (
        <header className="flex items-center gap-1 border-b bg-side px-2">
          <Button look="quiet" aria-label="Menu" icon={<MenuIcon />} onClick={() => setMenu(true)} />
          <Brand />
          <span className="flex-1" />
          <Button look="quiet" aria-label="Search everything" icon={<Search />} onClick={search} />
          <Modal open={menu} onOpenChange={setMenu} aria-describedby={undefined} className="inset-y-0 left-0 flex w-64 flex-col border-r bg-side">
            <div className="flex items-center justify-between pr-2">
              <D.Title asChild>
                <div>
                  <Brand />
                </div>
              </D.Title>
              <D.Close asChild>
                <Button look="quiet" aria-label="Close the menu" icon={<X />} />
              </D.Close>
            </div>
            <Side search={() => (setMenu(false), search())} />
          </Modal>
        </header>
      )}
      <div className="flex min-h-0 min-w-0 flex-1 flex-col">
        <Lifeline />
        {/* Positioned, so that hidden texts in it do not make the document longer than the window. */}
        <main id={SCROLL_ID} tabIndex={-1} className="relative min-h-0 flex-1 overflow-y-auto outline-none">
          <Suspense fallback={null}>
            <Outlet />
          </Suspense>
        </main>
      </div>
      {palette !== "never" && (
        <Suspense fallback={null}>
          <Palette open={palette === "open"} onOpenChange={(open) => setPalette(open ? "open" : "closed")} />
        </Suspense>
      )}
      <AskOutside />
      <Toasts />
    </div>
  );
}

function Brand() {
  return (
    <Link to="/servers" className="flex h-12 items-center gap-2 px-3.5 font-semibold tracking-tight">
      <img src={at("icon.svg")} alt="" className="size-5" />
      Toolwharf
    </Link>
  );
}

const isMac = /Mac|iPhone|iPad/.test(navigator.userAgent);

function Side({ search }: { search: () => void }) {
  return (
    <>
      <div className="px-2.5 pb-2">
        <button
          type="button"
          onClick={search}
          className="flex h-8 w-full items-center gap-2 rounded-md border border-edge bg-panel px-2 text-sm text-faint hover:bg-hover pointer-coarse:h-10"
        >
          <Search aria-hidden className="size-3.5" />
          <span className="flex-1 text-left">Search</span>
          <kbd className="text-xs">{isMac ? "⌘K" : "Ctrl K"}</kbd>
        </button>
      </div>
      <nav aria-label="Pages" className="flex flex-1 flex-col gap-3 overflow-y-auto px-2.5 py-1">
        {PLACES.map((group, at) => (
          <ul key={at} className="flex flex-col gap-px">
            {group.map(({ to, label, icon: Icon }) => (
              <li key={to}>
                <Link
                  to={to}
                  className="flex h-8 items-center gap-2.5 rounded-md px-2 text-sm font-medium text-muted hover:bg-hover hover:text-text aria-[current=page]:bg-line aria-[current=page]:text-text pointer-coarse:h-10"
                >
                  <Icon className="size-4 shrink-0 opacity-80" />
                  {label}
                  <Needs to={to} />
                </Link>
              </li>
            ))}
          </ul>
        ))}
      </nav>
      <div className="flex items-center justify-between gap-1 border-t px-2.5 py-2">
        <ThemeMenu />
        <button type="button" onClick={() => void attempt(signOut)} className="flex h-8 items-center gap-1.5 rounded-md px-2 text-sm text-muted hover:bg-hover hover:text-text">
          <LogOut aria-hidden className="size-4" /> Sign out
        </button>
      </div>
    </>
  );
}

/** The number of things on a page that need a person. */
function Needs({ to }: { to: string }) {
  const { data } = useQuery(attention);
  const said: Record<string, [number, string, string]> = {
    "/approvals": [data?.tools ?? 0, "tool to approve", "tools to approve"],
    "/servers": [data?.servers ?? 0, "server needs attention", "servers need attention"],
    "/health": [data?.backup ? 1 : 0, "failed backup", "failed backups"],
  };
  const [number, one, many] = said[to] ?? [0, "", ""];
  if (!number) return null;
  const label = plural(number, one, many);
  return (
    <span className="tabular ml-auto rounded-full bg-warn-soft px-1.5 text-xs font-semibold text-warn">
      <span aria-hidden>{number > 99 ? "99+" : number}</span>
      <span className="sr-only">{label}</span>
    </span>
  );
}

function ThemeMenu() {
  const [now, setNow] = useState<Theme>(theme);
  const choose = (to: Theme) => () => (setTheme(to), setNow(to));
  const Icon = { system: Monitor, light: Sun, dark: Moon }[now];
  return (
    <Menu
      trigger={<Button look="quiet" aria-label={`Theme: ${now}`} icon={<Icon />} />}
      items={[
        { label: "Same as the system", icon: <Monitor />, onSelect: choose("system") },
        { label: "Light", icon: <Sun />, onSelect: choose("light") },
        { label: "Dark", icon: <Moon />, onSelect: choose("dark") },
      ]}
    />
  );
}

/** Warns that the shown data may be out of date. */
function Lifeline() {
  const liveness = useLiveness();
  return (
    <p role="status" className={cx("bg-warn-soft px-4 text-center text-sm text-warn", liveness === "lost" && "py-1.5")}>
      {liveness === "lost" && "Toolwharf does not respond. What you see may be out of date. This page keeps trying to reconnect."}
    </p>
  );
}

export function Lost() {
  return (
    <Empty icon={<Compass />} title="Page not found" action={<Link className="text-sm font-medium text-accent underline" to="/servers">Go to the servers</Link>}>
      Press {isMac ? "⌘K" : "Ctrl K"} to search for what you want.
    </Empty>
  );
}

export function RouteFailure({ error, reset }: ErrorComponentProps) {
  return <Failure error={error} retry={reset} />;
}

