//! Launches a service for a unit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bollard::container::AttachContainerResults;
use bollard::models::{NetworkDisconnectRequest, Task, TaskState};
use futures_util::future::join_all;
use model::Network;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::contact::Contact;
use super::life::Life;
use super::nodes::{Node, Nodes};
use super::room::{Place, has_ended, tasks_of};
use super::{Inner, gate, readback, spec};
use crate::common;
use crate::docker::engine::{CHANGE_TIMEOUT, Call, Client, READ_TIMEOUT, call, found, within};
use crate::docker::images::Image;
use crate::docker::images::{inspect_image, pull};
use crate::docker::readback::Meter;
use crate::docker::reaper::{GivenUp, Reaper};
use crate::docker::relay::Relay;
use crate::docker::stdio;
use runtime::ports::Listeners;
use runtime::unit::{Confined, Error, Instance, Unit};

/// Timeout from the request for a service until its container runs.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for Swarm to find a node for the service.
const PLACEMENT_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time for the other nodes to report whether they have an image, once one node has it.
const LATE_INSPECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for the other nodes to pull an image, once one node has pulled it.
const LATE_PULL_TIMEOUT: Duration = Duration::from_secs(10);

/// A container of a service, in which a gate waits.
struct Waiting<'a> {
    service: String,
    node: &'a Node,
    container: String,
}

impl Inner {
    pub(super) async fn launch(
        self: &Arc<Self>,
        unit: &Unit,
        unwanted: impl Future<Output = ()>,
    ) -> Result<Instance, Error> {
        let unit = unit.confined()?;
        let (image, command) = spec::check(unit)?;
        let install = spec::install(&self.options, unit.fence);
        let name = spec::name(install, &unit.sandbox.id)?;
        let _turn = self.keyed_lock.turn(&unit.sandbox.id).await?;
        let nodes = self.nodes().await?;
        self.make_room(&nodes, unit, &name).await?;
        let launched = tokio::select! {
            launched = self.create(&nodes, &name, unit, image, command) => launched,
            () = unwanted => Err(Error::Failed("the launch was cancelled".to_owned())),
        };
        if launched.is_err()
            && let Err(error) = self.make_room(&nodes, unit, &name).await
        {
            tracing::warn!(label = unit.label, service = name, %error, "cannot remove a service; the next sweep retries");
        }
        launched
    }

    async fn create(
        self: &Arc<Self>,
        nodes: &Nodes,
        name: &str,
        unit: Confined<'_>,
        image: &str,
        command: &[String],
    ) -> Result<Instance, Error> {
        let home = match self.is_tied(unit.sandbox) {
            true => {
                let install = spec::install(&self.options, unit.fence);
                self.home(&nodes.manager, install, &unit.sandbox.id).await?
            }
            false => None,
        };
        let candidates = match &home {
            Some(home) => vec![nodes.tied_to(home, name)?],
            None => nodes.usable(),
        };
        if candidates.is_empty() {
            return Err(nodes.nowhere());
        }
        let (image, candidates) = of_image(image, candidates).await?;
        let order = gate::order(&arguments(&image, command), &unit.launch.env)?;
        let (listeners, addresses) = common::listen(&self.options.ports, unit).await?;
        let gate = gate_of(&nodes.manager).await?;
        let parts = spec::Parts {
            name,
            image: &image.id,
            declared: &image.volumes,
            gate: &gate,
            volumes: self.mounts(unit),
            nodes: &candidates,
        };
        let body = spec::service(&self.options, unit, nodes, parts);
        let created = nodes.manager.docker.create_service(body, None);
        let created = call("create a service", CHANGE_TIMEOUT, created)
            .await
            .map_err(refusal)?;
        let waiting = wait(nodes, created.id.unwrap_or_default()).await?;
        let client = &waiting.node.client;

        let mut attached = client.attach(&waiting.container, true).await?;
        let contact = Contact::new(client, &waiting.container).await?;
        if unit.sandbox.network == Network::None {
            isolate(client, &waiting.container).await?;
        }
        let report = gate::tell(&mut attached, &order).await?;
        if !report.has_program {
            let program = arguments(&image, command).into_iter().next();
            let program = program.unwrap_or_default();
            let why = format!("`{program}` is not in the image, or cannot be executed");
            return common::refused("command", why);
        }
        let enforced = readback::rows(
            &self.options,
            unit.sandbox,
            waiting.node,
            &waiting.container,
            &report,
        )
        .await?;
        let wanted = |what: &str| what != "kernel" || self.options.gvisor;
        common::check_strict(unit.sandbox, &enforced, wanted)?;
        if self.is_tied(unit.sandbox) && home.is_none() {
            self.settle(&nodes.manager, unit, &waiting.node.id).await?;
        }
        gate::open(&mut attached).await?;
        let mut instance = self.live(unit, waiting, attached, contact, listeners);
        instance.enforced = enforced.into();
        instance.ports = addresses;
        Ok(instance)
    }

