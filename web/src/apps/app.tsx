// The App of a tool (MCP Apps), shown in two nested frames on another origin. Used on the try-it page and in chats.
import { useQuery } from "@tanstack/react-query";
import { AppWindow } from "lucide-react";
import { useEffect, useMemo, useRef, useState } from "react";

import { listed } from "@/api/queries";
import type { Definition } from "@/api/tools";
import { run, type Ended, type Params, type Result } from "@/pages/tools/run";
import { Decide } from "@/ui/form";
import { pretty } from "@/ui/json";
import { openOutside } from "@/ui/outside";
import { useTheme } from "@/ui/media";
import { Button, message, Notice, Skeleton } from "@/ui/parts";
import { isForApps, Refusal, sandbox, talk } from "./host";

/** Maximum size of an App's page, in characters. */
const MAX_PAGE_CHARS = 10 << 20;
const [MIN_HEIGHT_PX, MAX_HEIGHT_PX] = [60, 1200];
/** Time limit for loading the sandbox. */
const LOAD_TIMEOUT_MS = 10_000;
const MIME_TYPE = "text/html;profile=mcp-app";

type Meta = { ui?: { csp?: unknown; prefersBorder?: boolean } };
type Page = { html: string; csp: unknown; hasBorder: boolean };
type Question = { text: string; detail: string; action: string; decide: (allowed: boolean) => void };

export type AppProps = {
  /** The server's id. */
  server: string;
  definition: Definition;
  uri: string;
  args: Params;
  /** The tool's result; undefined while the tool runs. */
  result?: Result | undefined;
  /** The reason why there will be no result. */
  cancelled?: string | undefined;
  /** Receives a message that the App sends on behalf of the user. Without this handler, the page shows the message. */
  onMessage?: ((text: string) => void) | undefined;
  /** Receives context that the App has for the model. */
  onContext?: ((text: string) => void) | undefined;
};

async function ask(server: string, method: string, params: Params): Promise<Record<string, unknown>> {
  const ended: Ended = await run(server, method, params, new AbortController().signal, { progress: () => {}, log: () => {} });
  if ("result" in ended) return ended.result;
  throw new Error(ended.problem.detail ?? "The server did not answer.");
}

async function load(server: string, uri: string): Promise<Page> {
  const read = await ask(server, "resources/read", { uri });
  const contents = (Array.isArray(read["contents"]) ? read["contents"] : []) as { uri?: string; mimeType?: string; text?: string; blob?: string; _meta?: Meta }[];
  const content = contents.find((one) => one.uri === uri) ?? contents[0];
  if (content?.mimeType?.replaceAll(/\s/g, "").toLowerCase() !== MIME_TYPE) throw new Error(`${uri} is not an App: its kind is ${content?.mimeType ?? "unknown"}, not ${MIME_TYPE}.`);
  const size = (content.text ?? content.blob ?? "").length;
  if (size > MAX_PAGE_CHARS) throw new Error(`The App has ${size} characters; at most ${MAX_PAGE_CHARS} are allowed.`);
  const html = content.text ?? new TextDecoder().decode(Uint8Array.from(atob(content.blob ?? ""), (char) => char.charCodeAt(0)));
  let ui = content._meta?.ui;
  if (!ui) {
    // Metadata from the list applies if the page itself has none.
    const resources = await ask(server, "resources/list", {}).catch(() => ({}) as Params);
    const all = (Array.isArray(resources["resources"]) ? resources["resources"] : []) as { uri?: string; _meta?: Meta }[];
    ui = all.find((one) => one.uri === uri)?._meta?.ui;
  }
  return { html, csp: ui?.csp ?? {}, hasBorder: ui?.prefersBorder !== false };
}

export function AppView(props: AppProps) {
  const origin = sandbox();
  const page = useQuery({ queryKey: ["app", props.server, props.uri], queryFn: () => load(props.server, props.uri), enabled: !!origin, retry: false, staleTime: 30_000 });
  if (!origin)
    return (
      <Notice>
        This tool has an App. It cannot be shown, because the gateway has no second address for Apps that your browser can reach. Set{" "}
        <code>console.apps_url</code> in toolwharf.toml to such an address.
      </Notice>
    );
  if (page.error) return <Notice tone="warn" actions={<Button onClick={() => void page.refetch()}>Try again</Button>}>The App of this tool cannot be shown. {message(page.error)}</Notice>;
  if (!page.data) return <Skeleton rows={2} />;
  return <Framed {...props} origin={origin} page={page.data} />;
}

