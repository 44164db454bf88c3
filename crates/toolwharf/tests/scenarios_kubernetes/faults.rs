//! D08: how failures around resources affect servers.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{DEADLINE, wait_for};

use crate::{
    api::Api,
    common::checks,
    support::{
        ApiServer, LONG_DEADLINE, Link, NO_FINALIZERS, Namespace, call, condition, define,
        instances, kubectl, server, try_kubectl, volumes,
    },
};

const FAILED_WATCH: &str = "the watch on MCPServer resources failed";

#[tokio::test]
async fn d08_a_restart_finds_what_was_changed_meanwhile() {
    let namespace = Namespace::new("restart").await;
    let mut gateway = namespace.gateway().await;
    let names = ["stays", "changes", "goes", "forced"];
    let ids = namespace.run(&names, json!({})).await;
    gateway.process.signal(Signal::KILL);
    gateway.process.wait(DEADLINE).await;
    namespace.scripted("changes", json!({"description": "Changed."}));
    namespace.scripted("comes", json!({}));
    for name in ["goes", "forced"] {
        namespace.delete(name);
    }
    namespace.patch("forced", NO_FINALIZERS);
    assert!(namespace.get("goes").await.is_some());
    assert_eq!(namespace.get("forced").await, None);

    let gateway = gateway.again().await;
    namespace.gone("goes").await;
    for name in ["stays", "changes", "comes"] {
        namespace.ready(name).await;
    }
    for name in ["goes", "forced"] {
        wait_for("its end", LONG_DEADLINE, async || {
            server(&gateway, name).await.is_none() && instances(name) == 0
        })
        .await;
    }
    let stays = server(&gateway, "stays").await.unwrap();
    assert_eq!(stays["id"], ids[0].as_str());
    let changes = server(&gateway, "changes").await.unwrap();
    checks::members(&changes, json!({"id": ids[1], "description": "Changed."}));
}

#[tokio::test]
async fn d08_a_gateway_killed_at_any_moment_makes_nothing_twice_and_leaves_nothing() {
    let namespace = Namespace::new("killed").await;
    let mut gateway = namespace.gateway().await;
    let rounds = if testkit::soak() { 60 } else { 6 };
    for round in 0..rounds {
        let name = format!("killed{round}");
        namespace.scripted(&name, json!({"volumes": ["/v"]}));
        // Each round kills the gateway at a different point between the finalizer, the row, the launch and the status.
        tokio::time::sleep(Duration::from_millis(round * 70 % 600)).await;
        gateway = gateway.restarted_after(Signal::KILL).await;
        let id = namespace.id(&name).await;
        let found = server(&gateway, &name).await.unwrap();
        assert_eq!((found["id"].as_str(), instances(&name)), (Some(&*id), 1));
        let volumes = volumes(&gateway, &id);
        namespace.delete(&name);
        tokio::time::sleep(Duration::from_millis(round * 50 % 300)).await;
        gateway = gateway.restarted_after(Signal::KILL).await;
        namespace.gone(&name).await;
        assert_eq!(server(&gateway, &name).await, None);
        assert!(!volumes.exists(), "{}", volumes.display());
        wait_for("its end", LONG_DEADLINE, async || instances(&name) == 0).await;
    }
}

#[tokio::test]
async fn d08_while_the_api_server_is_away_servers_go_on() {
    let namespace = Namespace::new("away").await;
    let link = Link::new().await;
    let gateway = namespace.gateway_with(link.config()).await;
    let ids = namespace.run(&["goes-on", "deleted"], json!({})).await;
    link.cut();
    gateway.logged(FAILED_WATCH).await;
    namespace.delete("deleted");
    namespace.scripted("goes-on", json!({"description": "While it was away."}));
    call(&gateway, &ids[0]).await;
    link.open();
    namespace.gone("deleted").await;
    namespace.ready("goes-on").await;
    let found = server(&gateway, "goes-on").await.unwrap();
    assert_eq!(found["description"], "While it was away.");
    // The gateway also starts without an API server.
    link.cut();
    let gateway = gateway.restarted().await;
    wait_for("the server", LONG_DEADLINE, async || {
        let found = server(&gateway, "goes-on").await;
        found.is_some_and(|one| one["status"] == "running")
    })
    .await;
    call(&gateway, &ids[0]).await;
    link.open();
    namespace.remove("goes-on").await;
}

#[tokio::test]
async fn d08_a_watch_that_is_too_old_is_begun_anew() {
    let namespace = Namespace::new("old").await;
    let mut other = ApiServer::start().await;
    let link = Link::to(&other.address()).await;
    let gateway = namespace.gateway_with(link.config()).await;
    namespace.run(&["stays", "goes"], json!({})).await;
    link.cut();
    gateway.logged(FAILED_WATCH).await;
    namespace.delete("goes");
    namespace.scripted("comes", json!({}));
    // The restarted API server has no history: the last version seen is too old to continue from (410).
    other.again().await;
    link.open();
    gateway.logged("too old resource version").await;
    namespace.gone("goes").await;
    for name in ["stays", "comes"] {
        namespace.ready(name).await;
    }
    assert_eq!(server(&gateway, "stays").await.unwrap()["starts"], 1);
}

