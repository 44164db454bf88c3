//! A launch goes on where nobody waits for it any more.

use futures_util::future::{BoxFuture, FutureExt as _};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::unit::{Error, Instance};

/// Launches in a task of its own: what is being made must not be forgotten half-way. Where nobody takes the instance, it is dropped, and that ends
/// it. `launch` is told by the token that nobody waits any more.
pub(crate) fn launched<'a, F>(
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
        launched.unwrap_or_else(|_| Err(Error::Failed("the launch was given up".to_owned())))
    }
    .boxed()
}
