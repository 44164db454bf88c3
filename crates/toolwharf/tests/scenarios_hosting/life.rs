//! H08 to H12 and H15: starts, crashes and stops of servers, and a server that does not respond.

use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use serde_json::{Value, json};
use testkit::{Peer, soak, wait_for};
use tokio::time::Instant;

use crate::{
    common::checks,
    support::{Host, LONG_DEADLINE, Platform, Site, body, docker, gone, unique},
};

on_every_platform!(
    h08_registered_servers_are_back_when_the_product_is,
    h09_a_server_that_crashed_or_was_killed_is_back_in_5_s,
    h09_restart_policies_are_as_docker_has_them,
    h10_a_crash_loop_backs_off_and_warns,
    h11_sigterm_stops_all_and_drops_no_call,
    h12_a_restart_by_hand_makes_a_new_instance,
    h15_a_silent_server_is_unresponsive_and_not_restarted,
);

fn at(event: &Value) -> DateTime<Utc> {
    event["at"].as_str().unwrap().parse().unwrap()
}

async fn h08_registered_servers_are_back_when_the_product_is(platform: Platform) {
    const DELAY_S: i64 = 3;
    let (site, host) = Site::started(platform).await;
    let names: Vec<String> = (0..4).map(|n| unique(&format!("h08-{n}"))).collect();
    let slow = format!("{}", DELAY_S * 1000);
    let entries = names
        .iter()
        .map(|name| site.entry(name, &["--start-delay-ms", &slow]));
    let ids = join_all(entries.map(|entry| host.host(entry))).await;
    host.stop().await;
    for (id, name) in ids.iter().zip(&names) {
        gone(platform, id, name).await;
    }

    let back = async |host: &Host, times: usize| {
        let mut ready = Vec::new();
        for (id, name) in ids.iter().zip(&names) {
            host.until(id, "running").await;
            let echo = host.tool(id, "echo", json!({"name": name})).await;
            assert_eq!(echo["structuredContent"]["name"], name.as_str());
            assert_eq!(host.instances(id, name).len(), 1, "{name}");
            ready.push(at(&host.happened(id, "ready", times).await[times - 1]));
        }
        let spread = *ready.iter().max().unwrap() - *ready.iter().min().unwrap();
        // If the servers started one after the other, the last would be ready three starts after the first.
        assert!(spread.num_seconds() < 3 * DELAY_S, "{spread}");
    };
    let host = site.start().await;
    back(&host, 2).await;
    assert_eq!(host.list().await.len(), 4);
    // The gateway's list has all of their tools.
    let tools = host.tools_of_all().await;
    let echoes = tools
        .iter()
        .filter(|tool| tool["name"].as_str().unwrap().ends_with("echo"));
    assert_eq!(echoes.count(), 4, "{tools:?}");

    // After SIGKILL, no leftover instance runs in addition to the new one.
    host.running.kill().await;
    let host = site.start().await;
    back(&host, 3).await;
    host.stop().await;
}

