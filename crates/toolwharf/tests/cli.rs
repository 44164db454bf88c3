//! The command line through the real binary: with a gateway and without one, its words, its exit codes.

mod common;

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use common::{
    Gateway, Setup,
    cli::{self, Said},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{Bin, DEADLINE, Process, wait_for};
use tokio::process::Command;

/// A user in a home of their own.
struct Home {
    dir: TempDir,
}

impl Home {
    fn new() -> Self {
        Self {
            dir: TempDir::new().expect("a folder"),
        }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    /// The server file that is used where nothing is said.
    fn servers(&self) -> PathBuf {
        self.path(".config/toolwharf/mcp.json")
    }

    fn write(&self, file: &str, text: &str) -> PathBuf {
        let path = self.path(file);
        std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a folder");
        std::fs::write(&path, text).expect("a file");
        path
    }

    async fn run(&self, arguments: &[&str]) -> Said {
        run(self.dir.path(), arguments, "").await
    }
}

fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = cli::toolwharf();
    command.args(arguments).env("HOME", home).current_dir(home);
    command
}

async fn run(home: &Path, arguments: &[&str], input: &str) -> Said {
    cli::said(command(home, arguments), input).await
}

/// A command that uses this gateway.
async fn on(gateway: &Gateway, arguments: &[&str]) -> Said {
    run(gateway.folder(), &at(gateway, arguments), "").await
}

fn at<'a>(gateway: &Gateway, arguments: &[&'a str]) -> Vec<&'a str> {
    assert!(gateway.folder().join("data/serve.json").exists());
    let (verb, rest) = arguments.split_first().expect("a verb");
    // `tools ls`: options stand behind the second word too, but not behind a command's own.
    let mut all = vec![*verb];
    let nested = usize::from(*verb == "tools");
    all.extend(&rest[..nested]);
    all.extend(["--data-dir", "data"]);
    all.extend(&rest[nested..]);
    all
}

fn scripted() -> String {
    Bin::path("testkit-scripted").display().to_string()
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).expect("a file")
}

#[tokio::test]
async fn without_arguments_it_explains_itself() {
    let home = Home::new();
    let said = home.run(&[]).await.code(2);
    for verb in ["serve", "stdio", "add", "import", "doctor", "completions"] {
        assert!(said.err.contains(verb), "{said:?}");
    }
    home.run(&["nonsense"]).await.code(2).says("nonsense");
    home.run(&["rm", "a/b"]).await.code(2).says("`/`");
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let said = home.run(&["completions", shell]).await.code(0);
        assert!(said.out.contains("toolwharf"), "{shell}");
    }
}

