//! Shared test support: a separate installation, and functions for inspecting the swarm.

#![expect(
    clippy::unwrap_used,
    reason = "a failure in a test's helper is the test's"
)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use containers::docker::{Swarm, SwarmOptions};
use runtime::{Error, Ports};
use tokio::time::{Instant, sleep};

use crate::shared;
pub(crate) use crate::shared::{of_image, running, sh};
pub(crate) use crate::streams::{TEST_TIMEOUT, read_until, rest, stdio, wait_for};

/// The directory of a swarm's daemons, as created by `xtask/src/swarm.rs`.
const VARIABLE: &str = "TOOLWHARF_TEST_SWARM";
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// The node that tests may kill.
pub(crate) const LOST_NODE: usize = 4;

pub(crate) type Bench = shared::Bench<Swarm, SwarmOptions>;

pub(crate) fn node(number: usize) -> PathBuf {
    let dir = std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{VARIABLE} names no swarm; run: cargo xtask swarm -- cargo nextest run -p containers --test swarm"
        )
    });
    PathBuf::from(dir).join(number.to_string())
}

pub(crate) fn socket(number: usize) -> String {
    format!("unix://{}", node(number).join("sock").display())
}

/// `kernel`: the label of the nodes to use.
pub(crate) fn bench(install: &str, kernel: &str) -> Bench {
    with(install, &[1, 2, 3], |options| {
        options.constraints = vec![format!("node.labels.kernel == {kernel}")];
        options.gvisor = kernel == "gvisor";
    })
}

pub(crate) fn with(
    install: &str,
    nodes: &[usize],
    change: impl FnOnce(&mut SwarmOptions),
) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let mut options = SwarmOptions {
        daemons: nodes.iter().map(|&number| socket(number)).collect(),
        tls: None,
        constraints: Vec::new(),
        gvisor: false,
        network: "bridge".to_owned(),
        volume_driver: None,
        volume_options: BTreeMap::new(),
        install: format!("{install}-{}", std::process::id()),
        run: "this".into(),
        ports: Ports::new(dir.path().join("ports.json")),
    };
    change(&mut options);
    Bench {
        runtime: Swarm::new(options.clone()).unwrap(),
        options,
        _dir: dir,
    }
}

/// Runs the client of a node's daemon.
pub(crate) fn docker(number: usize, args: &[&str]) -> String {
    shared::cli(&socket(number), args)
}

impl Bench {
    /// Returns the bench with other options.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut SwarmOptions)) -> Self {
        change(&mut self.options);
        self.runtime = Swarm::new(self.options.clone()).unwrap();
        self
    }

    /// Returns the runtime of another run of the same installation.
    pub(crate) fn next_run(&self) -> Swarm {
        let options = SwarmOptions {
            run: "next".into(),
            ..self.options.clone()
        };
        Swarm::new(options).unwrap()
    }

    pub(crate) fn service(&self) -> String {
        format!("toolwharf-{}-h1", self.options.install)
    }

    /// Lists the objects of this installation at a node's daemon, such as its services (`service ls`).
    pub(crate) fn list(&self, number: usize, command: &[&str]) -> String {
        let listed = self.try_list(number, command);
        listed.unwrap_or_else(|why| panic!("node {number}: {why}"))
    }

    fn try_list(&self, number: usize, command: &[&str]) -> Result<String, String> {
        let label = format!("label=toolwharf.install={}", self.options.install);
        let filter = ["--quiet", "--filter", &label];
        shared::try_cli(&socket(number), &[command, &filter].concat())
    }

    /// Lists everything of this installation in the swarm.
    pub(crate) fn things(&self) -> Vec<String> {
        let mut all = Vec::new();
        let listed = self.list(1, &["service", "ls"]);
        all.extend(listed.lines().map(|line| format!("service {line}")));
        for (number, id) in self.containers() {
            all.push(format!("container {id} on node {number}"));
        }
        all
    }

    /// Containers that are running or have run, with the number of their node.
    pub(crate) fn containers(&self) -> Vec<(usize, String)> {
        let mut all = Vec::new();
        for number in [1, 2, 3, LOST_NODE] {
            if !node(number).join("pid").exists() {
                continue;
            }
            let listed = match self.try_list(number, &["ps", "--all", "--no-trunc"]) {
                Ok(listed) => listed,
                // Another test may be killing the node at this moment.
                Err(_) if !self.options.daemons.contains(&socket(number)) => continue,
                Err(why) => panic!("node {number}: {why}"),
            };
            all.extend(listed.lines().map(|id| (number, id.to_owned())));
        }
        all
    }

    pub(crate) async fn nothing_left(&self) {
        let mut left = Vec::new();
        let start = Instant::now();
        while start.elapsed() < TEST_TIMEOUT {
            left = self.things();
            if left.is_empty() {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
        panic!("left: {left:?}");
    }
}

/// Checks that something failed because the swarm cannot be used, for a reason that contains `part`.
#[track_caller]
pub(crate) fn unavailable<T: std::fmt::Debug>(result: Result<T, Error>, part: &str) {
    match result {
        Err(Error::Unavailable(why)) => assert!(why.contains(part), "{why}"),
        other => panic!("{other:?}"),
    }
}
