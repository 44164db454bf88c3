//! Accesses the test cluster directly, without the product.

#[cfg(feature = "kubernetes")]
mod cluster;

use std::{path::Path, process::Command};

use serde_json::Value;

#[cfg(feature = "kubernetes")]
pub(crate) use self::cluster::{
    Held, Webhook, create_namespace, delete_namespace, goes_on, kubelet_ends, marked, nothing_left,
    pod, stop,
};

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

/// Runs a command. Returns its output, or what it wrote to stderr if it failed.
fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().expect("the command starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

pub(crate) fn try_kubectl(args: &[&str]) -> Result<String, String> {
    let mut kubectl = Command::new("kubectl");
    output(kubectl.args(["--kubeconfig", &config()]).args(args))
}

/// Runs `kubectl` against the cluster.
pub(crate) fn kubectl(args: &[&str]) -> String {
    try_kubectl(args).unwrap_or_else(|why| panic!("kubectl {args:?}: {why}"))
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
    ctr.arg("--address").arg(socket).arg("--namespace=k8s.io");
    output(ctr.args(["tasks", "kill", "--signal=SIGKILL", container])).expect("killed");
}
