//! Checks whether the TypeScript client can compile a tool's `outputSchema`.
//!
//! SDK 1.x compiles all of them with Ajv (`strict: false, validateSchema: false`) when it lists tools, and rejects the whole
//! list if one of them fails. The check is stricter than Ajv where an exact one would need a JavaScript engine.

use std::borrow::Cow;

use mcp::json::{self, Object, Span, as_string};

/// Maximum depth of a schema.
const MAX_DEPTH: usize = 64;
/// Bytes of a value repeated in a message.
const SHOWN_BYTES: usize = 40;
const TYPES: [&str; 7] = [
    "string", "number", "integer", "boolean", "null", "array", "object",
];

/// Checks a schema.
///
/// # Errors
/// Why Ajv may not compile it.
pub(crate) fn check(schema: &[u8]) -> Result<(), String> {
    let root = Object::of(schema).ok_or("it is not an object")?;
    Check { text: schema, root }.schema(root.span(), 0)
}

/// A value, shortened, for a message.
pub(crate) fn shown(value: &[u8]) -> Cow<'_, str> {
    match value.first() {
        Some(b'{') => "an object".into(),
        Some(b'[') => "an array".into(),
        _ if value.len() > SHOWN_BYTES => "a long value".into(),
        _ => String::from_utf8_lossy(value),
    }
}

struct Check<'t> {
    text: &'t [u8],
    root: Object<'t>,
}

impl<'t> Check<'t> {
    fn at(&self, span: &Span) -> &'t [u8] {
        &self.text[span.clone()]
    }

    fn schema(&self, span: Span, depth: usize) -> Result<(), String> {
        let text = self.at(&span);
        if matches!(text, b"true" | b"false") {
            return Ok(());
        }
        let Some(object) = Object::at(self.text, span).filter(|_| depth < MAX_DEPTH) else {
            return Err(format!("a schema in it is {}", shown(text)));
        };
        for member in object.members() {
            let key = json::unescape(self.at(&member.key));
            let value = self.at(&member.value);
            let is_valid = self.keyword(&object, &key, &member.value, depth)?;
            if !is_valid {
                return Err(format!("its `{key}` is {}", shown(value)));
            }
        }
        Ok(())
    }

    /// Returns whether a keyword has a value that Ajv accepts.
    fn keyword(
        &self,
        schema: &Object<'_>,
        key: &str,
        span: &Span,
        depth: usize,
    ) -> Result<bool, String> {
        let value = self.at(span);
        let inner = |span: Span| self.schema(span, depth + 1);
        let elements = || json::elements(self.text, span.clone());
        let is_type =
            |span: Span| as_string(self.at(&span)).is_some_and(|name| TYPES.contains(&&*name));
        Ok(match key {
            "type" if value[0] == b'[' => elements().count() > 0 && elements().all(is_type),
            "type" => is_type(span.clone()),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf"
            | "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
            | "maxProperties" | "minContains" | "maxContains" => {
                value[0] == b'-' || value[0].is_ascii_digit()
            }
            "format" | "$schema" => value[0] == b'"',
            // A nested one would change what `$ref` refers to.
            "$id" => value[0] == b'"' && depth == 0,
            "id" => value[0] != b'"',
            "pattern" => as_string(value).is_some_and(|pattern| is_pattern(&pattern)),
            "uniqueItems" => matches!(value, b"true" | b"false"),
            "nullable" => matches!(value, b"true" | b"false") && schema.find("type").is_some(),
            "enum" => elements().count() > 0,
            "required" => value[0] == b'[',
            "$ref" => as_string(value).is_some_and(|to| self.resolves(&to)),
            "additionalProperties"
            | "additionalItems"
            | "propertyNames"
            | "not"
            | "if"
            | "then"
            | "else"
            | "contains" => inner(span.clone()).map(|()| true)?,
            "items" if value[0] != b'[' => inner(span.clone()).map(|()| true)?,
            "items" | "allOf" | "anyOf" | "oneOf" => {
                elements().try_for_each(inner)?;
                value[0] == b'['
            }
            "properties" | "patternProperties" | "$defs" | "definitions" | "dependencies" => {
                for member in json::members(self.text, span.clone()) {
                    let name = json::unescape(self.at(&member.key));
                    if key == "patternProperties" && !is_pattern(&name) {
                        return Ok(false);
                    }
                    let names_others =
                        key == "dependencies" && self.text[member.value.start] == b'[';
                    if !names_others {
                        inner(member.value)?;
                    }
                }
                value[0] == b'{'
            }
            _ => true,
        })
    }

    /// Returns whether a `$ref` leads to a schema that is checked as well.
    fn resolves(&self, to: &str) -> bool {
        if to == "#" {
            return true;
        }
        let Some(pointer) = to.strip_prefix("#/").filter(|path| !path.contains('%')) else {
            return false;
        };
        let mut steps = pointer.split('/');
        if !matches!(steps.next(), Some("$defs" | "definitions" | "properties")) {
            return false;
        }
        let mut at = Some(self.root);
        for step in pointer.split('/') {
            let key = step.replace("~1", "/").replace("~0", "~");
            at = at.and_then(|object| object.object(&key));
        }
        at.is_some()
    }
}

