// Checks form data against JSON Schema without making code at run time, which the policy of this page forbids (ajv does).
import { Validator, type OutputUnit, type Schema } from "@cfworker/json-schema";
import { createErrorHandler, toErrorSchema, unwrapErrorHandler, validationDataMerge, type RJSFSchema, type RJSFValidationError, type ValidatorType } from "@rjsf/utils";

/** Errors that only say that one further down did not fit. */
const ABOVE = new Set(["properties", "items", "allOf", "$ref", "additionalProperties", "prefixItems", "if", "then", "else"]);

export function problems(schema: unknown, data: unknown): OutputUnit[] {
  const { errors } = new Validator(schema as Schema, "2020-12", false).validate(data);
  const exact = errors.filter((error) => !ABOVE.has(error.keyword));
  return exact.length ? exact : errors;
}

/** `#/a/0/b` as rjsf names properties: `.a.0.b`; what is missing is named itself. */
function place(error: OutputUnit): string {
  const parts = error.instanceLocation.split("/").slice(1).map((part) => decodeURIComponent(part.replaceAll("~1", "/").replaceAll("~0", "~")));
  const missing = error.keyword === "required" ? /"([^"]+)"/.exec(error.error)?.[1] : undefined;
  return [...parts, ...(missing ? [missing] : [])].map((part) => `.${part}`).join("");
}

function told(error: OutputUnit): RJSFValidationError {
  const message = error.keyword === "required" ? "is required" : error.error;
  const property = place(error);
  return { name: error.keyword, property, message, stack: `${property.slice(1) || "the arguments"}: ${message}` };
}

function raw(schema: RJSFSchema, data: unknown): { errors?: OutputUnit[]; validationError?: Error } {
  try {
    return { errors: problems(schema, data) };
  } catch (error) {
    return { validationError: error as Error };
  }
}

export const validator: ValidatorType = {
  validateFormData(data, schema, check, transform) {
    const { errors: found, validationError } = raw(schema, data);
    let errors = (found ?? []).map(told);
    if (validationError) errors = [{ stack: `the schema cannot be used: ${validationError.message}` }];
    if (transform) errors = transform(errors);
    const known = { errors, errorSchema: toErrorSchema(errors) };
    if (!check) return known;
    return validationDataMerge(known, unwrapErrorHandler(check(data, createErrorHandler(data), undefined)));
  },
  isValid(schema, data, root) {
    try {
      const rooted = root && root !== schema ? { ...schema, $defs: root["$defs"], definitions: root["definitions"] } : schema;
      return new Validator(rooted as Schema, "2020-12").validate(data).valid;
    } catch {
      return false;
    }
  },
  rawValidation: (schema, data) => raw(schema, data) as never,
};

export default validator;
