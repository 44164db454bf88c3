//! Connecting to servers: era detection and the handshake.
//!
//! A byte stream gets `initialize` first. A server that accepts it is treated as legacy, so a process that supports
//! both eras does not have to be started twice. Only a server that refuses gets `server/discover`. A URL gets the
//! modern request first, because there the HTTP status shows the era (2026-07-28 basic/transports/streamable-http
//! "Backward Compatibility").

use std::{sync::Arc, time::Duration};

use ::http::{Request, Response};
use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};

use super::{
    Ambient, Authorize, Call, CallError, Client, Event, Inner, Link, Outgoing, ServerInfo, Sign,
    duplex::Duplex, http, sse,
};
use crate::{
    Era, Frame, Kind, RpcError, Version,
    chain::{self, Behind, Blocked, Chain},
    json::{self, Object, quote},
    lines::{Line, LineReader, write_lines},
    protocol::{meta, method},
};

/// Maximum wait for a clean close after a connection was blocked.
const BLOCKED_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Capacity of the queue for events outside of calls.
const MAX_AMBIENT_EVENTS: usize = 256;

/// The transport and address of a server.
pub enum Target {
    /// A stdio server's pipes, or any other byte streams.
    Stream {
        reader: Box<dyn AsyncRead + Send + Unpin>,
        writer: Box<dyn AsyncWrite + Send + Unpin>,
        /// Called with each line that is not a valid message.
        stray: Option<Stray>,
    },
    /// Streamable HTTP of either era, or HTTP+SSE if detection finds that.
    Http {
        url: String,
        headers: Vec<(String, String)>,
    },
    /// HTTP+SSE of 2024-11-05.
    Sse {
        url: String,
        headers: Vec<(String, String)>,
    },
}

/// Callback for an output line that is not a message.
pub type Stray = Box<dyn Fn(&[u8]) + Send + Sync>;

/// This gateway's `clientInfo`.
#[derive(Debug, Clone)]
pub struct Identity {
    pub name: String,
    pub version: String,
    /// Set if this client is a gateway.
    pub chain: Option<Chain>,
}

impl Identity {
    /// `Implementation` as JSON text.
    #[must_use]
    pub fn to_json(&self) -> String {
        format!(
            "{{\"name\":{},\"version\":{}}}",
            quote(&self.name),
            quote(&self.version)
        )
    }
}

/// Settings for connecting to a server.
#[derive(Debug, Clone)]
pub struct Options {
    /// The server's name in logs.
    pub label: Arc<str>,
    pub identity: Identity,
    /// `ClientCapabilities` to declare: JSON text.
    pub capabilities: String,
    /// The only era to try. `None` detects it.
    pub era: Option<Era>,
    /// Maximum bytes of one message from the server.
    pub max_message: usize,
    pub max_depth: usize,
    /// Wall time for the whole handshake.
    pub timeout: Duration,
    /// Allow only URLs that lead to addresses on the public internet.
    pub public_only: bool,
    /// Source of access tokens for HTTP requests.
    pub authorize: Option<Arc<dyn Authorize>>,
    /// Signs HTTP requests instead of sending a token.
    pub sign: Option<Arc<dyn Sign>>,
}

