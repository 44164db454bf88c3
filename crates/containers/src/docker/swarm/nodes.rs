//! The nodes of a swarm and their daemons, in their current state.

use std::collections::HashMap;
use std::env::consts::ARCH;
use std::sync::Arc;
use std::time::Duration;

use bollard::models::{NodeSpecAvailabilityEnum, NodeState};
use bollard::query_parameters::ListNodesOptions;
use futures_util::future::join_all;

use super::Inner;
use crate::common::late;
use crate::docker::engine::{Client, Engine, READ_TIMEOUT, within};
use runtime::unit::Error;

/// Timeout for a daemon to report its node. A slower daemon counts as missing.
const HELLO_TIMEOUT: Duration = Duration::from_secs(3);

/// A node whose daemon responds.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) engine: Arc<Engine>,
    pub(super) client: Client,
    pub(super) id: String,
    pub(super) name: String,
    /// True if the daemon can limit CPU, memory and processes, in this order.
    pub(super) able: [bool; 3],
    pub(super) cores: Option<u32>,
    /// Processor architecture as in Rust: `x86_64`, `aarch64`. Empty if not reported.
    arch: String,
    is_manager: bool,
}

/// The nodes of a swarm that can be reached, and the manager's view of all nodes.
pub(super) struct Nodes {
    pub(super) manager: Client,
    /// Nodes whose daemons respond, regardless of their state according to the manager.
    pub(super) answering: Vec<Node>,
    /// All nodes of the swarm.
    all: Vec<Known>,
    constraints: Vec<String>,
    /// Daemons that do not respond, with the reason.
    missing: Vec<String>,
}

/// The manager's view of a node.
struct Known {
    id: String,
    name: String,
    role: String,
    labels: HashMap<String, String>,
    /// Why the node accepts no tasks. `None` if it accepts them.
    hindrance: Option<String>,
}

impl Inner {
    /// Contacts all daemons. At least one must be a manager's.
    pub(super) async fn nodes(&self) -> Result<Nodes, Error> {
        let what = "identify the swarm node of a daemon";
        let asked = self.engines.iter();
        let asked = asked.map(|engine| late(HELLO_TIMEOUT, what, hello(engine)));
        let mut answering: Vec<Node> = Vec::new();
        let mut missing = Vec::new();
        for (host, said) in self.options.daemons.iter().zip(join_all(asked).await) {
            match said {
                Ok(node) if answering.iter().any(|known| known.id == node.id) => {}
                Ok(node) => answering.push(node),
                Err(error) => missing.push(format!("`{host}`: {error}")),
            }
        }
        for node in answering.iter().filter(|node| node.is_manager) {
            let listed = node.client.docker.list_nodes(None::<ListNodesOptions>);
            match within("list the nodes of the swarm", HELLO_TIMEOUT, listed).await {
                Ok(all) => {
                    return Ok(Nodes {
                        manager: node.client.clone(),
                        all: all.into_iter().map(known).collect(),
                        constraints: self.options.constraints.clone(),
                        missing,
                        answering,
                    });
                }
                Err(error) => missing.push(format!("the manager `{}`: {error}", node.name)),
            }
        }
        let why = match missing.is_empty() {
            true => "none of the daemons in `[swarm] daemons` belongs to a manager".to_owned(),
            false => missing.join("; "),
        };
        Err(Error::Unavailable(format!(
            "no manager of the swarm answers: {why}"
        )))
    }

    pub(super) async fn probe(&self) -> Result<String, Error> {
        let nodes = self.nodes().await?;
        let usable = nodes.usable();
        if usable.is_empty() {
            return Err(nodes.nowhere());
        }
        Ok(format!(
            "Docker Swarm {}, {} of {} nodes",
            nodes.manager.version,
            usable.len(),
            nodes.all.len()
        ))
    }
}

