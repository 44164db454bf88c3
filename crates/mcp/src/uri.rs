//! Resource URIs as clients see them: `resource://server/` followed by the server's native URI, unchanged.
//!
//! A prefix can be removed without loss, and URI templates remain templates (G06). Schemes that hosts recognise stay in
//! front: a server's `ui://x` becomes `ui://server/x`, and `skill://x` becomes `skill://server/x`.

use std::{borrow::Cow, fmt::Write, sync::LazyLock};

use memchr::memmem::Finder;
use model::ServerName;

use crate::{
    Frame, Kind,
    json::{self, Object, Span, Splice},
    protocol::method,
};

const SCHEME: &str = "resource://";
/// Schemes that hosts recognise: MCP Apps (SEP-1865), skills (SEP-2640).
const KEPT_SCHEMES: [&str; 2] = ["ui://", "skill://"];

/// Built once, since building a finder costs as much as a search.
static URI_KEY: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new("uri\""));

/// The prefix of all URIs of a server.
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

/// The part of a [`prefix`] after the scheme: the server's name and a slash.
#[must_use]
pub fn label(prefix: &str) -> &str {
    prefix.strip_prefix(SCHEME).unwrap_or(prefix)
}

/// Converts a native URI to the exposed one.
#[must_use]
pub fn exposed(prefix: &str, native: &str) -> String {
    let kept = KEPT_SCHEMES
        .into_iter()
        .find(|scheme| native.starts_with(scheme));
    match kept {
        Some(scheme) => format!("{scheme}{}{}", label(prefix), &native[scheme.len()..]),
        None => format!("{prefix}{native}"),
    }
}

/// Splits an exposed URI into the server's [`label`] and the native URI. `None` if this gateway did not expose it.
#[must_use]
pub fn split(exposed: &str) -> Option<(&str, Cow<'_, str>)> {
    let after = |rest: &str| rest.find('/').map(|slash| slash + 1);
    if let Some(rest) = exposed.strip_prefix(SCHEME) {
        let (label, native) = rest.split_at(after(rest)?);
        return Some((label, native.into()));
    }
    let scheme = KEPT_SCHEMES
        .into_iter()
        .find(|scheme| exposed.starts_with(scheme))?;
    let rest = &exposed[scheme.len()..];
    let (label, native) = rest.split_at(after(rest)?);
    Some((label, format!("{scheme}{native}").into()))
}