#[tokio::test]
async fn without_a_gateway_the_files_are_edited() {
    let home = Home::new();
    let scripted = scripted();
    home.run(&["ls"]).await.code(0).says("no servers yet");
    home.run(&["add", "first", "--", &scripted, "--name", "x"])
        .await
        .code(0)
        .says("no gateway is running: added `first`");
    home.run(&["add", "-e", "KEY=sesame", "second", "uvx", "-y"])
        .await
        .code(0);
    let url = "https://user:sesame@example.com/mcp?key=sesame";
    home.run(&["add", "third", "--header", "X-Key: sesame", url])
        .await
        .code(0);
    let entry = r#"{"command": "x", "future": {"a": 1}}"#;
    home.run(&["add", "--json", "fourth", entry]).await.code(0);
    home.run(&["add", "second", "uvx"])
        .await
        .code(1)
        .says("--force");
    home.run(&["add", "--force", "fourth", "y"]).await.code(0);
    home.run(&["disable", "second"]).await.code(0);
    home.run(&["disable", "first/echo"]).await.code(0);

    let said = home.run(&["ls"]).await.code(0);
    let table = said.out.replace(&scripted, "[scripted]");
    insta::assert_snapshot!(regular(&table), @r"
    NAME | STATE | TRANSPORT | TARGET | TOOLS | CALLS | ERRORS | NOTE
    first | not running | stdio | [scripted] | 0 | 0 | 0
    second | disabled | stdio | uvx | 0 | 0 | 0
    third | not running | http | https://example.com/mcp?… | 0 | 0 | 0
    fourth | not running | stdio | y | 0 | 0 | 0
    ");
    let rows = home.run(&["ls", "-o", "json"]).await.code(0).json();
    assert_eq!(rows["servers"][2]["transport"], "http");
    assert_eq!(rows["servers"][1]["enabled"], false);
    let first = home.run(&["get", "first", "-o", "json"]).await.code(0);
    assert_eq!(first.json()["disabledTools"], json!(["echo"]));
    let third = home.run(&["get", "third"]).await.code(0);
    assert!(third.out.contains("X-Key"), "{third:?}");
    for verb in [
        &["ls"][..],
        &["ls", "-o", "json"],
        &["get", "second"],
        &["get", "third"],
    ] {
        let said = home.run(verb).await;
        assert!(!format!("{said:?}").contains("sesame"), "{said:?}");
    }

    home.run(&["get", "frist"])
        .await
        .code(1)
        .says("did you mean `first`?");
    home.run(&["enable", "second"]).await.code(0);
    home.run(&["enable", "first/echo"]).await.code(0);
    home.run(&["rm", "third"]).await.code(0);
    home.run(&["rm", "third"])
        .await
        .code(1)
        .says("no server `third`");
    home.run(&["disable", "third"])
        .await
        .code(1)
        .says("no server `third`");
    let written: Value = serde_json::from_str(&read(&home.servers())).expect("JSON");
    let names: Vec<&String> = written["mcpServers"]
        .as_object()
        .expect("servers")
        .keys()
        .collect();
    assert_eq!(names, ["first", "second", "fourth"]);
    assert_eq!(written["mcpServers"]["fourth"], json!({"command": "y"}));
    home.run(&["tools", "ls"])
        .await
        .code(1)
        .says("toolwharf serve");
    home.run(&["logs", "first"])
        .await
        .code(1)
        .says("toolwharf serve");
}

/// A table without its widths.
fn regular(table: &str) -> String {
    let line = |line: &str| {
        let cells: Vec<&str> = line
            .split("  ")
            .map(str::trim)
            .filter(|c| !c.is_empty())
            .collect();
        cells.join(" | ")
    };
    table.lines().map(line).collect::<Vec<_>>().join("\n")
}

const COMMENTED: &str = r#"{
  // Mine, do not touch.
  "mcpServers": {
    "old": { "command": "x", "mine": 1 }, // the good one
    /* and another */
    "other": { "command": "y" }
  },
  "theirs": true
}
"#;

