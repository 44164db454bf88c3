//! The client of the REST API: one connection per request.
//!
//! A gateway on this machine that has a certificate publishes its digest in the data directory. Only that certificate is
//! accepted. The certificates of other gateways must be from an authority that this machine trusts.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use api::Problem;
use api::Wrong;
use bytes::Bytes;
use http_body_util::BodyExt;
use http_client::{Client, Incoming, Options, Pin, Proxies, cause, collect};
use hyper::{Method, Request, StatusCode, header};
use mcp::sse::{Event, Parser};
use model::ProjectId;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;

/// Default timeout. The gateway may have to wait for servers and for a file lock.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_RESPONSE_BYTES: usize = 64 << 20;
/// Maximum size of an event, in bytes. An event may contain a server's response to a call.
const MAX_EVENT_BYTES: usize = 256 << 20;

/// The REST API of a gateway.
#[derive(Clone)]
pub(super) struct Api {
    client: Client,
    /// `http://host:port` or `https://host:port`, with the path of the gateway if it has one.
    pub(super) url: String,
    pub(super) token: Option<String>,
    /// The source of the token, for errors.
    pub(super) token_source: Option<String>,
    /// Timeout of a request.
    patience: Duration,
}

/// An error response of the gateway.
#[derive(Debug, thiserror::Error)]
#[error("{detail}")]
pub(super) struct Refused {
    pub(super) status: u16,
    pub(super) detail: String,
    /// Errors in the request body, with their locations.
    pub(super) wrong: Vec<Wrong>,
}

/// A response whose body has not been read yet.
pub(super) struct Answer {
    body: Incoming,
    events: Parser,
}

impl Answer {
    /// Returns the next event of a stream. `None` when the stream has ended or was cut off.
    ///
    /// # Errors
    /// Nothing arrived for `silence`, or the data is not an event.
    pub(super) async fn event(&mut self, silence: Duration) -> anyhow::Result<Option<Event>> {
        loop {
            if let Some(event) = self.events.next_event()? {
                return Ok(Some(event));
            }
            let frame = timeout(silence, self.body.frame()).await;
            let frame = frame
                .with_context(|| format!("the gateway sent no data for {} s", silence.as_secs()))?;
            let Some(Ok(frame)) = frame else {
                return Ok(None);
            };
            if let Ok(chunk) = frame.into_data() {
                self.events.push(chunk);
            }
        }
    }
}

impl Api {
    /// `pin`: the certificate of the gateway, if it is known.
    ///
    /// # Errors
    /// The URL is not valid for a gateway.
    pub(super) fn new(url: &str, pin: Option<Pin>) -> anyhow::Result<Self> {
        if !url.contains("://") && !url.starts_with("http:") {
            bail!(
                "`{}` does not begin with http:// or https://; write a URL such as http://127.0.0.1:6280 (--url or TOOLWHARF_URL)",
                model::url_for_display(url)
            );
        }
        let parsed = url::Url::parse(url).with_context(|| {
            let shown = model::url_for_display(url);
            format!("`{shown}` is not a URL like http://127.0.0.1:6280 (--url or TOOLWHARF_URL)")
        })?;
        let scheme = parsed.scheme();
        if !matches!(scheme, "http" | "https") {
            bail!(
                "`{}` begins with {scheme}://: use http:// or https://",
                model::url_for_display(url)
            );
        }
        let host = parsed
            .host_str()
            .with_context(|| format!("`{url}` contains no host; write http://HOST:PORT"))?;
        let port = parsed.port_or_known_default().unwrap_or(80);
        Ok(Self {
            url: format!("{scheme}://{host}:{port}{}", prefix(parsed.path())),
            client: Client::new(Options {
                connect_timeout: CONNECT_TIMEOUT,
                max_idle: 0,
                proxies: Proxies::none(),
                pin,
                ..Options::default()
            }),
            token: None,
            token_source: None,
            patience: DEFAULT_TIMEOUT,
        })
    }

    /// The host and the port.
    pub(super) fn authority(&self) -> &str {
        let rest = self.url.split_once("://").map_or("", |(_, rest)| rest);
        rest.split('/').next().unwrap_or_default()
    }