#[tokio::test]
async fn d08_servers_outlive_the_definition_and_are_found_again() {
    let namespace = Namespace::new("definition").await;
    let gateway = namespace.gateway().await;
    let volumes = json!({"volumes": ["/v"]});
    let ids = namespace.run(&["kept", "left"], volumes.clone()).await;
    let pid = server(&gateway, "kept").await.unwrap()["pid"].clone();
    // Neither our finalizers nor the gateway blocks the deletion.
    let definition = "crd/mcpservers.toolwharf.dev";
    kubectl(&["delete", definition, "--timeout=60s"], "");
    let told = "continues to run without its resource";
    gateway.logged(told).await;
    call(&gateway, &ids[0]).await;
    define().await;
    let told = "the MCPServer resource was deleted together with its definition";
    gateway.logged(told).await;
    namespace.scripted("kept", volumes.clone());
    assert_eq!(namespace.id("kept").await, ids[0]);
    // The server `kept` was never interrupted.
    let found = server(&gateway, "kept").await.unwrap();
    checks::members(&found, json!({"pid": pid, "starts": 1}));
    assert_eq!(server(&gateway, "left").await.unwrap()["status"], "running");
    namespace.scripted("left", volumes);
    namespace.ready("left").await;
    for name in ["kept", "left"] {
        namespace.remove(name).await;
    }
    assert_eq!(server(&gateway, "kept").await, None);
}

#[tokio::test]
async fn d08_what_others_do_to_a_resource_is_put_right() {
    let namespace = Namespace::new("others").await;
    let gateway = namespace.gateway().await;
    namespace.scripted("ours", json!({}));
    let before = namespace.ready("ours").await;
    // Another client removes our finalizer, writes to the status, and adds its own finalizer and label.
    let theirs = r#"{"metadata":{"finalizers":["example.com/theirs"],"labels":{"theirs":"yes"}}}"#;
    namespace.patch("ours", theirs);
    wait_for("their status to be written", LONG_DEADLINE, async || {
        let mut object = namespace.get("ours").await.unwrap();
        object["status"]["state"] = "nonsense".into();
        put_status(&namespace, &object)
    })
    .await;
    wait_for("the resource to be restored", LONG_DEADLINE, async || {
        let object = namespace.get("ours").await.unwrap();
        let finalizers = object["metadata"]["finalizers"].as_array().unwrap();
        finalizers.contains(&json!("toolwharf.dev/server"))
            && finalizers.contains(&json!("example.com/theirs"))
            && object["status"]["state"] == "running"
    })
    .await;
    let now = namespace.get("ours").await.unwrap();
    assert_eq!(now["metadata"]["labels"]["theirs"], "yes");
    assert_eq!(condition(&now, "Ready"), condition(&before, "Ready"));
    assert_eq!(server(&gateway, "ours").await.unwrap()["starts"], 1);
    // Our server is removed at once, but the resource only after the other client's finalizer.
    namespace.delete("ours");
    wait_for("our finalizer to be removed", LONG_DEADLINE, async || {
        namespace.get("ours").await.unwrap()["metadata"]["finalizers"]
            == json!(["example.com/theirs"])
    })
    .await;
    assert_eq!(server(&gateway, "ours").await, None);
    assert_eq!(instances("ours"), 0);
    namespace.patch("ours", NO_FINALIZERS);
    namespace.gone("ours").await;
}

/// Writes the status of a resource as another client would, unless the resource has changed. Returns whether it was
/// written.
fn put_status(namespace: &Namespace, object: &Value) -> bool {
    let path = format!(
        "/apis/toolwharf.dev/v1alpha1/namespaces/{}/mcpservers/{}/status",
        namespace.name,
        object["metadata"]["name"].as_str().unwrap()
    );
    let args = ["replace", "--raw", &path, "--filename=-"];
    try_kubectl(&args, &object.to_string()).status.success()
}

#[tokio::test]
async fn d08_volumes_stay_if_the_resource_says_so() {
    let namespace = Namespace::new("retain").await;
    let gateway = namespace.gateway().await;
    let retained = json!({"volumes": ["/v"], "reclaimPolicy": "Retain"});
    namespace.scripted("keeps", retained);
    let id = namespace.id("keeps").await;
    namespace.remove("keeps").await;
    let volumes = volumes(&gateway, &id);
    assert!(volumes.exists(), "{}", volumes.display());
    let all = Api::admin(&gateway).get("/mcp/servers").await;
    assert_eq!(all["servers"], json!([]));
}

#[tokio::test]
async fn d08_a_status_that_names_another_server_takes_no_volumes_of_it() {
    let namespace = Namespace::new("forged").await;
    let gateway = namespace.gateway().await;
    namespace.scripted("keeper", json!({"volumes": ["/v"]}));
    let keeper = namespace.id("keeper").await;
    namespace.scripted("forger", json!({"project": "none"}));
    wait_for("the forged status", LONG_DEADLINE, async || {
        let mut object = namespace.refused("forger", "NoProject").await;
        object["status"]["id"] = keeper.as_str().into();
        put_status(&namespace, &object)
    })
    .await;
    let forger = namespace.refused("forger", "NoProject").await;
    assert_eq!(forger["status"]["id"], keeper.as_str());
    namespace.remove("forger").await;
    let volumes = volumes(&gateway, &keeper);
    assert!(volumes.exists(), "{}", volumes.display());
    let keeper = server(&gateway, "keeper").await.unwrap();
    assert_eq!((&keeper["starts"], instances("keeper")), (&json!(1), 1));
}
