//! Servers of `mcp.json`, as processes and at URLs, from start to end.

use std::{collections::HashMap, sync::Arc, time::Duration};

use engine::server::State;
use model::{Origin, Place, Sandbox, Sharing, StartPolicy};
use serde_json::json;
use tokio::time::Instant;

use crate::support::{
    ERAS, World, client::Client, hosted, quiet, renewed, stdio, takes, until, url,
};

/// Failed attempts are repeated with waits that grow to a minute. Meanwhile, a call fails immediately.
#[tokio::test(start_paused = true)]
async fn p07_a_connection_that_drops_is_made_again_with_growing_waits() {
    for spec in [url("one"), stdio("one")] {
        let (world, one) = World::one(spec, |_| {});
        let client = world.legacy().await;
        client.tool("echo", json!({})).await.result();
        tokio::time::sleep(Duration::from_secs(2)).await;
        one.script(|script| script.refusals = 9).exit(0);
        until("the last attempt was refused", || {
            one.attempts().len() == 10
        })
        .await;
        let reply = client.echo_unavailable().await;
        let wait = reply.error()["data"]["retryAfterMs"].as_u64().unwrap();
        assert!((15_000..=60_000).contains(&wait), "{wait} ms");
        let back = world.until_state("one", "running").await;
        takes(back, 15.0, 60.5);
        client.tool("echo", json!({})).await.result();
        let attempts = one.attempts();
        // A connection that lasted more than a second is retried immediately.
        let gaps: Vec<f64> = attempts
            .windows(2)
            .map(|pair| (pair[1] - pair[0]).as_secs_f64())
            .collect();
        assert!((2.0..2.2).contains(&gaps[0]), "{gaps:?}");
        for (doublings, gap) in gaps[1..].iter().enumerate() {
            let longest = 2f64.powi(i32::try_from(doublings).unwrap()).min(60.0);
            assert!((longest / 4.0..=longest + 0.01).contains(gap), "{gaps:?}");
        }
        assert_eq!((one.starts(), one.most_running()), (2, 1));
    }
}

/// Calls fail even during an immediate reconnect, since a remote server may be unavailable for long.
#[tokio::test(start_paused = true)]
async fn p07_calls_do_not_wait_for_a_url_to_come_back() {
    for era in ERAS {
        let (world, one) = World::running(url("one"), |script| script.era = era).await;
        let client = world.client(era).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        one.script(|script| script.start_delay = Duration::from_secs(3))
            .exit(0);
        quiet().await;
        assert_eq!(one.attempts().len(), 2);
        client.echo_unavailable().await;
        takes(world.until_state("one", "running").await, 2.9, 3.1);
        client.tool("echo", json!({})).await.result();
    }
}

/// While a server starts again, the failure of its last attempt is named.
#[tokio::test(start_paused = true)]
async fn u13_a_server_that_starts_again_names_its_failure() {
    let (world, one) = World::one(stdio("one"), |script| script.refusals = 1);
    until("it was refused", || one.attempts().len() == 1).await;
    one.script(|script| script.start_delay = Duration::from_secs(40));
    until("it starts again", || one.attempts().len() == 2).await;
    quiet().await;
    assert_eq!(world.state("one"), "starting");
    let why = world.server("one").absence().unwrap();
    let reason = world.status("one").reason.unwrap();
    assert!(why.contains(&*reason), "{why}");
    assert!(!why.contains("still starting"), "{why}");
    let client = world.legacy().await;
    client.tool("x", json!({})).await.says(&reason);
}

/// A configuration change resets failures.
#[tokio::test(start_paused = true)]
async fn u05_a_change_of_a_server_that_is_away() {
    for spec in [url("one"), stdio("one")] {
        let (world, one) = World::one(spec.clone(), |script| script.refusals = 9);
        until("it has failed", || one.attempts().len() == 9).await;
        quiet().await;
        assert_eq!((world.state("one"), one.starts()), ("backoff", 0));
        one.script(|script| script.refusals = 0);
        world.configure(&[renewed(spec.clone())]);
        quiet().await;
        assert_eq!((world.state("one"), one.starts()), ("running", 1));
    }
}

