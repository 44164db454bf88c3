//! Shared test support: a separate installation, and functions for inspecting the daemon.

#![expect(
    clippy::unwrap_used,
    reason = "a failure in a test's helper is the test's"
)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use containers::docker::{Docker, Options};
use model::Provider;
use runtime::process::Guests;
use runtime::{Exit, Instance, Ports};
use testkit::in_time;

use crate::server::Server;
use crate::shared;
pub(crate) use crate::shared::{IMAGE, of_image, running, sh};
pub(crate) use crate::streams::{TEST_TIMEOUT, read_until, rest, stdio, wait_for};

const VARIABLE: &str = "TOOLWHARF_TEST_DOCKER";
pub(crate) const GRACE: Duration = Duration::from_secs(10);
pub(crate) const BOTH: [Provider; 2] = [Provider::Runc, Provider::Gvisor];

pub(crate) type Bench = shared::Bench<Docker, Options>;

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
        runtime: Docker::new(options.clone()).unwrap(),
        options,
        _dir: dir,
    }
}

/// An id that no other test has. The ports of a server depend on its id, so equal ids would compete.
pub(crate) fn own_id() -> String {
    format!("t{}", std::process::id())
}

impl Bench {
    /// Runs a server until it exits. Returns its output and exit.
    pub(crate) async fn run(&self, server: Server) -> (String, Exit, Instance) {
        let mut instance = self.launch(server).await.unwrap();
        let text = rest(&mut instance).await;
        let exit = in_time(TEST_TIMEOUT, instance.handle.exited()).await;
        (text, exit, instance)
    }

    pub(crate) fn name(&self, id: &str) -> String {
        format!("toolwharf-{id}.{}", self.options.install)
    }

    /// Creates another run of the same installation.
    pub(crate) fn next_run(&self) -> Docker {
        let options = Options {
            run: "next".into(),
            ..self.options.clone()
        };
        Docker::new(options).unwrap()
    }

    /// Runs Docker's own client.
    pub(crate) fn cli(&self, args: &[&str]) -> String {
        shared::cli(&self.options.host, args)
    }

    /// Lists the objects of this installation, such as containers (`ps`).
    pub(crate) fn list(&self, command: &[&str]) -> String {
        let label = format!("label=toolwharf.install={}", self.options.install);
        self.cli(&[command, &["-q", "--filter", &label]].concat())
    }

    /// Waits until no container of this installation is left in the daemon.
    pub(crate) async fn nothing_left(&self) {
        wait_for("no container is left", || self.containers().is_empty()).await;
    }

    pub(crate) async fn something_there(&self) {
        wait_for("there is a container", || !self.containers().is_empty()).await;
    }

    fn containers(&self) -> String {
        self.list(&["ps", "-a"])
    }
}

pub(crate) fn holds(instance: &Instance, what: &str) -> bool {
    let row = instance.enforced.iter().find(|row| row.what == what);
    row.unwrap_or_else(|| panic!("no row for {what}")).holds
}
