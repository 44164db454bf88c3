//! The command line for hosted servers, on a running gateway; they run under bubblewrap.

mod common;

use std::process::Stdio;

use common::{
    Gateway, Setup,
    cli::{self, Said},
};
use serde_json::Value;
use testkit::{Bin, DEADLINE, wait_for, within};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

/// `host` with these words, divided by spaces.
fn command(gateway: &Gateway, line: &str) -> Command {
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    let mut command = cli::toolwharf();
    command
        .args(["host", verb, "--data-dir"])
        .arg(gateway.folder().join("data"))
        .args(rest.split(' ').filter(|word| !word.is_empty()))
        .env("HOME", gateway.folder())
        .env("CANARY", "kept-out-of-sight")
        .current_dir(gateway.folder());
    command
}

async fn run(gateway: &Gateway, line: &str) -> Said {
    cli::said(command(gateway, line), "").await
}

/// A line that works, and says this; its data.
async fn ok(gateway: &Gateway, line: &str, says: &str) -> String {
    let said = run(gateway, line).await;
    assert_eq!(said.code, Some(0), "{line}: {said:?}");
    assert!(said.err.contains(says), "{line}: {said:?}");
    said.out
}

/// A line that fails with this code and says all of this.
async fn fails(gateway: &Gateway, line: &str, code: i32, says: &[&str]) {
    let said = run(gateway, line).await;
    assert_eq!(said.code, Some(code), "{line}: {said:?}");
    for says in says {
        assert!(said.err.contains(says), "{line}: {says:?}: {said:?}");
    }
}

async fn json_of(gateway: &Gateway, line: &str) -> Value {
    let out = ok(gateway, &format!("{line} -o json"), "").await;
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {line}: {out}"))
}

/// What starts a scripted server.
fn scripted(options: &str) -> String {
    format!("-- {} {options}", Bin::path("testkit-scripted").display())
}

#[tokio::test]
async fn each_verb_once() {
    let gateway = Setup::new().serve().await;
    ok(&gateway, "ls", "there are no hosted servers yet").await;
    let add = format!(
        "add one --env CANARY --env PLAIN=x --volume /data --memory 64M --cpu 0.25 --restart on-failure \
         --max-concurrency 3 --timeout 20 {}",
        scripted("--name one --stderr-at-start hello")
    );
    ok(&gateway, &add, "it is running under process").await;

    let table = ok(&gateway, "ls", "").await;
    assert!(
        table.contains("NAME") && table.contains("one") && table.contains("running"),
        "{table}"
    );
    let listed = json_of(&gateway, "ls").await;
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    let shown = json_of(&gateway, "get one").await;
    assert_eq!(shown["restart_policy"], "on-failure", "{shown}");
    assert_eq!(shown["resource_limits"]["memory"], 64 << 20, "{shown}");
    assert_eq!(shown["resource_limits"]["cpu"], 0.25, "{shown}");
    assert_eq!(shown["max_concurrency"], 3, "{shown}");
    assert_eq!(shown["call_timeout_ms"], 20_000, "{shown}");
    let fields = ok(&gateway, "get one", "").await;
    for says in [
        "status           running",
        "provider         process",
        "limits           0.25 cores, 64 MiB of memory",
        "volumes          /data",
        "environment      CANARY, PLAIN",
        "network          none",
    ] {
        assert!(fields.contains(says), "{says:?}: {fields}");
    }
    // The variable came from the environment, and is told to the server only.
    assert!(!fields.contains("kept-out-of-sight"), "{fields}");
    assert!(!shown.to_string().contains("kept-out-of-sight"), "{shown}");

    let tools = json_of(&gateway, "call one tools/list").await;
    assert!(
        tools["tools"]
            .as_array()
            .is_some_and(|tools| tools.len() > 1),
        "{tools}"
    );
    let called = ok(
        &gateway,
        r#"call one tools/call {"name":"echo","arguments":{"n":12345678901234567890}} --timeout 10 -o json"#,
        "",
    )
    .await;
    assert!(called.contains("12345678901234567890"), "{called}");
    fails(&gateway, "call one no/such", 1, &["-32601"]).await;
    fails(&gateway, "call one tools/list []", 2, &["no JSON object"]).await;
    fails(&gateway, "call one tools/list {", 2, &["JSON"]).await;
    fails(
        &gateway,
        "call none tools/list",
        1,
        &["no hosted server `none`"],
    )
    .await;

    let logs = ok(&gateway, "logs one --tail 5", "").await;
    assert!(logs.contains("hello"), "{logs}");
    ok(&gateway, "stop one", "it is stopped").await;
    fails(&gateway, "call one tools/list", 1, &["stopped"]).await;
    ok(&gateway, "start one", "it is running").await;
    ok(&gateway, "restart one", "it is running").await;
    let events = ok(&gateway, "events one", "").await;
    assert!(
        events.starts_with("TIME") && events.contains("stopped"),
        "{events}"
    );
    let events = json_of(&gateway, "events one -n 1").await;
    assert_eq!(events.as_array().map(Vec::len), Some(1), "{events}");

    let line = scripted("--name one --stderr-at-start anew");
    let again = format!("add one --replace --memory 96M --heartbeat 7 --volume /data {line}");
    ok(&gateway, &again, "replaced `one`").await;
    let replaced = json_of(&gateway, "get one").await;
    assert_eq!(replaced["id"], shown["id"], "{replaced}");
    assert_eq!(replaced["resource_limits"]["memory"], 96 << 20);
    assert_eq!(replaced["restart_policy"], "always", "{replaced}");
    assert_eq!(replaced["environment"].as_array().map(Vec::len), Some(0));
    let logs = ok(&gateway, "logs one", "").await;
    assert!(logs.contains("anew"), "{logs}");
    let other = again.replace("add one", "add other");
    fails(&gateway, &other, 1, &["no hosted server `other`"]).await;

    ok(&gateway, "rm one --volumes", "with its volumes").await;
    fails(&gateway, "get one", 1, &["no hosted server `one`"]).await;
    fails(&gateway, "rm one", 1, &["no hosted server `one`"]).await;
}