/// Launching the instance of one session ends no other instance.
#[tokio::test]
async fn sessions_have_containers_of_their_own() {
    let site = Site::new(Platform::Runc).await;
    let name = unique("own");
    let entry = json!({"image": Platform::Runc.image("scripted"), "args": ["--name", name], "toolwharf": {"sharing": "session"}});
    site.kept.servers(json!({ "own": entry }));
    let host = site.start().await;
    let containers = || {
        let all = docker(&["ps", "--no-trunc", "--format", "{{.ID}} {{.Command}}"]);
        let mine = all.lines().filter(|line| line.contains(&name));
        mine.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut peers = Vec::new();
    let mut before = Vec::new();
    for _ in 0..2 {
        let client = host.running.raw("/mcp");
        let mut peer = Peer::http(client, "2025-11-25", json!({})).await;
        let echo = peer.tool("echo", json!({})).await;
        assert_eq!(echo.response["error"], Value::Null);
        let now = containers();
        let gone: Vec<_> = before.iter().filter(|it| !now.contains(it)).collect();
        assert!(gone.is_empty(), "{gone:?} of {before:?}");
        assert!(now.len() > before.len(), "{now:?}");
        before = now;
        peers.push(peer);
    }
    for peer in &mut peers {
        let echo = peer.tool("echo", json!({})).await;
        assert_eq!(echo.response["error"], Value::Null);
    }
    assert_eq!(containers(), before);
    host.stop().await;
}

async fn h09_a_server_that_crashed_or_was_killed_is_back_in_5_s(platform: Platform) {
    let site = Site::new(platform).await;
    let name = unique("h09");
    let (host, id) = site
        .hosting(&name, &["--stderr-at-start", "last words of h09"])
        .await;
    host.mark(&id).await;
    let start = Instant::now();
    let crashed = host.call(&id, "crash", json!({"code": 7})).await;
    assert!(crashed.status.is_server_error(), "{}", crashed.text());
    checks::contains(crashed.text(), &["disconnected"]);
    host.answers(&id).await;
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "{platform:?}: {took:?}");
    assert!(!host.is_marked(&id).await);
    let told = host.status(&id).await;
    checks::members(&told, json!({"status": "running", "restart_count": 1}));
    assert_eq!(told["last_crash"]["exit_code"], 7, "{told:#}");
    checks::string(&told["last_crash"]["stderr"], &["last words of h09"]);
    let events = host.happened(&id, "crashed", 1).await;
    assert_eq!(events[0]["detail"]["exitCode"], 7);
    checks::string(&events[0]["detail"]["stderr"], &["last words"]);

    host.mark(&id).await;
    let start = Instant::now();
    host.kill_server(&id, &name);
    // A call that arrives before the exit is noticed gets an error. The value of the counter shows which instance
    // answers.
    wait_for("another instance", LONG_DEADLINE, async || {
        let counter = host.call(&id, "counter", json!({})).await;
        counter.status == 200 && body(&counter)["result"]["structuredContent"]["total"] == 0
    })
    .await;
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "{platform:?}: {took:?}");
    let told = host.status(&id).await;
    assert_eq!(told["restart_count"], 2);
    let crash = &told["last_crash"];
    assert!(crash["signal"] == 9 || crash["exit_code"] == 137, "{crash}");
    assert_eq!(crash["out_of_memory"], false, "{crash}");
    assert_eq!(host.instances(&id, &name).len(), 1);
    let log = host.stop().await;
    checks::contains(&log, &["it crashed", "last words of h09"]);
}

async fn h09_restart_policies_are_as_docker_has_them(platform: Platform) {
    const POLICIES: [&str; 4] = ["always", "on-failure", "unless-stopped", "no"];
    let (site, host) = Site::started(platform).await;
    let entry = |policy: &str| site.entry_with(policy, &[], json!({"restart_policy": policy}));
    let entries = POLICIES.map(entry);
    join_all(entries.map(|entry| host.host(entry))).await;
    // The servers exit with code 0, then with another code.
    for (code, states) in [
        (0, ["running", "stopped", "running", "stopped"]),
        (3, ["running", "running", "running", "failed"]),
    ] {
        let ends = POLICIES.map(|policy| host.call(policy, "crash", json!({"code": code})));
        for end in join_all(ends).await {
            assert!(end.status.is_server_error(), "{}", end.text());
        }
        for (policy, state) in POLICIES.into_iter().zip(states) {
            let kind = if code == 0 { "exited" } else { "crashed" };
            host.happened(policy, kind, 1).await;
            let told = host.until(policy, state).await;
            if state == "running" {
                host.echoes(policy).await;
            } else {
                checks::reply(&host.call(policy, "echo", json!({})).await, 503, &[]);
            }
            if state == "failed" {
                assert_eq!(told["last_crash"]["exit_code"], 3);
            }
        }
        for policy in POLICIES {
            host.order(policy, "start").await;
            host.until(policy, "running").await;
        }
    }
    // The servers are running when the product stops.
    host.stop().await;
    let host = site.start().await;
    for policy in &POLICIES[..3] {
        host.until(policy, "running").await;
    }
    assert_eq!(host.status("no").await["status"], "stopped");
    // The servers are stopped manually before the product stops.
    for policy in POLICIES {
        assert_eq!(host.order(policy, "stop").await["status"], "stopped");
    }
    host.stop().await;
    let host = site.start().await;
    host.until("always", "running").await;
    for policy in &POLICIES[1..] {
        checks::members(&host.status(policy).await, json!({"status": "stopped"}));
    }
    host.stop().await;
}

