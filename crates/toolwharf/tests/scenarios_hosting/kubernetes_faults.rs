//! Failures that only a cluster causes, and the permissions it grants a gateway.

use serde_json::{Value, json};
use testkit::{wait_for, wait_for_some};

use crate::{
    common::checks,
    kubernetes::{
        self, create_namespace, delete_namespace, goes_on, kubectl, list, marked, nothing_left,
        pod, stop,
    },
    support::{Host, LONG_DEADLINE, Platform, Site, assert_enforced, enforced},
};

/// Registers a server that does not start. Returns its id and the reason that is shown.
async fn reason(host: &Host, entry: Value) -> (String, String) {
    let told = host.register(entry).await;
    let id = told["id"].as_str().unwrap();
    let why = wait_for_some("the reason", LONG_DEADLINE, async || {
        let told = host.status(id).await;
        assert_ne!(told["status"], "running", "{told:#}");
        told["reason"].as_str().map(str::to_owned)
    })
    .await;
    (id.to_owned(), why)
}

/// Creates a namespace for the servers of a site.
async fn namespace(site: &Site, name: &str) -> String {
    let name = create_namespace(name);
    wait_for("the default account", LONG_DEADLINE, async || {
        kubernetes::try_kubectl(&["get", "serviceaccount", "default", "--namespace", &name]).is_ok()
    })
    .await;
    let setting = format!("[kubernetes]\nnamespace = {name:?}\n");
    site.reconfigure("[kubernetes]\n", &setting);
    name
}

#[tokio::test]
async fn d07_kubernetes_a_class_that_is_not_what_it_promises_runs_nothing() {
    let site = Site::new(Platform::KubernetesGvisor).await;
    site.reconfigure("\"gvisor\"", "\"not-gvisor\"");
    let host = site.start().await;
    let (id, why) = reason(&host, site.entry("promised", &[])).await;
    checks::contains(&why, &["but its kernel is `Linux"]);
    stop(host, &[&id]).await;
}

#[tokio::test]
async fn d07_kubernetes_a_pod_that_somebody_removed_is_made_again() {
    let site = Site::new(Platform::Kubernetes).await;
    let (host, id) = marked(&site, "removed").await;
    let options = ["--grace-period=1", "--wait=false"];
    kubectl(&[&["delete", "pod", &pod(&id)][..], &options].concat());
    host.is_back(&id, 2).await;
    assert!(!host.is_marked(&id).await);
    assert_eq!(list("pods", &id).len(), 1);
    stop(host, &[&id]).await;
}

#[tokio::test]
async fn d07_kubernetes_a_pod_that_was_evicted_is_made_again_and_the_reason_is_told() {
    let (site, host) = Site::started(Platform::Kubernetes).await;
    // Scratch space is limited to the disk limit. The node notices an excess within ten seconds.
    let limits = json!({"resource_limits": {"memory": "256M", "disk": "8M"}});
    let id = host.host(site.entry_with("evicted", &[], limits)).await;
    let file = json!({"path": "/tmp/x", "mib": 64});
    host.tool(&id, "fill", file).await;
    let crashed = host.happened(&id, "crashed", 1).await;
    let told = "the pod was ended by the cluster: Evicted: Usage of EmptyDir volume \"tmp\"";
    checks::string(&crashed[0]["detail"]["stderr"], &[told]);
    host.until(&id, "running").await;
    assert_eq!(list("pods", &id).len(), 1);
    stop(host, &[&id]).await;
}

#[tokio::test]
async fn d07_kubernetes_a_kubelet_that_is_restarted_ends_nothing() {
    let site = Site::new(Platform::Kubernetes).await;
    let (host, id) = marked(&site, "kubelet").await;
    let before = kubernetes::containers(&id);
    kubernetes::kubelet_ends();
    goes_on(&host, &id, &before).await;
    stop(host, &[&id]).await;
}

