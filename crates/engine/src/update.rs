//! Moving a server on to a newer version of its package ([`runtime::Packages`]): what that would change, and doing it.
//!
//! The newer version is installed beside the pinned one. Before anybody agrees to it, it is started once in a sandbox
//! without a network, to see how its tools are defined.
//!
//! Invariant: tools are agreed to as they were shown. Deliberately absent: when to look, and who agrees.

use std::sync::Arc;

use futures_util::future::join_all;
use model::{Launch, NativeName, Network, Origin, Packages, Place, Sandbox, ServerKey, ServerSpec};
use runtime::Package;

use crate::{
    Gateway,
    catalog::Item,
    launch,
    orders::Order,
    server::{Server, State},
};

/// What a server without a sandbox of its own gets for the moment of a look: bytes.
const MEMORY: u64 = 1 << 30;

/// Why a server cannot be moved on.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    #[error(
        "server `{0}` is not started from a pinned package: its command is not `npx` or `uvx`, or its packages are \"newest\""
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
    /// Its tools; an error says why they could not be looked at. `None`: nobody looked, for it is the pinned version.
    pub tools: Option<Result<Vec<Item>, Arc<str>>>,
    /// Other servers that are started from the same package, and move with this one.
    pub peers: Vec<Arc<Server>>,
}

impl Gateway {
    /// The newest version of a server's package that its command line allows, installed and looked at. Takes as long as npm or
    /// uv and a start do: minutes at most.
    ///
    /// # Errors
    /// [`UpdateError`]; [`UpdateError::Package`] with what npm or uv says.
    ///
    /// # Cancel safety
    /// The started process is ended; nothing has changed for the server.
    pub async fn newest(&self, server: &Server) -> Result<Candidate, UpdateError> {
        let (launch, package) = self.package(server).await?;
        let packages = self.packages(server)?;
        let label = server.key().to_string();
        let version = packages.newest(&label, launch).await?;
        packages.prune(launch, &version).await?;
        self.candidate(server, package, version).await
    }

    /// A version that is installed already.
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

    /// Pins a version, agrees to its tools as they were looked at, and restarts the servers that run from the package.
    /// Versions that nothing uses any more are removed. Returns when the servers are up or have failed.
    ///
    /// # Errors
    /// [`UpdateError`]: then the old version is still the one that is started.
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
        tracing::info!(server = %server.key(), package = to.package.name, from = to.package.pinned, to = to.version, "moved on to another version of its package");
        let is_used = |server: &&Server| !matches!(server.state(), State::Idle | State::Stopped);
        join_all(
            servers()
                .filter(is_used)
                .map(|server| server.command(Order::Restart)),
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

    /// Starts a version beside the server, in a sandbox without a network, and asks for its tools.
    async fn look(&self, server: &Server, version: &str) -> Result<Vec<Item>, Arc<str>> {
        let spec = beside(&server.spec, version).ok_or("it is not launched here")?;
        let tried = self.tried(&spec).await;
        tried.map(|tried| tried.tools).map_err(|error| error.reason)
    }

    /// Agrees to definitions of tools that a server has, before it lists them.
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

/// The server as it is started for a look: confined, and with nothing that the real one has.
fn beside(spec: &ServerSpec, version: &str) -> Option<ServerSpec> {
    let launch = spec.launch()?;
    let mut sandbox = launch.sandbox().cloned().unwrap_or_else(|| {
        let mut sandbox = Sandbox::new("");
        sandbox.limits.memory = MEMORY;
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