async fn h10_a_crash_loop_backs_off_and_warns(platform: Platform) {
    let (site, host) = Site::started(platform).await;
    let own = ["--exit-at-start", "--stderr-at-start", "no configuration"];
    let told = host.register(site.entry("h10", &own)).await;
    let told_at = Instant::now();
    let id = told["id"].as_str().unwrap().to_owned();
    let expected = json!({"status": "backoff", "restart_count": 3, "warnings": 1});
    checks::members(&told, expected);
    let wait = told["next_attempt_ms"].as_u64().unwrap();
    assert!((1..=5000).contains(&wait), "{wait}");
    assert_eq!(told["last_crash"]["exit_code"], 5, "{told:#}");
    checks::string(&told["last_crash"]["stderr"], &["no configuration"]);
    // Calls do not wait for the restart: the response arrives before the next attempt.
    let refused = host.call(&id, "echo", json!({})).await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    let after = told_at.elapsed();
    assert!(
        after < Duration::from_millis(wait),
        "{after:?} of {wait} ms"
    );
    let retry: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=5).contains(&retry), "{retry}");
    let first = host.happened(&id, "backoff", 1).await;
    assert_eq!(first[0]["detail"]["waitSeconds"], 5);
    assert_eq!(host.events_of(&id, "crashed").await.len(), 4);

    // Waits for the first backoff in real time and checks the announced next one. A soak run waits for two more.
    let waits_for_real: &[u64] = if soak() { &[5, 15, 45] } else { &[5] };
    let rungs = [5, 15, 45, 120];
    for (at_rung, seconds) in waits_for_real.iter().enumerate() {
        let waits = host.happened(&id, "backoff", at_rung + 2).await;
        let crashes = host.events_of(&id, "crashed").await;
        let waited = at(&crashes[at_rung + 4]) - at(&waits[at_rung]);
        let least = i64::try_from(seconds * 1000 - 100).unwrap();
        // The restart is not early, and less than ten seconds late.
        assert!(waited.num_milliseconds() >= least, "{waited}");
        assert!(waited.num_milliseconds() < least + 10_000, "{waited}");
        let next = &waits[at_rung + 1]["detail"];
        assert_eq!(next["waitSeconds"], rungs[at_rung + 1]);
    }
    let rounds = waits_for_real.len();
    let told = host.status(&id).await;
    let expected =
        json!({"status": "backoff", "warnings": 1 + rounds, "restart_count": 3 + rounds});
    checks::members(&told, expected);
    let wait = told["next_attempt_ms"].as_u64().unwrap();
    let (before, announced) = (rungs[rounds - 1] * 1000, rungs[rounds] * 1000);
    assert!((before + 1..=announced).contains(&wait), "{wait}");

    // A manual restart resets the backoff.
    let told = host.order(&id, "restart").await;
    checks::members(&told, json!({"status": "backoff"}));
    let waits = host.happened(&id, "backoff", rounds + 2).await;
    assert_eq!(waits[rounds + 1]["detail"]["waitSeconds"], 5);
    // A stop ends the retries.
    let told = host.order(&id, "stop").await;
    checks::members(&told, json!({"status": "stopped", "next_attempt_ms": null}));
    let log = host.stop().await;
    let told = "it ended more than 3 times in 60 s; next attempt in 5 s";
    checks::contains(&log, &[told]);
}

