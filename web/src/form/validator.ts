// Validates form data against a JSON Schema without generating code, which this page's policy forbids (ajv does that).
import { Validator, type OutputUnit, type Schema } from "@cfworker/json-schema";
import { createErrorHandler, toErrorSchema, unwrapErrorHandler, validationDataMerge, type RJSFSchema, type RJSFValidationError, type ValidatorType } from "@rjsf/utils";

/** Keywords whose errors only repeat that a nested value is invalid. */
const PARENT_KEYWORDS = new Set(["properties", "items", "allOf", "$ref", "additionalProperties", "prefixItems", "if", "then", "else"]);

/** Converts `#/a/0/b` to rjsf's notation `.a.0.b`. A missing property is appended. */
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
    const { errors } = new Validator(schema as Schema, "2020-12", false).validate(data);
    const exact = errors.filter((error) => !PARENT_KEYWORDS.has(error.keyword));
    return { errors: exact.length ? exact : errors };
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
