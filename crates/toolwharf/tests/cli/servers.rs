//! Server commands on a running gateway, for a server in bubblewrap.

use std::process::Stdio;

use crate::common::{
    Gateway, Setup, cli,
    shell::{at, fails, json_of, ok, on},
};
use serde_json::Value;
use testkit::{Bin, DEADLINE, wait_for, within};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

/// The command line of a scripted server.
fn scripted(options: &str) -> String {
    format!("-- {} {options}", Bin::path("testkit-scripted").display())
}

#[tokio::test]
async fn each_verb_once() {
    let gateway = Setup::new().serve().await;
    ok(&gateway, "ls", "there are no servers yet").await;
    let add = format!(
        "add one --env CANARY --env PLAIN=x --volume /data --memory 64M --cpu 0.25 --restart on-failure \
         --max-concurrency 3 --timeout 20 {}",
        scripted("--name one --stderr-at-start hello")
    );
    let mut added = at(&gateway, &add);
    added.env("CANARY", "kept-out-of-sight");
    let said = cli::said(added, "").await.code(0).says("under process");
    assert_eq!(said.out, "", "only JSON output goes to stdout");

    let table = ok(&gateway, "ls", "").await;
    assert!(
        table.contains("NAME") && table.contains("one") && table.contains("running"),
        "{table}"
    );
    assert!(!table.contains("PROJECT"), "{table}");
    let listed = json_of(&gateway, "ls").await;
    let listed = listed["servers"].as_array();
    assert_eq!(listed.map(Vec::len), Some(1), "{listed:?}");
    let shown = json_of(&gateway, "get one").await;
    assert_eq!(shown["declared"], "file", "{shown}");
    assert_eq!(shown["restart_policy"], "on-failure", "{shown}");
    assert_eq!(shown["resource_limits"]["memory"], 64 << 20, "{shown}");
    assert_eq!(shown["resource_limits"]["cpu"], 0.25, "{shown}");
    assert_eq!(shown["max_concurrency"], 3, "{shown}");
    assert_eq!(shown["call_timeout_ms"], 20_000, "{shown}");
    let fields = ok(&gateway, "get one", "").await;
    for says in [
        "state            running",
        "sandbox          process",
        "limits           0.25 cores, 64 MiB of memory",
        "volumes          /data",
        "variables        CANARY, PLAIN",
        "network          none",
    ] {
        assert!(fields.contains(says), "{says:?}: {fields}");
    }
    // The value came from the environment and is passed only to the server.
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
    fails(&gateway, "call one no/such", 1, "-32601").await;
    fails(&gateway, "call one tools/list []", 2, "not a JSON object").await;
    fails(&gateway, "call one tools/list {", 2, "JSON").await;
    fails(&gateway, "call none tools/list", 1, "no server `none`").await;

    let logs = ok(&gateway, "logs one --lines 5", "").await;
    assert!(logs.contains("hello"), "{logs}");
    ok(&gateway, "stop one", "`toolwharf start one`").await;
    fails(&gateway, "call one tools/list", 1, "stopped").await;
    ok(&gateway, "start one", "connected: ").await;
    ok(&gateway, "restart one", "connected: ").await;
    let events = ok(&gateway, "events one", "").await;
    assert!(
        events.starts_with("TIME") && events.contains("stopped"),
        "{events}"
    );
    let events = json_of(&gateway, "events one -n 1").await;
    assert_eq!(events.as_array().map(Vec::len), Some(1), "{events}");

    let line = scripted("--name one --stderr-at-start anew");
    let again = format!("add one --memory 96M --heartbeat 7 --volume /data {line}");
    fails(&gateway, &again, 1, "--force").await;
    let again = again.replace("add one", "add one --force");
    ok(&gateway, &again, "added `one`").await;
    let replaced = json_of(&gateway, "get one").await;
    assert_eq!(replaced["resource_limits"]["memory"], 96 << 20);
    assert_eq!(replaced["restart_policy"], Value::Null, "{replaced}");
    assert_eq!(replaced["environment"].as_array().map(Vec::len), Some(0));
    let logs = ok(&gateway, "logs one", "").await;
    assert!(logs.contains("anew"), "{logs}");

    ok(&gateway, "disable one", "disabled `one`").await;
    fails(&gateway, "start one", 1, "`toolwharf enable one`").await;
    ok(&gateway, "enable one", "connected: ").await;
    ok(&gateway, "rm one", "removed `one` from ").await;
    fails(&gateway, "get one", 1, "no server `one`").await;
    fails(&gateway, "rm one", 1, "no server `one`").await;
}

/// The same commands with `--project`, and without it if only one server has the name.
#[tokio::test]
async fn each_verb_in_a_project() {
    let gateway = Setup::new().serve().await;
    for project in ["shop", "lab"] {
        ok(&gateway, &format!("project add {project}"), "").await;
    }
    let line = scripted("--stderr-at-start hello");
    let add = format!("add one --project shop --sandbox {line}");
    ok(&gateway, &add, "added `one` of project `shop`").await;
    let table = ok(&gateway, "ls", "").await;
    assert!(
        table.contains("PROJECT") && table.contains("shop"),
        "{table}"
    );
    for verb in ["start", "stop", "restart"] {
        ok(&gateway, &format!("{verb} one --project shop"), "").await;
    }
    ok(&gateway, "get one", "").await;
    let called = r#"call one tools/call {"name":"echo","arguments":{}} -o json"#;
    ok(&gateway, called, "").await;
    for verb in ["logs", "events", "get"] {
        let said = ok(&gateway, &format!("{verb} one --project shop"), "").await;
        assert!(said.contains("hello") || verb != "logs", "{said}");
        fails(
            &gateway,
            &format!("{verb} one --project lab"),
            1,
            "no server `one`",
        )
        .await;
    }
    // A name that exists in two projects is ambiguous unless the project is given.
    ok(&gateway, &add.replace("shop", "lab"), "of project `lab`").await;
    let said = on(&gateway, "get one").await;
    said.ends("get one", 1, &["(shop)", "(lab)"]);
    let shown = json_of(&gateway, "get one --project lab").await;
    let id = shown["id"].as_str().expect("an id");
    ok(
        &gateway,
        &format!("rm {id}"),
        "removed `one` of project `lab`",
    )
    .await;
    ok(&gateway, "rm one", "removed `one` of project `shop`").await;
    ok(&gateway, "ls", "there are no servers yet").await;
}

