// Markdown from models. Raw HTML stays text, only web and mail links are allowed, and no image is loaded from other hosts.
import { memo, type ReactNode } from "react";
import Markdown, { type Components } from "react-markdown";
import gfm from "remark-gfm";

import { CopyButton } from "@/ui/json";
import { isLink, Outside } from "@/ui/outside";

function Link({ to, children }: { to: string | undefined; children?: ReactNode }) {
  if (!isLink(to)) return <span>{children}</span>;
  return <Outside href={to}>{children}</Outside>;
}

const textOf = (node: unknown): string => {
  const one = node as { value?: string; children?: unknown[] };
  return one.value ?? (one.children ?? []).map(textOf).join("");
};

const components: Components = {
  a: ({ href, children }) => <Link to={href}>{children}</Link>,
  img: ({ src, alt }) => <Link to={typeof src === "string" ? src : undefined}>{alt || String(src ?? "")}</Link>,
  pre: ({ children, node }) => (
    <div className="code">
      <pre tabIndex={0}>{children}</pre>
      <CopyButton label="Copy the code" text={() => textOf(node).replace(/\n$/, "")} />
    </div>
  ),
  table: ({ children }) => (
    <div className="table" tabIndex={0} role="region" aria-label="Table">
      <table>{children}</table>
    </div>
  ),
  input: ({ checked }) => <span aria-label={checked ? "done" : "to do"}>{checked ? "☑ " : "☐ "}</span>,
};

export const Text = memo(function Text({ text }: { text: string }) {
  return (
    <div className="md">
      <Markdown remarkPlugins={[gfm]} components={components} urlTransform={(url) => (isLink(url) ? url : "")}>
        {text}
      </Markdown>
    </div>
  );
});
