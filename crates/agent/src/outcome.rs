//! Converts a tool's result for the model.
//!
//! Texts and embedded texts are passed on unchanged, and images as images. Content that a model's API could refuse is
//! replaced by a sentence, because a single bad part would make every later request of the conversation fail. Long
//! results are cut to a preview, with a URI under which [`read`] returns the rest.

use crate::message::picture;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{conversation::KeptResult, message::Part, raw::Raw};

/// The built-in tool that reads more of a long result.
pub(crate) const READ_RESULT: &str = "read_result";
/// Prefix of the URIs of long results.
pub(crate) const SCHEME: &str = "toolwharf-result://";
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

/// Cuts parts with more than `preview` bytes of text. Also returns the text to keep under `uri`, at most `keep` bytes.
pub(crate) fn cut(
    parts: Vec<Part>,
    uri: String,
    preview: usize,
    keep: usize,
) -> (Vec<Part>, Option<KeptResult>) {
    let bytes: usize = parts
        .iter()
        .map(|part| match part {
            Part::Text { text } => text.len() + 1,
            Part::Image(_) => 0,
        })
        .sum();
    if bytes <= preview.saturating_add(1) {
        return (parts, None);
    }
    let text = text_of(&parts);
    let kept = head(&text, keep);
    let shown = head(kept, preview);
    let lost = match kept.len() < text.len() {
        true => format!(" Only the first {} bytes were kept.", kept.len()),
        false => String::new(),
    };
    let note = format!(
        "{shown}\n\n[These are the first {} of {} bytes; the whole is the resource {uri}. To read on, call \
         {READ_RESULT} with {{\"uri\": \"{uri}\", \"offset\": {}}}.{lost}]",
        shown.len(),
        text.len(),
        shown.len(),
    );
    let result = KeptResult {
        uri,
        text: kept.into(),
        whole: text.len(),
    };
    let images = parts
        .into_iter()
        .filter(|part| matches!(part, Part::Image(_)));
    (
        std::iter::once(Part::text(note)).chain(images).collect(),
        Some(result),
    )
}

pub(crate) fn read_schema(preview: usize) -> Value {
    json!({
        "type": "object",
        "properties": {
            "uri": { "type": "string", "description": "The URI at the end of the shortened result" },
            "offset": { "type": "integer", "minimum": 0, "description": "The offset of the first byte to read" },
            "length": { "type": "integer", "minimum": 1, "maximum": preview.max(1), "description": "How many bytes" },
        },
        "required": ["uri"],
        "additionalProperties": false,
    })
}

/// The description of [`READ_RESULT`] for the model.
pub(crate) const READ_DESCRIPTION: &str = "Reads more of a tool's result that was too long to be shown whole. The result contains its URI and the offset to continue at.";

/// Implements [`READ_RESULT`]. `arguments` match its schema.
///
/// # Errors
/// The message for the model, if there is nothing to read.
pub(crate) fn read(
    kept: &[KeptResult],
    arguments: &Value,
    preview: usize,
) -> Result<String, String> {
    let uri = arguments["uri"].as_str().unwrap_or_default();
    let number = |name: &str| {
        arguments[name]
            .as_u64()
            .map(|n| usize::try_from(n).unwrap_or(usize::MAX))
    };
    let Some(result) = kept.iter().rev().find(|result| result.uri == uri) else {
        return Err(format!(
            "The result {uri} is not available: only the latest {} are kept. Call the tool again to get its result.",
            kept.len()
        ));
    };
    let text = &*result.text;
    let offset = number("offset").unwrap_or(0);
    if offset >= text.len() {
        return Err(format!(
            "{uri} has {} bytes, so there is nothing at the offset {offset}.",
            text.len()
        ));
    }
    let start = text.floor_char_boundary(offset);
    let length = number("length").unwrap_or(preview).min(preview).max(1);
    let mut end = text.floor_char_boundary(start.saturating_add(length));
    if end == start {
        // Return at least one character, even if its encoding is longer than `length`.
        end = text.ceil_char_boundary(start + 1);
    }
    let rest = match end < text.len() {
        true => format!("to read on, use the offset {end}"),
        false if text.len() < result.whole => "the rest was not kept".to_owned(),
        false => "this is the end".to_owned(),
    };
    Ok(format!(
        "{}\n\n[bytes {start} to {end} of {}; {rest}]",
        &text[start..end],
        result.whole
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Image;
    use base64::{Engine as _, engine::general_purpose::STANDARD};

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
            1001,
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
            let more = read(&kept, &arguments, 1001).expect("more");
            whole.push_str(more.rsplit_once("\n\n[").expect("a note").0);
        }
        assert_eq!(whole, text);
        let past = json!({ "uri": "u", "offset": text.len() });
        assert!(read(&kept, &past, 1001).is_err());
        let unknown = read(&kept, &json!({ "uri": "v" }), 1001).expect_err("unknown");
        assert!(unknown.contains("v is not available"), "{unknown}");
        // The offset is inside a character, and the length is below one character.
        let tiny = json!({ "uri": "u", "offset": 2, "length": 1 });
        assert!(read(&kept, &tiny, 1001).expect("a piece").starts_with('é'));
    }

    #[test]
    fn what_is_too_long_to_be_kept_says_so() {
        let (shown, kept) = cut(vec![Part::text("x".repeat(100))], "u".to_owned(), 10, 50);
        assert!(text_of(&shown).contains("Only the first 50 bytes were kept"));
        let kept = kept.expect("a long one");
        assert_eq!((kept.text.len(), kept.whole), (50, 100));
        let end = read(&[kept], &json!({ "uri": "u", "offset": 40 }), 10).expect("the end");
        assert!(
            end.ends_with("[bytes 40 to 50 of 100; the rest was not kept]"),
            "{end}"
        );
        let (short, none) = cut(vec![Part::text("x".repeat(10))], "u".to_owned(), 10, 50);
        assert_eq!((short, none), (vec![Part::text("x".repeat(10))], None));
    }
}
