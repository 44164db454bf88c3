//! Commands that need no gateway: the command line itself and the files that it edits.

use serde_json::{Value, json};

use super::support::{read, scripted};
use crate::common::{
    Setup, holds,
    shell::{Home, on_with},
};

#[tokio::test]
async fn without_arguments_it_explains_itself() {
    let home = Home::new();
    let said = home.run("").await.code(2);
    for verb in ["serve", "stdio", "add", "import", "doctor", "completions"] {
        assert!(said.err.contains(verb), "{said:?}");
    }
    home.transcript("2$ nonsense # nonsense\n2$ rm a/b # `/`")
        .await;
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let text = format!("$ completions {shell}\n| toolwharf");
        home.transcript(&text).await;
    }
}

#[tokio::test]
async fn each_command_has_a_manual_page() {
    let home = Home::new();
    let folder = home.path("share/man1");
    let line = format!("man {}", folder.display());
    home.run(&line).await.code(0);
    let page = |name: &str| std::fs::read_to_string(folder.join(name)).expect(name);
    for (name, text) in [
        ("toolwharf.1", "toolwharf"),
        ("toolwharf-serve.1", "listen"),
        (
            "toolwharf-tools-call.1",
            "toolwharf tools call get_current_time",
        ),
    ] {
        assert!(page(name).contains(text), "{}", page(name));
    }
    assert!(!folder.join("toolwharf-sleep.1").exists());
    home.transcript("1$ man /dev/null/man1 # name a folder\n1$ health # no gateway is running\n$ sleep 0\n2$ sleep 601 # 601")
        .await;
}

#[tokio::test]
async fn without_a_gateway_the_files_are_edited() {
    let home = Home::new();
    let scripted = scripted();
    let text = format!(
        "
        $ ls # no servers yet
        $ add first -- {scripted} --name x # no gateway is running: added `first`
        $ add -e KEY=sesame second uvx -y
        $ add third --header 'X-Key: sesame' https://user:sesame@example.com/mcp?key=sesame
        $ add --json fourth '{{\"command\": \"x\", \"future\": {{\"a\": 1}}}}'
        1$ add second uvx # --force
        $ add --force fourth y
        $ disable second
        $ disable first/echo
        "
    );
    home.transcript(&text).await;

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
    home.transcript(
        "
        $ get third
        | X-Key
        ! sesame
        $ get second
        ! sesame
        $ ls
        ! sesame
        $ ls -o json
        ! sesame
        1$ get frist # did you mean `first`?
        $ enable second
        $ enable first/echo
        $ rm third
        1$ rm third # no server `third`
        1$ disable third # no server `third`
        1$ tools ls # toolwharf serve
        1$ logs first # toolwharf serve
        ",
    )
    .await;
    let written: Value = serde_json::from_str(&read(&home.servers())).expect("JSON");
    let servers = written["mcpServers"].as_object().expect("servers");
    assert!(
        servers.keys().eq(["first", "second", "fourth"]),
        "{servers:?}"
    );
    assert_eq!(servers["fourth"], json!({"command": "y"}));
}

/// Normalizes a table by removing its column widths.
fn regular(table: &str) -> String {
    let line = |line: &str| {
        let cells = line.split("  ").map(str::trim);
        let cells: Vec<&str> = cells.filter(|cell| !cell.is_empty()).collect();
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
    let run = async |text: &str| {
        let text = text.replace("$ ", &format!("$ --config {config} "));
        home.transcript(&text).await;
    };
    for step in [
        "1$ add old z # already",
        "2$ add a/b z # a/b",
        "2$ add --json new { # JSON",
        "1$ add --json new {} # command",
        r#"1$ add --json new {"command":"x","type":"pigeon"} # pigeon"#,
        r#"1$ add --json new {"command":"x","timeout":"soon"} # timeout"#,
        "2$ add -e sesame new z # KEY=VALUE",
        "1$ rm none # none",
        "1$ enable none # none",
        "1$ disable none/x # none",
    ] {
        run(&format!("{step}\n! sesame")).await;
        assert_eq!(read(&file), COMMENTED, "{step}");
    }
    run("$ add new z\n$ disable other\n$ disable old/tool\n$ rm new").await;
    let kept = [
        "// Mine, do not touch.",
        "// the good one",
        "/* and another */",
    ];
    holds(&read(&file), &kept);
    holds(&read(&file), &["\"mine\": 1", "\"theirs\": true"]);

    std::fs::write(&file, "{ broken").expect("a file");
    run("1$ add new z # invalid JSON\n1$ ls # servers.jsonc:1:").await;
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
            "a/b": {"command": "x"},
            "": {"command": "x"}
        }
    }"#;
    home.write("client.json", text);
    home.transcript("$ add remote https://other.example.com/mcp")
        .await;
    let said = home.run("import client.json").await.code(1);
    insta::assert_snapshot!(regular(&said.out), @r"
    NAME | RESULT | NOTE
    git | added
    unset | added, off | missing: the variable `SURELY_NOT_SET` is not set (server `unset`) (run `toolwharf secret set SURELY_NOT_SET`, set SURELY_NOT_SET in the environment of `toolwharf serve` and restart that, or write `${SURELY_NOT_SET:-default}`)
    b | added
    remote | clashing | another server has this name and was not changed
    refused | a name cannot be empty
    ");
    let said = home.run("import client.json -o json").await.code(1);
    assert_eq!(said.json()["unchanged"], json!(["git", "unset", "b"]));
    let text = "1$ import cursor # .cursor/mcp.json\n1$ import none.json # none.json";
    home.transcript(text).await;
    let entry = r#"{"mcpServers": {"mine": {"command": "z"}}}"#;
    home.write(".cursor/mcp.json", entry);
    home.transcript("$ import cursor # 1 added").await;
    let said = home.run_with("import -", "{").await;
    said.code(1).says("invalid JSON");

    let gateway = Setup::new().scripted("one", &[]).serve().await;
    let entry = json!({"mcpServers": {"new": {"command": scripted()}, "one": {"command": "x"}}});
    let said = on_with(&gateway, "import -", &entry.to_string()).await;
    said.code(0).says("1 added").says("1 clashing");
    gateway.up("new").await;
}
