//! HTTP proxies between the egress proxy and its destinations, as some company networks require.
//!
//! # Deliberately absent
//!
//! Proxies over TLS or SOCKS.

use std::io;
use std::time::Duration;

use model::{NoProxy, Proxy};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{BAD_GATEWAY, CONNECT_TIMEOUT, ProxyRequest, RESPONSE_TIMEOUT, Refusal, read_head};

/// Selects the proxy for a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parents {
    /// The proxy for plain HTTP.
    pub(crate) http: Option<Proxy>,
    /// The proxy for tunnels, which carry TLS.
    pub(crate) https: Option<Proxy>,
    /// Hosts that are reached directly.
    pub(crate) except: NoProxy,
}

impl Parents {
    pub(super) fn find(&self, host: &str, port: u16, tunnel: bool) -> Option<&Proxy> {
        let parent = if tunnel { &self.https } else { &self.http };
        parent.as_ref().filter(|_| !self.except.covers(host, port))
    }
}

/// Opens a connection through a proxy. The caller then sends `asked.head` on it or, for a tunnel, the client's
/// bytes. Also returns data that the destination has already sent.
pub(super) async fn open(
    parent: &Proxy,
    asked: &mut ProxyRequest,
) -> Result<(TcpStream, Vec<u8>), Refusal> {
    let failed = |why: String| Refusal {
        status: BAD_GATEWAY,
        text: format!("proxy `{parent}` failed: {why}"),
    };
    let late = |limit: Duration| format!("no answer within {} s", limit.as_secs());
    let connecting = TcpStream::connect((parent.host(), parent.port()));
    let mut server = match timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(Ok(server)) => server,
        Ok(Err(error)) => return Err(failed(error.to_string())),
        Err(_) => return Err(failed(late(CONNECT_TIMEOUT))),
    };
    let authorization = match parent.authorization() {
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

/// Turns the target of a request head into absolute form, as required by proxies (RFC 9112, 3.2.2).
fn absolute(head: &[u8], place: &str, authorization: &str) -> Option<Vec<u8>> {
    let head = std::str::from_utf8(head).ok()?;
    let (method, rest) = head.split_once(' ')?;
    let (line, rest) = rest.split_once("\r\n")?;
    Some(format!("{method} http://{place}{line}\r\n{authorization}{rest}").into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u03_tunnels_and_plain_requests_have_their_own_parents() {
        let parents = Parents {
            http: Some(Proxy::parse("http://one").unwrap()),
            https: Some(Proxy::parse("http://two").unwrap()),
            except: NoProxy::parse(".example.com"),
        };
        for (host, port, tunnel, expected) in [
            ("registry.org", 80, false, Some("one")),
            ("registry.org", 443, true, Some("two")),
            ("a.example.com", 443, true, None),
        ] {
            let found = parents.find(host, port, tunnel).map(Proxy::host);
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
