//! D08: failures around resources, and their effect on servers.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{DEADLINE, wait_for};

use crate::{
    api::Api,
    common::Setup,
    support::{
        ApiServer, LONG_DEADLINE, Namespace, Way, call, condition, define, instances, kubectl,
        scripted, server, try_kubectl,
    },
};

#[tokio::test]
async fn d08_a_restart_finds_what_was_changed_meanwhile() {
    let namespace = Namespace::new("restart").await;
    let mut gateway = namespace.gateway().await;
    for name in ["stays", "changes", "goes", "forced"] {
        namespace.apply(name, scripted(name, json!({})));
    }
    let mut ids = Vec::new();
    for name in ["stays", "changes", "goes", "forced"] {
        ids.push(namespace.ready(name).await["status"]["id"].clone());
    }
    gateway.process.signal(Signal::KILL);
    gateway.process.wait(DEADLINE).await;
    namespace.apply(
        "changes",
        scripted("changes", json!({"description": "Changed."})),
    );
    namespace.apply("comes", scripted("comes", json!({})));
    for name in ["goes", "forced"] {
        namespace.delete(name);
    }
    let patch = r#"{"metadata":{"finalizers":null}}"#;
    namespace.kubectl(
        &[
            "patch",
            "mcpserver",
            "forced",
            "--type=merge",
            "--patch",
            patch,
        ],
        "",
    );
    assert_eq!(
        (namespace.get("goes").is_some(), namespace.get("forced")),
        (true, None)
    );

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
    let [stays, changes] = [
        server(&gateway, "stays").await.unwrap(),
        server(&gateway, "changes").await.unwrap(),
    ];
    assert_eq!([&stays["id"], &changes["id"]], [&ids[0], &ids[1]]);
    assert_eq!(changes["description"], "Changed.");
}

#[tokio::test]
async fn d08_a_gateway_killed_at_any_moment_makes_nothing_twice_and_leaves_nothing() {
    let namespace = Namespace::new("killed").await;
    let mut gateway = namespace.gateway().await;
    let rounds = if testkit::soak() { 60 } else { 6 };
    for round in 0..rounds {
        let name = format!("killed{round}");
        namespace.apply(&name, scripted(&name, json!({"volumes": ["/v"]})));
        // At different points between the finalizer, the row, the launch and the status.
        tokio::time::sleep(Duration::from_millis(round * 70 % 600)).await;
        gateway.process.signal(Signal::KILL);
        gateway.process.wait(DEADLINE).await;
        gateway = gateway.again().await;
        let object = namespace.ready(&name).await;
        let found = server(&gateway, &name).await.unwrap();
        assert_eq!(
            (&found["id"], instances(&name)),
            (&object["status"]["id"], 1)
        );
        let volumes = gateway
            .folder()
            .join("data/hosting/process/volumes")
            .join(found["id"].as_str().unwrap());
        namespace.delete(&name);
        tokio::time::sleep(Duration::from_millis(round * 50 % 300)).await;
        gateway.process.signal(Signal::KILL);
        gateway.process.wait(DEADLINE).await;
        gateway = gateway.again().await;
        namespace.gone(&name).await;
        assert_eq!(
            (server(&gateway, &name).await, volumes.exists()),
            (None, false)
        );
        wait_for("its end", LONG_DEADLINE, async || instances(&name) == 0).await;
    }
}

#[tokio::test]
async fn d08_while_the_api_server_is_away_servers_go_on() {
    let namespace = Namespace::new("away").await;
    let mut way = Way::new().await;
    let settings = namespace.settings_with(&way.config.to_string_lossy());
    let gateway = Setup::new().settings(&settings).serve().await;
    for name in ["goes-on", "deleted"] {
        namespace.apply(name, scripted(name, json!({})));
    }
    let before = namespace.ready("goes-on").await;
    namespace.ready("deleted").await;
    way.cut().await;
    gateway
        .logged("the watch on MCPServer resources failed")
        .await;
    namespace.delete("deleted");
    namespace.apply(
        "goes-on",
        scripted("goes-on", json!({"description": "While it was away."})),
    );
    call(&gateway, before["status"]["id"].as_str().unwrap()).await;
    way.open().await;
    namespace.gone("deleted").await;
    namespace.ready("goes-on").await;
    assert_eq!(
        server(&gateway, "goes-on").await.unwrap()["description"],
        "While it was away."
    );
    // The gateway also starts without an API server.
    way.cut().await;
    let gateway = gateway.restarted().await;
    let id = before["status"]["id"].as_str().unwrap();
    wait_for("the server", LONG_DEADLINE, async || {
        server(&gateway, "goes-on")
            .await
            .is_some_and(|one| one["status"] == "running")
    })
    .await;
    call(&gateway, id).await;
    way.open().await;
    namespace.delete("goes-on");
    namespace.gone("goes-on").await;
}

