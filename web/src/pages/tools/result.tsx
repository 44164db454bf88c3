// The result of a tool. All of it is untrusted: text stays text, only embedded images are shown, links are shown in full.
import { Download, ExternalLink, FileText } from "lucide-react";
import { useState } from "react";

import { bytes } from "@/lib";
import { asJson, CopyButton, Json, pretty } from "@/ui/json";
import { isLink, Outside } from "@/ui/outside";
import { Badge, Chips, Notice } from "@/ui/parts";
import type { Content, Result } from "./run";

/** Longer texts are truncated for display. Copying copies everything. */
const MAX_SHOWN_CHARS = 200_000;
const IMAGES = /^image\/(png|jpeg|gif|webp|avif|bmp)$/;

type View = "shown" | "structured" | "raw";

export function ResultView({ result }: { result: Result }) {
  const content = Array.isArray(result.content) ? result.content : [];
  const hasStructure = result.structuredContent !== undefined;
  const [view, setView] = useState<View>(content.length ? "shown" : hasStructure ? "structured" : "raw");
  return (
    <div className="flex flex-col gap-3">
      <div className="flex items-center justify-between gap-2">
        <Chips
          label="View of the result"
          value={view}
          onChange={setView}
          choices={[
            ...(content.length ? [["shown", "Result"] as const] : []),
            ...(hasStructure ? [["structured", "Structured"] as const] : []),
            ["raw", "Raw"],
          ]}
        />
        <CopyButton label="Copy the result" text={() => pretty(result)} />
      </div>
      {view === "shown" && content.map((item, at) => <Item key={at} item={item} />)}
      {view === "structured" && <Json label="Structured result" value={pretty(result.structuredContent)} />}
      {view === "raw" && <Json label="Raw result" value={cut(pretty(result))} />}
    </div>
  );
}

const cut = (text: string) => (text.length > MAX_SHOWN_CHARS ? `${text.slice(0, MAX_SHOWN_CHARS)}\n… ${text.length - MAX_SHOWN_CHARS} more characters: copy the result to get all of it` : text);

function Text({ text }: { text: string }) {
  const json = text.length > MAX_SHOWN_CHARS ? undefined : asJson(text);
  if (json) return <Json label="Text of the result" value={json} />;
  return <pre tabIndex={0} className="max-h-[60vh] overflow-auto rounded-md border bg-panel px-3 py-2 text-[0.8125rem] leading-5 break-words whitespace-pre-wrap">{cut(text)}</pre>;
}

function Item({ item }: { item: Content }) {
  if (item.type === "text") return <Text text={String(item.text ?? "")} />;
  if (item.type === "image" && IMAGES.test(item.mimeType ?? ""))
    return (
      <figure className="flex flex-col items-start gap-1">
        <img alt="Image of the result" src={`data:${item.mimeType};base64,${item.data}`} className="max-h-[60vh] max-w-full rounded-md border bg-[repeating-conic-gradient(var(--color-raised)_0_25%,transparent_0_50%)] bg-size-[16px_16px]" />
        <figcaption className="text-xs text-faint">
          {item.mimeType}, {bytes(((item.data?.length ?? 0) * 3) / 4)}
        </figcaption>
      </figure>
    );
  if (item.type === "resource_link") return <Link uri={String(item.uri)} name={item.title ?? item.name} description={item.description} mimeType={item.mimeType} />;
  if (item.type === "resource" && item.resource)
    return (
      <div className="flex flex-col gap-1">
        <Link uri={String(item.resource.uri)} mimeType={item.resource.mimeType} />
        {item.resource.text !== undefined && <Text text={String(item.resource.text)} />}
        {item.resource.blob && <Save data={item.resource.blob} mimeType={item.resource.mimeType} />}
      </div>
    );
  if (item.data) return <Save data={item.data} mimeType={item.mimeType} />;
  return (
    <>
      <Notice>This kind of content is not shown: {String(item.type)}</Notice>
      <Json label="Content" value={cut(pretty(item))} />
    </>
  );
}

function Link({ uri, name, description, mimeType }: { uri: string; name?: string | undefined; description?: string | undefined; mimeType?: string | undefined }) {
  return (
    <div className="flex items-center gap-2.5 rounded-md border bg-panel px-3 py-2">
      <FileText aria-hidden className="size-4 shrink-0 text-faint" />
      <div className="min-w-0 flex-1">
        {name && <p className="truncate text-sm font-medium">{name}</p>}
        <p className="font-mono text-xs break-all text-muted">{uri}</p>
        {description && <p className="text-xs text-faint">{description}</p>}
      </div>
      {mimeType && <Badge>{mimeType}</Badge>}
      {isLink(uri) && (
        <Outside href={uri} label={`Open ${uri}`} className="text-muted hover:text-text">
          <ExternalLink className="size-4" />
        </Outside>
      )}
      <CopyButton label="Copy the address" text={uri} />
    </div>
  );
}

/** A download link. The file is never opened in the page, whatever its media type. */
function Save({ data, mimeType }: { data: string; mimeType?: string | undefined }) {
  return (
    <a download="result" href={`data:application/octet-stream;base64,${data}`} className="inline-flex items-center gap-2 self-start rounded-md border bg-panel px-3 py-2 text-sm hover:bg-hover">
      <Download aria-hidden className="size-4 text-faint" /> Save ({mimeType ?? "unknown kind"}, {bytes((data.length * 3) / 4)})
    </a>
  );
}
