//! Invalid configuration produces an error with file, line and a suggestion. If the file as a whole is invalid, or the
//! settings require valid entries, nothing is started, and after a change, the running configuration stays in effect
//! until the next valid one. Otherwise, an invalid entry blocks only its server (U11).

mod common;

use std::time::Duration;

use common::{
    Setup, holds, scripted,
    shell::{json_of, on},
    tools,
};
use serde_json::json;
use testkit::{DEADLINE, Peer, wait_for};

/// One invalid entry makes the whole configuration invalid.
const STRICT: &str = "require_valid_entries = true\n";

/// Name, text of the file, line of the mistake, and expected parts of the message.
const MISTAKES: &[(&str, &str, usize, &[&str])] = &[
    (
        "unknown transport",
        "{\"mcpServers\": {\n  \"x\": {\n    \"type\": \"websocket\", \"url\": \"http://localhost/\"\n  }\n}}",
        3,
        &["websocket", "stdio", "http", "sse"],
    ),
    (
        "missing command",
        "{\"mcpServers\": {\n  \"x\": {\n    \"args\": [\"a\"]\n  }\n}}",
        2,
        &["`x`", "command"],
    ),
    (
        "missing command of stdio",
        "{\"mcpServers\": {\n  \"x\": {\"type\": \"stdio\"}\n}}",
        2,
        &["`x`", "no `command`", "add"],
    ),
    (
        "misspelt command",
        "{\"mcpServers\": {\n  \"x\": {\n    \"comand\": \"npx\"\n  }\n}}",
        3,
        &["`command`", "`comand`"],
    ),
    (
        "duplicate server name",
        "{\"mcpServers\": {\n  \"x\": {\"command\": \"a\"},\n  \"x\": {\"command\": \"b\"}\n}}",
        3,
        &["`x`", "rename or remove"],
    ),
    (
        "unset variable",
        "{\"mcpServers\": {\n  \"x\": {\n    \"command\": \"a\",\n    \"env\": {\"KEY\": \"${SURELY_NOT_SET_ANYWHERE}\"}\n  }\n}}",
        4,
        &["SURELY_NOT_SET_ANYWHERE", ":-"],
    ),
    (
        "invalid JSON",
        "{\"mcpServers\": {\n  \"x\": {\n    \"command\": \"a\"\n    \"args\": []\n  }\n}}",
        3,
        &["JSON"],
    ),
    (
        "no object",
        "{\"mcpServers\": {\n  \"x\": \"npx\"\n}}",
        2,
        &["`x`", "not an object"],
    ),
    (
        "arguments as a string",
        "{\"mcpServers\": {\n  \"x\": {\"command\": \"a\",\n    \"args\": \"-y b\"}\n}}",
        3,
        &["args", "array"],
    ),
    (
        "a bad URL",
        "{\"mcpServers\": {\n  \"x\": {\n    \"url\": \"localhost:80/mcp\"\n  }\n}}",
        3,
        &["`x`", "http"],
    ),
    (
        "a bad concurrency",
        "{\"mcpServers\": {\n  \"x\": {\"command\": \"a\", \"toolwharf\": {\n    \"maxConcurrency\": 0\n  }}\n}}",
        3,
        &["maxConcurrency", "1 to 10000"],
    ),
    (
        "an unknown option",
        "{\"mcpServers\": {\n  \"x\": {\"command\": \"a\", \"toolwharf\": {\n    \"maxConcurency\": 2\n  }}\n}}",
        3,
        &["did you mean `maxConcurrency`"],
    ),
];

#[tokio::test]
async fn each_mistake_is_refused_with_its_line_and_remedy() {
    for (what, text, line, parts) in MISTAKES {
        let setup = Setup::new();
        let marker = setup.folder().join("started");
        let setup = setup
            .settings(STRICT)
            .server("good", json!({"command": "touch", "args": [marker]}));
        let file = setup.folder().join("mistake.json");
        std::fs::write(&file, text).unwrap();
        let said = setup.config(&file).refused().await;
        eprintln!("{what}");
        holds(&said, &[&format!("mistake.json:{line}:"), "help:"]);
        holds(&said, parts);
        assert!(!marker.exists(), "{what}: a server was started");
    }
}

#[tokio::test]
async fn mistakes_in_the_settings_are_refused_too() {
    for (text, line, parts) in [
        ("naming = \"prefix\"\n", 1, ["naming", "always-prefix"]),
        ("\nstart = \"eager\"\n", 2, ["start", "parallel"]),
        (
            "[limits]\nqueue_length = 5\n",
            2,
            ["queue_length", "queue_len"],
        ),
        (
            "[limits]\n\nstop_grace = \"soon\"\n",
            3,
            ["stop_grace", "30s"],
        ),
        ("listen = \n", 1, ["TOML", "key = value"]),
        (
            "[projects.p]\nserver = [\"a\"]\n",
            2,
            ["projects.*.server", "servers"],
        ),
    ] {
        let said = Setup::new().settings(text).refused().await;
        eprintln!("{text}");
        holds(&said, &[&format!("toolwharf.toml:{line}:")]);
        holds(&said, &parts);
    }
    // Several mistakes in several files are all reported at once.
    let said = Setup::new()
        .settings("naming = \"prefix\"\n")
        .server("x", json!({"command": ""}))
        .server("y", json!({"url": "ftp://example.com"}))
        .refused()
        .await;
    let parts = ["`naming`", "`x`", "`y`", "mcp.json:", "toolwharf.toml:1:"];
    holds(&said, &parts);
}

