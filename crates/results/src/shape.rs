//! JSON in fewer tokens, for the text that a model reads: without white space and `null` members, and with tables as CSV.
//!
//! A table is an array of objects with the same keys and without nested values. It becomes CSV if it is the whole text, or a
//! member of the outermost object. Numbers and strings stay as they are written.

use std::{borrow::Cow, ops::ControlFlow};

use crate::{
    path::{Name, json_of, text_of, walk},
    table::line,
};

/// Rows of the shortest table. A shorter one saves little.
const MIN_ROWS: usize = 2;
/// Nesting beyond which a value is copied as it is.
const MAX_DEPTH: usize = 32;

/// The text in fewer tokens. `None` if it is no JSON object or array, or if nothing is saved.
#[must_use]
pub(crate) fn compact(text: &str) -> Option<String> {
    let json = json_of(text)?;
    let compacted = match csv(json) {
        Some(table) => table,
        None => with_tables(json),
    };
    (compacted.len() < text.len()).then_some(compacted)
}

/// An object with the tables in it below, or another value.
fn with_tables(json: &str) -> String {
    let (mut text, mut tables) = (String::new(), String::new());
    if !json.starts_with('{') {
        write(json, 0, &mut text);
        return text;
    }
    text.push('{');
    members(json, |key, value| {
        separate(&mut text);
        text.push_str(key);
        text.push(':');
        match csv(value) {
            Some(table) => {
                text.push_str("\"(below)\"");
                tables.push_str("\n\n");
                tables.push_str(&text_of(key));
                tables.push_str(":\n");
                tables.push_str(table.trim_end());
            }
            None => write(value, 1, &mut text),
        }
    });
    text.push('}');
    text.push_str(&tables);
    text
}

/// Passes the members of an object except for those that are `null`. Keys are JSON text.
fn members(json: &str, mut each: impl FnMut(&str, &str)) {
    walk(json, |name, value| {
        if let Name::Key(key) = name
            && value != "null"
        {
            let quoted = serde_json::to_string(&key).unwrap_or_default();
            each(&quoted, value);
        }
        ControlFlow::Continue(())
    });
}

/// Writes a comma after an earlier member or element.
fn separate(text: &mut String) {
    if !text.ends_with(['{', '[']) {
        text.push(',');
    }
}

fn write(json: &str, depth: usize, text: &mut String) {
    match json.as_bytes().first() {
        Some(b'{') if depth < MAX_DEPTH => {
            text.push('{');
            members(json, |key, value| {
                separate(text);
                text.push_str(key);
                text.push(':');
                write(value, depth + 1, text);
            });
            text.push('}');
        }
        Some(b'[') if depth < MAX_DEPTH => {
            text.push('[');
            walk(json, |_, value| {
                separate(text);
                write(value, depth + 1, text);
                ControlFlow::Continue(())
            });
            text.push(']');
        }
        _ => text.push_str(json),
    }
}

/// A table as CSV.
fn csv(json: &str) -> Option<String> {
    if !json.starts_with('[') {
        return None;
    }
    let mut columns: Vec<Cow<'_, str>> = Vec::new();
    let mut text = String::new();
    let (mut rows, mut is_table) = (0, true);
    walk(json, |_, row| {
        let mut cells: Vec<Cow<'_, str>> = Vec::new();
        let (mut at, is_first) = (0, rows == 0);
        is_table &= row.starts_with('{');
        if is_table {
            walk(row, |name, value| {
                let Name::Key(key) = name else {
                    return ControlFlow::Break(());
                };
                if is_first {
                    columns.push(key);
                } else {
                    is_table &= columns.get(at) == Some(&key);
                }
                is_table &= !value.starts_with(['{', '[']);
                cells.push(match value {
                    "null" => "".into(),
                    value => text_of(value),
                });
                at += 1;
                match is_table {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            });
        }
        is_table &= at == columns.len() && at > 0;
        if !is_table {
            return ControlFlow::Break(());
        }
        text.push_str(&line(cells.into_iter()));
        rows += 1;
        ControlFlow::Continue(())
    });
    let header = line(columns.into_iter());
    (is_table && rows >= MIN_ROWS).then(|| header + &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: &str) {
        assert_eq!(compact(text).as_deref(), Some(expect), "{text}");
    }

    #[test]
    fn nulls_and_white_space_are_dropped() {
        check(
            "{\n  \"a\": null,\n  \"b\": [1, null, { \"c\": null, \"d\": \"x \\u00e9\" }],\n  \"e\": 1.50\n}",
            r#"{"b":[1,null,{"d":"x \u00e9"}],"e":1.50}"#,
        );
        check("[ ]", "[]");
        check(r#"{"a":null}"#, "{}");
        for same in ["no JSON", r#"{"a":1}"#, "7", ""] {
            assert_eq!(compact(same), None, "{same}");
        }
    }

    #[test]
    fn tables_of_equal_objects_become_csv() {
        check(
            r#"[{"id":1,"name":"a, b"},{"id":2,"name":null}]"#,
            "id,name\n1,\"a, b\"\n2,\n",
        );
        check(
            r#"{"items":[{"id":1,"name":"x"},{"id":2,"name":"y"}],"next":null,"total":2}"#,
            "{\"items\":\"(below)\",\"total\":2}\n\nitems:\nid,name\n1,x\n2,y",
        );
        // Other arrays stay JSON.
        check(
            r#"[{"id":1}, {"id":2,"x":3}]"#,
            r#"[{"id":1},{"id":2,"x":3}]"#,
        );
        check(r#"[{"id":1}, {"id":[2]}]"#, r#"[{"id":1},{"id":[2]}]"#);
        check("[{\"id\":1}, 7]", r#"[{"id":1},7]"#);
        check("[{}, {}]", "[{},{}]");
    }

    #[test]
    fn deep_nesting_is_harmless() {
        let deep = format!("{} 1{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(compact(&deep), None);
    }
}