    fn live(
        self: &Arc<Self>,
        unit: Confined<'_>,
        waiting: Waiting<'_>,
        attached: AttachContainerResults,
        contact: Contact,
        listeners: Listeners,
    ) -> Instance {
        let Waiting {
            service,
            node,
            container,
        } = waiting;
        let client = &node.client;
        let meter = Meter::new(client.clone(), container.clone());
        let (exit, shared) = common::state(unit.label, Some(Box::new(meter)));
        let (stdio, pump) = stdio::streams(unit.has_streams(), attached, false);
        let relay = (!listeners.is_empty()).then(|| Relay {
            client: client.clone(),
            container: container.clone(),
            listeners,
            shared: Arc::clone(&shared),
        });
        let relay = relay.map(|relay| AbortOnDropHandle::new(self.tasks.spawn(relay.run())));
        let killed = CancellationToken::new();
        let pump = self
            .tasks
            .spawn(pump.run(Arc::clone(&shared), killed.clone()));
        let pumping = pump.abort_handle();
        let (end, ended) = watch::channel(None);
        let given_up = CancellationToken::new();
        let reaper = Reaper {
            engine: Arc::clone(&node.engine),
            client: client.clone(),
            id: container.clone(),
            shared: Arc::clone(&shared),
            pump,
            killed,
            // The end of the stream does not prove that the server has ended, because the daemon may have ended
            // instead. Only the watch proves that the server has ended.
            bridged: false,
            given_up: GivenUp::Told(given_up.clone()),
            egress: None,
            relay,
            _guest: None,
            exit: end,
        };
        let life = Life {
            inner: Arc::clone(self),
            service,
            engine: Arc::clone(&node.engine),
            node: format!("`{}` ({})", node.name, node.id),
            container,
            contact,
            ended,
            given_up,
            pump: pumping,
            reaper: AbortOnDropHandle::new(self.tasks.spawn(reaper.run())),
            shared: Arc::clone(&shared),
            exit,
        };
        self.tasks.spawn(life.run());
        common::instance(shared, stdio, BTreeMap::new(), Vec::new())
    }
}

/// Returns the image that most of the nodes have under this name, and these nodes. If no node has it, the nodes pull
/// it.
///
/// A node that fails counts as not having the image, unless all nodes fail. A node whose check fails is not asked to
/// pull the image.
async fn of_image<'a>(name: &str, nodes: Vec<&'a Node>) -> Result<(Image, Vec<&'a Node>), Error> {
    let look = |node: &'a Node| inspect_image(&node.client, name);
    let looked = of_each(&nodes, look, LATE_INSPECT_TIMEOUT).await?;
    let (mut nodes, mut found): (Vec<_>, Vec<_>) = looked.into_iter().unzip();
    if found.iter().all(Option::is_none) {
        let pull = async |node: &'a Node| pull(&node.client, name).await.map(Some);
        let pulled = of_each(&nodes, pull, LATE_PULL_TIMEOUT).await?;
        (nodes, found) = pulled.into_iter().unzip();
    }
    let count = |id: &str| {
        let same = found.iter().flatten().filter(|image| image.id == id);
        same.count()
    };
    let most = found.iter().flatten().map(|image| count(&image.id)).max();
    let image = found
        .iter()
        .flatten()
        .find(|image| Some(count(&image.id)) == most)
        .cloned();
    let image = image.ok_or_else(|| Error::Failed(format!("no node has the image `{name}`")))?;
    let has_it = |(_, found): &(&'a Node, Option<Image>)| {
        found.as_ref().is_some_and(|found| found.id == image.id)
    };
    let nodes = nodes.into_iter().zip(found).filter(has_it);
    let nodes = nodes.map(|(node, _)| node).collect();
    Ok((image, nodes))
}