async fn hello(engine: &Arc<Engine>) -> Result<Node, Error> {
    let client = engine.connect().await?;
    let info = within(
        "read the configuration of a Docker daemon",
        READ_TIMEOUT,
        client.docker.info(),
    )
    .await?;
    let swarm = info.swarm.unwrap_or_default();
    let id = swarm.node_id.filter(|id| !id.is_empty());
    let id =
        id.ok_or_else(|| Error::Unavailable("the daemon has not joined a swarm".to_owned()))?;
    Ok(Node {
        engine: Arc::clone(engine),
        client,
        id,
        name: info.name.unwrap_or_default(),
        able: [info.cpu_cfs_quota, info.memory_limit, info.pids_limit]
            .map(|able| able.unwrap_or(false)),
        cores: info.ncpu.and_then(|cores| u32::try_from(cores).ok()),
        arch: info.architecture.unwrap_or_default(),
        is_manager: swarm.control_available.unwrap_or(false),
    })
}

fn known(node: bollard::models::Node) -> Known {
    let state = node.status.and_then(|status| status.state);
    let spec = node.spec.unwrap_or_default();
    let hindrance = match (state, spec.availability) {
        (Some(NodeState::READY), Some(NodeSpecAvailabilityEnum::ACTIVE)) => None,
        (Some(NodeState::READY), Some(other)) => Some(format!("has the availability `{other}`")),
        (state, _) => Some(format!("is {}", state.unwrap_or(NodeState::UNKNOWN))),
    };
    let description = node.description.unwrap_or_default();
    Known {
        id: node.id.unwrap_or_default(),
        name: description.hostname.unwrap_or_default(),
        role: spec.role.map(|role| role.to_string()).unwrap_or_default(),
        labels: spec.labels.unwrap_or_default(),
        hindrance,
    }
}

impl Known {
    /// Returns whether the node satisfies a constraint. Swarm decides about placement; this only selects the nodes on
    /// which to look for images.
    fn meets(&self, constraint: &str) -> bool {
        let (what, wanted, is_equal) =
            match (constraint.split_once("=="), constraint.split_once("!=")) {
                (Some((what, wanted)), _) => (what, wanted, true),
                (None, Some((what, wanted))) => (what, wanted, false),
                (None, None) => return true,
            };
        let found = match what.trim() {
            "node.id" => self.id.as_str(),
            "node.hostname" => self.name.as_str(),
            "node.role" => self.role.as_str(),
            other => match other.strip_prefix("node.labels.") {
                Some(label) => self.labels.get(label).map_or("", String::as_str),
                // Only the daemon can evaluate the other constraints.
                None => return true,
            },
        };
        found.eq_ignore_ascii_case(wanted.trim()) == is_equal
    }
}

impl Nodes {
    /// Nodes that can be reached, accept tasks, can run the gate, and meet the constraints.
    pub(super) fn usable(&self) -> Vec<&Node> {
        let takes_tasks = |node: &&Node| {
            let known = self.all.iter().find(|known| known.id == node.id);
            known.is_some_and(|known| {
                let mut constraints = self.constraints.iter();
                self.hindrance(&known.id).is_none()
                    && constraints.all(|constraint| known.meets(constraint))
            })
        };
        self.answering.iter().filter(takes_tasks).collect()
    }

    pub(super) fn answering(&self, id: &str) -> Option<&Node> {
        self.answering.iter().find(|node| node.id == id)
    }

    /// Returns whether the swarm has a node with this id, reachable or not. A node that has left never returns with the
    /// same id.
    pub(super) fn has(&self, id: &str) -> bool {
        self.all.iter().any(|known| known.id == id)
    }

    /// The ids of all nodes except `than`, for placement constraints that exclude them.
    pub(super) fn others(&self, than: &[&Node]) -> Vec<&str> {
        let ids = self.all.iter().map(|known| known.id.as_str());
        ids.filter(|&id| than.iter().all(|node| node.id != id))
            .collect()
    }

