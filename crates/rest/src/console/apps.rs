//! The sandbox of MCP Apps (SEP-1865, 2026-01-26): a page on a separate origin, in which the console draws Apps.
//!
//! Invariants: this listener serves only the two files of `sandbox/`, accepts no cookies or keys, and knows nothing
//! about servers. An App inherits the policy of the page around it. That policy is built from the server's declaration
//! (`_meta.ui.csp`), without addresses of this machine or its network. Only the page that requested the sandbox can
//! frame it, and the console's own policy allows it to frame this origin only. Deliberately absent: the permissions
//! that an App may request (camera, microphone, location, clipboard).

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode, Uri, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use model::Settings;
use serde::Deserialize;
use tokio::{net::TcpListener, sync::Semaphore, time::timeout};
use tokio_util::task::TaskTracker;
use url::{Host, Url};

const PAGE: &str = include_str!("sandbox/page.html");
const SCRIPT: &str = include_str!("sandbox/proxy.js");
/// Maximum concurrent connections. Further connections wait in the kernel.
const MAX_CONNECTIONS: usize = 64;
/// Time limit of a connection, enough for two small files.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum domains of each kind that an App can declare. Further domains are ignored.
const MAX_DOMAINS: usize = 64;

/// The listener of the sandbox.
pub struct Apps {
    listener: TcpListener,
    /// The sandbox's origin, as browsers see it.
    origin: String,
}

impl Apps {
    /// Listens on a free port of the gateway's address, or at the configured address. `None`: browsers on other machines use the gateway,
    /// and the settings do not say how they reach this listener. `passed`: the listener of the gateway that this one
    /// replaces.
    ///
    /// # Errors
    /// If it cannot listen at the configured address, or if that address is the console's.
    pub async fn open(
        settings: &Settings,
        gateway: SocketAddr,
        bases: &[String],
        passed: Option<TcpListener>,
    ) -> anyhow::Result<Option<Self>> {
        let console = &settings.console;
        if console.apps_url.is_none()
            && (settings.public_url.is_some()
                || !settings.trusted_proxies.is_empty()
                || !gateway.ip().is_loopback())
        {
            return Ok(None);
        }
        let listener = match (passed, &console.apps_listen) {
            (Some(passed), _) => passed,
            (None, Some(wanted)) => TcpListener::bind(wanted).await.with_context(|| {
                format!(
                    "cannot listen on {wanted}{}: choose another address as `console.apps_listen`",
                    runtime::used_by(wanted)
                )
            })?,
            // The next port after the gateway's would be in the way of a second gateway.
            (None, None) => TcpListener::bind((gateway.ip(), 0))
                .await
                .with_context(|| format!("cannot listen on a port of {}", gateway.ip()))?,
        };
        let address = listener.local_addr()?;
        let origin = match &console.apps_url {
            Some(url) => url.clone(),
            None if address.ip().is_loopback() => format!("http://{address}"),
            None => return Ok(None),
        };
        ensure!(
            !bases
                .iter()
                .any(|base| model::origin_and_prefix(base).0 == origin),
            "`console.apps_url` is {origin}, which is the console's own address: Apps need another host or port"
        );
        Ok(Some(Self { listener, origin }))
    }

    pub fn origin(&self) -> &str {
        &self.origin
    }

    pub fn listener(&self) -> &TcpListener {
        &self.listener
    }

