//! The TOML format of Codex: a table for each server.

use serde_json::Value;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike};

use crate::{problem::Problem, source::Source};

pub(super) fn parse(source: &Source) -> Result<Value, Box<Problem>> {
    let table: toml::Table = source.text.parse().map_err(|error: toml::de::Error| {
        let what = format!("invalid TOML: {}", error.message().trim());
        let problem = match error.span() {
            Some(span) => Problem::broken(source, span, what),
            None => Problem::of_file(&source.path, what),
        };
        problem.help("fix the syntax by hand")
    })?;
    Ok(serde_json::to_value(table).unwrap_or_default())
}

pub(super) fn put(text: &str, container: &[&str], name: &str, entry: &Value) -> Option<String> {
    edited(text, |document| {
        let mut table: &mut dyn TableLike = document.as_table_mut();
        for key in container {
            let item = table.entry(key).or_insert_with(|| {
                let mut new = Table::new();
                new.set_implicit(true);
                new.into()
            });
            table = item.as_table_like_mut()?;
        }
        let mut new = Table::new();
        for (key, value) in entry.as_object()? {
            new.insert(key, value_of(value)?.into());
        }
        table.insert(name, Item::Table(new));
        Some(())
    })
}

pub(super) fn remove(text: &str, container: &[&str], name: &str) -> Option<String> {
    edited(text, |document| {
        let mut table: &mut dyn TableLike = document.as_table_mut();
        for key in container {
            table = table.get_mut(key)?.as_table_like_mut()?;
        }
        table.remove(name).map(drop)
    })
}

/// The parser normalises line ends, so those of Windows are restored. A text with both kinds cannot be edited.
fn edited(text: &str, change: impl FnOnce(&mut DocumentMut) -> Option<()>) -> Option<String> {
    let ends = text.matches("\r\n").count();
    if ends != 0 && ends != text.matches('\n').count() {
        return None;
    }
    let mut document: DocumentMut = text.replace("\r\n", "\n").parse().ok()?;
    change(&mut document)?;
    let new = document.to_string();
    Some(if ends == 0 {
        new
    } else {
        new.replace('\n', "\r\n")
    })
}

fn value_of(value: &Value) -> Option<toml_edit::Value> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(value) => (*value).into(),
        Value::Number(number) => match number.as_i64() {
            Some(number) => number.into(),
            None => number.as_f64()?.into(),
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(items) => {
            let items: Option<Array> = items.iter().map(value_of).collect();
            items?.into()
        }
        Value::Object(map) => {
            let mut table = InlineTable::new();
            for (key, value) in map {
                table.insert(key, value_of(value)?);
            }
            table.into()
        }
    })
}