/// Each session has an instance that ends with the session and does not affect others.
#[tokio::test(start_paused = true)]
async fn s05_sessions_have_instances_of_their_own() {
    let mut spec = stdio("one");
    spec.sharing = Sharing::Session;
    let (world, one) = World::running(spec, |_| {}).await;
    let (ada, bob) = (world.legacy().await, world.legacy().await);
    // Concurrent first calls of a session start one instance.
    let calls = [&ada, &bob, &ada, &bob].map(|client| client.begin_tool("hold", json!({})));
    quiet().await;
    let instances = || {
        let heard = one.heard("tools/call");
        heard.iter().map(|heard| heard.instance).collect::<Vec<_>>()
    };
    assert_eq!(one.starts(), 3);
    let seen = instances();
    assert_eq!((seen[0], seen[1]), (seen[2], seen[3]));
    assert_ne!(seen[0], seen[1]);
    ada.leave().await;
    quiet().await;
    assert_eq!(one.running(), 2);
    one.release();
    let [first, second, third, fourth] = calls;
    for (call, is_over) in [
        (first, true),
        (second, false),
        (third, true),
        (fourth, false),
    ] {
        assert_eq!(call.reply().await.frame.get("result").is_none(), is_over);
    }
    // All instances exit. The next call gets a new one.
    tokio::time::sleep(Duration::from_secs(2)).await;
    one.exit(1);
    quiet().await;
    bob.tool("echo", json!({})).await.result();
    assert!(instances()[4] > 3);
    bob.leave().await;
    quiet().await;
    assert_eq!(one.running(), 1);
}

/// Clients that vanished without ending their sessions do not keep others out. A session in use keeps its instance; any
/// other one ends with it.
#[tokio::test(start_paused = true)]
async fn s05_abandoned_sessions_make_room() {
    let world = World::with(|settings| settings.limits.max_session_instances = 2);
    let one = world.scripted("one");
    let mut spec = stdio("one");
    spec.sharing = Sharing::Session;
    world.configure(&[spec]);
    world.up(&["one"]).await;
    let clients = [(); 6].map(|()| world.legacy());
    let clients = futures_util::future::join_all(clients).await;
    for client in &clients {
        client.tool("echo", json!({})).await.result();
        quiet().await;
        assert!(one.running() <= 3);
    }
    let over = |client: &Client| client.session().over().is_cancelled();
    assert_eq!(clients.iter().filter(|client| over(client)).count(), 4);
    // One of the remaining sessions has a stream open, the other one a call in flight.
    let [fifth, sixth] = [&clients[4], &clients[5]];
    let open = fifth.session().hold_open();
    let call = sixth.begin_tool("hold", json!({}));
    quiet().await;
    let late = world.legacy().await;
    late.echo_unavailable().await.says("max_session_instances");
    assert!(!over(fifth) && !over(sixth));
    drop(open);
    late.tool("echo", json!({})).await.result();
    assert!(over(fifth) && !over(sixth));
    one.release();
    call.reply().await.result();
}

/// Volumes, and the containers that use them, are named after the server. Two sessions must not share the same files.
#[tokio::test(start_paused = true)]
async fn s05_sessions_have_no_instances_of_their_own_on_the_same_volumes() {
    let world = World::new();
    let one = world.scripted("one");
    world.configure(&[hosted("one", |spec| {
        spec.sharing = Sharing::Session;
        let Origin::Launch(launch) = &mut spec.origin else {
            unreachable!()
        };
        let mut sandbox = Sandbox::new("one-0");
        sandbox.volumes.push("/notes".to_owned());
        Arc::make_mut(launch).place = Place::Sandbox(sandbox);
    })]);
    world.up(&["one"]).await;
    let client = world.legacy().await;
    let reply = client.tool("echo", json!({})).await;
    assert_eq!(reply.reason(), "server_unavailable");
    let text = reply.frame.to_string();
    assert!(text.contains("it has volumes"), "{text}");
    assert_eq!(one.starts(), 1);
}

/// After a server has run for a minute, its earlier failures no longer count.
#[tokio::test(start_paused = true)]
async fn p07_a_minute_of_running_is_stable() {
    let (world, one) = World::running(url("one"), |script| script.refusals = 6).await;
    for (held, at_once) in [(59, false), (61, true), (61, true)] {
        tokio::time::sleep(Duration::from_secs(held)).await;
        one.exit(0);
        quiet().await;
        assert_eq!(world.state("one") == "running", at_once, "after {held} s");
        world.up(&["one"]).await;
    }
}

/// A server that exits repeatedly within a second is not restarted in a tight loop.
#[tokio::test(start_paused = true)]
async fn p07_what_flaps_waits() {
    let (world, one) = World::one(stdio("one"), |script| script.dies_at_start = Some(1));
    tokio::time::sleep(Duration::from_secs(600)).await;
    let starts = one.starts();
    assert!((12..=30).contains(&starts), "{starts} starts in 10 min");
    assert_eq!(world.state("one"), "backoff");
    let State::Down { reason, .. } = world.server("one").state() else {
        panic!("it is down");
    };
    assert!(reason.contains("exit code 1"), "{reason}");
    assert!(world.server("one").stderr_tail().contains("instance"));
}

