//! Values in a JSON text, by JSON pointer (RFC 6901: `/items/0/name`) or simple path (`items[0].name`).

use std::{borrow::Cow, fmt, ops::ControlFlow};

use serde::{
    Deserialize, Deserializer as _,
    de::{self, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

/// Maximum number of steps. Each one reads the rest of the text again.
const MAX_STEPS: usize = 64;
/// Keys of an object that a message names, and the characters of each.
const MAX_SHOWN_KEYS: usize = 12;
const MAX_SHOWN_CHARS: usize = 60;

/// The place of a value in its object or array.
pub(crate) enum Name<'t> {
    Key(Cow<'t, str>),
    Index(usize),
}

/// The JSON value that a text consists of, if it is an object or an array.
pub(crate) fn json_of(text: &str) -> Option<&str> {
    let text = text.trim();
    if !text.starts_with(['{', '[']) {
        return None;
    }
    let value: &RawValue = serde_json::from_str(text).ok()?;
    Some(value.get())
}

/// Passes the members of an object, or the elements of an array, to `each`, until it breaks. `json` is valid.
pub(crate) fn walk<'t>(json: &'t str, each: impl FnMut(Name<'t>, &'t str) -> ControlFlow<()>) {
    let mut reader = serde_json::Deserializer::from_str(json);
    let inside = Inside(each);
    // The only error is that of `stopped`.
    let _ = match json.as_bytes().first() {
        Some(b'{') => reader.deserialize_map(inside),
        Some(b'[') => reader.deserialize_seq(inside),
        _ => Ok(()),
    };
}

struct Inside<F>(F);

fn stopped<E: de::Error>() -> E {
    E::custom("stopped")
}

impl<'t, F: FnMut(Name<'t>, &'t str) -> ControlFlow<()>> Visitor<'t> for Inside<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'t>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(Key(key)) = map.next_key()? {
            let value: &RawValue = map.next_value()?;
            if (self.0)(Name::Key(key), value.get()).is_break() {
                return Err(stopped());
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'t>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let mut index = 0;
        while let Some(value) = seq.next_element::<&RawValue>()? {
            if (self.0)(Name::Index(index), value.get()).is_break() {
                return Err(stopped());
            }
            index += 1;
        }
        Ok(())
    }
}

/// A key of an object. Copied only if it has escapes.
struct Key<'t>(Cow<'t, str>);

impl<'t> Deserialize<'t> for Key<'t> {
    fn deserialize<D: serde::Deserializer<'t>>(reader: D) -> Result<Self, D::Error> {
        struct AsKey;
        impl<'t> Visitor<'t> for AsKey {
            type Value = Key<'t>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E>(self, key: &'t str) -> Result<Key<'t>, E> {
                Ok(Key(key.into()))
            }

            fn visit_str<E>(self, key: &str) -> Result<Key<'t>, E> {
                Ok(Key(key.to_owned().into()))
            }
        }
        reader.deserialize_str(AsKey)
    }
}

/// The value at a path.
///
/// # Errors
/// The path is invalid, or there is nothing.
pub(crate) fn at<'t>(json: &'t str, path: &str) -> Result<&'t str, String> {
    let steps = steps(path)?;
    let mut value = json;
    for (depth, step) in steps.iter().enumerate() {
        value = inner(value, step).ok_or_else(|| missing(value, &steps[..depth], step))?;
    }
    Ok(value)
}

/// The value under one step.
fn inner<'t>(json: &'t str, step: &str) -> Option<&'t str> {
    let index = match json.starts_with('[') {
        true => Some(step.parse::<usize>().ok()?),
        false => None,
    };
    let mut found = None;
    walk(json, |name, value| {
        let is_it = match name {
            Name::Key(key) => key == step,
            Name::Index(at) => Some(at) == index,
        };
        if is_it {
            found = Some(value);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    found
}

/// A value in a row of a table, by its key or by a path within the row.
pub(crate) fn of_row<'t>(row: &'t str, column: &str) -> Option<&'t str> {
    let found = inner(row, column).filter(|_| row.starts_with('{'));
    found.or_else(|| match column.contains(['.', '[', '/']) {
        true => at(row, column).ok(),
        false => None,
    })
}

