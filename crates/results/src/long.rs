//! A response with a long result: its parts, and the response with a preview instead.

use std::borrow::Cow;

use bytes::Bytes;
use mcp::json::{self, Object, Span, Splice, elements, members, quote};

use crate::{
    bound::Bound,
    document::{Document, preview},
};

/// A response with a result above the bound.
pub struct Long {
    response: Bytes,
    /// The texts for a model.
    pub text: Bytes,
    /// The structured content, if the text is something else.
    pub structured: Option<Bytes>,
    result: Span,
    content: Option<Span>,
    /// The structured content in the response, if it is left out.
    left_out: Option<Span>,
    /// Content blocks that stay: images, audio, unknown ones, and links if they are few.
    stay: Vec<Span>,
    /// Tokens of the links that stay.
    links: usize,
}

/// Texts of a content block.
enum Piece {
    /// A JSON string.
    Text(Span),
    /// The text of a resource, with its URI.
    Resource(Span, String),
    Link(Span),
}

impl Piece {
    /// The place of its text, or of the whole block.
    fn span(&self) -> Span {
        match self {
            Self::Text(at) | Self::Resource(at, _) | Self::Link(at) => at.clone(),
        }
    }
}

impl Long {
    /// Examines a response. `None` if its result is within the bound: its texts together, and its structured content,
    /// which most clients show instead of the texts.
    #[must_use]
    pub fn of(response: Bytes, most: usize, keeps_structured: bool) -> Option<Self> {
        let text: &[u8] = &response;
        let result = Object::of(text)?.object("result")?;
        let [content, structured] = result.find_all(["content", "structuredContent"]);
        let content = content.filter(|at| text[at.start] == b'[');
        let (mut pieces, mut stay) = (Vec::new(), Vec::new());
        for span in content.iter().flat_map(|all| elements(text, all.clone())) {
            match piece(text, span.clone()) {
                Some(piece) => pieces.push((piece, span)),
                None => stay.push(span),
            }
        }
        let is_long = |span: &Span| !discovery::has_at_most(&text[span.clone()], most);
        let left_out = structured
            .clone()
            .filter(|at| !keeps_structured && is_long(at));
        // Escaped text has at least as many tokens as the text itself.
        let mut left = most;
        let is_short = pieces.iter().all(|(piece, _)| {
            let raw = &text[piece.span()];
            let fits = discovery::has_at_most(raw, left);
            left = left.saturating_sub(discovery::tokens(raw));
            fits
        });
        if left_out.is_none() && is_short {
            return None;
        }
        let joined = joined(&response, &pieces);
        if left_out.is_none() && discovery::has_at_most(&joined, most) {
            return None;
        }
        let link_spans = || {
            let links = pieces
                .iter()
                .filter(|(piece, _)| matches!(piece, Piece::Link(_)));
            links.map(|(_, span)| span.clone())
        };
        let tokens = link_spans().map(|span| discovery::tokens(&text[span]));
        let mut links: usize = tokens.sum();
        if links <= most / 4 {
            stay.extend(link_spans());
            stay.sort_by_key(|span| span.start);
        } else {
            links = 0;
        }
        let structured = structured.map(|at| response.slice(at));
        let (joined, structured) = match structured {
            Some(structured) if joined.is_empty() => (structured, None),
            Some(structured) if is_same_json(&joined, &structured) => (joined, None),
            other => (joined, other),
        };
        let result = result.span();
        Some(Self {
            text: joined,
            structured,
            result,
            content,
            left_out,
            stay,
            links,
            response,
        })
    }

    /// The response with a preview. `kept`: the URI under which the result can be read, and for how long; or why it cannot.
    #[must_use]
    pub fn preview(
        &self,
        most: usize,
        tool: &str,
        has_links: bool,
        kept: Result<(String, String), String>,
    ) -> Bytes {
        let (text, structured) = (utf8_of(&self.text), self.structured.as_ref().map(utf8_of));
        let document = Document {
            structured: structured.as_deref(),
            ..Document::of(&text)
        };
        let link = match &kept {
            Ok((uri, _)) if has_links => format!(
                ",{{\"type\":\"resource_link\",\"uri\":{},\"name\":{},\"mimeType\":\"{}\",\"size\":{}}}",
                quote(uri),
                quote(tool),
                mime_of(&text),
                self.text.len()
            ),
            _ => String::new(),
        };
        let beside = self.links + discovery::tokens(link.as_bytes());
        let bound = Bound::Tokens(most.saturating_sub(beside));
        let kept = match &kept {
            Ok((uri, kept_for)) => Ok((uri.as_str(), Some(kept_for.as_str()))),
            Err(why) => Err(why.as_str()),
        };
        let preview = preview(&document, bound, kept);
        let mut content =
            format!("[{{\"type\":\"text\",\"text\":{}}}{link}", quote(&preview)).into_bytes();
        for span in &self.stay {
            content.push(b',');
            content.extend_from_slice(&self.response[span.clone()]);
        }
        content.push(b']');
        self.with_content(content)
    }