/// Why connecting failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectError {
    #[error("no answer to the handshake within {} ms", .0.as_millis())]
    Timeout(Duration),
    #[error("the handshake failed: {0}")]
    Call(#[from] CallError),
    /// The server refused `initialize`, so it may be modern. A byte stream cannot be used any further.
    #[error("the server refused `initialize`: {0}")]
    NotLegacy(RpcError),
    #[error("the server refused `server/discover`: {0}")]
    NotModern(RpcError),
    #[error("the server speaks none of our protocol versions: it offered {0}")]
    Version(String),
    #[error("the server sent an invalid handshake response: {0}")]
    Nonsense(String),
    /// An invalid URL or header, or a network error.
    #[error("{0}")]
    Unreachable(String),
    /// The server is a gateway that must not be an upstream of this one.
    #[error("{0}")]
    Blocked(#[from] Blocked),
}

/// Opens connections. Holds the HTTP connection pools that they share.
#[derive(Clone)]
pub struct Connector {
    http: http::Pool,
    /// Used with [`Options::public_only`].
    public: http::Pool,
}

impl Default for Connector {
    fn default() -> Self {
        Self {
            http: http::Pool::new(false),
            public: http::Pool::new(true),
        }
    }
}

impl Connector {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends a request outside of any MCP connection, and reads a response of at most `max` bytes. Does not follow
    /// redirects.
    ///
    /// # Errors
    /// Why the request failed.
    pub async fn fetch(
        &self,
        request: Request<Bytes>,
        max: usize,
        public_only: bool,
    ) -> Result<Response<Bytes>, String> {
        let within = http::FETCH_TIMEOUT;
        self.fetch_within(request, max, public_only, within).await
    }

    /// [`Connector::fetch`] with a timeout of `within`.
    ///
    /// # Errors
    /// Why the request failed.
    pub async fn fetch_within(
        &self,
        request: Request<Bytes>,
        max: usize,
        public_only: bool,
        within: Duration,
    ) -> Result<Response<Bytes>, String> {
        let pool = if public_only {
            &self.public
        } else {
            &self.http
        };
        pool.fetch(request, max, within).await
    }

    /// [`Connector::fetch_within`] for a large file: the bytes are written to `into` as they arrive instead of being
    /// held in memory.
    ///
    /// # Errors
    /// Why the download failed. `into` may then hold a part of the file.
    pub async fn fetch_into(
        &self,
        request: Request<Bytes>,
        max: usize,
        public_only: bool,
        within: Duration,
        into: &mut (impl AsyncWrite + Unpin),
    ) -> Result<Response<()>, String> {
        let pool = if public_only {
            &self.public
        } else {
            &self.http
        };
        pool.fetch_into(request, max, within, into).await
    }

    /// Connects to `target`.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(
        &self,
        target: Target,
        options: &Options,
    ) -> Result<(Client, Ambient), ConnectError> {
        let timeout = options.timeout;
        tokio::time::timeout(timeout, self.connect_unbounded(target, options))
            .await
            .unwrap_or(Err(ConnectError::Timeout(timeout)))
    }

    async fn connect_unbounded(
        &self,
        target: Target,
        options: &Options,
    ) -> Result<(Client, Ambient), ConnectError> {
        let (ambient, events) = mpsc::channel(MAX_AMBIENT_EVENTS);
        let pool = if options.public_only {
            &self.public
        } else {
            &self.http
        };
        let client = match target {
            Target::Stream {
                reader,
                writer,
                stray,
            } => {
                let link = open_stream(reader, writer, stray, options, ambient);
                handshake(Link::Duplex(link), options).await?
            }
            Target::Http { url, headers } => {
                http::connect(pool, &url, &headers, options, ambient).await?
            }
            Target::Sse { url, headers } => {
                sse::connect(pool, &url, &headers, options, ambient).await?
            }
        };
        let client = client.speaking_as(options);
        if let (Some(chain), Some(behind)) = (&options.identity.chain, &client.info().behind)
            && let Err(blocked) = chain.judge(behind)
        {
            client.close(BLOCKED_CLOSE_TIMEOUT).await;
            return Err(blocked.into());
        }
        Ok((client, events))
    }
}

/// Runs a duplex link over byte streams. Its task ends when either stream ends or the link is closed.
fn open_stream(
    reader: Box<dyn AsyncRead + Send + Unpin>,
    writer: Box<dyn AsyncWrite + Send + Unpin>,
    stray: Option<Stray>,
    options: &Options,
    ambient: mpsc::Sender<Event>,
) -> Duplex {
    let (link, mut outbound) = Duplex::new(options.label.clone(), options.max_depth, ambient);
    let max = options.max_message;
    let mut lines = LineReader::new(reader, max);
    let reading = link.clone();
    crate::client::spawn_linked(async move {
        let read = async {
            loop {
                match lines.next().await {
                    Ok(Some(Line::Text(text))) => {
                        if let Some(stray) = &stray
                            && text.trim_ascii_start().first() != Some(&b'{')
                        {
                            stray(&text);
                        }
                        reading.deliver(text);
                    }
                    Ok(Some(Line::TooLong { head })) => reading.too_long(max, &head),
                    Ok(None) => break "the server closed its output".to_owned(),
                    Err(error) => break format!("reading from the server failed: {error}"),
                }
            }
        };
        let write = async {
            match write_lines(writer, &mut outbound).await {
                Ok(()) => std::future::pending().await,
                // The reader gives a better reason: a server that exits closes both streams.
                Err(error) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    format!("writing to the server failed: {error}")
                }
            }
        };
        let why = tokio::select! {
            why = read => why,
            why = write => why,
            why = reading.closed() => why.to_string(),
        };
        reading.close(&why);
    });
    link
}