#[tokio::test]
async fn comments_survive_and_a_bad_edit_changes_nothing() {
    let home = Home::new();
    let file = home.write("servers.jsonc", COMMENTED);
    let config = file.to_str().expect("UTF-8");
    let with = |arguments: &[&'static str]| {
        let all: Vec<String> = ["--config", config]
            .iter()
            .chain(arguments)
            .map(|word| (*word).to_owned())
            .collect();
        all
    };
    let run = async |arguments: &[&'static str]| {
        let all = with(arguments);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        home.run(&all).await
    };
    for (arguments, code, word) in [
        (&["add", "old", "z"][..], 1, "already"),
        (&["add", "a/b", "z"], 2, "a/b"),
        (
            &["add", "new", "z", "${SURELY_NOT_SET}"],
            1,
            "SURELY_NOT_SET",
        ),
        (&["add", "--json", "new", "{"], 2, "JSON"),
        (&["add", "--json", "new", "{}"], 1, "command"),
        (
            &["add", "--json", "new", r#"{"command":"x","type":"pigeon"}"#],
            1,
            "pigeon",
        ),
        (
            &[
                "add",
                "--json",
                "new",
                r#"{"command":"x","timeout":"soon"}"#,
            ],
            1,
            "timeout",
        ),
        (&["add", "-e", "sesame", "new", "z"], 2, "KEY=VALUE"),
        (&["rm", "none"], 1, "none"),
        (&["enable", "none"], 1, "none"),
        (&["disable", "none/x"], 1, "none"),
    ] {
        let said = run(arguments).await.code(code).says(word);
        assert!(!said.err.contains("sesame"), "{said:?}");
        assert_eq!(read(&file), COMMENTED, "{arguments:?}");
    }
    run(&["add", "new", "z"]).await.code(0);
    run(&["disable", "other"]).await.code(0);
    run(&["disable", "old/tool"]).await.code(0);
    run(&["rm", "new"]).await.code(0);
    let text = read(&file);
    for kept in [
        "// Mine, do not touch.",
        "// the good one",
        "/* and another */",
        "\"mine\": 1",
        "\"theirs\": true",
    ] {
        assert!(text.contains(kept), "{kept}: {text}");
    }

    std::fs::write(&file, "{ broken").expect("a file");
    run(&["add", "new", "z"]).await.code(1).says("invalid JSON");
    run(&["ls"]).await.code(1).says("servers.jsonc:1:");
    assert_eq!(read(&file), "{ broken");
}

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
        &[
            "add",
            "-e",
            "KEY=sesame",
            "two",
            "--",
            &scripted,
            "--tools",
            "3",
        ],
    )
    .await;
    said.code(0).says("connected: ");
    // Where it is written is said so that it can be found from anywhere.
    on(&gateway, &["add", "two", "x"])
        .await
        .code(1)
        .says(file.to_str().expect("UTF-8"));
    let two = on(&gateway, &["get", "two", "-o", "json"]).await.code(0);
    assert!(!two.out.contains("sesame"), "{two:?}");
    assert_eq!(two.json()["state"], "running");
    assert_eq!(two.json()["env"], json!(["KEY"]));
    assert!(two.json()["pid"].is_u64());

    let said = on(
        &gateway,
        &[
            "add",
            "bad",
            "--",
            &scripted,
            "--exit-at-start",
            "--stderr-at-start",
            "no key",
        ],
    )
    .await;
    let said = said.code(0).says("not connected").says("exit code 5");
    assert!(said.err.contains("| no key"), "{said:?}");
    on(&gateway, &["add", "gone", "surely-not-there"])
        .await
        .code(0)
        .says("not found");

    let table = on(&gateway, &["ls"]).await.code(0).out;
    for (name, state) in [
        ("one", "running"),
        ("two", "running"),
        ("bad", "down"),
        ("gone", "down"),
    ] {
        let line = table
            .lines()
            .find(|line| line.starts_with(name))
            .expect(name);
        assert!(line.contains(state), "{table}");
    }

    on(&gateway, &["disable", "two"]).await.code(0);
    let two = on(&gateway, &["get", "two", "-o", "json"]).await.json();
    assert_eq!(
        (&two["state"], &two["pid"]),
        (&json!("disabled"), &Value::Null)
    );
    on(&gateway, &["enable", "two"])
        .await
        .code(0)
        .says("connected: ");
    for name in ["bad", "gone", "two"] {
        on(&gateway, &["rm", name]).await.code(0);
    }
    on(&gateway, &["rm", "two"])
        .await
        .code(1)
        .says("no server `two`");
    let rows = on(&gateway, &["ls", "-o", "json"]).await.json();
    assert_eq!(rows["servers"].as_array().map(Vec::len), Some(1));
    let written: Value = serde_json::from_str(&read(&file)).expect("JSON");
    assert_eq!(
        written["mcpServers"].as_object().map(|all| all.len()),
        Some(1)
    );
    on(&gateway, &["get", "two"])
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
    let pid = on(&gateway, &["get", "one", "-o", "json"]).await.json()["pid"].clone();
    on(&gateway, &["tools", "call", "tool_0"]).await.code(0);
    on(&gateway, &["disable", "one/tool_0"]).await.code(0);
    on(&gateway, &["tools", "call", "tool_0"])
        .await
        .code(1)
        .says("Unknown tool: tool_0");
    on(&gateway, &["tools", "call", "tool_1"]).await.code(0);
    // Neither is there a way round, although the view of one server passes on names that it does not list.
    for (view, off, on_too) in [
        (&["--server", "one"][..], "tool_0", Some("tool_1")),
        (&["--project", "p"], "tool_1", None),
        (&["--project", "p", "--server", "one"], "tool_1", None),
        (
            &["--project", "p", "--server", "one"],
            "tool_0",
            Some("echo"),
        ),
    ] {
        let call = |tool| [&["tools", "call", tool], view].concat();
        let said = on(&gateway, &call(off)).await;
        said.code(1).says(&format!("Unknown tool: {off}"));
        if let Some(tool) = on_too {
            on(&gateway, &call(tool)).await.code(0);
        }
    }
    on(&gateway, &["disable", "one/tool_9"])
        .await
        .code(1)
        .says("no tool `tool_9`");
    let tools = on(&gateway, &["tools", "ls", "-o", "json"])
        .await
        .code(0)
        .json();
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
    let table = on(&gateway, &["tools", "ls", "--server", "one"])
        .await
        .code(0)
        .out;
    assert!(table.contains("one/tool_0"), "{table}");
    on(&gateway, &["tools", "ls", "--server", "none"])
        .await
        .code(1)
        .says("no server `none`");
    on(&gateway, &["enable", "one/tool_0"]).await.code(0);
    on(&gateway, &["tools", "call", "tool_0"]).await.code(0);
    let after = on(&gateway, &["get", "one", "-o", "json"]).await.json();
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
    let said = on(
        &gateway,
        &["tools", "call", "progress", r#"{"count":3,"ms":20}"#],
    )
    .await;
    let said = said.code(0).says("progress 1/3").says("progress 3/3");
    assert_eq!(said.out, "progressed\n");

    let said = on(
        &gateway,
        &[
            "tools",
            "call",
            "roll",
            "--arg",
            "dice=2d6+100",
            "-o",
            "json",
        ],
    )
    .await
    .code(0);
    let total = said.json()["structuredContent"]["total"].as_i64();
    assert!((102..=112).contains(&total.unwrap_or_default()), "{said:?}");
    let said = run(
        gateway.folder(),
        &at(&gateway, &["tools", "call", "roll", "-"]),
        "{\"dice\":\n\"d20\"}",
    )
    .await;
    assert!(said.code(0).out.contains("1d20"));
    let said = on(&gateway, &["tools", "call", "roll", "-a", "dice=many"])
        .await
        .code(1);
    assert!(said.out.contains("COUNTdSIDES"), "{said:?}");
    // Values are JSON where they can be, and the bytes of a whole object are not touched.
    let said = on(
        &gateway,
        &[
            "tools", "call", "echo", "-a", "n=1", "-a", "s=a=b", "-o", "json",
        ],
    )
    .await
    .code(0);
    assert!(
        said.out.contains(r#"{"n":1,"s":"a=b"}"#)
            || said.out.contains(r#"{\"n\":1,\"s\":\"a=b\"}"#),
        "{said:?}"
    );
    let said = on(
        &gateway,
        &[
            "tools",
            "call",
            "echo",
            r#"{"n":12345678901234567890123}"#,
            "-o",
            "json",
        ],
    )
    .await
    .code(0);
    assert!(said.out.contains("12345678901234567890123"), "{said:?}");

    on(
        &gateway,
        &["tools", "call", "fail", r#"{"text":"it broke"}"#],
    )
    .await
    .code(1);
    on(&gateway, &["tools", "call", "none"])
        .await
        .code(1)
        .says("Unknown tool: none");
    on(&gateway, &["tools", "call", "echo", "{"])
        .await
        .code(2)
        .says("JSON");
    on(&gateway, &["tools", "call", "echo", "[]"])
        .await
        .code(2)
        .says("object");
    on(&gateway, &["tools", "call", "echo", "-a", "x"])
        .await
        .code(2)
        .says("KEY=VALUE");
    on(&gateway, &["tools", "call", "--server", "dice", "flip"])
        .await
        .code(0);
    on(&gateway, &["tools", "call", "--server", "dice", "echo"])
        .await
        .code(1)
        .says("tool not found");
    let begun = std::time::SystemTime::now();
    on(&gateway, &["tools", "call", "--timeout", "1", "never"])
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
        &[
            "tools",
            "call",
            "stderr",
            r#"{"text":"first life","lines":1}"#,
        ],
    )
    .await
    .code(0);
    let said = on(&gateway, &["logs", "one"]).await.code(0);
    assert!(said.out.contains("hello\n"), "{said:?}");
    let said = on(&gateway, &["logs", "one", "-n", "0"]).await.code(0);
    assert_eq!(said.out, "");

    let mut follow = command(gateway.folder(), &at(&gateway, &["logs", "-f", "one"]));
    follow.stdin(Stdio::null());
    let mut follow = Process::spawn(follow);
    let hellos = |follow: &Process| {
        let lines = follow.stdout_lines();
        lines.iter().filter(|line| *line == "hello").count()
    };
    wait_for("the past", DEADLINE, async || hellos(&follow) == 1).await;
    on(&gateway, &["tools", "call", "crash"]).await.code(1);
    wait_for("the second life", DEADLINE, async || hellos(&follow) == 2).await;
    // Configured anew it is another server of the same name.
    on(
        &gateway,
        &[
            "add",
            "--force",
            "one",
            "--",
            &scripted(),
            "--stderr-at-start",
            "anew",
        ],
    )
    .await
    .code(0);
    wait_for("the new server", DEADLINE, async || {
        follow.stdout_lines().iter().any(|line| line == "anew")
    })
    .await;
    on(
        &gateway,
        &[
            "add",
            "--force",
            "one",
            "--",
            &scripted(),
            "--exit-at-start",
            "--stderr-at-start",
            "dying",
        ],
    )
    .await
    .code(0);
    wait_for("what a failing start says", DEADLINE, async || {
        follow.stdout_lines().iter().any(|line| line == "dying")
            && follow.stderr().contains("exit code 5")
    })
    .await;
    on(&gateway, &["logs", "none"])
        .await
        .code(1)
        .says("no server `none`");
    assert!(follow.is_running());

    // Who follows does not keep the gateway from ending.
    let mut gateway = gateway;
    gateway.process.signal(rustix::process::Signal::TERM);
    assert!(gateway.process.wait(DEADLINE).await.success());
    assert!(follow.wait(DEADLINE).await.success());
}

#[tokio::test]
async fn import_merges_what_clients_have() {
    let home = Home::new();
    let text = r#"{
        // of a client
        "servers": {
            "git": {"type": "stdio", "command": "uvx", "args": ["mcp-server-git"]},
            "remote": {"url": "https://example.com/mcp"},
            "unset": {"command": "x", "env": {"KEY": "${SURELY_NOT_SET}"}},
            "a/b": {"command": "x"}
        }
    }"#;
    let file = home.write("client.json", text);
    home.run(&["add", "remote", "https://other.example.com/mcp"])
        .await
        .code(0);
    let said = home
        .run(&["import", file.to_str().expect("UTF-8")])
        .await
        .code(1);
    insta::assert_snapshot!(regular(&said.out), @r"
    NAME | RESULT | NOTE
    git | added
    unset | added, off | missing: the variable `SURELY_NOT_SET` is not set (server `unset`) (set SURELY_NOT_SET in the environment of toolwharf, or write `${SURELY_NOT_SET:-default}`)
    remote | clashing | another server has the name; it was left as it is
    a/b | refused | a server name cannot contain `/`
    ");
    let said = home
        .run(&["import", "client.json", "-o", "json"])
        .await
        .code(1);
    assert_eq!(said.json()["unchanged"], json!(["git", "unset"]));
    home.run(&["import", "cursor"])
        .await
        .code(1)
        .says(".cursor/mcp.json");
    home.write(
        ".cursor/mcp.json",
        r#"{"mcpServers": {"mine": {"command": "z"}}}"#,
    );
    home.run(&["import", "cursor"])
        .await
        .code(0)
        .says("1 added");
    home.run(&["import", "none.json"])
        .await
        .code(1)
        .says("none.json");
    run(home.dir.path(), &["import", "-"], "{")
        .await
        .code(1)
        .says("invalid JSON");

    let gateway = Setup::new().scripted("one", &[]).serve().await;
    let entry = json!({"mcpServers": {"new": {"command": scripted()}, "one": {"command": "x"}}});
    let said = run(
        gateway.folder(),
        &at(&gateway, &["import", "-"]),
        &entry.to_string(),
    )
    .await;
    said.code(0).says("1 added").says("1 clashing");
    gateway.up("new").await;
}

#[tokio::test]
async fn doctor_says_what_to_do() {
    let home = Home::new();
    let said = home.run(&["doctor", "--config", "none.json"]).await.code(1);
    assert!(said.out.contains("the file does not exist"), "{said:?}");
    home.write(
        "bad.json",
        r#"{"mcpServers": {"a": {"command": "x", "type": "pigeon"}, "b": {"args": []},
            "c": {"command": "x", "env": {"K": "${SURELY_NOT_SET}"}}}}"#,
    );
    let said = home.run(&["doctor", "--config", "bad.json"]).await.code(1);
    for part in [
        "pigeon",
        "command",
        "SURELY_NOT_SET",
        "bad.json:1:",
        "PROBLEM",
        "problems to put right",
    ] {
        assert!(said.out.contains(part), "{part}: {said:?}");
    }
    home.write(
        "paths.json",
        r#"{"mcpServers": {"a": {"command": "surely-not-there"}, "b": {"command": "/surely/not"},
            "c": {"command": "sh", "cwd": "/surely/not"}, "d": {"command": "nor-this", "disabled": true}}}"#,
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    home.write(
        "s.toml",
        &format!(
            "listen = \"127.0.0.1:{port}\"\ndata_dir = \"{}\"",
            home.path("d").display()
        ),
    );
    home.write("d/admin-token", "twh_0123456789abcdef");
    let said = home
        .run(&["doctor", "-c", "paths.json", "-c", "s.toml", "-o", "json"])
        .await
        .code(1);
    let report = said.json();
    assert_eq!(report["problems"], 5, "{said:?}");
    assert!(
        !said.out.contains("twh_") && !said.out.contains("nor-this"),
        "{said:?}"
    );
    let findings = report["findings"].as_array().expect("findings");
    assert!(
        findings
            .iter()
            .all(|f| f["level"] == "ok" || f["help"].is_string()),
        "{said:?}"
    );

    let gateway = Setup::new()
        .settings("listen = \"127.0.0.1:0\"")
        .scripted("one", &[])
        .serve()
        .await;
    gateway.up("one").await;
    let said = on(&gateway, &["doctor"]).await.code(0);
    assert!(said.out.contains("server `one` is running"), "{said:?}");
    assert!(said.out.contains("Verdict:"), "{said:?}");
    let bad = [
        "add",
        "bad",
        "--",
        &scripted(),
        "--exit-at-start",
        "--stderr-at-start",
        "no licence",
    ];
    on(&gateway, &bad).await.code(0);
    let said = on(&gateway, &["doctor"]).await.code(1);
    assert!(
        said.out.contains("exit code 5") && said.out.contains("| no licence"),
        "{said:?}"
    );
}

