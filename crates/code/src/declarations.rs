//! TypeScript declarations of tools, from their JSON schemas. They tell a model how to call the tools; nothing checks
//! code against them.
//!
//! ```text
//! declare namespace servers.github {
//!   /** Creates an issue. */
//!   function create_issue(args: { title: string; body?: string }): Promise<{ number: number }>;
//! }
//! ```
//!
//! # Invariants
//!
//! - Schemas and descriptions are hostile text. None of them ends a comment, a string or a declaration, and the text of
//!   each tool is bounded, whatever its schemas are. A type that does not fit becomes `any`.

mod comment;
mod types;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use self::comment::comment;
use self::types::{Types, property_name};
use crate::names::Declared;

/// Larger schemas are not read.
const MAX_SCHEMA_BYTES: usize = 256 << 10;
/// Bytes of the type of arguments, and of that of a result.
const MAX_TYPE_BYTES: usize = 8 << 10;
const MAX_DESCRIPTION_CHARACTERS: usize = 1000;
const MAX_PROPERTY_CHARACTERS: usize = 200;

/// Instructions for a model that writes code, in one paragraph.
pub const GUIDE: &str = "The code is the body of an async function, in JavaScript or TypeScript: use `await` and `return`. \
Tools are functions of one object: `const issue = await servers.github.create_issue({ title: \"x\" })`. A call returns the \
tool's structured content if it has any, otherwise its text as a string, otherwise the whole result. A failed call throws \
an Error. Use `Promise.all` for calls that do not depend on each other. `console.log` output and the returned value come \
back. There is no network, no file system and no `import`.";

/// A tool to declare.
#[derive(Clone, Copy, Debug)]
pub struct Tool<'a> {
    pub declared: &'a Declared,
    pub description: &'a str,
    /// JSON texts.
    pub input_schema: &'a str,
    pub output_schema: Option<&'a str>,
}

/// The declarations of tools, by server, in their order.
#[must_use]
pub fn declarations<'a>(tools: impl IntoIterator<Item = Tool<'a>>) -> String {
    let mut servers: BTreeMap<&str, String> = BTreeMap::new();
    for tool in tools {
        let text = servers.entry(&tool.declared.server).or_default();
        declare(text, tool);
    }
    let mut all = String::new();
    for (server, functions) in servers {
        let _ = write!(
            all,
            "declare namespace servers.{server} {{\n{functions}}}\n"
        );
    }
    all
}

fn declare(out: &mut String, tool: Tool<'_>) {
    if let Some(text) = comment(tool.description, MAX_DESCRIPTION_CHARACTERS) {
        let _ = writeln!(out, "  /** {text} */");
    }
    let function = &tool.declared.function;
    let input = schema(tool.input_schema);
    let (optional, arguments) = arguments(&input);
    let result = tool.output_schema.map(schema).map_or_else(
        || "any".to_owned(),
        |output| Types::new(&output, MAX_TYPE_BYTES).of(&output),
    );
    let mark = if optional { "?" } else { "" };
    let _ = writeln!(
        out,
        "  function {function}(args{mark}: {arguments}): Promise<{result}>;"
    );
}

fn schema(text: &str) -> Value {
    let read = (text.len() <= MAX_SCHEMA_BYTES).then(|| serde_json::from_str(text).ok());
    read.flatten().unwrap_or(Value::Bool(true))
}

