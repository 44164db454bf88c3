// A form generated from a JSON Schema, in the style of the console.
import Form, { type IChangeEvent } from "@rjsf/core";
import {
  ariaDescribedByIds,
  enumOptionsIndexForValue,
  enumOptionsValueForIndex,
  getInputProps,
  type ArrayFieldItemTemplateProps,
  type ArrayFieldTemplateProps,
  toErrorSchema,
  type BaseInputTemplateProps,
  type ErrorSchema,
  type FieldTemplateProps,
  type IconButtonProps,
  type ObjectFieldTemplateProps,
  type RJSFSchema,
  type WidgetProps,
} from "@rjsf/utils";
import { ArrowDown, ArrowUp, Plus, Trash2 } from "lucide-react";
import { Component, type ReactNode } from "react";

import { Button, Input, Notice, Quoted, Select, Textarea } from "@/ui/parts";
import { validator } from "./validator";

type Any = Record<string, unknown>;

const TYPES: Record<string, string> = { string: "text", integer: "whole number", boolean: "yes or no", array: "list", object: "group" };

/** Describes the type and constraints of a value. */
function kind(schema: RJSFSchema): string {
  const types = [schema.type ?? []].flat().filter((one) => one !== "null");
  const type = types.map((one) => TYPES[one] ?? one).join(" or ");
  const more = [
    schema.format,
    schema.minimum !== undefined && (schema.maximum !== undefined ? `${schema.minimum} to ${schema.maximum}` : `at least ${schema.minimum}`),
    schema.minimum === undefined && schema.maximum !== undefined && `at most ${schema.maximum}`,
    schema.minLength !== undefined && `at least ${schema.minLength} characters`,
    schema.maxLength !== undefined && `at most ${schema.maxLength} characters`,
    schema.pattern && `matches ${schema.pattern}`,
  ].filter(Boolean);
  return [type, ...more].join(", ");
}

/** Returns the name of an item of a list. Undefined for other fields. */
const itemName = (path: (string | number)[]) => (typeof path.at(-1) === "number" ? `Item ${Number(path.at(-1)) + 1}` : undefined);

function Field({ id, label, required, schema, rawErrors, rawDescription, children, hidden, displayLabel, fieldPathId, errors: _errors }: FieldTemplateProps) {
  if (hidden) return <div hidden>{children}</div>;
  const item = itemName(fieldPathId.path);
  const isRow = schema.type === "boolean";
  const isGroup = !!schema.properties || [schema.type ?? []].flat().some((one) => one === "object" || one === "array");
  if (isGroup) return <div className="min-w-0">{children}</div>;
  return (
    <div className="flex min-w-0 flex-col gap-1">
      {displayLabel && !isRow && (
        <label htmlFor={id} className={item ? "sr-only" : "flex items-baseline gap-2 text-sm"}>
          {item ?? (
            <>
              <span className="font-mono text-[0.8125rem] font-medium break-all">
                {label}
                {required && <span className="text-bad" title="required"> *</span>}
              </span>
              <span className="text-xs break-all text-faint">{kind(schema)}</span>
            </>
          )}
        </label>
      )}
      {children}
      {!isRow && rawDescription && (
        <p id={`${id}__description`} className="text-xs break-words whitespace-pre-line text-muted">
          <Quoted text={rawDescription} />
        </p>
      )}
      {!!rawErrors?.length && (
        <ul id={`${id}__error`} role="alert" className="text-xs text-bad">
          {rawErrors.map((error) => (
            <li key={error}>{error}</li>
          ))}
        </ul>
      )}
    </div>
  );
}

function ObjectField({ title, description, properties, fieldPathId, schema, onAddProperty, disabled, readonly }: ObjectFieldTemplateProps) {
  const isRoot = fieldPathId.path.length === 0;
  const shown = properties.filter((one) => !one.hidden);
  const fields = (
    <>
      {shown.map((one) => one.content)}
      {schema.additionalProperties && (
        <div>
          <Button icon={<Plus />} disabled={!!disabled || !!readonly} onClick={() => onAddProperty()}>
            Add a value
          </Button>
        </div>
      )}
    </>
  );
  if (isRoot) return <div className="flex flex-col gap-4">{shown.length || schema.additionalProperties ? fields : <p className="text-sm text-muted">There are no fields to fill in.</p>}</div>;
  return (
    <fieldset className="flex min-w-0 flex-col gap-4 rounded-md border p-3 pt-2">
      <legend className="px-1 font-mono text-[0.8125rem] font-medium">{itemName(fieldPathId.path) ?? title}</legend>
      {description && <div className="-mt-2 text-xs text-muted">{description}</div>}
      {fields}
    </fieldset>
  );
}

