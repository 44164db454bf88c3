//! The handshake with a server, in both eras.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{Authorize, Call, CallError, Client, Event, Inner, Link, Outgoing, ServerInfo, Sign};
use crate::{
    Era, Frame, Kind, RpcError, Version,
    chain::{self, Behind, Blocked, Chain},
    json::{self, Object, quote},
    protocol::{meta, method},
};

/// This gateway's `clientInfo`.
#[derive(Debug, Clone)]
pub struct Identity {
    pub name: String,
    pub version: String,
    /// Set if this client is a gateway.
    pub chain: Option<Chain>,
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
    #[error("no answer to the handshake within {} ms (raise `startTimeoutMs` if it needs longer)", .0.as_millis())]
    Timeout(Duration),
    #[error("the handshake failed: {0}")]
    Call(#[from] CallError),
    /// The server refused `initialize`, so it may be modern. On a byte stream, `server/discover` has failed as well, so
    /// another attempt needs a new process.
    #[error("the server refused `initialize`: {0}")]
    NotLegacy(RpcError),
    #[error("the server refused `server/discover`: {0}")]
    NotModern(RpcError),
    #[error("the server speaks none of Toolwharf's protocol versions: it offered {0}")]
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

/// Time for the response to `server/discover` of a server that has just refused `initialize`, and so is up. Some servers
/// do not respond to unknown methods.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends `initialize` (or `server/discover`) over a new duplex link.
pub(super) async fn handshake(link: Link, options: &Options) -> Result<Client, ConnectError> {
    let provisional = Client::provisional(link);
    let info = if options.era == Some(Era::Modern) {
        discover(&provisional, options).await
    } else {
        match initialize(&provisional, options).await {
            Err(ConnectError::NotLegacy(refusal)) if options.era.is_none() => {
                let probe = discover(&provisional, options);
                let found = tokio::time::timeout(PROBE_TIMEOUT, probe).await;
                let found = found.ok().and_then(Result::ok);
                found.ok_or(ConnectError::NotLegacy(refusal))
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
    let mut version = Version::LATEST_LEGACY;
    let frame = loop {
        let params = initialize_params(options, version);
        let frame = ask(client, method::INITIALIZE, &params).await?;
        if frame.kind() != Kind::Error {
            break frame;
        }
        let refusal = ConnectError::NotLegacy(RpcError::from_json(frame.body()));
        version = older_version(&refusal, version).ok_or(refusal)?;
    };
    let info = read_initialize(frame.body_bytes())?;
    client
        .send(&Frame::notification(method::INITIALIZED, None))
        .await?;
    Ok(info)
}

/// The latest version before `asked` that a refusal of `initialize` names: in its text, or in `data.supported`. By the
/// specification, the server would answer with that version instead (2025-11-25 basic/lifecycle "Version Negotiation").
pub(super) fn older_version(refusal: &ConnectError, asked: Version) -> Option<Version> {
    let text = match refusal {
        ConnectError::NotLegacy(error) => {
            let data = error.data.as_deref().unwrap_or_default();
            format!("{} {}", error.message, String::from_utf8_lossy(data))
        }
        ConnectError::Call(CallError::Http { detail, .. }) => detail.to_string(),
        _ => return None,
    };
    Version::ALL
        .into_iter()
        .find(|version| *version < asked && text.contains(version.as_str()))
}

/// `InitializeRequestParams`: JSON text.
pub(super) fn initialize_params(options: &Options, version: Version) -> String {
    let chain = match options.identity.chain {
        Some(_) => format!(",\"_meta\":{{{}}}", chain::question()),
        None => String::new(),
    };
    format!(
        "{{\"protocolVersion\":\"{}\",\"capabilities\":{},\"clientInfo\":{}{chain}}}",
        version,
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
            // Only HTTP servers can send requests here, on the call's own stream. No client can answer yet, and there
            // are no roots.
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
                detected: None,
            }),
        }
    }

    /// Adds the `_meta` that this server's era needs on the gateway's own requests, and what opening another
    /// conversation needs.
    pub(super) fn speaking_as(self, options: &Options) -> Self {
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
        let is_detected = info.era == Era::Modern && options.era.is_none() && self.is_http();
        let detected = is_detected.then(|| options.clone());
        Self {
            inner: Arc::new(Inner {
                link,
                info,
                own_meta,
                detected,
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
                detected: None,
            }),
        }
    }
}