/// The steps of a path.
fn steps(path: &str) -> Result<Vec<String>, String> {
    let steps = match path.strip_prefix('/') {
        Some(pointer) => {
            let parts = pointer.split('/').take(MAX_STEPS + 1);
            parts.map(unescaped).collect::<Result<Vec<_>, _>>()?
        }
        None => simple(path)?,
    };
    match steps.len() > MAX_STEPS {
        true => Err(format!("a path has at most {MAX_STEPS} steps")),
        false => Ok(steps),
    }
}

fn unescaped(part: &str) -> Result<String, String> {
    let mut text = String::with_capacity(part.len());
    let mut chars = part.chars();
    while let Some(char) = chars.next() {
        match (char, char == '~') {
            (_, false) => text.push(char),
            _ => match chars.next() {
                Some('0') => text.push('~'),
                Some('1') => text.push('/'),
                _ => {
                    return Err(format!(
                        "the pointer is invalid at `{}`: write ~0 for ~ and ~1 for /",
                        shown(part)
                    ));
                }
            },
        }
    }
    Ok(text)
}

fn simple(path: &str) -> Result<Vec<String>, String> {
    let wrong = |rest: &str| {
        format!(
            "the path is invalid at `{}`: write it like `items[0].name` or `/items/0/name`",
            shown(rest)
        )
    };
    let mut rest = path.strip_prefix('$').unwrap_or(path);
    let mut steps = Vec::new();
    while !rest.is_empty() && steps.len() <= MAX_STEPS {
        let (step, after) = match rest.strip_prefix('[') {
            Some(inside) => bracketed(inside).ok_or_else(|| wrong(rest))?,
            None => {
                let dotted = rest.strip_prefix('.');
                let name = dotted.or_else(|| (steps.is_empty()).then_some(rest));
                let name = name.ok_or_else(|| wrong(rest))?;
                let end = name.find(['.', '[']).unwrap_or(name.len());
                if end == 0 {
                    return Err(wrong(rest));
                }
                name.split_at(end)
            }
        };
        steps.push(step.to_owned());
        rest = after;
    }
    Ok(steps)
}

/// An index or a quoted key, up to the closing bracket, and what follows.
fn bracketed(inside: &str) -> Option<(&str, &str)> {
    let quote = inside
        .chars()
        .next()
        .filter(|one| matches!(one, '"' | '\''));
    if let Some(quote) = quote {
        let (key, after) = inside[1..].split_once(quote)?;
        return Some((key, after.strip_prefix(']')?));
    }
    let (index, after) = inside.split_once(']')?;
    let is_index = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
    is_index.then_some((index, after))
}

fn missing(value: &str, before: &[String], step: &str) -> String {
    let place = match before {
        [] => "the result".to_owned(),
        before => format!("`{}`", shown(&pointer(before))),
    };
    format!(
        "there is no `{}` in {place}, which is {}",
        shown(step),
        outline(value)
    )
}

fn pointer(steps: &[String]) -> String {
    let escaped = steps
        .iter()
        .map(|step| step.replace('~', "~0").replace('/', "~1"));
    escaped.fold(String::new(), |text, step| format!("{text}/{step}"))
}

/// Describes a value in a few words.
pub(crate) fn outline(json: &str) -> String {
    match json.as_bytes().first() {
        Some(b'[') => {
            let mut first = None;
            let mut count = 0_usize;
            walk(json, |_, value| {
                first.get_or_insert(value);
                count += 1;
                ControlFlow::Continue(())
            });
            let of = match first {
                Some(first) if first.starts_with('{') => {
                    format!(" of objects with {}", keys(first, false))
                }
                _ => String::new(),
            };
            format!("an array{of} ({count} elements)")
        }
        Some(b'{') => format!("an object with {}", keys(json, true)),
        Some(b'"') => "a text".to_owned(),
        _ => format!("the value {}", shown(json)),
    }
}

