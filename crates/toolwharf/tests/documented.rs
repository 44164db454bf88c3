//! Runs the commands that the documentation shows.

mod common;

use std::path::Path;

use common::cli;
use tempfile::TempDir;
use testkit::Process;
use tokio::process::Command;

/// Finds the block of the page whose command contains `mark`. Returns the command after `$ ` and the lines after
/// `prompt`.
fn typed(page: &str, mark: &str, prompt: &str) -> (String, Vec<String>) {
    let mut lines = page.lines().skip_while(|line| !line.contains(mark));
    let command = lines.next().and_then(|line| line.strip_prefix("$ "));
    let command = command.unwrap_or_else(|| panic!("no command with {mark:?}"));
    let more = lines.map_while(|line| line.strip_prefix(prompt));
    (command.to_owned(), more.map(str::to_owned).collect())
}

/// Reads the tables of a gateway with default settings in SQLite's own shell.
#[tokio::test]
async fn the_tables_are_read_with_sqlites_shell() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/databases.md");
    let page = std::fs::read_to_string(Path::new(page)).expect("the page");
    let (command, queries) = typed(&page, "ATTACH", "sqlite> ");
    assert!(queries.len() >= 2, "{queries:?}");
    let home = TempDir::new().expect("a folder");
    let mut serve = cli::toolwharf();
    serve
        .args(["serve", "--listen", "127.0.0.1:0"])
        .env("HOME", home.path());
    let mut gateway = Process::spawn(serve);
    gateway.url().await;
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &command])
        .env("HOME", home.path())
        .kill_on_drop(true);
    let input = queries.join("\n") + "\n";
    let said = cli::said(shell, &input).await.code(0);
    assert_eq!(said.err, "", "{said:?}");
    for table in ["projects", "agent_run_tool_calls", "secrets"] {
        assert!(said.out.lines().any(|line| line == table), "{said:?}");
    }
}
