//! Resource URIs as clients see them: `resource://server/` and the server's own URI, unchanged, after it.
//!
//! A prefix, so that nothing is lost on the way back and templates stay templates (G06).

use std::{fmt::Write, sync::LazyLock};

use mcp::{
    Frame, Kind,
    json::{self, Object, Span, Splice},
    protocol::method,
};
use memchr::memmem::Finder;
use model::ServerName;

const SCHEME: &str = "resource://";

/// Made once: it costs as much as a search.
static URI_KEY: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new("uri\""));

/// What the URIs of a server begin with.
#[must_use]
pub fn prefix(server: &ServerName) -> String {
    let mut prefix = String::from(SCHEME);
    for byte in server.as_str().bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            prefix.push(char::from(byte));
        } else {
            let _ = write!(prefix, "%{byte:02X}");
        }
    }
    prefix.push('/');
    prefix
}

/// The server's part and the server's own URI, if `exposed` is one of ours.
#[must_use]
pub fn split(exposed: &str) -> Option<(&str, &str)> {
    let end = exposed.strip_prefix(SCHEME)?.find('/')? + SCHEME.len() + 1;
    Some(exposed.split_at(end))
}

/// Puts `prefix` before every resource URI in the result of `asked`.
pub fn expose_result(frame: &Frame, asked: &str, prefix: &str, splice: &mut Splice<'_>) {
    if frame.kind() != Kind::Result {
        return;
    }
    let Some(result) = frame.object() else { return };
    let text = frame.text();
    let mut expose = |span: Option<Span>| expose_at(text, span, prefix, splice);
    match asked {
        method::TOOLS_CALL => {
            // Most results hold no resource: one search instead of a walk over every block.
            if URI_KEY.find(frame.body()).is_none() {
                return;
            }
            if let Some(content) = result.find("content") {
                for block in json::elements(text, content) {
                    block_uris(text, block, &mut expose);
                }
            }
        }
        method::PROMPTS_GET => {
            for message in result
                .find("messages")
                .into_iter()
                .flat_map(|all| json::elements(text, all))
            {
                let Some(content) =
                    Object::at(text, message).and_then(|message| message.find("content"))
                else {
                    continue;
                };
                if text[content.start] == b'[' {
                    for block in json::elements(text, content) {
                        block_uris(text, block, &mut expose);
                    }
                } else {
                    block_uris(text, content, &mut expose);
                }
            }
        }
        method::RESOURCES_READ => {
            for content in result
                .find("contents")
                .into_iter()
                .flat_map(|all| json::elements(text, all))
            {
                expose(Object::at(text, content).and_then(|content| content.find("uri")));
            }
        }
        _ => {}
    }
}

/// The URI of a content block: a resource link's own, or that of an embedded resource.
fn block_uris(text: &[u8], block: Span, expose: &mut impl FnMut(Option<Span>)) {
    let Some(block) = Object::at(text, block) else {
        return;
    };
    let [kind, uri, resource] = block.find_all(["type", "uri", "resource"]);
    match kind.and_then(|at| json::as_string(&text[at])).as_deref() {
        Some("resource_link") => expose(uri),
        Some("resource") => expose(
            resource
                .and_then(|at| Object::at(text, at))
                .and_then(|inner| inner.find("uri")),
        ),
        _ => {}
    }
}

/// Puts `prefix` first into the string at `span`.
pub fn expose_at(text: &[u8], span: Option<Span>, prefix: &str, splice: &mut Splice<'_>) {
    if let Some(span) = span.filter(|span| text.get(span.start) == Some(&b'"')) {
        let inside = span.start + 1;
        splice.replace(inside..inside, prefix.as_bytes().to_vec());
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn g06_uris_come_back_without_loss() {
        for (server, native) in [
            ("fs", "file:///a b/ü?x=1#y"),
            ("My Server", "test://static"),
            ("a", "resource://a/resource://a/"),
            ("ü", ""),
        ] {
            let prefix = prefix(&ServerName::parse(server).expect(server));
            let exposed = format!("{prefix}{native}");
            assert_eq!(split(&exposed), Some((prefix.as_str(), native)));
        }
        assert_eq!(split("file:///x"), None);
        assert_eq!(split("resource://x"), None);
    }

    #[test]
    fn g06_results_are_exposed() {
        let check = |asked, text: &'static str, expect: &str| {
            let frame = Frame::parse(Bytes::from_static(text.as_bytes()), 64).expect(text);
            let mut splice = Splice::new();
            expose_result(&frame, asked, "resource://s/", &mut splice);
            assert_eq!(splice.apply(frame.text()), expect);
        };
        check(
            "tools/call",
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","uri":"x:1"},{"type":"resource_link","uri":"x:1"},{"type":"resource","resource":{"uri":"x:2"}}]}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","uri":"x:1"},{"type":"resource_link","uri":"resource://s/x:1"},{"type":"resource","resource":{"uri":"resource://s/x:2"}}]}}"#,
        );
        check(
            "prompts/get",
            r#"{"jsonrpc":"2.0","id":1,"result":{"messages":[{"content":{"type":"resource","resource":{"uri":"x:2"}}}]}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"messages":[{"content":{"type":"resource","resource":{"uri":"resource://s/x:2"}}}]}}"#,
        );
        check(
            "resources/read",
            r#"{"jsonrpc":"2.0","id":1,"result":{"contents":[{"uri":"x:2"}]}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"contents":[{"uri":"resource://s/x:2"}]}}"#,
        );
    }
}