/// Adds `prefix` to every resource URI in the result of a request with the method `asked`.
pub fn expose_result(frame: &Frame, asked: &str, prefix: &str, splice: &mut Splice<'_>) {
    if frame.kind() != Kind::Result {
        return;
    }
    let Some(result) = frame.object() else { return };
    let text = frame.text();
    let mut expose = |span: Option<Span>| expose_at(text, span, prefix, splice);
    match asked {
        method::TOOLS_CALL => {
            // Most results hold no resource. One search is cheaper than walking over every block.
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
        method::SKILLS_GET => {
            if let Some(skill) = result.find("skill") {
                expose_skill(text, skill, prefix, splice);
            }
        }
        method::DIRECTORY_READ => {
            for resource in result
                .find("resources")
                .into_iter()
                .flat_map(|all| json::elements(text, all))
            {
                expose(Object::at(text, resource).and_then(|resource| resource.find("uri")));
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

/// The URI of a content block: of a resource link or of an embedded resource.
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

/// Adds `prefix` to the URIs of a skill entry.
pub fn expose_skill(text: &[u8], entry: Span, prefix: &str, splice: &mut Splice<'_>) {
    let Some(entry) = Object::at(text, entry) else {
        return;
    };
    expose_at(text, entry.find("uri"), prefix, splice);
    let resources = entry.find("resources").filter(|at| text[at.start] == b'[');
    for resource in resources
        .into_iter()
        .flat_map(|all| json::elements(text, all))
    {
        let uri = Object::at(text, resource).and_then(|resource| resource.find("uri"));
        expose_at(text, uri, prefix, splice);
    }
}

/// Adds `prefix` to the view URI in a tool's `_meta`, under the current and the older key (ext-apps 2026-01-26
/// "Resource Discovery").
pub fn expose_tool(text: &[u8], tool: &Object<'_>, prefix: &str, splice: &mut Splice<'_>) {
    let Some(own) = tool.object("_meta") else {
        return;
    };
    let present = own.object("ui").and_then(|ui| ui.find("resourceUri"));
    for span in [present, own.find("ui/resourceUri")] {
        // Only `ui://` URIs are views.
        let is_view = |span: &Span| scheme_end(text, span.start + 1).is_some();
        expose_at(text, span.filter(is_view), prefix, splice);
    }
}

/// The end of the kept scheme of the URI at `start` (inside a JSON string), if it has one.
fn scheme_end(text: &[u8], start: usize) -> Option<usize> {
    KEPT_SCHEMES.into_iter().find_map(|scheme| {
        let mut at = start;
        for byte in scheme.bytes() {
            // JSON may escape a slash as `\/`.
            if byte == b'/' && text.get(at) == Some(&b'\\') {
                at += 1;
            }
            if text.get(at) != Some(&byte) {
                return None;
            }
            at += 1;
        }
        Some(at)
    })
}

/// Converts the URI in the string at `span` to the exposed one.
pub fn expose_at(text: &[u8], span: Option<Span>, prefix: &str, splice: &mut Splice<'_>) {
    if let Some(span) = span.filter(|span| text.get(span.start) == Some(&b'"')) {
        let inside = span.start + 1;
        let (at, with) = match scheme_end(text, inside) {
            Some(behind) => (behind, label(prefix)),
            None => (inside, prefix),
        };
        splice.replace(at..at, with.as_bytes().to_vec());
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
            ("My Server", "ui://clock/app.html"),
            ("a", "ui://a/ui://a/"),
            ("a", "skill://"),
            ("a", "skill://one"),
        ] {
            let prefix = prefix(&ServerName::parse(server).expect(server));
            let exposed = exposed(&prefix, native);
            assert_eq!(split(&exposed), Some((label(&prefix), native.into())));
            let kept = ["ui://", "skill://"];
            let scheme = kept.into_iter().find(|scheme| native.starts_with(scheme));
            assert!(
                exposed.starts_with(scheme.unwrap_or("resource://")),
                "{exposed}"
            );
        }
        assert_eq!(split("file:///x"), None);
        assert_eq!(split("resource://x"), None);
        assert_eq!(split("ui://x"), None);
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
        check(
            "resources/read",
            r#"{"jsonrpc":"2.0","id":1,"result":{"contents":[{"uri":"ui://a"},{"uri":"ui:\/\/a\/b"},{"uri":"ui:/a"}]}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"contents":[{"uri":"ui://s/a"},{"uri":"ui:\/\/s/a\/b"},{"uri":"resource://s/ui:/a"}]}}"#,
        );
        check(
            "skills/get",
            r#"{"jsonrpc":"2.0","id":1,"result":{"skill":{"uri":"skill://t/a/SKILL.md","frontmatter":{"uri":"skill://x"},"resources":[{"uri":"skill://t/a/SKILL.md","size":1}]}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"skill":{"uri":"skill://s/t/a/SKILL.md","frontmatter":{"uri":"skill://x"},"resources":[{"uri":"skill://s/t/a/SKILL.md","size":1}]}}}"#,
        );
        check(
            "skills/get",
            r#"{"jsonrpc":"2.0","id":1,"result":{"skill":{"uri":"github://o/r/a/SKILL.md","resources":"dynamic"}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"skill":{"uri":"resource://s/github://o/r/a/SKILL.md","resources":"dynamic"}}}"#,
        );
        check(
            "resources/directory/read",
            r#"{"jsonrpc":"2.0","id":1,"result":{"resources":[{"uri":"skill://a/b","mimeType":"inode/directory"}]}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"resources":[{"uri":"skill://s/a/b","mimeType":"inode/directory"}]}}"#,
        );
    }

    #[test]
    fn g06_tools_name_their_views() {
        let check = |tool: &str, expect: &str| {
            let object = Object::of(tool.as_bytes()).expect(tool);
            let mut splice = Splice::new();
            expose_tool(tool.as_bytes(), &object, "resource://s/", &mut splice);
            let found = splice.apply(&Bytes::copy_from_slice(tool.as_bytes()));
            assert_eq!(found, expect);
        };
        check(
            r#"{"name":"t","_meta":{"ui":{"resourceUri":"ui://a/b","visibility":["app"]},"ui/resourceUri":"ui://a/b"}}"#,
            r#"{"name":"t","_meta":{"ui":{"resourceUri":"ui://s/a/b","visibility":["app"]},"ui/resourceUri":"ui://s/a/b"}}"#,
        );
        check(
            r#"{"name":"t","_meta":{"ui":{"resourceUri":7},"ui/resourceUri":"https://a"}}"#,
            r#"{"name":"t","_meta":{"ui":{"resourceUri":7},"ui/resourceUri":"https://a"}}"#,
        );
    }
}
