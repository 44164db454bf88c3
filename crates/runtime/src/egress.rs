//! The egress proxy between a server and the hosts on its allow-list.
//!
//! It serves a listener inside the server's network namespace, which has no other way out. The listener is created by
//! the shim of a sandbox, or by a thread that entered a container's namespace. HTTP only: `CONNECT host:port`, and
//! requests in absolute form (RFC 9112, 3.2.2).
//!
//! # Invariants
//!
//! - The proxy resolves names itself, once per connection, and connects to the same address that it checked.
//! - A non-public address is reached only if the list contains this address, not through a name that resolves to it
//!   (DNS rebinding). Exception: the hosts of [`Allowed::configured`], which the operator of Toolwharf chose.
//! - Connections, request heads and waits are limited.
//!
//! # Deliberately absent
//!
//! TLS inspection, caching, authentication, more than one request per connection.

mod allowed;
mod parent;

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    os::fd::OwnedFd,
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, lookup_host},
    task::JoinSet,
    time::timeout,
};

pub use self::allowed::Allowed;
use self::allowed::plausible;
pub(crate) use self::parent::Parents;
use crate::{pump::pump, repeats::Repeats};

const MAX_CONNECTIONS: usize = 128;
const MAX_HEAD_BYTES: usize = 16 << 10;
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Limit for the bytes that are read and discarded from a refused client, so that the client can read the response.
const MAX_DISCARDED_BYTES: usize = 256 << 10;

/// Limit for the number of addresses tried per name.
const MAX_ADDRESSES: usize = 4;

/// Delay before the next `accept` after one has failed because file descriptors ran out.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

const BAD_GATEWAY: &str = "502 Bad Gateway";

const PROXY_VARIABLES: [&str; 6] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
];

/// The environment variables that tell a server the proxy's address.
pub fn variables(proxy: SocketAddr) -> impl Iterator<Item = (&'static str, String)> {
    let proxies = PROXY_VARIABLES.map(|name| (name, format!("http://{proxy}")));
    let without = ["NO_PROXY", "no_proxy"].map(|name| (name, "localhost,127.0.0.1,::1".to_owned()));
    // Node.js uses the proxy variables only if this one is set.
    let node = ("NODE_USE_ENV_PROXY", "1".to_owned());
    proxies.into_iter().chain(without).chain([node])
}

/// Accepts and serves connections until the future is dropped.
pub async fn run(listener: OwnedFd, allowed: Arc<Allowed>, label: String) -> io::Result<()> {
    let listener = std::net::TcpListener::from(listener);
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let shared = Arc::new(ProxyState {
        allowed,
        label,
        refused: Repeats::default(),
    });
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= MAX_CONNECTIONS {
            connections.join_next().await;
        }
        match listener.accept().await {
            Ok((client, _)) => {
                connections.spawn(serve(client, Arc::clone(&shared)));
            }
            Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
        }
    }
}

/// State shared by all connections of a server.
struct ProxyState {
    allowed: Arc<Allowed>,
    label: String,
    refused: Repeats,
}

#[derive(Debug, PartialEq, Eq)]
struct ProxyRequest {
    host: String,
    port: u16,
    /// Sent to the destination first. `None` for a tunnel.
    head: Option<Vec<u8>>,
}

/// The response to a refused request.
struct Refusal {
    pub status: &'static str,
    text: String,
}

async fn serve(mut client: TcpStream, shared: Arc<ProxyState>) {
    let mut head = Vec::new();
    let result = match timeout(HEAD_TIMEOUT, read_head(&mut client, &mut head)).await {
        Ok(Ok(Some(end))) => open(&head[..end], &shared.allowed)
            .await
            .map(|opened| (opened, end)),
        Ok(Ok(None)) => Err(Refusal {
            status: "431 Request Header Fields Too Large",
            text: format!("the request head has more than {MAX_HEAD_BYTES} bytes"),
        }),
        Ok(Err(_)) | Err(_) => return,
    };
    match result {
        Ok(((mut server, asked, early), end)) => {
            let rest = &head[end..];
            let begun = async {
                match asked.head {
                    Some(head) => server.write_all(&head).await?,
                    None => {
                        client
                            .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
                            .await?;
                        client.write_all(&early).await?;
                    }
                }
                server.write_all(rest).await
            };
            if let Ok(Ok(())) = timeout(RESPONSE_TIMEOUT, begun).await {
                pump(client, server).await;
            }
        }
        Err(Refusal { status, text }) => {
            if status == BAD_GATEWAY {
                shared.allowed.failed(&text);
            }
            if let Some(times) = shared.refused.count(&text) {
                let label = &shared.label;
                tracing::info!(server = label, status, "egress refused: {text}{times}");
            }
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\
                 connection: close\r\n\r\n{text}\n",
                text.len() + 1
            );
            let _ = timeout(RESPONSE_TIMEOUT, refuse(&mut client, answer.as_bytes())).await;
        }
    }
}