    /// Why a node cannot run anything now.
    pub(super) fn hindrance(&self, id: &str) -> Option<String> {
        let Some(known) = self.all.iter().find(|known| known.id == id) else {
            return Some(format!("the node {id} has left the swarm"));
        };
        let name = &known.name;
        match (&known.hindrance, self.answering(id)) {
            (Some(why), _) => Some(format!("the node `{name}` ({id}) {why}")),
            (None, None) => Some(format!(
                "the daemon of the node `{name}` ({id}) does not respond, or is not in `[swarm] daemons`"
            )),
            (None, Some(node)) => match node.arch.as_str() {
                "" | ARCH => None,
                other => Some(format!(
                    "the node `{name}` ({id}) has the architecture `{other}`, but this Toolwharf supports `{ARCH}` only; exclude the \
                     node with `[swarm] constraints`, or run a Toolwharf built for `{other}`"
                )),
            },
        }
    }

    fn hindrances(&self) -> String {
        let why = self
            .all
            .iter()
            .filter_map(|known| self.hindrance(&known.id));
        let missing = self.missing.iter().cloned();
        why.chain(missing).collect::<Vec<_>>().join("; ")
    }

    /// The error if no node can run anything.
    pub(super) fn nowhere(&self) -> Error {
        let why = self.hindrances();
        Error::Unavailable(format!("no node of the swarm can run servers now: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker};

    use super::*;

    /// Creates a client that never gets a response.
    fn client() -> Client {
        let nobody = |_: BollardRequest| std::future::pending();
        let docker =
            Docker::connect_with_custom_transport(nobody, None::<String>, 1, API_DEFAULT_VERSION);
        Client {
            docker: docker.expect("nothing is looked for"),
            version: String::new(),
        }
    }

    #[test]
    fn a_node_of_another_processor_is_not_used_and_says_so() {
        let known = |id: &str| Known {
            id: id.to_owned(),
            name: format!("name-{id}"),
            role: String::new(),
            labels: HashMap::new(),
            hindrance: None,
        };
        let node = |id: &str, arch: &str| Node {
            engine: Arc::new(Engine::new("unix:///nowhere").expect("a path")),
            client: client(),
            id: id.to_owned(),
            name: format!("name-{id}"),
            able: [true; 3],
            cores: None,
            arch: arch.to_owned(),
            is_manager: false,
        };
        let nodes = Nodes {
            manager: client(),
            answering: vec![node("own", ARCH), node("other", "vax"), node("silent", "")],
            all: ["own", "other", "silent"].map(known).into(),
            constraints: Vec::new(),
            missing: Vec::new(),
        };
        let usable = nodes.usable();
        let usable: Vec<&str> = usable.iter().map(|node| node.id.as_str()).collect();
        assert_eq!(usable, ["own", "silent"]);
        let why = nodes.nowhere().to_string();
        assert!(
            why.contains("`name-other` (other) has the architecture `vax`"),
            "{why}"
        );
        assert!(!why.contains("name-own"), "{why}");
        for (id, way_out) in [
            ("other", None),
            ("gone", Some("`docker config rm here-h1`")),
        ] {
            match nodes.tied_to(id, "here-h1").map(|node| node.id.clone()) {
                Err(Error::Refused { why, .. }) => {
                    assert_eq!(why.contains("config rm"), way_out.is_some(), "{why}");
                    assert!(way_out.is_none_or(|way_out| why.contains(way_out)), "{why}");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn constraints_are_those_of_docker() {
        let node = Known {
            id: "abc".to_owned(),
            name: "node-1".to_owned(),
            role: "manager".to_owned(),
            labels: HashMap::from([("zone".to_owned(), "a".to_owned())]),
            hindrance: None,
        };
        for (constraint, meets) in [
            ("node.labels.zone == a", true),
            ("node.labels.zone==b", false),
            ("node.labels.zone != b", true),
            ("node.labels.other == a", false),
            ("node.labels.other != a", true),
            ("node.hostname == Node-1", true),
            ("node.id != abc", false),
            ("node.role == worker", false),
            ("engine.labels.x == y", true),
        ] {
            assert_eq!(node.meets(constraint), meets, "{constraint}");
        }
    }
}
