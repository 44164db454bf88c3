//! Tries out a server that is not declared: starts it once, lists its tools and stops it.
//!
//! Invariant: a trial does not use the volumes or ports of the future server. Deliberately absent: declaring it.

use std::{convert::Infallible, future, sync::Arc};

use catalog::{Item, ListKind, fetch_list};
use mcp::{
    Frame,
    client::{Ambient, Event},
    protocol::method,
};
use model::{ServerKey, ServerSpec};

use super::declare::give;
use crate::{
    Gateway, Hindrance, StartError,
    server::{
        connection::{Connection, Placement},
        launch::{self, Launched},
    },
};

/// The result of a trial.
pub struct Tried {
    pub tools: Vec<Item>,
    /// How the server was sandboxed, if it was.
    pub placement: Option<Arc<Placement>>,
}

/// Why a trial failed.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct TrialError {
    /// May be shown to clients: contains no output of the server.
    pub reason: Arc<str>,
    /// The end of the server's stderr.
    pub stderr: Option<String>,
    /// A user has to sign in to it first.
    pub needs_login: bool,
}

impl From<StartError> for TrialError {
    fn from(error: StartError) -> Self {
        Self {
            needs_login: error.hindrance == Some(Hindrance::Login),
            reason: error.reason,
            stderr: error.stderr.map(|tail| tail.text()),
        }
    }
}

impl Gateway {
    /// Starts a server as it would be declared, lists its tools and stops it. Packages of npm or PyPI that it names are
    /// installed and pinned. Takes as long as npm or uv and the start: minutes at most.
    ///
    /// # Errors
    /// [`TrialError`]. A package installed for the trial is removed again, unless a declared server uses it.
    ///
    /// # Cancel safety
    /// Dropping the future stops the process. An installed package stays.
    pub async fn trial(&self, spec: &ServerSpec) -> Result<Tried, TrialError> {
        let packages = self.shared.runtimes.packages();
        let launch = spec.launch();
        let package = match (packages, launch) {
            (Some(packages), Some(launch)) => packages.package(launch).await.ok().flatten(),
            _ => None,
        };
        let tried = self.tried(&launch::apart(spec)).await;
        if let (Err(_), Some(packages), Some(launch), Some(package)) =
            (&tried, packages, launch, package)
            && package.pinned.is_none()
            && !self.is_started_from(&package.key).await
            && let Err(error) = packages.forget(launch).await
        {
            tracing::warn!(server = %spec.key(), package = %package.key, "the package of a failed trial could not be removed, and stays installed: {error}");
        }
        tried
    }

    /// Returns whether a declared server uses the package with this key.
    async fn is_started_from(&self, key: &str) -> bool {
        let Some(packages) = self.shared.runtimes.packages() else {
            return false;
        };
        for server in self.shared.fleet().all() {
            if let Some(launch) = server.spec.launch()
                && let Ok(Some(package)) = packages.package(launch).await
                && package.key == key
            {
                return true;
            }
        }
        false
    }

    /// Approves the tool definitions found in the trial of a declared server, before it lists any tools. Any other
    /// definition will be kept back.
    ///
    /// # Errors
    /// The definitions could not be saved.
    pub async fn agree_to(&self, key: &ServerKey, tools: &[Item]) -> store::Result<()> {
        let Some(server) = self.shared.fleet().get(key).cloned() else {
            return Ok(());
        };
        let seen = server.pinned.compare(tools, self.settings().pinning);
        self.shared.memory.agree(key, &seen).await?;
        let agreed: Vec<_> = seen
            .into_iter()
            .map(|seen| (seen.tool, seen.digest))
            .collect();
        self.approve_tools(key, &agreed);
        Ok(())
    }

    /// Starts the server, lists its tools and stops it. Volumes created for it are removed.
    pub(crate) async fn tried(&self, spec: &ServerSpec) -> Result<Tried, TrialError> {
        let shared = &self.shared;
        let capabilities = shared.shared_capabilities();
        let launched = Launched::default();
        let mut spec = spec.clone();
        give(&mut spec, &shared.fleet().settings.host_env);
        let connecting = shared
            .connect
            .connect(&spec, None, &capabilities, &launched);
        let tried = match connecting.await {
            Ok((connection, ambient)) => {
                let tools = tokio::select! {
                    tools = fetch_list(&connection.client, ListKind::Tools) => tools,
                    never = answer(&connection, ambient) => match never {},
                };
                let placement = connection.hosted.clone();
                connection.close(shared.stop_grace).await;
                match tools {
                    Ok((tools, _)) => Ok(Tried {
                        tools: tools.items.to_vec(),
                        placement,
                    }),
                    Err(error) => Err(StartError::new(error.to_string()).into()),
                }
            }
            Err(error) => Err(error.into()),
        };
        if let Some(sandbox) = spec.sandbox().filter(|own| !own.volumes.is_empty()) {
            let removed = shared.runtimes.volumes_remove(&sandbox.id, None).await;
            if let Err(error) = removed {
                tracing::warn!(server = %spec.key(), "the volumes of a trial could not be removed: {error}");
            }
        }
        tried
    }
}

/// Answers the requests that servers send at their start. Never returns.
async fn answer(connection: &Connection, mut ambient: Ambient) -> Infallible {
    while let Some(event) = ambient.recv().await {
        if let Event::Request(request) | Event::Unclear(request) = event
            && request.method() == method::ROOTS_LIST
        {
            let roots = Frame::result(request.id(), b"{\"roots\":[]}");
            let _ = connection.client.send(&roots).await;
        }
    }
    future::pending().await
}
