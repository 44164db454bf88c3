//! The first run: `toolwharf` without a command on a terminal, and `init`.

use serde_json::{Value, json};

use super::{
    service::User,
    support::{read, scripted},
};
use crate::common::{
    cli::{Said, said},
    holds,
    terminal::typed,
};

/// A user with two clients that have their own servers, and one that has none.
async fn user() -> User {
    let user = User::new().await;
    let file = |name: &str| json!({"mcpServers": {name: {"command": scripted()}}}).to_string();
    user.home.write(".cursor/mcp.json", &file("one"));
    user.home
        .write(".codeium/windsurf/mcp_config.json", &file("two"));
    user.home.write(".config/zed/settings.json", "{}");
    user
}

/// Runs a line on a terminal.
async fn on_terminal(user: &User, line: &str, answers: &[(&str, &str)]) -> Said {
    let path = user.path();
    typed(&user.home.path(""), &[("PATH", &path)], line, answers).await
}

/// The names of the servers in the configuration file.
fn servers(user: &User) -> Vec<String> {
    let file = std::fs::read_to_string(user.home.servers()).unwrap_or_else(|_| "{}".to_owned());
    let file: Value = serde_json::from_str(&file).expect("JSON");
    let servers = file["mcpServers"].as_object();
    servers.map_or_else(Vec::new, |servers| servers.keys().cloned().collect())
}

fn settings(user: &User) -> String {
    read(&user.home.path(".config/toolwharf/toolwharf.toml"))
}

const IMPORT: &str = "[Y/n, or client names] ";
const SANDBOX: &str = "allows it. [y/N] ";
const START: &str = "[now/service/NO] ";

#[tokio::test]
async fn a_terminal_sees_what_there_is_and_the_next_command() {
    let user = user().await;
    let shown = on_terminal(&user, "", &[]).await.code(0).out;
    holds(
        &shown,
        &[
            "gateway          not running",
            "servers          none in ",
            "Cursor (not connected, 1 server of its own)",
            "Zed (not connected)",
            "`toolwharf init` makes the first configuration",
            "`toolwharf --help`",
        ],
    );
    user.run(&format!("add mine -- {}", scripted()))
        .await
        .code(0);
    let shown = on_terminal(&user, "", &[]).await.code(0).out;
    holds(
        &shown,
        &["servers          1 (mine)", "`toolwharf serve` starts"],
    );

    user.run("service install").await.code(0);
    let shown = on_terminal(&user, "", &[]).await.code(0).out;
    let unit = user.unit().display().to_string();
    holds(
        &shown,
        &["running at http://", &unit, "`toolwharf connect cursor`"],
    );
    let told = on_terminal(&user, "-o json", &[]).await.code(0).json();
    assert_eq!(told["servers"][0]["name"], "mine");
    assert_eq!(told["next"], "toolwharf connect cursor");
    // A pipe gets the help, as before.
    let piped = user.run("").await.code(2);
    holds(&piped.err, &["Usage: toolwharf", "Run Toolwharf:"]);
    user.run("service uninstall").await.code(0);

    user.home.write(".config/toolwharf/mcp.json", "{ broken");
    let shown = on_terminal(&user, "", &[]).await.code(0).out;
    holds(&shown, &["has errors", "`toolwharf doctor`"]);
}

#[tokio::test]
async fn three_questions_make_the_first_configuration() {
    let user = user().await;
    let before = settings(&user);
    let answers = [
        (IMPORT, "cursor"),
        (SANDBOX, "perhaps"),
        ("`perhaps` is neither yes nor no", "y"),
        (START, "service"),
    ];
    let shown = on_terminal(&user, "init", &answers).await.code(0).out;
    holds(
        &shown,
        &[
            "cursor           one",
            "windsurf         two",
            "`sandbox = true` under [defaults]",
            "1 added to ",
            "ExecStart=",
            "started it: http://",
            "`toolwharf connect cursor`",
        ],
    );
    assert_eq!(servers(&user), ["one"]);
    assert_eq!(
        settings(&user),
        format!("{before}\n[defaults]\nsandbox = true\n")
    );
    user.run("service status").await.code(0);

    // A second run keeps what is there. The gateway runs as a service, so nothing is to be started.
    let answers = [(IMPORT, ""), ("allows it. [Y/n] ", "")];
    let shown = on_terminal(&user, "init", &answers).await.code(0).out;
    holds(
        &shown,
        &[
            "has 1 server, which stays",
            "one   unchanged",
            "two   added",
        ],
    );
    assert_eq!(servers(&user), ["one", "two"]);
    assert_eq!(
        settings(&user),
        format!("{before}\n[defaults]\nsandbox = true\n")
    );
    user.run("service uninstall").await.code(0);
}

