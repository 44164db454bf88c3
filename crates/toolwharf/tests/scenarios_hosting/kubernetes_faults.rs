//! What only a cluster does to servers, and what it lets a gateway do.

use std::fs;

use serde_json::{Value, json};
use testkit::{wait_for, wait_for_some};

use crate::{
    kubernetes::{config, kubectl, list},
    support::{LONG, Platform, Site, with},
};

/// Replaces a word of the settings.
fn reconfigure(site: &Site, from: &str, to: &str) {
    let path = site.kept.dir.path().join("toolwharf.toml");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(path, text.replace(from, to)).unwrap();
}

#[tokio::test]
async fn kubernetes_a_class_that_is_not_what_it_promises_runs_nothing() {
    let site = Site::new(Platform::KubernetesGvisor).await;
    reconfigure(&site, "\"gvisor\"", "\"not-gvisor\"");
    let host = site.start().await;
    let told = host.register(site.entry("promised", &[])).await;
    let id = told["id"].as_str().unwrap();
    let reason = wait_for_some("the reason", LONG, async || {
        let told = host.status(id).await;
        assert_ne!(told["status"], "running", "{told:#}");
        told["reason"].as_str().map(str::to_owned)
    })
    .await;
    assert!(
        reason.contains("kernel is not gVisor's but `Linux"),
        "{reason}"
    );
    host.stop().await;
    wait_for("nothing that is left", LONG, async || {
        list("pods,secrets,networkpolicies", id).is_empty()
    })
    .await;
}

#[tokio::test]
async fn kubernetes_a_pod_that_somebody_removed_is_made_again() {
    let site = Site::new(Platform::Kubernetes).await;
    let (host, id) = site.hosting("removed", &[]).await;
    host.mark(&id).await;
    let name = list("pods", &id)[0]["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    kubectl(&["delete", "pod", &name, "--grace-period=1", "--wait=false"]);
    host.happened(&id, "ready", 2).await;
    host.until(&id, "running").await;
    assert!(!host.is_marked(&id).await);
    assert_eq!(list("pods", &id).len(), 1);
    host.stop().await;
    wait_for("nothing that is left", LONG, async || {
        list("pods,secrets,networkpolicies", &id).is_empty()
    })
    .await;
}

#[tokio::test]
async fn kubernetes_the_rights_of_the_example_are_enough() {
    let namespace = format!("rights-{}", std::process::id());
    kubectl(&["create", "namespace", &namespace]);
    let rights = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/kubernetes/rbac.yaml"
    );
    kubectl(&["apply", "--namespace", &namespace, "--filename", rights]);
    let token = wait_for_some("the token of the account", LONG, async || {
        let secrets = kubectl(&["get", "secrets", "--namespace", &namespace, "--output=json"]);
        let secrets: Value = serde_json::from_str(&secrets).unwrap();
        let account = |secret: &&Value| {
            let annotations = &secret["metadata"]["annotations"];
            annotations["kubernetes.io/service-account.name"] == "toolwharf"
        };
        let secret = secrets["items"].as_array().unwrap().iter().find(account)?;
        secret["metadata"]["name"].as_str().map(str::to_owned)
    })
    .await;
    let template = "--output=go-template={{.data.token | base64decode}}";
    let token = kubectl(&["get", "secret", &token, "--namespace", &namespace, template]);

    let site = Site::new(Platform::KubernetesGvisor).await;
    let own = site.kept.dir.path().join("kubeconfig");
    fs::copy(config(), &own).unwrap();
    let own = own.to_str().unwrap();
    for change in [
        ["set-credentials", "toolwharf", &format!("--token={token}")],
        ["set-context", "test", "--user=toolwharf"],
        ["set-context", "test", &format!("--namespace={namespace}")],
    ] {
        kubectl(&[&["config", "--kubeconfig", own], &change[..]].concat());
    }
    reconfigure(&site, &config(), own);
    let host = site.start().await;
    let entry = with(
        site.entry("rights", &["--stderr-at-start", "hello"]),
        json!({"environment": {"A": "b"}, "volumes": ["/data"], "resource_limits": {"disk": "64M"}}),
    );
    let id = host.host(entry).await;
    host.said(&id, "write", json!({"path": "/data/x", "text": "kept"}))
        .await;
    host.call(&id, "crash", json!({"code": 3})).await;
    host.happened(&id, "ready", 2).await;
    host.until(&id, "running").await;
    assert_eq!(
        host.said(&id, "read", json!({"path": "/data/x"})).await,
        "kept"
    );
    let told = host.status(&id).await;
    assert_eq!(told["last_crash"]["exit_code"], 3, "{told:#}");
    assert!(
        told["last_crash"]["stderr"]
            .as_str()
            .unwrap()
            .contains("hello")
    );
    host.running.kill().await;

    // The next start removes the pod that the killed gateway left; `DELETE` removes the volumes.
    let host = site.start().await;
    host.until(&id, "running").await;
    assert_eq!(list("pods", &id).len(), 1);
    host.ok("DELETE", &format!("/{id}?volumes=true"), Value::Null)
        .await;
    let all = "pods,secrets,networkpolicies,persistentvolumeclaims";
    wait_for("nothing that is left", LONG, async || {
        list(all, &id).is_empty()
    })
    .await;
    let log = host.stop().await;
    assert!(!log.contains("refuses"), "{log}");
    kubectl(&["delete", "namespace", &namespace, "--wait=false"]);
}
