//! Shared test support: a separate namespace, and functions for inspecting the cluster.

#![expect(
    clippy::unwrap_used,
    reason = "a failure in a test's helper is the test's"
)]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use containers::kubernetes::{Kubernetes, Options};
use model::Program;
use runtime::{Instance, Ports};
use serde_json::Value;
use testkit::wait_for;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::server::Server;

const VARIABLE: &str = "TOOLWHARF_TEST_KUBERNETES";
/// Timeout for everything that should complete quickly.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn config() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{VARIABLE} names no kubeconfig; run: cargo xtask kubernetes -- cargo nextest run -p containers --features kubernetes -E \
             'binary(kubernetes)'"
        )
    })
}

fn kubectl(args: &[&str]) -> Command {
    let mut kubectl = Command::new("kubectl");
    kubectl.args(["--kubeconfig", &config()]).args(args);
    kubectl
}

/// A namespace of the cluster. Dropping it deletes the namespace.
pub(crate) struct Namespace {
    pub(crate) name: String,
    dir: tempfile::TempDir,
}

impl Namespace {
    pub(crate) async fn new(name: &str) -> Self {
        let name = format!("{name}-{}", std::process::id());
        let dir = tempfile::tempdir().unwrap();
        let namespace = Self { name, dir };
        let made = kubectl(&["create", "namespace", &namespace.name]).status();
        assert!(made.unwrap().success());
        // Pods are rejected before the default account exists.
        wait_for("the default account", TEST_TIMEOUT, async || {
            namespace
                .try_kubectl(&["get", "serviceaccount", "default"])
                .is_ok()
        })
        .await;
        namespace
    }

    fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        let output = kubectl(&["--namespace", &self.name])
            .args(args)
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr)),
        }
    }

    /// Runs kubectl in this namespace.
    pub(crate) fn kubectl(&self, args: &[&str]) -> String {
        self.try_kubectl(args)
            .unwrap_or_else(|why| panic!("kubectl {args:?}: {why}"))
    }

    pub(crate) fn apply(&self, objects: &Value) {
        let file = self.dir.path().join("objects.json");
        fs::write(&file, objects.to_string()).unwrap();
        self.kubectl(&["apply", "--filename", file.to_str().unwrap()]);
    }

    /// The number of objects of these kinds that Toolwharf created.
    pub(crate) fn count(&self, kinds: &str) -> usize {
        let selector = "--selector=app.kubernetes.io/managed-by=toolwharf";
        self.kubectl(&["get", kinds, "--output=name", selector])
            .lines()
            .count()
    }

    /// Returns a kubeconfig for a service account.
    pub(crate) async fn account(&self, name: &str) -> PathBuf {
        let jsonpath = "--output=jsonpath={.secrets[0].name}";
        let mut secret = String::new();
        wait_for("the token of an account", TEST_TIMEOUT, async || {
            secret = self.kubectl(&["get", "serviceaccount", name, jsonpath]);
            !secret.is_empty()
        })
        .await;
        let template = "--output=go-template={{.data.token | base64decode}}";
        let token = self.kubectl(&["get", "secret", &secret, template]);
        let own = self.dir.path().join(name);
        fs::copy(config(), &own).unwrap();
        for change in [
            ["set-credentials", "account", &format!("--token={token}")],
            ["set-context", "test", "--user=account"],
            ["set-context", "test", &format!("--namespace={}", self.name)],
        ] {
            let mut kubectl = Command::new("kubectl");
            kubectl
                .args(["config", "--kubeconfig"])
                .arg(&own)
                .args(change);
            assert!(kubectl.stdout(Stdio::null()).status().unwrap().success());
        }
        own
    }

    /// A runtime that uses this namespace, as one run of an installation.
    pub(crate) fn runtime(&self, kubeconfig: Option<PathBuf>, run: &str) -> Kubernetes {
        self.runtime_of("test", kubeconfig, run)
    }

    /// Returns a runtime like [`Self::runtime`], for another installation.
    pub(crate) fn runtime_of(
        &self,
        install: &str,
        kubeconfig: Option<PathBuf>,
        run: &str,
    ) -> Kubernetes {
        let options = Options {
            kubeconfig: Some(kubeconfig.unwrap_or_else(|| config().into())),
            context: None,
            namespace: Some(self.name.clone()),
            runtime_class: None,
            storage_class: Some("toolwharf-test".to_owned()),
            probe_image: Some("toolwharf-test/busybox:1".to_owned()),
            user: Some(65532),
            install: install.to_owned(),
            run: run.to_owned(),
            ports: Ports::new(self.dir.path().join("ports.json")),
        };
        Kubernetes::new(options).unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let mut delete = kubectl(&["delete", "namespace", &self.name, "--wait=false"]);
        let _ = delete.stdout(Stdio::null()).status();
    }
}

/// A server that runs a shell script.
pub(crate) fn sh(id: &str, script: &str) -> Server {
    let program = Program::Image {
        image: "toolwharf-test/busybox:1".to_owned(),
        command: ["sh", "-c", script].map(str::to_owned).into(),
    };
    Server::new(id, program)
}

/// Sends a line. Returns the response, if it arrives in time.
pub(crate) async fn echo(instance: &mut Instance, line: &str) -> Option<String> {
    let stdio = instance.stdio.as_mut().expect("it has streams");
    let mut said = vec![0; line.len() + 1];
    let asking = async {
        stdio
            .stdin
            .write_all(format!("{line}\n").as_bytes())
            .await
            .ok()?;
        stdio.stdout.read_exact(&mut said).await.ok()
    };
    timeout(TEST_TIMEOUT / 4, asking).await.ok()??;
    Some(String::from_utf8_lossy(&said).trim_end().to_owned())
}
