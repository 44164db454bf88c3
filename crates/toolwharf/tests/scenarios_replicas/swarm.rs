//! D06: replicas that host on one swarm, which must exist: `cargo xtask postgres -- cargo xtask swarm -- cargo nextest
//! run -p toolwharf --test scenarios_replicas -E 'test(d06)'`.

use std::{path::PathBuf, time::Duration};

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::wait_for;
use tokio::time::Instant;

use crate::{
    api::Api,
    common::Gateway,
    support::{Hosted, database, replica_hosting},
};

const VARIABLE: &str = "TOOLWHARF_TEST_SWARM";
/// Limit from the loss of a replica until its servers run elsewhere.
const MAX_TAKEOVER: Duration = Duration::from_secs(30);

fn settings() -> String {
    let dir = std::env::var(VARIABLE)
        .unwrap_or_else(|_| panic!("{VARIABLE} names no swarm; run it with: cargo xtask swarm"));
    let socket = |number: &str| {
        format!(
            "unix://{}",
            PathBuf::from(&dir).join(number).join("sock").display()
        )
    };
    let daemons = ["1", "2"].map(socket);
    format!("[hosting]\nproviders = [\"swarm\"]\n[swarm]\ndaemons = {daemons:?}\ngvisor = false\n")
}

async fn register(at: &Gateway) -> Hosted {
    let name = format!("swarm{}", std::process::id());
    let body = json!({
        "name": name,
        "image": "toolwharf-test/scripted",
        "args": ["--name", name],
        "provider": "swarm",
        "volumes": ["/data"],
    });
    let made = Api::admin(at).ok("POST", "/mcp/servers", body).await;
    let id = made["id"].as_str().unwrap().to_owned();
    let hosted = Hosted { name, id };
    hosted.is(at, "running").await;
    hosted
}

async fn said(at: &Gateway, hosted: &Hosted, tool: &str, arguments: Value) -> Value {
    let path = format!("/mcp/servers/{}/call", hosted.id);
    let body = json!({"method": "tools/call", "params": {"name": tool, "arguments": arguments}});
    let answer = Api::admin(at).ok("POST", &path, body).await;
    answer["result"]["content"][0]["text"].clone()
}

#[tokio::test]
async fn d06_a_killed_replicas_server_in_a_swarm_runs_on_once_with_its_volume() {
    let database = database().await;
    let first = replica_hosting(database.url(), None, &settings()).await;
    let hosted = register(&first).await;
    let written = json!({"path": "/data/x", "text": "kept"});
    assert_eq!(said(&first, &hosted, "write", written).await, "written");
    let second = replica_hosting(database.url(), Some(&first), &settings()).await;
    hosted.is(&second, "elsewhere").await;
    let watched = hosted.watched();
    let lost = Instant::now();
    first.process.signal(Signal::KILL);
    wait_for("the takeover", MAX_TAKEOVER, async || {
        hosted.state(&second).await["status"] == "running"
    })
    .await;
    eprintln!("taken over after {:?}", lost.elapsed());
    assert_eq!(hosted.instances(), 1);
    assert_eq!(watched.most(), 1);
    let path = json!({"path": "/data/x"});
    assert_eq!(said(&second, &hosted, "read", path).await, "kept");
    let path = format!("/mcp/servers/{}?volumes=true", hosted.id);
    Api::admin(&second).ok("DELETE", &path, Value::Null).await;
    assert_eq!(hosted.instances(), 0);
}
