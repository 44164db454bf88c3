// Requests from a server during a call: a form, a link to open, or a response that the user writes in place of a model.
import { ExternalLink } from "lucide-react";
import { useState } from "react";

import { SchemaForm } from "@/form/lazy";
import { TextField } from "@/ui/form";
import { Json, pretty } from "@/ui/json";
import { openOutside } from "@/ui/outside";
import { Button, Field, Panel, Textarea } from "@/ui/parts";
import type { Asked, Params, Result } from "./run";

export function Questions({ result, onAnswer }: { result: Result; onAnswer: (answers: Params) => void }) {
  const asked = Object.entries(result.inputRequests ?? {});
  const [answers, setAnswers] = useState<Params>({});
  const answer = (id: string) => (given: unknown) => {
    const all = { ...answers, [id]: given };
    setAnswers(all);
    if (asked.every(([one]) => one in all)) onAnswer(all);
  };
  if (!asked.length)
    return (
      <Panel title="The server needs more input" inner="p-3.5">
        <Button look="solid" onClick={() => onAnswer({})}>
          Continue
        </Button>
      </Panel>
    );
  return asked.filter(([id]) => !(id in answers)).map(([id, one]) => <Question key={id} id={id} asked={one} onAnswer={answer(id)} />);
}

function Question({ id, asked, onAnswer }: { id: string; asked: Asked; onAnswer: (answer: unknown) => void }) {
  if (asked.method === "sampling/createMessage") return <Sampling params={asked.params} onAnswer={onAnswer} />;
  if (asked.method === "elicitation/create") return <Elicitation id={id} params={asked.params} onAnswer={onAnswer} />;
  return (
    <Panel title={`The server asks: ${asked.method}`} inner="flex flex-col gap-3 p-3.5">
      <p className="text-sm text-muted">This page cannot answer it.</p>
      <Json label="The question" value={pretty(asked.params)} />
      <Button onClick={() => onAnswer({ action: "cancel" })}>Cancel</Button>
    </Panel>
  );
}

function Elicitation({ id, params, onAnswer }: { id: string; params: Params; onAnswer: (answer: unknown) => void }) {
  const [content, setContent] = useState<Record<string, unknown>>({});
  const link = params["mode"] === "url" || typeof params["url"] === "string" ? String(params["url"]) : undefined;
  const form = `question-${id.replace(/\W/g, "-")}`;
  const isSafe = !!link && /^https?:\/\//i.test(link);
  return (
    <Panel title="The server asks you" inner="flex flex-col gap-4 p-3.5">
      <p className="text-sm break-words whitespace-pre-line">{String(params["message"] ?? "")}</p>
      {link === undefined && params["requestedSchema"] !== undefined && (
        <SchemaForm rows={2} id={form} schema={params["requestedSchema"] as never} value={content} onChange={setContent} onSubmit={(given) => onAnswer({ action: "accept", content: given })} />
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
    </Panel>
  );
}

type Message = { role?: string; content?: unknown };

const said = (content: unknown): string => {
  if (Array.isArray(content)) return content.map(said).join("\n");
  const one = content as { type?: string; text?: string } | undefined;
  return one?.type === "text" ? String(one.text) : JSON.stringify(content);
};

function Sampling({ params, onAnswer }: { params: Params; onAnswer: (answer: unknown) => void }) {
  const [text, setText] = useState("");
  const [model, setModel] = useState("a person");
  const messages = Array.isArray(params["messages"]) ? (params["messages"] as Message[]) : [];
  return (
    <Panel title="The server asks a model for an answer. Write it here">
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
        <TextField label="Model" value={model} onChange={setModel} />
        <div className="flex justify-end">
          <Button look="solid" type="submit">
            Answer
          </Button>
        </div>
      </form>
    </Panel>
  );
}
