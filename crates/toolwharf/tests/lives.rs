//! Lifecycle of servers in the configuration file: permanent failures, changes during a call, and exits of healthy
//! servers. These tests use the binary; variants are tested in the engine with paused time.

mod common;

use std::{collections::HashSet, time::Duration};

use common::{
    Gateway, LEGACY, Setup, checks, process_state, scripted,
    steps::{admin, begin_tool},
    tools,
};
use serde_json::{Value, json};
use testkit::{DEADLINE, Peer, soak, wait_for, wait_for_some, within};
use tokio::{task::JoinSet, time::Instant};

/// Returns the server's row from the REST API.
async fn row(gateway: &Gateway, name: &str) -> Value {
    let client = admin(gateway, &format!("/mcp/servers/{name}"));
    let row = client.get(&[]).await.collect(DEADLINE).await;
    serde_json::from_slice(&row.body).expect("a server")
}

/// Waits until `is_it` holds for the server's row, and returns the row.
async fn row_when(gateway: &Gateway, name: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    wait_for_some(&format!("the state of {name}"), DEADLINE, async || {
        let row = row(gateway, name).await;
        is_it(&row).then_some(row)
    })
    .await
}

async fn pid(gateway: &Gateway, name: &str) -> u32 {
    let runs = |row: &Value| row["status"] == "running" && row["pid"].is_u64();
    let pid = row_when(gateway, name, runs).await["pid"].as_u64();
    pid.and_then(|pid| pid.try_into().ok())
        .expect("a process id")
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a process id");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
}

/// A missing command is not a crash: the server is blocked, this is reported once, and it starts by itself when the
/// entry is fixed.
#[tokio::test]
async fn u04_a_command_that_is_not_there_blocks_its_server() {
    let mut gateway = Setup::new()
        .server("lost", json!({"command": "surely-not-there"}))
        .scripted("good", &["--no-builtin", "--tools", "1"])
        .serve()
        .await;
    gateway.up("good").await;
    let told = row_when(&gateway, "lost", |row| row["status"] == "blocked").await;
    checks::contains(&told["reason"], &["`surely-not-there` not found"]);
    let wait = told["next_attempt_ms"].as_u64().unwrap();
    assert!(wait <= 60_000, "{told:#}");
    let mut peer = gateway.legacy().await;
    assert_eq!(tools(&mut peer).await, ["tool_0"]);
    // Calls neither wait nor start the server.
    for _ in 0..20 {
        let mut single = Peer::http(gateway.at("/mcp/-/lost"), LEGACY, json!({})).await;
        let answer = single.tool("echo", json!({})).await.response;
        checks::contains(&answer["error"]["message"], &["not found"]);
    }
    let told = row(&gateway, "lost").await;
    assert_eq!(told["starts"], 1, "{told:#}");
    let log = gateway.process.stderr();
    let told = log.matches("cannot be started as configured: command `surely-not-there`");
    assert_eq!(told.count(), 1, "{log}");
    gateway.edit(|servers| {
        servers.insert("lost".to_owned(), scripted("lost", &[]));
    });
    gateway.up("lost").await;
}

/// Limit of a soak run from the kill of a server to its next response, for 99 % of the kills.
const MAX_RESTART_P99: Duration = Duration::from_secs(1);

/// A healthy server is restarted at once when it is killed, however often. Calls in the meantime wait for it.
#[tokio::test]
async fn a_healthy_server_that_is_killed_is_there_for_the_next_call() {
    let gateway = Setup::new().scripted("good", &[]).serve().await;
    let mut peer = gateway.legacy().await;
    let rounds = if soak() { 1000 } else { 8 };
    let mut times = Vec::new();
    for round in 0..rounds {
        let old = pid(&gateway, "good").await;
        let killed = Instant::now();
        kill(old);
        wait_for("its end", DEADLINE, async || {
            process_state(old).is_none_or(|state| state == 'Z')
        })
        .await;
        let answer = wait_for_some("an answer", DEADLINE, async || {
            let answer = peer.tool("echo", json!({"n": round})).await.response;
            // The gateway may not have noticed the kill yet.
            let went = answer["error"]["message"].as_str();
            (!went.is_some_and(|why| why.contains("disconnected during"))).then_some(answer)
        })
        .await;
        let echo = &answer["result"]["structuredContent"]["n"];
        assert_eq!(*echo, round, "{answer}");
        times.push(killed.elapsed());
    }
    assert_eq!(row(&gateway, "good").await["starts"], rounds + 1);
    times.sort_unstable();
    let p99 = times[times.len() * 99 / 100];
    println!("restart: p99 of {rounds} next responses {p99:?} (bound {MAX_RESTART_P99:?})");
    // A busy machine starts a process late.
    assert!(!soak() || p99 <= MAX_RESTART_P99, "{p99:?}");
}