#[tokio::test]
async fn d08_a_watch_that_is_too_old_is_begun_anew() {
    let namespace = Namespace::new("old").await;
    let mut server = ApiServer::start().await;
    let mut way = Way::to(&server.address()).await;
    let settings = namespace.settings_with(&way.config.to_string_lossy());
    let gateway = Setup::new().settings(&settings).serve().await;
    for name in ["stays", "goes"] {
        namespace.apply(name, scripted(name, json!({})));
        namespace.ready(name).await;
    }
    way.cut().await;
    gateway
        .logged("the watch on MCPServer resources failed")
        .await;
    namespace.delete("goes");
    namespace.apply("comes", scripted("comes", json!({})));
    // The restarted API server has no history: the last version seen is too old to continue from (410).
    server.again().await;
    way.open().await;
    gateway.logged("too old resource version").await;
    namespace.gone("goes").await;
    for name in ["stays", "comes"] {
        namespace.ready(name).await;
    }
    assert_eq!(
        crate::support::server(&gateway, "stays").await.unwrap()["starts"],
        1
    );
}

#[tokio::test]
async fn d08_servers_outlive_the_definition_and_are_found_again() {
    let namespace = Namespace::new("definition").await;
    let gateway = namespace.gateway().await;
    for name in ["kept", "left"] {
        namespace.apply(name, scripted(name, json!({"volumes": ["/v"]})));
    }
    let id = namespace.ready("kept").await["status"]["id"].clone();
    namespace.ready("left").await;
    let pid = server(&gateway, "kept").await.unwrap()["pid"].clone();
    // Neither our finalizers nor the gateway blocks the deletion.
    kubectl(
        &["delete", "crd", "mcpservers.toolwharf.dev", "--timeout=60s"],
        "",
    );
    gateway
        .logged("continues to run without its resource")
        .await;
    call(&gateway, id.as_str().unwrap()).await;
    define().await;
    gateway
        .logged("its resource was deleted with the definition")
        .await;
    namespace.apply("kept", scripted("kept", json!({"volumes": ["/v"]})));
    let kept = namespace.ready("kept").await;
    assert_eq!(kept["status"]["id"], id);
    let found = server(&gateway, "kept").await.unwrap();
    assert_eq!(
        (&found["pid"], &found["starts"]),
        (&pid, &json!(1)),
        "no round interrupted it"
    );
    assert_eq!(server(&gateway, "left").await.unwrap()["status"], "running");
    namespace.apply("left", scripted("left", json!({"volumes": ["/v"]})));
    namespace.ready("left").await;
    for name in ["kept", "left"] {
        namespace.delete(name);
        namespace.gone(name).await;
    }
    assert_eq!(server(&gateway, "kept").await, None);
}

