//! Reads the tables of a gateway as the page on databases shows.

use testkit::Process;

use super::{
    common::{cli, shell::Home},
    page::Page,
};

/// Reads the tables of a gateway with default settings in SQLite's own shell.
#[tokio::test]
async fn the_tables_are_read_with_sqlites_shell() {
    let page = Page::read("docs/databases.md");
    let mut commands = page.commands.iter();
    let shell = commands.find(|command| command.text.contains("ATTACH"));
    let shell = shell.expect("a command");
    assert!(shell.typed.len() >= 2, "{shell:?}");
    let home = Home::new();
    let mut serve = cli::toolwharf();
    serve
        .args(["serve", "--listen", "127.0.0.1:0"])
        .env("HOME", home.path(""));
    let mut gateway = Process::spawn(serve);
    gateway.url().await;
    let mut sh = tokio::process::Command::new("sh");
    sh.args(["-c", &shell.text])
        .env("HOME", home.path(""))
        .kill_on_drop(true);
    let input = shell.typed.join("\n") + "\n";
    let said = cli::said(sh, &input).await.code(0);
    assert_eq!(said.err, "", "{said:?}");
    for table in ["projects", "agent_run_tool_calls", "secrets"] {
        assert!(said.out.lines().any(|line| line == table), "{said:?}");
    }
}