/// Returns whether a text is a regular expression of ECMAScript with the flag `u`. Rejects some rare valid ones.
fn is_pattern(pattern: &str) -> bool {
    let mut rest: Rest<'_> = pattern.chars().peekable();
    // For each open group, whether it may be repeated.
    let mut groups = Vec::new();
    let mut repeats = false;
    while let Some(char) = rest.next() {
        repeats = match char {
            '\\' => match rest.next() {
                Some('b' | 'B') => false,
                Some(escaped) if is_escape(escaped) => true,
                _ => return false,
            },
            '(' => {
                let mut may_repeat = true;
                if rest.next_if_eq(&'?').is_some() {
                    match rest.next() {
                        Some(':') => {}
                        Some('=' | '!') => may_repeat = false,
                        Some('<') if rest.peek().is_some_and(|it| matches!(it, '=' | '!')) => {
                            rest.next();
                            may_repeat = false;
                        }
                        _ => return false,
                    }
                }
                groups.push(may_repeat);
                false
            }
            ')' => match groups.pop() {
                Some(may_repeat) => may_repeat,
                None => return false,
            },
            '[' => {
                if !is_class(&mut rest) {
                    return false;
                }
                true
            }
            '*' | '+' | '?' if repeats => {
                rest.next_if_eq(&'?');
                false
            }
            '{' if repeats => {
                let mut is_closed = false;
                let inside = |char: &char| {
                    is_closed = *char == '}';
                    !is_closed
                };
                let bounds: String = rest.by_ref().take_while(inside).collect();
                if !is_closed || !is_bounds(&bounds) {
                    return false;
                }
                rest.next_if_eq(&'?');
                false
            }
            '*' | '+' | '?' | '{' | '}' | ']' => return false,
            '^' | '$' | '|' => false,
            _ => true,
        };
    }
    groups.is_empty()
}

/// Returns whether a text is `2`, `2,` or `2,3`.
fn is_bounds(text: &str) -> bool {
    let number = |text: &str| {
        let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u32>().ok().filter(|_| is_digits)
    };
    match text.split_once(',') {
        None | Some((_, "")) => number(text.trim_end_matches(',')).is_some(),
        Some((low, high)) => number(low) <= number(high) && number(low).is_some(),
    }
}

/// Returns whether a character may follow a backslash.
fn is_escape(char: char) -> bool {
    "^$\\.*+?()[]{}|/dDwWsSfnrtv0".contains(char)
}

type Rest<'t> = std::iter::Peekable<std::str::Chars<'t>>;

