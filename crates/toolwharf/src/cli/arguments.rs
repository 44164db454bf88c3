//! Tool arguments, written as `key=value` and converted to the types in the tool's input schema.
//!
//! `key=value` is a string if the schema allows one; otherwise the value is parsed as JSON. `key:=value` is always JSON.
//! Values of arguments that the schema does not describe are JSON if they can be.

use std::fmt;

use config::nearest;
use mcp::json::{Object, validate};
use serde_json::{Map, Value, json};

use super::{Usage, prompt::stdin};

const MAX_DEPTH: usize = 512;
/// Maximum length of a value in an error, in characters.
const MAX_SHOWN_CHARS: usize = 60;
/// Maximum number of references to follow in a schema, which may refer to itself.
const MAX_REFERENCES: usize = 16;

/// One `key=value`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pair<'a> {
    key: &'a str,
    value: &'a str,
    /// True for `key:=value`.
    is_json: bool,
}

/// The types of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    String,
    Number,
    Integer,
    Boolean,
    Array,
    Object,
    Null,
}

impl<'a> Pair<'a> {
    /// Parses `key=value` or `key:=value`. `None` if the key is missing.
    pub(super) fn parse(word: &'a str) -> Option<Self> {
        let (key, value) = word.split_once('=')?;
        let (key, is_json) = match key.strip_suffix(':') {
            Some(key) => (key, true),
            None => (key, false),
        };
        let begins_json = key.starts_with(['{', '[', '"']);
        (!key.is_empty() && !begins_json).then_some(Self {
            key,
            value,
            is_json,
        })
    }
}

/// Returns the arguments as an object. `schema` is the tool's input schema, or null if it is not known. `tool` is the
/// tool's name, for errors.
///
/// # Errors
/// The first argument that is unknown, given twice or of the wrong type, or the required arguments that are missing.
pub(super) fn typed(pairs: &[Pair<'_>], schema: &Value, tool: &str) -> Result<Value, Usage> {
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    let names: Vec<&str> = properties.keys().map(String::as_str).collect();
    let is_open = properties.is_empty()
        || !matches!(
            schema["additionalProperties"],
            Value::Null | Value::Bool(false)
        )
        || !schema["patternProperties"].is_null();
    let mut object = Map::new();
    for pair in pairs {
        let key = pair.key;
        let described = properties.get(key);
        if described.is_none() && !is_open {
            let hint = match nearest(key, &names) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("its arguments are: {}", names.join(", ")),
            };
            return Err(Usage(format!("`{tool}` has no argument `{key}`; {hint}")));
        }
        let kinds = described.map(|one| kinds(one, schema)).unwrap_or_default();
        let value = value(pair, &kinds)?;
        let allowed = described.and_then(|one| one["enum"].as_array());
        if let Some(allowed) = allowed.filter(|allowed| !allowed.contains(&value)) {
            let words: Vec<String> = allowed.iter().map(shown).collect();
            return Err(Usage(format!(
                "the argument `{key}` cannot be `{}`; write one of {}",
                short(pair.value),
                words.join(", ")
            )));
        }
        if object.insert(key.to_owned(), value).is_some() {
            return Err(Usage(format!(
                "the argument `{key}` is given twice; for a list, write {key}:='[…]'"
            )));
        }
    }
    let required = schema["required"].as_array().into_iter().flatten();
    let lacking = required.filter_map(Value::as_str);
    let lacking: Vec<&str> = lacking.filter(|name| !object.contains_key(*name)).collect();
    if !lacking.is_empty() {
        let s = if lacking.len() == 1 { "" } else { "s" };
        return Err(Usage(format!(
            "`{tool}` needs the argument{s} {}; write {}=VALUE, and see `toolwharf tools get {tool}`",
            lacking.join(", "),
            lacking[0]
        )));
    }
    Ok(Value::Object(object))
}

/// Converts one value.
fn value(pair: &Pair<'_>, kinds: &[Kind]) -> Result<Value, Usage> {
    let Pair { key, value, .. } = pair;
    let parsed = validate(value.as_bytes(), MAX_DEPTH)
        .map_err(|fault| fault.to_string())
        .and_then(|()| serde_json::from_str::<Value>(value).map_err(|error| error.to_string()));
    if pair.is_json {
        return parsed.map_err(|why| {
            Usage(format!(
                "the argument `{key}` is not valid JSON: `{}`: {why}; write {key}={} for a string",
                short(value),
                short(value)
            ))
        });
    }
    let is_string = kinds.contains(&Kind::String);
    let fits = |parsed: &Value| {
        kinds
            .iter()
            .any(|kind| kind.fits(parsed) && (!is_string || *kind != Kind::Null))
    };
    match parsed {
        Ok(parsed) if kinds.is_empty() => Ok(parsed),
        _ if kinds.is_empty() => Ok(Value::from(*value)),
        Ok(parsed) if !parsed.is_string() && fits(&parsed) => Ok(parsed),
        _ if is_string => Ok(Value::from(*value)),
        _ => {
            let words: Vec<String> = kinds.iter().map(ToString::to_string).collect();
            let example = kinds.first().map(|kind| kind.example()).unwrap_or_default();
            Err(Usage(format!(
                "the argument `{key}` must be {}, not `{}`; write {key}={example}",
                words.join(" or "),
                short(value)
            )))
        }
    }
}

