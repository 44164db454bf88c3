//! The headers in which a reverse proxy describes its client's connection: `X-Forwarded-Proto`, `X-Forwarded-Host` and
//! `X-Forwarded-Prefix`, or `Forwarded` (RFC 7239).
//!
//! Invariants: of a list, the last element counts, which the nearest proxy added: earlier ones may come from the client.
//! If a request has one of the `X-Forwarded-*` headers, `Forwarded` is ignored. A proxy may pass it on from the client.
//! Deliberately absent: the client's address (`for`, `X-Forwarded-For`), because nothing depends on it. The header
//! still shows that the request came through a proxy.

use http::{
    HeaderMap, HeaderName,
    header::{FORWARDED, VIA},
};

const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
/// Other headers that only proxies send.
const OTHERS: [HeaderName; 3] = [
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-real-ip"),
    VIA,
];
/// Maximum length of a prefix.
const MAX_PREFIX_BYTES: usize = 256;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Proxied {
    pub(crate) scheme: Option<&'static str>,
    /// Not checked yet.
    pub(crate) host: Option<String>,
    /// Empty, or with a slash at its beginning and none at its end.
    pub(crate) prefix: String,
}

impl Proxied {
    /// `None`: the request has no header of a proxy.
    ///
    /// # Errors
    /// Which header is invalid.
    pub(crate) fn read(headers: &HeaderMap) -> Result<Option<Self>, String> {
        let [proto, host, prefix] = [
            listed(headers, &PROTO)?,
            listed(headers, &HOST)?,
            listed(headers, &PREFIX)?,
        ];
        let is_known = proto.is_some() || host.is_some() || prefix.is_some();
        let (proto, host) = match line(headers, &FORWARDED)?.filter(|_| !is_known) {
            None if !is_known && !OTHERS.iter().any(|name| headers.contains_key(name)) => {
                return Ok(None);
            }
            None => (proto.map(str::to_owned), host.map(str::to_owned)),
            Some(text) => {
                let mut pairs = last_element(text).ok_or_else(|| invalid(&FORWARDED, text))?;
                (pairs.take("proto"), pairs.take("host"))
            }
        };
        let scheme = match proto.map(|proto| proto.to_ascii_lowercase()).as_deref() {
            None => None,
            Some("http") => Some("http"),
            Some("https") => Some("https"),
            Some(other) => return Err(invalid(&PROTO, other)),
        };
        let prefix = prefix.unwrap_or_default();
        Ok(Some(Self {
            scheme,
            host,
            prefix: path(prefix).ok_or_else(|| invalid(&PREFIX, prefix))?,
        }))
    }
}

fn invalid(name: &HeaderName, value: &str) -> String {
    let value: String = value.chars().take(100).collect();
    format!("the proxy's header {name} is invalid: `{value}`")
}

/// The last line of a header.
fn line<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, String> {
    let Some(last) = headers.get_all(name).iter().next_back() else {
        return Ok(None);
    };
    let text = last.to_str();
    text.map(Some)
        .map_err(|_| format!("the proxy's header {name} is not ASCII"))
}

/// The last element of a comma-separated header.
fn listed<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, String> {
    let line = line(headers, name)?;
    Ok(line.map(|line| line.rsplit(',').next().unwrap_or_default().trim()))
}

/// A path prefix, without slashes at its end. `None` if it is not one.
fn path(text: &str) -> Option<String> {
    let text = text.trim_end_matches('/');
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let is_name = |name: &str| !matches!(name, "" | "." | "..") && name.bytes().all(plain);
    let mut names = text.split('/');
    let begins = names.next() == Some("");
    (begins && text.len() <= MAX_PREFIX_BYTES && names.all(is_name)).then(|| text.to_owned())
}

/// The parameters of one element of `Forwarded`.
#[derive(Default)]
struct Pairs<'h>(Vec<(&'h str, String)>);

impl Pairs<'_> {
    fn take(&mut self, name: &str) -> Option<String> {
        let mut all = self.0.iter();
        let at = all.position(|(own, _)| own.eq_ignore_ascii_case(name))?;
        Some(self.0.swap_remove(at).1)
    }
}

