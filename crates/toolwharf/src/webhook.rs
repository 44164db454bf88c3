//! Posts warnings about servers to a URL configured by an administrator (H10, H15): states that need a person, and
//! health problems. Each warning is posted once, when its cause begins.
//!
//! Warnings are posted one at a time, in order, with three attempts each. The queue is bounded. A webhook that is too
//! slow misses warnings, and the log says so. Deliberately absent: following redirects.

use std::time::Duration;

use engine::{Gateway, Warning};
use http_client::Client;
use hyper::{Request, body::Bytes, header};
use serde_json::json;
use tokio::sync::broadcast::{Receiver, error::RecvError};

const MAX_ATTEMPTS: u32 = 3;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Posts warnings in a loop, if the settings name a webhook.
pub(crate) async fn run(gateway: &Gateway, mut warnings: Receiver<Warning>) {
    let http = Client::default();
    loop {
        let warning = match warnings.recv().await {
            Ok(warning) => warning,
            Err(RecvError::Lagged(count)) => {
                tracing::warn!(
                    count,
                    "the webhook is too slow; health warnings were skipped"
                );
                continue;
            }
            Err(RecvError::Closed) => return std::future::pending().await,
        };
        let Some(url) = gateway.settings().hosting.webhook.clone() else {
            continue;
        };
        post(&http, &url, &warning).await;
    }
}

async fn post(http: &Client, url: &str, warning: &Warning) {
    let body = json!({
        "type": "toolwharf.health_warning",
        "server": { "id": warning.id, "name": warning.name.as_str(), "project": warning.project.as_ref().map(|id| id.as_str()) },
        "kind": warning.kind,
        "detail": warning.detail,
    });
    let body = Bytes::from(body.to_string());
    for attempt in 1..=MAX_ATTEMPTS {
        let request = Request::post(url)
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.clone());
        let request = match request {
            Ok(request) => request,
            Err(error) => {
                tracing::warn!(
                    "cannot send health warnings: `{}` in `[hosting] webhook` is not a URL: {error}",
                    model::url_for_display(url)
                );
                return;
            }
        };
        let why = match tokio::time::timeout(REQUEST_TIMEOUT, http.send(request)).await {
            Ok(Ok(response)) if response.status().is_success() => return,
            Ok(Ok(response)) => format!("HTTP {}", response.status()),
            Ok(Err(error)) => model::with_causes(&error),
            Err(_) => format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()),
        };
        let url = model::url_for_display(url);
        tracing::warn!(
            attempt,
            "cannot deliver a health warning to the webhook {url}: {why}"
        );
        if attempt < MAX_ATTEMPTS {
            tokio::time::sleep(RETRY_DELAY * attempt).await;
        }
    }
}
