//! Volumes of servers in a swarm: on the node that a server ran on first, or wherever a driver brings them.
//!
//! Which node that is, is kept in the swarm, as a config of the server's name. It is written before the server runs for the
//! first time, so that nothing was ever written to a volume on another node.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bollard::models::{ConfigSpec, Mount};
use bollard::query_parameters::ListVolumesOptionsBuilder;
use model::Sandbox;
use tokio::time::{Instant, sleep};

use super::nodes::{Node, Nodes};
use super::{Inner, spec};
use crate::docker::engine::{
    CHANGE, Client, LABEL_HOSTING, LABEL_INSTALL, call, found, labels, within,
};
use crate::docker::spec::check_id;
use crate::docker::volumes::remove;
use crate::unit::{Confined, Error};

const LABEL_NODE: &str = "toolwharf.node";
/// Until the last container with a volume is gone.
const RELEASE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(250);

impl Inner {
    pub(super) fn mounts(&self, unit: Confined<'_>) -> Vec<Mount> {
        let Sandbox { id, volumes, .. } = unit.sandbox;
        let install = spec::install(&self.options, unit.fence);
        let mount = |inside: &String| spec::volume(install, id, inside, &self.options);
        volumes.iter().map(mount).collect()
    }

    /// Whether its volumes are on one node, and stay there.
    pub(super) fn is_tied(&self, sandbox: &Sandbox) -> bool {
        !sandbox.volumes.is_empty() && self.options.volume_driver.is_none()
    }

    /// The node that a server's volumes are on, if it ran before.
    pub(super) async fn home(
        &self,
        manager: &Client,
        install: &str,
        id: &str,
    ) -> Result<Option<String>, Error> {
        let name = spec::name(install, id)?;
        let config = call(
            "inspect a config",
            CHANGE,
            manager.docker.inspect_config(&name),
        )
        .await;
        let spec = found(config)?.and_then(|config| config.spec);
        let labels = spec.and_then(|spec| spec.labels).unwrap_or_default();
        Ok(labels.get(LABEL_NODE).cloned())
    }

    /// Writes down which node that is.
    pub(super) async fn settle(
        &self,
        manager: &Client,
        unit: Confined<'_>,
        node: &str,
    ) -> Result<(), Error> {
        let install = spec::install(&self.options, unit.fence);
        let mut labels = spec::lasting_labels(install, &unit.sandbox.id);
        labels.insert(LABEL_NODE.to_owned(), node.to_owned());
        let config = ConfigSpec {
            name: Some(spec::name(install, &unit.sandbox.id)?),
            labels: Some(labels),
            data: Some(BASE64_STANDARD.encode(node)),
            ..ConfigSpec::default()
        };
        let created = manager.docker.create_config(config);
        within("keep which node volumes are on", CHANGE, created).await?;
        Ok(())
    }

    pub(super) async fn volumes_remove(
        &self,
        id: &str,
        installation: Option<&str>,
    ) -> Result<(), Error> {
        check_id(id)?;
        let _turn = self.turns.turn(id).await?;
        let nodes = self.nodes().await?;
        for install in [Some(&*self.options.install), installation]
            .into_iter()
            .flatten()
        {
            self.volumes_remove_of(&nodes, install, id).await?;
        }
        Ok(())
    }

    async fn volumes_remove_of(&self, nodes: &Nodes, install: &str, id: &str) -> Result<(), Error> {
        let home = self.home(&nodes.manager, install, id).await?;
        match &home {
            Some(home) if !nodes.has(home) => {
                tracing::warn!(
                    server = id,
                    node = home,
                    "volumes went with a node that has left the swarm: they are not removed there"
                );
            }
            Some(home) if nodes.answering(home).is_none() => {
                let why = nodes.hindrance(home).unwrap_or_default();
                let config = spec::name(install, id)?;
                return Err(Error::Failed(format!(
                    "its volumes cannot be removed: {why}; when it is back, those that `docker volume ls --filter \
                     label={LABEL_HOSTING}={id}` lists there are to be removed by hand, and on a manager the config `{config}`"
                )));
            }
            _ => {}
        }
        for node in &nodes.answering {
            volumes_of(node, install, id).await?;
        }
        if home.is_some() {
            let name = spec::name(install, id)?;
            let removed = nodes.manager.docker.delete_config(&name);
            found(call("remove a config", CHANGE, removed).await)?;
        }
        Ok(())
    }
}

/// Removes those on one node.
async fn volumes_of(node: &Node, install: &str, id: &str) -> Result<(), Error> {
    let filters = labels(&[(LABEL_INSTALL, install), (LABEL_HOSTING, id)]);
    let options = ListVolumesOptionsBuilder::default()
        .filters(&filters)
        .build();
    let listed = node.client.docker.list_volumes(Some(options));
    let listed = within("list volumes", CHANGE, listed).await?;
    let until = Instant::now() + RELEASE;
    for volume in listed.volumes.unwrap_or_default() {
        // The last container with it may be on its way out.
        while let Err(error) = remove(&node.client, &volume.name).await {
            if Instant::now() > until {
                return Err(error);
            }
            sleep(POLL).await;
        }
    }
    Ok(())
}

impl Nodes {
    /// The one node that a tied server may run on, as its `config` says.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] as long as it cannot run anything.
    pub(super) fn tied_to(&self, id: &str, config: &str) -> Result<&Node, Error> {
        let (why, node) = (self.hindrance(id), self.answering(id));
        if let (None, Some(node)) = (&why, node) {
            return Ok(node);
        }
        let why = why.unwrap_or_default();
        let way_out = match self.has(id) {
            true => String::new(),
            false => format!(
                "; `docker config rm {config}` lets it start on another one, with empty volumes"
            ),
        };
        Err(Error::Refused {
            field: "volumes",
            why: format!("its volumes are on one node, and it runs nowhere else: {why}{way_out}"),
        })
    }
}
