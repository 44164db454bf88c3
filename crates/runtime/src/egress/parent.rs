//! HTTP proxies between the egress proxy and its destinations, as some company networks require.
//!
//! # Deliberately absent
//!
//! Proxies over TLS or SOCKS.

use std::io;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{BAD_GATEWAY, CONNECT_TIMEOUT, ProxyRequest, RESPONSE_TIMEOUT, Refusal, read_head};

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Parent {
    host: String,
    port: u16,
    /// The value of `Proxy-Authorization`.
    authorization: Option<String>,
}

/// Selects the proxy for a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parents {
    /// The proxy for plain HTTP.
    pub(crate) http: Option<Parent>,
    /// The proxy for tunnels, which carry TLS.
    pub(crate) https: Option<Parent>,
    /// Hosts that are reached directly, in the format of `NO_PROXY`.
    pub(crate) except: Vec<String>,
}

impl std::fmt::Debug for Parent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Parent({}:{})", self.host, self.port)
    }
}

impl Parent {
    /// # Errors
    ///
    /// Says why this URL cannot be used. The text contains no credentials.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let whole = match url.contains("://") {
            true => url.to_owned(),
            false => format!("http://{url}"),
        };
        let wrong = || {
            format!(
                "the proxy `{}` is not of the form http://host:port; package installations support no other proxies",
                model::url_for_display(&whole)
            )
        };
        let parsed: Uri = whole.parse().map_err(|_| wrong())?;
        let host = parsed.host().map(|host| host.trim_matches(['[', ']']));
        let host = host.filter(|host| !host.is_empty()).ok_or_else(wrong)?;
        if parsed.scheme_str() != Some("http") {
            return Err(wrong());
        }
        let authority = parsed
            .authority()
            .map_or("", |authority| authority.as_str());
        let user = authority.rsplit_once('@').map(|(user, _)| decode(user));
        Ok(Self {
            host: host.to_owned(),
            port: parsed.port_u16().unwrap_or(80),
            authorization: user.map(|user| format!("Basic {}", STANDARD.encode(user))),
        })
    }

    /// Opens a connection through this proxy. The caller then sends `asked.head` on it or, for a tunnel, the client's
    /// bytes. Also returns data that the destination has already sent.
    pub(super) async fn open(
        &self,
        asked: &mut ProxyRequest,
    ) -> Result<(TcpStream, Vec<u8>), Refusal> {
        let failed = |why: String| Refusal {
            status: BAD_GATEWAY,
            text: format!("proxy `{}:{}` failed: {why}", self.host, self.port),
        };
        let late = |limit: Duration| format!("no answer within {} s", limit.as_secs());
        let connecting = TcpStream::connect((self.host.as_str(), self.port));
        let mut server = match timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(Ok(server)) => server,
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(_) => return Err(failed(late(CONNECT_TIMEOUT))),
        };
        let authorization = match &self.authorization {
            Some(value) => format!("Proxy-Authorization: {value}\r\n"),
            None => String::new(),
        };
        let place = match asked.host.contains(':') {
            true => format!("[{}]:{}", asked.host, asked.port),
            false => format!("{}:{}", asked.host, asked.port),
        };
        if let Some(head) = &mut asked.head {
            *head = absolute(head, &place, &authorization)
                .ok_or_else(|| failed("the request has no target".to_owned()))?;
            return Ok((server, Vec::new()));
        }
        let request = format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{authorization}\r\n");
        let mut answer = Vec::new();
        let tunnel = async {
            server.write_all(request.as_bytes()).await?;
            let end = read_head(&mut server, &mut answer).await?;
            end.ok_or_else(|| io::Error::other("its response head is too long"))
        };
        let end = match timeout(RESPONSE_TIMEOUT, tunnel).await {
            Ok(Ok(end)) => end,
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(_) => return Err(failed(late(RESPONSE_TIMEOUT))),
        };
        let early = answer.split_off(end);
        let line = String::from_utf8_lossy(&answer);
        let line = line.lines().next().unwrap_or_default();
        if line
            .split(' ')
            .nth(1)
            .is_some_and(|status| status.starts_with('2'))
        {
            Ok((server, early))
        } else {
            Err(failed(format!(
                "it responded with `{}`",
                line.escape_debug()
            )))
        }
    }
}