/// While the node is unreachable, the states of its pods are unknown.
#[tokio::test]
async fn d07_kubernetes_a_server_of_a_node_that_is_gone_is_started_nowhere_else() {
    let (site, host) = Site::started(Platform::Kubernetes).await;
    let heartbeat = json!({"heartbeat": {"interval_ms": 500, "timeout_ms": 1000, "misses": 2}});
    let id = host.host(site.entry_with("gone", &[], heartbeat)).await;
    host.mark(&id).await;
    let before = kubernetes::containers(&id);
    let held = kubernetes::Held::now();
    let is_ready = || {
        let ready = "--output=jsonpath={.status.conditions[?(@.type=='Ready')].status}";
        kubectl(&["get", "node", "node", ready])
    };
    wait_for("a node that is not ready", 2 * LONG_DEADLINE, async || {
        is_ready() != "True"
    })
    .await;
    host.until(&id, "unresponsive").await;
    let failed = host.call_within(&id, "echo", json!({}), 1000).await;
    assert!(!failed.status.is_success(), "{}", failed.text());
    assert_eq!(list("pods", &id).len(), 1);
    // A stop is not complete before the node confirms it, so no new pod is started until then.
    drop(held);
    wait_for("the node", 2 * LONG_DEADLINE, async || is_ready() == "True").await;
    host.until(&id, "running").await;
    goes_on(&host, &id, &before).await;
    stop(host, &[&id]).await;
}

#[tokio::test]
async fn d07_kubernetes_an_image_that_is_missing_blocks_its_server_and_leaves_nothing() {
    let (_site, host) = Site::started(Platform::Kubernetes).await;
    let entry = json!({"name": "missing", "image": "registry.invalid/missing:1"});
    let refused = host.ask("POST", "", entry).await;
    let why = ["registry.invalid/missing:1", "ErrImagePull"];
    checks::reply(&refused, 422, &why);
    stop(host, &["missing"]).await;
}

#[tokio::test]
async fn d07_kubernetes_a_quota_is_told_and_waited_for() {
    let site = Site::new(Platform::Kubernetes).await;
    let namespace = namespace(&site, "quota").await;
    let in_it = ["--namespace", &namespace];
    kubectl(&[&in_it[..], &["create", "quota", "pods", "--hard=pods=1"]].concat());
    wait_for("the quota to count", LONG_DEADLINE, async || {
        let used = "--output=jsonpath={.status.used.pods}";
        kubectl(&[&in_it[..], &["get", "quota", "pods", used]].concat()) == "0"
    })
    .await;
    let host = site.start().await;
    let first = host.host(site.entry("first", &[])).await;
    let (second, why) = reason(&host, site.entry("second", &[])).await;
    checks::contains(&why, &["exceeded quota: pods"]);
    nothing_left(&second).await;
    let patch = "--patch={\"spec\": {\"hard\": {\"pods\": \"2\"}}}";
    kubectl(&[&in_it[..], &["patch", "quota", "pods", patch]].concat());
    host.until(&second, "running").await;
    stop(host, &[&first, &second]).await;
    delete_namespace(&namespace);
}

#[tokio::test]
async fn d07_kubernetes_a_webhook_that_denies_is_told_and_leaves_nothing() {
    let site = Site::new(Platform::Kubernetes).await;
    let namespace = namespace(&site, "denied").await;
    let webhook = kubernetes::Webhook::denies(&namespace, "no pods on a Tuesday").await;
    let host = site.start().await;
    let (id, why) = reason(&host, site.entry("denied", &[])).await;
    assert!(why.contains("no pods on a Tuesday"), "{why}");
    nothing_left(&id).await;
    drop(webhook);
    host.until(&id, "running").await;
    stop(host, &[&id]).await;
    delete_namespace(&namespace);
}

#[tokio::test]
async fn d07_kubernetes_others_that_change_our_objects_start_nothing_twice() {
    let site = Site::new(Platform::Kubernetes).await;
    let (host, id) = marked(&site, "edited").await;
    let pod = pod(&id);
    let label = |change: &str| kubectl(&["label", "pod", &pod, change, "--overwrite"]);
    label("somebody=else");
    label("toolwharf.dev/run=another");
    label("toolwharf.dev/installation-");
    kubectl(&["annotate", "pod", &pod, "toolwharf.dev/server-id-"]);
    assert!(host.is_marked(&id).await);
    // Without our labels, the pod is still recognized by its name and number.
    host.order(&id, "restart").await;
    assert!(!host.is_marked(&id).await);
    assert_eq!(kubernetes::containers(&id).len(), 1);

    // The gateway waits for a pod that cannot be deleted, and starts no second pod in the meantime.
    let keep = |finalizers: &str| {
        let patch = format!("--patch={{\"metadata\": {{\"finalizers\": {finalizers}}}}}");
        kubectl(&["patch", "pod", &pod, "--type=merge", &patch]);
    };
    keep("[\"toolwharf.dev/test\"]");
    host.call(&id, "crash", json!({})).await;
    host.happened(&id, "crashed", 1).await;
    wait_for("a terminating pod", LONG_DEADLINE, async || {
        list("pods", &id)[0]["metadata"]["deletionTimestamp"].is_string()
    })
    .await;
    assert!(kubernetes::containers(&id).is_empty());
    keep("[]");
    host.until(&id, "running").await;
    assert_eq!(list("pods", &id).len(), 1);

    // The Secret owns all other objects: deleting it removes the server, which is then started again.
    let ready = host.events_of(&id, "ready").await.len();
    kubectl(&["delete", "secret", &pod, "--wait=false"]);
    host.is_back(&id, ready + 1).await;
    assert_eq!(kubernetes::containers(&id).len(), 1);
    stop(host, &[&id]).await;
}