#[tokio::test]
async fn a_file_that_is_not_there_or_not_readable() {
    let setup = Setup::new();
    let missing = setup.folder().join("missing.json");
    let said = setup.config(&missing).refused().await;
    holds(&said, &["missing.json", "does not exist"]);
    let setup = Setup::new();
    let binary = setup.folder().join("binary.json");
    std::fs::write(&binary, b"{\"mcpServers\": {\n\xff\xfe}}").unwrap();
    let said = setup.config(&binary).refused().await;
    holds(&said, &["binary.json", "UTF-8"]);
}

/// Each mistake in the files of a running gateway is reported and changes nothing, and the next valid file is loaded.
#[tokio::test]
async fn on_a_change_the_running_configuration_stays() {
    let setup = Setup::new().settings(STRICT);
    let setup = setup.scripted("good", &["--tools", "1"]);
    let mut gateway = setup.connected().await;
    let mut peer = gateway.legacy().await;
    let pid = pid_of(&mut peer, "pid").await;
    let listed = tools(&mut peer).await;
    let file = gateway.servers_file();
    for (what, text, line, _) in MISTAKES {
        let before = gateway.process.stderr().len();
        // Each text differs in length or time from the previous one; otherwise the change would not be noticed.
        gateway.replace(&file, text);
        wait_for(&format!("a log line on {what}"), DEADLINE, async || {
            let stderr = gateway.process.stderr();
            stderr[before.min(stderr.len())..].contains(&format!("mcp.json:{line}:"))
        })
        .await;
        assert_eq!(tools(&mut peer).await, listed, "{what}");
        let now = pid_of(&mut peer, "pid").await;
        assert_eq!(now, pid, "{what}: the server was restarted");
    }
    // A mistake in the settings file is handled in the same way.
    gateway.replace(&gateway.settings_file(), "naming = \"no-such\"\n");
    gateway.logged("invalid `naming`").await;
    assert_eq!(pid_of(&mut peer, "pid").await, pid);
    // The servers file may be missing for a moment.
    std::fs::remove_file(&file).unwrap();
    gateway.logged("does not exist").await;
    assert_eq!(pid_of(&mut peer, "pid").await, pid);
    gateway.replace(&gateway.settings_file(), "naming = \"always-prefix\"\n");
    let second = scripted("second", &["--no-builtin", "--tools", "1"]);
    gateway.edit(|servers| {
        servers.insert("second".to_owned(), second);
    });
    let (what, limit) = ("the good configuration", Duration::from_secs(10));
    wait_for(what, limit, async || {
        let listed = tools(&mut peer).await;
        listed.iter().any(|tool| tool == "second__tool_0")
    })
    .await;
    let now = pid_of(&mut peer, "good__pid").await;
    assert_eq!(now, pid, "an unchanged server was restarted");
}

/// An invalid entry blocks its server, at the start and after a change. All others run. `ls`, `get` and `doctor` give the
/// reason.
#[tokio::test]
async fn u11_one_bad_entry_blocks_only_its_server() {
    let unset = |name: &str| {
        let mut entry = scripted(name, &["--no-builtin", "--tools", "1"]);
        entry["env"] = json!({"KEY": "${SURELY_NOT_SET_ANYWHERE}"});
        entry
    };
    let tools_of = |name: &str| scripted(name, &["--no-builtin", "--tools", "1"]);
    let mut gateway = Setup::new()
        .settings("naming = \"always-prefix\"\n")
        .server("a", scripted("a", &["--tools", "1"]))
        .server("bad", unset("bad"))
        .server(
            "gallery.example/odd",
            json!({"type": "pigeon", "url": "http://localhost/"}),
        )
        .server("z", tools_of("z"))
        .serve()
        .await;
    gateway.up("a").await;
    gateway.up("z").await;
    let mut peer = gateway.legacy().await;
    let pid = pid_of(&mut peer, "a__pid").await;
    let listed = json_of(&gateway, "ls").await;
    let servers = listed["servers"].as_array().expect("servers");
    for (name, part) in [("bad", "SURELY_NOT_SET_ANYWHERE"), ("odd", "pigeon")] {
        let one = servers.iter().find(|one| one["name"] == name);
        let one = one.unwrap_or_else(|| panic!("{name}: {listed:#}"));
        assert_eq!(one["status"], "blocked", "{one:#}");
        let why = one["reason"].as_str().unwrap_or_default();
        holds(why, &[part, "mcp.json:"]);
    }
    let doctor = on(&gateway, "doctor").await.code(1).out;
    holds(
        &doctor,
        &["SURELY_NOT_SET_ANYWHERE", "pigeon", "2 problems"],
    );

    // A running server whose entry becomes bad is stopped and blocked; one that is repaired is started.
    gateway.edit(|servers| {
        servers.insert("z".to_owned(), unset("z"));
        servers.insert("bad".to_owned(), tools_of("bad"));
    });
    gateway.up("bad").await;
    wait_for("z to be blocked", DEADLINE, async || {
        let listed = json_of(&gateway, "get z").await;
        listed["status"] == "blocked"
    })
    .await;
    assert_eq!(pid_of(&mut peer, "a__pid").await, pid);

    // A file that does not parse, or that has a name twice, changes nothing.
    let file = gateway.servers_file();
    for text in [
        "{",
        "{\"mcpServers\": {\"a\": {\"command\": \"x\"}, \"a\": {}}}",
    ] {
        let before = gateway.process.stderr().len();
        gateway.replace(&file, text);
        wait_for("an error", DEADLINE, async || {
            gateway.process.stderr()[before..].contains("keeping the old one")
        })
        .await;
        assert_eq!(pid_of(&mut peer, "a__pid").await, pid);
    }
}

/// Returns the process id of a server, from its tool `pid`.
async fn pid_of(peer: &mut Peer, tool: &str) -> String {
    peer.tool(tool, json!({})).await.text().to_owned()
}