async fn refuse(client: &mut TcpStream, answer: &[u8]) -> io::Result<()> {
    client.write_all(answer).await?;
    client.shutdown().await?;
    // Closing with unread data would reset the connection, and the client could not read the response.
    let mut left = MAX_DISCARDED_BYTES;
    let mut chunk = [0; 4096];
    while left > 0 {
        let count = client.read(&mut chunk).await?;
        if count == 0 {
            break;
        }
        left = left.saturating_sub(count);
    }
    Ok(())
}

/// Returns the length of the head in the data read so far. `None` if it is too long.
async fn read_head(client: &mut TcpStream, head: &mut Vec<u8>) -> io::Result<Option<usize>> {
    let mut chunk = [0; 4096];
    loop {
        let count = client.read(&mut chunk).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let from = head.len().saturating_sub(3);
        head.extend_from_slice(&chunk[..count]);
        if let Some(at) = head[from..].windows(4).position(|four| four == b"\r\n\r\n") {
            let end = from + at + 4;
            return Ok((end <= MAX_HEAD_BYTES).then_some(end));
        }
        if head.len() >= MAX_HEAD_BYTES {
            return Ok(None);
        }
    }
}

/// Opens a connection for a request. Also returns data that the destination has already sent.
async fn open(
    head: &[u8],
    allowed: &Allowed,
) -> Result<(TcpStream, ProxyRequest, Vec<u8>), Refusal> {
    let mut asked = parse(head).ok_or_else(|| Refusal {
        status: "400 Bad Request",
        text: "this proxy supports `CONNECT host:port` and `METHOD http://host/path`".to_owned(),
    })?;
    if let Some(parent) = allowed.parent(&asked.host, asked.port, asked.head.is_none()) {
        check(&asked, allowed)?;
        let (server, early) = parent::open(parent, &mut asked).await?;
        return Ok((server, asked, early));
    }
    let addresses = addresses(&asked, allowed).await?;
    let mut failure = None;
    for address in addresses.into_iter().take(MAX_ADDRESSES) {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(server)) => return Ok((server, asked, Vec::new())),
            Ok(Err(error)) => failure = Some(error.to_string()),
            Err(_) => {
                failure = Some(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()));
            }
        }
    }
    Err(Refusal {
        status: BAD_GATEWAY,
        text: format!(
            "cannot connect to `{}:{}`: {}",
            asked.host,
            asked.port,
            failure.unwrap_or_else(|| "the name resolves to no address".to_owned())
        ),
    })
}

fn forbidden(text: String) -> Refusal {
    Refusal {
        status: "403 Forbidden",
        text,
    }
}

/// Refuses a destination that is not on the list. Returns the destination's address if the request gives an IP address
/// instead of a name.
fn check(asked: &ProxyRequest, allowed: &Allowed) -> Result<Option<SocketAddr>, Refusal> {
    let ProxyRequest { host, port, .. } = asked;
    if let Ok(ip) = host.parse::<IpAddr>() {
        let address = SocketAddr::new(ip.to_canonical(), *port);
        return if allowed.address(address) {
            Ok(Some(address))
        } else {
            Err(forbidden(allowed.refuse(&address.to_string())))
        };
    }
    if !allowed.name(host, *port) {
        return Err(forbidden(allowed.refuse(&format!("{host}:{port}"))));
    }
    Ok(None)
}

