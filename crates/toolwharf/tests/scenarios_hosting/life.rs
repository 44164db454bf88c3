//! H08 to H12 and H15: starts, crashes, stops, and a server that does not respond.

use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use serde_json::{Value, json};
use testkit::{Peer, soak, wait_for, wait_for_some};
use tokio::time::Instant;

use crate::support::{Host, LONG_DEADLINE, Platform, Site, body, docker, gone, unique, with};

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
    let site = Site::new(platform).await;
    let host = site.start().await;
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
        // One after the other, they would be three starts apart.
        assert!(spread.num_seconds() < 3 * DELAY_S, "{spread}");
    };
    let host = site.start().await;
    back(&host, 2).await;
    let list = host.ok("GET", "", Value::Null).await;
    assert_eq!(list["servers"].as_array().unwrap().len(), 4);
    // The gateway's list has all of their tools.
    let tools = host
        .running
        .mcp("", "tools/list", json!({}))
        .await
        .response();
    let tools = tools["result"]["tools"].as_array().unwrap().clone();
    let echoes = tools
        .iter()
        .filter(|tool| tool["name"].as_str().unwrap().ends_with("echo"));
    assert_eq!(echoes.count(), 4, "{tools:?}");

    // After SIGKILL, no leftover instance runs beside the new one.
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
        assert_eq!(
            peer.tool("echo", json!({})).await.response["error"],
            Value::Null
        );
        let now = containers();
        let gone: Vec<_> = before.iter().filter(|it| !now.contains(it)).collect();
        assert!(gone.is_empty(), "{gone:?} of {before:?}");
        assert!(now.len() > before.len(), "{now:?}");
        before = now;
        peers.push(peer);
    }
    for peer in &mut peers {
        assert_eq!(
            peer.tool("echo", json!({})).await.response["error"],
            Value::Null
        );
    }
    assert_eq!(containers(), before);
    host.stop().await;
}

/// Waits until the server responds correctly again.
async fn back(host: &Host, id: &str, since: Instant) -> Duration {
    wait_for("a good answer", LONG_DEADLINE, async || {
        let echo = host.call(id, "echo", json!({"n": 1})).await;
        echo.status == 200 && body(&echo)["result"]["structuredContent"]["n"] == 1
    })
    .await;
    since.elapsed()
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
    assert!(crashed.text().contains("went away"), "{}", crashed.text());
    let took = back(&host, &id, start).await;
    assert!(took < Duration::from_secs(5), "{platform:?}: {took:?}");
    assert!(!host.is_marked(&id).await);
    let told = host.status(&id).await;
    assert_eq!(
        (&told["status"], &told["restart_count"]),
        (&json!("running"), &json!(1))
    );
    assert_eq!(told["last_crash"]["exit_code"], 7, "{told:#}");
    assert!(
        told["last_crash"]["stderr"]
            .as_str()
            .unwrap()
            .contains("last words of h09")
    );
    let events = host.happened(&id, "crashed", 1).await;
    assert_eq!(events[0]["detail"]["exitCode"], 7);
    assert!(
        events[0]["detail"]["stderr"]
            .as_str()
            .unwrap()
            .contains("last words"),
        "{events:?}"
    );

    host.mark(&id).await;
    let start = Instant::now();
    host.kill_server(&id, &name);
    // A call before the exit is noticed gets an error. The counter tells the instances apart.
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
    assert!(
        log.contains("it crashed") && log.contains("last words of h09"),
        "{log}"
    );
}

async fn h09_restart_policies_are_as_docker_has_them(platform: Platform) {
    const POLICIES: [&str; 4] = ["always", "on-failure", "unless-stopped", "no"];
    let site = Site::new(platform).await;
    let host = site.start().await;
    let entries =
        POLICIES.map(|policy| with(site.entry(policy, &[]), json!({"restart_policy": policy})));
    join_all(entries.map(|entry| host.host(entry))).await;
    // An exit with code 0, and one with another code.
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
                assert_eq!(
                    host.tool(policy, "echo", json!({"n": 1})).await["structuredContent"]["n"],
                    1
                );
            } else {
                let refused = host.call(policy, "echo", json!({})).await;
                assert_eq!(refused.status, 503, "{}", refused.text());
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
    // Servers that were running when the product stopped.
    host.stop().await;
    let host = site.start().await;
    for policy in &POLICIES[..3] {
        host.until(policy, "running").await;
    }
    assert_eq!(host.status("no").await["status"], "stopped");
    // Servers that were stopped manually.
    for policy in POLICIES {
        assert_eq!(host.order(policy, "stop").await["status"], "stopped");
    }
    host.stop().await;
    let host = site.start().await;
    host.until("always", "running").await;
    for policy in &POLICIES[1..] {
        let told = host.status(policy).await;
        assert_eq!(told["status"], "stopped", "{told:#}");
    }
    host.stop().await;
}