/// Asks each node for an image. Once one node has it, the others have `late` to answer.
///
/// # Errors
///
/// If all nodes fail: the error of a node that rejected the request, if any, otherwise the last error.
async fn of_each<'a, A>(
    nodes: &[&'a Node],
    ask: impl Fn(&'a Node) -> A,
    late: Duration,
) -> Result<Vec<(&'a Node, Option<Image>)>, Error>
where
    A: Future<Output = Result<Option<Image>, Error>>,
{
    let asked = nodes.iter().map(|&node| ask(node));
    let answers = in_time(asked, late).await;
    let (mut good, mut refused, mut failed) = (Vec::new(), None, None);
    for (&node, answer) in nodes.iter().zip(answers) {
        match answer {
            Ok(answer) => good.push((node, answer)),
            Err(Error::Refused { field, why }) => {
                let why = format!("the node `{}`: {why}", node.name);
                refused = Some(Error::Refused { field, why });
            }
            Err(error) => {
                tracing::warn!(node = node.name, %error, "cannot determine whether a node has the image");
                failed = Some(Error::Failed(format!("the node `{}`: {error}", node.name)));
            }
        }
    }
    match refused.or(failed) {
        Some(error) if good.is_empty() => Err(error),
        _ => Ok(good),
    }
}

/// Waits for all results. After the first success, the others have `late` to finish.
async fn in_time<T, A>(
    asked: impl Iterator<Item = A>,
    late: Duration,
) -> Vec<Result<Option<T>, Error>>
where
    A: Future<Output = Result<Option<T>, Error>>,
{
    let is_there = &CancellationToken::new();
    let timed = asked.map(|asked| async move {
        let is_late = async {
            is_there.cancelled().await;
            sleep(late).await;
        };
        let answer = tokio::select! {
            answer = asked => answer?,
            () = is_late => {
                let what = "inspect or pull the image that another node already has";
                return Err(Error::Timeout { what, within: late });
            }
        };
        if answer.is_some() {
            is_there.cancel();
        }
        Ok(answer)
    });
    join_all(timed).await
}

/// The server's command line, program first.
fn arguments(image: &Image, command: &[String]) -> Vec<String> {
    let rest = match command {
        [] => &image.command,
        command => command,
    };
    [&image.entrypoint, rest].concat()
}

/// Returns the id of the config with the gate, and creates it if missing.
async fn gate_of(manager: &Client) -> Result<String, Error> {
    let name = spec::gate_name();
    let there = async || {
        let config = manager.docker.inspect_config(&name);
        let config = found(call("inspect a config", READ_TIMEOUT, config).await)?;
        Ok::<_, Error>(config.and_then(|config| config.id))
    };
    if let Some(id) = there().await? {
        return Ok(id);
    }
    let created = manager.docker.create_config(spec::gate());
    match call(
        "create the config with the gate program",
        CHANGE_TIMEOUT,
        created,
    )
    .await
    {
        Ok(created) => Ok(created.id),
        // Another gateway has created the config in the meantime.
        Err(Call::Daemon(409, _)) => Ok(there().await?.unwrap_or_default()),
        Err(error) => Err(error.into()),
    }
}

/// Waits until a gate runs.
async fn wait(nodes: &Nodes, service: String) -> Result<Waiting<'_>, Error> {
    let begun = Instant::now();
    loop {
        let tasks = tasks_of(&nodes.manager, &service).await?;
        let state = |task: &Task| task.status.as_ref().and_then(|status| status.state);
        let runs = |task: &&Task| state(task) == Some(TaskState::RUNNING);
        if let Some(task) = tasks.iter().find(runs)
            && let Place {
                node: Some(node),
                container: Some(container),
            } = Place::of(task)
        {
            let Some(node) = nodes.answering(&node) else {
                let why = nodes.hindrance(&node).unwrap_or_default();
                return Err(Error::Failed(format!(
                    "Swarm chose a node that cannot be used: {why}"
                )));
            };
            return Ok(Waiting {
                service,
                node,
                container,
            });
        }
        let said = tasks.iter().find_map(|task| {
            let status = task.status.as_ref()?;
            let why = status.err.as_ref().filter(|why| !why.is_empty());
            why.or(status.message.as_ref()).cloned()
        });
        let said = said.unwrap_or_else(|| "Swarm gives no reason".to_owned());
        if let Some(task) = tasks.first()
            && has_ended(state(task))
        {
            return Err(refusal(Call::Daemon(0, said)));
        }
        let waits = tasks.iter().all(|task| {
            matches!(
                state(task),
                None | Some(TaskState::NEW | TaskState::PENDING)
            )
        });
        let limit = if waits {
            PLACEMENT_TIMEOUT
        } else {
            START_TIMEOUT
        };
        if begun.elapsed() > limit {
            return Err(Error::Failed(format!(
                "Swarm did not start the service within {} s: {said}",
                limit.as_secs()
            )));
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Disconnects a container from all networks. No server code runs in it yet.
async fn isolate(client: &Client, container: &str) -> Result<(), Error> {
    let inspected = client.inspect(container).await?.unwrap_or_default();
    for (name, _) in readback::networks(&inspected) {
        let request = NetworkDisconnectRequest {
            container: container.to_owned(),
            force: Some(true),
        };
        let left = client.docker.disconnect_network(name, request);
        within(
            "disconnect a container from a network",
            CHANGE_TIMEOUT,
            left,
        )
        .await?;
    }
    Ok(())
}

/// Finds the invalid field of the request from the swarm's error text.
fn refusal(error: Call) -> Error {
    let Call::Daemon(status, why) = error else {
        return error.into();
    };
    let field = if why.contains("invalid mount") || why.contains("volume") {
        "volumes"
    } else if why.contains("No such image") {
        "image"
    } else if why.contains("network") {
        "network"
    } else if why.contains("emory") {
        "memory"
    } else {
        return Call::Daemon(status, why).into();
    };
    Error::Refused { field, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_node_that_hangs_holds_nobody_up_that_is_better_off() {
        let begun = Instant::now();
        let after = async |seconds, answer: Result<Option<()>, Error>| {
            sleep(Duration::from_secs(seconds)).await;
            answer
        };
        let sick = || Err(Error::Failed("sick".to_owned()));
        let asked = [
            after(1000, Ok(Some(()))),
            after(0, sick()),
            after(1, Ok(None)),
            after(10, Ok(Some(()))),
            after(12, Ok(Some(()))),
        ];
        let answers = in_time(asked.into_iter(), LATE_INSPECT_TIMEOUT).await;
        let kinds = answers.iter().map(|answer| match answer {
            Ok(None) => "none",
            Ok(Some(())) => "there",
            Err(Error::Timeout { .. }) => "late",
            Err(_) => "failed",
        });
        let kinds: Vec<&str> = kinds.collect();
        assert_eq!(kinds, ["late", "failed", "none", "there", "there"]);
        assert_eq!(
            begun.elapsed(),
            Duration::from_secs(10) + LATE_INSPECT_TIMEOUT
        );
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_late_where_nobody_has_it() {
        let slow = async || {
            sleep(Duration::from_secs(20)).await;
            Ok(None::<()>)
        };
        let answers = in_time([slow(), slow()].into_iter(), LATE_INSPECT_TIMEOUT).await;
        assert!(
            answers.iter().all(|answer| matches!(answer, Ok(None))),
            "{answers:?}"
        );
    }
}