/// When a server exits, each of its calls ends with the reason, in any state of the call.
#[tokio::test(start_paused = true)]
async fn g05_calls_in_flight_end_with_their_server() {
    for spec in [url("one"), stdio("one")] {
        for era in ERAS {
            let (world, one) = World::running(spec.clone(), |script| script.era = era).await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            let client = world.client(era).await;
            let calls = [1, 2].map(|n| client.begin_tool("hold", json!({ "n": n })));
            quiet().await;
            let began = Instant::now();
            one.exit(7);
            for call in calls {
                let reply = call.reply().await;
                assert_eq!(reply.reason(), "server_unavailable");
                reply.says("disconnected during `hold`");
                reply.says("it ended with exit code 7");
            }
            assert!(began.elapsed().is_zero());
            world.up(&["one"]).await;
            client.tool("echo", json!({})).await.result();
            assert_eq!(world.server("one").load(), (0, 0));
        }
    }
}

/// A reload does not disturb unchanged servers or their calls.
#[tokio::test(start_paused = true)]
async fn u05_a_reload_leaves_alone_what_it_does_not_change() {
    let (world, one) = World::running(stdio("one"), |_| {}).await;
    let client = world.legacy().await;
    let call = client.begin_tool("hold", json!({ "n": 1 }));
    quiet().await;
    let mut without = stdio("one");
    without
        .tools
        .disabled
        .insert(model::NativeName::new("echo"));
    world.configure(&[stdio("two"), without]);
    world.up(&["one", "two"]).await;
    assert_eq!(client.tools().await, ["echo", "two__hold", "one__hold"]);
    world.configure(&[stdio("one")]);
    quiet().await;
    assert_eq!(one.release(), 1);
    assert_eq!(call.reply().await.json()["n"], 1);
    assert_eq!(one.starts(), 1);
}

