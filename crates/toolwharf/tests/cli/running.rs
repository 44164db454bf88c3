//! Commands that a running gateway carries out.

use std::{process::Stdio, time::Duration};

use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, Process, wait_for};

use super::support::{read, scripted};
use crate::common::{
    Setup, item,
    real::python,
    shell::{at, fails, json_of, ok, on, on_with, transcript},
    with_one,
};

#[tokio::test]
async fn a_running_gateway_takes_changes_in_at_once() {
    let gateway = with_one(&["--tools", "2"]).await;
    let scripted = scripted();
    let file = gateway.servers_file();
    // The message names the file by its absolute path, so that it can be found from any directory.
    let text = format!(
        "
        $ add -e KEY=sesame two -- {scripted} --tools 3 # connected:
        1$ add two x # {}
        $ get two -o json
        ! sesame
        $ add bad -- {scripted} --exit-at-start --stderr-at-start 'no key' # not connected
        # exit code 5
        # | no key
        1$ add gone surely-not-there # not found
        ",
        file.display()
    );
    transcript(&gateway, &text).await;
    transcript(&gateway, "$ health\n= ready").await;
    let two = json_of(&gateway, "get two").await;
    assert_eq!(two["status"], "running");
    assert_eq!(two["environment"], json!(["KEY"]));
    assert!(two["pid"].is_u64());

    // The failing server is restarted repeatedly, so wait until it is in backoff.
    wait_for("the list to show each state", DEADLINE, async || {
        let table = on(&gateway, "ls").await.code(0).out;
        let states = [
            ("one", "running"),
            ("two", "running"),
            ("bad", "backoff"),
            ("gone", "blocked"),
        ];
        states.iter().all(|(name, state)| {
            let line = table.lines().find(|line| line.starts_with(name));
            line.is_some_and(|line| line.contains(state))
        })
    })
    .await;

    ok(&gateway, "disable two", "").await;
    let two = json_of(&gateway, "get two").await;
    assert_eq!(two["status"], "disabled");
    assert_eq!(two["pid"], Value::Null);
    transcript(
        &gateway,
        "
        $ enable two # connected:
        $ rm bad
        $ rm gone
        $ rm two
        ",
    )
    .await;
    let rows = json_of(&gateway, "ls").await;
    assert_eq!(rows["servers"].as_array().map(Vec::len), Some(1));
    let written: Value = serde_json::from_str(&read(&file)).expect("JSON");
    let written = written["mcpServers"].as_object();
    assert_eq!(written.map(|all| all.len()), Some(1));
}

#[tokio::test]
async fn tools_are_switched_without_a_restart() {
    let gateway = Setup::new()
        .settings("[projects.p]\ndisabled_tools = [\"one/tool_1\"]")
        .scripted("one", &["--tools", "2"])
        .connected()
        .await;
    let pid = json_of(&gateway, "get one").await["pid"].clone();
    // A disabled tool cannot be called in any view, although the view of a single server forwards unlisted names.
    transcript(
        &gateway,
        "
        $ tools call tool_0
        $ disable one/tool_0
        1$ tools call tool_0 # Unknown tool: tool_0
        $ tools call tool_1
        1$ tools call tool_0 --server one # Unknown tool: tool_0
        $ tools call tool_1 --server one
        1$ tools call tool_1 --project p # Unknown tool: tool_1
        1$ tools call tool_1 --project p --server one # Unknown tool: tool_1
        1$ tools call tool_0 --project p --server one # Unknown tool: tool_0
        $ tools call echo --project p --server one
        1$ disable one/tool_9 # no tool `tool_9`
        $ tools ls --server one
        | one/tool_0
        1$ tools ls --server none # no server `none`
        ",
    )
    .await;
    let tools = &json_of(&gateway, "tools ls").await["tools"];
    let tool = |native: &str| {
        let tool = item(tools, "native", native);
        (tool["enabled"].clone(), tool["name"].clone())
    };
    assert_eq!(tool("tool_0"), (json!(false), json!("tool_0")));
    assert_eq!(tool("tool_1"), (json!(true), json!("tool_1")));
    transcript(&gateway, "$ enable one/tool_0\n$ tools call tool_0").await;
    let after = json_of(&gateway, "get one").await;
    assert_eq!(after["pid"], pid);
    assert_eq!(after["starts"], 1);
}

