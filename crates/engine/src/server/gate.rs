//! Decides which of several gateways runs a server, and how the others reach it.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::HeaderName;
use mcp::client::Sign;
use model::ServerSpec;
use runtime::Fence;
use tokio_util::sync::CancellationToken;

/// Names the principal of a call that is forwarded to the gateway running the server.
pub const CALLER: HeaderName = HeaderName::from_static("toolwharf-caller");

/// Consulted before a server is launched, if there are several gateways.
pub trait Gate: Send + Sync {
    /// Returns whether only one gateway at a time may run the server.
    fn is_for_one(&self, server: &ServerSpec) -> bool;

    /// Determines the gateway that runs the server.
    ///
    /// # Errors
    /// Why the gateway is unknown, or why no gateway runs the server. The text may be shown to callers.
    fn enter<'a>(&'a self, server: &'a ServerSpec) -> BoxFuture<'a, Result<Runs, String>>;

    /// Releases the server, so that other gateways may run it. The server must have no instance here any more.
    fn leave<'a>(&'a self, server: &'a ServerSpec) -> BoxFuture<'a, ()>;
}

/// The gateway that runs a server.
pub enum Runs {
    /// This gateway.
    Here(Held),
    RemoteReplica(RemoteReplica),
    /// No gateway can run the server. Contains the reason, which may be shown to callers.
    Nowhere(String),
}

/// The right of this gateway to run a server.
#[derive(Clone, Default)]
pub struct Held {
    /// Cancelled when the right is lost. The server must then be stopped at once.
    pub lost: CancellationToken,
    /// The fencing token that marks the launch.
    pub fence: Option<Fence>,
}

/// Another gateway that runs a server. It is addressed like a server of version 2026-07-28.
#[derive(Clone)]
pub struct RemoteReplica {
    /// States which other gateway runs the server. May be shown to callers.
    pub why: String,
    pub url: String,
    pub sign: Arc<dyn Sign>,
    /// Cancelled when that gateway is gone.
    pub lost: CancellationToken,
}