    pub(super) fn patient(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.ask(Method::GET, path, Bytes::new(), &[]).await
    }

    /// Returns the resource, or `None` if it does not exist.
    pub(super) async fn find<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<Option<T>> {
        match self.get(path).await {
            Ok(found) => Ok(Some(found)),
            Err(error) => match error.downcast_ref::<Refused>() {
                Some(refused) if refused.status == 404 => Ok(None),
                _ => Err(error),
            },
        }
    }

    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        let body = serde_json::to_vec(body)?.into();
        self.ask(Method::POST, path, body, &[]).await
    }

    pub(super) async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        let body = serde_json::to_vec(body)?.into();
        self.ask(Method::PUT, path, body, &[]).await
    }

    pub(super) async fn delete<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.ask(Method::DELETE, path, Bytes::new(), &[]).await
    }

    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        headers: &[(header::HeaderName, &str)],
    ) -> anyhow::Result<T> {
        let answer = timeout(self.patience, async {
            let answer = self.open(method, path, body, headers).await?;
            self.whole(answer.body).await
        });
        let mut text = answer.await.map_err(|_| self.silent())??;
        if text.is_empty() {
            text = Bytes::from_static(b"null");
        }
        serde_json::from_slice(&text).with_context(|| {
            format!(
                "cannot read the response of {}: it is not a Toolwharf gateway (check --url or TOOLWHARF_URL), or it runs \
                 another version",
                self.url
            )
        })
    }

    pub(super) async fn text(&self, path: &str) -> anyhow::Result<String> {
        let answer = timeout(self.patience, async {
            let answer = self.open(Method::GET, path, Bytes::new(), &[]).await?;
            self.whole(answer.body).await
        });
        let text = answer.await.map_err(|_| self.silent())??;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    async fn whole(&self, body: Incoming) -> anyhow::Result<Bytes> {
        let read = collect(body, MAX_RESPONSE_BYTES).await;
        read.map_err(|why| anyhow!("cannot read the response of {}: {why}", self.url))
    }

    fn silent(&self) -> anyhow::Error {
        anyhow!(
            "{} did not respond within {} s; check the log of the gateway, and the address (--url or TOOLWHARF_URL)",
            self.url,
            self.patience.as_secs()
        )
    }

    /// Sends a request. Returns a successful response.
    ///
    /// # Errors
    /// [`Refused`], or a connection error.
    pub(super) async fn open(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        headers: &[(header::HeaderName, &str)],
    ) -> anyhow::Result<Answer> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let is_typed = headers
            .iter()
            .any(|(name, _)| *name == header::CONTENT_TYPE);
        if !body.is_empty() && !is_typed {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(body).map_err(|_| {
            // The path is valid, so the token must be invalid. The error does not quote the token.
            anyhow!(
                "the token{} cannot be sent, because it contains a line break or another invalid character; name a file that \
                 contains only a key with --token-file, or set TOOLWHARF_TOKEN",
                self.of_source()
            )
        })?;
        let response = timeout(self.patience, self.client.send(request))
            .await
            .map_err(|_| self.silent())?
            .map_err(|error| {
                let (url, why) = (&self.url, cause(&error));
                match error.is_connect() {
                    true => anyhow!(
                        "cannot reach the gateway at {url}: {why}; start it with `toolwharf serve`, or correct the address \
                         (--url or TOOLWHARF_URL)"
                    ),
                    false => anyhow!(
                        "the connection to {url} broke: {why}; check that a Toolwharf gateway has this address (--url or \
                         TOOLWHARF_URL)"
                    ),
                }
            })?;
        let (head, body) = response.into_parts();
        if head.status.is_success() {
            return Ok(Answer {
                body,
                events: Parser::new(MAX_EVENT_BYTES),
            });
        }
        let text = timeout(self.patience, self.whole(body))
            .await
            .map_err(|_| self.silent())??;
        Err(self.refusal(head.status, &text).into())
    }

    /// Returns where the token comes from, as the end of a sentence.
    fn of_source(&self) -> String {
        let source = self.token_source.as_deref();
        source.map_or_else(String::new, |source| format!(" in {source}"))
    }

    fn refusal(&self, status: StatusCode, text: &[u8]) -> Refused {
        let mut wrong = Vec::new();
        let detail = match (status, serde_json::from_slice::<Problem>(text)) {
            (StatusCode::UNAUTHORIZED, _) => format!(
                "{} rejected the token{}; pass one of its keys with --token-file or TOOLWHARF_TOKEN \
                 (the administrator's key is in `admin-token` in its data directory)",
                self.url,
                self.of_source()
            ),
            (StatusCode::FORBIDDEN, Ok(problem)) if problem.detail.contains("needs a") => format!(
                "{}, but got the one{}; pass such a key with --token-file or TOOLWHARF_TOKEN",
                problem.detail,
                self.of_source()
            ),
            (_, Ok(problem)) if problem.errors.len() > 1 => {
                wrong = problem.errors;
                let each = wrong.iter();
                let each = each.map(|wrong| format!("\n  {}: {}", wrong.pointer, wrong.detail));
                problem.detail + &each.collect::<String>()
            }
            (_, Ok(problem)) if !problem.detail.is_empty() => {
                wrong = problem.errors;
                problem.detail
            }
            _ => format!(
                "{} responded with HTTP {status}; check that a Toolwharf gateway has this address (--url or TOOLWHARF_URL)",
                self.url
            ),
        };
        Refused {
            status: status.as_u16(),
            detail,
            wrong,
        }
    }
}

