//! Shared by the tests with Docker's daemons: a separate installation, servers to run in it, and Docker's own client.

use std::process::Command;

use model::Program;
use runtime::{Error, Instance, Runtime};
use testkit::in_time;

use crate::server::Server;
use crate::streams::TEST_TIMEOUT;

pub(crate) const IMAGE: &str = "toolwharf-test/busybox";

/// A runtime with a separate installation.
pub(crate) struct Bench<R, O> {
    pub(crate) runtime: R,
    pub(crate) options: O,
    pub(crate) _dir: tempfile::TempDir,
}

impl<R: Runtime, O> Bench<R, O> {
    pub(crate) async fn launch(&self, server: Server) -> Result<Instance, Error> {
        in_time(TEST_TIMEOUT, self.runtime.launch(server.unit())).await
    }

    pub(crate) async fn refused(&self, server: Server) -> (&'static str, String) {
        match self.launch(server).await {
            Err(Error::Refused { field, why }) => (field, why),
            other => panic!("not refused: {other:?}"),
        }
    }

    /// Checks that a server is refused for this field, with a reason that contains `part`.
    pub(crate) async fn refuses(&self, server: Server, field: &str, part: &str) {
        let (found, why) = self.refused(server).await;
        assert!(found == field && why.contains(part), "{found}: {why}");
    }
}

/// Creates a server of this image.
pub(crate) fn of_image(image: &str, command: &[&str]) -> Server {
    let command = command.iter().map(|&word| word.to_owned()).collect();
    let image = image.to_owned();
    Server::new("h1", Program::Image { image, command })
}

pub(crate) fn running(command: &[&str]) -> Server {
    of_image(IMAGE, command)
}

pub(crate) fn sh(script: &str) -> Server {
    running(&["/bin/sh", "-c", script])
}

/// Runs Docker's own client with the daemon at `host`, which must succeed.
pub(crate) fn cli(host: &str, args: &[&str]) -> String {
    try_cli(host, args).unwrap_or_else(|why| panic!("docker {args:?}: {why}"))
}

/// Runs Docker's own client with the daemon at `host`.
///
/// # Errors
/// If it failed, what it wrote to stderr.
pub(crate) fn try_cli(host: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new("/usr/bin/docker")
        .args(["--host", host])
        .args(args)
        .output()
        .expect("docker's own client: cargo xtask setup installs it");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}
