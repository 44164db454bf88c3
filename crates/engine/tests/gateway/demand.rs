//! Servers started on demand: those of projects, and all servers under the start policy `lazy`.

use std::time::Duration;

use engine::Trouble;
use mcp::Era;
use model::{Breaker, StartPolicy};
use serde_json::json;
use tokio::time::Instant;

use crate::support::{ERAS, World, owned, quiet, server::Scripted, stdio, takes, until, url};

const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

async fn lazy() -> (World, Scripted) {
    let world = World::with(|settings| {
        settings.start = StartPolicy::Lazy;
        settings.limits.server_idle = IDLE_TIMEOUT;
    });
    let one = world.scripted("one");
    (world, one)
}

/// Concurrent first requests, for lists and calls, start each server once.
#[tokio::test(start_paused = true)]
async fn a12_the_first_requests_start_a_server_once() {
    let (world, one) = lazy().await;
    one.script(|script| script.start_delay = Duration::from_secs(2));
    world.configure(&[stdio("one")]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((one.starts(), world.state("one")), (0, "idle"));
    let mut clients = Vec::new();
    for n in 0..10 {
        clients.push(world.client(ERAS[n % 2]).await);
    }
    let began = Instant::now();
    let requests = clients.iter().enumerate().flat_map(|(n, client)| {
        [
            client.begin_tool("echo", json!({ "n": n })),
            client.begin("tools/list", json!({})),
        ]
    });
    let requests: Vec<_> = requests.collect();
    for request in requests {
        request.reply().await.result();
    }
    takes(began.elapsed(), 1.9, 2.1);
    assert_eq!(one.starts(), 1);
}

/// An unused connection is closed. The tools stay on offer, and the next call reconnects.
#[tokio::test(start_paused = true)]
async fn p10_an_idle_server_is_stopped_and_started_again() {
    for era in ERAS {
        let (world, one) = lazy().await;
        one.script(|script| script.era = era);
        let mut spec = stdio("one");
        spec.call_timeout = Duration::from_secs(600);
        world.configure(&[spec]);
        let client = world.client(era).await;
        for start in 1..=3 {
            assert_eq!(
                client.tool("echo", json!({ "n": start })).await.json()["n"],
                start
            );
            assert_eq!(one.starts(), start);
            // A server with a call in flight is not idle.
            let call = client.begin_tool("hold", json!({}));
            tokio::time::sleep(5 * IDLE_TIMEOUT).await;
            assert_eq!(one.release(), 1);
            call.reply().await.result();
            takes(world.until_state("one", "idle").await, 1.0, 121.0);
            assert_eq!((one.starts(), one.running()), (start, 0));
            let view = world.gateway.view(&engine::Scope::default()).unwrap();
            assert_eq!(view.len(catalog::ListKind::Tools), 2);
        }
    }
}

/// A call that arrives during the stop waits, and gets a new instance once the old one is gone.
#[tokio::test(start_paused = true)]
async fn p10_a_call_during_the_idle_stop_waits() {
    let (world, one) = lazy().await;
    one.script(|script| script.is_stubborn = true);
    world.configure(&[stdio("one")]);
    let client = world.legacy().await;
    client.tool("echo", json!({})).await.result();
    until("it is being stopped", || world.state("one") != "running").await;
    let began = Instant::now();
    let reply = client.tool("echo", json!({ "n": 2 })).await;
    assert_eq!(reply.json()["n"], 2);
    takes(began.elapsed(), 5.0, 10.1);
    assert_eq!((one.starts(), one.most_running()), (2, 1));
}

/// A server with watched resources is not idle.
#[tokio::test(start_paused = true)]
async fn p10_a_watched_server_is_in_use() {
    for era in ERAS {
        let (world, one) = lazy().await;
        one.script(|script| {
            script.era = era;
            script.resources = vec!["note:1".to_owned()];
        });
        world.configure(&[stdio("one")]);
        let client = world.legacy().await;
        let listed = client.list("resources").await;
        let uri = json!({ "uri": listed[0]["uri"] });
        client
            .request("resources/subscribe", uri.clone())
            .await
            .result();
        tokio::time::sleep(10 * IDLE_TIMEOUT).await;
        assert_eq!((world.state("one"), one.starts()), ("running", 1));
        one.updated("note:1");
        quiet().await;
        assert_eq!(
            client
                .notifications("notifications/resources/updated")
                .len(),
            1
        );
        client.request("resources/unsubscribe", uri).await.result();
        takes(world.until_state("one", "idle").await, 0.0, 121.0);
    }
}

/// The server connects at the first use, not at boot. The agents of a project share the connection (P11), and another
/// project with a server of the same name has a separate one.
#[tokio::test(start_paused = true)]
async fn p10_the_first_use_connects_and_p11_agents_share_it() {
    let world = World::new();
    for project in ["p", "q"] {
        let one = world.owned(project, "one");
        one.script(|script| script.start_delay = Duration::from_secs(1));
        world.project(project, &[owned(project, url("one"))]);
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    let (p, q) = (world.owned("p", "one"), world.owned("q", "one"));
    assert_eq!((p.starts(), q.starts()), (0, 0));
    let mut calls = Vec::new();
    for n in 0..6 {
        let agent = world.client_in(ERAS[n % 2], "p").await;
        calls.push(agent.begin_tool("echo", json!({ "n": n })));
    }
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(call.reply().await.json()["n"], n);
    }
    assert_eq!((p.starts(), q.starts()), (1, 0));
    let other = world.client_in(Era::Legacy, "q").await;
    other.tool("echo", json!({})).await.result();
    assert_eq!((p.starts(), q.starts()), (1, 1));
    // A later agent of the project still finds the connection.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let agent = world.client_in(Era::Modern, "p").await;
    agent.tool("echo", json!({})).await.result();
    assert_eq!(p.starts(), 1);
}

/// After three failures in a row, no attempt is made for a minute. Then the next caller triggers one.
#[tokio::test(start_paused = true)]
async fn p12_three_failures_make_a_server_unavailable_for_a_while() {
    let world = World::new();
    let one = world.owned("p", "one");
    world.project("p", &[owned("p", url("one"))]);
    let client = world.client_in(Era::Legacy, "p").await;
    client.tool("echo", json!({})).await.result();
    tokio::time::sleep(Duration::from_secs(2)).await;
    one.script(|script| script.refusals = 4).exit(0);
    takes(world.until_state("one", "unavailable").await, 0.7, 4.0);
    // After the first cooldown, one failure is enough for the next cooldown.
    for attempts in [4, 5] {
        assert_eq!(one.attempts().len(), attempts);
        for seconds in [0, 20, 39] {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            let reply = client.echo_unavailable().await;
            reply.says("in a row failed");
            let wait = reply.error()["data"]["retryAfterMs"].as_u64().unwrap();
            assert!(wait <= 60_000, "{wait} ms");
        }
        world.until_state("one", "idle").await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(one.attempts().len(), attempts, "nobody wanted it");
        // It still needs a person, and keeps the reason.
        let status = world.status("one");
        let reason = status.reason.expect("a reason");
        assert_eq!(reason.matches("in a row failed").count(), 1, "{reason}");
        assert_eq!(status.trouble, Some(Trouble::Failed));
        let reply = client.tool("echo", json!({ "n": attempts })).await;
        if attempts == 4 {
            assert_eq!(reply.reason(), "server_unavailable");
            assert_eq!(world.state("one"), "unavailable");
        } else {
            assert_eq!(reply.json()["n"], attempts);
        }
    }
    let status = world.status("one");
    assert_eq!((status.reason, status.trouble), (None, None));
}

/// The entry's number of failures and cooldown take precedence over the settings.
#[tokio::test(start_paused = true)]
async fn p12_the_breaker_is_a_setting() {
    let of = |failures, seconds| Breaker {
        failures,
        cooldown: Duration::from_secs(seconds),
    };
    for (own, failures, cooldown) in [(None, 2, 300.0), (Some(of(1, 5)), 1, 5.0)] {
        let world = World::with(|settings| settings.breaker = of(2, 300));
        let one = world.owned("p", "one");
        one.script(|script| script.refusals = u32::MAX);
        let mut spec = owned("p", stdio("one"));
        spec.breaker = own;
        world.project("p", &[spec]);
        world.server("one").want();
        world.until_state("one", "unavailable").await;
        assert_eq!(one.attempts().len(), failures);
        let waited = world.until_state("one", "idle").await;
        takes(waited, cooldown - 0.1, cooldown * 1.02);
    }
}

/// A configuration change ends the cooldown, and does not start an unwanted server.
#[tokio::test(start_paused = true)]
async fn p12_a_change_ends_the_cooldown() {
    let world = World::new();
    let one = world.owned("p", "one");
    let mut spec = owned("p", url("one"));
    world.project("p", std::slice::from_ref(&spec));
    let client = world.client_in(Era::Legacy, "p").await;
    client.tool("echo", json!({})).await.result();
    tokio::time::sleep(Duration::from_secs(2)).await;
    one.script(|script| script.refusals = 3).exit(0);
    world.until_state("one", "unavailable").await;
    let attempts = one.attempts().len();
    spec.max_concurrency = std::num::NonZeroU32::new(3);
    world.project("p", &[spec]);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(
        (world.state("one"), one.attempts().len()),
        ("idle", attempts)
    );
    client.tool("echo", json!({})).await.result();
    assert_eq!(one.attempts().len(), attempts + 1);
}

/// A missing secret makes the connection fail with that reason, and nothing is started.
#[tokio::test(start_paused = true)]
async fn p04_a_missing_secret_is_the_reason() {
    let world = World::new();
    let one = world.owned("p", "one");
    let mut spec = owned("p", stdio("one"));
    world.project("p", std::slice::from_ref(&spec));
    let client = world.client_in(Era::Legacy, "p").await;
    client.tool("echo", json!({})).await.result();
    let why = "the secret `SEARCH_API_KEY` of server `one` is not set in project `p`";
    spec.unusable = Some(why.to_owned());
    world.project("p", &[spec]);
    quiet().await;
    let reply = client.tool("echo", json!({})).await;
    assert_eq!(reply.reason(), "server_unavailable");
    reply.says(why);
    assert_eq!((one.starts(), one.running()), (1, 0));
    world.project("p", &[owned("p", stdio("one"))]);
    client.tool("echo", json!({})).await.result();
    assert_eq!(one.starts(), 2);
}

/// Forgetting a project removes its servers (P05), including their calls in flight.
#[tokio::test(start_paused = true)]
async fn p05_a_project_is_unloaded_in_mid_call() {
    let world = World::new();
    let one = world.owned("p", "one");
    world.project("p", &[owned("p", stdio("one"))]);
    let client = world.client_in(Era::Modern, "p").await;
    client.tools().await;
    let call = client.begin_tool("hold", json!({}));
    quiet().await;
    assert_eq!(one.held().len(), 1);
    world
        .gateway
        .project_remove(&crate::support::project_id("p"));
    assert_eq!(call.reply().await.reason(), "server_unavailable");
    quiet().await;
    assert_eq!(one.running(), 0);
    client.tool("echo", json!({})).await.error();
}
