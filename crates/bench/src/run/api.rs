//! The REST API of the product, as far as a case has something made through it.

use anyhow::Context as _;
use bytes::Bytes;
use http::Request;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::uri::{Authority, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::SendRequest;
use serde_json::Value;
use tokio::task::JoinSet;

use super::client;

/// The administrator, on one connection.
#[derive(Debug)]
pub(crate) struct Api {
    authority: Authority,
    bearer: String,
    sender: SendRequest<Full<Bytes>>,
    /// Owns the connection's task, which ends with this.
    _connection: JoinSet<()>,
}

impl Api {
    /// Connects to the product whose MCP endpoint is `url`.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub(crate) async fn connect(url: &str, token: &str) -> anyhow::Result<Self> {
        let uri: Uri = url.parse()?;
        let authority = uri.authority().context("the URL has no authority")?;
        let (sender, connection) = client::connect(&uri).await?;
        Ok(Self {
            authority: authority.clone(),
            bearer: format!("Bearer {token}"),
            sender,
            _connection: connection,
        })
    }

    /// Asks for something below `/api/v1`; no body if it is null.
    ///
    /// # Errors
    ///
    /// The answer is no success.
    pub(crate) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<()> {
        let body = match body {
            Value::Null => Full::default(),
            body => Full::from(body.to_string()),
        };
        let request = Request::builder()
            .method(method)
            .uri(format!("/api/v1{path}"))
            .header(HOST, self.authority.as_str())
            .header(AUTHORIZATION, &self.bearer)
            .header(CONTENT_TYPE, "application/json")
            .body(body)?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        anyhow::ensure!(
            status.is_success(),
            "{method} {path}: {status}: {}",
            String::from_utf8_lossy(&body[..body.len().min(500)])
        );
        Ok(())
    }
}