    /// Serves the sandbox's files until the future is dropped.
    pub async fn serve(self) {
        let connections = TaskTracker::new();
        let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok(seat) = room.clone().acquire_owned().await else {
                return;
            };
            match self.listener.accept().await {
                Ok((socket, _)) => {
                    connections.spawn(async move {
                        let _seat = seat;
                        let answer = service_fn(|request| async move { answer(&request) });
                        let mut http = http1::Builder::new();
                        http.header_read_timeout(None).keep_alive(false);
                        let serving = http.serve_connection(TokioIo::new(socket), answer);
                        // Broken or slow connections are ignored.
                        let _ = timeout(CONNECTION_TIMEOUT, serving).await;
                    });
                }
                Err(error) => {
                    tracing::warn!("cannot accept a connection for an App: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

fn answer(request: &Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let uri = request.uri();
    let (kind, text, policy) = match uri.path() {
        "/" => ("text/html; charset=utf-8", PAGE, policy(uri)),
        "/proxy.js" => (
            "text/javascript; charset=utf-8",
            SCRIPT,
            Some("default-src 'none'".to_owned()),
        ),
        _ => ("text/plain", "", None),
    };
    let mut response = Response::new(Full::from(text));
    let Some(policy) = policy.and_then(|policy| policy.parse().ok()) else {
        *response.body_mut() = Full::default();
        *response.status_mut() = StatusCode::NOT_FOUND;
        return Ok(response);
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    let all: [(HeaderName, &'static str); 6] = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("x-dns-prefetch-control"), "off"),
        // Requests a separate process, where the browser supports it, so that an endless loop in an App does not block
        // the console.
        (HeaderName::from_static("origin-agent-cluster"), "?1"),
    ];
    for (name, value) in all {
        headers.insert(name, value.parse().expect("a text of this file"));
    }
    Ok(response)
}

/// The declaration of an App (`_meta.ui.csp`).
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Declared {
    connect_domains: Vec<String>,
    resource_domains: Vec<String>,
    frame_domains: Vec<String>,
    base_uri_domains: Vec<String>,
}

/// The content security policy of the sandbox page and of the App in it. `None`: the query has no valid `host`, the
/// origin of the page that embeds the sandbox.
fn policy(uri: &Uri) -> Option<String> {
    let (mut host, mut declared) = (None, Declared::default());
    for (key, value) in url::form_urlencoded::parse(uri.query()?.as_bytes()) {
        match key.as_ref() {
            "host" => host = Url::parse(&value).ok(),
            "csp" => declared = serde_json::from_str(&value).unwrap_or_default(),
            _ => {}
        }
    }
    let host = host?.origin();
    let host = host.is_tuple().then(|| host.ascii_serialization())?;
    let resources = sources(&declared.resource_domains);
    let or_none = |domains: &[String]| match sources(domains) {
        all if all.is_empty() => " 'none'".to_owned(),
        all => all,
    };
    Some(format!(
        "default-src 'none'; script-src 'self' 'unsafe-inline'{resources}; style-src 'unsafe-inline'{resources}; \
         img-src data: blob:{resources}; media-src data: blob:{resources}; font-src data:{resources}; \
         connect-src{}; frame-src{}; base-uri{}; form-action 'none'; frame-ancestors {host}",
        or_none(&declared.connect_domains),
        or_none(&declared.frame_domains),
        or_none(&declared.base_uri_domains),
    ))
}

/// Returns the sources of these domains, each preceded by a space.
fn sources(domains: &[String]) -> String {
    let domains = domains.iter().take(MAX_DOMAINS);
    let sources = domains.filter_map(|domain| source(domain));
    sources.map(|source| format!(" {source}")).collect()
}

/// An origin in the syntax of policies: `https://api.example.com`, `https://*.example.com`. `None` for addresses of
/// this machine or its network.
fn source(domain: &str) -> Option<String> {
    let (scheme, rest) = domain.split_once("://")?;
    let (wildcard, rest) = match rest.strip_prefix("*.") {
        Some(rest) => ("*.", rest),
        None => ("", rest),
    };
    let url = Url::parse(&format!("{scheme}://{rest}")).ok()?;
    let is_bare = url.path() == "/"
        && url.query().is_none()
        && url.fragment().is_none()
        && url.username().is_empty()
        && url.password().is_none();
    let is_elsewhere = match url.host()? {
        Host::Domain(name) => is_name(name.trim_end_matches('.')),
        Host::Ipv4(ip) => wildcard.is_empty() && model::is_public(IpAddr::V4(ip)),
        Host::Ipv6(ip) => wildcard.is_empty() && model::is_public(IpAddr::V6(ip)),
    };
    let is_web = matches!(url.scheme(), "https" | "http" | "wss" | "ws");
    (is_web && is_bare && is_elsewhere).then(|| {
        let port = url.port().map(|port| format!(":{port}"));
        let host = url.host_str().unwrap_or_default();
        format!(
            "{}://{wildcard}{host}{}",
            url.scheme(),
            port.unwrap_or_default()
        )
    })
}

/// Returns true for a domain name that does not belong to this machine or its network.
fn is_name(name: &str) -> bool {
    let of = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    name.contains('.')
        && name.bytes().all(of)
        && ![".localhost", ".local", ".internal"]
            .iter()
            .any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(csp: &str) -> Option<String> {
        let query: String = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("host", "http://127.0.0.1:6280/chat")
            .append_pair("csp", csp)
            .finish();
        policy(&format!("/?{query}").parse().expect("an address"))
    }

    #[test]
    fn an_app_reaches_what_it_declares_and_nothing_else() {
        let bare = of("{}").expect("a policy");
        for part in [
            "default-src 'none';",
            "script-src 'self' 'unsafe-inline';",
            "connect-src 'none';",
            "frame-src 'none';",
            "base-uri 'none';",
            "frame-ancestors http://127.0.0.1:6280",
        ] {
            assert!(bare.contains(part), "{part}: {bare}");
        }
        assert_eq!(of("[]"), Some(bare.clone()), "what is no declaration");
        let declared = of(
            r#"{"connectDomains":["https://api.example.com","wss://x.example.com:8443/"],
                "resourceDomains":["https://*.cdn.example.com"]}"#,
        )
        .expect("a policy");
        for part in [
            "connect-src https://api.example.com wss://x.example.com:8443;",
            "script-src 'self' 'unsafe-inline' https://*.cdn.example.com;",
            "font-src data: https://*.cdn.example.com;",
        ] {
            assert!(declared.contains(part), "{part}: {declared}");
        }
    }

    #[test]
    fn a_declaration_cannot_widen_the_policy() {
        for domain in [
            "*",
            "https:",
            "data:",
            "'unsafe-eval'",
            "https://*",
            "https://a.example.com; script-src *",
            "https://a.example.com 'unsafe-eval'",
            "https://a.example.com/path",
            "https://u:p@a.example.com",
            "ftp://a.example.com",
            "http://localhost:6280",
            "http://127.0.0.1:6280",
            "http://2130706433",
            "http://0x7f.1",
            "http://[::1]",
            "http://*.0.0.1",
            "http://10.0.0.1",
            "http://169.254.169.254",
            "http://printer",
            "http://app.localhost",
        ] {
            assert_eq!(source(domain), None, "{domain}");
        }
    }

    #[test]
    fn the_page_is_for_whoever_asks_and_nobody_else() {
        for uri in ["/", "/?host=", "/?host=*", "/?host=data:x", "/?csp={}"] {
            assert_eq!(
                policy(
                    &uri.replace('{', "%7B")
                        .replace('}', "%7D")
                        .parse()
                        .expect("an address")
                ),
                None,
                "{uri}"
            );
        }
    }
}
