//! Removes services that no handle in this process owns: services of earlier runs, of failed launches, and of other
//! gateways.

use bollard::models::{Service, Task, TaskState};
use bollard::query_parameters::{
    InspectServiceOptions, ListServicesOptionsBuilder, ListTasksOptionsBuilder,
};
use std::collections::{BTreeSet, HashMap};
use tokio::time::sleep;

use super::contact::ENDED_AFTER;
use super::nodes::Nodes;
use super::{Inner, spec};
use crate::common::{refused, superseded};
use crate::docker::engine::{
    CHANGE_TIMEOUT, Call, Client, LABEL_FENCE, LABEL_HOSTING, LABEL_INSTALL, LABEL_RUN,
    READ_TIMEOUT, call, found, labels, within,
};
use runtime::unit::{Confined, Error, Fences, remove_each};

/// The container and node of a task, if known.
pub(super) struct Place {
    pub(super) node: Option<String>,
    pub(super) container: Option<String>,
}

impl Place {
    pub(super) fn of(task: &Task) -> Self {
        let status = task.status.as_ref();
        let container =
            status.and_then(|status| status.container_status.as_ref()?.container_id.clone());
        let some = |text: Option<String>| text.filter(|text| !text.is_empty());
        Self {
            node: some(task.node_id.clone()),
            container: some(container),
        }
    }
}

pub(super) async fn service_of(manager: &Client, name: &str) -> Result<Option<Service>, Error> {
    let options = None::<InspectServiceOptions>;
    let service = manager.docker.inspect_service(name, options);
    found(call("inspect a service", READ_TIMEOUT, service).await)
}

pub(super) async fn tasks_of(manager: &Client, service: &str) -> Result<Vec<Task>, Error> {
    let filters = HashMap::from([("service".to_owned(), vec![service.to_owned()])]);
    let options = ListTasksOptionsBuilder::default().filters(&filters).build();
    match call(
        "list tasks",
        READ_TIMEOUT,
        manager.docker.list_tasks(Some(options)),
    )
    .await
    {
        // The service does not exist.
        Err(Call::Daemon(404, _)) => Ok(Vec::new()),
        other => other.map_err(Error::from),
    }
}

/// Removes a service. The swarm ends its tasks some time later.
pub(super) async fn service_remove(manager: &Client, id: &str) -> Result<(), Error> {
    let removed = manager.docker.delete_service(id);
    found(call("remove a service", CHANGE_TIMEOUT, removed).await).map(drop)
}

/// Returns whether a task has ended, according to its node.
pub(super) fn has_ended(state: Option<TaskState>) -> bool {
    matches!(
        state,
        Some(TaskState::COMPLETE | TaskState::FAILED | TaskState::SHUTDOWN | TaskState::REJECTED)
    )
}

impl Inner {
    /// Removes the service with this name, and waits until nothing of it runs.
    pub(super) async fn make_room(
        &self,
        nodes: &Nodes,
        unit: Confined<'_>,
        name: &str,
    ) -> Result<(), Error> {
        let Some(service) = service_of(&nodes.manager, name).await? else {
            return Ok(());
        };
        let labels = service.spec.as_ref().and_then(|spec| spec.labels.as_ref());
        let owner = labels.and_then(|labels| labels.get(LABEL_INSTALL));
        if let (Some(fence), Some(number)) = (unit.fence, fence_of(&service))
            && number > fence.number
        {
            return Err(superseded(number, fence));
        }
        if owner.map(String::as_str) != Some(spec::install(&self.options, unit.fence)) {
            let why = format!("a service `{name}` of another program exists; remove or rename it");
            return refused("id", why);
        }
        self.end(nodes, &service).await
    }

    /// Waits until nothing of a service runs, and then removes it. As long as the service exists, the next launch knows
    /// that something may still run.
    async fn end(&self, nodes: &Nodes, service: &Service) -> Result<(), Error> {
        let id = service.id.as_deref().unwrap_or_default();
        let mut is_lost = false;
        for task in tasks_of(&nodes.manager, id).await? {
            let place = Place::of(&task);
            let ended = has_ended(task.status.and_then(|status| status.state));
            let (Some(node), Some(container)) = (place.node, place.container) else {
                // The task has no container yet, and gets none after the service is removed.
                continue;
            };
            match nodes.answering(&node) {
                Some(node) => node.client.remove(&container).await?,
                None if ended => {}
                None => is_lost = true,
            }
        }
        if is_lost {
            // The watch receives no more pings. This gateway holds the lease, so the gateway that sent the pings is
            // lost, or is this one.
            sleep(ENDED_AFTER).await;
        }
        service_remove(&nodes.manager, id).await
    }

    pub(super) async fn sweep(&self) -> Result<usize, Error> {
        let nodes = self.nodes().await?;
        let mut all = services_of(&nodes.manager, &self.options.install).await?;
        all.retain(|service| {
            let spec = service.spec.as_ref();
            let labels = spec.and_then(|spec| spec.labels.as_ref());
            let label = |key: &str| labels.and_then(|labels| labels.get(key));
            let id = label(LABEL_HOSTING).map(String::as_str).unwrap_or_default();
            let name = spec::name(&self.options.install, id).ok();
            let is_ours = label(LABEL_RUN) == Some(&self.options.run);
            !is_ours && name.as_ref() == spec.and_then(|spec| spec.name.as_ref())
        });
        self.end_all(&nodes, &all).await
    }

    pub(super) async fn fences(&self, installation: &str) -> Result<BTreeSet<i64>, Error> {
        let nodes = self.nodes().await?;
        let services = services_of(&nodes.manager, installation).await?;
        Ok(services.iter().filter_map(fence_of).collect())
    }

    pub(super) async fn sweep_fenced(&self, lost: &Fences) -> Result<usize, Error> {
        let nodes = self.nodes().await?;
        let mut all = services_of(&nodes.manager, &lost.installation).await?;
        all.retain(|service| {
            fence_of(service).is_some_and(|number| lost.numbers.contains(&number))
        });
        self.end_all(&nodes, &all).await
    }

    async fn end_all(&self, nodes: &Nodes, services: &[Service]) -> Result<usize, Error> {
        remove_each(services, |service| async move {
            self.end(nodes, service).await?;
            Ok(1)
        })
        .await
    }
}

/// Returns all services of an installation.
async fn services_of(manager: &Client, install: &str) -> Result<Vec<Service>, Error> {
    let filters = labels(&[(LABEL_INSTALL, install)]);
    let options = ListServicesOptionsBuilder::default()
        .filters(&filters)
        .build();
    within(
        "list services",
        READ_TIMEOUT,
        manager.docker.list_services(Some(options)),
    )
    .await
}

/// The fencing token of the launch that created the service.
fn fence_of(service: &Service) -> Option<i64> {
    let labels = service.spec.as_ref()?.labels.as_ref()?;
    labels.get(LABEL_FENCE)?.parse().ok()
}
