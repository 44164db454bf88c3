//! What only one gateway of several may run, and how the others reach it.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::HeaderName;
use mcp::client::Sign;
use model::ServerSpec;
use runtime::Fence;
use tokio_util::sync::CancellationToken;

/// The header that names the principal of a call on its way to the gateway that runs its server.
pub const CALLER: HeaderName = HeaderName::from_static("toolwharf-caller");

/// Asked before a server is launched, if there are several gateways.
pub trait Gate: Send + Sync {
    /// Whether only one gateway may run the server.
    fn is_for_one(&self, server: &ServerSpec) -> bool;

    /// Which gateway runs the server.
    ///
    /// # Errors
    /// Why that is not known, or why nobody does; fit for callers.
    fn enter<'a>(&'a self, server: &'a ServerSpec) -> BoxFuture<'a, Result<Runs, String>>;

    /// Lets others run the server: nothing of it is left here.
    fn leave<'a>(&'a self, server: &'a ServerSpec) -> BoxFuture<'a, ()>;
}

/// Which gateway runs a server.
pub enum Runs {
    /// This one.
    Here(Held),
    Elsewhere(Elsewhere),
    /// None can, for this reason, which is fit for callers.
    Nowhere(String),
}

/// That this gateway may run a server.
#[derive(Clone, Default)]
pub struct Held {
    /// Cancelled when it may not any more: then nothing of it may be left at once.
    pub lost: CancellationToken,
    /// What the launch is marked with.
    pub fence: Option<Fence>,
}

/// The gateway that runs a server, as a server of 2026-07-28.
#[derive(Clone)]
pub struct Elsewhere {
    /// That it does, and which one it is; fit for callers.
    pub why: String,
    pub url: String,
    pub sign: Arc<dyn Sign>,
    /// Cancelled when it is not there any more.
    pub lost: CancellationToken,
}
