//! E2B's REST API: requests with deadlines, and its errors.
//!
//! According to its OpenAPI document: `X-API-Key`, JSON, errors as `{"code": 404, "message": "…"}`. Redirects are not
//! followed, because the key would be sent along.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http_client::{Client, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use model::Hidden;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::Options;
use crate::common::is_word;
use runtime::unit::Error;

pub(super) const LABEL_INSTALL: &str = "toolwharf-install";
pub(super) const LABEL_RUN: &str = "toolwharf-run";
pub(super) const LABEL_HOSTING: &str = "toolwharf-hosting";

/// Timeout of requests that E2B answers from memory.
const READ_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout for creating a sandbox. E2B promises one second, but may have to fetch the template.
const CREATE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of a response in bytes.
const MAX_RESPONSE_BYTES: usize = 4 << 20;
/// Maximum length of an E2B error message, in characters. Longer ones are cut.
const MAX_ERROR_CHARS: usize = 500;
/// Sandboxes per page (the API's maximum), and maximum number of pages.
const PAGE_SIZE: usize = 100;
const MAX_PAGES: usize = 100;

pub(super) struct Api {
    /// Uses HTTP/1.1, which gives each stream its own connection, so that an unread stream does not block others.
    http: Client,
    url: String,
    sandbox_url: Option<String>,
    /// The default domain of sandboxes, used if the API does not name one.
    domain: String,
    key: Hidden,
    header: HeaderValue,
}

/// A created sandbox.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Made {
    #[serde(rename = "sandboxID")]
    pub id: String,
    #[serde(default)]
    pub(super) envd_version: String,
    #[serde(default)]
    pub(super) envd_access_token: Option<String>,
    #[serde(default)]
    pub(super) domain: Option<String>,
}

/// The state of a sandbox.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Detail {
    pub(super) cpu_count: u32,
    #[serde(rename = "memoryMB")]
    pub(super) memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    pub(super) disk_size_mb: u64,
    /// Older versions of the API do not report this.
    #[serde(default)]
    pub(super) allow_internet_access: Option<bool>,
}

#[derive(Deserialize)]
pub(super) struct Listed {
    #[serde(rename = "sandboxID")]
    pub(super) id: String,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
}

impl Listed {
    pub(super) fn label(&self, name: &str) -> Option<&str> {
        self.metadata.as_ref()?.get(name).map(String::as_str)
    }
}

/// The request for a sandbox.
#[derive(Serialize)]
pub(super) struct New<'a> {
    #[serde(rename = "templateID")]
    pub(super) template: &'a str,
    /// The lease in seconds.
    pub(super) timeout: u64,
    /// Makes `envd` require a token, which is in the response.
    pub(super) secure: bool,
    pub(super) allow_internet_access: bool,
    pub(super) metadata: BTreeMap<&'a str, &'a str>,
}

/// Why a call failed.
#[derive(Debug)]
pub(super) enum Call {
    /// E2B's response, with its HTTP status.
    Answer(u16, String),
    Other(Error),
}

impl From<Call> for Error {
    fn from(call: Call) -> Self {
        match call {
            Call::Answer(401 | 403, why) => Self::Unavailable(format!(
                "E2B rejected the key: {why}; check `[hosting] e2b_api_key`"
            )),
            Call::Answer(status, why) => Self::Failed(format!("E2B says: {why} (status {status})")),
            Call::Other(error) => error,
        }
    }
}

