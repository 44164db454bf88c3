//! Imports from other clients: each file is in the format that its client documents, and nothing is dropped without a
//! note.

mod common;

use std::fs;

use common::{checks, shell::Home};
use serde_json::{Map, Value, json};

/// Imports, which must succeed. Returns the report.
async fn import(home: &Home, from: &str) -> Value {
    let line = format!("import {from} -o json");
    let said = home.run(&line).await.code(0);
    // Importing again changes nothing.
    let servers = imported(home);
    let again = home.run(&line).await.code(0);
    assert_eq!(again.json()["added"], json!([]), "{again:?}");
    assert_eq!(again.json()["clashes"], json!([]), "{again:?}");
    assert_eq!(imported(home), servers);
    // Toolwharf accepts the file that the import wrote.
    home.run("ls").await.code(0);
    said.json()
}

/// Imports a client's own file in a new home directory. Returns the report and the servers.
async fn import_of(client: &str, file: &str, text: &str) -> (Home, Value, Map<String, Value>) {
    let home = Home::new();
    home.write(file, text);
    let report = import(&home, client).await;
    let servers = imported(&home);
    (home, report, servers)
}

fn imported(home: &Home) -> Map<String, Value> {
    let text = fs::read_to_string(home.servers()).expect("a file");
    let value: Value = serde_json::from_str(&text).expect("JSON");
    value["mcpServers"].as_object().expect("servers").clone()
}

/// Asserts that the report contains all of `parts` about the server.
#[track_caller]
fn says(report: &Value, list: &str, server: &str, parts: &[&str]) {
    let all = report[list].as_array().expect("an array");
    let mut about = all.iter().filter(|one| one["name"] == server);
    let found = about.any(|one| {
        let why = one["why"].as_str().unwrap_or_default();
        parts.iter().all(|part| why.contains(part))
    });
    assert!(found, "{list} of {server}, {parts:?}: {report:#}");
}

fn under(home: &Home, folder: &str) -> String {
    home.path(folder).display().to_string()
}

#[tokio::test]
async fn zed() {
    let text = include_str!("import_fixtures/zed.json");
    let (home, report, servers) = import_of("zed", ".config/zed/settings.json", text).await;
    assert_eq!(report["added"], json!(["files", "older", "remote", "off"]));
    says(&report, "skipped", "postgres", &["extension"]);
    assert_eq!(servers["older"]["command"]["path"], "uvx");
    let off = home.run("get off -o json").await.code(0).json();
    assert_eq!(off["enabled"], false);
    let older = home.run("get older -o json").await.code(0).json();
    assert_eq!(older["target"], "uvx older-server", "{older}");
}

#[tokio::test]
async fn windsurf() {
    let text = include_str!("import_fixtures/windsurf.json");
    let file = ".codeium/windsurf/mcp_config.json";
    let (_home, report, servers) = import_of("windsurf", file, text).await;
    assert_eq!(report["added"], json!(["issues", "remote", "keyed", "off"]));
    // Missing values are reported, and the server is added but disabled.
    says(&report, "off", "issues", &["IMPORT_TEST_UNSET", "not set"]);
    says(&report, "off", "keyed", &["known form"]);
    assert_eq!(servers["issues"]["disabled"], true);
    assert_eq!(servers["issues"]["disabledTools"], json!(["delete_issue"]));
    assert_eq!(servers["remote"].get("disabled"), None);
}

#[tokio::test]
async fn gemini() {
    let text = include_str!("import_fixtures/gemini.json");
    let (home, report, servers) = import_of("gemini", ".gemini/settings.json", text).await;
    let added = json!(["local", "chosen", "unset", "unwanted"]);
    assert_eq!(report["added"], added);
    let local = &servers["local"];
    assert_eq!(local["args"], json!(["-m", "server", "--home", "${HOME}"]));
    let env = json!({"HOME_DIR": "${HOME}/x", "PRICE": "5$"});
    assert_eq!(local["env"], env);
    // The path is relative to the directory in which Gemini CLI is started, which is unknown.
    says(&report, "off", "local", &["`cwd` ./servers"]);
    says(&report, "notes", "local", &["`trust` is not imported"]);
    assert!(servers["chosen"]["enabledTools"].is_array(), "{servers:?}");
    assert_eq!(servers["chosen"]["excludeTools"], json!(["write"]));
    says(&report, "off", "unset", &["IMPORT_TEST_UNSET"]);
    assert_eq!(servers["unwanted"]["disabled"], true);
    says(
        &report,
        "notes",
        "unwanted",
        &["the file excludes this server"],
    );
    // For a project's file, the directory is known.
    let file = home.write("app/.gemini/settings.json", text);
    fs::remove_file(home.servers()).expect("it is there");
    import(&home, file.to_str().expect("UTF-8")).await;
    assert_eq!(imported(&home)["local"]["cwd"], under(&home, "app/servers"));
}

#[tokio::test]
async fn lmstudio() {
    let text = include_str!("import_fixtures/lmstudio.json");
    let (_home, report, servers) = import_of("lmstudio", ".lmstudio/mcp.json", text).await;
    assert_eq!(report["added"], json!(["hub", "local", "open"]));
    says(&report, "off", "open", &["${workspaceFolder}"]);
    assert_eq!(servers["local"]["args"][2], "${userHome}/data");
}