/// The type of the arguments, with the descriptions of its properties. True if they can be left out.
fn arguments(schema: &Value) -> (bool, String) {
    let required = types::required(schema);
    let properties = schema["properties"].as_object();
    let is_plain = ["$ref", "allOf", "anyOf", "oneOf"]
        .iter()
        .all(|key| schema.get(key).is_none());
    let described = |property: &Value| property["description"].is_string();
    let mut types = Types::new(schema, MAX_TYPE_BYTES);
    let Some(properties) = properties.filter(|properties| {
        is_plain
            && properties
                .values()
                .take(types::MAX_PROPERTIES)
                .any(described)
    }) else {
        let is_empty = properties.is_none_or(serde_json::Map::is_empty);
        let text = match is_plain && is_empty {
            true => "{}".to_owned(),
            false => types.of(schema),
        };
        return (is_plain && required.is_empty(), text);
    };
    let mut text = "{\n".to_owned();
    for (name, property) in properties.iter().take(types::MAX_PROPERTIES) {
        let description = property["description"].as_str().unwrap_or_default();
        if let Some(description) = comment(description, MAX_PROPERTY_CHARACTERS) {
            let _ = writeln!(text, "    /** {description} */");
        }
        let mark = if required.contains(&name.as_str()) {
            ""
        } else {
            "?"
        };
        let name = property_name(name);
        let _ = writeln!(text, "    {name}{mark}: {};", types.of(property));
    }
    if properties.len() > types::MAX_PROPERTIES {
        text.push_str("    [key: string]: any;\n");
    }
    text.push_str("  }");
    (required.is_empty(), text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn declared() -> Declared {
        Declared {
            server: "github".to_owned(),
            function: "create_issue".to_owned(),
            exposed: "github__create_issue".to_owned(),
        }
    }

    fn text(description: &str, input: &Value, output: Option<&Value>) -> String {
        let (input, output) = (input.to_string(), output.map(Value::to_string));
        declarations([Tool {
            declared: &declared(),
            description,
            input_schema: &input,
            output_schema: output.as_deref(),
        }])
    }

    #[test]
    fn a_tool_is_a_function() {
        let input = json!({"type": "object", "properties": {"title": {"type": "string"}, "body": {"type": "string"}},
            "required": ["title"]});
        let output = json!({"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]});
        assert_eq!(
            text("Creates an\n issue.", &input, Some(&output)),
            "declare namespace servers.github {\n  /** Creates an issue. */\n  \
             function create_issue(args: { title: string; body?: string }): Promise<{ number: number }>;\n}\n"
        );
    }

    #[test]
    fn descriptions_of_arguments_are_kept() {
        let input = json!({"properties": {"to": {"type": "string", "description": "Who */ gets it"}, "n-n": {}}});
        assert_eq!(
            text("", &input, None),
            "declare namespace servers.github {\n  function create_issue(args?: {\n    /** Who * / gets it */\n    \
             to?: string;\n    \"n-n\"?: any;\n  }): Promise<any>;\n}\n"
        );
    }

    #[test]
    fn arguments_that_can_be_left_out() {
        for (input, expected) in [
            (json!({}), "args?: {}"),
            (json!({"type": "object"}), "args?: {}"),
            (
                json!({"type": "object", "properties": {"a": {}}}),
                "args?: { a?: any }",
            ),
            (
                json!({"properties": {"a": {}}, "required": ["a"]}),
                "args: { a: any }",
            ),
            (json!({"anyOf": [{"required": ["a"]}]}), "args: "),
            (json!(7), "args?: {}"),
        ] {
            let text = text("", &input, None);
            assert!(text.contains(&format!("create_issue({expected}")), "{text}");
        }
    }

    #[test]
    fn what_is_too_large_is_any() {
        let names = (0..100_000).map(|n| (format!("p{n}"), json!({"type": "string"})));
        let wide = json!({"properties": names.collect::<serde_json::Map<_, _>>()});
        let names = (0..61).map(|n| {
            (
                format!("{n}{}", "x".repeat(1000)),
                json!({"enum": ["y".repeat(1000)]}),
            )
        });
        let long = json!({"properties": names.collect::<serde_json::Map<_, _>>()});
        let mut deep = json!({"type": "string"});
        for _ in 0..100 {
            deep = json!({"type": "object", "properties": {"a": deep, "b": {"type": "array", "items": {"$ref": "#"}}}});
        }
        // Each definition has the next one twice, which would be 2^40 types.
        let doubled = (0..40).map(|n| {
            let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
            (
                format!("d{n}"),
                json!({"properties": {"a": next.clone(), "b": next}}),
            )
        });
        let doubled =
            json!({"$ref": "#/$defs/d0", "$defs": doubled.collect::<serde_json::Map<_, _>>()});
        for schema in [wide, long, deep, doubled] {
            let text = text("d", &schema, Some(&schema));
            assert!(
                text.len() < 2 * MAX_TYPE_BYTES + 64 * 1300,
                "{}",
                text.len()
            );
            assert!(text.contains("any"), "{text}");
        }
    }

    /// A JSON value made of the words of schemas.
    fn schema_like() -> impl Strategy<Value = Value> {
        let text = prop_oneof![
            Just("#".to_owned()),
            Just("*/ }".to_owned()),
            Just("string".to_owned()),
            Just("object".to_owned()),
            Just("#/properties/a".to_owned()),
            ".{0,8}",
        ];
        let leaf = prop_oneof![
            text.clone().prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            Just(Value::Null),
        ];
        let key = prop_oneof![
            prop::sample::select(vec![
                "type",
                "properties",
                "items",
                "$ref",
                "anyOf",
                "allOf",
                "enum",
                "const",
                "required",
                "prefixItems",
                "additionalProperties",
                "description",
            ])
            .prop_map(str::to_owned),
            text,
        ];
        leaf.prop_recursive(5, 60, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((key.clone(), inner), 0..6)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        /// The text outside of comments and strings has only the characters of a declaration, and its brackets match.
        #[test]
        fn no_schema_breaks_out(schema in schema_like(), description in ".{0,40}") {
            let text = text(&description, &schema, Some(&schema));
            let mut rest = text.as_str();
            let mut open = Vec::new();
            while let Some(char) = rest.chars().next() {
                rest = &rest[char.len_utf8()..];
                match char {
                    '/' => {
                        let inside = rest.strip_prefix("** ").expect("a comment");
                        rest = inside.split_once("*/").expect("an end").1;
                        prop_assert!(rest.starts_with('\n'));
                    }
                    '"' => {
                        let mut escaped = false;
                        let end = rest.find(|char| {
                            let is_end = char == '"' && !escaped;
                            escaped = char == '\\' && !escaped;
                            is_end
                        });
                        rest = &rest[end.expect("an end of a string") + 1..];
                    }
                    '{' | '(' | '[' | '<' => open.push(char),
                    '}' => prop_assert_eq!(open.pop(), Some('{')),
                    ')' => prop_assert_eq!(open.pop(), Some('(')),
                    ']' => prop_assert_eq!(open.pop(), Some('[')),
                    '>' => prop_assert_eq!(open.pop(), Some('<')),
                    _ => prop_assert!(char.is_ascii_alphanumeric() || " \n_$.:;?|&,-+".contains(char), "{:?} in {}", char, text),
                }
            }
            prop_assert!(open.is_empty());
        }
    }
}
