//! Health warnings of servers, posted to a URL that an administrator named (H10, H15).
//!
//! One at a time and in order, each tried three times. Bounded: who is slower than the warnings misses some, and that
//! is logged. Deliberately absent: following redirects.

use std::time::Duration;

use engine::{Gateway, Warning};
use http_body_util::Full;
use hyper::{Request, body::Bytes, header};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;

const ATTEMPTS: u32 = 3;
const ANSWER: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_secs(2);

type Http = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Posts warnings for ever, where the settings say so.
pub(crate) async fn run(gateway: &Gateway) {
    let mut warnings = gateway.warnings();
    let mut http = None;
    loop {
        let warning = match warnings.recv().await {
            Ok(warning) => warning,
            Err(RecvError::Lagged(count)) => {
                tracing::warn!(
                    count,
                    "health warnings came faster than the webhook takes them"
                );
                continue;
            }
            Err(RecvError::Closed) => return std::future::pending().await,
        };
        let Some(url) = gateway.settings().hosting.webhook.clone() else {
            continue;
        };
        if http.is_none() {
            http = client();
        }
        if let Some(http) = &http {
            post(http, &url, &warning).await;
        }
    }
}

fn client() -> Option<Http> {
    let builder = match HttpsConnectorBuilder::new().with_native_roots() {
        Ok(builder) => builder,
        Err(error) => {
            tracing::warn!("no webhook: the platform's root certificates cannot be read: {error}");
            return None;
        }
    };
    let connector = builder.https_or_http().enable_http1().build();
    Some(Client::builder(TokioExecutor::new()).build(connector))
}

async fn post(http: &Http, url: &str, warning: &Warning) {
    let body = json!({
        "type": "toolwharf.health_warning",
        "server": { "id": warning.id, "name": warning.name.as_str(), "project": warning.project.as_ref().map(|id| id.as_str()) },
        "kind": warning.kind,
        "detail": warning.detail,
    });
    let body = Bytes::from(body.to_string());
    for attempt in 1..=ATTEMPTS {
        let request = Request::post(url)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body.clone()));
        let request = match request {
            Ok(request) => request,
            Err(error) => {
                tracing::warn!(
                    "no webhook: {} is no URL: {error}",
                    model::url_for_display(url)
                );
                return;
            }
        };
        let why = match tokio::time::timeout(ANSWER, http.request(request)).await {
            Ok(Ok(response)) if response.status().is_success() => return,
            Ok(Ok(response)) => format!("it answered {}", response.status()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", ANSWER.as_secs()),
        };
        let url = model::url_for_display(url);
        tracing::warn!(
            attempt,
            "a health warning did not reach the webhook {url}: {why}"
        );
        if attempt < ATTEMPTS {
            tokio::time::sleep(PAUSE * attempt).await;
        }
    }
}
