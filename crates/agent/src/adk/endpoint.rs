//! The tools of an MCP endpoint over HTTP: a running Toolwharf or a single server.
//!
//! Invariants: all users share one session. If the endpoint has forgotten the session, for example after a restart, a
//! new one is opened and the request is sent again. That is safe, because the first request was not processed.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use mcp::{
    Era, Kind, RpcError,
    client::{CallError, Client, Connector, Identity, Options, Target},
    json::quote,
    protocol::method,
};
use model::{Hidden, NativeName, ServerName};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::OnceCell;

use crate::{Offer, Raw, ServerCall, ServerTool, Servers, ServersError, ToolOutcome};

/// Timeout for the handshake, and for each page of a list.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(60);
const CALL_TIMEOUT: Duration = Duration::from_secs(600);
/// Timeout for closing the session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum bytes of a response.
const MAX_RESPONSE_BYTES: usize = 64 << 20;
const MAX_DEPTH: usize = 512;
/// Maximum number of pages of a list.
const MAX_PAGES: usize = 1_000;

/// An MCP endpoint: its URL and an optional token.
pub struct Endpoint {
    url: String,
    token: Option<Hidden>,
    name: ServerName,
    connector: Connector,
    session: Mutex<Session>,
}

/// A session that is opened when it is first needed.
type Session = Arc<OnceCell<Client>>;

#[derive(Deserialize)]
struct Listed {
    tools: Vec<Item>,
    #[serde(rename = "nextCursor")]
    next: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    name: String,
    #[serde(default)]
    description: String,
    input_schema: Option<Raw>,
    output_schema: Option<Raw>,
}

#[derive(Deserialize)]
struct Outcome {
    #[serde(default, rename = "isError")]
    is_error: bool,
}

impl Endpoint {
    /// An endpoint by its URL: `http://host/mcp` for all servers of a Toolwharf, `…/mcp/PROJECT` for a project's
    /// servers, `…/mcp/PROJECT/SERVER` for one server, whose tools are guaranteed to keep their names.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        let url = url.into();
        let last = url.trim_end_matches('/').rsplit('/').next().unwrap_or("");
        let name = ServerName::parse(last);
        Self {
            name: name
                .unwrap_or_else(|_| ServerName::parse("mcp").expect("it is the name of a server")),
            url,
            token: None,
            connector: Connector::new(),
            session: Mutex::default(),
        }
    }

    /// Sends `token` as the bearer token. It never appears in errors or logs.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(Hidden::new(token.into()));
        self
    }

    async fn connect(&self) -> Result<Client, ServersError> {
        let token = self.token.iter();
        let headers = token.map(|token| {
            let token = format!("Bearer {}", token.reveal());
            ("authorization".to_owned(), token)
        });
        let target = Target::Http {
            url: self.url.clone(),
            headers: headers.collect(),
        };
        let options = Options {
            label: self.name.as_str().into(),
            identity: Identity {
                name: "toolwharf-adk".into(),
                version: env!("CARGO_PKG_VERSION").into(),
                chain: None,
            },
            capabilities: "{}".into(),
            // The modern era would require some arguments to be repeated in HTTP headers.
            era: Some(Era::Legacy),
            max_message: MAX_RESPONSE_BYTES,
            max_depth: MAX_DEPTH,
            timeout: HANDSHAKE_TIMEOUT,
            public_only: false,
            authorize: None,
            sign: None,
        };
        let connected = self.connector.connect(target, &options).await;
        let (client, _ambient) = connected.map_err(|error| self.failed(error))?;
        Ok(client)
    }

    fn failed(&self, why: impl std::fmt::Display) -> ServersError {
        ServersError(format!(
            "the MCP endpoint {}: {why}",
            model::url_for_display(&self.url)
        ))
    }

    /// Sends a request over the current session (`members` are the members of `params`, without braces). If the session
    /// has expired, opens a new one and tries again once.
    async fn ask(
        &self,
        method: &'static str,
        members: String,
        limit: Duration,
    ) -> Result<Raw, ServersError> {
        let asking = async {
            let mut again = true;
            loop {
                let session = self.session.lock().clone();
                let client = session.get_or_try_init(|| self.connect()).await?;
                match client.ask(method, &members).await {
                    Err(CallError::SessionExpired) if again => {
                        again = false;
                        let mut current = self.session.lock();
                        if Arc::ptr_eq(&current, &session) {
                            *current = Session::default();
                        }
                    }
                    outcome => return outcome.map_err(|error| self.failed(error)),
                }
            }
        };
        let limited = tokio::time::timeout(limit, asking).await;
        let frame = limited
            .map_err(|_| self.failed(format!("no answer within {} s", limit.as_secs())))??;
        if frame.kind() == Kind::Error {
            return Err(self.failed(RpcError::from_json(frame.body())));
        }
        let text = String::from_utf8_lossy(frame.body());
        Raw::parse(&text).map_err(|error| self.failed(error))
    }
}

impl Servers for Endpoint {
    fn start(&self) -> BoxFuture<'_, Result<(), ServersError>> {
        Box::pin(async {
            let session = self.session.lock().clone();
            session.get_or_try_init(|| self.connect()).await?;
            Ok(())
        })
    }

    fn tools(&self) -> BoxFuture<'_, Result<Offer, ServersError>> {
        Box::pin(async {
            let mut tools = Vec::new();
            let mut cursor: Option<String> = None;
            for _ in 0..MAX_PAGES {
                let members = cursor.map_or_else(String::new, |cursor| {
                    format!("\"cursor\":{}", quote(&cursor))
                });
                let page = self
                    .ask(method::TOOLS_LIST, members, HANDSHAKE_TIMEOUT)
                    .await?;
                let listed: Listed = page.read().map_err(|error| self.failed(error))?;
                tools.extend(listed.tools.into_iter().map(|item| ServerTool {
                    server: self.name.clone(),
                    native: NativeName::new(item.name),
                    description: item.description.into(),
                    parameters: item.input_schema.unwrap_or_else(Raw::empty_object),
                    response: item.output_schema,
                    has_app: false,
                }));
                cursor = listed.next;
                if cursor.is_none() {
                    return Ok(tools.into());
                }
            }
            Err(self.failed(format!("its list of tools has more than {MAX_PAGES} pages")))
        })
    }

    fn call(&self, call: ServerCall) -> BoxFuture<'_, Result<ToolOutcome, ServersError>> {
        Box::pin(async move {
            let members = format!(
                "\"name\":{},\"arguments\":{}",
                quote(call.tool.as_str()),
                call.arguments.get()
            );
            let content = self.ask(method::TOOLS_CALL, members, CALL_TIMEOUT).await?;
            let outcome = content.read::<Outcome>();
            let is_error = outcome.is_ok_and(|outcome| outcome.is_error);
            Ok(ToolOutcome { content, is_error })
        })
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        let session = std::mem::take(&mut *self.session.lock());
        Box::pin(async move {
            if let Some(client) = session.get() {
                client.close(CLOSE_TIMEOUT).await;
            }
        })
    }
}
