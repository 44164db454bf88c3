//! Commands that need no gateway: the command line itself and the files that it edits.

use serde_json::{Value, json};

use super::support::{read, scripted};
use crate::common::{
    Setup,
    shell::{Home, on_with},
};

#[tokio::test]
async fn without_arguments_it_explains_itself() {
    let home = Home::new();
    let said = home.run("").await.code(2);
    for verb in ["serve", "stdio", "add", "import", "doctor", "completions"] {
        assert!(said.err.contains(verb), "{said:?}");
    }
    home.run("nonsense").await.code(2).says("nonsense");
    home.run("rm a/b").await.code(2).says("`/`");
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let said = home.run(&format!("completions {shell}")).await.code(0);
        assert!(said.out.contains("toolwharf"), "{shell}");
    }
}

#[tokio::test]
async fn without_a_gateway_the_files_are_edited() {
    let home = Home::new();
    let scripted = scripted();
    home.run("ls").await.code(0).says("no servers yet");
    home.run(&format!("add first -- {scripted} --name x"))
        .await
        .code(0)
        .says("no gateway is running: added `first`");
    home.run("add -e KEY=sesame second uvx -y").await.code(0);
    let url = "https://user:sesame@example.com/mcp?key=sesame";
    home.run(&format!("add third --header 'X-Key: sesame' {url}"))
        .await
        .code(0);
    let entry = r#"{"command": "x", "future": {"a": 1}}"#;
    home.run(&format!("add --json fourth '{entry}'"))
        .await
        .code(0);
    home.run("add second uvx").await.code(1).says("--force");
    home.run("add --force fourth y").await.code(0);
    home.run("disable second").await.code(0);
    home.run("disable first/echo").await.code(0);

    let said = home.run("ls").await.code(0);
    let table = said.out.replace(&scripted, "[scripted]");
    insta::assert_snapshot!(regular(&table), @r"
    NAME | STATE | TRANSPORT | SANDBOX | TARGET | TOOLS | CALLS | ERRORS | NOTE
    first | not running | stdio | - | [scripted] | 0 | 0 | 0
    second | disabled | stdio | - | uvx | 0 | 0 | 0
    third | not running | http | - | https://example.com/mcp?… | 0 | 0 | 0
    fourth | not running | stdio | - | y | 0 | 0 | 0
    ");
    let rows = home.run("ls -o json").await.code(0).json();
    assert_eq!(rows["servers"][2]["transport"], "http");
    assert_eq!(rows["servers"][1]["enabled"], false);
    let first = home.run("get first -o json").await.code(0);
    assert_eq!(first.json()["disabled_tools"], json!(["echo"]));
    let third = home.run("get third").await.code(0);
    assert!(third.out.contains("X-Key"), "{third:?}");
    for verb in ["ls", "ls -o json", "get second", "get third"] {
        let said = home.run(verb).await;
        assert!(!format!("{said:?}").contains("sesame"), "{said:?}");
    }

    home.transcript(
        "
        1$ get frist # did you mean `first`?
        $ enable second
        $ enable first/echo
        $ rm third
        1$ rm third # no server `third`
        1$ disable third # no server `third`
        ",
    )
    .await;
    let written: Value = serde_json::from_str(&read(&home.servers())).expect("JSON");
    let names: Vec<&String> = written["mcpServers"]
        .as_object()
        .expect("servers")
        .keys()
        .collect();
    assert_eq!(names, ["first", "second", "fourth"]);
    assert_eq!(written["mcpServers"]["fourth"], json!({"command": "y"}));
    home.run("tools ls").await.code(1).says("toolwharf serve");
    home.run("logs first").await.code(1).says("toolwharf serve");
}

/// Normalizes a table by removing its column widths.
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
    let run = async |line: &str| home.run(&format!("--config {config} {line}")).await;
    for (line, code, word) in [
        ("add old z", 1, "already"),
        ("add a/b z", 2, "a/b"),
        ("add new z ${SURELY_NOT_SET}", 1, "SURELY_NOT_SET"),
        ("add --json new {", 2, "JSON"),
        ("add --json new {}", 1, "command"),
        (
            r#"add --json new {"command":"x","type":"pigeon"}"#,
            1,
            "pigeon",
        ),
        (
            r#"add --json new {"command":"x","timeout":"soon"}"#,
            1,
            "timeout",
        ),
        ("add -e sesame new z", 2, "KEY=VALUE"),
        ("rm none", 1, "none"),
        ("enable none", 1, "none"),
        ("disable none/x", 1, "none"),
    ] {
        let said = run(line).await.code(code).says(word);
        assert!(!said.err.contains("sesame"), "{said:?}");
        assert_eq!(read(&file), COMMENTED, "{line}");
    }
    run("add new z").await.code(0);
    run("disable other").await.code(0);
    run("disable old/tool").await.code(0);
    run("rm new").await.code(0);
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
    run("add new z").await.code(1).says("invalid JSON");
    run("ls").await.code(1).says("servers.jsonc:1:");
    assert_eq!(read(&file), "{ broken");
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
    home.write("client.json", text);
    home.run("add remote https://other.example.com/mcp")
        .await
        .code(0);
    let said = home.run("import client.json").await.code(1);
    insta::assert_snapshot!(regular(&said.out), @r"
    NAME | RESULT | NOTE
    git | added
    unset | added, off | missing: the variable `SURELY_NOT_SET` is not set (server `unset`) (set SURELY_NOT_SET in the environment of toolwharf, or write `${SURELY_NOT_SET:-default}`)
    remote | clashing | another server has this name and was not changed
    a/b | refused | a server name cannot contain `/`
    ");
    let said = home.run("import client.json -o json").await.code(1);
    assert_eq!(said.json()["unchanged"], json!(["git", "unset"]));
    home.run("import cursor")
        .await
        .code(1)
        .says(".cursor/mcp.json");
    home.write(
        ".cursor/mcp.json",
        r#"{"mcpServers": {"mine": {"command": "z"}}}"#,
    );
    home.run("import cursor").await.code(0).says("1 added");
    home.run("import none.json").await.code(1).says("none.json");
    home.run_with("import -", "{")
        .await
        .code(1)
        .says("invalid JSON");

    let gateway = Setup::new().scripted("one", &[]).serve().await;
    let entry = json!({"mcpServers": {"new": {"command": scripted()}, "one": {"command": "x"}}});
    let said = on_with(&gateway, "import -", &entry.to_string()).await;
    said.code(0).says("1 added").says("1 clashing");
    gateway.up("new").await;
}
