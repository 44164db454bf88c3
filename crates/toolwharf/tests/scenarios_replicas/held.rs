//! D03 and D04: work that only one replica may do.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use testkit::{DEADLINE, Streaming, wait_for};
use tokio::time::Instant;

use crate::{
    api::Api,
    common::Gateway,
    support::{Hosted, LEASE, Proxy, Way, database, replica, replica_with},
};

/// D03: limit from the loss of a replica until its servers run elsewhere.
const MAX_TAKEOVER: Duration = Duration::from_secs(30);

/// Waits for an event after which `count` replicas exist.
async fn replicas_are(events: &mut Streaming, admin: &Api<'_>, count: usize) {
    loop {
        let event = events.next_event(DEADLINE).await.expect("an event");
        if event.event.as_deref() == Some("replicas")
            && admin.get("/replicas").await["replicas"]
                .as_array()
                .unwrap()
                .len()
                == count
        {
            return;
        }
    }
}

#[tokio::test]
async fn d03_a_killed_replicas_server_runs_elsewhere_once() {
    let database = database().await;
    let first = replica(database.url(), None).await;
    let hosted = Hosted::register(&first).await;
    let second = replica(database.url(), Some(&first)).await;
    let admin = Api::admin(&second);
    let mut events = admin.open("GET", "/api/v1/events", "", &[]).await;
    let third = replica(database.url(), Some(&first)).await;
    replicas_are(&mut events, &admin, 3).await;
    hosted.is(&second, "elsewhere").await;
    hosted.is(&third, "elsewhere").await;
    let watched = hosted.watched();

    let listed = Api::admin(&second).get("/replicas").await;
    let holds = |row: &&serde_json::Value| {
        let leases = row["leases"].as_array().unwrap();
        leases
            .iter()
            .any(|lease| lease["name"] == format!("server:{}", hosted.id))
    };
    let holders: Vec<_> = listed["replicas"]
        .as_array()
        .unwrap()
        .iter()
        .filter(holds)
        .collect();
    assert_eq!(holders.len(), 1, "{listed}");
    assert_eq!(holders[0]["is_self"], false, "{listed}");

    let lost = Instant::now();
    first.process.signal(Signal::KILL);
    wait_for("the takeover", MAX_TAKEOVER, async || {
        let states = [hosted.state(&second).await, hosted.state(&third).await];
        states
            .iter()
            .filter(|server| server["status"] == "running")
            .count()
            == 1
    })
    .await;
    assert!(lost.elapsed() < MAX_TAKEOVER);
    replicas_are(&mut events, &admin, 2).await;
    assert_eq!(hosted.instances(), 1);
    assert_eq!(watched.most(), 1);
}

#[tokio::test]
async fn d03_a_replica_that_is_stopped_has_nothing_running_when_another_starts_it() {
    let database = database().await;
    let first = replica(database.url(), None).await;
    let hosted = Hosted::register(&first).await;
    let second = replica(database.url(), Some(&first)).await;
    hosted.is(&second, "elsewhere").await;
    let watched = hosted.watched();
    first.process.signal(Signal::STOP);
    hosted.is(&second, "running").await;
    // The resumed replica believes that it still holds its leases.
    first.process.signal(Signal::CONT);
    hosted.is(&first, "elsewhere").await;
    hosted.is(&second, "running").await;
    assert_eq!(hosted.instances(), 1);
    assert_eq!(watched.most(), 1);
    // On a busy machine it may lose its membership more than once.
    let losses = first.metric("replica_losses_total", None).await;
    assert!(losses >= Some(1), "{losses:?}");
}

#[tokio::test]
async fn d03_an_orderly_end_frees_its_servers_at_once() {
    let database = database().await;
    let mut first = replica(database.url(), None).await;
    let hosted = Hosted::register(&first).await;
    let second = replica(database.url(), Some(&first)).await;
    hosted.is(&second, "elsewhere").await;
    let watched = hosted.watched();
    first.process.signal(Signal::TERM);
    first.process.wait(DEADLINE).await;
    hosted.is(&second, "running").await;
    assert_eq!(watched.most(), 1);
    let listed = Api::admin(&second).get("/replicas").await;
    assert_eq!(listed["replicas"].as_array().unwrap().len(), 1, "{listed}");
}

