//! D03 with servers in pods, which no sentinel kills. `cargo xtask soak kubernetes` provides the cluster.

use std::{process::Command, time::Duration};

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::wait_for;
use tokio::time::Instant;

use crate::{
    api::Api,
    common::Gateway,
    support::{Hosted, database, replica_hosting},
};

/// Limit from the loss of a replica until its servers run elsewhere.
const MAX_TAKEOVER: Duration = Duration::from_secs(30);
/// Starting images in a cluster takes seconds.
const LONG_DEADLINE: Duration = Duration::from_secs(90);

fn config() -> String {
    let config = std::env::var("TOOLWHARF_TEST_KUBERNETES");
    config.expect("run it in `cargo xtask soak kubernetes`, which has a cluster")
}

async fn replica(url: &str, first: Option<&Gateway>) -> Gateway {
    let hosting = format!(
        "[hosting]\nproviders = [\"kubernetes\"]\n[kubernetes]\nkubeconfig = {:?}\nruntime_class = \"\"\n\
         storage_class = \"toolwharf-test\"\n",
        config()
    );
    replica_hosting(url, first, &hosting).await
}

/// Returns the pods of a server.
fn pods(id: &str) -> Vec<Value> {
    let output = Command::new("kubectl")
        .args(["--kubeconfig", &config(), "get", "pods", "--output=json"])
        .arg(format!("--selector=toolwharf.dev/server={id}"))
        .output()
        .expect("kubectl is installed");
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    list["items"].as_array().unwrap().clone()
}

fn fence(pod: &Value) -> i64 {
    let labels = &pod["metadata"]["labels"];
    let fence = labels["toolwharf.dev/fence"].as_str();
    fence.unwrap().parse().unwrap()
}

async fn register(at: &Gateway) -> Hosted {
    let body = json!({
        "image": "toolwharf-test/scripted:1", "volumes": ["/data"], "resource_limits": {"disk": "32M"},
        "start_timeout_ms": 80_000,
    });
    let hosted = Hosted::of(at, "only", body).await;
    hosted.is_within(LONG_DEADLINE, at, "running").await;
    hosted
}

/// Loses a replica by sending it the signal `loss`. The replica that takes over its server ends the old pod before it
/// creates a new one.
async fn d03(loss: Signal) {
    let database = database().await;
    let first = replica(database.url(), None).await;
    let hosted = register(&first).await;
    let written = json!({"path": "/data/x", "text": "kept"});
    hosted.said(&first, "write", written).await;
    let second = replica(database.url(), Some(&first)).await;
    hosted.is(&second, "elsewhere").await;
    let before = pods(&hosted.id);
    assert_eq!((before.len(), hosted.instances()), (1, 1));
    let watched = hosted.watched();

    let lost = Instant::now();
    first.process.signal(loss);
    // The pod keeps running without its replica.
    assert_eq!(hosted.instances(), 1);
    hosted.is_within(MAX_TAKEOVER, &second, "running").await;
    println!("the server runs elsewhere after {:?}", lost.elapsed());
    let after = pods(&hosted.id);
    assert_eq!(after.len(), 1, "{after:#?}");
    assert_ne!(after[0]["metadata"]["uid"], before[0]["metadata"]["uid"]);
    assert_eq!(after[0]["metadata"]["name"], before[0]["metadata"]["name"]);
    assert!(fence(&after[0]) > fence(&before[0]), "{after:#?}");
    // The volume has moved with it.
    let kept = async || {
        hosted
            .said(&second, "read", json!({"path": "/data/x"}))
            .await
    };
    assert_eq!(kept().await, "kept");
    if loss == Signal::STOP {
        // When the first replica resumes, it leaves the other replica's pod alone.
        first.process.signal(Signal::CONT);
        hosted.is(&first, "elsewhere").await;
        let now = pods(&hosted.id);
        assert_eq!(now[0]["metadata"]["uid"], after[0]["metadata"]["uid"]);
    }
    assert_eq!(kept().await, "kept");
    assert_eq!(hosted.instances(), 1);
    assert_eq!(watched.most(), 1, "never two at once");
    let path = hosted.path("?volumes=true");
    Api::admin(&second).delete(&path).await;
    wait_for("nothing that is left", LONG_DEADLINE, async || {
        pods(&hosted.id).is_empty()
    })
    .await;
}

#[tokio::test]
async fn d03_on_kubernetes_a_killed_replicas_pod_is_ended_before_its_server_runs_elsewhere() {
    d03(Signal::KILL).await;
}

#[tokio::test]
async fn d03_on_kubernetes_a_stopped_replicas_pod_is_ended_before_its_server_runs_elsewhere() {
    d03(Signal::STOP).await;
}
