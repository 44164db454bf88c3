//! HTTP requests to issuers: JSON, limited in size and time. Redirects are not followed, since they could lead from a
//! trusted issuer to any address.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

/// Timeout for a whole response, including connecting.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle timeout of pooled connections.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum bytes of a response. A large key set has 20 KiB.
const MAX_RESPONSE_BYTES: usize = 512 << 10;

#[derive(Clone, Debug)]
pub(super) struct Http(Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

/// A form to post. The client's id and secret go into the `Authorization` header, if it has a secret (RFC 6749, 2.3.1).
pub(super) struct Form<'f> {
    pub(super) fields: &'f [(&'f str, &'f str)],
    pub(super) client: Option<(&'f str, &'f str)>,
}

impl Http {
    /// # Errors
    /// If the platform's root certificates cannot be read.
    pub(super) fn new() -> std::io::Result<Self> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        let https = HttpsConnectorBuilder::new()
            .with_native_roots()?
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .build(https);
        Ok(Self(client))
    }

    /// # Errors
    /// Why the request failed, with the address.
    pub(super) async fn get<T: DeserializeOwned>(&self, url: &str) -> Result<T, String> {
        self.ask(url, None).await
    }

    /// # Errors
    /// Why the request failed, with the address but without the posted data.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        url: &str,
        form: &Form<'_>,
    ) -> Result<T, String> {
        self.ask(url, Some(form)).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        url: &str,
        form: Option<&Form<'_>>,
    ) -> Result<T, String> {
        let shown = model::url_for_display(url);
        let answer = timeout(REQUEST_TIMEOUT, self.answer(url, form)).await;
        let body = answer
            .unwrap_or_else(|_| Err(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs())))
            .map_err(|why| format!("{shown}: {why}"))?;
        // The parser's error could quote the response.
        serde_json::from_slice(&body).map_err(|_| {
            format!(
                "{shown}: {} bytes that are not the JSON expected",
                body.len()
            )
        })
    }

    async fn answer(&self, url: &str, form: Option<&Form<'_>>) -> Result<Bytes, String> {
        let mut body = Bytes::new();
        let mut request = Request::builder()
            .uri(url)
            .header(header::ACCEPT, "application/json");
        if let Some(form) = form {
            body = encode(form.fields).into();
            request = request
                .method(Method::POST)
                .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
            if let Some((id, secret)) = form.client {
                request = request.header(header::AUTHORIZATION, basic(id, secret)?);
            }
        }
        let request = request.body(Full::new(body)).map_err(|_| "no URL")?;
        let response = self.0.request(request).await;
        let response = response.map_err(|error| model::with_causes(&error))?;
        let status = response.status();
        if !status.is_success() {
            return Err(format!("it answered {status}"));
        }
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect();
        let body = body.await.map_err(|error| error.to_string())?;
        Ok(body.to_bytes())
    }
}

/// `application/x-www-form-urlencoded`.
pub(super) fn encode(fields: &[(&str, &str)]) -> String {
    let mut form = url::form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(fields).finish()
}

fn basic(id: &str, secret: &str) -> Result<HeaderValue, String> {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let encoded = |text: &str| {
        let bytes = url::form_urlencoded::byte_serialize(text.as_bytes());
        bytes.collect::<String>()
    };
    let pair = STANDARD.encode(format!("{}:{}", encoded(id), encoded(secret)));
    let value = HeaderValue::try_from(format!("Basic {pair}"));
    let mut value = value.map_err(|_| "the client's name or secret cannot be sent")?;
    value.set_sensitive(true);
    Ok(value)
}