#[tokio::test]
async fn d03_a_replica_that_was_killed_and_starts_again_does_not_wait_for_itself() {
    let database = database().await;
    let first = replica(database.url(), None).await;
    let hosted = Hosted::register(&first).await;
    let first = first.restarted_after(Signal::KILL).await;
    let listed = Api::admin(&first).get("/replicas").await;
    assert_eq!(listed["replicas"].as_array().unwrap().len(), 1, "{listed}");
    hosted.is(&first, "running").await;
    assert_eq!(hosted.instances(), 1);
}

/// Volumes in the data directory of a lost replica cannot move: the server is blocked until they are back, and says so.
#[tokio::test]
async fn d03_a_server_whose_volumes_cannot_follow_is_blocked_until_its_host_is_back() {
    let database = database().await;
    let first = replica(database.url(), None).await;
    let second = replica(database.url(), Some(&first)).await;
    let hosted = Hosted::register_with(&first, json!({"volumes": ["/notes"]})).await;
    let write = |text: &str| {
        json!({"method": "tools/call", "params": {
            "name": "append", "arguments": {"path": "/notes/kept", "text": text},
        }})
    };
    let call = format!("/mcp/servers/{}/call", hosted.id);
    Api::admin(&first).ok("POST", &call, write("before")).await;
    hosted.is(&second, "elsewhere").await;
    let watched = hosted.watched();
    let mut first = first;
    first.process.signal(Signal::KILL);
    first.process.wait(DEADLINE).await;
    wait_for("it to be blocked", DEADLINE, async || {
        let state = hosted.state(&second).await;
        let reason = state["reason"].as_str().unwrap_or_default();
        state["status"] == "blocked" && reason.contains("its volumes are on host")
    })
    .await;
    assert_eq!(hosted.instances(), 0);
    let reply = Api::admin(&second)
        .ask(
            "POST",
            &format!("/api/v1{call}"),
            write("lost").to_string(),
            &[],
        )
        .await;
    assert!(
        reply.status.is_server_error() && reply.text().contains("volumes"),
        "{}",
        reply.text()
    );
    let first = first.again().await;
    hosted.is(&first, "running").await;
    hosted.is(&second, "elsewhere").await;
    // Data from before is still there.
    let read = json!({"method": "tools/call", "params": {
        "name": "read", "arguments": {"path": "/notes/kept"},
    }});
    let said = Api::admin(&second).ok("POST", &call, read).await;
    assert_eq!(said["result"]["content"][0]["text"], "before\n", "{said}");
    assert_eq!(watched.most(), 1);
}

/// A manually stopped server stays stopped when its replica is lost, and can be started through any replica.
#[tokio::test]
async fn d03_a_server_that_was_stopped_stays_stopped() {
    let database = database().await;
    let mut runs = replica(database.url(), None).await;
    let policy = json!({"restart_policy": "unless-stopped"});
    let hosted = Hosted::register_with(&runs, policy).await;
    let mut other = replica(database.url(), Some(&runs)).await;
    let order = async |at: &Gateway, order: &str| {
        let path = format!("/mcp/servers/{}/{order}", hosted.id);
        Api::admin(at).ok("POST", &path, json!({})).await;
    };
    // A graceful stop, and a kill.
    for signal in [Signal::TERM, Signal::KILL] {
        hosted.is(&other, "elsewhere").await;
        order(&other, "stop").await;
        hosted.is(&runs, "stopped").await;
        runs.process.signal(signal);
        runs.process.wait(DEADLINE).await;
        wait_for(
            "the other replica to show it as stopped",
            DEADLINE,
            async || {
                let state = hosted.state(&other).await;
                let reason = state["reason"].as_str().unwrap_or_default();
                state["status"] == "blocked" && reason.contains("stopped by hand")
            },
        )
        .await;
        assert_eq!(hosted.instances(), 0);
        order(&other, "start").await;
        hosted.is(&other, "running").await;
        let back = runs.again().await;
        (runs, other) = (other, back);
    }
}