/// The keys of an object, with the lengths of the arrays in it.
fn keys(object: &str, with_lengths: bool) -> String {
    let mut names = Vec::new();
    let mut more = 0_usize;
    walk(object, |name, value| {
        let Name::Key(key) = name else {
            return ControlFlow::Break(());
        };
        if names.len() == MAX_SHOWN_KEYS {
            more += 1;
            return ControlFlow::Continue(());
        }
        let mut text = format!("`{}`", shown(&key));
        if with_lengths && value.starts_with('[') {
            let mut count = 0_usize;
            walk(value, |_, _| {
                count += 1;
                ControlFlow::Continue(())
            });
            text = format!("{text} (array of {count})");
        }
        names.push(text);
        ControlFlow::Continue(())
    });
    match (names.is_empty(), more) {
        (true, _) => "no members".to_owned(),
        (false, 0) => names.join(", "),
        (false, more) => format!("{} and {more} more", names.join(", ")),
    }
}

/// The text of a value: the characters of a string, or JSON.
pub(crate) fn text_of(value: &str) -> Cow<'_, str> {
    match value.starts_with('"') {
        true => serde_json::from_str(value).map_or(value.into(), |text: String| text.into()),
        false => value.into(),
    }
}

/// The beginning of a text, for a message.
pub(crate) fn shown(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{ "a": { "b/c": [10, "x\ny", { "d": null }], "": 1 }, "a.b": 2, "~": 3, "ü": 4, "list": [] }"#;

    #[test]
    fn pointers_and_paths_lead_to_values() {
        for (path, value) in [
            ("", JSON),
            ("$", JSON),
            ("/a/b~1c/0", "10"),
            ("a['b/c'][0]", "10"),
            ("$.a[\"b/c\"][2].d", "null"),
            ("/a/b~1c/1", r#""x\ny""#),
            ("/a/", "1"),
            ("/a.b", "2"),
            ("['a.b']", "2"),
            ("/~0", "3"),
            ("ü", "4"),
            ("list", "[]"),
        ] {
            assert_eq!(at(JSON, path).as_deref(), Ok(value), "{path}");
        }
    }

    #[test]
    fn what_is_not_there_is_an_error_that_says_what_is() {
        for (path, why) in [
            (
                "/x",
                "there is no `x` in the result, which is an object with `a`, `a.b`, `~`, `ü`, `list` (array of 0)",
            ),
            (
                "/a/b~1c/3",
                "there is no `3` in `/a/b~1c`, which is an array (3 elements)",
            ),
            ("/a/b~1c/-1", "there is no `-1` in `/a/b~1c`"),
            ("/a/b~1c/0/1", "which is the value 10"),
            ("/a/b~1c/1/1", "which is a text"),
            ("/~2", "the pointer is invalid at `~2`"),
            ("a..b", "the path is invalid at `..b`"),
            ("a[*]", "the path is invalid at `[*]`"),
            ("a[-1]", "the path is invalid at `[-1]`"),
            ("a[0", "the path is invalid at `[0`"),
            ("a[0]b", "the path is invalid at"),
        ] {
            let error = at(JSON, path).expect_err(path);
            assert!(error.contains(why), "{path}: {error}");
        }
    }

    #[test]
    fn long_paths_and_deep_texts_are_harmless() {
        let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(json_of(&deep).map(str::len), Some(400_000));
        for path in ["/0".repeat(500_000), "[0]".repeat(500_000)] {
            let error = at(&deep, &path).expect_err("too long");
            assert!(error.contains("at most 64 steps"), "{error}");
        }
        let found = at(&deep, &"/0".repeat(64)).expect("an array");
        assert_eq!(found.len(), 400_000 - 128);
        let error = at(&deep, &format!("/{}", "x".repeat(1 << 20))).expect_err("no such key");
        assert!(error.len() < 300, "{}", error.len());
    }

    #[test]
    fn outlines() {
        let rows = r#"[{"id":1,"n":[1]},{"id":2}]"#;
        assert_eq!(
            outline(rows),
            "an array of objects with `id`, `n` (2 elements)"
        );
        assert_eq!(outline("{}"), "an object with no members");
        let many: Vec<String> = (0..20).map(|n| format!("\"k{n}\":[0,0]")).collect();
        let many = outline(&format!("{{{}}}", many.join(",")));
        assert!(many.contains("`k11` (array of 2) and 8 more"), "{many}");
    }

    #[test]
    fn only_objects_and_arrays_are_json_here() {
        for text in ["", "7", "\"x\"", "{", "[1,]", "{} {}", "null"] {
            assert_eq!(json_of(text), None, "{text}");
        }
        assert_eq!(json_of(" \n{\"a\":1}\n"), Some("{\"a\":1}"));
    }
}
