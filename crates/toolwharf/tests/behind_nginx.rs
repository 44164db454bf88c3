//! The example `deploy/nginx/toolwharf.conf` with a real nginx: TLS, a path prefix, and a gateway that knows its address
//! only from the headers of this proxy.

mod common;

use std::net::SocketAddr;

use bytes::Bytes;
use common::{Gateway, SETTINGS, Setup, checks, nginx::Nginx, replicas::Balancer};
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, StatusCode, body::Incoming, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use testkit::{DEADLINE, PrivateCa, within};
use tokio::task::JoinSet;

const EXAMPLE: &str = include_str!("../../../deploy/nginx/toolwharf.conf");
const NAME: &str = "tools.example.com";

/// The example, in front of a gateway.
struct Site {
    authority: PrivateCa,
    address: SocketAddr,
    /// The address for browsers, without a path.
    origin: String,
    token: String,
    connections: JoinSet<()>,
    _nginx: Nginx,
}

impl Site {
    async fn before(gateway: &Gateway) -> Self {
        let authority = PrivateCa::new(&[NAME]);
        let address = Balancer::free();
        let server = gateway.url.strip_prefix("http://").expect("plain HTTP");
        let certificates = format!("{}/", authority.folder().display());
        let mut lines = EXAMPLE.to_owned();
        for (usual, here) in [
            ("listen 443 ssl", format!("listen {address} ssl")),
            ("127.0.0.1:6280", server.to_owned()),
            ("/etc/nginx/tls/", certificates),
        ] {
            assert!(lines.contains(usual), "{usual}");
            lines = lines.replace(usual, &here);
        }
        Self {
            _nginx: Nginx::start(&lines, address).await,
            authority,
            address,
            origin: format!("https://{NAME}:{}", address.port()),
            token: gateway.token(),
            connections: JoinSet::new(),
        }
    }

    /// Sends a request with these headers. A request with a body is a `POST`.
    async fn send(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response<Incoming> {
        let connecting = self.authority.connect(self.address, NAME);
        let stream = within("a handshake", DEADLINE, connecting).await;
        let io = TokioIo::new(stream.expect("the certificate of the example"));
        let (mut sender, connection) = http1::handshake(io).await.expect("connected");
        self.connections.spawn(async move {
            // Errors show in the response.
            let _ = connection.await;
        });
        let method = if body.is_empty() { "GET" } else { "POST" };
        let host = format!("{NAME}:{}", self.address.port());
        let mut request = Request::builder().method(method).uri(path);
        request = request.header(header::HOST, host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
        let sending = sender.send_request(request.body(body).expect("a request"));
        let sent = within("a response", DEADLINE, sending).await;
        sent.expect("a response")
    }

    /// Like [`Self::send`], with the administrator's key.
    async fn as_admin(&mut self, path: &str, body: &str) -> Response<Incoming> {
        let bearer = format!("Bearer {}", self.token);
        let headers = [
            ("authorization", bearer.as_str()),
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
        ];
        self.send(path, &headers, body).await
    }
}

async fn text(response: Response<Incoming>) -> String {
    let reading = within("a body", DEADLINE, response.into_body().collect());
    let body = reading.await.expect("a body").to_bytes();
    String::from_utf8(body.to_vec()).expect("UTF-8")
}

/// Reads a stream up to this text, and returns what arrived.
async fn read_to(stream: &mut Incoming, end: &str) -> String {
    let mut text = String::new();
    while !text.contains(end) {
        let frame = within(end, DEADLINE, stream.frame()).await;
        let frame = frame.expect("an open stream").expect("no error");
        if let Ok(data) = frame.into_data() {
            text.push_str(std::str::from_utf8(&data).expect("UTF-8"));
        }
    }
    text
}

/// The text between two others.
fn between<'t>(text: &'t str, before: &str, after: &str) -> &'t str {
    let found = text.split_once(before);
    let (_, rest) = found.unwrap_or_else(|| panic!("{before:?} is not in {text}"));
    rest.split_once(after).map_or(rest, |(found, _)| found)
}

fn initialize() -> String {
    let info = json!({ "name": "t", "version": "1" });
    let params = json!({ "protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": info });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params }).to_string()
}