/// A changed entry never leads to two processes of a server. The call in flight ends with a clear error, and new calls
/// wait for the new process.
#[tokio::test]
async fn u05_a_change_in_mid_call_makes_no_second_process() {
    let options = ["--ignore-eof", "--ignore-sigterm"];
    let mut gateway = Setup::new()
        .server("one", scripted("one", &options))
        .settings("[limits]\nstop_grace = \"1s\"\n")
        .serve()
        .await;
    let old = pid(&gateway, "one").await;
    let mut peer = gateway.legacy().await;
    let mut other = gateway.legacy().await;
    let cut = begin_tool(&mut peer, "slow", json!({"ms": 600_000})).await;
    row_when(&gateway, "one", |row| row["in_flight"] == 1).await;
    gateway.edit(|servers| {
        let mut changed = scripted("one", &options);
        changed["env"] = json!({"NEW": "yes"});
        servers.insert("one".to_owned(), changed);
    });
    let cut = peer.finish_within(cut, DEADLINE).await.expect("ended");
    checks::contains(
        &cut["error"]["message"],
        &["`one` disconnected during `slow`"],
    );
    // The old process takes long to exit. Calls in the meantime wait.
    let env = other.tool("env", json!({})).await;
    assert_eq!(env.result()["structuredContent"]["NEW"], "yes");
    assert_eq!(process_state(old), None, "the old process still runs");
}

/// Text that a server prints on stdout instead of messages is included in the reason for the failure and in the
/// server's log.
#[tokio::test]
async fn text_on_standard_output_is_shown() {
    let chatty = json!({"command": "echo", "args": ["Usage: chatty [--help]"]});
    let gateway = Setup::new().server("chatty", chatty).serve().await;
    let told = row_when(&gateway, "chatty", |row| row["reason"].is_string()).await;
    let printed = "it printed `Usage: chatty [--help]`";
    checks::contains(&told["reason"], &[printed]);
    let logs = admin(&gateway, "/mcp/servers/chatty/logs").get(&[]).await;
    let logs = logs.collect(DEADLINE).await.text();
    checks::contains(logs, &["[stdout] Usage: chatty"]);
}

/// Each line of a log has the time at which it arrived, even if the server failed to start.
#[tokio::test]
async fn u13_lines_of_a_log_have_times() {
    let options = ["--exit-at-start", "--stderr-at-start", "Error: gone"];
    let gateway = Setup::new().scripted("hopeless", &options).serve().await;
    row_when(&gateway, "hopeless", |row| row["reason"].is_string()).await;
    let logs = async |query: &str| {
        let path = format!("/mcp/servers/hopeless/logs{query}");
        let logs = admin(&gateway, &path).get(&[]).await;
        logs.collect(DEADLINE).await.text()
    };
    let stamped = logs("?timestamps=true").await;
    let (at, _) = stamped.split_once(" Error: gone\n").expect(&stamped);
    let at: api::Time = at.parse().expect(&stamped);
    let age = std::time::SystemTime::now().duration_since(at.into());
    assert!(age.is_ok_and(|age| age < DEADLINE), "{stamped}");
    let plain = logs("").await;
    assert!(plain.starts_with("Error: gone\n"), "{plain}");
}