async fn h11_sigterm_stops_all_and_drops_no_call(platform: Platform) {
    const SIGTERM_FILE: &str = "/data/told";
    let (site, host) = Site::started(platform).await;
    let [polite, stubborn] = [unique("h11-polite"), unique("h11-stubborn")];
    let volume = json!({"volumes": ["/data"], "resource_limits": {"disk": "32M"}});
    let own = ["--ignore-eof", "--note-sigterm", SIGTERM_FILE];
    let entry = site.entry_with(&polite, &own, volume.clone());
    let polite_id = host.host(entry).await;
    let own = [&own[..], &["--ignore-sigterm"]].concat();
    let stubborn_id = host.host(site.entry_with(&stubborn, &own, volume)).await;
    let short = host.host(site.entry("h11-short", &[])).await;
    let long = host.host(site.entry("h11-long", &[])).await;
    let start = Instant::now();
    let drained = host.call(&short, "hold", json!({"ms": 6000}));
    let cut = host.call(&long, "slow", json!({"ms": 600_000}));
    let ending = async {
        for id in [&short, &long] {
            wait_for("a call in flight", LONG_DEADLINE, async || {
                host.status(id).await["in_flight"] == 1
            })
            .await;
        }
        let at = Instant::now();
        host.running.process.signal(rustix::process::Signal::TERM);
        at
    };
    let (drained, cut, sent) = tokio::join!(drained, cut, ending);
    assert!(sent >= start);
    // One call finished in time, the other was answered with an error.
    assert_eq!(drained.status, 200, "{}", drained.text());
    assert!(cut.status.is_server_error(), "{}", cut.text());
    assert!(!cut.text().is_empty());
    host.running.ended(LONG_DEADLINE).await;
    let took = sent.elapsed();
    // The stop takes half a minute in total, including the drain. After SIGKILL, processes take some time to disappear
    // on a busy machine.
    assert!(took < Duration::from_secs(33), "{took:?}");
    assert!(
        took > Duration::from_secs(20),
        "a server that ignores SIGTERM got only {took:?}"
    );
    gone(platform, &polite_id, &polite).await;
    gone(platform, &stubborn_id, &stubborn).await;
    // The files that the servers wrote prove that both received SIGTERM.
    let host = site.start().await;
    for id in [&polite_id, &stubborn_id] {
        host.until(id, "running").await;
        let told = host.said(id, "read", json!({"path": SIGTERM_FILE})).await;
        assert_eq!(told, "terminated\n", "{id}");
    }
    // No process may remain on this machine. A manual stop has a shorter grace period.
    let stops = [&polite_id, &stubborn_id].map(|id| host.order(id, "stop"));
    for told in join_all(stops).await {
        assert_eq!(told["status"], "stopped", "{told:#}");
    }
    host.stop().await;
}