impl Api {
    pub(super) fn new(options: &Options) -> Result<Self, Error> {
        let refused = |field, why: String| Error::Refused { field, why };
        let url = base(&options.url).ok_or_else(|| {
            refused(
                "e2b_url",
                format!("`{}` is not an http(s) URL", options.url.escape_debug()),
            )
        })?;
        let sandbox_url = match &options.sandbox_url {
            Some(text) => Some(base(text).ok_or_else(|| {
                refused(
                    "e2b_sandbox_url",
                    format!("`{}` is not an http(s) URL", text.escape_debug()),
                )
            })?),
            None => None,
        };
        let key = options.key.clone();
        let mut header = HeaderValue::from_str(key.reveal())
            .ok()
            .filter(|value| !value.is_empty())
            .ok_or_else(|| {
                refused(
                    "e2b_api_key",
                    "the key is empty or has characters that a header cannot contain".to_owned(),
                )
            })?;
        header.set_sensitive(true);
        let host = url.split_once("://").map_or("", |(_, host)| host);
        let host = host.split(['/', ':']).next().unwrap_or_default();
        Ok(Self {
            http: Client::default(),
            domain: host.strip_prefix("api.").unwrap_or(host).to_owned(),
            url,
            sandbox_url,
            key,
            header,
        })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The URL of a sandbox's `envd`.
    pub(super) fn envd(&self, made: &Made, port: u16) -> String {
        match &self.sandbox_url {
            Some(url) => url.clone(),
            None => {
                let domain = made.domain.as_deref().filter(|domain| is_domain(domain));
                let domain = domain.unwrap_or(&self.domain);
                format!("https://{port}-{}.{domain}", made.id)
            }
        }
    }

    /// Removes the key from a text, because the key must not appear in errors.
    pub(super) fn blot(&self, text: &str) -> String {
        let text: String = self.key.blot(text).chars().take(MAX_ERROR_CHARS).collect();
        text.escape_debug().to_string()
    }

    pub(super) async fn make(&self, new: &New<'_>) -> Result<Made, Call> {
        let body = serde_json::to_value(new).unwrap_or_default();
        let made: Made = self
            .parsed(
                "create a sandbox",
                CREATE_TIMEOUT,
                Method::POST,
                "/sandboxes",
                Some(body),
            )
            .await?;
        match is_id(&made.id) {
            true => Ok(made),
            false => Err(failed(format!(
                "E2B returned the invalid sandbox id `{}`",
                self.blot(&made.id)
            ))),
        }
    }

    /// `None`: the sandbox does not exist.
    pub(super) async fn get(&self, id: &str) -> Result<Option<Detail>, Call> {
        let path = format!("/sandboxes/{id}");
        found(
            self.parsed("read a sandbox", READ_TIMEOUT, Method::GET, &path, None)
                .await,
        )
    }

    /// Kills a sandbox. Returns whether it existed.
    pub(super) async fn kill(&self, id: &str) -> Result<bool, Call> {
        let path = format!("/sandboxes/{id}");
        let killed = self
            .call("kill a sandbox", READ_TIMEOUT, Method::DELETE, &path, None)
            .await;
        Ok(found(killed)?.is_some())
    }

    /// Renews the lease of a sandbox. Returns whether it exists.
    pub(super) async fn renew(&self, id: &str, lease: Duration) -> Result<bool, Call> {
        let path = format!("/sandboxes/{id}/timeout");
        let body = json!({ "timeout": lease.as_secs() });
        let renewed = self
            .call(
                "renew a sandbox's lease",
                READ_TIMEOUT,
                Method::POST,
                &path,
                Some(body),
            )
            .await;
        Ok(found(renewed)?.is_some())
    }

    /// Returns all sandboxes with these labels, including paused ones. Labels consist of letters, digits, `-` and `_`.
    pub(super) async fn list(&self, labels: &[(&str, &str)]) -> Result<Vec<Listed>, Call> {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}%3D{value}"))
            .collect();
        let query = format!(
            "/v2/sandboxes?metadata={}&state=running,paused&limit={PAGE_SIZE}",
            labels.join("%26")
        );
        let mut all = Vec::new();
        let mut next: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let path = match &next {
                Some(token) => format!("{query}&nextToken={token}"),
                None => query.clone(),
            };
            let (headers, body) = self
                .call("list sandboxes", READ_TIMEOUT, Method::GET, &path, None)
                .await?;
            let page: Vec<Listed> = self.parse(&body)?;
            all.extend(page.into_iter().filter(|listed| is_id(&listed.id)));
            let token = headers
                .get("x-next-token")
                .and_then(|token| token.to_str().ok());
            // The token is inserted into the URL without encoding.
            next = token
                .filter(|token| !token.is_empty() && token.bytes().all(is_word))
                .map(str::to_owned);
            if next.is_none() {
                return Ok(all);
            }
        }
        Err(failed(format!(
            "E2B lists more than {MAX_PAGES} pages of sandboxes; remove unused ones"
        )))
    }

    async fn parsed<T: for<'a> Deserialize<'a>>(
        &self,
        what: &'static str,
        limit: Duration,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<T, Call> {
        let (_, body) = self.call(what, limit, method, path, body).await?;
        self.parse(&body)
    }

    fn parse<T: for<'a> Deserialize<'a>>(&self, body: &[u8]) -> Result<T, Call> {
        serde_json::from_slice(body)
            .map_err(|error| failed(format!("cannot parse the response of E2B: {error}")))
    }

    /// Sends one request to the REST API.
    async fn call(
        &self,
        what: &'static str,
        limit: Duration,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<(HeaderMap, Bytes), Call> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("x-api-key", self.header.clone());
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let request = request
            .body(body)
            .map_err(|error| failed(format!("cannot {what}: {error}")))?;
        let answer = async {
            let response = self.send(what, request).await?;
            let (head, body) = response.into_parts();
            let body = self.read(what, body).await?;
            Ok((head.status, head.headers, body))
        };
        let (status, headers, body) = late(what, limit, answer).await?;
        match status.is_success() {
            true => Ok((headers, body)),
            false => Err(self.refusal(status, &body)),
        }
    }

    /// Sends a request to the API or to `envd`. Returns the head of the response.
    pub(super) async fn send(
        &self,
        what: &str,
        request: Request<Bytes>,
    ) -> Result<Response<Incoming>, Call> {
        let response = self.http.send(request).await;
        response.map_err(|error| {
            failed(format!(
                "cannot {what}: {}",
                self.blot(&model::with_causes(&error))
            ))
        })
    }

    pub(super) async fn read(&self, what: &str, body: Incoming) -> Result<Bytes, Call> {
        let read = http_client::collect(body, MAX_RESPONSE_BYTES).await;
        read.map_err(|why| failed(format!("cannot {what}: {why}")))
    }

    /// Parses the error in a response.
    pub(super) fn refusal(&self, status: StatusCode, body: &[u8]) -> Call {
        #[derive(Deserialize)]
        struct Words {
            message: String,
        }
        let text = match serde_json::from_slice(body) {
            Ok(Words { message }) => message,
            Err(_) => String::from_utf8_lossy(body).trim().to_owned(),
        };
        let text = match text.is_empty() {
            true => status.canonical_reason().unwrap_or("nothing").to_owned(),
            false => text,
        };
        Call::Answer(status.as_u16(), self.blot(&text))
    }
}

