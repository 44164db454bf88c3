//! Commands that a running gateway carries out.

use std::{path::Path, process::Stdio, time::Duration};

use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, Process, wait_for};

use super::support::{read, scripted};
use crate::common::{
    Setup,
    shell::{at, on, on_with, transcript},
};

#[tokio::test]
async fn a_running_gateway_takes_changes_in_at_once() {
    let gateway = Setup::new()
        .scripted("one", &["--tools", "2"])
        .serve()
        .await;
    gateway.up("one").await;
    let scripted = scripted();
    let file = gateway.servers_file();

    let said = on(
        &gateway,
        &format!("add -e KEY=sesame two -- {scripted} --tools 3"),
    )
    .await;
    said.code(0).says("connected: ");
    // The message names the file by its absolute path, so that it can be found from any directory.
    on(&gateway, "add two x")
        .await
        .code(1)
        .says(file.to_str().expect("UTF-8"));
    let two = on(&gateway, "get two -o json").await.code(0);
    assert!(!two.out.contains("sesame"), "{two:?}");
    assert_eq!(two.json()["status"], "running");
    assert_eq!(two.json()["environment"], json!(["KEY"]));
    assert!(two.json()["pid"].is_u64());

    let said = on(
        &gateway,
        &format!("add bad -- {scripted} --exit-at-start --stderr-at-start 'no key'"),
    )
    .await;
    let said = said.code(0).says("not connected").says("exit code 5");
    assert!(said.err.contains("| no key"), "{said:?}");
    on(&gateway, "add gone surely-not-there")
        .await
        .code(0)
        .says("not found");

    // The failing server is restarted from time to time.
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

    on(&gateway, "disable two").await.code(0);
    let two = on(&gateway, "get two -o json").await.json();
    assert_eq!(
        (&two["status"], &two["pid"]),
        (&json!("disabled"), &Value::Null)
    );
    on(&gateway, "enable two").await.code(0).says("connected: ");
    for name in ["bad", "gone", "two"] {
        on(&gateway, &format!("rm {name}")).await.code(0);
    }
    on(&gateway, "rm two").await.code(1).says("no server `two`");
    let rows = on(&gateway, "ls -o json").await.json();
    assert_eq!(rows["servers"].as_array().map(Vec::len), Some(1));
    let written: Value = serde_json::from_str(&read(&file)).expect("JSON");
    assert_eq!(
        written["mcpServers"].as_object().map(|all| all.len()),
        Some(1)
    );
    on(&gateway, "get two")
        .await
        .code(1)
        .says("no server `two`");
}

#[tokio::test]
async fn tools_are_switched_without_a_restart() {
    let gateway = Setup::new()
        .settings("[projects.p]\ndisabled_tools = [\"one/tool_1\"]")
        .scripted("one", &["--tools", "2"])
        .serve()
        .await;
    gateway.up("one").await;
    let pid = on(&gateway, "get one -o json").await.json()["pid"].clone();
    on(&gateway, "tools call tool_0").await.code(0);
    on(&gateway, "disable one/tool_0").await.code(0);
    on(&gateway, "tools call tool_0")
        .await
        .code(1)
        .says("Unknown tool: tool_0");
    on(&gateway, "tools call tool_1").await.code(0);
    // A disabled tool cannot be called in any view, not even in the view of one server, which forwards names that it
    // does not list.
    for (view, off, on_too) in [
        ("--server one", "tool_0", Some("tool_1")),
        ("--project p", "tool_1", None),
        ("--project p --server one", "tool_1", None),
        ("--project p --server one", "tool_0", Some("echo")),
    ] {
        let call = |tool| format!("tools call {tool} {view}");
        let said = on(&gateway, &call(off)).await;
        said.code(1).says(&format!("Unknown tool: {off}"));
        if let Some(tool) = on_too {
            on(&gateway, &call(tool)).await.code(0);
        }
    }
    on(&gateway, "disable one/tool_9")
        .await
        .code(1)
        .says("no tool `tool_9`");
    let tools = on(&gateway, "tools ls -o json").await.code(0).json();
    let tool = |native: &str| {
        let all = tools["tools"].as_array().expect("tools");
        all.iter()
            .find(|tool| tool["native"] == native)
            .cloned()
            .expect("the tool")
    };
    assert_eq!(
        (&tool("tool_0")["enabled"], &tool("tool_0")["name"]),
        (&json!(false), &Value::Null)
    );
    assert_eq!(
        (&tool("tool_1")["enabled"], &tool("tool_1")["name"]),
        (&json!(true), &json!("tool_1"))
    );
    let table = on(&gateway, "tools ls --server one").await.code(0).out;
    assert!(table.contains("one/tool_0"), "{table}");
    on(&gateway, "tools ls --server none")
        .await
        .code(1)
        .says("no server `none`");
    on(&gateway, "enable one/tool_0").await.code(0);
    on(&gateway, "tools call tool_0").await.code(0);
    let after = on(&gateway, "get one -o json").await.json();
    assert_eq!(
        (after["pid"].clone(), after["starts"].clone()),
        (pid, json!(1))
    );
}

