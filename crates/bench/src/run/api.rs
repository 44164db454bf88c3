//! A minimal client of the gateway's REST API, with the requests that the cases need.

use anyhow::Context as _;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::request::Builder;
use http::uri::{Authority, Uri};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::SendRequest;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::client;

/// A connection with the administrator's token.
#[derive(Debug)]
pub(crate) struct Api {
    authority: Authority,
    bearer: String,
    sender: SendRequest<Full<Bytes>>,
    /// Owns the connection's task, which is aborted when this value is dropped.
    _connection: JoinSet<()>,
}

impl Api {
    /// Connects to the gateway whose MCP endpoint is `url`.
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

    /// A request builder with the administrator's token and a JSON body.
    pub(crate) fn request(&self, method: Method, path: &str) -> Builder {
        Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.authority.as_str())
            .header(AUTHORIZATION, &self.bearer)
            .header(CONTENT_TYPE, "application/json")
    }

    /// Sends a request and returns the complete response.
    pub(crate) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, body))
    }

    /// Sends a request below `/api/v1`, without a body if `body` is null. Returns the response if it is JSON, otherwise
    /// null.
    ///
    /// # Errors
    ///
    /// The response does not have a success status.
    pub(crate) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<Value> {
        let body = match body {
            Value::Null => Full::default(),
            body => Full::from(body.to_string()),
        };
        let request = self.request(method.parse()?, &format!("/api/v1{path}"));
        let (status, body) = self.send(request.body(body)?).await?;
        anyhow::ensure!(
            status.is_success(),
            "{method} {path}: {status}: {}",
            String::from_utf8_lossy(&body[..body.len().min(500)])
        );
        Ok(serde_json::from_slice(&body).unwrap_or_default())
    }

    /// Registers a hosted server, without waiting until it runs.
    pub(crate) async fn register(&mut self, entry: &Value) -> anyhow::Result<()> {
        self.ask("POST", "/mcp/servers?wait=false", entry).await?;
        Ok(())
    }

    /// Calls a tool of a hosted server.
    pub(crate) async fn call(
        &mut self,
        server: &str,
        tool: &str,
        arguments: &Value,
    ) -> anyhow::Result<Value> {
        let params = json!({ "name": tool, "arguments": arguments });
        let call = json!({ "method": "tools/call", "params": params });
        let path = format!("/mcp/servers/{server}/call");
        self.ask("POST", &path, &call).await
    }

    /// Starts, stops or restarts a hosted server.
    pub(crate) async fn order(&mut self, server: &str, order: &str) -> anyhow::Result<()> {
        let path = format!("/mcp/servers/{server}/{order}");
        self.ask("POST", &path, &Value::Null).await?;
        Ok(())
    }
}
