//! Finds the gateway, its configuration files with their servers, and the MCP clients on this machine.

use std::path::PathBuf;

use anyhow::Context as _;
use config::{Config, ConfigError, Sources};
use model::Settings;

use super::{
    Context,
    http::Api,
    reach::{Place, in_use},
};
use backend::{
    clients::{Clients, Seen},
    lock, startup,
};

/// This machine, for one user.
pub(super) struct Here {
    pub(super) place: Place,
    /// The configuration files: those of the running gateway, or those that a gateway would use.
    pub(super) sources: Sources,
    /// The configuration in these files.
    pub(super) config: Result<Config, ConfigError>,
    /// The installed MCP clients.
    pub(super) clients: Vec<Seen>,
}

impl Here {
    pub(super) async fn find(context: &Context) -> anyhow::Result<Self> {
        let place = context.place().await?;
        let located = Sources::locate(&context.config, &startup::env)?;
        let dir = context
            .dir(Some(&located))
            .context("no data directory: set HOME, or name one with --data-dir")?;
        let dir = std::path::absolute(dir)?;
        let sources = match &place {
            // These contain the stored secrets.
            Place::Files(sources) => sources.clone(),
            Place::Gateway(_) => in_use(located, lock::gateway_record(&dir).as_ref())?,
        };
        let clients = Clients::new(&sources, &dir, None).installed();
        Ok(Self {
            place,
            config: Config::load(&sources, &startup::env),
            clients,
            sources,
        })
    }

    /// Returns the running gateway.
    pub(super) fn gateway(&self) -> Option<&Api> {
        match &self.place {
            Place::Gateway(api) => Some(api),
            Place::Files(_) => None,
        }
    }

    /// Returns the server file that changes are made in.
    pub(super) fn servers_file(&self) -> Option<&PathBuf> {
        self.sources.servers.first()
    }

    /// Returns the settings in the files; the defaults if they are invalid.
    pub(super) fn settings(&self) -> Settings {
        startup::settings(&self.sources).unwrap_or_default()
    }
}