function ArrayField({ title, schema, items, canAdd, onAddClick, rawErrors, required }: ArrayFieldTemplateProps) {
  return (
    <fieldset className="flex min-w-0 flex-col gap-2">
      <legend className="mb-1 flex items-baseline gap-2 text-sm">
        <span className="font-mono text-[0.8125rem] font-medium">
          {title}
          {required && <span className="text-bad"> *</span>}
        </span>
        <span className="text-xs text-faint">list</span>
      </legend>
      {schema.description && <p className="text-xs whitespace-pre-line text-muted"><Quoted text={schema.description} /></p>}
      {items}
      {canAdd && (
        <div>
          <Button icon={<Plus />} onClick={(event) => onAddClick(event)}>
            Add an item
          </Button>
        </div>
      )}
      {rawErrors?.map((error) => (
        <p key={error} role="alert" className="text-xs text-bad">
          {error}
        </p>
      ))}
    </fieldset>
  );
}

function ArrayItem({ children, buttonsProps, hasToolbar }: ArrayFieldItemTemplateProps) {
  const { onMoveUpItem, onMoveDownItem, onRemoveItem, hasMoveUp, hasMoveDown, hasRemove, disabled } = buttonsProps;
  return (
    <div className="flex items-start gap-1">
      <div className="min-w-0 flex-1">{children}</div>
      {hasToolbar && (
        <div className="flex">
          {(hasMoveUp || hasMoveDown) && (
            <>
              <Button look="quiet" aria-label="Move up" icon={<ArrowUp />} disabled={!!disabled || !hasMoveUp} onClick={onMoveUpItem} />
              <Button look="quiet" aria-label="Move down" icon={<ArrowDown />} disabled={!!disabled || !hasMoveDown} onClick={onMoveDownItem} />
            </>
          )}
          {hasRemove && <Button look="quiet" aria-label="Remove" icon={<Trash2 />} disabled={!!disabled} onClick={onRemoveItem} />}
        </div>
      )}
    </div>
  );
}

/** The attributes that all inputs have. */
const common = ({ id, required, disabled, label, hideLabel }: WidgetProps) => ({
  id,
  required: !!required,
  disabled: !!disabled,
  "aria-describedby": ariaDescribedByIds(id),
  ...(hideLabel ? { "aria-label": label } : {}),
});

function Text(given: BaseInputTemplateProps) {
  const { id, value, readonly, placeholder, onChange, onBlur, onFocus, options, schema, type, rawErrors } = given;
  const { step, ...props } = getInputProps(schema, type, options);
  return (
    <Input
      name={id}
      {...props}
      {...(step === undefined ? {} : { step })}
      {...common(given)}
      value={value ?? ""}
      readOnly={!!readonly}
      placeholder={placeholder || (schema.default !== undefined ? String(schema.default) : "")}
      aria-invalid={!!rawErrors?.length}
      onChange={(event) => onChange(event.target.value === "" ? options.emptyValue : event.target.value)}
      onBlur={(event) => onBlur(id, event.target.value)}
      onFocus={(event) => onFocus(id, event.target.value)}
    />
  );
}

function LongText(given: WidgetProps) {
  const { value, readonly, placeholder, onChange, options } = given;
  return (
    <Textarea
      {...common(given)}
      value={(value as string | undefined) ?? ""}
      readOnly={!!readonly}
      placeholder={placeholder}
      rows={(options.rows as number | undefined) ?? 4}
      onChange={(event) => onChange(event.target.value === "" ? options.emptyValue : event.target.value)}
    />
  );
}