/// A follower of a log gets each line of a server that fails to start again and again, and gets it once.
#[tokio::test]
async fn u13_lines_of_failed_starts_are_followed_once() {
    let script = "echo failing $$ >&2; sleep 0.4; exit 1";
    let hopeless = json!({"command": "sh", "args": ["-c", script]});
    let gateway = Setup::new().server("hopeless", hopeless).serve().await;
    let logs = admin(&gateway, "/mcp/servers/hopeless/logs?follow=true");
    let mut logs = logs.get(&[]).await;
    let mut text = String::new();
    while text.matches("not running").count() < 3 {
        let chunk = within("the log", DEADLINE, logs.next_chunk()).await;
        text.push_str(&String::from_utf8_lossy(&chunk.expect("the log goes on")));
    }
    let lines = text.lines().filter(|line| line.contains("failing"));
    let lines: Vec<_> = lines.collect();
    let different: HashSet<_> = lines.iter().collect();
    assert_eq!(lines.len(), different.len(), "{text}");
    assert!(lines.len() >= 3, "{text}");
}

fn descriptors(pid: u32) -> usize {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"));
    open.expect("it runs").count()
}

/// The growth in MB per hour from the second to the last sixth of the samples, which are in KiB.
fn hourly_growth(samples: &[(Instant, u64)]) -> f64 {
    let sixth = samples.len() / 6;
    let median = |part: &[(Instant, u64)]| {
        let mut sizes: Vec<u64> = part.iter().map(|(_, size)| *size).collect();
        sizes.sort_unstable();
        sizes[sizes.len() / 2] as f64
    };
    let (first, last) = (&samples[sixth..2 * sixth], &samples[5 * sixth..6 * sixth]);
    let hours = (last[0].0 - first[0].0).as_secs_f64() / 3600.0;
    (median(last) - median(first)) * 1024.0 / 1e6 / hours
}

/// One of ten servers is killed every two seconds while all are being called. A soak run takes an hour.
#[tokio::test]
async fn servers_that_are_killed_cost_few_calls() {
    const CLIENTS: usize = 8;
    let names: Vec<String> = (0..10).map(|n| format!("s{n}")).collect();
    let mut setup = Setup::new().settings("naming = \"always-prefix\"\n");
    for name in &names {
        setup = setup.scripted(name, &[]);
    }
    let gateway = setup.connected().await;
    let length = Duration::from_secs(if soak() { 3600 } else { 12 });
    let until = Instant::now() + length;
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (mut peer, names) = (gateway.legacy().await, names.clone());
        clients.spawn(async move {
            let (mut good, mut bad) = (0u64, Vec::new());
            for round in client.. {
                if Instant::now() >= until {
                    break;
                }
                let echo = format!("{}__echo", names[round % names.len()]);
                let answer = peer.tool(&echo, json!({"n": round})).await;
                match answer.response["result"]["structuredContent"]["n"] == round {
                    true => good += 1,
                    false => bad.push(answer.response["error"]["message"].clone()),
                }
            }
            (good, bad)
        });
    }
    // The memory is measured after one kill of each server, so that one-time costs do not count as growth.
    let (mut kills, mut before) = (0, None);
    let mut memory = Vec::new();
    let mut tick = tokio::time::interval(Duration::from_secs(2));
    while Instant::now() < until {
        tick.tick().await;
        kill(pid(&gateway, &names[kills % names.len()]).await);
        kills += 1;
        memory.push((Instant::now(), gateway.memory_now()));
        if kills == names.len() {
            before = Some((gateway.memory_now(), descriptors(gateway.process.pid())));
        }
    }
    let (mut good, mut bad) = (0, Vec::new());
    for (some, others) in clients.join_all().await {
        good += some;
        bad.extend(others);
    }
    let share = good as f64 / (good + bad.len() as u64) as f64;
    println!(
        "{kills} kills, {good} calls, {} failed: {share:.4}",
        bad.len()
    );
    assert!(good > 1000, "{good}");
    assert!(share >= 0.97, "{share}: {:?}", bad.last());
    for name in &names {
        gateway.up(name).await;
    }
    if let Some((memory, files)) = before {
        let what = "memory and files of the kills to be released";
        wait_for(what, DEADLINE, async || {
            let open = descriptors(gateway.process.pid());
            gateway.memory_now() <= memory * 6 / 5 && open <= files + 4
        })
        .await;
        let open = descriptors(gateway.process.pid());
        println!("churn: {files} descriptors after the first ten kills, {open} at the end");
    }
    // A short run says nothing about an hour.
    if soak() {
        let growth = hourly_growth(&memory);
        println!("churn: private memory grows by {growth:.2} MB per hour (bound 1 MB)");
        assert!(growth < 1.0, "{growth}");
    }
}