#[tokio::test]
async fn calls_show_progress_results_and_errors() {
    let dice = json!({ "command": Bin::path("toolwharf-example-dice") });
    let gateway = Setup::new()
        .scripted("one", &[])
        .server("dice", dice)
        .connected()
        .await;
    let rolled = json_of(&gateway, "tools call roll --arg dice=2d6+100").await;
    let total = rolled["structuredContent"]["total"].as_i64();
    assert!((102..=112).contains(&total.unwrap_or_default()), "{rolled}");
    let said = on_with(&gateway, "tools call roll -", "{\"dice\":\n\"d20\"}").await;
    assert!(said.code(0).out.contains("1d20"));
    // Values are parsed as JSON if possible, and a whole object is passed byte for byte.
    let echoed = ok(&gateway, "tools call echo -a n=1 -a s=a=b -o json", "").await;
    let echoed = echoed.replace('\\', "");
    assert!(echoed.contains(r#"{"n":1,"s":"a=b"}"#), "{echoed}");

    transcript(
        &gateway,
        r#"
        $ tools call progress {"count":3,"ms":20} # progress 1/3
        # progress 3/3
        = progressed
        1$ tools call roll -a dice=many
        | COUNTdSIDES
        $ tools call echo {"n":12345678901234567890123} -o json
        | 12345678901234567890123
        1$ tools call fail '{"text":"it broke"}'
        1$ tools call none # Unknown tool: none
        2$ tools call echo { # JSON
        2$ tools call echo [] # object
        2$ tools call echo -a x # KEY=VALUE
        $ tools call --server dice flip
        1$ tools call --server dice echo # tool not found
        "#,
    )
    .await;
    let begun = std::time::SystemTime::now();
    fails(&gateway, "tools call --timeout 1 never", 1, "--timeout").await;
    assert!(begun.elapsed().expect("time goes on") < Duration::from_secs(10));
}

#[tokio::test]
async fn logs_outlive_the_process() {
    let gateway = with_one(&["--stderr-at-start", "hello"]).await;
    let call = r#"tools call stderr '{"text":"first life","lines":1}'"#;
    ok(&gateway, call, "").await;
    let logs = ok(&gateway, "logs one", "").await;
    assert!(logs.contains("hello\n"), "{logs}");
    assert_eq!(ok(&gateway, "logs one -n 0", "").await, "");

    let mut follow = at(&gateway, "logs -f one");
    follow.stdin(Stdio::null());
    let mut follow = Process::spawn(follow);
    let hellos = |follow: &Process| {
        let lines = follow.stdout_lines();
        lines.iter().filter(|line| *line == "hello").count()
    };
    wait_for("the past", DEADLINE, async || hellos(&follow) == 1).await;
    fails(&gateway, "tools call crash", 1, "").await;
    wait_for("the second life", DEADLINE, async || hellos(&follow) == 2).await;
    // After a configuration change, the server counts as a new server with the same name.
    let add = format!("add --force one -- {} --stderr-at-start", scripted());
    ok(&gateway, &format!("{add} anew"), "").await;
    wait_for("the new server", DEADLINE, async || {
        follow.stdout_lines().iter().any(|line| line == "anew")
    })
    .await;
    ok(&gateway, &format!("{add} dying --exit-at-start"), "").await;
    wait_for("what a failing start says", DEADLINE, async || {
        follow.stdout_lines().iter().any(|line| line == "dying")
            && follow.stderr().contains("exit code 5")
    })
    .await;
    assert!(follow.is_running());

    // A client that follows the log does not prevent the gateway from exiting.
    let mut gateway = gateway;
    gateway.process.signal(rustix::process::Signal::TERM);
    assert!(gateway.process.wait(DEADLINE).await.success());
    assert!(follow.wait(DEADLINE).await.success());
}

#[tokio::test]
async fn real_servers_are_added_and_called() {
    let gateway = Setup::new().serve().await;
    // The server creates a database file in its working directory before it crashes.
    let mut sqlite = python("mcp-server-sqlite", &[]);
    sqlite["cwd"] = json!(gateway.folder());
    let time = python("mcp-server-time", &[]);
    let text = format!(
        "
        $ add --wait 25 time -- {} # connected: 2 tools
        $ add --wait 25 --json sqlite '{sqlite}' # not connected
        $ tools call get_current_time --arg timezone=Europe/Berlin
        | Europe/Berlin
        ",
        time["command"].as_str().expect("a path")
    );
    transcript(&gateway, &text).await;
}