#[tokio::test]
async fn calls_show_progress_results_and_errors() {
    let dice = json!({ "command": Bin::path("toolwharf-example-dice") });
    let gateway = Setup::new()
        .scripted("one", &[])
        .server("dice", dice)
        .serve()
        .await;
    gateway.up("one").await;
    gateway.up("dice").await;
    let said = on(&gateway, r#"tools call progress {"count":3,"ms":20}"#).await;
    let said = said.code(0).says("progress 1/3").says("progress 3/3");
    assert_eq!(said.out, "progressed\n");

    let said = on(&gateway, "tools call roll --arg dice=2d6+100 -o json")
        .await
        .code(0);
    let total = said.json()["structuredContent"]["total"].as_i64();
    assert!((102..=112).contains(&total.unwrap_or_default()), "{said:?}");
    let said = on_with(&gateway, "tools call roll -", "{\"dice\":\n\"d20\"}").await;
    assert!(said.code(0).out.contains("1d20"));
    let said = on(&gateway, "tools call roll -a dice=many").await.code(1);
    assert!(said.out.contains("COUNTdSIDES"), "{said:?}");
    // Values are parsed as JSON if possible, and a whole object is passed byte for byte.
    let said = on(&gateway, "tools call echo -a n=1 -a s=a=b -o json")
        .await
        .code(0);
    assert!(
        said.out.contains(r#"{"n":1,"s":"a=b"}"#)
            || said.out.contains(r#"{\"n\":1,\"s\":\"a=b\"}"#),
        "{said:?}"
    );
    let said = on(
        &gateway,
        r#"tools call echo {"n":12345678901234567890123} -o json"#,
    )
    .await
    .code(0);
    assert!(said.out.contains("12345678901234567890123"), "{said:?}");

    transcript(
        &gateway,
        r#"
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
    on(&gateway, "tools call --timeout 1 never")
        .await
        .code(1)
        .says("--timeout");
    assert!(begun.elapsed().expect("time goes on") < Duration::from_secs(10));
}

#[tokio::test]
async fn logs_outlive_the_process() {
    let gateway = Setup::new()
        .scripted("one", &["--stderr-at-start", "hello"])
        .serve()
        .await;
    gateway.up("one").await;
    on(
        &gateway,
        r#"tools call stderr '{"text":"first life","lines":1}'"#,
    )
    .await
    .code(0);
    let said = on(&gateway, "logs one").await.code(0);
    assert!(said.out.contains("hello\n"), "{said:?}");
    let said = on(&gateway, "logs one -n 0").await.code(0);
    assert_eq!(said.out, "");

    let mut follow = at(&gateway, "logs -f one");
    follow.stdin(Stdio::null());
    let mut follow = Process::spawn(follow);
    let hellos = |follow: &Process| {
        let lines = follow.stdout_lines();
        lines.iter().filter(|line| *line == "hello").count()
    };
    wait_for("the past", DEADLINE, async || hellos(&follow) == 1).await;
    on(&gateway, "tools call crash").await.code(1);
    wait_for("the second life", DEADLINE, async || hellos(&follow) == 2).await;
    // After a change of its configuration it counts as a new server with the same name.
    on(
        &gateway,
        &format!("add --force one -- {} --stderr-at-start anew", scripted()),
    )
    .await
    .code(0);
    wait_for("the new server", DEADLINE, async || {
        follow.stdout_lines().iter().any(|line| line == "anew")
    })
    .await;
    on(
        &gateway,
        &format!(
            "add --force one -- {} --exit-at-start --stderr-at-start dying",
            scripted()
        ),
    )
    .await
    .code(0);
    wait_for("what a failing start says", DEADLINE, async || {
        follow.stdout_lines().iter().any(|line| line == "dying")
            && follow.stderr().contains("exit code 5")
    })
    .await;
    on(&gateway, "logs none")
        .await
        .code(1)
        .says("no server `none`");
    assert!(follow.is_running());

    // A client that follows the log does not keep the gateway from exiting.
    let mut gateway = gateway;
    gateway.process.signal(rustix::process::Signal::TERM);
    assert!(gateway.process.wait(DEADLINE).await.success());
    assert!(follow.wait(DEADLINE).await.success());
}

#[tokio::test]
async fn real_servers_are_added_and_called() {
    let bin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.work/venv/bin");
    let server = |name: &str| {
        let path = bin.join(name);
        assert!(
            path.exists(),
            "{} is missing; run: cargo xtask setup",
            path.display()
        );
        path.to_str().expect("UTF-8").to_owned()
    };
    let gateway = Setup::new().serve().await;
    let time = server("mcp-server-time");
    on(&gateway, &format!("add --wait 25 time -- {time}"))
        .await
        .code(0)
        .says("connected: 2 tools");
    // The server creates a database file in its working directory before it crashes.
    let sqlite =
        json!({"command": server("mcp-server-sqlite"), "cwd": gateway.folder()}).to_string();
    on(&gateway, &format!("add --wait 25 --json sqlite '{sqlite}'"))
        .await
        .code(0)
        .says("not connected");
    let zone = "timezone=Europe/Berlin";
    let said = on(
        &gateway,
        &format!("tools call get_current_time --arg {zone}"),
    )
    .await;
    assert!(said.code(0).out.contains("Europe/Berlin"));
}