#[tokio::test]
async fn each_question_has_an_option() {
    let user = user().await;
    let before = settings(&user);
    let open = user.run("init --sandbox no").await.code(2);
    holds(
        &open.err,
        &["--import, --start", "toolwharf init --import all", "--yes"],
    );
    let plan = user.run("init --import all --sandbox yes --start service --dry-run");
    let plan = plan.await.code(0);
    holds(
        &plan.err,
        &["would import the servers of Cursor", "`sandbox = true`"],
    );
    holds(&plan.out, &["ExecStart="]);
    assert_eq!(
        (servers(&user), settings(&user)),
        (Vec::new(), before.clone())
    );
    assert!(!user.unit().exists());

    let line = "init --import windsurf,cursor --sandbox no --start no";
    let done = user.run(line).await.code(0);
    holds(&done.err, &["`toolwharf serve` starts the gateway"]);
    assert_eq!(
        (servers(&user), settings(&user)),
        (vec!["two".to_owned(), "one".to_owned()], before)
    );
    let again = user.run(&format!("-o json {line}")).await.code(0).json();
    assert_eq!(again["imported"][0]["unchanged"], json!(["two"]));
    assert_eq!(again["sandbox"], false);
    user.run("init --yes").await.code(0);
    assert_eq!(servers(&user), ["two", "one"]);
}

#[tokio::test]
async fn the_gateway_can_be_started_at_once() {
    let user = user().await;
    // A line may arrive in parts: Ctrl-C is typed when the line after the one that is checked arrives.
    let answers = [(START, "now"), ("sign in with a browser", "\u{3}")];
    let line = "init --import cursor --sandbox no";
    let shown = on_terminal(&user, line, &answers).await.code(0).out;
    holds(
        &shown,
        &["`toolwharf connect cursor`", "toolwharf is at http://"],
    );

    // With a gateway that runs already, the rest is done.
    let mut serve = testkit::Process::spawn(user.home.command("serve"));
    serve.url().await;
    let line = "init --import all --sandbox no --start now";
    let said = user.run(line).await.code(0);
    holds(&said.err, &["a gateway is running at http://"]);
    assert_eq!(servers(&user), ["one", "two"]);
}

#[tokio::test]
async fn nothing_is_changed_before_all_questions_are_answered() {
    let user = user().await;
    let before = settings(&user);
    // The end of the input.
    let answers = [(IMPORT, "y"), (SANDBOX, "y"), (START, "\u{4}")];
    let shown = on_terminal(&user, "init", &answers).await.code(1).out;
    holds(&shown, &["nothing was changed"]);
    assert_eq!((servers(&user), settings(&user)), (Vec::new(), before));

    user.home.write(".config/toolwharf/mcp.json", "{ broken");
    let refused = user.run("init --yes").await.code(1);
    holds(&refused.err, &["mcp.json:1:", "run `toolwharf init` again"]);
    assert_eq!(read(&user.home.servers()), "{ broken");
}

#[tokio::test]
async fn without_bubblewrap_the_sandbox_comes_with_a_warning() {
    let user = user().await;
    let mut command = user
        .home
        .command("init --import none --sandbox yes --start no");
    command.env("PATH", user.systemd.programs());
    let done = said(command, "").await.code(0);
    holds(
        &done.err,
        &["bubblewrap is not installed", "apt-get install bubblewrap"],
    );
    assert!(settings(&user).contains("sandbox = true"));
}
