// Requests from a server during a call: a form, a link to open, or a response in place of a model.
import { ExternalLink } from "lucide-react";
import { lazy, Suspense, useState } from "react";

import { Button } from "@/ui/button";
import { Json, pretty } from "@/ui/json";
import { openOutside } from "@/ui/outside";
import { Field, Input, Panel, Skeleton, Textarea } from "@/ui/parts";
import type { Asked, Result } from "./run";

const SchemaForm = lazy(() => import("@/form/schema-form").then((file) => ({ default: file.SchemaForm })));

type Answers = Record<string, unknown>;

export function Questions({ result, onAnswer }: { result: Result; onAnswer: (answers: Answers) => void }) {
  const asked = Object.entries(result.inputRequests ?? {});
  const [answers, setAnswers] = useState<Answers>({});
  const answer = (id: string) => (given: unknown) => {
    const all = { ...answers, [id]: given };
    setAnswers(all);
    if (asked.every(([one]) => one in all)) onAnswer(all);
  };
  if (!asked.length)
    return (
      <Panel title="The server needs more input">
        <div className="p-3.5">
          <Button look="solid" onClick={() => onAnswer({})}>
            Continue
          </Button>
        </div>
      </Panel>
    );
  return asked.filter(([id]) => !(id in answers)).map(([id, one]) => <Question key={id} id={id} asked={one} onAnswer={answer(id)} />);
}

function Question({ id, asked, onAnswer }: { id: string; asked: Asked; onAnswer: (answer: unknown) => void }) {
  if (asked.method === "sampling/createMessage") return <Sampling params={asked.params} onAnswer={onAnswer} />;
  if (asked.method === "elicitation/create") return <Elicitation id={id} params={asked.params} onAnswer={onAnswer} />;
  return (
    <Panel title={`The server asks: ${asked.method}`}>
      <div className="flex flex-col gap-3 p-3.5">
        <p className="text-sm text-muted">This page cannot answer it.</p>
        <Json label="The question" value={pretty(asked.params)} />
        <Button onClick={() => onAnswer({ action: "cancel" })}>Cancel</Button>
      </div>
    </Panel>
  );
}

function Elicitation({ id, params, onAnswer }: { id: string; params: Record<string, unknown>; onAnswer: (answer: unknown) => void }) {
  const [content, setContent] = useState<Record<string, unknown>>({});
  const link = params["mode"] === "url" || typeof params["url"] === "string" ? String(params["url"]) : undefined;
  const form = `question-${id.replace(/\W/g, "-")}`;
  const isSafe = !!link && /^https?:\/\//i.test(link);
  return (
    <Panel title="The server asks you">
      <div className="flex flex-col gap-4 p-3.5">
        <p className="text-sm break-words whitespace-pre-line">{String(params["message"] ?? "")}</p>
        {link === undefined && params["requestedSchema"] !== undefined && (
          <Suspense fallback={<Skeleton rows={2} />}>
            <SchemaForm id={form} schema={params["requestedSchema"] as never} value={content} onChange={setContent} onSubmit={(given) => onAnswer({ action: "accept", content: given })} />
          </Suspense>
        )}
        {link !== undefined && <code className="rounded-md border bg-raised px-3 py-2 text-xs break-all">{link}</code>}
        <div className="flex flex-wrap justify-end gap-2">
          <Button onClick={() => onAnswer({ action: "cancel" })}>Cancel</Button>
          <Button onClick={() => onAnswer({ action: "decline" })}>Decline</Button>
          {link === undefined ? (
            <Button look="solid" type="submit" form={form}>
              Answer
            </Button>
          ) : (
            <Button
              look="solid"
              icon={<ExternalLink />}
              disabled={!isSafe}
              onClick={() => void openOutside(link).then((opened) => opened && onAnswer({ action: "accept" }))}
            >
              Open it
            </Button>
          )}
        </div>
      </div>
    </Panel>
  );
}

type Message = { role?: string; content?: unknown };

const said = (content: unknown): string => {
  if (Array.isArray(content)) return content.map(said).join("\n");
  const one = content as { type?: string; text?: string } | undefined;
  return one?.type === "text" ? String(one.text) : JSON.stringify(content);
};

function Sampling({ params, onAnswer }: { params: Record<string, unknown>; onAnswer: (answer: unknown) => void }) {
  const [text, setText] = useState("");
  const [model, setModel] = useState("a person");
  const messages = Array.isArray(params["messages"]) ? (params["messages"] as Message[]) : [];
  return (
    <Panel title="The server requests an answer from a model; enter one">
      <form
        className="flex flex-col gap-3 p-3.5"
        onSubmit={(event) => {
          event.preventDefault();
          onAnswer({ role: "assistant", content: { type: "text", text }, model, stopReason: "endTurn" });
        }}
      >
        {typeof params["systemPrompt"] === "string" && <p className="text-xs break-words text-faint">{params["systemPrompt"]}</p>}
        <ul className="flex flex-col gap-2">
          {messages.map((one, at) => (
            <li key={at} className="rounded-md bg-raised px-3 py-2 text-sm break-words whitespace-pre-line">
              <span className="text-xs font-medium text-faint">{one.role}</span>
              <br />
              {said(one.content)}
            </li>
          ))}
        </ul>
        <Field label="Answer">
          <Textarea value={text} required onChange={(event) => setText(event.target.value)} />
        </Field>
        <Field label="Model">
          <Input value={model} onChange={(event) => setModel(event.target.value)} />
        </Field>
        <div className="flex justify-end">
          <Button look="solid" type="submit">
            Answer
          </Button>
        </div>
      </form>
    </Panel>
  );
}
