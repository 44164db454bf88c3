//! JSON with comments, edited as text with structure.

use jsonc_parser::cst::{CstObject, CstRootNode};
use serde_json::Value;

use crate::{
    edit::input,
    problem::Problem,
    shape::{self, PARSE_OPTIONS},
    source::Source,
};

/// An empty text is an empty object.
pub(super) fn parse(source: &Source) -> Result<Value, Box<Problem>> {
    let mut problems = Vec::new();
    shape::check(source, &mut problems);
    if let Some(problem) = problems.into_iter().next() {
        return Err(problem.into());
    }
    let root = CstRootNode::parse(&source.text, &PARSE_OPTIONS);
    let value = root.ok().and_then(|root| root.value());
    let value = value.and_then(|value| value.to_serde_value());
    Ok(value.unwrap_or_else(|| Value::Object(serde_json::Map::new())))
}

pub(super) fn put(text: &str, container: &[&str], name: &str, entry: &Value) -> Option<String> {
    let is_empty = text.trim().is_empty();
    let root = CstRootNode::parse(if is_empty { "{}\n" } else { text }, &PARSE_OPTIONS).ok()?;
    let mut object = root.object_value_or_set();
    for key in container {
        object = object.object_value_or_set(key);
    }
    match object.get(name) {
        Some(prop) => prop.set_value(input(entry)),
        None => {
            object.append(name, input(entry));
        }
    }
    Some(root.to_string())
}

pub(super) fn remove(text: &str, container: &[&str], name: &str) -> Option<String> {
    let root = CstRootNode::parse(text, &PARSE_OPTIONS).ok()?;
    let object = container
        .iter()
        .try_fold(root.object_value()?, |object: CstObject, key| {
            object.object_value(key)
        })?;
    object.get(name)?.remove();
    Some(root.to_string())
}