/// Sends `initialize` (or `server/discover`) over a new duplex link.
pub(super) async fn handshake(link: Link, options: &Options) -> Result<Client, ConnectError> {
    let provisional = Client::provisional(link);
    let info = if options.era == Some(Era::Modern) {
        discover(&provisional, options).await
    } else {
        match initialize(&provisional, options).await {
            Err(ConnectError::NotLegacy(refusal)) if options.era.is_none() => {
                discover(&provisional, options)
                    .await
                    .map_err(|_| ConnectError::NotLegacy(refusal))
            }
            other => other,
        }
    };
    match info {
        Ok(info) => Ok(provisional.established(info)),
        Err(error) => {
            provisional.close(Duration::ZERO).await;
            Err(error)
        }
    }
}

/// The legacy handshake (2025-11-25 basic/lifecycle "Initialization"). The version in the response is used.
pub(super) async fn initialize(
    client: &Client,
    options: &Options,
) -> Result<ServerInfo, ConnectError> {
    let params = initialize_params(options);
    let frame = ask(client, method::INITIALIZE, &params).await?;
    if frame.kind() == Kind::Error {
        return Err(ConnectError::NotLegacy(RpcError::from_json(frame.body())));
    }
    let info = read_initialize(frame.body_bytes())?;
    client
        .send(&Frame::notification(method::INITIALIZED, None))
        .await?;
    Ok(info)
}

/// `InitializeRequestParams`: JSON text.
pub(super) fn initialize_params(options: &Options) -> String {
    let chain = match options.identity.chain {
        Some(_) => format!(",\"_meta\":{{{}}}", chain::question()),
        None => String::new(),
    };
    format!(
        "{{\"protocolVersion\":\"{}\",\"capabilities\":{},\"clientInfo\":{}{chain}}}",
        Version::LATEST_LEGACY,
        options.capabilities,
        options.identity.to_json()
    )
}

pub(super) fn read_initialize(result: Bytes) -> Result<ServerInfo, ConnectError> {
    let object = Object::of(&result)
        .ok_or_else(|| ConnectError::Nonsense("`result` is not an object".into()))?;
    let offered = object
        .string("protocolVersion")
        .ok_or_else(|| ConnectError::Nonsense("`result.protocolVersion` is missing".into()))?;
    let version = Version::parse(&offered)
        .filter(|version| version.era() == Era::Legacy)
        .ok_or_else(|| ConnectError::Version(offered.chars().take(40).collect()))?;
    let implementation = object.raw("serverInfo").map(Bytes::copy_from_slice);
    Ok(server_info(
        Era::Legacy,
        version,
        &object,
        implementation,
        &result,
    ))
}

/// `server/discover` (2026-07-28 server/discover).
pub(super) async fn discover(
    client: &Client,
    options: &Options,
) -> Result<ServerInfo, ConnectError> {
    let params = format!("{{\"_meta\":{}}}", modern_meta(options));
    let frame = ask(client, method::DISCOVER, &params).await?;
    if frame.kind() == Kind::Error {
        return Err(ConnectError::NotModern(RpcError::from_json(frame.body())));
    }
    read_discover(frame.body_bytes())
}

