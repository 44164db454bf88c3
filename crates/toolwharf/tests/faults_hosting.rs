//! The product is killed with SIGKILL while it hosts many servers, each with a grandchild in a separate session. Half a
//! second later none of their processes is left, and the next run starts all servers again.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;
mod kept;

use std::{fs, time::Duration};

use kept::{Kept, Running};
use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, soak, wait_for};
use tokio::time::Instant;

/// Limit from the kill to the last exit.
const MAX_EXIT_TIME: Duration = Duration::from_millis(500);
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
    let (servers, rounds) = if soak() { (100, 20) } else { (20, 2) };
    let kept = Kept::sqlite().await;
    let command = Bin::path("testkit-scripted");
    let mut running = kept.start().await;
    for n in 0..servers {
        let entry = json!({"name": format!("s{n}"), "command": command, "heartbeat": false});
        running.ok("POST", "/mcp/servers?wait=false", entry).await;
    }
    for round in 0..rounds {
        all_up(&running, servers).await;
        for n in 0..servers {
            let name = format!("s{n}");
            let forked = call(&running, &name, "fork", json!({"setsid": true})).await;
            assert_eq!(forked["isError"], Value::Null, "{forked}");
        }
        let environment = call(&running, "s0", "env", json!({})).await;
        let marker = environment["structuredContent"]["TOOLWHARF_INSTANCE"].as_str();
        assert!(marker.is_some(), "{environment}");
        let run = marker.unwrap().split(':').next().unwrap().to_owned();
        // Each server has at least two processes: itself and its grandchild.
        let before = marked(&run).len();
        assert!(before >= 2 * servers, "{before}");

        let killed = Instant::now();
        running.kill().await;
        wait_for("their deaths", DEADLINE, async || marked(&run).is_empty()).await;
        let took = killed.elapsed();
        eprintln!("round {round}: {before} processes gone after {took:?}");
        // Timing is only asserted on an otherwise idle machine.
        assert!(!soak() || took <= MAX_EXIT_TIME, "{took:?}");
        running = kept.start().await;
    }
    all_up(&running, servers).await;
    running.stop().await;
}
