//! D03 and D04: work that only one replica may do.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use testkit::{DEADLINE, Streaming, wait_for};
use tokio::time::Instant;

use crate::{
    api::Api,
    common::{Gateway, checks},
    support::{
        Hosted, LEASE, Proxy, Way, database, end, listed, refuses_keys, replica, replica_with,
        two_with, two_with_server,
    },
};

/// D03: limit from the loss of a replica until its servers run elsewhere.
const MAX_TAKEOVER: Duration = Duration::from_secs(30);

/// Waits for an event after which `count` replicas exist.
async fn replicas_are(events: &mut Streaming, at: &Gateway, count: usize) {
    loop {
        let event = events.next_event(DEADLINE).await.expect("an event");
        if event.event.as_deref() == Some("replicas") && listed(at).await.len() == count {
            return;
        }
    }
}

#[tokio::test]
async fn d03_a_killed_replicas_server_runs_elsewhere_once() {
    let (database, first, second, hosted) = two_with_server().await;
    let admin = Api::admin(&second);
    let mut events = admin.open("GET", "/api/v1/events", "", &[]).await;
    let third = replica(database.url(), Some(&first)).await;
    replicas_are(&mut events, &second, 3).await;
    hosted.is(&third, "elsewhere").await;
    let watched = hosted.watched();

    let mut holders = listed(&second).await;
    let lease = format!("server:{}", hosted.id);
    holders.retain(|row| {
        let mut leases = row["leases"].as_array().unwrap().iter();
        leases.any(|held| held["name"] == lease.as_str())
    });
    assert_eq!(holders.len(), 1, "{holders:#?}");
    assert_eq!(holders[0]["is_self"], false, "{holders:#?}");

    let lost = Instant::now();
    first.process.signal(Signal::KILL);
    wait_for("the takeover", MAX_TAKEOVER, async || {
        let states = [hosted.state(&second).await, hosted.state(&third).await];
        let running = states.iter().filter(|server| server["status"] == "running");
        running.count() == 1
    })
    .await;
    assert!(lost.elapsed() < MAX_TAKEOVER);
    replicas_are(&mut events, &second, 2).await;
    assert_eq!(hosted.instances(), 1);
    assert_eq!(watched.most(), 1);
}

#[tokio::test]
async fn d03_a_replica_that_is_stopped_has_nothing_running_when_another_starts_it() {
    let (_database, first, second, hosted) = two_with_server().await;
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
    let (_database, mut first, second, hosted) = two_with_server().await;
    let watched = hosted.watched();
    end(&mut first, Signal::TERM).await;
    hosted.is(&second, "running").await;
    assert_eq!(watched.most(), 1);
    let listed = listed(&second).await;
    assert_eq!(listed.len(), 1, "{listed:#?}");
}

#[tokio::test]
async fn d03_a_replica_that_was_killed_and_starts_again_does_not_wait_for_itself() {
    let database = database().await;
    let first = replica(database.url(), None).await;
    let hosted = Hosted::register(&first).await;
    let first = first.restarted_after(Signal::KILL).await;
    let listed = listed(&first).await;
    assert_eq!(listed.len(), 1, "{listed:#?}");
    hosted.is(&first, "running").await;
    assert_eq!(hosted.instances(), 1);
}

/// Volumes in the data directory of a lost replica cannot move: the server is blocked until they are back, and says so.
#[tokio::test]
async fn d03_a_server_whose_volumes_cannot_follow_is_blocked_until_its_host_is_back() {
    let volumes = json!({"volumes": ["/notes"]});
    let (_database, mut first, second, hosted) = two_with(volumes).await;
    let kept = |text: &str| json!({"path": "/notes/kept", "text": text});
    hosted.said(&first, "append", kept("before")).await;
    let watched = hosted.watched();
    end(&mut first, Signal::KILL).await;
    hosted.is_blocked(&second, "its volumes are on host").await;
    assert_eq!(hosted.instances(), 0);
    let reply = hosted.call(&second, "append", kept("lost")).await;
    assert!(reply.status.is_server_error(), "{}", reply.text());
    checks::contains(reply.text(), &["volumes"]);
    let first = first.again().await;
    hosted.is(&first, "running").await;
    hosted.is(&second, "elsewhere").await;
    // The volume still has the data from before.
    let read = json!({"path": "/notes/kept"});
    assert_eq!(hosted.said(&second, "read", read).await, "before\n");
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
        let path = hosted.path(&format!("/{order}"));
        Api::admin(at).ok("POST", &path, json!({})).await;
    };
    // The replica is lost by a graceful stop, then by a kill.
    for signal in [Signal::TERM, Signal::KILL] {
        hosted.is(&other, "elsewhere").await;
        order(&other, "stop").await;
        hosted.is(&runs, "stopped").await;
        end(&mut runs, signal).await;
        hosted.is_blocked(&other, "stopped by hand").await;
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
    let answer = hosted.call(&first, "echo", json!({})).await;
    let is_error = !answer.status.is_success() || answer.text().contains("error");
    assert!(is_error, "{}", answer.text());

    // The replica refuses all keys: a known key may have been revoked at another replica, and an unknown key may be
    // new.
    refuses_keys(&first).await;
    let unknown = Api::with(&first, "twh_0123456789abcdef");
    let unknown = unknown.ask("GET", "/api/v1/mcp/servers", "", &[]).await;
    assert_eq!(unknown.status, 503, "{}", unknown.text());
    // `/readyz` reports that the replica is cut off, so that a load balancer sends requests to other replicas.
    let readiness = first.at("/readyz").get(&[]).await;
    let readiness = readiness.collect(DEADLINE).await;
    checks::reply(&readiness, 503, &["the database is unreachable"]);
    assert_eq!(second.at("/readyz").get(&[]).await.status, 200);

    proxy.be(Way::Open);
    wait_for("its return", DEADLINE, async || {
        listed(&second).await.len() == 2
    })
    .await;
    hosted.is(&first, "elsewhere").await;
    wait_for("/readyz", DEADLINE, async || {
        first.at("/readyz").get(&[]).await.status == 200
    })
    .await;
    assert_eq!(watched.most(), 1);
    // A connection left in its authentication phase would block the creation and removal of databases for a minute.
    proxy.way.close().await;
}

#[tokio::test]
async fn d04_a_replica_that_is_cut_off_stops_what_it_holds() {
    d04(Way::Cut).await;
}

#[tokio::test]
async fn d04_a_replica_whose_database_is_silent_stops_what_it_holds() {
    d04(Way::Stalled).await;
}

/// A replica keeps its leases even if starting its servers one after the other takes longer than a lease lasts.
#[tokio::test]
async fn d03_a_lease_outlives_a_long_start() {
    let database = database().await;
    let mut first = replica(database.url(), None).await;
    let hosted = Hosted::register(&first).await;
    end(&mut first, Signal::TERM).await;
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
