//! The base of the gateway, and the order in which its parts are opened.

use std::{path::PathBuf, sync::Arc};

use anyhow::bail;
use backend::{
    backup::restore,
    config_secrets,
    lock::Lock,
    replica::Replica,
    startup::{self, CliOverrides},
};
use config::{Config, Sources};
use gateway::peers;
use runtime::process::Spawner;
use store::Store;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{logs, upgrade::Predecessor};

/// The base of the gateway: its configuration, data directory, database, and membership in a group of replicas.
pub(super) struct Base {
    pub(super) sources: Sources,
    pub(super) config: Config,
    pub(super) data_dir: PathBuf,
    pub(super) lock: Lock,
    pub(super) store: Store,
    /// The listener for other replicas, and its address.
    pub(super) inside: Option<(TcpListener, String)>,
    pub(super) replica: Option<Arc<Replica>>,
    /// Cancelled when the gateway that this one replaces has exited. `None`: it replaces none.
    pub(super) predecessor: Option<CancellationToken>,
}

impl Base {
    pub(super) async fn open(
        named: &[PathBuf],
        overrides: &CliOverrides,
        predecessor: Option<&mut Predecessor>,
    ) -> anyhow::Result<(Self, Spawner)> {
        let (sources, mut settings) = startup::locate(named)?;
        overrides.overrule(&mut settings);
        logs::init(&settings);
        let data_dir = startup::open_data_dir(&settings)?;
        let (lock, predecessor) = match predecessor {
            Some(before) => {
                let lock = Lock::passed(&data_dir, before.lock()?)?;
                (lock, Some(before.gone.clone()))
            }
            None => (Lock::take(&data_dir).await?, None),
        };
        restore::check_finished(&data_dir)?;
        let store = startup::wait_for_store(&settings, &data_dir).await?;
        config_secrets::load(&sources, &store, &data_dir).await?;
        let mut config = startup::load(&sources)?;
        overrides.overrule(&mut config.settings);
        let spawner = startup::spawner()?;
        let replicas = config.settings.replicas;
        let (inside, replica) = match &config.settings.database_url {
            Some(url) => {
                if predecessor.is_some() && replicas.listen.is_some_and(|at| at.port() != 0) {
                    bail!(
                        "the running gateway uses the port in `[replicas] listen`: set port 0 there, or restart the gateway instead"
                    );
                }
                let (inside, address) = peers::bind(replicas.listen, url).await?;
                let sentinel = spawner.clone();
                let end_all_at = move |at| sentinel.end_all_at(at);
                let joined = Replica::join(
                    &store,
                    replicas.lease,
                    end_all_at,
                    &data_dir,
                    address.clone(),
                    predecessor.is_none(),
                );
                (Some((inside, address)), joined.await?)
            }
            None => (None, None),
        };
        if predecessor.is_none() {
            startup::close_open(&store, store::now()).await?;
            store.login_release_left().await?;
        }
        let base = Self {
            sources,
            config,
            data_dir,
            lock,
            store,
            inside,
            replica,
            predecessor,
        };
        Ok((base, spawner))
    }
}
