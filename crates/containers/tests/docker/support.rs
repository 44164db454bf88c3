//! Shared test support: a separate installation, and functions for inspecting the daemon.

#![expect(
    clippy::unwrap_used,
    reason = "a failure in a test's helper is the test's"
)]

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use containers::docker::{Docker, Options};
use model::{Program, Provider};
use runtime::process::Guests;
use runtime::{Error, Exit, Instance, Ports, Runtime as _};
use tokio::time::timeout;

use crate::server::Server;
pub(crate) use crate::streams::{TEST_TIMEOUT, read_until, rest, stdio, wait_for};

const VARIABLE: &str = "TOOLWHARF_TEST_DOCKER";
pub(crate) const IMAGE: &str = "toolwharf-test/busybox";
pub(crate) const GRACE: Duration = Duration::from_secs(10);
pub(crate) const BOTH: [Provider; 2] = [Provider::Runc, Provider::Gvisor];

/// A runtime with a separate installation, and what is needed to inspect it independently.
pub(crate) struct Bench {
    pub(crate) docker: Docker,
    pub(crate) options: Options,
    _dir: tempfile::TempDir,
}

fn host() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!("{VARIABLE} names no Docker daemon; run: cargo xtask docker -- cargo nextest run -p containers")
    })
}

pub(crate) fn bench(provider: Provider) -> Bench {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        host: host(),
        provider,
        runtime: match provider {
            Provider::Gvisor => "runsc".into(),
            _ => "runc".into(),
        },
        network: "bridge".into(),
        install: format!("test-{}-{serial}", std::process::id()),
        run: "this".into(),
        guests: Guests::default(),
        dir: dir.path().to_owned(),
        ports: Ports::new(dir.path().join("ports.json")),
    };
    Bench {
        docker: Docker::new(options.clone()).unwrap(),
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

/// An id that no other test has. The ports of a server depend on its id, so that tests with the same id compete for them.
pub(crate) fn own_id() -> String {
    format!("t{}", std::process::id())
}

pub(crate) fn sh(script: &str) -> Server {
    running(&["/bin/sh", "-c", script])
}

impl Bench {
    pub(crate) async fn launch(&self, server: Server) -> Result<Instance, Error> {
        timeout(TEST_TIMEOUT, self.docker.launch(server.unit()))
            .await
            .unwrap()
    }

    /// Runs a server until it exits. Returns its output and exit.
    pub(crate) async fn run(&self, server: Server) -> (String, Exit, Instance) {
        let mut instance = self.launch(server).await.unwrap();
        let text = rest(&mut instance).await;
        let exit = timeout(TEST_TIMEOUT, instance.handle.exited())
            .await
            .unwrap();
        (text, exit, instance)
    }

    pub(crate) async fn refused(&self, server: Server) -> (&'static str, String) {
        match self.launch(server).await {
            Err(Error::Refused { field, why }) => (field, why),
            other => panic!("not refused: {other:?}"),
        }
    }

    pub(crate) fn name(&self, id: &str) -> String {
        format!("toolwharf-{id}.{}", self.options.install)
    }

    /// Another run of the same installation.
    pub(crate) fn next_run(&self) -> Docker {
        let options = Options {
            run: "next".into(),
            ..self.options.clone()
        };
        Docker::new(options).unwrap()
    }

    /// Runs Docker's own client.
    pub(crate) fn cli(&self, args: &[&str]) -> String {
        let output = Command::new("/usr/bin/docker")
            .args(["--host", &self.options.host])
            .args(args)
            .output()
            .expect("docker's own client: cargo xtask setup installs it");
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "docker {args:?}: {why}");
        text
    }

    /// Waits until no container of this installation is left in the daemon.
    pub(crate) async fn nothing_left(&self) {
        wait_for("no container is left", || self.containers().is_empty()).await;
    }

    pub(crate) async fn something_there(&self) {
        wait_for("there is a container", || !self.containers().is_empty()).await;
    }

    fn containers(&self) -> String {
        let label = format!("label=toolwharf.install={}", self.options.install);
        self.cli(&["ps", "-aq", "--filter", &label])
    }
}

pub(crate) fn holds(instance: &Instance, what: &str) -> bool {
    let row = instance.enforced.iter().find(|row| row.what == what);
    row.unwrap_or_else(|| panic!("no row for {what}")).holds
}