/// Returns the part of a URL's path that leads to the gateway: the URL may also name an endpoint of it.
fn prefix(path: &str) -> String {
    let names = path.split('/').skip(1);
    let own = names.take_while(|name| !matches!(*name, "" | "mcp" | "sse" | "api"));
    own.map(|name| format!("/{name}")).collect()
}

/// Returns an API path with percent-encoded segments.
pub(super) fn path(segments: &[&str]) -> String {
    let mut path = "/api/v1".to_owned();
    for segment in segments {
        path.push('/');
        path.push_str(&escaped(segment));
    }
    path
}

/// Returns the query string of the conditions that have a value.
pub(super) fn query(conditions: &[(&str, Option<&str>)]) -> String {
    let mut query = String::new();
    for (key, value) in conditions {
        if let Some(value) = value {
            let sign = if query.is_empty() { '?' } else { '&' };
            query.push_str(&format!("{sign}{key}={}", escaped(value)));
        }
    }
    query
}

/// Returns the query string that names a project.
pub(super) fn of_project(project: Option<&ProjectId>) -> String {
    query(&[("project", project.map(ProjectId::as_str))])
}

/// Percent-encodes everything except letters, digits, `-` and `_`.
pub(super) fn escaped(text: &str) -> String {
    const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// Returns an API path below a server.
pub(super) fn of_server(name: &str, below: &[&str]) -> String {
    path(&[&["mcp", "servers", name], below].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_hold_any_name() {
        assert_eq!(
            path(&["servers", "my server.v2", "tools", "a/b"]),
            "/api/v1/servers/my%20server%2Ev2/tools/a%2Fb"
        );
        assert_eq!(escaped("ü"), "%C3%BC");
    }

    #[test]
    fn urls_of_gateways() {
        let url = |url: &str| Api::new(url, None).map(|api| api.url);
        assert_eq!(
            url("http://localhost:1/mcp").ok().as_deref(),
            Some("http://localhost:1")
        );
        assert_eq!(
            url("http://[::1]:7").ok().as_deref(),
            Some("http://[::1]:7")
        );
        for (path, kept) in [
            ("/", ""),
            ("/mcp/ml", ""),
            ("/api/v1/status", ""),
            ("/tools", "/tools"),
            ("/x/y/", "/x/y"),
            ("/tools/mcp/ml/", "/tools"),
        ] {
            let found = url(&format!("http://h:1{path}"));
            assert_eq!(found.ok(), Some(format!("http://h:1{kept}")), "{path}");
        }
        let api = Api::new("https://h/tools/mcp", None).expect("a URL");
        assert_eq!(
            (api.url.as_str(), api.authority()),
            ("https://h:443/tools", "h:443")
        );
        for bad in ["ftp://h", "localhost:6280", "", "http://"] {
            assert!(url(bad).is_err(), "{bad}");
        }
    }
}
