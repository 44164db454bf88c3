//! Converts a tool's result for the model.
//!
//! Texts and embedded texts are passed on unchanged, and images as images. Content that a model's API could refuse is
//! replaced by a sentence, because a single bad part would make every later request of the conversation fail. Long
//! results are cut to a preview, with a URI under which [`read`] returns the rest.

use results::{Bound, Document};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    conversation::KeptResult,
    message::{Part, picture},
    raw::Raw,
};

const UNKNOWN_TYPE: &str = "of an unknown type";

#[derive(Deserialize)]
struct CallResult {
    #[serde(default)]
    content: Vec<Raw>,
    #[serde(default, rename = "structuredContent")]
    structured: Option<Raw>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    r#type: String,
    text: Option<String>,
    data: Option<String>,
    mime_type: Option<String>,
    uri: Option<String>,
    name: Option<String>,
    description: Option<String>,
    resource: Option<Resource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Resource {
    uri: String,
    mime_type: Option<String>,
    text: Option<String>,
    blob: Option<String>,
}

/// Converts an MCP `CallToolResult` to parts. Never returns an empty list or an empty text.
///
/// # Errors
/// Why it is not a valid result.
pub(crate) fn parts(result: &Raw) -> Result<Vec<Part>, String> {
    let result: CallResult = object(result)?;
    let mut parts = Vec::with_capacity(result.content.len());
    for item in &result.content {
        parts.push(part(object(item)?));
    }
    parts.retain(|part| !matches!(part, Part::Text { text } if text.is_empty()));
    if parts.is_empty() {
        // Servers should repeat structured content as text (MCP, "Structured Content"), but some do not.
        parts.push(Part::text(match &result.structured {
            Some(structured) => structured.get(),
            None => "(The tool returned nothing.)",
        }));
    }
    Ok(parts)
}

/// Parses an object. serde alone would also accept an array for a struct.
fn object<T: serde::de::DeserializeOwned>(raw: &Raw) -> Result<T, String> {
    match raw.is_object() {
        true => raw.read().map_err(|error| error.to_string()),
        false => Err("it is not a JSON object".to_owned()),
    }
}

fn part(item: Item) -> Part {
    let Item {
        r#type: kind,
        text,
        data,
        mime_type,
        uri,
        name,
        description,
        resource,
    } = item;
    match (kind.as_str(), text, data, uri, resource) {
        ("text", Some(text), ..) => Part::Text { text },
        ("image", _, Some(data), ..) => image(data),
        ("audio", _, Some(data), ..) => {
            let mime = mime_type.as_deref().unwrap_or(UNKNOWN_TYPE);
            let size = data.len();
            Part::text(format!(
                "[audio, {mime}, {size} bytes as base64: not shown]"
            ))
        }
        ("resource_link", _, _, Some(uri), _) => {
            let mut text = format!("[resource {uri}");
            for more in [name, mime_type, description].into_iter().flatten() {
                text = format!("{text}; {more}");
            }
            Part::text(text + "]")
        }
        ("resource", .., Some(resource)) => embedded(resource),
        _ => Part::text(format!("[content of the type {kind:?}: not shown]")),
    }
}

fn embedded(resource: Resource) -> Part {
    let Resource {
        uri,
        mime_type,
        text,
        blob,
    } = resource;
    let mime = mime_type.as_deref().unwrap_or(UNKNOWN_TYPE);
    match (text, blob) {
        (Some(text), _) => Part::text(format!("[resource {uri}]\n{text}")),
        (None, Some(blob)) if mime.starts_with("image/") => image(blob),
        (None, blob) => {
            let size = blob.map_or(0, |blob| blob.len());
            Part::text(format!(
                "[resource {uri}, {mime}, {size} bytes as base64: not shown]"
            ))
        }
    }
}

/// An image, or a sentence if model APIs would refuse it.
fn image(data: String) -> Part {
    match picture(data) {
        Ok(image) => Part::Image(image),
        Err(why) => Part::text(format!("[an image: not shown, because {why}]")),
    }
}

/// All texts, separated by line breaks.
pub(crate) fn text_of(parts: &[Part]) -> String {
    let texts: Vec<&str> = parts
        .iter()
        .filter_map(|part| match part {
            Part::Text { text } => Some(text.as_str()),
            Part::Image(_) => None,
        })
        .collect();
    texts.join("\n")
}

/// The beginning of a text, at most `most` bytes.
pub(crate) fn head(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// Cuts parts whose text is longer than the bound. Also returns the text to keep under `uri`, at most `keep` bytes.
pub(crate) fn cut(
    parts: Vec<Part>,
    uri: String,
    bound: Bound,
    keep: usize,
) -> (Vec<Part>, Option<KeptResult>) {
    let bytes: usize = parts
        .iter()
        .map(|part| match part {
            Part::Text { text } => text.len() + 1,
            Part::Image(_) => 0,
        })
        .sum();
    let most = match bound {
        // A token has at least one byte.
        Bound::Bytes(most) | Bound::Tokens(most) => most,
    };
    if bytes <= most.saturating_add(1) {
        return (parts, None);
    }
    let text = text_of(&parts);
    if bound.fits(&text) {
        return (parts, None);
    }
    let kept = head(&text, keep);
    let document = Document {
        whole: text.len(),
        ..Document::of(kept)
    };
    let shown = results::preview(&document, bound, Ok((&uri, None)));
    let result = KeptResult {
        uri,
        text: kept.into(),
        whole: text.len(),
    };
    let images = parts
        .into_iter()
        .filter(|part| matches!(part, Part::Image(_)));
    (
        std::iter::once(Part::text(shown)).chain(images).collect(),
        Some(result),
    )
}

/// Implements the tool [`results::READ_RESULT`]. `arguments` match its schema.
///
/// # Errors
/// The message for the model, if there is nothing to read.
pub(crate) fn read(kept: &[KeptResult], arguments: &Value, bound: Bound) -> Result<String, String> {
    let uri = arguments["uri"].as_str().unwrap_or_default();
    let Some(result) = kept.iter().rev().find(|result| result.uri == uri) else {
        return Err(format!(
            "The result {uri} is not available: only the latest {} are kept. Call the tool again to get its result.",
            kept.len()
        ));
    };
    let document = Document {
        whole: result.whole,
        ..Document::of(&result.text)
    };
    results::read(&document, arguments, bound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Image;
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use serde_json::json;

    fn check(result: &Value, expect: &[Part]) {
        let parts = parts(&Raw::of(result)).expect("a result");
        assert_eq!(parts, expect, "{result}");
    }

    #[test]
    fn parts_of_results() {
        let texts =
            json!({ "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "" }] });
        check(&texts, &[Part::text("a")]);
        check(&json!({}), &[Part::text("(The tool returned nothing.)")]);
        let structured = json!({ "content": [], "structuredContent": { "a": 1 } });
        check(&structured, &[Part::text(r#"{"a":1}"#)]);
        let png = STANDARD.encode(b"\x89PNG\r\n\x1a\nrest");
        let picture =
            json!({ "content": [{ "type": "image", "data": png, "mimeType": "image/jpeg" }] });
        check(&picture, &[Part::Image(Image::base64("image/png", png))]);
        let link = json!({ "content": [
            { "type": "resource_link", "uri": "file:///x", "name": "x", "mimeType": "text/plain" },
            { "type": "resource", "resource": { "uri": "file:///y", "text": "why" } },
            { "type": "resource", "resource": { "uri": "file:///z", "blob": "QUJD" } },
            { "type": "audio", "data": "QUJD", "mimeType": "audio/wav" },
            { "type": "image", "data": "!!", "mimeType": "image/png" },
            { "type": "hologram", "x": 1 },
        ] });
        check(
            &link,
            &[
                Part::text("[resource file:///x; x; text/plain]"),
                Part::text("[resource file:///y]\nwhy"),
                Part::text(
                    "[resource file:///z, of an unknown type, 4 bytes as base64: not shown]",
                ),
                Part::text("[audio, audio/wav, 4 bytes as base64: not shown]"),
                Part::text(
                    "[an image: not shown, because it is not a PNG, JPEG, GIF or WebP file]",
                ),
                Part::text("[content of the type \"hologram\": not shown]"),
            ],
        );
    }

    #[test]
    fn what_is_no_result_is_an_error() {
        for bad in [
            "7",
            "[]",
            r#"{"content":7}"#,
            r#"{"content":["x"]}"#,
            r#"{"content":[["text"]]}"#,
        ] {
            let raw = Raw::parse(bad).expect("JSON");
            assert!(parts(&raw).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_long_result_can_be_read_to_its_end() {
        let text: String = (0..5000).map(|n| format!("{n}é")).collect();
        let (shown, kept) = cut(
            vec![Part::text(text.as_str())],
            "u".to_owned(),
            Bound::Bytes(1001),
            1 << 20,
        );
        let kept = [kept.expect("a long one")];
        let [Part::Text { text: shown }] = shown.as_slice() else {
            panic!("{shown:?}");
        };
        let (first, note) = shown.rsplit_once("\n\n[").expect("a note");
        assert!(text.starts_with(first) && first.len() <= 1001, "{note}");
        let mut whole = first.to_owned();
        for _ in 0..100 {
            if whole.len() == text.len() {
                break;
            }
            let arguments = json!({ "uri": "u", "offset": whole.len() });
            let more = read(&kept, &arguments, Bound::Bytes(1001)).expect("more");
            whole.push_str(more.rsplit_once("\n\n[").expect("a note").0);
        }
        assert_eq!(whole, text);
        let past = json!({ "uri": "u", "offset": text.len() });
        assert!(read(&kept, &past, Bound::Bytes(1001)).is_err());
        let unknown = read(&kept, &json!({ "uri": "v" }), Bound::Bytes(1001)).expect_err("unknown");
        assert!(unknown.contains("v is not available"), "{unknown}");
        // The offset is inside a character, and the length is below one character.
        let tiny = json!({ "uri": "u", "offset": 2, "length": 1 });
        let piece = read(&kept, &tiny, Bound::Bytes(1001)).expect("a piece");
        assert!(piece.starts_with('é'), "{piece}");
    }

    #[test]
    fn what_is_too_long_to_be_kept_says_so() {
        let ten = Bound::Bytes(10);
        let (shown, kept) = cut(vec![Part::text("x".repeat(100))], "u".to_owned(), ten, 50);
        assert!(text_of(&shown).contains("Only the first 50 bytes were kept"));
        let kept = kept.expect("a long one");
        assert_eq!((kept.text.len(), kept.whole), (50, 100));
        let end = read(&[kept], &json!({ "uri": "u", "offset": 40 }), ten).expect("the end");
        assert!(
            end.ends_with("[bytes 40 to 50 of 100; the rest was not kept]"),
            "{end}"
        );
        let (short, none) = cut(vec![Part::text("x".repeat(10))], "u".to_owned(), ten, 50);
        assert_eq!((short, none), (vec![Part::text("x".repeat(10))], None));
    }

    /// Conversations that an earlier version stored have other URIs.
    #[test]
    fn a_result_of_an_earlier_version_can_be_read() {
        let stored = r#"{"uri":"toolwharf-result://0/t1","text":"{\"a\":[1,2]}","whole":11}"#;
        let kept = [serde_json::from_str::<KeptResult>(stored).expect("a result")];
        let arguments = json!({ "uri": "toolwharf-result://0/t1", "path": "a[1]" });
        let read = read(&kept, &arguments, Bound::Bytes(1001)).expect("a value");
        assert_eq!(read, "2\n\n[bytes 0 to 1 of 1; this is the end]");
    }

    #[test]
    fn a_bound_in_tokens_includes_the_note() {
        let bound = Bound::Tokens(300);
        let text = "a word and ".repeat(200);
        let (shown, kept) = cut(vec![Part::text(&*text)], "u".to_owned(), bound, 1 << 20);
        assert!(bound.fits(&text_of(&shown)) && kept.is_some(), "{shown:?}");
        // More bytes than the bound has tokens, but not more tokens.
        let text = "a word and ".repeat(50);
        let (shown, kept) = cut(vec![Part::text(&*text)], "u".to_owned(), bound, 1 << 20);
        assert_eq!((shown, kept), (vec![Part::text(&*text)], None));
    }
}
