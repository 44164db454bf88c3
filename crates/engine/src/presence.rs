//! Which servers of a scope have something to offer now, for whoever goes on without the others (P12).
//!
//! A list for clients shows what is remembered of a server that is away; a turn of an agent does without it and says so.
//! Deliberately absent: starting hosted servers, which no list and no call does.

use std::sync::Arc;

use model::{ServerKey, ServerName};

use crate::{
    Gateway,
    scope::Scope,
    server::{FIRST_START, Server, State},
    view::View,
};

/// A server of a scope that has nothing to offer now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    pub key: ServerKey,
    /// As callers of the scope know it.
    pub server: ServerName,
    pub reason: Arc<str>,
}

impl Gateway {
    /// What there is in the scope, once each server of it that is being started for the first time, or that failed when
    /// it was last tried, has come up or not; waits at most [`FIRST_START`]. `None` if there is no such scope.
    pub async fn attended(&self, scope: &Scope) -> Option<Arc<View>> {
        let view = self.view(scope)?;
        futures_util::future::join_all(view.awaited().map(Server::attempted)).await;
        // For the view: what was learnt may be about to be published.
        self.settled(scope).await
    }
}

impl View {
    /// The servers that have nothing to offer now, in order.
    #[must_use]
    pub fn absent(&self) -> Vec<Absent> {
        let of = |server: &Arc<Server>| {
            let reason = server.absence()?;
            let server_key = server.key().clone();
            let (server, _) = server.label(&self.scope);
            Some(Absent {
                key: server_key,
                server,
                reason,
            })
        };
        self.servers.iter().filter_map(of).collect()
    }
}

impl Server {
    /// Tries a server of which nobody knows whether it works, and waits for what comes of that.
    async fn attempted(self: &Arc<Self>) {
        if !self.is_idle() || !self.is_doubtful() {
            return self.first_settled().await;
        }
        let mut state = self.subscribe();
        self.want();
        let tried = state.wait_for(|state| !matches!(state, State::Idle | State::Starting));
        let _ = tokio::time::timeout(FIRST_START, tried).await;
    }

    /// Why it has nothing to offer now, if that is so.
    #[must_use]
    pub fn absence(&self) -> Option<Arc<str>> {
        match self.state() {
            State::Ready(_) => None,
            State::Idle if self.is_doubtful() => Some("it has not been started".into()),
            State::Starting if self.catalog().info.is_none() => Some("it is still starting".into()),
            // A call finds it, or waits for it.
            State::Idle | State::Starting => None,
            State::Down { reason, .. } => Some(reason),
            State::Stopped => Some("it is stopped".into()),
        }
    }

    /// Whether it may well not work: it was never reached, or not when that was last tried.
    fn is_doubtful(&self) -> bool {
        self.catalog().info.is_none() || self.status().failures > 0
    }
}
