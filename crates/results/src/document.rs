//! A long result, and what a model sees of it first.

use crate::{
    bound::{Bound, noted},
    path::{json_of, outline},
    tool::READ_RESULT,
};

/// A long result.
#[derive(Clone, Copy, Debug)]
pub struct Document<'t> {
    pub text: &'t str,
    /// The structured content, as JSON, if the text is something else.
    pub structured: Option<&'t str>,
    /// The length of the text in bytes before its end was left out.
    pub whole: usize,
}

impl<'t> Document<'t> {
    /// A document that consists of a text.
    #[must_use]
    pub fn of(text: &'t str) -> Self {
        Self {
            text,
            structured: None,
            whole: text.len(),
        }
    }

    /// Returns whether the text is a JSON object or array.
    #[must_use]
    pub fn is_json(&self) -> bool {
        json_of(self.text).is_some()
    }

    /// The JSON that has the paths and rows.
    pub(crate) fn json(&self) -> Option<&'t str> {
        self.structured.or_else(|| json_of(self.text))
    }
}

/// The beginning of a long result, with a note about the rest. `uri`: the name under which [`crate::read`] finds it.
/// `kept_for`: how long. With an error instead, the rest was not kept.
#[must_use]
pub fn preview(
    document: &Document<'_>,
    bound: Bound,
    kept: Result<(&str, Option<&str>), &str>,
) -> String {
    let text = document.text;
    let about = about(document, bound);
    let lines = memchr::memchr_iter(b'\n', text.as_bytes()).count() + 1;
    let note = |shown: usize| {
        let whole = document.whole;
        let (size, next) = match shown == whole {
            true => (
                "This is the whole text".to_owned(),
                "\"path\": \"…\"".to_owned(),
            ),
            false => (
                format!("These are the first {shown} of {whole} bytes ({lines} lines)"),
                format!("\"offset\": {shown}"),
            ),
        };
        match kept {
            Err(why) => format!("{size}.{about} The rest was not kept: {why}."),
            Ok((uri, kept_for)) => {
                let kept_for = kept_for.map(|time| format!(", kept for {time}"));
                let lost = match text.len() < whole {
                    true => format!(" Only the first {} bytes were kept.", text.len()),
                    false => String::new(),
                };
                format!(
                    "{size}.{about} The whole is the resource {uri}{}. To read on, call {READ_RESULT} with \
                     {{\"uri\": \"{uri}\", {next}}}. It also finds words (`search`), and reads lines (`line`), values in \
                     JSON (`path`) and rows of tables (`row`).{lost}",
                    kept_for.unwrap_or_default()
                )
            }
        }
    };
    // The longest note is that of an incomplete text.
    let longest = note(text.len().saturating_sub(1));
    let head = bound.beside(&longest).head(text);
    noted(head, &note(head.len()))
}

/// A sentence about the JSON of a result.
fn about(document: &Document<'_>, bound: Bound) -> String {
    let Some(json) = document.json() else {
        return String::new();
    };
    let (outlined, plain) = match document.structured {
        Some(_) => (
            format!(" The structured content is {}.", outline(json)),
            " There is also structured content.",
        ),
        None => (format!(" It is {}.", outline(json)), " It is JSON."),
    };
    let fits = match bound {
        Bound::Tokens(most) => Bound::Tokens(most / 4).fits(&outlined),
        Bound::Bytes(_) => true,
    };
    match fits {
        true => outlined,
        false => plain.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_is_within_its_bound_and_says_how_to_read_on() {
        let rows: Vec<String> = (0..2_000)
            .map(|n| format!("{{\"id\":{n},\"title\":\"Issue {n}\"}}"))
            .collect();
        let json = format!("{{\"items\":[{}]}}", rows.join(","));
        let document = Document::of(&json);
        for most in [250, 300, 1_000, 5_000] {
            let bound = Bound::Tokens(most);
            let preview = preview(&document, bound, Ok(("u:1", Some("1h"))));
            assert!(bound.fits(&preview), "{most}: {preview}");
            let (head, note) = preview.rsplit_once("\n\n[").expect("a note");
            assert!(json.starts_with(head), "{head}");
            for part in [
                "It is an object with `items` (array of 2000).",
                "the resource u:1, kept for 1h",
                &format!("{{\"uri\": \"u:1\", \"offset\": {}}}", head.len()),
            ] {
                assert!(note.contains(part), "{note}");
            }
        }
        let lost = preview(&document, Bound::Tokens(300), Err("the store is full"));
        assert!(
            lost.ends_with("The rest was not kept: the store is full.]"),
            "{lost}"
        );
        assert!(!lost.contains(READ_RESULT), "{lost}");
    }

    #[test]
    fn odd_results_have_bounded_previews() {
        let bound = Bound::Tokens(250);
        let keys: Vec<String> = (0..50)
            .map(|n| format!("\"{}{n}\":0", "k.".repeat(200)))
            .collect();
        let long_keys = format!("{{{}}}", keys.join(","));
        let structured = format!("[{}0]", "0,".repeat(5_000));
        for document in [
            Document::of(&long_keys),
            Document::of(&"😀".repeat(5_000)),
            Document::of(""),
            Document {
                structured: Some(&structured),
                ..Document::of("5001 numbers")
            },
        ] {
            let preview = preview(&document, bound, Ok(("u:1", Some("1 h"))));
            assert!(bound.fits(&preview), "{preview}");
        }
        let whole = Document {
            structured: Some(&structured),
            ..Document::of("5001 numbers")
        };
        let preview = preview(&whole, bound, Ok(("u:1", None)));
        let start = "5001 numbers\n\n[This is the whole text. The structured content is an array (5001 elements). \
                     The whole is the resource u:1. To read on, call read_result with {\"uri\": \"u:1\", \"path\": ";
        assert!(preview.starts_with(start), "{preview}");
    }
}