#[tokio::test]
async fn the_gateway_that_is_meant_is_found_and_no_other() {
    let gateway = Setup::new().scripted("one", &[]).serve().await;
    gateway.up("one").await;
    let home = Home::new();
    let data = gateway.folder().join("data");
    let data = data.to_str().expect("UTF-8");
    let file = home.write(
        "other.json",
        r#"{"mcpServers": {"mine": {"command": "x"}}}"#,
    );
    // Another configuration than the gateway's: its files are what is meant.
    let said = home
        .run(&["--config", "other.json", "ls", "--data-dir", data])
        .await
        .code(0);
    assert!(
        said.out.contains("mine") && said.err.contains("no gateway"),
        "{said:?}"
    );
    let of_gateway = gateway.servers_file();
    let of_gateway = of_gateway.to_str().expect("UTF-8");
    let said = home
        .run(&["--config", of_gateway, "ls", "--data-dir", data])
        .await
        .code(0);
    assert!(said.out.contains("running"), "{said:?}");

    let token = home.write("token", &gateway.token());
    let token = token.to_str().expect("UTF-8");
    let url = gateway.url.clone();
    let said = home
        .run(&["ls", "--url", &url, "--token-file", token])
        .await
        .code(0);
    assert!(said.out.contains("one"), "{said:?}");
    home.run(&["ls", "--url", &url])
        .await
        .code(1)
        .says("--token-file");
    home.write("wrong", "twh_wrong");
    home.run(&["ls", "--url", &url, "--token-file", "wrong"])
        .await
        .code(1)
        .says("TOOLWHARF_TOKEN");
    home.run(&["ls", "--url", "https://example.com"])
        .await
        .code(1)
        .says("http://");
    home.run(&["ls", "--url", "http://127.0.0.1:1"])
        .await
        .code(1)
        .says("cannot reach");

    // What a killed gateway left behind leads nowhere, even where somebody else listens by now.
    let thief = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    thief.set_nonblocking(true).expect("a socket");
    let there = json!({"url": format!("http://{}", thief.local_addr().expect("an address")), "pid": 4_194_304});
    home.write("stale/serve.json", &there.to_string());
    home.write("stale/admin-token", "twh_0123456789abcdef");
    let config = file.to_str().expect("UTF-8");
    let said = home
        .run(&["-c", config, "ls", "--data-dir", "stale"])
        .await
        .code(0);
    assert!(said.err.contains("no gateway"), "{said:?}");
    assert!(thief.accept().is_err(), "the token went to somebody else");
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
    on(&gateway, &["add", "--wait", "25", "time", "--", &time])
        .await
        .code(0)
        .says("connected: 2 tools");
    // It leaves a database where it runs, before it crashes.
    let sqlite =
        json!({"command": server("mcp-server-sqlite"), "cwd": gateway.folder()}).to_string();
    on(
        &gateway,
        &["add", "--wait", "25", "--json", "sqlite", &sqlite],
    )
    .await
    .code(0)
    .says("not connected");
    let zone = "timezone=Europe/Berlin";
    let said = on(
        &gateway,
        &["tools", "call", "get_current_time", "--arg", zone],
    )
    .await;
    assert!(said.code(0).out.contains("Europe/Berlin"));
}