pub(super) fn read_discover(result: Bytes) -> Result<ServerInfo, ConnectError> {
    let object = Object::of(&result)
        .ok_or_else(|| ConnectError::Nonsense("`result` is not an object".into()))?;
    let versions = object
        .find("supportedVersions")
        .ok_or_else(|| ConnectError::Nonsense("`result.supportedVersions` is missing".into()))?;
    let modern = json::elements(&result, versions.clone())
        .filter_map(|span| json::as_string(&result[span]))
        .any(|version| version == Version::LATEST.as_str());
    if !modern {
        let offered = String::from_utf8_lossy(&result[versions])
            .chars()
            .take(80)
            .collect();
        return Err(ConnectError::Version(offered));
    }
    let implementation = object
        .object("_meta")
        .and_then(|meta| meta.raw(meta::SERVER_INFO))
        .or_else(|| object.raw("serverInfo"))
        .map(Bytes::copy_from_slice);
    Ok(server_info(
        Era::Modern,
        Version::LATEST,
        &object,
        implementation,
        &result,
    ))
}

fn server_info(
    era: Era,
    version: Version,
    object: &Object<'_>,
    implementation: Option<Bytes>,
    result: &Bytes,
) -> ServerInfo {
    ServerInfo {
        era,
        version,
        capabilities: object
            .raw("capabilities")
            .map_or_else(|| Bytes::from_static(b"{}"), Bytes::copy_from_slice),
        implementation,
        instructions: object
            .string("instructions")
            .map(std::borrow::Cow::into_owned),
        behind: Behind::of(object),
        // Copied: a slice would keep the whole read buffer alive for as long as the connection.
        result: Bytes::copy_from_slice(result),
    }
}

/// The `_meta` of every modern request that this gateway makes itself: JSON text.
pub(super) fn modern_meta(options: &Options) -> String {
    let chain = match options.identity.chain {
        Some(_) => format!(",{}", chain::question()),
        None => String::new(),
    };
    let members = meta::members(&options.identity.to_json(), &options.capabilities);
    format!("{{{members}{chain}}}")
}

/// Sends one request and waits for the response. Notifications before it are ignored.
pub(super) async fn ask(client: &Client, asked: &str, params: &str) -> Result<Frame, CallError> {
    let request = Frame::request("0", asked, Some(params.as_bytes()));
    let outgoing = Outgoing::new(&request);
    let mut call: Call = client.call(outgoing).await?;
    loop {
        match call.next().await? {
            Event::Response(frame) => return Ok(frame),
            // Happens over HTTP only, on the call's own stream. No client is attached yet, and there are no roots.
            Event::Request(request) => {
                let answer = if request.method() == method::ROOTS_LIST {
                    Frame::result(request.id(), b"{\"roots\":[]}")
                } else {
                    Frame::error(request.id(), &RpcError::method_not_found(request.method()))
                };
                client.send(&answer).await?;
            }
            Event::Notification(_) | Event::Unclear(_) => {}
        }
    }
}

impl Client {
    /// A client whose server has not answered the handshake yet.
    pub(super) fn provisional(link: Link) -> Self {
        let info = ServerInfo {
            era: Era::Legacy,
            version: Version::LATEST_LEGACY,
            result: Bytes::from_static(b"{}"),
            capabilities: Bytes::from_static(b"{}"),
            implementation: None,
            instructions: None,
            behind: None,
        };
        Self {
            inner: Arc::new(Inner {
                link,
                info,
                own_meta: None,
            }),
        }
    }

    /// Adds the `_meta` that this server's era needs on the gateway's own requests.
    fn speaking_as(self, options: &Options) -> Self {
        let own_meta = match self.info() {
            info if info.era == Era::Modern => Some(modern_meta(options).into()),
            // The gateways behind another gateway can change, so its list responses report them too.
            ServerInfo {
                behind: Some(_), ..
            } if options.identity.chain.is_some() => {
                Some(format!("{{{}}}", chain::question()).into())
            }
            _ => None,
        };
        let (link, info) = (self.inner.link.clone(), self.inner.info.clone());
        Self {
            inner: Arc::new(Inner {
                link,
                info,
                own_meta,
            }),
        }
    }

    /// The same link, with the server's handshake result.
    pub(super) fn established(self, info: ServerInfo) -> Self {
        let link = self.inner.link.clone();
        Self {
            inner: Arc::new(Inner {
                link,
                info,
                own_meta: None,
            }),
        }
    }
}
