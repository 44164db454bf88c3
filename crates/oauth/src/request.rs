//! Requests to issuers: fetching documents and posting forms.

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use serde::de::DeserializeOwned;
use url::{Host, Url, form_urlencoded};

use crate::{
    Http,
    error::{Code, Error, excerpt},
};

/// The header for proofs (RFC 9449, 4.1).
const DPOP_HEADER: &str = "dpop";

/// Checks that requests may go to a URL.
///
/// Plain HTTP is allowed for this machine only, because codes and tokens could be read in transit (RFC 9700, 2.6).
pub(crate) fn endpoint(name: &str, url: &str) -> Result<Url, Error> {
    let shown = excerpt(url);
    let parsed = Url::parse(url)
        .map_err(|_| Error::new(Code::Mismatch, format!("the {name} `{shown}` is not a URL")))?;
    match parsed.scheme() {
        "https" => Ok(parsed),
        "http" if is_loopback(&parsed) => Ok(parsed),
        _ => Err(Error::new(
            Code::Mismatch,
            format!("the {name} `{shown}` must begin with https://"),
        )),
    }
}

/// Returns true if a URL leads to this machine.
pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}

/// 32 random bytes as text, for a state, a nonce, a verifier or an assertion's id.
#[must_use]
pub fn random() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

/// Fetches a JSON document. `None` if the server responds with a 4xx status.
///
/// # Errors
/// The response is missing, has another status, or is not the expected JSON.
pub async fn document<T: DeserializeOwned>(http: &dyn Http, url: &Url) -> Result<Option<T>, Error> {
    let request = Request::get(url.as_str()).header(ACCEPT, "application/json");
    let response = send(http, url, request.body(Bytes::new())).await?;
    match response.status().is_client_error() {
        true => Ok(None),
        false => parsed(url, &response).map(Some),
    }
}

/// Reads the JSON of a successful response. The error does not quote it.
///
/// # Errors
/// The status is not 200, or the body is not the expected JSON.
pub fn parsed<T: DeserializeOwned>(url: &Url, response: &Response<Bytes>) -> Result<T, Error> {
    if response.status() != StatusCode::OK {
        let status = response.status().as_u16();
        return Err(unreadable(url, &format!("it answered HTTP {status}")));
    }
    let read = serde_json::from_slice(response.body());
    let why = "its response is not the expected JSON document";
    read.map_err(|_| unreadable(url, why))
}

/// The credentials of a client as a header. Each half is form-encoded first (RFC 6749, 2.3.1).
///
/// # Errors
/// They cannot be sent in a header.
pub fn basic(id: &str, secret: &str) -> Result<HeaderValue, Error> {
    let half = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let pair = STANDARD.encode(format!("{}:{}", half(id), half(secret)));
    let value = HeaderValue::from_str(&format!("Basic {pair}"));
    let mut value = value
        .map_err(|_| Error::new(Code::NoClient, "the client id cannot be sent in a header"))?;
    value.set_sensitive(true);
    Ok(value)
}

pub(crate) async fn post_json(
    http: &dyn Http,
    url: &Url,
    body: &serde_json::Value,
) -> Result<Response<Bytes>, Error> {
    let request = Request::post(url.as_str())
        .header(ACCEPT, "application/json")
        .header(CONTENT_TYPE, "application/json");
    send(http, url, request.body(body.to_string().into())).await
}

/// Posts a form.
///
/// # Errors
/// There is no response.
pub async fn post_form(
    http: &dyn Http,
    url: &Url,
    form: &[(&str, String)],
    authorization: Option<HeaderValue>,
    proof: Option<HeaderValue>,
) -> Result<Response<Bytes>, Error> {
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(url.as_str())
        .header(ACCEPT, "application/json")
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
    if let Some(authorization) = authorization {
        request = request.header(AUTHORIZATION, authorization);
    }
    if let Some(proof) = proof {
        request = request.header(DPOP_HEADER, proof);
    }
    send(http, url, request.body(encoded(form).into())).await
}

fn encoded(form: &[(&str, String)]) -> String {
    let mut text = form_urlencoded::Serializer::new(String::new());
    text.extend_pairs(form).finish()
}

async fn send(
    http: &dyn Http,
    url: &Url,
    request: http::Result<Request<Bytes>>,
) -> Result<Response<Bytes>, Error> {
    let request = request.map_err(|error| unreadable(url, &format!("invalid request: {error}")))?;
    let answer = http.send(request).await;
    answer.map_err(|why| unreadable(url, &why))
}

/// The error code of a failed response, and a text that describes the failure.
pub(crate) fn refusal(response: &Response<Bytes>) -> (Option<String>, String) {
    #[derive(serde::Deserialize)]
    struct Refusal {
        pub error: String,
        error_description: Option<String>,
    }
    match serde_json::from_slice::<Refusal>(response.body()) {
        Ok(refusal) => {
            let said = match &refusal.error_description {
                Some(why) => format!("{}: {}", excerpt(&refusal.error), excerpt(why)),
                None => excerpt(&refusal.error),
            };
            (Some(refusal.error), said)
        }
        Err(_) => (None, format!("HTTP {}", response.status().as_u16())),
    }
}

pub(crate) fn unreadable(url: &Url, why: &str) -> Error {
    let place = excerpt(&model::url_for_display(url.as_str()));
    let what = format!("{place} cannot be used: {why}");
    Error::new(Code::Unreachable, what)
}
