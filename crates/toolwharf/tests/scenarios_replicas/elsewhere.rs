//! A registered server runs on one replica and is used through all of them.

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, Peer, peer, postgres::Database, wait_for};

use crate::{
    api::Api,
    common::{Gateway, Setup, checks, replicas::Balancer, says},
    sessions::elicitation,
    support::{Hosted, database, replica},
};

/// Waits until a call through this replica succeeds.
pub(crate) async fn works(hosted: &Hosted, at: &Gateway) {
    wait_for("a call through the other replica", DEADLINE, async || {
        echoes(hosted, at).await
    })
    .await;
}

/// Three replicas, and a server that the first one runs.
async fn run_by_the_first(database: &Database) -> ([Gateway; 3], Hosted) {
    let first = replica(database.url(), None).await;
    let hosted = Hosted::register(&first).await;
    let second = replica(database.url(), Some(&first)).await;
    let third = replica(database.url(), Some(&first)).await;
    works(&hosted, &second).await;
    works(&hosted, &third).await;
    ([first, second, third], hosted)
}

/// Returns whether a call over the REST API succeeds.
async fn echoes(hosted: &Hosted, at: &Gateway) -> bool {
    let reply = hosted.call(at, "echo", json!({"text": "heard"})).await;
    reply.status == 200 && reply.text().contains("heard")
}

#[tokio::test]
async fn d01_a_registered_server_is_used_through_every_replica() {
    let database = database().await;
    let (replicas, hosted) = run_by_the_first(&database).await;
    assert_eq!(hosted.instances(), 1);
    let balancer = Balancer::before(&replicas).await;

    for version in ["2025-06-18", "2025-11-25", peer::MODERN] {
        let mut peer = Peer::http(balancer.client(), version, peer::all_capabilities()).await;
        for _ in 0..3 {
            let listed = peer.request("tools/list", json!({})).await;
            let tools = listed.result()["tools"].as_array().unwrap();
            assert!(tools.iter().any(|tool| tool["name"] == "echo"), "{version}");
            let answer = peer.tool("echo", json!({"text": version})).await;
            checks::contains(answer.text(), &[version]);
            let answer = peer.tool("server_request", elicitation()).await;
            checks::contains(answer.text(), &["accept"]);
        }
    }

    // A call is recorded once, at the replica that the client used.
    let before = calls(&replicas[1]).await.len();
    assert!(echoes(&hosted, &replicas[1]).await);
    assert_eq!(calls(&replicas[1]).await.len(), before + 1);

    // Commands such as restart are forwarded, too.
    let before = hosted.pids();
    let through = Api::admin(&replicas[2]);
    through
        .ok("POST", &hosted.path("/restart"), Value::Null)
        .await;
    wait_for("a new instance", DEADLINE, async || {
        let now = hosted.pids();
        now.len() == 1 && now != before
    })
    .await;
    works(&hosted, &replicas[1]).await;
    through.ok("POST", &hosted.path("/stop"), Value::Null).await;
    assert_eq!(hosted.instances(), 0);
    assert!(!echoes(&hosted, &replicas[1]).await);
    through
        .ok("POST", &hosted.path("/start"), Value::Null)
        .await;
    works(&hosted, &replicas[1]).await;
    assert_eq!(hosted.instances(), 1);
}

async fn calls(at: &Gateway) -> Vec<Value> {
    let listed = Api::admin(at).get("/calls?limit=1000").await;
    listed["calls"].as_array().unwrap().clone()
}

/// When the replica that runs the server is killed, the call in flight fails, and later calls succeed.
#[tokio::test]
async fn d02_a_registered_server_is_back_when_its_replica_is_lost() {
    let database = database().await;
    let ([first, second, third], hosted) = run_by_the_first(&database).await;
    let watched = hosted.watched();
    let mut peer = Peer::http(second.client(), "2025-11-25", json!({})).await;
    let slow = json!({"name": "slow", "arguments": {"ms": 60_000}});
    let id = peer.begin("tools/call", slow).await;
    first.in_flight(&hosted.name, 1, DEADLINE).await;
    first.process.signal(Signal::KILL);
    let lost = peer.finish(id).await;
    says(&lost, &[&hosted.name]);
    works(&hosted, &second).await;
    works(&hosted, &third).await;
    assert_eq!(hosted.instances(), 1);
    assert_eq!(watched.most(), 1);
}

/// With `project_servers = "one"`, a project's server runs once, on the replica that was first asked for it, and is
/// used through all.
#[tokio::test]
async fn d01_a_projects_server_runs_on_one_replica_where_that_is_set() {
    let database = Database::create().await;
    let one =
        "[limits]\nstop_grace = \"2s\"\n[replicas]\nlease = \"4s\"\nproject_servers = \"one\"\n";
    let mut replicas: Vec<Gateway> = Vec::new();
    for _ in 0..3 {
        let setup = Setup::new().of_replica(database.url(), replicas.first());
        replicas.push(setup.settings(one).serve().await);
    }
    let name = format!("till{}", std::process::id());
    let entry = json!({"command": Bin::path("testkit-scripted"), "args": ["--name", name]});
    let first = Api::admin(&replicas[0]);
    first.put("/projects/shop", json!({})).await;
    first.put("/mcp/servers/till?project=shop", entry).await;
    let id = "till".to_owned();
    let hosted = Hosted { name, id };
    let watched = hosted.watched();
    let pids = async || {
        let mut pids = Vec::new();
        for replica in &replicas {
            let api = Api::admin(replica);
            let path = "/api/v1/mcp/servers/till/call?project=shop";
            let asked = json!({"method": "tools/call", "params": {"name": "pid", "arguments": {}}});
            wait_for("an answer", DEADLINE, async || {
                let reply = api.ask("POST", path, asked.to_string(), &[]).await;
                let said: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
                let text = said["result"]["content"][0]["text"].as_str();
                pids.extend(text.map(str::to_owned));
                text.is_some()
            })
            .await;
        }
        pids.dedup();
        pids
    };
    let before = pids().await;
    assert_eq!((before.len(), hosted.instances()), (1, 1), "{before:?}");
    // A restart is forwarded to the replica that runs the server.
    let order = "/mcp/servers/till/restart?project=shop";
    let through = Api::admin(&replicas[1]);
    through.ok("POST", order, Value::Null).await;
    let after = pids().await;
    assert_eq!(after.len(), 1, "{after:?}");
    assert_ne!(before, after);
    assert_eq!(watched.most(), 1);
}
