//! Parsers for values: sizes, times, addresses, origins.

use std::time::Duration;

use toml::de::DeValue;

use crate::units::{Prefix, bytes};

/// The parser's message up to the first quotation of the text. Quoted punctuation is kept.
pub(super) fn own_words(message: &str) -> String {
    let mut out = String::new();
    for (i, part) in message
        .lines()
        .next()
        .unwrap_or_default()
        .split('`')
        .enumerate()
    {
        if i % 2 == 0 {
            out.push_str(part);
        } else if part.chars().any(char::is_alphanumeric) {
            break;
        } else {
            out.push_str(&format!("`{part}`"));
        }
    }
    out.trim().to_owned()
}

pub(super) fn integer(value: &DeValue<'_>) -> Option<usize> {
    let integer = value.as_integer()?;
    usize::from_str_radix(integer.as_str(), integer.radix()).ok()
}

pub(super) fn size(value: &DeValue<'_>) -> Option<usize> {
    match value.as_str() {
        Some(text) => usize::try_from(bytes(text, Prefix::Decimal)?).ok(),
        None => integer(value),
    }
}

pub(super) fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = split_unit(text);
    let factor: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let ms = number.parse::<u64>().ok()?.checked_mul(factor)?;
    // A longer time is a mistake, and sums of timeouts must not overflow.
    (ms <= 7 * 86_400_000).then(|| Duration::from_millis(ms))
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// The text of a top-level key in the text of a settings file. `None` if the text is not TOML, or has no such key.
/// Variables are not filled in.
#[must_use]
pub fn setting_text(text: &str, key: &str) -> Option<String> {
    let table: toml::Table = toml::from_str(text).ok()?;
    table.get(key)?.as_str().map(str::to_owned)
}

pub(super) fn is_address(text: &str) -> bool {
    if text.parse::<std::net::SocketAddr>().is_ok() {
        return true;
    }
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty()
            && host
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-')
            && port.parse::<u16>().is_ok()
    })
}

/// Returns whether traffic to this URL is protected: TLS, or this machine only.
pub(super) fn is_private_address(text: &str) -> bool {
    let Ok(url) = url::Url::parse(text) else {
        return false;
    };
    let loopback = match url.host() {
        Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
        Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => return false,
    };
    let bare = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    bare && (url.scheme() == "https" || url.scheme() == "http" && loopback)
}

pub(super) fn is_web_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// Returns whether this is the URL of a service, without a user.
pub(super) fn is_service_url(text: &str) -> bool {
    url::Url::parse(text).is_ok_and(|url| {
        matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
    })
}

pub(super) fn is_host(text: &str) -> bool {
    url::Url::parse(&format!("http://{text}/")).is_ok_and(|url| {
        url.path() == "/"
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
    }) && !text.contains(['*', '/', '@', '#', '?'])
}

/// First segments of paths of the gateway that have further paths below them. A prefix cannot begin with one of them:
/// it would be unclear whether a proxy has removed the prefix from a path.
const OWN_PATHS: [&str; 13] = [
    ".well-known",
    "api",
    "assets",
    "calls",
    "docs",
    "licenses",
    "login",
    "mcp",
    "message",
    "projects",
    "servers",
    "sign-in",
    "sse",
];

/// The URL of a gateway: an origin, and a path prefix if it has one. Removes slashes at the end.
pub(super) fn base_url(text: &str) -> Option<String> {
    let (host, path) = model::origin_and_prefix(text);
    let path = path.trim_end_matches('/');
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let is_name = |name: &str| !matches!(name, "" | "." | "..") && name.bytes().all(plain);
    let mut names = path.split('/').skip(1);
    let is_ours = names
        .clone()
        .next()
        .is_some_and(|first| OWN_PATHS.contains(&first));
    let origin = origin(host)?;
    (names.all(is_name) && !is_ours).then(|| format!("{origin}{path}"))
}

pub(super) fn origin(text: &str) -> Option<String> {
    let url = url::Url::parse(text).ok()?;
    let rest = text.split_once("://")?.1;
    let bare = url.host().is_some()
        && !rest
            .trim_end_matches('/')
            .contains(['/', '?', '#', '@', '*']);
    (bare && url.origin().is_tuple()).then(|| url.origin().ascii_serialization())
}