async fn addresses(asked: &ProxyRequest, allowed: &Allowed) -> Result<Vec<SocketAddr>, Refusal> {
    if let Some(address) = check(asked, allowed)? {
        return Ok(vec![address]);
    }
    let ProxyRequest { host, port, .. } = asked;
    let found = timeout(RESOLVE_TIMEOUT, lookup_host((host.as_str(), *port))).await;
    let late = format!("no answer within {} s", RESOLVE_TIMEOUT.as_secs());
    let found = found.unwrap_or_else(|_| Err(io::Error::other(late)));
    let found = found.map_err(|error| Refusal {
        status: BAD_GATEWAY,
        text: format!("cannot resolve `{host}`: {error}"),
    })?;
    let found: Vec<_> = found.collect();
    let (good, bad): (Vec<_>, Vec<_>) = found.into_iter().partition(|&address| {
        allowed.private() || model::is_public(address.ip()) || allowed.address(address)
    });
    match (good.is_empty(), bad.first()) {
        (true, Some(bad)) => Err(forbidden(format!(
            "`{host}` resolves to {}, which is not public; to allow it, add that address to the server's \
             `network.allow`",
            bad.ip()
        ))),
        _ => Ok(good),
    }
}

fn parse(head: &[u8]) -> Option<ProxyRequest> {
    let head = std::str::from_utf8(head).ok()?;
    let (line, headers) = head.split_once("\r\n")?;
    let mut words = line.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    if words.next().is_some() || !version.starts_with("HTTP/1.") {
        return None;
    }
    if method == "CONNECT" {
        let (host, port) = authority(target, None)?;
        let head = None;
        return Some(ProxyRequest { host, port, head });
    }
    let scheme = target.get(..7)?;
    if !scheme.eq_ignore_ascii_case("http://") {
        return None;
    }
    let rest = &target[7..];
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (place, path) = rest.split_at(end);
    let (host, port) = authority(place, Some(80))?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut forwarded = format!("{method} {slash}{path} HTTP/1.1\r\nHost: {place}\r\n");
    for header in headers.split("\r\n").filter(|header| !header.is_empty()) {
        let (name, _) = header.split_once(':')?;
        // These headers apply to the connection between client and proxy only. The host is taken from the request line.
        let ours = [
            "host",
            "connection",
            "proxy-connection",
            "proxy-authorization",
            "keep-alive",
        ];
        if !ours.iter().any(|own| name.trim().eq_ignore_ascii_case(own)) {
            forwarded.push_str(header);
            forwarded.push_str("\r\n");
        }
    }
    forwarded.push_str("Connection: close\r\n\r\n");
    let head = Some(forwarded.into_bytes());
    Some(ProxyRequest { host, port, head })
}

/// Parses a host, which becomes lower case, and a port.
fn authority(text: &str, default: Option<u16>) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(text) => {
            let (host, rest) = text.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            let port = if rest.is_empty() {
                None
            } else {
                Some(rest.strip_prefix(':')?)
            };
            (host, port)
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().ok()?,
        None => default?,
    };
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let good = plausible(&host) || host.parse::<IpAddr>().is_ok();
    good.then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_rewritten_and_nothing_else_is_taken() {
        let asked = parse(b"CONNECT A.example:443 HTTP/1.1\r\nHost: b\r\n\r\n").unwrap();
        assert_eq!(
            (asked.host.as_str(), asked.port, asked.head),
            ("a.example", 443, None)
        );
        let request = "GET http://a.example:8080?q HTTP/1.1\r\nHost: other\r\nX: y\r\n\
                       Proxy-Authorization: secret\r\nConnection: keep-alive\r\n\r\n";
        let asked = parse(request.as_bytes()).unwrap();
        let expected =
            "GET /?q HTTP/1.1\r\nHost: a.example:8080\r\nX: y\r\nConnection: close\r\n\r\n";
        assert_eq!(String::from_utf8(asked.head.unwrap()).unwrap(), expected);
        for wrong in [
            "GET / HTTP/1.1",
            "CONNECT a HTTP/1.1",
            "CONNECT a:b HTTP/1.1",
            "CONNECT a:1:2 HTTP/1.1",
            "CONNECT [a]:1 HTTP/1.1",
            "GET https://a/ HTTP/1.1",
            "GET http://u@a/ HTTP/1.1",
            "GET http://a/ HTTP/2",
            "GET http://a/ b HTTP/1.1",
            "GET é HTTP/1.1",
            "GET http:/é HTTP/1.1",
            "",
        ] {
            assert_eq!(
                parse(format!("{wrong}\r\n\r\n").as_bytes()),
                None,
                "{wrong}"
            );
        }
    }
}
