//! Failures that only a cluster causes, and the permissions it grants a gateway.

use serde_json::json;
use testkit::{wait_for, wait_for_some};

use crate::{
    kubernetes::{self, kubectl, list, nothing_left, pod},
    support::{Host, LONG_DEADLINE, Platform, Site, enforced, refusal, with},
};

/// Returns the reason shown for a server that does not start.
async fn reason(host: &Host, id: &str) -> String {
    wait_for_some("the reason", LONG_DEADLINE, async || {
        let told = host.status(id).await;
        assert_ne!(told["status"], "running", "{told:#}");
        told["reason"].as_str().map(str::to_owned)
    })
    .await
}

/// Creates a namespace for the servers of a site.
async fn namespace(site: &Site, name: &str) -> String {
    let name = format!("{name}-{}", std::process::id());
    kubectl(&["create", "namespace", &name]);
    wait_for("the default account", LONG_DEADLINE, async || {
        kubernetes::try_kubectl(&["get", "serviceaccount", "default", "--namespace", &name]).is_ok()
    })
    .await;
    site.reconfigure(
        "[kubernetes]\n",
        &format!("[kubernetes]\nnamespace = {name:?}\n"),
    );
    name
}

#[tokio::test]
async fn d07_kubernetes_a_class_that_is_not_what_it_promises_runs_nothing() {
    let site = Site::new(Platform::KubernetesGvisor).await;
    site.reconfigure("\"gvisor\"", "\"not-gvisor\"");
    let host = site.start().await;
    let told = host.register(site.entry("promised", &[])).await;
    let id = told["id"].as_str().unwrap();
    let reason = reason(&host, id).await;
    assert!(
        reason.contains("kernel is not gVisor's but `Linux"),
        "{reason}"
    );
    host.stop().await;
    nothing_left(id).await;
}

#[tokio::test]
async fn d07_kubernetes_a_pod_that_somebody_removed_is_made_again() {
    let site = Site::new(Platform::Kubernetes).await;
    let (host, id) = site.hosting("removed", &[]).await;
    host.mark(&id).await;
    kubectl(&[
        "delete",
        "pod",
        &pod(&id),
        "--grace-period=1",
        "--wait=false",
    ]);
    host.happened(&id, "ready", 2).await;
    host.until(&id, "running").await;
    assert!(!host.is_marked(&id).await);
    assert_eq!(list("pods", &id).len(), 1);
    host.stop().await;
    nothing_left(&id).await;
}

#[tokio::test]
async fn d07_kubernetes_a_pod_that_was_evicted_is_made_again_and_the_reason_is_told() {
    let site = Site::new(Platform::Kubernetes).await;
    let host = site.start().await;
    // Scratch space is limited to the disk limit. The node notices an excess within ten seconds.
    let limits = json!({"resource_limits": {"memory": "256M", "disk": "8M"}});
    let id = host.host(with(site.entry("evicted", &[]), limits)).await;
    host.tool(&id, "fill", json!({"path": "/tmp/x", "mib": 64}))
        .await;
    let crashed = host.happened(&id, "crashed", 1).await;
    let stderr = crashed[0]["detail"]["stderr"].as_str().unwrap();
    let told = "the pod was ended by the cluster: Evicted: Usage of EmptyDir volume \"tmp\"";
    assert!(stderr.contains(told), "{stderr}");
    host.until(&id, "running").await;
    assert_eq!(list("pods", &id).len(), 1);
    host.stop().await;
    nothing_left(&id).await;
}

#[tokio::test]
async fn d07_kubernetes_a_kubelet_that_is_restarted_ends_nothing() {
    let site = Site::new(Platform::Kubernetes).await;
    let (host, id) = site.hosting("kubelet", &[]).await;
    host.mark(&id).await;
    let before = kubernetes::containers(&id);
    kubernetes::kubelet_ends();
    wait_for("the same instance to answer", LONG_DEADLINE, async || {
        let counter = host.call_within(&id, "counter", json!({}), 2000).await;
        counter.status == 200
    })
    .await;
    assert!(host.is_marked(&id).await);
    assert_eq!(kubernetes::containers(&id), before);
    assert_eq!(host.events_of(&id, "ready").await.len(), 1);
    host.stop().await;
    nothing_left(&id).await;
}

/// While the node is unreachable, it is unknown what it runs.
#[tokio::test]
async fn d07_kubernetes_a_server_of_a_node_that_is_gone_is_started_nowhere_else() {
    let site = Site::new(Platform::Kubernetes).await;
    let host = site.start().await;
    let entry = with(
        site.entry("gone", &[]),
        json!({"heartbeat": {"interval_ms": 500, "timeout_ms": 1000, "misses": 2}}),
    );
    let id = host.host(entry).await;
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
    // A stop is not complete before the node confirms it, so nothing is started in its place.
    drop(held);
    wait_for("the node", 2 * LONG_DEADLINE, async || is_ready() == "True").await;
    host.until(&id, "running").await;
    assert!(host.is_marked(&id).await);
    assert_eq!(kubernetes::containers(&id), before);
    assert_eq!(host.events_of(&id, "ready").await.len(), 1);
    host.stop().await;
    nothing_left(&id).await;
}

