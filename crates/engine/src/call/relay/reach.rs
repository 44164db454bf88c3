//! Selects the connection for a caller's requests.

use std::sync::Arc;

use mcp::Era;
use model::Sharing;
use tokio::time::Instant;

use super::{Failure, ms};
use crate::{
    exchange::Caller,
    life::{
        second,
        session_instances::{instance, of_principal},
    },
    server::{Server, connection::Connection},
    shared::Shared,
};

/// Waits for a separate instance, up to its start timeout.
async fn in_time<T>(
    server: &Server,
    deadline: Instant,
    own: impl Future<Output = T>,
) -> Result<T, Failure> {
    let start = Instant::now() + server.spec.start_timeout;
    let started = tokio::time::timeout_at(deadline.max(start), own).await;
    started.map_err(|_| Failure::Timeout {
        ms: ms(server.spec.start_timeout),
        printed: None,
    })
}

/// The connection for a caller's requests to a server. `era` decides only if the server speaks both.
pub(crate) async fn connection(
    shared: &Arc<Shared>,
    caller: &Caller,
    server: &Arc<Server>,
    era: Era,
    deadline: Instant,
) -> Result<Arc<Connection>, Failure> {
    let connection = match (&caller.session, server.spec.sharing) {
        (Some(session), Sharing::Session) => {
            let face = caller.face();
            let whose = &caller.principal;
            let own = instance(shared, server, session, whose, era, &face.capabilities);
            let own = in_time(server, deadline, Box::pin(own)).await?;
            return own.map_err(Failure::Refused);
        }
        _ if server.is_personal => {
            server.want();
            let own = of_principal(shared, server, &caller.principal);
            in_time(server, deadline, Box::pin(own)).await?
        }
        _ => server.connection(deadline).await,
    };
    let connection = connection.map_err(Failure::Refused)?;
    Ok(match era {
        // Boxed, since it is rarely needed and calls move this future.
        Era::Legacy if connection.client.may_be_legacy_too() => {
            Box::pin(second::for_legacy(shared, server, connection)).await
        }
        _ => connection,
    })
}
