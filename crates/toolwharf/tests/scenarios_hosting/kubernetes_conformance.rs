//! The official conformance suite has the same results for a server in gVisor on Kubernetes as for one on the host.

use serde_json::{Value, json};
use testkit::{
    Bin,
    conformance::{self, node_modules},
    peer::MODERN,
};

use crate::{
    common::LEGACY,
    support::{Platform, Site, assert_enforced},
};

/// Compares check by check, for clients of both eras.
async fn same(name: &str, program: Value, args: Value, least: usize) {
    let site = Site::new(Platform::KubernetesGvisor).await;
    // The suite sends calls that wait for each other.
    let on_host = json!({"command": program, "args": args, "maxConcurrency": 64});
    site.kept.servers(json!({ "host": on_host }));
    let host = site.start().await;
    let mut entry = json!({
        "name": "pod", "image": site.platform.image(name), "max_concurrency": 64,
        "resource_limits": {"cpu": 2, "memory": "1G"}, "start_timeout_ms": 80_000,
    });
    if name == "conformance" {
        entry["args"] = args;
    }
    let id = host.host(entry).await;
    let told = host.status(&id).await;
    assert_enforced(&told, "kernel", true, &["gVisor"]);
    for requirements in [LEGACY, MODERN] {
        let at = |server: &str| format!("{}/mcp/-/{server}", host.running.url);
        let on_host = conformance::run(requirements, &at("host"), &[]).await;
        let in_pod = conformance::run(requirements, &at("pod"), &[]).await;
        println!(
            "{name}, {requirements}: {:?} on the host, {:?} in a pod",
            on_host.total, in_pod.total
        );
        assert_eq!(
            in_pod.checks, on_host.checks,
            "{requirements}: {:#?}",
            in_pod.complaints
        );
        assert!(in_pod.total.passed >= least, "{:?}", in_pod.total);
    }
    host.stop().await;
}

#[tokio::test]
async fn d07_kubernetes_conformance_of_server_everything_is_that_on_the_host() {
    let modules = node_modules();
    let script = modules.join("@modelcontextprotocol/server-everything/dist/index.js");
    let node = modules.join("node/bin/node");
    same("everything", json!(node), json!([script]), 50).await;
}

#[tokio::test]
async fn d07_kubernetes_conformance_of_a_conforming_server_is_that_on_the_host() {
    let args = json!(["--stdio", "--era", "modern"]);
    let program = json!(Bin::path("testkit-conformance"));
    same("conformance", program, args, 80).await;
}