#[tokio::test]
async fn d08_what_others_do_to_a_resource_is_put_right() {
    let namespace = Namespace::new("others").await;
    let gateway = namespace.gateway().await;
    namespace.apply("ours", scripted("ours", json!({})));
    let before = namespace.ready("ours").await;
    // Another client removes our finalizer, writes to the status, and adds its own finalizer and label.
    let theirs = r#"{"metadata":{"finalizers":["example.com/theirs"],"labels":{"theirs":"yes"}}}"#;
    namespace.kubectl(
        &[
            "patch",
            "mcpserver",
            "ours",
            "--type=merge",
            "--patch",
            theirs,
        ],
        "",
    );
    wait_for("their status to be written", LONG_DEADLINE, async || {
        let mut object = namespace.get("ours").unwrap();
        object["status"]["state"] = "nonsense".into();
        put_status(&namespace, &object)
    })
    .await;
    wait_for("the resource to be restored", LONG_DEADLINE, async || {
        let object = namespace.get("ours").unwrap();
        let finalizers = object["metadata"]["finalizers"].as_array().unwrap();
        finalizers.contains(&json!("toolwharf.dev/server"))
            && finalizers.contains(&json!("example.com/theirs"))
            && object["status"]["state"] == "running"
    })
    .await;
    let now = namespace.get("ours").unwrap();
    assert_eq!(now["metadata"]["labels"]["theirs"], "yes");
    assert_eq!(condition(&now, "Ready"), condition(&before, "Ready"));
    assert_eq!(server(&gateway, "ours").await.unwrap()["starts"], 1);
    // The resource is removed after the other finalizer is, and our server before.
    namespace.delete("ours");
    wait_for("our finalizer to be removed", LONG_DEADLINE, async || {
        namespace.get("ours").unwrap()["metadata"]["finalizers"] == json!(["example.com/theirs"])
    })
    .await;
    assert_eq!(
        (server(&gateway, "ours").await, instances("ours")),
        (None, 0)
    );
    let none = r#"{"metadata":{"finalizers":null}}"#;
    namespace.kubectl(
        &[
            "patch",
            "mcpserver",
            "ours",
            "--type=merge",
            "--patch",
            none,
        ],
        "",
    );
    namespace.gone("ours").await;
}

/// Writes the status of a resource as another client would, unless the resource has changed. Returns whether it was
/// written.
fn put_status(namespace: &Namespace, object: &Value) -> bool {
    let path = format!(
        "/apis/toolwharf.dev/v1alpha1/namespaces/{}/mcpservers/{}/status",
        namespace.0,
        object["metadata"]["name"].as_str().unwrap()
    );
    let args = ["replace", "--raw", &path, "--filename=-"];
    try_kubectl(&args, &object.to_string()).status.success()
}

#[tokio::test]
async fn d08_volumes_stay_if_the_resource_says_so() {
    let namespace = Namespace::new("retain").await;
    let gateway = namespace.gateway().await;
    namespace.apply(
        "keeps",
        scripted(
            "keeps",
            json!({"volumes": ["/v"], "reclaimPolicy": "Retain"}),
        ),
    );
    let id = namespace.ready("keeps").await["status"]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    namespace.delete("keeps");
    namespace.gone("keeps").await;
    let volumes = gateway
        .folder()
        .join("data/hosting/process/volumes")
        .join(&id);
    assert_eq!(
        (server(&gateway, "keeps").await, volumes.exists()),
        (None, true)
    );
    let events = Api::admin(&gateway)
        .ok("GET", "/mcp/servers", Value::Null)
        .await;
    assert_eq!(events["servers"], json!([]));
}

#[tokio::test]
async fn d08_a_status_that_names_another_server_takes_no_volumes_of_it() {
    let namespace = Namespace::new("forged").await;
    let gateway = namespace.gateway().await;
    namespace.apply("keeper", scripted("keeper", json!({"volumes": ["/v"]})));
    let keeper = namespace.ready("keeper").await;
    namespace.apply("forger", scripted("forger", json!({"project": "none"})));
    let refused = async || {
        namespace
            .condition("forger", "Accepted", "False", "NoProject")
            .await
    };
    wait_for("the forged status", LONG_DEADLINE, async || {
        let mut object = refused().await;
        object["status"]["id"] = keeper["status"]["id"].clone();
        put_status(&namespace, &object)
    })
    .await;
    assert_eq!(refused().await["status"]["id"], keeper["status"]["id"]);
    namespace.delete("forger");
    namespace.gone("forger").await;
    let volumes = gateway
        .folder()
        .join("data/hosting/process/volumes")
        .join(keeper["status"]["id"].as_str().unwrap());
    assert!(volumes.exists(), "{}", volumes.display());
    let keeper = server(&gateway, "keeper").await.unwrap();
    assert_eq!((&keeper["starts"], instances("keeper")), (&json!(1), 1));
}