async fn gateway(settings: &str) -> Gateway {
    let settings = format!(
        "trusted_proxies = [\"127.0.0.1\"]\nallowed_hosts = [\"{NAME}\"]\n{settings}{SETTINGS}"
    );
    Setup::new().settings(&settings).serve().await
}

#[tokio::test]
async fn events_arrive_at_once() {
    let gateway = gateway("").await;
    let mut site = Site::before(&gateway).await;
    // Without a proxy, a client on this machine needs no key.
    assert_eq!(gateway.client().post(initialize()).await.status, 200);
    let refused = site.send("/tools/mcp", &[], &initialize()).await;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);

    let stream = site.as_admin("/tools/sse", "").await;
    assert_eq!(stream.status(), StatusCode::OK);
    let mut stream = stream.into_body();
    let opening = read_to(&mut stream, "\n\n").await;
    let endpoint = between(&opening, "data: ", "\n");
    assert!(endpoint.starts_with("/tools/message?"), "{opening}");
    let accepted = site.as_admin(endpoint, &initialize()).await;
    assert_eq!(accepted.status(), StatusCode::ACCEPTED);
    read_to(&mut stream, "protocolVersion").await;
}

#[tokio::test]
async fn a_browser_signs_in_below_the_path() {
    let gateway = gateway("").await;
    let mut site = Site::before(&gateway).await;
    let origin = site.origin.clone();
    let link = site.as_admin("/tools/api/v1/browser-links", "{}").await;
    let link: Value = serde_json::from_str(&text(link).await).expect("JSON");
    let link = link["url"].as_str().expect("a link");
    let (page, secret) = link.split_once('#').expect("a secret");
    assert_eq!(page, format!("{origin}/tools/sign-in"));
    let html = site.send("/tools/sign-in", &[], "").await;
    let html = text(html).await;
    let form = between(&html, "name=\"form\" value=\"", "\"");

    let headers = [
        ("origin", origin.as_str()),
        ("content-type", "application/x-www-form-urlencoded"),
    ];
    let entered = format!("form={form}&link={secret}");
    let opened = site.send("/tools/sign-in", &headers, &entered).await;
    assert_eq!(opened.status(), StatusCode::OK);
    let cookie = opened.headers()[header::SET_COOKIE].to_str();
    let cookie = cookie.expect("a cookie").to_owned();
    assert!(cookie.starts_with("__Host-toolwharf-tools="), "{cookie}");
    checks::contains(&cookie, &["; Path=/;", "; Secure"]);
    let session: Value = serde_json::from_str(&text(opened).await).expect("JSON");
    let session = session["session"].as_str().expect("a page secret");
    let pair = cookie.split(';').next().unwrap_or_default();
    let headers = [("cookie", pair), ("toolwharf-session", session)];
    let status = site.send("/tools/api/v1/status", &headers, "").await;
    assert_eq!(status.status(), StatusCode::OK);
}

#[tokio::test]
async fn metadata_names_the_address_that_the_client_used() {
    let issuer =
        "[auth.oidc.corp]\nissuer = \"https://login.example\"\naccess = [{ role = \"read\" }]\n";
    let gateway = gateway(issuer).await;
    let mut site = Site::before(&gateway).await;
    let origin = site.origin.clone();
    let refused = site.send("/tools/mcp/ml", &[], &initialize()).await;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    let challenge = refused.headers()[header::WWW_AUTHENTICATE].to_str();
    let challenge = challenge.expect("text");
    let named = between(challenge, "resource_metadata=\"", "\"").to_owned();
    let place = "/.well-known/oauth-protected-resource";
    assert_eq!(named, format!("{origin}/tools{place}/mcp/ml"));
    let below = named.strip_prefix(&origin).expect("the same origin");
    for path in [below, &format!("{place}/tools/mcp/ml")] {
        let document = text(site.send(path, &[], "").await).await;
        let document: Value = serde_json::from_str(&document).expect("JSON");
        assert_eq!(document["resource"], format!("{origin}/tools/mcp/ml"));
    }
    // Not even a proxy can name a host that the settings do not allow.
    let forged = gateway.at("/mcp").with("forwarded", "host=evil.example");
    assert_eq!(forged.post(initialize()).await.status, 403);
}