/// Returns the types that a schema allows. Empty if it does not say.
fn kinds(schema: &Value, root: &Value) -> Vec<Kind> {
    let mut kinds = Vec::new();
    collect(schema, root, MAX_REFERENCES, &mut kinds);
    kinds
}

fn collect(schema: &Value, root: &Value, depth: usize, kinds: &mut Vec<Kind>) {
    let Some(depth) = depth.checked_sub(1) else {
        return;
    };
    let mut add = |kind: Option<Kind>| {
        if let Some(kind) = kind
            && !kinds.contains(&kind)
        {
            kinds.push(kind);
        }
    };
    match &schema["type"] {
        Value::String(word) => add(Kind::named(word)),
        Value::Array(words) => {
            let words = words.iter().filter_map(Value::as_str);
            words.for_each(|word| add(Kind::named(word)));
        }
        _ => {
            let given = schema["enum"].as_array().into_iter().flatten();
            given
                .chain(schema.get("const"))
                .for_each(|value| add(Some(Kind::of(value))));
        }
    }
    let pointer = schema["$ref"].as_str().and_then(|at| at.strip_prefix('#'));
    if let Some(target) = pointer.and_then(|at| root.pointer(at)) {
        collect(target, root, depth, kinds);
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        for one in schema[key].as_array().into_iter().flatten() {
            collect(one, root, depth, kinds);
        }
    }
}

impl Kind {
    fn named(word: &str) -> Option<Self> {
        Some(match word {
            "string" => Self::String,
            "number" => Self::Number,
            "integer" => Self::Integer,
            "boolean" => Self::Boolean,
            "array" => Self::Array,
            "object" => Self::Object,
            "null" => Self::Null,
            _ => return None,
        })
    }

    fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(_) => Self::Boolean,
            Value::Number(_) => Self::Number,
            Value::String(_) => Self::String,
            Value::Array(_) => Self::Array,
            Value::Object(_) => Self::Object,
        }
    }

    fn fits(self, value: &Value) -> bool {
        match self {
            // In JSON Schema, 1.0 is an integer too.
            Self::Integer => value.as_f64().is_some_and(|number| number.fract() == 0.0),
            kind => Self::of(value) == kind,
        }
    }

    fn example(self) -> Value {
        match self {
            Self::String => json!("text"),
            Self::Number => json!(1.5),
            Self::Integer => json!(3),
            Self::Boolean => json!(true),
            Self::Array => json!(["a", "b"]),
            Self::Object => json!({ "key": "value" }),
            Self::Null => Value::Null,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::String => "a string",
            Self::Number => "a number",
            Self::Integer => "a whole number",
            Self::Boolean => "true or false",
            Self::Array => "a JSON array",
            Self::Object => "a JSON object",
            Self::Null => "null",
        })
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("`{text}`"),
        value => format!("`{value}`"),
    }
}

fn short(text: &str) -> String {
    super::print::one_line(text, MAX_SHOWN_CHARS)
}