/// A server changed by a reload is restarted: its calls end with a clear error, and new ones reach the new instance.
#[tokio::test(start_paused = true)]
async fn u05_a_reload_in_mid_call() {
    for spec in [url("one"), stdio("one")] {
        for era in ERAS {
            let (world, one) = World::one(spec.clone(), |_| {});
            let client = world.client(era).await;
            client.tool("echo", json!({})).await.result();
            let call = client.begin_tool("hold", json!({ "n": 1 }));
            quiet().await;
            one.script(|script| script.start_delay = Duration::from_secs(3));
            world.configure(&[renewed(spec.clone())]);
            let began = Instant::now();
            let reply = call.reply().await;
            assert_eq!(reply.reason(), "server_unavailable");
            takes(began.elapsed(), 0.0, 0.1);
            // The server's tools stay on offer, and a call waits for the server.
            assert_eq!(client.tools().await, ["echo", "hold"]);
            let reply = client.tool("echo", json!({ "n": 2 })).await;
            assert_eq!(reply.json()["n"], 2);
            takes(began.elapsed(), 2.9, 3.1);
            assert_eq!(one.heard("tools/call").last().unwrap().instance, 2);
            quiet().await;
            assert_eq!((one.starts(), one.running()), (2, 1));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn g11_a_server_is_removed_in_mid_call() {
    for era in ERAS {
        let world = World::new();
        let one = world.scripted("one");
        world.scripted("two").tools(&["other"]);
        world.configure(&[stdio("one"), stdio("two")]);
        world.up(&["one", "two"]).await;
        let client = world.client(era).await;
        let call = client.begin_tool("hold", json!({ "n": 1 }));
        quiet().await;
        let began = Instant::now();
        world.configure(&[stdio("two")]);
        assert_eq!(client.tools().await, ["other"]);
        let gone = client.tool("hold", json!({})).await;
        assert_eq!(gone.error()["code"], -32602);
        assert_eq!(call.reply().await.reason(), "server_unavailable");
        takes(began.elapsed(), 0.0, 0.1);
        quiet().await;
        assert_eq!((one.starts(), one.running()), (1, 0));
        assert_eq!(one.heard("tools/call").len(), 1);
    }
}

/// A server that does not exit when its input closes gets `SIGTERM`, and `SIGKILL` after the grace period (P05).
#[tokio::test(start_paused = true)]
async fn p05_what_does_not_end_is_killed() {
    let (world, one) = World::running(stdio("one"), |script| script.is_stubborn = true).await;
    let server = world.server("one");
    let began = Instant::now();
    world.configure(&[]);
    server.stopped().await;
    takes(began.elapsed(), 9.9, 10.2);
    assert_eq!(one.running(), 0);
    assert!(
        server.stderr_tail().contains("signal 9"),
        "{}",
        server.stderr_tail()
    );
}

/// A sequential start launches one server after the other. The first failure stops the servers that were started
/// before.
#[tokio::test(start_paused = true)]
async fn a10_the_first_failure_fails_the_start() {
    let world = World::with(|settings| settings.start = StartPolicy::Sequential);
    let all = ["one", "two", "three"];
    for name in all {
        let server = world.scripted(name);
        server.script(|script| script.start_delay = Duration::from_secs(2));
    }
    world.scripted("two").script(|script| script.refusals = 1);
    let specs = || all.map(stdio).to_vec();
    let failed = world.gateway.start(specs(), HashMap::new()).await;
    let failed = failed.unwrap_err().to_string();
    assert!(
        failed.contains("`two`") && failed.contains("connection refused"),
        "{failed}"
    );
    quiet().await;
    let starts = all.map(|name| world.scripted(name).starts());
    let running = all.map(|name| world.scripted(name).running());
    assert_eq!((starts, running), ([1, 0, 0], [0, 0, 0]));

    let began = Instant::now();
    world.gateway.start(specs(), HashMap::new()).await.unwrap();
    takes(began.elapsed(), 5.9, 6.1);
    let first = all.map(|name| *world.scripted(name).attempts().last().unwrap() - began);
    for (first, at) in first.into_iter().zip([0.0, 2.0, 4.0]) {
        takes(first, at, at + 0.1);
    }
}

/// A server that its own entry blocks does not abort a sequential start.
#[tokio::test(start_paused = true)]
async fn a10_a_blocked_entry_is_skipped() {
    let world = World::with(|settings| settings.start = StartPolicy::Sequential);
    let mut specs = ["one", "two", "three"].map(stdio).to_vec();
    specs[1].unusable = Some("`command` of server `two` is a number".to_owned());
    world.gateway.start(specs, HashMap::new()).await.unwrap();
    quiet().await;
    let states = ["one", "two", "three"].map(|name| world.state(name));
    assert_eq!(states, ["running", "blocked", "running"]);
    assert_eq!(world.scripted("two").starts(), 0);
}

/// Only enabled tools are offered. A change of the list restarts nothing.
#[tokio::test(start_paused = true)]
async fn u05_enabled_tools_are_changed_without_a_restart() {
    let world = World::new();
    let one = world.scripted("one");
    one.tools(&["a", "b"]);
    let with = |tools: Option<&[&str]>| {
        let mut spec = stdio("one");
        let names = |tools: &[&str]| tools.iter().map(|it| model::NativeName::new(*it)).collect();
        spec.tools.enabled = tools.map(names);
        spec
    };
    world.configure(&[with(Some(&["b"]))]);
    let client = world.legacy().await;
    assert_eq!(client.tools().await, ["b"]);
    assert!(
        client
            .tool("a", json!({}))
            .await
            .frame
            .get("result")
            .is_none()
    );
    world.configure(&[with(None)]);
    assert_eq!(client.tools().await, ["a", "b"]);
    world.configure(&[with(Some(&[]))]);
    assert!(client.tools().await.is_empty());
    assert_eq!(one.starts(), 1);
}

/// After shutdown nothing is left, and every call has a response.
#[tokio::test(start_paused = true)]
async fn a11_nothing_outlives_the_gateway() {
    let world = World::new();
    let all = ["one", "two", "stubborn"];
    let stubborn = world.scripted("stubborn");
    stubborn.script(|script| script.is_stubborn = true);
    world.scripted("one").tools(&["hold"]);
    world.configure(&[stdio("one"), url("two"), stdio("stubborn")]);
    world.up(&all).await;
    let client = world.legacy().await;
    let call = client.begin_tool("one__hold", json!({}));
    quiet().await;
    let ended = async {
        let began = Instant::now();
        let gone = || all.iter().all(|name| world.scripted(name).running() == 0);
        until("all are gone", gone).await;
        began.elapsed()
    };
    let (took, ()) = tokio::join!(ended, world.shutdown());
    takes(took, 9.9, 30.2);
    assert_eq!(call.reply().await.reason(), "server_unavailable");
    assert_eq!(
        client.tool("one__hold", json!({})).await.reason(),
        "server_unavailable"
    );
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(all.map(|name| world.scripted(name).starts()), [1, 1, 1]);
}
