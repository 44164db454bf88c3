//! Finds mistyped URLs. Without this check, they would be added as commands.

use model::url_for_display;

/// Endings of host names that are common for MCP servers. A command has no such ending.
const DOMAINS: &[&str] = &[
    "com", "org", "net", "io", "dev", "ai", "app", "co", "cloud", "sh", "xyz",
];

/// Returns what is wrong with the first word of a command, if it was probably meant as a URL.
pub(super) fn mistyped_url(word: &str) -> Option<String> {
    if let Some(path) = word.to_ascii_lowercase().strip_prefix("file://") {
        let path = &word[word.len() - path.len()..];
        return Some(format!(
            "`{word}` is a file, not the URL of a server; to run this file, write its path: {path}"
        ));
    }
    let meant = meant(word.trim())?;
    let (word, meant) = (url_for_display(word), url_for_display(&meant));
    Some(format!(
        "`{word}` is not a valid URL: write {meant}. For a command of this name, write its full path"
    ))
}

/// Returns a URL that begins with `http://` or `https://`.
fn checked_meant(scheme: &str, rest: &str) -> String {
    match rest.trim_start_matches(['/', ':', ';', '\\']) {
        "" => format!("{scheme}://HOST/PATH"),
        rest => format!("{scheme}://{rest}"),
    }
}

fn meant(word: &str) -> Option<String> {
    let lower = word.to_ascii_lowercase();
    if let Some((scheme, rest)) = lower.split_once("://") {
        let is_scheme = scheme
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        let is_plain = scheme.starts_with('h') && !scheme.ends_with('s') || scheme == "ws";
        let scheme = match is_plain {
            true => "http",
            false => "https",
        };
        let rest = &word[word.len() - rest.len()..];
        return is_scheme.then(|| checked_meant(scheme, rest));
    }
    for scheme in ["https", "http"] {
        let rest = lower.strip_prefix(scheme);
        if rest.is_some_and(|rest| rest.starts_with([':', '/', ';', '\\'])) {
            return Some(checked_meant(scheme, &word[scheme.len()..]));
        }
    }
    if word.starts_with(['/', '.', '~', '-', '@']) {
        return None;
    }
    let host = lower.split(['/', '?']).next().unwrap_or_default();
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (host, None),
    };
    let has_port = port.is_some_and(|port| port.parse::<u16>().is_ok());
    let is_local = name == "localhost" || name.parse::<std::net::IpAddr>().is_ok();
    let has_path = lower.len() > host.len();
    let domain = name.rsplit_once('.').map_or("", |(_, domain)| domain);
    let is_host = DOMAINS.contains(&domain) && (port.is_none() || has_port);
    if is_local && (port.is_none() || has_port || has_path) || name.starts_with('[') {
        return Some(format!("http://{word}"));
    }
    // A name such as `run.sh` is a script.
    let is_script = domain == "sh" && !has_path;
    (is_host && !is_script || has_port && name.contains('.')).then(|| format!("https://{word}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_recognised_and_commands_are_not() {
        for (word, expect) in [
            ("http//example.com/mcp", Some("http://example.com/mcp")),
            ("https//example.com", Some("https://example.com")),
            ("http:/example.com", Some("http://example.com")),
            ("https:example.com/mcp", Some("https://example.com/mcp")),
            ("htp://example.com", Some("http://example.com")),
            ("htps://example.com", Some("https://example.com")),
            ("HTTPS://Example.com/A", Some("https://Example.com/A")),
            ("ws://example.com", Some("http://example.com")),
            ("wss://example.com", Some("https://example.com")),
            ("ftp://example.com", Some("https://example.com")),
            ("localhost:3000/mcp", Some("http://localhost:3000/mcp")),
            ("127.0.0.1:3000", Some("http://127.0.0.1:3000")),
            ("example.com/mcp", Some("https://example.com/mcp")),
            ("mcp.example.com", Some("https://mcp.example.com")),
            ("localhost", Some("http://localhost")),
            ("htp://", Some("http://HOST/PATH")),
            ("https:", Some("https://HOST/PATH")),
            (
                "mcp.example.local:8080",
                Some("https://mcp.example.local:8080"),
            ),
            ("npx", None),
            ("/opt/example.com/server", None),
            ("./example.com/server", None),
            ("run.sh", None),
            ("server.py", None),
            ("node.js", None),
            ("mcp-server", None),
            ("httpd", None),
            ("httpie", None),
            ("C:/tools/server.exe", None),
            ("${CMD}", None),
            ("", None),
        ] {
            assert_eq!(meant(word).as_deref(), expect, "{word}");
        }
    }

    #[test]
    fn a_file_is_not_taken_for_a_url() {
        let text = mistyped_url("file:///srv/Server").unwrap_or_default();
        assert!(text.contains("write its path: /srv/Server"), "{text}");
    }

    #[test]
    fn the_message_contains_no_secret() {
        let text = mistyped_url("htp://me:hunter2@h/p?key=hunter2").unwrap_or_default();
        assert!(
            text.contains("http://h/p") && !text.contains("hunter2"),
            "{text}"
        );
    }
}
