//! Answers calls of the tool that reads long results.

use serde_json::Value;

use crate::{bound::Bound, document::Document, find, path, range, table, tool::schema};

/// The ways to read, each with its arguments.
const WAYS: [&[&str]; 4] = [
    &["offset", "length"],
    &["line", "lines"],
    &["search", "context", "skip"],
    &["row", "rows", "columns"],
];

/// Reads a part of a document. `arguments`: those of the tool. The URI in them is not looked at.
///
/// # Errors
/// The mistake, for the model.
pub fn read(document: &Document<'_>, arguments: &Value, bound: Bound) -> Result<String, String> {
    let given = |name: &str| arguments.get(name).filter(|value| !value.is_null());
    if let Some(object) = arguments.as_object() {
        let known = schema();
        let unknown = object
            .keys()
            .find(|key| known["properties"].get(key.as_str()).is_none());
        if let Some(key) = unknown {
            return Err(format!("there is no argument `{}`", path::shown(key)));
        }
    }
    let asked = |way: &&&[&str]| way.iter().any(|name| given(name).is_some());
    let mut ways = WAYS.iter().filter(asked);
    let (way, other) = (ways.next(), ways.next());
    if let (Some(one), Some(other)) = (way, other) {
        return Err(format!(
            "`{}` and `{}` are different ways to read: use one of them",
            one[0], other[0]
        ));
    }
    let at = text(arguments, "path")?;
    let json = || {
        let json = document.json();
        json.ok_or("the result is not JSON: use `offset`, `line` or `search`")
    };
    let value = match at {
        Some(at) => Some(path::at(json()?, at)?),
        None => None,
    };
    if way.is_some_and(|way| way[0] == "row") {
        let columns = columns(arguments)?;
        let table = match value {
            Some(value) => value,
            None => json()?,
        };
        let first = number(arguments, "row")?.unwrap_or(0);
        let count = number(arguments, "rows")?.unwrap_or(table::USUAL_ROWS);
        return table::rows(table, first, count, columns.as_deref(), bound);
    }
    let inside = value.map(path::text_of);
    let (whole, read) = match &inside {
        Some(text) => (text.len(), &**text),
        None => (document.whole, document.text),
    };
    if let Some(word) = text(arguments, "search")? {
        let context = number(arguments, "context")?.unwrap_or(find::USUAL_CONTEXT);
        let skip = number(arguments, "skip")?.unwrap_or(0);
        return find::search(read, word, context, skip, bound);
    }
    match way.map(|way| way[0]) {
        Some("search") => Err("`search` is missing: the word to find".to_owned()),
        Some("line") => {
            let first = number(arguments, "line")?.unwrap_or(1);
            let count = number(arguments, "lines")?.unwrap_or(usize::MAX);
            range::lines(read, first, count, bound)
        }
        _ => {
            let offset = number(arguments, "offset")?.unwrap_or(0);
            let length = number(arguments, "length")?.unwrap_or(usize::MAX);
            range::bytes(read, whole, offset, length, bound)
        }
    }
}

fn number(arguments: &Value, name: &str) -> Result<Option<usize>, String> {
    let wrong = |value: &Value| {
        let shown = path::shown(&value.to_string());
        format!("`{name}` must be a whole number of at least 0, not {shown}")
    };
    match arguments.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            Some(number) => Ok(Some(usize::try_from(number).unwrap_or(usize::MAX))),
            None => Err(wrong(value)),
        },
    }
}

fn text<'a>(arguments: &'a Value, name: &str) -> Result<Option<&'a str>, String> {
    match arguments.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("`{name}` must be a string")),
    }
}