async fn d04(way: Way) {
    let database = database().await;
    let proxy = Proxy::to(database.url()).await;
    let first = replica(proxy.url(), None).await;
    let hosted = Hosted::register(&first).await;
    let second = replica(database.url(), Some(&first)).await;
    hosted.is(&second, "elsewhere").await;
    let watched = hosted.watched();
    proxy.be(way);
    wait_for("its end", DEADLINE, async || hosted.instances() == 0).await;
    hosted.is(&second, "running").await;
    assert_eq!(hosted.instances(), 1);
    let path = format!("/api/v1/mcp/servers/{}/call", hosted.id);
    let call = json!({"method": "tools/call", "params": {"name": "echo", "arguments": {}}});
    let answer = Api::admin(&first)
        .ask("POST", &path, call.to_string(), &[])
        .await;
    assert!(
        !answer.status.is_success() || answer.text().contains("error"),
        "{}",
        answer.text()
    );
    let listing = async || {
        let admin = Api::admin(&first);
        admin.ask("GET", "/api/v1/mcp/servers", "", &[]).await
    };
    // A known key may have been revoked elsewhere by now, and an unknown one may be new.
    wait_for("keys to be refused", DEADLINE, async || {
        let told = listing().await;
        told.status == 503 && told.text().contains("may have been revoked")
    })
    .await;
    let unknown = Api::with(&first, "twh_0123456789abcdef");
    let unknown = unknown.ask("GET", "/api/v1/mcp/servers", "", &[]).await;
    assert_eq!(unknown.status, 503, "{}", unknown.text());
    // So a load balancer sends requests to other replicas.
    let readiness = first.at("/readyz").get(&[]).await;
    let readiness = readiness.collect(DEADLINE).await;
    assert_eq!(readiness.status, 503);
    assert!(readiness.text().contains("cut off from the database"));
    assert_eq!(second.at("/readyz").get(&[]).await.status, 200);

    proxy.be(Way::Open);
    wait_for("its return", DEADLINE, async || {
        let listed = Api::admin(&second).get("/replicas").await;
        listed["replicas"].as_array().unwrap().len() == 2
    })
    .await;
    hosted.is(&first, "elsewhere").await;
    wait_for("/readyz", DEADLINE, async || {
        first.at("/readyz").get(&[]).await.status == 200
    })
    .await;
    assert_eq!(watched.most(), 1);
    proxy.close().await;
}

#[tokio::test]
async fn d04_a_replica_that_is_cut_off_stops_what_it_holds() {
    d04(Way::Cut).await;
}

#[tokio::test]
async fn d04_a_replica_whose_database_is_silent_stops_what_it_holds() {
    d04(Way::Stalled).await;
}

/// Starting servers one after the other takes longer than a lease.
#[tokio::test]
async fn d03_a_lease_outlives_a_long_start() {
    let database = database().await;
    let mut first = replica(database.url(), None).await;
    let hosted = Hosted::register(&first).await;
    first.process.signal(Signal::TERM);
    first.process.wait(DEADLINE).await;
    let settings = format!(
        "start = \"sequential\"\n[hosting]\nproviders = [\"process\"]\n[replicas]\nlease = \"{LEASE}\"\n"
    );
    let slow = ["--start-delay-ms", "6000"];
    let second = replica_with(database.url(), Some(&first), |setup| {
        setup.settings(&settings).scripted("slow", &slow)
    })
    .await;
    hosted.is(&second, "running").await;
    let log = second.process.stderr();
    let connected = format!("connected server={}", hosted.name);
    assert_eq!(log.matches(&connected).count(), 1, "{log}");
}
