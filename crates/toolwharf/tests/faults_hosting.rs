//! The product is killed with SIGKILL while it hosts many servers, each with a grandchild in a separate session. Half a
//! second later none of their processes is left, and the next run starts all servers again. Servers that ignore SIGTERM
//! delay a stop by half a minute at most.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;
mod kept;

use std::{fs, time::Duration};

use kept::{Kept, Running};
use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, soak, wait_for};
use tokio::{
    process::{Child, Command},
    time::Instant,
};

/// Limit from the kill to the last exit.
const MAX_EXIT_TIME: Duration = Duration::from_millis(500);
/// Limit from SIGTERM to the exit of the product, with its servers.
const MAX_STOP_TIME: Duration = Duration::from_millis(30_500);
/// Processes that compute beside the product, in the second half of a soak run.
const BUSY_PROCESSES: usize = 30;
/// Starting many servers takes long on two CPUs.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Returns the processes of a run, by the marker in their environment.
fn marked(run: &str) -> Vec<u32> {
    let marker = format!("TOOLWHARF_INSTANCE={run}:");
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let found = memchr::memmem::find(&environment, marker.as_bytes());
        found.is_some()
    })
    .collect()
}

/// Returns the run of the product, according to the environment of a server.
async fn run_of(running: &Running, server: &str) -> String {
    let environment = call(running, server, "env", json!({})).await;
    let marker = environment["structuredContent"]["TOOLWHARF_INSTANCE"].as_str();
    assert!(marker.is_some(), "{environment}");
    marker.unwrap().split(':').next().unwrap().to_owned()
}

/// Processes that compute until they are dropped.
fn busy(count: usize) -> Vec<Child> {
    let start = |_| {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]);
        command.kill_on_drop(true).spawn().unwrap()
    };
    (0..count).map(start).collect()
}

async fn call(running: &Running, name: &str, tool: &str, arguments: Value) -> Value {
    let body = json!({"method": "tools/call", "params": {"name": tool, "arguments": arguments}});
    let path = format!("/mcp/servers/{name}/call");
    running.ok("POST", &path, body).await["result"].clone()
}

async fn all_up(running: &Running, count: usize) {
    wait_for("all servers", START_TIMEOUT, async || {
        let told = running.ok("GET", "/mcp/servers", Value::Null).await;
        let servers = told["servers"].as_array().unwrap();
        servers.len() == count && servers.iter().all(|one| one["status"] == "running")
    })
    .await;
}

#[tokio::test]
async fn nothing_survives_a_kill_of_the_product() {
    let (servers, rounds) = if soak() { (200, 100) } else { (20, 2) };
    let kept = Kept::sqlite().await;
    let command = Bin::path("testkit-scripted");
    let mut running = kept.start().await;
    for n in 0..servers {
        let entry = json!({"name": format!("s{n}"), "command": command, "heartbeat": false});
        running.ok("POST", "/mcp/servers?wait=false", entry).await;
    }
    // The longest time, without and with busy processes.
    let mut longest = [Duration::ZERO; 2];
    for round in 0..rounds {
        all_up(&running, servers).await;
        for n in 0..servers {
            let name = format!("s{n}");
            let forked = call(&running, &name, "fork", json!({"setsid": true})).await;
            assert_eq!(forked["isError"], Value::Null, "{forked}");
        }
        let run = run_of(&running, "s0").await;
        // Each server has at least two processes: itself and its grandchild.
        let before = marked(&run).len();
        assert!(before >= 2 * servers, "{before}");

        let is_busy = soak() && round >= rounds / 2;
        let others = busy(if is_busy { BUSY_PROCESSES } else { 0 });
        let killed = Instant::now();
        running.kill().await;
        wait_for("their deaths", DEADLINE, async || marked(&run).is_empty()).await;
        let took = killed.elapsed();
        drop(others);
        let longest = &mut longest[usize::from(is_busy)];
        *longest = took.max(*longest);
        eprintln!("round {round}: {before} processes gone after {took:?}");
        running = kept.start().await;
    }
    all_up(&running, servers).await;
    running.stop().await;
    eprintln!(
        "orphans: none left after {:?}, and in a soak run after {:?} beside {BUSY_PROCESSES} busy processes (bound \
         {MAX_EXIT_TIME:?})",
        longest[0], longest[1]
    );
    // Timing is only asserted on an otherwise idle machine.
    let is_in_time = longest.iter().all(|took| *took <= MAX_EXIT_TIME);
    assert!(!soak() || is_in_time, "{longest:?}");
}

/// Every second server ignores SIGTERM and the end of its input. A soak run lets the servers have all the time that the
/// product has.
#[tokio::test]
async fn servers_that_ignore_sigterm_delay_no_stop() {
    let servers = if soak() { 200 } else { 4 };
    let kept = Kept::sqlite().await;
    if soak() {
        kept.settings("[limits]\nstop_grace = \"60s\"\n");
    }
    let entry = |n: usize| {
        let stubborn: &[&str] = match n % 2 {
            0 => &[],
            _ => &["--ignore-eof", "--ignore-sigterm"],
        };
        let name = format!("s{n}");
        let entry = common::scripted(&name, stubborn);
        (name, entry)
    };
    kept.servers(Value::Object((0..servers).map(entry).collect()));
    let running = kept.start().await;
    all_up(&running, servers).await;
    let run = run_of(&running, "s0").await;
    assert!(marked(&run).len() >= servers);
    let sent = Instant::now();
    running.stop_within(DEADLINE * 2).await;
    let took = sent.elapsed();
    eprintln!("stop: {servers} servers in {took:?} (bound {MAX_STOP_TIME:?})");
    assert_eq!(marked(&run), [] as [u32; 0]);
    assert!(took <= MAX_STOP_TIME, "{took:?}");
}