/// Reads a character class after its `[`. Returns whether it is valid.
fn is_class(rest: &mut Rest<'_>) -> bool {
    rest.next_if_eq(&'^');
    // The previous character, if a range may begin with it.
    let mut before: Option<char> = None;
    let mut is_first = true;
    while let Some(char) = rest.next() {
        // A hyphen is literal at either end. Elsewhere it has to be between two characters.
        let is_range = char == '-' && !is_first && rest.peek() != Some(&']');
        before = match char {
            ']' => return true,
            '-' if is_range => {
                let high = rest.next().and_then(|char| class_member(char, rest));
                match (before, high.flatten()) {
                    (Some(low), Some(high)) if low <= high => None,
                    _ => return false,
                }
            }
            char => match class_member(char, rest) {
                Some(member) => member,
                None => return false,
            },
        };
        is_first = false;
    }
    false
}

/// A member of a character class: the character, `Some(None)` for an escape such as `\w`, or `None` if it is invalid.
fn class_member(char: char, rest: &mut Rest<'_>) -> Option<Option<char>> {
    match char {
        '\\' => match rest.next() {
            Some(escaped) if escaped == '-' || is_escape(escaped) => {
                Some(Some(escaped).filter(|char| !char.is_ascii_alphanumeric()))
            }
            _ => None,
        },
        ']' => None,
        char => Some(Some(char)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check_property(schema: Value, expected: bool) {
        let text = json!({ "type": "object", "properties": { "a": schema }, "$defs": { "x": {} } });
        let found = check(text.to_string().as_bytes());
        assert_eq!(found.is_ok(), expected, "{text}: {found:?}");
    }

    /// As found with Ajv in the TypeScript SDK 1.32.
    #[test]
    fn u10_schemas_that_the_typescript_client_compiles() {
        for schema in [
            json!(true),
            json!({ "type": "string", "title": 7, "format": "nope", "own": null, "default": null }),
            json!({ "$ref": "#/$defs/x" }),
            json!({ "$ref": "#" }),
            json!({ "type": ["string", "null"], "enum": ["a", "a"] }),
            json!({ "anyOf": [{ "type": "array", "items": {} }, { "items": [{}, true] }] }),
            json!({ "type": "string", "nullable": true, "pattern": "^\\d+$" }),
            json!({ "dependencies": { "a": ["b"], "c": {} }, "minimum": -1 }),
        ] {
            check_property(schema, true);
        }
        for schema in [
            json!(null),
            json!({ "type": "int" }),
            json!({ "type": ["string", "nul"] }),
            json!({ "$ref": "#/$defs/none" }),
            json!({ "$ref": "http://example.com/schema" }),
            json!({ "pattern": "(" }),
            json!({ "format": 7 }),
            json!({ "minLength": null }),
            json!({ "enum": [] }),
            json!({ "enum": null }),
            json!({ "minimum": "1" }),
            json!({ "exclusiveMinimum": true }),
            json!({ "additionalProperties": null }),
            json!({ "anyOf": null }),
            json!({ "items": null }),
            json!({ "nullable": true }),
            json!({ "uniqueItems": "yes" }),
            json!({ "dependencies": { "a": null } }),
            json!({ "id": "x" }),
        ] {
            check_property(schema, false);
        }
    }

    #[test]
    fn patterns_are_those_of_javascript() {
        for pattern in [
            "",
            "^a.b$",
            "[a-z]",
            "[-a]",
            "[a-]",
            "[\\w.-]",
            "[^\\]]",
            "a{2}b{2,}c{2,3}?",
            "(?:a|b)+",
            "(?=a)b",
            "(?<!a)b",
            "\\/\\.",
            "[\\-x]",
            "ä+?",
            "(a)(b)*",
        ] {
            assert!(is_pattern(pattern), "{pattern}");
        }
        for pattern in [
            "(", ")", "[", "]", "{", "}", "a{", "a{x}", "a{3,2}", "*", "a**", "a{2", "a{2,,}",
            "^*", "(?P<x>a)", "[\\w-.]", "[z-a]", "\\", "\\-", "\\_", "(?=a)*", "(?i)a", "a|*",
            "[a-\\d]",
        ] {
            assert!(!is_pattern(pattern), "{pattern}");
        }
    }
}
