//! The test cluster, accessed from outside.

#[cfg(feature = "kubernetes")]
mod cluster;

use std::{path::Path, process::Command};

use serde_json::Value;

#[cfg(feature = "kubernetes")]
pub(crate) use self::cluster::{Held, Webhook, kubelet_ends, nothing_left, pod, try_kubectl};

/// The variable with the path of the test cluster's kubeconfig.
const VARIABLE: &str = "TOOLWHARF_TEST_KUBERNETES";

pub(crate) fn config() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{VARIABLE} names no kubeconfig; run: cargo xtask kubernetes -- cargo nextest run -p toolwharf --features \
             kubernetes -E 'binary(scenarios_hosting) & test(/kubernetes/)'"
        )
    })
}

fn output(command: &mut Command) -> String {
    let output = command.output().expect("it is started");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {why}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `kubectl` against the cluster.
pub(crate) fn kubectl(args: &[&str]) -> String {
    let mut kubectl = Command::new("kubectl");
    output(kubectl.args(["--kubeconfig", &config()]).args(args))
}

/// Returns a server's objects of one kind.
pub(crate) fn list(kind: &str, id: &str) -> Vec<Value> {
    let selector = format!("--selector=toolwharf.dev/server={id}");
    let told = kubectl(&["get", kind, "--all-namespaces", "--output=json", &selector]);
    let mut list: Value = serde_json::from_str(&told).expect("JSON");
    match list["items"].take() {
        Value::Array(items) => items,
        other => panic!("no list: {other}"),
    }
}

/// Returns the ids of a server's running containers.
pub(crate) fn containers(id: &str) -> Vec<String> {
    let pods = list("pods", id);
    let statuses = pods
        .iter()
        .flat_map(|pod| pod["status"]["containerStatuses"].as_array());
    let servers = statuses
        .flatten()
        .filter(|status| status["name"] == "server" && status["state"]["running"].is_object());
    let ids = servers.filter_map(|status| {
        status["containerID"]
            .as_str()?
            .strip_prefix("containerd://")
    });
    ids.map(str::to_owned).collect()
}

pub(crate) fn has_volumes(id: &str) -> bool {
    !list("persistentvolumeclaims", id).is_empty()
}

/// Kills the process in a container.
pub(crate) fn kill(container: &str) {
    let config = config();
    let socket = Path::new(&config).with_file_name("containerd.sock");
    let mut ctr = Command::new("/usr/bin/ctr");
    ctr.arg("--address").arg(socket);
    output(ctr.args([
        "--namespace=k8s.io",
        "tasks",
        "kill",
        "--signal=SIGKILL",
        container,
    ]));
}
