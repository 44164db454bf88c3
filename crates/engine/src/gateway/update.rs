//! Updates a server to a newer version of its package ([`runtime::Packages`]), with a preview of the changes.
//!
//! The newer version is installed next to the pinned one. Before the update is approved, it is started once in a
//! sandbox without a network to list its tools.
//!
//! Invariant: exactly the tool definitions shown in the preview are approved. Deliberately absent: when to check for
//! updates, and who approves them.

use std::sync::Arc;

use catalog::Item;
use futures_util::future::join_all;
use model::{Launch, NativeName, Network, Origin, Packages, Place, Sandbox, ServerKey, ServerSpec};
use runtime::Package;

use crate::{
    Gateway,
    server::{Server, State, commands::Command, launch},
};

/// Memory limit in bytes for the preview of a server that has no sandbox.
const PREVIEW_MEMORY: u64 = 1 << 30;

/// Why a server cannot be updated.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    #[error(
        "server `{0}` is not started from a pinned package: its command is not `npx` or `uvx`, or its entry has `\"packages\": \"newest\"`"
    )]
    NotPinned(ServerKey),
    #[error(transparent)]
    Package(#[from] runtime::Error),
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// A version of a server's package, and what it offers.
pub struct Candidate {
    pub package: Package,
    pub version: String,
    /// The version's tools, or why they could not be listed. `None`: not listed, because it is the pinned version.
    pub tools: Option<Result<Vec<Item>, Arc<str>>>,
    /// Other servers that use the same package and are updated with this one.
    pub peers: Vec<Arc<Server>>,
}

impl Gateway {
    /// Installs the newest version of a server's package that its command line allows, and lists its tools. Takes as
    /// long as npm or uv and a start: minutes at most.
    ///
    /// # Errors
    /// [`UpdateError`]; [`UpdateError::Package`] with the message of npm or uv.
    ///
    /// # Cancel safety
    /// Dropping the future stops the process. Nothing changes for the server.
    pub async fn newest(&self, server: &Server) -> Result<Candidate, UpdateError> {
        let (launch, package) = self.package(server).await?;
        let packages = self.packages(server)?;
        let label = server.key().to_string();
        let version = packages.newest(&label, launch).await?;
        packages.prune(launch, &version).await?;
        self.candidate(server, package, version).await
    }

    /// The preview of a version that is already installed.
    ///
    /// # Errors
    /// As [`Gateway::newest`].
    pub async fn version(
        &self,
        server: &Server,
        version: String,
    ) -> Result<Candidate, UpdateError> {
        let (_, package) = self.package(server).await?;
        self.candidate(server, package, version).await
    }

    /// Pins a version, approves its tools as shown in the preview, and restarts the servers that use the package.
    /// Removes versions that are no longer used. Returns when the servers are up or have failed.
    ///
    /// # Errors
    /// [`UpdateError`]: the old version remains in use.
    pub async fn update(&self, server: &Server, to: &Candidate) -> Result<(), UpdateError> {
        let (launch, _) = self.package(server).await?;
        let packages = self.packages(server)?;
        let servers = || std::iter::once(server).chain(to.peers.iter().map(|peer| &**peer));
        if let Some(Ok(tools)) = &to.tools {
            for server in servers() {
                self.agree(server, tools).await?;
            }
        }
        packages.switch(launch, &to.version).await?;
        tracing::info!(server = %server.key(), package = to.package.name, from = to.package.pinned, to = to.version, "switched the server to another version of its package");
        let is_used = |server: &&Server| !matches!(server.state(), State::Idle | State::Stopped);
        join_all(
            servers()
                .filter(is_used)
                .map(|server| server.command(Command::Restart)),
        )
        .await;
        packages.prune(launch, &to.version).await?;
        Ok(())
    }

    fn packages(&self, server: &Server) -> Result<&Arc<runtime::Packages>, UpdateError> {
        let packages = self.shared.runtimes.packages();
        packages.ok_or_else(|| UpdateError::NotPinned(server.key().clone()))
    }

    async fn package<'s>(&self, server: &'s Server) -> Result<(&'s Launch, Package), UpdateError> {
        let not_pinned = || UpdateError::NotPinned(server.key().clone());
        let launch = server.spec.launch().ok_or_else(not_pinned)?;
        let package = self.packages(server)?.package(launch).await?;
        Ok((launch, package.ok_or_else(not_pinned)?))
    }

    async fn candidate(
        &self,
        server: &Server,
        package: Package,
        version: String,
    ) -> Result<Candidate, UpdateError> {
        let tools = match package.pinned.as_ref() == Some(&version) {
            true => None,
            false => Some(self.look(server, &version).await),
        };
        let mut peers = Vec::new();
        for peer in self.shared.fleet().all() {
            let is_other = peer.key() != server.key();
            let shared = self.package(peer).await.ok().filter(|_| is_other);
            if shared.is_some_and(|(_, other)| other.key == package.key) {
                peers.push(peer.clone());
            }
        }
        Ok(Candidate {
            package,
            version,
            tools,
            peers,
        })
    }

    /// Starts a version next to the server, in a sandbox without a network, and lists its tools.
    async fn look(&self, server: &Server, version: &str) -> Result<Vec<Item>, Arc<str>> {
        let spec = beside(&server.spec, version).ok_or("Toolwharf does not start this server")?;
        let tried = self.tried(&spec).await;
        tried.map(|tried| tried.tools).map_err(|error| error.reason)
    }

    /// Approves new definitions of a server's known tools before the server lists them.
    async fn agree(&self, server: &Server, tools: &[Item]) -> store::Result<()> {
        let pins = server.pins();
        let is_known = |tool: &&Item| pins.contains_key(&NativeName::new(tool.native.clone()));
        let known: Vec<Item> = tools.iter().filter(is_known).cloned().collect();
        let seen = (server.pinned).compare(&known, self.settings().pinning);
        self.shared.memory.agree(server.key(), &seen).await?;
        let agreed: Vec<_> = seen
            .into_iter()
            .map(|seen| (seen.tool, seen.digest))
            .collect();
        self.approve_tools(server.key(), &agreed);
        Ok(())
    }
}

/// The spec for a preview: sandboxed, and without access to anything that the real server has.
fn beside(spec: &ServerSpec, version: &str) -> Option<ServerSpec> {
    let launch = spec.launch()?;
    let mut sandbox = launch.sandbox().cloned().unwrap_or_else(|| {
        let mut sandbox = Sandbox::new("");
        sandbox.limits.memory = PREVIEW_MEMORY;
        sandbox
    });
    sandbox.id = launch::sandbox_id();
    sandbox.network = Network::None;
    for mount in &mut sandbox.mounts {
        mount.read_only = true;
    }
    let launch = Launch {
        cwd: None,
        place: Place::Sandbox(sandbox),
        packages: Packages::Pinned,
        version: Some(version.to_owned()),
        ..Launch::clone(launch)
    };
    Some(ServerSpec {
        origin: Origin::Launch(launch.into()),
        ..spec.clone()
    })
}
