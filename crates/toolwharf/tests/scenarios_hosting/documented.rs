//! Runs the example of the quick start: its `mcp.json`, and the table that `toolwharf ls` prints.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::{Process, conformance::node_modules, wait_for_some, within};

use crate::support::{LONG_DEADLINE, Platform, Site};

const PAGE: &str = include_str!("../../../../docs/quick-start.md");

/// Returns the part of the page from `begin` to the end of the block.
fn block(begin: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(begin).expect("the page contains `begin`");
    let (block, _) = rest.split_once("```").expect("the block ends");
    block
}

/// Returns the cells of each row from `NAME` to `TOOLS`.
fn rows(table: &str) -> Vec<Vec<&str>> {
    let lines = table.trim().lines();
    lines
        .map(|line| line.split_whitespace().take(6).collect())
        .collect()
}

#[tokio::test]
async fn the_servers_of_the_quick_start_are_in_one_table() {
    let file = block("```json\n");
    assert!(file.lines().count() <= 40, "{file}");
    let file: Value = serde_json::from_str(file).unwrap();
    let mut servers = file["mcpServers"].clone();
    // `memory` is used as documented. The other servers would need the internet, so they are replaced.
    let mut remote = Process::bin("testkit-scripted", ["--http", "127.0.0.1:0"]);
    servers["docs"]["url"] = remote.url().await.into();
    let time = node_modules().with_file_name("venv");
    servers["time"]["command"] = json!(time.join("bin/mcp-server-time"));
    servers["time"]["args"] = json!([]);
    servers["thinking"]["image"] = "toolwharf-test/scripted".into();

    let site = Site::with(Platform::Gvisor, "", &["gvisor", "process"]).await;
    site.kept.servers(servers);
    let host = site.start().await;
    let printed = wait_for_some("all servers to run", LONG_DEADLINE, async || {
        let mut ls = site.kept.command("ls");
        let output = ls.arg("--data-dir").arg(site.kept.data("")).output();
        let output = within("toolwharf ls", LONG_DEADLINE, output).await.unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let mut states = rows(&printed).into_iter().skip(1);
        states.all(|row| row[1] == "running").then_some(printed)
    });
    let printed = printed.await;
    let (documented, printed) = (
        rows(block("`toolwharf ls` then shows:\n\n```\n")),
        rows(&printed),
    );
    assert_eq!(documented.len(), 5, "{documented:?}");
    assert_eq!(printed.len(), documented.len(), "{printed:?}");
    for (documented, printed) in documented.iter().zip(&printed) {
        // The target and the tools of replaced servers differ.
        let cells = match documented[0] {
            "docs" | "thinking" | "time" => 4,
            _ => 6,
        };
        assert_eq!(documented[..cells], printed[..cells]);
    }

    let row = host.status("memory").await;
    assert_eq!(row["restart_policy"], "always", "{row:#}");
    let pid = i32::try_from(row["pid"].as_i64().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    let again = wait_for_some("the next start", LONG_DEADLINE, async || {
        let row = host.status("memory").await;
        (row["starts"] == 2 && row["status"] == "running").then_some(row)
    });
    assert_ne!(again.await["pid"], pid);
    host.stop().await;
}
