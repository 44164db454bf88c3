//! Runs launches in separate tasks, so that they finish even if the caller stops waiting.

use futures_util::future::{BoxFuture, FutureExt as _};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::unit::{Error, Instance};

/// Launches in a separate task, so that a cancelled launch is not abandoned halfway. If the caller is gone, the
/// instance is dropped, which ends it. The token passed to `launch` is cancelled when the caller is gone.
pub fn launched<'a, F>(
    tasks: &TaskTracker,
    launch: impl FnOnce(CancellationToken) -> F,
) -> BoxFuture<'a, Result<Instance, Error>>
where
    F: Future<Output = Result<Instance, Error>> + Send + 'static,
{
    let unwanted = CancellationToken::new();
    let task = tasks.spawn(launch(unwanted.clone()));
    let wanted = unwanted.drop_guard();
    async move {
        let launched = task.await;
        drop(wanted);
        launched.unwrap_or_else(|error| Err(Error::Failed(format!("the launch failed: {error}"))))
    }
    .boxed()
}
