//! Volumes of servers in a swarm: on the node on which a server first ran, or on any node if a driver provides them.
//!
//! A config of the swarm with the server's name records the node. It is written before the server runs for the first
//! time, so no volume data can exist on another node.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bollard::models::{ConfigSpec, Mount};
use bollard::query_parameters::ListVolumesOptionsBuilder;
use model::Sandbox;
use tokio::time::{Instant, sleep};

use super::nodes::{Node, Nodes};
use super::{Inner, spec};
use crate::common::check_id;
use crate::docker::engine::{
    CHANGE_TIMEOUT, Client, LABEL_HOSTING, LABEL_INSTALL, call, found, labels, within,
};
use crate::docker::volumes::remove;
use runtime::unit::{Confined, Error};

const LABEL_NODE: &str = "toolwharf.node";
/// Timeout for the removal of the last container that uses a volume.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(250);

impl Inner {
    pub(super) fn mounts(&self, unit: Confined<'_>) -> Vec<Mount> {
        let Sandbox { id, volumes, .. } = unit.sandbox;
        let install = spec::install(&self.options, unit.fence);
        let mount = |inside: &String| spec::volume(install, id, inside, &self.options);
        volumes.iter().map(mount).collect()
    }

    /// Returns whether the volumes of a sandbox stay on one node.
    pub(super) fn is_tied(&self, sandbox: &Sandbox) -> bool {
        !sandbox.volumes.is_empty() && self.options.volume_driver.is_none()
    }

    /// The node with a server's volumes, if the server ran before.
    pub(super) async fn home(
        &self,
        manager: &Client,
        install: &str,
        id: &str,
    ) -> Result<Option<String>, Error> {
        let name = spec::name(install, id)?;
        let config = call(
            "inspect a config",
            CHANGE_TIMEOUT,
            manager.docker.inspect_config(&name),
        )
        .await;
        let spec = found(config)?.and_then(|config| config.spec);
        let labels = spec.and_then(|spec| spec.labels).unwrap_or_default();
        Ok(labels.get(LABEL_NODE).cloned())
    }

    /// Records the node with a server's volumes.
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
        within("record the node of the volumes", CHANGE_TIMEOUT, created).await?;
        Ok(())
    }

    pub(super) async fn volumes_remove(
        &self,
        id: &str,
        installation: Option<&str>,
    ) -> Result<(), Error> {
        check_id(id)?;
        let _turn = self.keyed_lock.turn(id).await?;
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
                    "the node with the server's volumes has left the swarm; the volumes there are not removed"
                );
            }
            Some(home) if nodes.answering(home).is_none() => {
                let why = nodes.hindrance(home).unwrap_or_default();
                let config = spec::name(install, id)?;
                return Err(Error::Failed(format!(
                    "the server's volumes cannot be removed: {why}; when the node is back, remove the volumes that `docker volume ls --filter \
                     label={LABEL_HOSTING}={id}` lists there, and the config `{config}` on a manager"
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
            found(call("remove a config", CHANGE_TIMEOUT, removed).await)?;
        }
        Ok(())
    }
}

/// Removes the volumes on one node.
async fn volumes_of(node: &Node, install: &str, id: &str) -> Result<(), Error> {
    let filters = labels(&[(LABEL_INSTALL, install), (LABEL_HOSTING, id)]);
    let options = ListVolumesOptionsBuilder::default()
        .filters(&filters)
        .build();
    let listed = node.client.docker.list_volumes(Some(options));
    let listed = within("list volumes", CHANGE_TIMEOUT, listed).await?;
    let until = Instant::now() + RELEASE_TIMEOUT;
    for volume in listed.volumes.unwrap_or_default() {
        // The last container that uses the volume may still be exiting.
        while let Err(error) = remove(&node.client, &volume.name).await {
            if Instant::now() > until {
                return Err(error);
            }
            sleep(POLL_INTERVAL).await;
        }
    }
    Ok(())
}

impl Nodes {
    /// Returns the node on which a server with volumes must run, as recorded in its `config`.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] while the node cannot run anything.
    pub(super) fn tied_to(&self, id: &str, config: &str) -> Result<&Node, Error> {
        let (why, node) = (self.hindrance(id), self.answering(id));
        if let (None, Some(node)) = (&why, node) {
            return Ok(node);
        }
        let why = why.unwrap_or_default();
        let way_out = match self.has(id) {
            true => String::new(),
            false => format!(
                "; after `docker config rm {config}`, it can start on another node, with empty volumes"
            ),
        };
        Err(Error::Refused {
            field: "volumes",
            why: format!("the server can run only on the node with its volumes: {why}{way_out}"),
        })
    }
}