#[tokio::test]
async fn logs_are_followed_over_a_restart() {
    let gateway = Setup::new().serve().await;
    let line = scripted("--name one --stderr-at-start hello");
    let add = format!("add one --sandbox {line}");
    ok(&gateway, &add, "connected: ").await;
    let mut following = at(&gateway, "logs one -f")
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
    ok(&gateway, "restart one", "connected: ").await;
    // Output from before the restart, if any, is not the greeting.
    while !line().await.contains("hello") {}
    following.start_kill().expect("it still runs");
}

#[tokio::test]
async fn mistakes_are_told() {
    let gateway = Setup::new().serve().await;
    for (line, code, says) in [
        ("add one", 2, &["COMMAND"][..]),
        ("add a/b -- x", 2, &["a/b"]),
        (
            "add one --env NOT_SET_HERE -- x",
            2,
            &["--env NOT_SET_HERE", "export it"],
        ),
        ("add one --env A=1 --env A=2 -- x", 2, &["twice"]),
        (
            "add one --memory 1 --cpu 0 --pids 0 -- x",
            1,
            &["`sandbox.cpu`", "`sandbox.memory`", "`sandbox.pids`"],
        ),
        (
            "add one --disk lots -- x",
            1,
            &["`sandbox.disk`", "\"512MiB\""],
        ),
        (
            "add one --volume /data --volume /../etc -- x",
            1,
            &["`volumes.1`"],
        ),
        (
            "add one --mount /root -- x",
            1,
            &["`mounts.0`", "HOST:PATH"],
        ),
        ("add one --network a_b/c -- x", 1, &["`network.0`"]),
        ("add one --sandbox=docker -- x", 2, &["gvisor, firecracker"]),
        (
            "add one --sandbox=process --image i",
            1,
            &["`sandbox`", "run images"],
        ),
        (
            "add one --sandbox=gvisor -- x",
            1,
            &["`sandbox`", "run images"],
        ),
        ("add one --restart sometimes -- x", 2, &["on-failure"]),
        ("add one --port 0 -- x", 2, &["--port"]),
        ("add one --port 8080:x -- x", 2, &["--port", "HOST:9000"]),
        ("add one --path /x -- x", 2, &["--port"]),
        ("add one --max-concurrency 0 -- x", 1, &["maxConcurrency"]),
        ("add one --timeout 0 -- x", 2, &["--timeout"]),
        ("add one --project none -- x", 1, &["no project `none`"]),
        ("add one --memory 1G https://x.test", 2, &["--sandbox"]),
        ("get none", 1, &["no server `none`"]),
        ("restart none", 1, &["no server `none`"]),
        ("logs none", 1, &["no server `none`"]),
        ("events none", 1, &["no server `none`"]),
    ] {
        on(&gateway, line).await.ends(line, code, says);
    }
    ok(&gateway, "ls", "there are no servers yet").await;
}

#[tokio::test]
async fn one_that_does_not_come_up_says_why() {
    let gateway = Setup::new().serve().await;
    let says = "`no-such-program` not found";
    ok(&gateway, "add gone --sandbox -- no-such-program", says).await;
    let crashing = scripted("--exit-at-start");
    ok(&gateway, &format!("add one --sandbox {crashing}"), "").await;
    wait_for("the reason", DEADLINE, async || {
        ok(&gateway, "ls", "").await.contains("exit code 5")
    })
    .await;
}

/// Returns bash's completions, using the script that `completions` prints.
async fn completed(gateway: &Gateway, words: &str) -> String {
    let toolwharf = Bin::path("toolwharf");
    let folder = toolwharf.parent().expect("a folder").display().to_string();
    let script = "source <(toolwharf completions bash); COMP_WORDS=($WORDS ''); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); \
                  _clap_complete_toolwharf toolwharf ''; echo \"${COMPREPLY[@]}\"";
    let path = std::env::var("PATH").unwrap_or_default();
    let mut bash = Command::new("bash");
    bash.args(["-c", script])
        .env_clear()
        .env("PATH", format!("{folder}:{path}"))
        .env("WORDS", format!("toolwharf {words}"))
        .env("HOME", gateway.folder())
        .env("TOOLWHARF_URL", &gateway.url)
        .env("TOOLWHARF_TOKEN", gateway.token());
    let said = within("bash", DEADLINE, bash.output())
        .await
        .expect("bash runs");
    String::from_utf8(said.stdout).expect("UTF-8")
}

#[tokio::test]
async fn shells_complete_names() {
    let gateway = Setup::new()
        .scripted("one", &["--no-builtin", "--tools", "2"])
        .serve()
        .await;
    gateway.up("one").await;
    for (words, expect) in [
        ("get", "one"),
        ("restart", "one"),
        ("tools get", "tool_0 tool_1"),
        ("tools call", "tool_0 tool_1"),
    ] {
        let found = completed(&gateway, words).await;
        let found: Vec<&str> = found
            .split_whitespace()
            .filter(|word| !word.starts_with('-'))
            .collect();
        assert_eq!(found.join(" "), expect, "{words}");
    }
}