fn columns(arguments: &Value) -> Result<Option<Vec<String>>, String> {
    let given = arguments.get("columns").filter(|value| !value.is_null());
    let Some(given) = given else {
        return Ok(None);
    };
    let wrong = || "`columns` must be a list of strings".to_owned();
    let all = given.as_array().ok_or_else(wrong)?.iter();
    let all = all.map(|one| one.as_str().map(str::to_owned).ok_or_else(wrong));
    all.collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const TEXT: &str =
        r#"{"items":[{"id":1,"body":"first\nsecond"},{"id":2,"body":"third"}],"total":2}"#;
    const BOUND: Bound = Bound::Tokens(1_000);

    #[test]
    fn each_way_of_reading() {
        for (arguments, expect) in [
            (json!({ "offset": 70 }), "tal\":2}\n\n[bytes 70 to 77"),
            (
                json!({ "path": "items[0].body" }),
                "first\nsecond\n\n[bytes 0 to 12 of 12; this is the end]",
            ),
            (
                json!({ "path": "/items/0/body", "line": 2 }),
                "second\n\n[lines 2 to 2 of 2; this is the end]",
            ),
            (
                json!({ "path": "items", "search": "third", "context": 8 }),
                "\"body\":\"third\"}]",
            ),
            (
                json!({ "path": "items", "rows": 1, "columns": ["id"] }),
                "id\n1\n\n[rows 0 to 0 of 2; to read on, use row 1]",
            ),
            (
                json!({ "path": "total", "offset": null }),
                "2\n\n[bytes 0 to 1 of 1; this is the end]",
            ),
        ] {
            let read = read(&Document::of(TEXT), &arguments, BOUND).expect("a part");
            assert!(read.contains(expect), "{arguments}: {read}");
        }
        let both = Document {
            structured: Some(r#"{"n":[1,2]}"#),
            ..Document::of("two numbers")
        };
        let rows = read(&both, &json!({ "path": "n", "row": 1 }), BOUND);
        assert_eq!(
            rows.as_deref(),
            Ok("value\n2\n\n[rows 1 to 1 of 2; this is the end]")
        );
        let found = read(&both, &json!({ "search": "two" }), BOUND);
        assert!(found.is_ok_and(|found| found.contains("two numbers")));
    }

    #[test]
    fn wrong_arguments_are_errors() {
        for (arguments, why) in [
            (
                json!({ "offset": -1 }),
                "`offset` must be a whole number of at least 0, not -1",
            ),
            (json!({ "line": 1.5 }), "`line` must be"),
            (json!({ "rows": "3" }), "`rows` must be"),
            (
                json!({ "offset": 0, "line": 1 }),
                "`offset` and `line` are different ways",
            ),
            (json!({ "offset": 10_000 }), "there are 77 bytes"),
            (json!({ "offset": u64::MAX }), "nothing at the offset"),
            (json!({ "path": 7 }), "`path` must be a string"),
            (
                json!({ "columns": "id", "path": "items" }),
                "`columns` must be a list",
            ),
            (json!({ "context": 3 }), "`search` is missing"),
            (json!({ "rows": 3 }), "this is no table"),
            (json!({ "pth": "x" }), "there is no argument `pth`"),
        ] {
            let error = read(&Document::of(TEXT), &arguments, BOUND).expect_err(why);
            assert!(error.contains(why), "{arguments}: {error}");
        }
        let plain = read(&Document::of("no JSON"), &json!({ "path": "x" }), BOUND);
        assert!(plain.is_err_and(|why| why.contains("is not JSON")));
    }

    proptest! {
        /// Whatever the text and the arguments are, there is an answer within the bound, or a short error.
        #[test]
        fn answers_are_bounded(
            text in "[\\[\\]{}:,\"a1 \n😀]{0,300}",
            path in proptest::option::of("[\\[\\].$/~a0-9\"]{0,12}"),
            way in 0..4_usize,
            first in 0..400_u64,
            count in 0..400_u64,
        ) {
            let mut arguments = match way {
                0 => json!({ "offset": first, "length": count }),
                1 => json!({ "line": first, "lines": count }),
                2 => json!({ "search": "a", "skip": first, "context": count }),
                _ => json!({ "row": first, "rows": count }),
            };
            if let Some(path) = path {
                arguments["path"] = path.into();
            }
            let bound = Bound::Tokens(250);
            match read(&Document::of(&text), &arguments, bound) {
                Ok(read) => prop_assert!(bound.fits(&read), "{}", read),
                Err(why) => prop_assert!(why.len() < 2_000, "{}", why),
            }
        }
    }
}