#[tokio::test]
async fn logs_are_followed_over_a_restart() {
    let gateway = Setup::new().serve().await;
    let add = format!("add one {}", scripted("--name one --stderr-at-start hello"));
    ok(&gateway, &add, "it is running").await;
    let mut following = command(&gateway, "logs one -f")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let out = following.stdout.take().expect("asked for as a pipe");
    let mut lines = BufReader::new(out).lines();
    let mut line = async || {
        let line = within("a line", DEADLINE, lines.next_line()).await;
        line.expect("readable").expect("one more")
    };
    assert!(line().await.contains("hello"));
    ok(&gateway, "restart one", "it is running").await;
    // What it writes before its end, if anything, is no greeting.
    while !line().await.contains("hello") {}
    following.start_kill().expect("it still runs");
}

#[tokio::test]
async fn mistakes_are_told_by_their_flags() {
    let gateway = Setup::new().serve().await;
    for (line, code, says) in [
        ("add one", 2, &["COMMAND"][..]),
        ("add a/b -- x", 2, &["a/b"]),
        (
            "add one --env NOT_SET_HERE -- x",
            2,
            &["--env NOT_SET_HERE", "export it"],
        ),
        ("add one --env A-B=1 -- x", 1, &["--env A-B"]),
        (
            "add one --memory 1 --cpu 0 --pids 0 -- x",
            1,
            &["\n  --cpu: ", "\n  --memory: ", "\n  --pids: "],
        ),
        ("add one --disk lots -- x", 1, &["--disk: ", "\"512M\""]),
        (
            "add one --volume /data --volume /../etc -- x",
            1,
            &["--volume /../etc: "],
        ),
        (
            "add one --mount /root -- x",
            2,
            &["--mount /root", "HOST:PATH"],
        ),
        (
            "add one --mount /root:/in -- x",
            1,
            &["--mount /root:/in: ", "[hosting] mounts"],
        ),
        ("add one --allow a_b/c -- x", 1, &["--allow a_b/c: "]),
        ("add one --allow h --network open -- x", 2, &["--network"]),
        (
            "add one --provider docker -- x",
            2,
            &["gvisor, firecracker"],
        ),
        (
            "add one --provider runc --image i",
            1,
            &["--provider: ", "[hosting] providers"],
        ),
        (
            "add one --provider e2b --image i",
            1,
            &["--provider: ", "not set up here"],
        ),
        (
            "add one --provider process --image i",
            1,
            &["--provider: ", "not images"],
        ),
        ("add one --provider gvisor -- x", 1, &["--provider: "]),
        ("add one --restart sometimes -- x", 2, &["on-failure"]),
        ("add one --port 0 -- x", 2, &["--port"]),
        ("add one --http -- x", 2, &["--port"]),
        (
            "add one --max-concurrency 0 -- x",
            1,
            &["--max-concurrency: "],
        ),
        ("add one --timeout 0 -- x", 2, &["--timeout"]),
        (
            "add one --project none -- x",
            1,
            &["--project: ", "no project `none`"],
        ),
        ("get none", 1, &["no hosted server `none`"]),
        ("restart none", 1, &["no hosted server `none`"]),
        ("logs none", 1, &["no hosted server `none`"]),
        ("events none", 1, &["no hosted server `none`"]),
    ] {
        fails(&gateway, line, code, says).await;
    }
    ok(&gateway, "ls", "there are no hosted servers yet").await;

    let add = format!("add one --no-wait {}", scripted("--name one"));
    ok(&gateway, &add, "registered `one`").await;
    fails(
        &gateway,
        &add,
        1,
        &["NAME: ", "there is a server `one` already"],
    )
    .await;
}

#[tokio::test]
async fn one_that_does_not_come_up_says_why() {
    let gateway = Setup::new().serve().await;
    // What cannot be is not kept.
    let says = ["COMMAND: `no-such-program` not found"];
    fails(&gateway, "add one -- no-such-program", 1, &says).await;
    assert!(!ok(&gateway, "ls", "").await.contains("one"));
    let crashing = scripted("--exit-at-start");
    ok(&gateway, &format!("add one {crashing}"), "").await;
    wait_for("the reason", DEADLINE, async || {
        ok(&gateway, "ls", "").await.contains("exit code 5")
    })
    .await;
}
