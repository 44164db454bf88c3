//! Access tokens in the environment of instances (`${login:NAME}`). An environment cannot change, so an instance whose token is renewed makes room
//! for another one.
//!
//! Invariant: no call is cut short for that while its token is good.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use model::clock;

use crate::{connection::Connection, queue::Paused, server::Server, shared::Shared};

/// From one look at the clock to the next: the machine may have slept meanwhile.
const LOOK: Duration = Duration::from_secs(15);
/// From one attempt to get a newer token to the next.
const AGAIN: Duration = Duration::from_secs(1);
/// From one look at whether an instance is in use to the next.
const IN_USE: Duration = Duration::from_millis(100);

/// Waits until an instance would be launched with another token than it has. An instance without a token is never outdated.
async fn outdated(shared: &Shared, server: &Server, connection: &Connection) {
    let Some(first) = &connection.issued else {
        return std::future::pending().await;
    };
    let mut renew_at = first.renew_at;
    loop {
        until(renew_at).await;
        let issuing = shared.logins.issue(&server.spec, connection.whose.as_ref());
        let Some(issuing) = issuing else { return };
        match issuing.await {
            Ok(issued) if issued.token == first.token => renew_at = issued.renew_at,
            Err(why) if !why.is_needed => {}
            _ => return,
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Waits until somebody's own instance is outdated and no call uses it any more. The next call makes another one from the moment that it is
/// outdated.
pub(crate) async fn outlived(shared: &Shared, server: &Server, connection: &Arc<Connection>) {
    outdated(shared, server, connection).await;
    server.instances.forget_gone(connection);
    let unused = async {
        // One reference is its watcher's.
        while Arc::strong_count(connection) > 1 {
            tokio::time::sleep(IN_USE).await;
        }
    };
    let patience = left(connection).max(server.spec.call_timeout);
    let _ = tokio::time::timeout(patience, unused).await;
}

/// Waits until the instance that all callers share is outdated and idle. Shortly before its token's end, calls have to wait in line until
/// it is. While the answer is held, no call is sent.
pub(crate) async fn replaceable<'s>(
    shared: &Shared,
    server: &'s Server,
    connection: &Connection,
) -> Paused<'s> {
    outdated(shared, server, connection).await;
    let patience = left(connection).saturating_sub(shared.stop_grace);
    server.idle(patience).await;
    let paused = server.queue.pause();
    server.idle(shared.stop_grace).await;
    paused
}

/// How long its token is good yet.
fn left(connection: &Connection) -> Duration {
    let ends_at = connection.issued.as_ref().and_then(|it| it.ends_at);
    let left = ends_at.and_then(|end| end.duration_since(clock::now()).ok());
    left.unwrap_or_default()
}

/// Waits for a time of the clock on the wall; `None` never comes.
async fn until(time: Option<SystemTime>) {
    let Some(time) = time else {
        return std::future::pending().await;
    };
    while let Ok(left) = time.duration_since(clock::now()) {
        tokio::time::sleep(left.min(LOOK)).await;
    }
}