impl Parents {
    pub(super) fn find(&self, host: &str, port: u16, tunnel: bool) -> Option<&Parent> {
        let place = format!("{host}:{port}");
        let direct = self.except.iter().any(|entry| {
            let entry = entry.trim().to_ascii_lowercase();
            let domain = entry.trim_start_matches('*').trim_start_matches('.');
            entry == "*"
                || !domain.is_empty()
                    && [host, place.as_str()]
                        .iter()
                        .any(|place| *place == domain || place.ends_with(&format!(".{domain}")))
        });
        let parent = if tunnel { &self.https } else { &self.http };
        parent.as_ref().filter(|_| !direct)
    }
}

/// Turns the target of a request head into absolute form, as required by proxies (RFC 9112, 3.2.2).
fn absolute(head: &[u8], place: &str, authorization: &str) -> Option<Vec<u8>> {
    let head = std::str::from_utf8(head).ok()?;
    let (method, rest) = head.split_once(' ')?;
    let (line, rest) = rest.split_once("\r\n")?;
    Some(format!("{method} http://{place}{line}\r\n{authorization}{rest}").into_bytes())
}

/// Decodes `%XX`.
fn decode(text: &str) -> Vec<u8> {
    let mut decoded = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after
            .get(..2)
            .and_then(|code| std::str::from_utf8(code).ok());
        let code = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        match code.filter(|_| first == b'%') {
            Some(byte) => {
                decoded.push(byte);
                rest = &after[2..];
            }
            None => {
                decoded.push(first);
                rest = after;
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u03_a_proxy_is_host_port_and_credentials() {
        for (url, expected) in [
            ("http://proxy.example:3128", ("proxy.example", 3128, None)),
            ("proxy.example:3128/", ("proxy.example", 3128, None)),
            ("http://proxy.example", ("proxy.example", 80, None)),
            (
                "http://me:a%40b@[::1]:8",
                ("::1", 8, Some("Basic bWU6YUBi")),
            ),
        ] {
            let found = Parent::parse(url).unwrap();
            let found = (
                found.host.as_str(),
                found.port,
                found.authorization.as_deref(),
            );
            assert_eq!(found, expected, "{url}");
        }
        for url in [
            "https://me:hunter2@proxy",
            "socks5://me:hunter2@proxy:1",
            "http://",
            "",
        ] {
            let error = Parent::parse(url).unwrap_err();
            assert!(
                error.contains("http://host:port") && !error.contains("hunter2"),
                "{error}"
            );
        }
    }

    #[test]
    fn u03_hosts_of_no_proxy_are_reached_directly() {
        let parents = Parents {
            http: Some(Parent::parse("http://one").unwrap()),
            https: Some(Parent::parse("http://two").unwrap()),
            except: vec![".example.com".into(), "direct:81".into(), String::new()],
        };
        for (host, port, tunnel, expected) in [
            ("registry.org", 80, false, Some("one")),
            ("registry.org", 443, true, Some("two")),
            ("a.example.com", 443, true, None),
            ("example.com", 443, true, None),
            ("badexample.com", 443, true, Some("two")),
            ("direct", 81, false, None),
            ("direct", 82, false, Some("one")),
        ] {
            let found = parents
                .find(host, port, tunnel)
                .map(|parent| parent.host.as_str());
            assert_eq!(found, expected, "{host}:{port}");
        }
    }

    #[test]
    fn u03_a_proxy_gets_absolute_targets() {
        let head = absolute(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n", "a:1", "P: q\r\n").unwrap();
        let expected = "GET http://a:1/x HTTP/1.1\r\nP: q\r\nHost: a\r\n\r\n";
        assert_eq!(String::from_utf8(head).unwrap(), expected);
    }
}