/// Adds a deadline to a request.
pub(super) async fn late<T>(
    what: &'static str,
    within: Duration,
    answer: impl Future<Output = Result<T, Call>>,
) -> Result<T, Call> {
    match timeout(within, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(Call::Other(Error::Timeout { what, within })),
    }
}

fn failed(why: String) -> Call {
    Call::Other(Error::Failed(why))
}

/// Turns "not found" into `None`.
fn found<T>(result: Result<T, Call>) -> Result<Option<T>, Call> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Call::Answer(404, _)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns a base URL without trailing slashes. `None` if it has a query or a user, has no host, or is not `http` or
/// `https`.
fn base(text: &str) -> Option<String> {
    let text = text.trim_end_matches('/');
    let uri: Uri = text.parse().ok()?;
    let fits = matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.host().is_some_and(|host| !host.is_empty())
        && uri.query().is_none()
        && !uri.authority()?.as_str().contains('@');
    fits.then(|| text.to_owned())
}

/// Returns whether a text is a valid id. Ids become parts of URLs.
fn is_id(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(is_word)
}

fn is_domain(text: &str) -> bool {
    let label = |label: &str| !label.is_empty() && label.bytes().all(is_word);
    text.len() <= 200 && text.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(url: &str, sandbox_url: Option<&str>) -> Result<Api, Error> {
        Api::new(&Options {
            url: url.into(),
            sandbox_url: sandbox_url.map(str::to_owned),
            key: Hidden::new("e2b_0123"),
            install: "i".into(),
            run: "r".into(),
            lease: Options::LEASE,
        })
    }

    #[test]
    fn a_sandbox_is_at_a_name_of_its_own_unless_told_otherwise() {
        let made = |domain: Option<&str>| Made {
            id: "ix7".into(),
            envd_version: String::new(),
            envd_access_token: None,
            domain: domain.map(str::to_owned),
        };
        for (url, sandbox_url, domain, expected) in [
            (Options::URL, None, None, "https://49983-ix7.e2b.app"),
            (
                Options::URL,
                None,
                Some("b.e2b.dev"),
                "https://49983-ix7.b.e2b.dev",
            ),
            (Options::URL, None, Some("x/y"), "https://49983-ix7.e2b.app"),
            (
                "https://api.corp.example:8443/",
                None,
                None,
                "https://49983-ix7.corp.example",
            ),
            (
                Options::URL,
                Some("http://127.0.0.1:9/"),
                None,
                "http://127.0.0.1:9",
            ),
        ] {
            let api = api(url, sandbox_url).unwrap();
            assert_eq!(api.envd(&made(domain), 49983), expected);
        }
        for wrong in [
            "",
            "api.e2b.app",
            "ftp://x",
            "https://a@b",
            "https://x?y",
            "https://",
        ] {
            assert!(api(wrong, None).is_err(), "{wrong}");
            assert!(api(Options::URL, Some(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_key_is_not_repeated() {
        let api = api(Options::URL, None).unwrap();
        let body = br#"{"code": 401, "message": "e2b_0123 is unknown\n"}"#;
        let error = Error::from(api.refusal(StatusCode::UNAUTHORIZED, body));
        let text = error.to_string();
        assert!(
            text.contains("… is unknown\\n") && text.contains("e2b_api_key"),
            "{text}"
        );
        assert!(!format!("{error:?}").contains("0123"));
        let body = br#"<html>e2b_0123"#;
        let Call::Answer(500, text) = api.refusal(StatusCode::INTERNAL_SERVER_ERROR, body) else {
            panic!("no answer");
        };
        assert_eq!(text, "<html>…");
        assert!(!format!("{:?}", api.header).contains("0123"));
    }
}
