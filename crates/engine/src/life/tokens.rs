//! Access tokens in the environment of instances (`${login:NAME}`). The environment of a process cannot change, so an
//! instance is replaced when its token is renewed.
//!
//! Invariant: a replacement interrupts no call whose token is still valid.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use model::clock;

use crate::{
    server::{Server, connection::Connection, queue::Paused},
    shared::Shared,
};

/// Maximum sleep before the clock is read again, since the machine may have been suspended.
const MAX_SLEEP: Duration = Duration::from_secs(15);
/// Delay between attempts to get a newer token.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Interval between checks whether an instance is in use.
const IN_USE_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Waits until a new instance would get a different token. An instance without a token never becomes outdated.
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
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Waits until an instance with an owner is outdated and unused. Once it is outdated, the next call starts a new one.
pub(crate) async fn outlived(shared: &Shared, server: &Server, connection: &Arc<Connection>) {
    outdated(shared, server, connection).await;
    server.instances.forget_gone(connection);
    let unused = async {
        // The task that watches the connection holds one reference.
        while Arc::strong_count(connection) > 1 {
            tokio::time::sleep(IN_USE_POLL_INTERVAL).await;
        }
    };
    let patience = left(connection).max(server.spec.call_timeout);
    let _ = tokio::time::timeout(patience, unused).await;
}

/// Waits until the shared instance is outdated and idle. Shortly before the instance's token expires, new calls wait in
/// the queue until the instance is idle. No call is sent while the returned guard is held.
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

/// Remaining validity of the connection's token.
fn left(connection: &Connection) -> Duration {
    let ends_at = connection.issued.as_ref().and_then(|it| it.ends_at);
    let left = ends_at.and_then(|end| end.duration_since(clock::now()).ok());
    left.unwrap_or_default()
}

/// Waits until this wall clock time. `None`: forever.
async fn until(time: Option<SystemTime>) {
    let Some(time) = time else {
        return std::future::pending().await;
    };
    while let Ok(left) = time.duration_since(clock::now()) {
        tokio::time::sleep(left.min(MAX_SLEEP)).await;
    }
}
