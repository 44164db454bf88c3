// Forms: running their action, labelled fields, and the buttons at their end.
import { useQuery } from "@tanstack/react-query";
import { useState, type ComponentProps, type ReactNode } from "react";

import { projects } from "@/api/queries";
import { cx } from "@/lib";
import { Button, Field, Input, message, Notice, Select, type ButtonProps } from "./parts";

/** Runs the action of a form. `error` is why the last run failed. */
export function useSubmit() {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const submit = async (action: () => Promise<unknown>) => {
    setBusy(true);
    setError(undefined);
    try {
      await action();
    } catch (failed) {
      setError(failed);
    } finally {
      setBusy(false);
    }
  };
  return { busy, error, submit, setError };
}

/** The buttons at the end of a dialog. All other properties are passed to the second button. */
export function Decide({ onCancel, cancel = "Cancel", action, className, ...rest }: ButtonProps & { onCancel: () => void; cancel?: string; action: string }) {
  return (
    <div className={cx(className, "flex justify-end gap-2")}>
      <Button onClick={onCancel}>{cancel}</Button>
      <Button look="solid" {...rest}>
        {action}
      </Button>
    </div>
  );
}

/** The form of a dialog: its fields, the error of the last attempt, and its buttons. */
export function DialogForm({ onSubmit, onCancel, action, error, busy = false, children }: { onSubmit: () => Promise<void>; onCancel: () => void; action: string; error: unknown; busy?: boolean; children: ReactNode }) {
  return (
    <form className="flex flex-col gap-4" onSubmit={(event) => (event.preventDefault(), void onSubmit())}>
      {children}
      {!!error && <Notice tone="bad">{message(error)}</Notice>}
      <Decide onCancel={onCancel} action={action} type="submit" busy={busy} />
    </form>
  );
}

type Label = { label: string; help?: ReactNode; onChange: (value: string) => void };

export function TextField({ label, help, onChange, ...rest }: Label & Omit<ComponentProps<typeof Input>, "onChange">) {
  return (
    <Field label={label} help={help}>
      <Input onChange={(event) => onChange(event.target.value)} {...rest} />
    </Field>
  );
}

/** `none` is the label of the empty value. Each choice is a value, or a value and its label. */
type Choices = { none?: string; choices: (string | [value: string, label: string])[] };
type ChooseProps = Omit<ComponentProps<typeof Select>, "onChange"> & Choices & Pick<Label, "onChange">;

export function Choose({ none, choices, onChange, ...rest }: ChooseProps) {
  return (
    <Select onChange={(event) => onChange(event.target.value)} {...rest}>
      {none !== undefined && <option value="">{none}</option>}
      {choices.map((one) => {
        const [value, label] = typeof one === "string" ? [one, one] : one;
        return (
          <option key={value} value={value}>
            {label}
          </option>
        );
      })}
    </Select>
  );
}

export function ChoiceField({ label, help, ...rest }: Label & ChooseProps) {
  return (
    <Field label={label} help={help}>
      <Choose {...rest} />
    </Field>
  );
}

/** A choice between `none` (no particular project) and one of the projects. Not shown if there are no projects. */
export function ProjectField({ label, none, value, onChange }: { label: string; none: string; value: string; onChange: (project: string) => void }) {
  const { data } = useQuery({ ...projects, retry: false });
  if (!data?.length) return null;
  return <ChoiceField label={label} value={value} onChange={onChange} none={none} choices={data.map((one) => [one.id, `the project ${one.name || one.id}`])} />;
}