#[tokio::test]
async fn codex() {
    let text = include_str!("import_fixtures/codex.toml");
    let (home, report, servers) = import_of("codex", ".codex/config.toml", text).await;
    let docs = json!({
        "command": "npx",
        "args": ["-y", "@example/docs", "$${literal}"],
        "env": {"MODE": "a", "HOME": "${HOME}"},
        "disabledTools": ["write"],
        "enabledTools": ["search"],
        "toolwharf": {"startTimeoutMs": 20000, "callTimeoutMs": 45500},
    });
    assert_eq!(servers["docs"], docs);
    let headers = json!({"X-Region": "eu", "X-Home": "${HOME}", "Authorization": "Bearer ${IMPORT_TEST_UNSET}"});
    assert_eq!(servers["remote"]["headers"], headers);
    says(&report, "off", "remote", &["IMPORT_TEST_UNSET"]);
    assert_eq!(servers["off"]["disabled"], true);
    says(&report, "notes", "off", &["`scopes` is not imported"]);
    home.write("broken.toml", "[mcp_servers.x]\ncommand = \"sesame\n");
    let said = home.run("import broken.toml").await;
    let said = said.code(1).says("invalid TOML").says("broken.toml:2");
    checks::lacks(format!("{said:?}"), &["sesame"]);
}

#[tokio::test]
async fn opencode() {
    let place = ".config/opencode/opencode.json";
    let text = include_str!("import_fixtures/opencode.json");
    let (_home, report, servers) = import_of("opencode", place, text).await;
    let local = json!({"command": "bun", "args": ["x", "my-server"], "env": {"HOME_DIR": "${HOME}"}, "enabled": true});
    assert_eq!(servers["local"], local);
    says(&report, "notes", "local", &["`timeout` is not imported"]);
    says(&report, "off", "remote", &["IMPORT_TEST_UNSET"]);
    says(&report, "notes", "remote", &["`oauth` is not imported"]);
    says(&report, "off", "keyed", &["~/.secret"]);
    assert_eq!(servers["off"]["enabled"], false);

    let text = include_str!("import_fixtures/opencode-2.json");
    let (_home, report, servers) = import_of("opencode", place, text).await;
    assert_eq!(report["added"], json!(["local", "off"]));
    let local = json!({"command": "npx", "args": ["-y", "my-server"], "env": {"A": "b"}});
    assert_eq!(servers["local"], local);
    assert_eq!(servers["off"]["disabled"], true);
}

#[tokio::test]
async fn claude_code_with_the_servers_of_projects() {
    let text = include_str!("import_fixtures/claude-code.json");
    let (_home, report, servers) = import_of("claude-code", ".claude.json", text).await;
    assert_eq!(report["added"], json!(["files", "db", "files-shop", "api"]));
    assert_eq!(servers["db"]["cwd"], "/srv/shop");
    assert_eq!(servers["db"]["disabled"], true);
    assert_eq!(servers["files-shop"]["args"], json!(["other-files"]));
    assert_eq!(servers["files-shop"]["cwd"], "/srv/shop");
    says(
        &report,
        "notes",
        "files-shop",
        &["its name in Claude Code is `files`"],
    );
    says(&report, "notes", "api", &["/srv/site"]);
    assert_eq!(servers["api"].get("cwd"), None);
}

#[tokio::test]
async fn a_file_of_a_workspace_keeps_its_folder() {
    let home = Home::new();
    let text = include_str!("import_fixtures/vscode.json");
    let file = home.write("app/.vscode/mcp.json", text);
    let report = import(&home, file.to_str().expect("UTF-8")).await;
    let servers = imported(&home);
    says(&report, "off", "asked", &["toolwharf secret set API_KEY"]);
    says(&report, "notes", "asked", &["${input:api-key}"]);
    assert_eq!(servers["asked"]["env"], json!({"KEY": "${API_KEY}"}));
    assert_eq!(servers["asked"]["disabled"], true);
    let here = &servers["here"];
    assert_eq!(here["args"], json!(["--root", under(&home, "app/data")]));
    assert_eq!(here["cwd"], under(&home, "app/tools"));
    assert_eq!(servers["near"]["cwd"], under(&home, "app/sub"));
    assert_eq!(servers["below"]["cwd"], under(&home, "app"));
    says(&report, "notes", "near", &["`cwd` sub is"]);
    says(&report, "off", "file", &["envFile"]);
    let not_imported = "`alwaysAllow` is not imported";
    for parts in [&["plain text `$TOKEN`", "${TOKEN}"][..], &[not_imported]] {
        says(&report, "notes", "plain", parts);
    }
    // A relative path means the same as the absolute one.
    let said = home.run("import app/.vscode/mcp.json -o json").await;
    let unchanged = said.code(0).json()["unchanged"].as_array().map(Vec::len);
    assert_eq!(unchanged, Some(6));
    // The text output also lists the keys that are not imported.
    fs::remove_file(home.servers()).expect("it is there");
    let said = home.run("import app/.vscode/mcp.json").await.code(0);
    checks::contains(said.out, &[not_imported]);
}

/// Goose keeps the values of some variables in the keyring, from which nothing is read.
#[tokio::test]
async fn goose() {
    let text = "extensions:\n  search:\n    type: stdio\n    enabled: true\n    cmd: uvx\n    args: [mcp-server-search]\n    \
                envs: {REGION: eu}\n    env_keys: [SURELY_NOT_SET]\n";
    let (_, report, servers) = import_of("goose", ".config/goose/config.yaml", text).await;
    let env = json!({"REGION": "eu", "SURELY_NOT_SET": "${SURELY_NOT_SET}"});
    assert_eq!(servers["search"]["env"], env);
    let set = "toolwharf secret set SURELY_NOT_SET";
    says(&report, "off", "search", &[set]);
}
