//! Requests to issuers: fetching documents and posting forms.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
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

/// 32 random bytes as text, for a state, a verifier or an assertion's id.
pub(crate) fn random() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

/// Fetches a JSON document. `None` if the server responds with a 4xx status.
pub(crate) async fn document<T: DeserializeOwned>(
    http: &dyn Http,
    url: &Url,
) -> Result<Option<T>, Error> {
    let request = Request::get(url.as_str()).header(ACCEPT, "application/json");
    let response = send(http, url, request.body(Bytes::new())).await?;
    let status = response.status();
    if status.is_client_error() {
        return Ok(None);
    }
    if status != StatusCode::OK {
        return Err(unreadable(
            url,
            &format!("it answered HTTP {}", status.as_u16()),
        ));
    }
    let read = serde_json::from_slice(response.body());
    read.map(Some).map_err(|_| {
        unreadable(
            url,
            "its response is not the JSON document that is expected there",
        )
    })
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

pub(crate) async fn post_form(
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
    let request = request.map_err(|_| unreadable(url, "its URL cannot be requested"))?;
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
    let mut place = url.clone();
    place.set_query(None);
    let what = format!("{} cannot be used: {why}", excerpt(place.as_str()));
    Error::new(Code::Unreachable, what)
}