function Choice(given: WidgetProps) {
  const { value, disabled, readonly, multiple, onChange, options, schema } = given;
  const { enumOptions = [], enumDisabled, emptyValue } = options;
  const index = enumOptionsIndexForValue(value, enumOptions, multiple);
  return (
    <Select
      {...common(given)}
      multiple={!!multiple}
      className={multiple ? "h-auto" : ""}
      value={index === undefined ? (multiple ? [] : "") : index}
      disabled={!!disabled || !!readonly}
      onChange={(event) => {
        const chosen = multiple ? Array.from(event.target.selectedOptions, (option) => option.value) : event.target.value;
        onChange(enumOptionsValueForIndex(chosen, enumOptions, emptyValue));
      }}
    >
      {!multiple && schema.default === undefined && <option value="">Choose</option>}
      {enumOptions.map((option, at) => (
        <option key={at} value={String(at)} disabled={!!enumDisabled?.includes(option.value)}>
          {option.label}
        </option>
      ))}
    </Select>
  );
}

function Check({ id, value, disabled, readonly, label, required, onChange, schema }: WidgetProps) {
  return (
    <label htmlFor={id} className="flex items-start gap-2 text-sm">
      <input
        id={id}
        type="checkbox"
        className="mt-0.5 size-4 accent-solid"
        checked={!!value}
        disabled={!!disabled || !!readonly}
        onChange={(event) => onChange(event.target.checked)}
      />
      <span className="min-w-0">
        <span className="font-mono text-[0.8125rem] font-medium">{label}{required && <span className="text-bad"> *</span>}</span>
        {schema.description && <span className="block text-xs text-muted"><Quoted text={schema.description} /></span>}
      </span>
    </label>
  );
}

const Remove = ({ onClick, disabled }: IconButtonProps) => <Button look="quiet" aria-label="Remove" icon={<Trash2 />} disabled={!!disabled} onClick={onClick} />;

const templates = {
  FieldTemplate: Field,
  ObjectFieldTemplate: ObjectField,
  ArrayFieldTemplate: ArrayField,
  ArrayFieldItemTemplate: ArrayItem,
  BaseInputTemplate: Text,
  ErrorListTemplate: () => null,
  ButtonTemplates: { RemoveButton: Remove, SubmitButton: () => null },
};
const widgets = { SelectWidget: Choice, CheckboxWidget: Check, TextareaWidget: LongText };

type Props = {
  schema: RJSFSchema;
  value: Any;
  onChange: (value: Any) => void;
  onSubmit: (value: Any) => void;
  id: string;
  /** Errors from the gateway, shown at their fields. */
  errors?: { pointer: string; detail: string }[] | undefined;
};

/** Converts problems with JSON pointers to the form's error format. Problems of missing fields are shown at the closest parent field. */
function placed(errors: Props["errors"]): ErrorSchema<Any> | undefined {
  if (!errors?.length) return undefined;
  const found = errors.map(({ pointer, detail }) => {
    const parts = pointer.split("/").slice(1).map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
    return { property: parts.map((part) => `.${part}`).join(""), message: detail, stack: detail };
  });
  return toErrorSchema(found) as ErrorSchema<Any>;
}

export function SchemaForm({ schema, value, onChange, onSubmit, id, errors }: Props) {
  return (
    <Guard key={JSON.stringify(schema).length}>
      <Form<Any>
        id={id}
        idPrefix={id}
        schema={{ type: "object", ...schema, title: undefined, description: undefined } as RJSFSchema}
        formData={value}
        validator={validator}
        templates={templates as never}
        widgets={widgets}
        {...(errors ? { extraErrors: placed(errors) ?? {} } : {})}
        showErrorList={false}
        noHtml5Validate
        focusOnFirstError
        className="schema-form"
        experimental_defaultFormStateBehavior={{ emptyObjectFields: "populateRequiredDefaults" }}
        onError={() => {}}
        onChange={(event: IChangeEvent<Any>) => onChange(event.formData ?? {})}
        onSubmit={(event: IChangeEvent<Any>) => onSubmit(event.formData ?? {})}
      >
        <></>
      </Form>
    </Guard>
  );
}

/** Schemas come from servers. If no form can be generated, the JSON editor remains available. */
class Guard extends Component<{ children: ReactNode }, { failed: boolean }> {
  override state = { failed: false };
  static getDerivedStateFromError = () => ({ failed: true });
  override render() {
    return this.state.failed ? <Notice tone="warn">This schema cannot be shown as a form. Write the arguments as JSON.</Notice> : this.props.children;
  }
}