async fn h10_a_crash_loop_backs_off_and_warns(platform: Platform) {
    let site = Site::new(platform).await;
    let host = site.start().await;
    let entry = site.entry(
        "h10",
        &["--exit-at-start", "--stderr-at-start", "no configuration"],
    );
    let told = host.register(entry).await;
    let told_at = Instant::now();
    let id = told["id"].as_str().unwrap().to_owned();
    assert_eq!(told["status"], "backoff", "{told:#}");
    assert_eq!(told["restart_count"], 3);
    assert_eq!(told["warnings"], 1);
    let wait = told["next_attempt_ms"].as_u64().unwrap();
    assert!((1..=5000).contains(&wait), "{wait}");
    assert_eq!(told["last_crash"]["exit_code"], 5, "{told:#}");
    assert!(
        told["last_crash"]["stderr"]
            .as_str()
            .unwrap()
            .contains("no configuration"),
        "{told:#}"
    );
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

    // Waits the first backoff in real time and checks the announced next one. A soak run also waits the next two.
    let waits_for_real: &[u64] = if soak() { &[5, 15, 45] } else { &[5] };
    let rungs = [5, 15, 45, 120];
    for (at_rung, seconds) in waits_for_real.iter().enumerate() {
        let waits = host.happened(&id, "backoff", at_rung + 2).await;
        let crashes = host.events_of(&id, "crashed").await;
        let waited = at(&crashes[at_rung + 4]) - at(&waits[at_rung]);
        let least = i64::try_from(seconds * 1000 - 100).unwrap();
        // Not too early, and not a whole step too late.
        assert!(waited.num_milliseconds() >= least, "{waited}");
        assert!(waited.num_milliseconds() < least + 10_000, "{waited}");
        assert_eq!(
            waits[at_rung + 1]["detail"]["waitSeconds"],
            rungs[at_rung + 1]
        );
    }
    let rounds = waits_for_real.len();
    let told = host.status(&id).await;
    assert_eq!(told["status"], "backoff");
    assert_eq!(
        (&told["warnings"], &told["restart_count"]),
        (&json!(1 + rounds), &json!(3 + rounds))
    );
    let wait = told["next_attempt_ms"].as_u64().unwrap();
    let (before, announced) = (rungs[rounds - 1] * 1000, rungs[rounds] * 1000);
    assert!((before + 1..=announced).contains(&wait), "{wait}");

    // A manual restart resets the backoff.
    let told = host.order(&id, "restart").await;
    assert_eq!(told["status"], "backoff", "{told:#}");
    let waits = host.happened(&id, "backoff", rounds + 2).await;
    assert_eq!(waits[rounds + 1]["detail"]["waitSeconds"], 5);
    // A stop ends the retries.
    let told = host.order(&id, "stop").await;
    assert_eq!(
        (&told["status"], &told["next_attempt_ms"]),
        (&json!("stopped"), &Value::Null)
    );
    let log = host.stop().await;
    assert!(
        log.contains("it ended more than 3 times in 60 s; next attempt in 5 s"),
        "{log}"
    );
}

