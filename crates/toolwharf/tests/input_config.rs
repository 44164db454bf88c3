//! Invalid configuration produces an error with file, line and a suggestion. At startup, nothing is started. After a
//! change, the running configuration stays in effect until the next valid one.

mod common;

use std::time::Duration;

use common::{Setup, scripted, tools};
use serde_json::json;
use testkit::{DEADLINE, wait_for};

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
        let setup = setup.server("good", json!({"command": "touch", "args": [marker]}));
        let file = setup.folder().join("mistake.json");
        std::fs::write(&file, text).unwrap();
        let said = setup.config(&file).refused().await;
        assert!(
            said.contains(&format!("mistake.json:{line}:")),
            "{what}: {said}"
        );
        for part in *parts {
            assert!(said.contains(part), "{what}: {part} is missing: {said}");
        }
        assert!(said.contains("help:"), "{what}: no remedy: {said}");
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
        assert!(
            said.contains(&format!("toolwharf.toml:{line}:")),
            "{text}: {said}"
        );
        for part in parts {
            assert!(said.contains(part), "{text}: {part} is missing: {said}");
        }
    }
    // Several mistakes in several files are all reported at once.
    let setup = Setup::new()
        .settings("naming = \"prefix\"\n")
        .server("x", json!({"command": ""}));
    let said = setup
        .server("y", json!({"url": "ftp://example.com"}))
        .refused()
        .await;
    for part in ["`naming`", "`x`", "`y`", "mcp.json:", "toolwharf.toml:1:"] {
        assert!(said.contains(part), "{part} is missing: {said}");
    }
}

#[tokio::test]
async fn a_file_that_is_not_there_or_not_readable() {
    let setup = Setup::new();
    let missing = setup.folder().join("missing.json");
    let said = setup.config(&missing).refused().await;
    assert!(
        said.contains("missing.json") && said.contains("does not exist"),
        "{said}"
    );
    let setup = Setup::new();
    let binary = setup.folder().join("binary.json");
    std::fs::write(&binary, b"{\"mcpServers\": {\n\xff\xfe}}").unwrap();
    let said = setup.config(&binary).refused().await;
    assert!(
        said.contains("binary.json") && said.contains("UTF-8"),
        "{said}"
    );
}

/// Each mistake in the files of a running gateway is reported and changes nothing, and the next valid file is loaded.
#[tokio::test]
async fn on_a_change_the_running_configuration_stays() {
    let mut gateway = Setup::new()
        .server("good", scripted("good", &["--tools", "1"]))
        .connected()
        .await;
    let mut peer = gateway.legacy().await;
    let pid = peer.tool("pid", json!({})).await.text().to_owned();
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
        assert_eq!(
            peer.tool("pid", json!({})).await.text(),
            pid,
            "{what}: it was restarted"
        );
    }
    // The same for the settings. The file may disappear for a moment.
    gateway.replace(&gateway.settings_file(), "naming = \"no-such\"\n");
    gateway.logged("bad `naming`").await;
    assert_eq!(peer.tool("pid", json!({})).await.text(), pid);
    std::fs::remove_file(&file).unwrap();
    gateway.logged("does not exist").await;
    assert_eq!(peer.tool("pid", json!({})).await.text(), pid);
    gateway.replace(&gateway.settings_file(), "naming = \"always-prefix\"\n");
    gateway.edit(|servers| {
        servers.insert(
            "second".to_owned(),
            scripted("second", &["--no-builtin", "--tools", "1"]),
        );
    });
    wait_for(
        "the good configuration",
        Duration::from_secs(10),
        async || {
            tools(&mut peer)
                .await
                .contains(&"second__tool_0".to_owned())
        },
    )
    .await;
    assert_eq!(
        peer.tool("good__pid", json!({})).await.text(),
        pid,
        "an unchanged server was restarted"
    );
}