/// Reads `for=192.0.2.1;proto=https, for="[2001:db8::1]"`. `None` if it has another form.
fn last_element(text: &str) -> Option<Pairs<'_>> {
    let mut element = Pairs::default();
    let mut rest = text;
    loop {
        let (name, after) = rest.split_once('=')?;
        let name = name.trim();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if name.is_empty() || !name.bytes().all(plain) {
            return None;
        }
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => unquoted(quoted)?,
            None => {
                let end = after.find([';', ',']).unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        element.0.push((name, value));
        let after = after.trim_start();
        if after.is_empty() {
            return Some(element);
        }
        rest = match after.strip_prefix(';') {
            Some(rest) => rest,
            None => {
                element.0.clear();
                after.strip_prefix(',')?
            }
        };
    }
}

/// The value of a quoted string (RFC 9110, section 5.6.4), and the text behind it.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(chars.next()?.1),
            char => value.push(char),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[(&str, &str)]) -> Result<Option<(String, String, String)>, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name: HeaderName = name.parse().expect(name);
            headers.append(name, value.parse().expect(value));
        }
        let read = Proxied::read(&headers)?;
        Ok(read.map(|it| {
            let scheme = it.scheme.unwrap_or("-").to_owned();
            (scheme, it.host.unwrap_or_else(|| "-".to_owned()), it.prefix)
        }))
    }

    #[test]
    fn headers_of_proxies() {
        let proto = ("x-forwarded-proto", "HTTPS");
        let host = ("x-forwarded-host", "a.example:8443");
        let prefix = ("x-forwarded-prefix", "/tools/");
        let of = |text| ("forwarded", text);
        for (lines, expected) in [
            (vec![], None),
            (vec![("x-forwarded-for", "192.0.2.1")], Some(["-", "-", ""])),
            (vec![("x-real-ip", "192.0.2.1")], Some(["-", "-", ""])),
            (vec![("via", "1.1 proxy")], Some(["-", "-", ""])),
            (vec![proto], Some(["https", "-", ""])),
            (
                vec![proto, host, prefix],
                Some(["https", "a.example:8443", "/tools"]),
            ),
            // The last element is that of the nearest proxy, in the last line.
            (
                vec![("x-forwarded-host", "evil.example, a.example")],
                Some(["-", "a.example", ""]),
            ),
            (
                vec![("x-forwarded-host", "evil.example"), host],
                Some(["-", "a.example:8443", ""]),
            ),
            (
                vec![of(
                    "for=192.0.2.1;proto=http;host=evil.example, for=\"[2001:db8::1]:80\"; Proto=https ;host=\"a.example:1\"",
                )],
                Some(["https", "a.example:1", ""]),
            ),
            (
                vec![of(r#"for="a\",;host=b";host=c.example"#)],
                Some(["-", "c.example", ""]),
            ),
            (vec![of("for=unknown")], Some(["-", "-", ""])),
            // The client may have sent this one.
            (
                vec![of("proto=http;host=evil.example"), proto],
                Some(["https", "-", ""]),
            ),
            (vec![("x-forwarded-prefix", "/")], Some(["-", "-", ""])),
        ] {
            let expected = expected.map(|[scheme, host, prefix]| {
                (scheme.to_owned(), host.to_owned(), prefix.to_owned())
            });
            assert_eq!(read(&lines), Ok(expected), "{lines:?}");
        }
    }

    #[test]
    fn invalid_headers_are_errors() {
        for (name, value) in [
            ("x-forwarded-proto", "ftp"),
            ("x-forwarded-proto", ""),
            ("x-forwarded-prefix", "tools"),
            ("x-forwarded-prefix", "//evil.example"),
            ("x-forwarded-prefix", "/a/../b"),
            ("x-forwarded-prefix", "/a?b"),
            ("x-forwarded-prefix", "/a b"),
            ("forwarded", "proto"),
            ("forwarded", "proto=\"https"),
            ("forwarded", "for=a;;proto=https"),
            ("forwarded", "proto=ftp"),
        ] {
            assert!(read(&[(name, value)]).is_err(), "{name}: {value}");
        }
        let long = format!("/{}", "a".repeat(MAX_PREFIX_BYTES));
        assert!(read(&[("x-forwarded-prefix", &long)]).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_too_much(text in "[ -~]{0,200}") {
            let _ = read(&[("forwarded", &text)]);
        }
    }
}