/// The cause of the failure is in the node's events, not in the pod's status.
#[tokio::test]
async fn d07_kubernetes_a_pod_that_does_not_start_is_told_with_the_clusters_reason() {
    let site = Site::new(Platform::KubernetesGvisor).await;
    site.reconfigure("\"gvisor\"", "\"nowhere\"");
    let host = site.start().await;
    let told = host.register(site.entry("nowhere", &[])).await;
    let id = told["id"].as_str().unwrap();
    let mut why = String::new();
    wait_for("the reason", 3 * LONG_DEADLINE, async || {
        let told = host.status(id).await;
        told["reason"]
            .as_str()
            .unwrap_or_default()
            .clone_into(&mut why);
        why.contains("did not start within")
    })
    .await;
    checks::contains(&why, &["FailedCreatePodSandBox: ", "nowhere"]);
    stop(host, &[id]).await;
}

/// The server's image names no user, so by default the container would run as root.
#[tokio::test]
async fn d07_kubernetes_a_server_is_not_root_and_cannot_end_what_looks_at_it() {
    let site = Site::new(Platform::Kubernetes).await;
    let runs = |id: &str, script: &str| {
        let pod = pod(id);
        let args = ["exec", &pod, "--container=server", "--", "sh", "-c", script];
        kubectl(&args)
    };
    let users =
        "while read -r line; do case $line in Uid:*) echo $line;; esac; done </proc/self/status";
    let (host, id) = site.hosting("somebody", &[]).await;
    assert_eq!(runs(&id, users).trim(), "Uid: 65532 65532 65532 65532");
    let told = host.status(&id).await;
    assert_enforced(&told, "privileges", true, &["user = 65532"]);
    let attack = "for process in /proc/[0-9]*; do read -r name <$process/comm; \
                  if [ $name = sleep ]; then kill -9 ${process#/proc/} 2>&1; fi; done; true";
    let said = runs(&id, attack);
    checks::contains(&said, &["Operation not permitted"]);
    assert!(host.status(&id).await["usage"]["memory"].as_u64() > Some(0));
    stop(host, &[&id]).await;

    site.reconfigure("[kubernetes]\n", "[kubernetes]\nuser = \"image\"\n");
    let host = site.start().await;
    host.until(&id, "running").await;
    assert_eq!(runs(&id, users).trim(), "Uid: 0 0 0 0");
    let (_, how) = enforced(&host.status(&id).await, "privileges");
    assert!(how.contains("user = its image's"), "{how}");
    stop(host, &[&id]).await;
}

#[tokio::test]
async fn d07_kubernetes_an_allow_list_is_a_policy_of_addresses() {
    let (site, host) = Site::started(Platform::Kubernetes).await;
    let allow = |entry: &str| {
        let network = json!({"network": {"allow": [entry]}});
        site.entry_with("allowed", &[], network)
    };
    // A host name is refused, because it would have to be resolved repeatedly.
    let refused = host.refused(allow("api.example.com:443"), "/network");
    checks::contains(&refused.await, &["`api.example.com` is a host name"]);
    let id = host.host(allow("192.0.2.1:443")).await;
    let told = host.status(&id).await;
    assert_enforced(&told, "network", false, &["192.0.2.1:443", "not known"]);
    let policies = list("networkpolicies", &id);
    let egress = &policies[0]["spec"]["egress"];
    assert_eq!(egress[0]["to"][0]["ipBlock"]["cidr"], "192.0.2.1/32");
    assert_eq!(egress[0]["ports"][0]["port"], 443);
    assert!(policies[0]["spec"]["ingress"].is_null());
    stop(host, &[&id]).await;
}
