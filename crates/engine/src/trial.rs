//! Trying a server that is not declared: it is started once, asked for its tools, and ended.
//!
//! Invariant: a trial uses nothing that the server will have: neither its volumes nor its ports. Deliberately absent: declaring
//! it.

use std::{convert::Infallible, future, sync::Arc};

use mcp::{
    Frame,
    client::{Ambient, Event},
    protocol::method,
};
use model::{ServerKey, ServerSpec};

use crate::{
    Gateway, Hindrance, StartError,
    catalog::{Item, ListKind, fetch_list},
    connection::{Connection, Placement},
    launch::{self, Launched},
};

/// The lists of a server in its trial.
pub struct Tried {
    pub tools: Vec<Item>,
    /// The provider of its sandbox, if it had one.
    pub placement: Option<Arc<Placement>>,
}

/// Why a trial came to nothing.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct TrialError {
    /// Fit for clients: no output of the server in it.
    pub reason: Arc<str>,
    /// The end of its stderr.
    pub stderr: Option<String>,
    /// Somebody has to sign in to it first.
    pub needs_login: bool,
}

impl From<StartError> for TrialError {
    fn from(error: StartError) -> Self {
        Self {
            needs_login: error.hindrance == Some(Hindrance::Login),
            reason: error.reason,
            stderr: error.stderr,
        }
    }
}

impl Gateway {
    /// Starts a server as it would be declared, asks for its tools, and ends it. What it names of npm or PyPI is installed and
    /// pinned for that. Takes as long as npm or uv and a start do: minutes at most.
    ///
    /// # Errors
    /// [`TrialError`]. A package that was installed for the trial, and that no server is started from, is removed again.
    ///
    /// # Cancel safety
    /// The started process is ended; a package that was installed stays.
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
            tracing::warn!(server = %spec.key(), "the package of a failed trial stays: {error}");
        }
        tried
    }

    /// Whether a declared server is started from the package of this key.
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

    /// Agrees to the definitions of tools that a declared server was tried with, before it lists any: another definition is
    /// kept back then.
    ///
    /// # Errors
    /// The store does not keep them.
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

    /// Starts what a description says, asks for its tools, and ends it. Volumes that were made for it are removed.
    pub(crate) async fn tried(&self, spec: &ServerSpec) -> Result<Tried, TrialError> {
        let shared = &self.shared;
        let capabilities = shared.shared_capabilities();
        let launched = Launched::default();
        let connecting = shared.connect.connect(spec, None, &capabilities, &launched);
        let tried = match connecting.await {
            Ok((connection, ambient)) => {
                let tools = tokio::select! {
                    tools = fetch_list(&connection.client, ListKind::Tools, spec.name.as_str()) => tools,
                    never = answer(&connection, ambient) => match never {},
                };
                let placement = connection.hosted.clone();
                connection.close(shared.stop_grace).await;
                match tools {
                    Ok((tools, _)) => Ok(Tried { tools, placement }),
                    Err(error) => Err(StartError::new(error.to_string()).into()),
                }
            }
            Err(error) => Err(error.into()),
        };
        if let Some(sandbox) = spec.sandbox().filter(|own| !own.volumes.is_empty()) {
            let removed = shared.runtimes.volumes_remove(&sandbox.id, None).await;
            if let Err(error) = removed {
                tracing::warn!(server = %spec.key(), "volumes that were made for a trial stay: {error}");
            }
        }
        tried
    }
}

/// Answers what servers want to know at their start, for ever.
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