async fn h11_sigterm_stops_all_and_drops_no_call(platform: Platform) {
    const SIGTERM_FILE: &str = "/data/told";
    let site = Site::new(platform).await;
    let host = site.start().await;
    let [polite, stubborn] = [unique("h11-polite"), unique("h11-stubborn")];
    let volume = json!({"volumes": ["/data"], "resource_limits": {"disk": "32M"}});
    let own = ["--ignore-eof", "--note-sigterm", SIGTERM_FILE];
    let polite_id = host
        .host(with(site.entry(&polite, &own), volume.clone()))
        .await;
    let own = [
        "--ignore-eof",
        "--ignore-sigterm",
        "--note-sigterm",
        SIGTERM_FILE,
    ];
    let stubborn_id = host.host(with(site.entry(&stubborn, &own), volume)).await;
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
    // Finished in time, or answered with an error.
    assert_eq!(drained.status, 200, "{}", drained.text());
    assert!(
        cut.status.is_server_error(),
        "{}: {}",
        cut.status,
        cut.text()
    );
    assert!(!cut.text().is_empty());
    let mut host = host;
    let status = host.running.process.wait(LONG_DEADLINE).await;
    let took = sent.elapsed();
    assert!(
        status.success(),
        "{status}: {}",
        host.running.process.stderr()
    );
    // Half a minute in total, including the drain. After SIGKILL, processes take some time to disappear on a busy
    // machine.
    assert!(took < Duration::from_secs(33), "{took:?}");
    assert!(
        took > Duration::from_secs(20),
        "a server that ignores SIGTERM got only {took:?}"
    );
    gone(platform, &polite_id, &polite).await;
    gone(platform, &stubborn_id, &stubborn).await;
    drop(host);
    // The files that the servers wrote.
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
    let site = Site::new(platform).await;
    let host = site.start().await;
    let name = unique("h12");
    let entry = with(
        site.entry(&name, &["--ignore-eof", "--note-sigterm", SIGTERM_FILE]),
        json!({"volumes": ["/data"], "resource_limits": {"disk": "32M"}, "environment": {"H12": "kept"}}),
    );
    let id = host.host(entry).await;
    let stubborn = unique("h12-stubborn");
    let own = ["--ignore-eof", "--ignore-sigterm"];
    let entry = with(site.entry(&stubborn, &own), json!({"restart_policy": "no"}));
    let stubborn_id = host.host(entry).await;
    host.mark(&stubborn_id).await;
    host.call(&id, "crash", json!({})).await;
    host.happened(&id, "ready", 2).await;
    assert_eq!(host.until(&id, "running").await["restart_count"], 1);
    host.mark(&id).await;
    let before = host.instances(&id, &name);
    let restart = async |id| {
        let start = Instant::now();
        let told = host.order(id, "restart").await;
        assert_eq!(told["status"], "running", "{told:#}");
        assert_eq!(told["restart_count"], 0);
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
    // Otherwise its next ten seconds and the product's thirty would have to be waited for.
    host.call(&stubborn_id, "crash", json!({"code": 1})).await;
    host.until(&stubborn_id, "failed").await;
    let after = host.instances(&id, &name);
    assert_eq!(after.len(), 1);
    assert_ne!(before, after);
    assert!(!host.is_marked(&id).await);
    assert_eq!(
        host.said(&id, "read", json!({"path": SIGTERM_FILE})).await,
        "terminated\n"
    );
    let env = host.tool(&id, "env", json!({})).await;
    assert_eq!(env["structuredContent"]["H12"], "kept");
    // The counter was reset: two further crashes count as two.
    for times in 1..=2 {
        let ready = host.events_of(&id, "ready").await.len();
        host.call(&id, "crash", json!({})).await;
        host.happened(&id, "ready", ready + 1).await;
        assert_eq!(host.until(&id, "running").await["restart_count"], times);
    }
    // A server that does not exist.
    let missing = host.ask("POST", "/h12-missing/restart", Value::Null).await;
    assert_eq!(missing.status, 404);
    host.stop().await;
}

async fn h15_a_silent_server_is_unresponsive_and_not_restarted(platform: Platform) {
    let site = Site::new(platform).await;
    let host = site.start().await;
    let name = unique("h15");
    let entry = with(
        site.entry(&name, &[]),
        json!({"heartbeat": {"interval_ms": 200, "timeout_ms": 500, "misses": 2}}),
    );
    let id = host.host(entry).await;
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
    let told = wait_for_some("a silent server", LONG_DEADLINE, async || {
        let told = host.status(&id).await;
        (told["status"] == "unresponsive").then_some(told)
    })
    .await;
    assert_eq!(told["warnings"], 1, "{told:#}");
    assert_eq!(told["reason"], "it does not answer heartbeats");
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
    assert_eq!(
        (&told["restart_count"], &told["last_crash"]),
        (&json!(0), &Value::Null)
    );
    let log = host.stop().await;
    assert!(
        log.contains("did not answer 2 heartbeats in a row"),
        "{log}"
    );
}
