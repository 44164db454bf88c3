//! What only one gateway of several may run.

use futures_util::future::BoxFuture;
use model::ServerSpec;
use tokio_util::sync::CancellationToken;

/// Asked before a registered server is launched, if there are several gateways.
pub trait Gate: Send + Sync {
    /// Whether this gateway may run the server, until the token is cancelled: then nothing of it may be left at once.
    ///
    /// # Errors
    /// Why not, fit for callers.
    fn enter<'a>(
        &'a self,
        server: &'a ServerSpec,
    ) -> BoxFuture<'a, Result<CancellationToken, String>>;

    /// Lets others run the server: nothing of it is left here.
    fn leave<'a>(&'a self, server: &'a ServerSpec) -> BoxFuture<'a, ()>;
}
