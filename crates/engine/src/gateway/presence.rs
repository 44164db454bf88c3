//! Determines which servers of a scope are present now, for callers that continue without the others (P12).
//!
//! Lists for clients include the remembered tools of an absent server. A chat turn of an agent leaves them out and says
//! so. Deliberately absent: starting hosted servers, which neither a list nor a call does.

use std::sync::Arc;

use model::{ServerKey, ServerName};

use crate::{
    Gateway,
    scope::Scope,
    server::{
        Server, State,
        commands::Command,
        progress::{FIRST_START, MAX_FIRST_START},
    },
    views::view::View,
};

/// A server of a scope that offers nothing at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    pub key: ServerKey,
    /// The server's name in the scope.
    pub server: ServerName,
    pub reason: Arc<str>,
}

impl Gateway {
    /// The view of the scope, after trying all servers that are in their first start or whose last start failed. Waits
    /// for at most 20 seconds. `None` if the scope does not exist.
    pub async fn attended(&self, scope: &Scope) -> Option<Arc<View>> {
        let view = self.view(scope)?;
        futures_util::future::join_all(view.awaited().map(Server::attempted)).await;
        // Results may not be published in the view yet.
        self.settled(scope).await
    }
}

impl Gateway {
    /// Waits until no server without a sandbox is starting, for at most 20 seconds.
    pub async fn started_outside(&self) {
        let fleet = self.shared.fleet();
        let outside = fleet.all().filter(|server| server.spec.sandbox().is_none());
        let starting = outside.map(async |server| {
            let mut state = server.subscribe();
            let _ = state
                .wait_for(|state| !matches!(state, State::Starting))
                .await;
        });
        let started = futures_util::future::join_all(starting);
        let _ = tokio::time::timeout(MAX_FIRST_START, started).await;
    }

    /// Starts the servers without a sandbox that are down. The gateway that this one replaces may have used their ports or
    /// files until now.
    pub async fn retry_outside(&self) {
        let is_down = |server: &&Arc<Server>| {
            server.spec.sandbox().is_none() && matches!(server.state(), State::Down { .. })
        };
        let fleet = self.shared.fleet();
        let down = fleet.all().filter(is_down);
        let starting = down.map(async |server| server.command(Command::Start).await);
        futures_util::future::join_all(starting).await;
    }
}

impl View {
    /// The servers that offer nothing at the moment, in order.
    #[must_use]
    pub fn absent(&self) -> Vec<Absent> {
        let absent = |server: &Arc<Server>| {
            let reason = server.absence()?;
            let server_key = server.key().clone();
            let (server, _) = server.label(&self.scope);
            Some(Absent {
                key: server_key,
                server,
                reason,
            })
        };
        self.servers.iter().filter_map(absent).collect()
    }
}

impl Server {
    /// If it is unknown whether the server works, tries to start it and waits for the result.
    async fn attempted(self: &Arc<Self>) {
        if !self.is_idle() || !self.is_doubtful() || self.unmet().is_some() {
            return self.first_settled().await;
        }
        let mut state = self.subscribe();
        self.want();
        let tried = state.wait_for(|state| !matches!(state, State::Idle | State::Starting));
        let _ = tokio::time::timeout(FIRST_START, tried).await;
    }
}
