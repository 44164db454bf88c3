//! Shared test support: a separate installation, and functions for inspecting the swarm.

#![expect(
    clippy::unwrap_used,
    reason = "a failure in a test's helper is the test's"
)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use containers::docker::{Swarm, SwarmOptions};
use model::Program;
use runtime::{Error, Instance, Ports, Runtime as _};
use tokio::time::{Instant, sleep, timeout};

use crate::server::Server;
pub(crate) use crate::streams::{TEST_TIMEOUT, read_until, rest, stdio, wait_for};

/// The directory of a swarm's daemons, as created by `xtask/src/swarm.rs`.
const VARIABLE: &str = "TOOLWHARF_TEST_SWARM";
pub(crate) const IMAGE: &str = "toolwharf-test/busybox";
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// The node that tests may kill.
pub(crate) const LOST_NODE: usize = 4;

/// A runtime with a separate installation.
pub(crate) struct Bench {
    pub(crate) swarm: Swarm,
    pub(crate) options: SwarmOptions,
    _dir: tempfile::TempDir,
}

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
        swarm: Swarm::new(options.clone()).unwrap(),
        options,
        _dir: dir,
    }
}

pub(crate) fn running(command: &[&str]) -> Server {
    let command = command.iter().map(|&word| word.to_owned()).collect();
    let source = Program::Image {
        image: IMAGE.into(),
        command,
    };
    Server::new("h1", source)
}

pub(crate) fn sh(script: &str) -> Server {
    running(&["/bin/sh", "-c", script])
}

/// Runs the client of a node's daemon.
pub(crate) fn docker(number: usize, args: &[&str]) -> String {
    let output = Command::new("/usr/bin/docker")
        .args(["--host", &socket(number)])
        .args(args)
        .output()
        .expect("docker's own client: cargo xtask setup installs it");
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "docker {args:?}: {why}");
    text
}

impl Bench {
    /// The same with other options.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut SwarmOptions)) -> Self {
        change(&mut self.options);
        self.swarm = Swarm::new(self.options.clone()).unwrap();
        self
    }

    pub(crate) async fn launch(&self, server: Server) -> Result<Instance, Error> {
        timeout(TEST_TIMEOUT, self.swarm.launch(server.unit()))
            .await
            .unwrap()
    }

    pub(crate) async fn refused(&self, server: Server) -> (&'static str, String) {
        match self.launch(server).await {
            Err(Error::Refused { field, why }) => (field, why),
            other => panic!("not refused: {other:?}"),
        }
    }

    /// Another run of the same installation.
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

    /// Everything of this installation in the swarm.
    pub(crate) fn things(&self) -> Vec<String> {
        let label = format!("label=toolwharf.install={}", self.options.install);
        let mut all = Vec::new();
        let listed = docker(1, &["service", "ls", "--quiet", "--filter", &label]);
        all.extend(listed.lines().map(|line| format!("service {line}")));
        for (number, id) in self.containers() {
            all.push(format!("container {id} on node {number}"));
        }
        all
    }

    /// Containers that are running or have run, with the number of their node.
    pub(crate) fn containers(&self) -> Vec<(usize, String)> {
        let label = format!("label=toolwharf.install={}", self.options.install);
        let mut all = Vec::new();
        for number in [1, 2, 3, LOST_NODE] {
            if !node(number).join("pid").exists() {
                continue;
            }
            let args = ["ps", "--all", "--quiet", "--no-trunc", "--filter", &label];
            let listed = docker(number, &args);
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