    fn with_content(&self, content: Vec<u8>) -> Bytes {
        let mut splice = Splice::new();
        match (&self.content, &self.left_out) {
            (Some(at), left_out) => {
                splice.replace(at.clone(), content);
                if let Some(at) = left_out {
                    splice.remove(&self.response, &self.result, at);
                }
            }
            (None, Some(at)) => {
                let mut all = members(&self.response, self.result.clone());
                if let Some(member) = all.find(|member| member.value == *at) {
                    let member = member.key.start - 1..member.value.end;
                    splice.replace(member, [&b"\"content\":"[..], &content].concat());
                }
            }
            (None, None) => {
                let member = [&b"\"content\":"[..], &content].concat();
                splice.insert(&self.response, &self.result, member);
            }
        }
        splice.apply(&self.response)
    }
}

/// The texts of a content block. `None` for what a model does not read as text.
fn piece(text: &[u8], span: Span) -> Option<Piece> {
    let block = Object::at(text, span.clone())?;
    match &*block.string("type")? {
        "text" => {
            let at = block.find("text")?;
            (text[at.start] == b'"').then_some(Piece::Text(at))
        }
        "resource" => {
            let resource = block.object("resource")?;
            let at = resource.find("text")?;
            let uri = string_of(&resource, "uri").unwrap_or_default();
            (text[at.start] == b'"').then_some(Piece::Resource(at, uri))
        }
        "resource_link" => Some(Piece::Link(span)),
        _ => None,
    }
}

/// All texts, one after the other. A single text without escapes is not copied.
fn joined(response: &Bytes, pieces: &[(Piece, Span)]) -> Bytes {
    let inside = |at: &Span| at.start + 1..at.end - 1;
    let decoded = |at: &Span| json::unescape(&response[inside(at)]);
    let mut joined = String::new();
    for (at, (piece, _)) in pieces.iter().enumerate() {
        if at > 0 {
            joined.push('\n');
        }
        match piece {
            Piece::Text(at) if pieces.len() == 1 => match decoded(at) {
                Cow::Owned(text) => return text.into(),
                Cow::Borrowed(_) => return response.slice(inside(at)),
            },
            Piece::Text(at) => joined.push_str(&decoded(at)),
            Piece::Resource(at, uri) => {
                joined.push_str(&format!("[resource {uri}]\n"));
                joined.push_str(&decoded(at));
            }
            Piece::Link(at) => joined.push_str(&link(response, at.clone())),
        }
    }
    joined.into()
}

/// A link as a line of text.
fn link(response: &[u8], at: Span) -> String {
    let Some(link) = Object::at(response, at) else {
        return String::new();
    };
    let mut text = format!("[resource {}", string_of(&link, "uri").unwrap_or_default());
    for key in ["name", "mimeType", "description"] {
        if let Some(more) = string_of(&link, key) {
            text.push_str("; ");
            text.push_str(&more);
        }
    }
    text.push(']');
    text
}

/// A string of a member, decoded as far as possible.
fn string_of(object: &Object<'_>, key: &str) -> Option<String> {
    object.string(key).map(Cow::into_owned)
}

fn utf8_of(bytes: &Bytes) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// The media type of a stored text.
#[must_use]
pub fn mime_of(text: &str) -> &'static str {
    match Document::of(text).is_json() {
        true => "application/json",
        false => "text/plain",
    }
}

/// Returns whether both are the same JSON text, apart from white space between tokens.
fn is_same_json(one: &[u8], other: &[u8]) -> bool {
    fn compact(text: &[u8]) -> impl Iterator<Item = u8> + '_ {
        let (mut is_string, mut is_escaped) = (false, false);
        text.iter().copied().filter(move |byte| {
            if !is_string {
                is_string = *byte == b'"';
                return !byte.is_ascii_whitespace();
            }
            is_string = is_escaped || *byte != b'"';
            is_escaped = !is_escaped && *byte == b'\\';
            true
        })
    }
    compact(one).eq(compact(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_between_tokens_makes_no_difference() {
        for (one, other, is_same) in [
            (r#"{"a":[1, 2]}"#, "{ \"a\" :\n[1,2] }", true),
            (r#"{"a":"x y"}"#, r#"{"a":"xy"}"#, false),
            (r#"{"a":"x\" y"}"#, r#"{"a": "x\" y"}"#, true),
            (r#"{"a":"x\\" , "b":1}"#, r#"{"a":"x\\","b":1}"#, true),
            ("[1,2]", "[1,2,3]", false),
            ("", "{}", false),
        ] {
            let found = is_same_json(one.as_bytes(), other.as_bytes());
            assert_eq!(found, is_same, "{one} {other}");
        }
    }

    #[test]
    fn a_single_text_is_not_copied() {
        let text = "word ".repeat(1_000);
        let response =
            format!(r#"{{"id":1,"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#);
        let response = Bytes::from(response);
        let long = Long::of(response.clone(), 250, false).expect("a long result");
        assert_eq!(long.text, text.as_bytes());
        assert!(response.as_ptr_range().contains(&long.text.as_ptr()));
        assert!(Long::of(response, 1_000, false).is_none());
    }
}