function Framed({ server, definition, args, result, cancelled, onMessage, onContext, origin, page }: AppProps & { origin: string; page: Page }) {
  const frame = useRef<HTMLIFrameElement>(null);
  const app = useRef<ReturnType<typeof talk>>(null);
  const isTold = useRef(false);
  const [height, setHeight] = useState(160);
  const [over, setOver] = useState<string>();
  const [question, setQuestion] = useState<Question>();
  const [said, setSaid] = useState<string>();
  const [told, setTold] = useState<string>();
  const known = useQuery(listed<Definition>(server, "tools/list", "tools"));
  const theme = useTheme();
  const now = useRef({ onMessage, onContext, known, theme });
  now.current = { onMessage, onContext, known, theme };
  const address = useMemo(() => `${origin}/?${new URLSearchParams({ host: location.origin, csp: JSON.stringify(page.csp) })}`, [origin, page.csp]);

  useEffect(() => {
    let asking = false;
    const decided = (text: string, detail: string, action: string) => {
      if (asking) return Promise.resolve(false);
      asking = true;
      return new Promise<boolean>((decide) =>
        setQuestion({ text, detail, action, decide: (allowed) => ((asking = false), setQuestion(undefined), decide(allowed)) }),
      );
    };
    const slow = setTimeout(() => setOver(`The sandbox for Apps at ${origin} does not respond. Is it reachable from this browser?`), LOAD_TIMEOUT_MS);
    const context = () => ({
      theme: now.current.theme,
      locale: navigator.language,
      timeZone: Intl.DateTimeFormat().resolvedOptions().timeZone,
      displayMode: "inline",
      availableDisplayModes: ["inline"],
      containerDimensions: { width: frame.current?.clientWidth ?? 0, maxHeight: MAX_HEIGHT_PX },
      platform: "web",
      userAgent: "toolwharf",
      toolInfo: { tool: definition },
    });
    const talking = (app.current = talk(frame.current!, origin, page.html, context, {
      async call(name, given) {
        const all = now.current.known.data ?? (await now.current.known.refetch()).data;
        const tool = all?.find((one) => one.name === name);
        if (!tool || !isForApps(tool)) throw new Refusal(-32602, `This App's server has no tool \`${name}\` for Apps.`);
        const allowed = tool.annotations?.readOnlyHint || (await decided(`The App wants to run ${name}`, pretty(given), "Run it"));
        if (!allowed) throw new Refusal(-32000, "The user did not allow it.");
        return ask(server, "tools/call", { name, arguments: given });
      },
      read: (uri) => ask(server, "resources/read", { uri }),
      open: (url) => openOutside(url, (url, warning) => decided("The App wants to open a page", warning ? `${url}\n\n${warning}` : url, "Open it")),
      say: (text) => (now.current.onMessage ?? setSaid)(text),
      tell: (text) => (now.current.onContext ?? setTold)(text),
      resize: (to) => setHeight(Math.min(MAX_HEIGHT_PX, Math.max(MIN_HEIGHT_PX, Math.ceil(to)))),
      begun: () => clearTimeout(slow),
      closed: (reason) => setOver(`The App was stopped. ${reason}`),
    }));
    const sizes = new ResizeObserver(([entry]) => talking.changed({ containerDimensions: { width: Math.round(entry!.contentRect.width), maxHeight: MAX_HEIGHT_PX } }));
    sizes.observe(frame.current!);
    return () => {
      clearTimeout(slow);
      sizes.disconnect();
      talking.end();
    };
    // Each run has a separate App: the parent component sets a key.
  }, []);
  useEffect(() => app.current?.changed({ theme }), [theme]);
  useEffect(() => app.current?.input(args), []);
  useEffect(() => {
    if (isTold.current || (!result && cancelled === undefined)) return;
    isTold.current = true;
    if (result) app.current?.result(result);
    else if (cancelled !== undefined) app.current?.cancelled(cancelled);
  }, [result, cancelled]);

  if (over) return <Notice tone="warn">{over}</Notice>;
  return (
    <section aria-label={`App of ${definition.name}`} className="flex min-w-0 flex-col gap-2">
      <p className="flex items-center gap-1.5 text-xs text-faint">
        <AppWindow aria-hidden className="size-3.5" /> App of this tool, in a sandbox
      </p>
      <iframe ref={frame} title={`App of ${definition.name}`} src={address} sandbox="allow-scripts allow-same-origin allow-forms" style={{ height }} className={page.hasBorder ? "w-full rounded-lg border bg-panel" : "w-full"} />
      {question && (
        <div role="alertdialog" aria-label={question.text} className="flex flex-col gap-2 rounded-lg border border-edge bg-panel px-3.5 py-3 text-sm">
          <p className="font-medium">{question.text}</p>
          <pre tabIndex={0} className="max-h-40 overflow-auto text-xs break-all whitespace-pre-wrap text-muted">{question.detail.slice(0, 4000)}</pre>
          <Decide onCancel={() => question.decide(false)} cancel="Refuse" action={question.action} onClick={() => question.decide(true)} />
        </div>
      )}
      {said && <Notice>The App says: {said.slice(0, 4000)}</Notice>}
      {told && <Notice>The App tells the model: {told.slice(0, 4000)}</Notice>}
    </section>
  );
}