#[tokio::test]
async fn d07_kubernetes_an_image_that_is_missing_blocks_its_server_and_leaves_nothing() {
    let site = Site::new(Platform::Kubernetes).await;
    let host = site.start().await;
    let entry = json!({"name": "missing", "image": "registry.invalid/missing:1"});
    let refused = host.ask("POST", "", entry).await;
    assert_eq!(refused.status, 422, "{}", refused.text());
    let said = refused.text();
    assert!(
        said.contains("registry.invalid/missing:1") && said.contains("ErrImagePull"),
        "{said}"
    );
    host.stop().await;
    nothing_left("missing").await;
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
    let told = host.register(site.entry("second", &[])).await;
    let second = told["id"].as_str().unwrap().to_owned();
    let why = reason(&host, &second).await;
    assert!(why.contains("exceeded quota: pods"), "{why}");
    nothing_left(&second).await;
    let patch = "--patch={\"spec\": {\"hard\": {\"pods\": \"2\"}}}";
    kubectl(&[&in_it[..], &["patch", "quota", "pods", patch]].concat());
    host.until(&second, "running").await;
    host.stop().await;
    for id in [first, second] {
        nothing_left(&id).await;
    }
    kubectl(&["delete", "namespace", &namespace, "--wait=false"]);
}

#[tokio::test]
async fn d07_kubernetes_a_webhook_that_denies_is_told_and_leaves_nothing() {
    let site = Site::new(Platform::Kubernetes).await;
    let namespace = namespace(&site, "denied").await;
    let webhook = kubernetes::Webhook::denies(&namespace, "no pods on a Tuesday").await;
    let host = site.start().await;
    let told = host.register(site.entry("denied", &[])).await;
    let id = told["id"].as_str().unwrap().to_owned();
    let why = reason(&host, &id).await;
    assert!(why.contains("no pods on a Tuesday"), "{why}");
    nothing_left(&id).await;
    drop(webhook);
    host.until(&id, "running").await;
    host.stop().await;
    nothing_left(&id).await;
    kubectl(&["delete", "namespace", &namespace, "--wait=false"]);
}

#[tokio::test]
async fn d07_kubernetes_others_that_change_our_objects_start_nothing_twice() {
    let site = Site::new(Platform::Kubernetes).await;
    let (host, id) = site.hosting("edited", &[]).await;
    host.mark(&id).await;
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

    // A pod that cannot be deleted is waited for, and nothing is started beside it.
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
    host.happened(&id, "ready", ready + 1).await;
    host.until(&id, "running").await;
    assert_eq!(kubernetes::containers(&id).len(), 1);
    host.stop().await;
    nothing_left(&id).await;
}

/// The cause is in the node's events, not in the pod's status.
#[tokio::test]
async fn d07_kubernetes_a_pod_that_does_not_start_is_told_with_the_clusters_reason() {
    let site = Site::new(Platform::KubernetesGvisor).await;
    site.reconfigure("\"gvisor\"", "\"nowhere\"");
    let host = site.start().await;
    let told = host.register(site.entry("nowhere", &[])).await;
    let id = told["id"].as_str().unwrap();
    let mut why = String::new();
    wait_for("the reason", 3 * LONG_DEADLINE, async || {
        why = host.status(id).await["reason"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        why.contains("does not start within")
    })
    .await;
    let told = "FailedCreatePodSandBox: ";
    assert!(why.contains(told) && why.contains("nowhere"), "{why}");
    host.stop().await;
    nothing_left(id).await;
}

/// The server's image has no user, which means root.
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
    let (holds, how) = enforced(&host.status(&id).await, "privileges");
    assert!(holds && how.contains("user = 65532"), "{how}");
    let attack = "for process in /proc/[0-9]*; do read -r name <$process/comm; \
                  if [ $name = sleep ]; then kill -9 ${process#/proc/} 2>&1; fi; done; true";
    let said = runs(&id, attack);
    assert!(said.contains("Operation not permitted"), "{said}");
    assert!(host.status(&id).await["usage"]["memory"].as_u64() > Some(0));
    host.stop().await;
    nothing_left(&id).await;

    site.reconfigure("[kubernetes]\n", "[kubernetes]\nuser = \"image\"\n");
    let host = site.start().await;
    host.until(&id, "running").await;
    assert_eq!(runs(&id, users).trim(), "Uid: 0 0 0 0");
    let (_, how) = enforced(&host.status(&id).await, "privileges");
    assert!(how.contains("user = its image's"), "{how}");
    host.stop().await;
    nothing_left(&id).await;
}

#[tokio::test]
async fn d07_kubernetes_an_allow_list_is_a_policy_of_addresses() {
    let site = Site::new(Platform::Kubernetes).await;
    let host = site.start().await;
    let allow = |entry: &str| {
        with(
            site.entry("allowed", &[]),
            json!({"network": {"allow": [entry]}}),
        )
    };
    // A host name would have to be resolved repeatedly.
    let refused = host.ask("POST", "", allow("api.example.com:443")).await;
    let (status, places) = refusal(&refused);
    assert_eq!((status, &*places), (422, &["/network".to_owned()][..]));
    let said = refused.text();
    assert!(said.contains("`api.example.com` is a name"), "{said}");
    let id = host.host(allow("192.0.2.1:443")).await;
    let (holds, how) = enforced(&host.status(&id).await, "network");
    assert!(
        !holds && how.contains("192.0.2.1:443") && how.contains("not known"),
        "{how}"
    );
    let policies = list("networkpolicies", &id);
    let egress = &policies[0]["spec"]["egress"];
    assert_eq!(egress[0]["to"][0]["ipBlock"]["cidr"], "192.0.2.1/32");
    assert_eq!(egress[0]["ports"][0]["port"], 443);
    assert!(policies[0]["spec"]["ingress"].is_null());
    host.stop().await;
    nothing_left(&id).await;
}