async fn h12_a_restart_by_hand_makes_a_new_instance(platform: Platform) {
    const SIGTERM_FILE: &str = "/data/told";
    const GRACE: Duration = Duration::from_secs(10);
    let (site, host) = Site::started(platform).await;
    let name = unique("h12");
    let own = ["--ignore-eof", "--note-sigterm", SIGTERM_FILE];
    let members = json!({"volumes": ["/data"], "resource_limits": {"disk": "32M"}, "environment": {"H12": "kept"}});
    let id = host.host(site.entry_with(&name, &own, members)).await;
    let stubborn = unique("h12-stubborn");
    let own = ["--ignore-eof", "--ignore-sigterm"];
    let entry = site.entry_with(&stubborn, &own, json!({"restart_policy": "no"}));
    let stubborn_id = host.host(entry).await;
    host.mark(&stubborn_id).await;
    host.call(&id, "crash", json!({})).await;
    assert_eq!(host.is_back(&id, 2).await["restart_count"], 1);
    host.mark(&id).await;
    let before = host.instances(&id, &name);
    let restart = async |id| {
        let start = Instant::now();
        let told = host.order(id, "restart").await;
        checks::members(&told, json!({"status": "running", "restart_count": 0}));
        start.elapsed()
    };
    let stubborn_before = host.instances(&stubborn_id, &stubborn);
    let (took, stubborn_took) = tokio::join!(restart(&id), restart(&stubborn_id));
    assert!(took < Duration::from_secs(10), "{took:?}");
    // A server that ignores SIGTERM is given ten seconds, then SIGKILL.
    assert!(stubborn_took >= GRACE, "{stubborn_took:?}");
    assert!(
        stubborn_took < GRACE + Duration::from_secs(8),
        "{stubborn_took:?}"
    );
    let stubborn_after = host.instances(&stubborn_id, &stubborn);
    assert_eq!(stubborn_after.len(), 1);
    assert_ne!(stubborn_before, stubborn_after);
    assert!(!host.is_marked(&stubborn_id).await);
    // Ends the stubborn server. Otherwise its next stop would take ten seconds, or the product's stop thirty.
    host.call(&stubborn_id, "crash", json!({"code": 1})).await;
    host.until(&stubborn_id, "failed").await;
    let after = host.instances(&id, &name);
    assert_eq!(after.len(), 1);
    assert_ne!(before, after);
    assert!(!host.is_marked(&id).await);
    let told = host.said(&id, "read", json!({"path": SIGTERM_FILE})).await;
    assert_eq!(told, "terminated\n");
    let env = host.tool(&id, "env", json!({})).await;
    assert_eq!(env["structuredContent"]["H12"], "kept");
    // The manual restart reset the restart counter: two further crashes count as two.
    for times in 1..=2 {
        let ready = host.events_of(&id, "ready").await.len();
        host.call(&id, "crash", json!({})).await;
        let told = host.is_back(&id, ready + 1).await;
        assert_eq!(told["restart_count"], times);
    }
    // A restart of a server that does not exist gets 404.
    let missing = host.ask("POST", "/h12-missing/restart", Value::Null).await;
    assert_eq!(missing.status, 404);
    host.stop().await;
}

async fn h15_a_silent_server_is_unresponsive_and_not_restarted(platform: Platform) {
    let (site, host) = Site::started(platform).await;
    let name = unique("h15");
    let heartbeat = json!({"heartbeat": {"interval_ms": 200, "timeout_ms": 500, "misses": 2}});
    let id = host.host(site.entry_with(&name, &[], heartbeat)).await;
    host.mark(&id).await;
    let instance = host.instances(&id, &name);
    // A server that is processing a call is busy, not unresponsive.
    let busy = host
        .call_within(&id, "freeze", json!({"ms": 3000}), 30_000)
        .await;
    assert_eq!(busy.status, 200, "{}", busy.text());
    assert_eq!(host.status(&id).await["status"], "running");
    assert!(host.events_of(&id, "unresponsive").await.is_empty());

    // No call is in flight any longer when the heartbeat is sent.
    let left = host
        .call_within(&id, "freeze", json!({"ms": 8000}), 100)
        .await;
    assert_eq!(left.status, 504, "{}", left.text());
    let told = host.until(&id, "unresponsive").await;
    let expected = json!({"warnings": 1, "reason": "the server does not answer heartbeats"});
    checks::members(&told, expected);
    assert!(told["uptime_seconds"].is_u64());
    let events = host.happened(&id, "unresponsive", 1).await;
    assert_eq!(events[0]["detail"]["missed"], 2);
    assert_eq!(host.instances(&id, &name), instance);
    // The server responds again, and is the same instance.
    host.happened(&id, "responsive", 1).await;
    host.until(&id, "running").await;
    assert!(host.is_marked(&id).await);
    assert_eq!(host.instances(&id, &name), instance);
    let told = host.status(&id).await;
    checks::members(&told, json!({"restart_count": 0, "last_crash": null}));
    let log = host.stop().await;
    checks::contains(&log, &["did not answer 2 heartbeats in a row"]);
}