/// Returns the text of a JSON object, unchanged, or for `-` that of standard input. `what` and `form` say in errors what
/// the object is, and how to write it.
pub(super) fn object(given: &str, what: &str, form: &str) -> anyhow::Result<String> {
    let (what, text) = match given {
        "-" => (format!("{what} on standard input"), stdin()?),
        text => (format!("{what} `{}`", short(text)), text.to_owned()),
    };
    validate(text.as_bytes(), MAX_DEPTH)
        .map_err(|fault| Usage(format!("the {what} are not valid JSON: {fault}; {form}")))?;
    if Object::of(text.as_bytes()).is_none() {
        return Err(Usage(format!("the {what} are not a JSON object: {form}")).into());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "text": { "type": "string" },
                "count": { "type": "integer" },
                "rate": { "type": "number" },
                "deep": { "type": "boolean" },
                "tags": { "type": "array", "items": { "type": "string" } },
                "filter": { "$ref": "#/$defs/Filter" },
                "maybe": { "anyOf": [{ "type": "integer" }, { "type": "null" }] },
                "note": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
                "id": { "type": ["string", "integer"] },
                "unit": { "type": "string", "enum": ["C", "F"] },
                "any": {},
            },
            "$defs": { "Filter": { "type": "object" } },
        })
    }

    fn check(line: &[&str], expect: Result<Value, &[&str]>) {
        check_in(&schema(), line, expect);
    }

    fn check_in(schema: &Value, line: &[&str], expect: Result<Value, &[&str]>) {
        let pairs: Vec<Pair<'_>> = line.iter().filter_map(|word| Pair::parse(word)).collect();
        assert_eq!(pairs.len(), line.len(), "{line:?}");
        let found = typed(&pairs, schema, "tool").map_err(|error| error.0);
        match expect {
            Ok(expect) => assert_eq!(found, Ok(expect), "{line:?}"),
            Err(parts) => {
                let text = found.expect_err("an error");
                for part in parts {
                    assert!(text.contains(part), "{line:?}: {part:?} is not in {text:?}");
                }
            }
        }
    }

    #[test]
    fn values_get_the_types_of_the_schema() {
        check(
            &["text=007", "count=3", "rate=0.5", "deep=true"],
            Ok(json!({ "text": "007", "count": 3, "rate": 0.5, "deep": true })),
        );
        check(
            &[r#"tags=["a"]"#, r#"filter={"a":1}"#, "text="],
            Ok(json!({ "tags": ["a"], "filter": { "a": 1 }, "text": "" })),
        );
        check(&["text=a=b"], Ok(json!({ "text": "a=b" })));
        check(&["text=true"], Ok(json!({ "text": "true" })));
        check(&[r#"text="q""#], Ok(json!({ "text": "\"q\"" })));
        check(
            &["maybe=null", "note=null"],
            Ok(json!({ "maybe": null, "note": "null" })),
        );
        check(&["note:=null"], Ok(json!({ "note": null })));
        check(&["id=7", "any=[1]"], Ok(json!({ "id": 7, "any": [1] })));
        check(
            &["id=seven", "any=text"],
            Ok(json!({ "id": "seven", "any": "text" })),
        );
        check(&["text:=3"], Ok(json!({ "text": 3 })));
        check(&["unit=C"], Ok(json!({ "unit": "C" })));
    }

    #[test]
    fn errors_name_the_argument_the_value_and_the_way_out() {
        check(
            &["count=many"],
            Err(&["`count`", "a whole number", "`many`", "count=3"]),
        );
        check(&["count=1.5"], Err(&["`count`", "a whole number", "`1.5`"]));
        check(
            &["deep=yes"],
            Err(&["`deep`", "true or false", "`yes`", "deep=true"]),
        );
        check(
            &["tags=a,b"],
            Err(&["`tags`", "a JSON array", "`a,b`", r#"tags=["a","b"]"#]),
        );
        check(&["filter=x"], Err(&["`filter`", "a JSON object", "`x`"]));
        check(
            &["maybe=x"],
            Err(&["`maybe`", "a whole number or null", "`x`"]),
        );
        check(&["unit=K"], Err(&["`unit`", "`K`", "`C`, `F`"]));
        check(
            &["text:={"],
            Err(&["`text`", "not valid JSON", "`{`", "text={"]),
        );
        check(
            &["txet=a"],
            Err(&["`tool` has no argument `txet`", "`text`"]),
        );
        check(&["zzz=a"], Err(&["`zzz`", "its arguments are: "]));
        check(&["text=a", "text=b"], Err(&["`text`", "twice"]));
    }

    #[test]
    fn required_arguments_must_be_given() {
        let mut schema = schema();
        schema["required"] = json!(["text", "count"]);
        let parts = [
            "`tool` needs the argument count",
            "count=VALUE",
            "tools get tool",
        ];
        check_in(&schema, &["text=a"], Err(&parts));
    }

    #[test]
    fn an_open_schema_takes_any_argument() {
        let open = json!({
            "type": "object", "properties": { "a": {} }, "additionalProperties": true,
        });
        check_in(&open, &["b=1", "c=x"], Ok(json!({ "b": 1, "c": "x" })));
        check_in(
            &Value::Null,
            &["b=1", "c=x"],
            Ok(json!({ "b": 1, "c": "x" })),
        );
    }

    #[test]
    fn a_word_without_a_key_is_no_pair() {
        for word in ["{\"a\"=1}", "[=]", "=x", "text", ":=1", "-"] {
            assert_eq!(Pair::parse(word), None, "{word}");
        }
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let schema = json!({
            "properties": { "a": { "$ref": "#/properties/a" } },
        });
        check_in(&schema, &["a=1"], Ok(json!({ "a": 1 })));
    }
}
