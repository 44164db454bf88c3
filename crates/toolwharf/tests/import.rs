//! Imports from other clients: each file is in the format that its client documents, and nothing is dropped without a
//! note.

mod common;

use std::fs;

use common::shell::Home;
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
    // The written file can be served.
    home.run("ls").await.code(0);
    said.json()
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
    let home = Home::new();
    home.write(
        ".config/zed/settings.json",
        include_str!("import_fixtures/zed.json"),
    );
    let report = import(&home, "zed").await;
    assert_eq!(report["added"], json!(["files", "older", "remote", "off"]));
    says(&report, "skipped", "postgres", &["extension"]);
    let servers = imported(&home);
    assert_eq!(servers["older"]["command"]["path"], "uvx");
    let off = home.run("get off -o json").await.code(0).json();
    assert_eq!(off["enabled"], false);
    let older = home.run("get older -o json").await.code(0).json();
    assert_eq!(older["target"], "uvx", "{older}");
}

#[tokio::test]
async fn windsurf() {
    let home = Home::new();
    let text = include_str!("import_fixtures/windsurf.json");
    home.write(".codeium/windsurf/mcp_config.json", text);
    let report = import(&home, "windsurf").await;
    assert_eq!(report["added"], json!(["issues", "remote", "keyed", "off"]));
    // Missing values are reported, and the server is added but disabled.
    says(&report, "off", "issues", &["IMPORT_TEST_UNSET", "not set"]);
    says(&report, "off", "keyed", &["known form"]);
    let servers = imported(&home);
    assert_eq!(servers["issues"]["disabled"], true);
    assert_eq!(servers["issues"]["disabledTools"], json!(["delete_issue"]));
    assert_eq!(servers["remote"].get("disabled"), None);
}

#[tokio::test]
async fn gemini() {
    let home = Home::new();
    home.write(
        ".gemini/settings.json",
        include_str!("import_fixtures/gemini.json"),
    );
    let report = import(&home, "gemini").await;
    assert_eq!(
        report["added"],
        json!(["local", "chosen", "unset", "unwanted"])
    );
    let servers = imported(&home);
    let local = &servers["local"];
    assert_eq!(local["args"], json!(["-m", "server", "--home", "${HOME}"]));
    assert_eq!(
        local["env"],
        json!({"HOME_DIR": "${HOME}/x", "PRICE": "5$"})
    );
    // The path is relative to the directory in which Gemini CLI is started, which is unknown.
    says(&report, "off", "local", &["`cwd` ./servers"]);
    says(&report, "notes", "local", &["`trust` is not imported"]);
    says(
        &report,
        "notes",
        "chosen",
        &["`includeTools` is not imported", "all tools"],
    );
    assert_eq!(servers["chosen"]["excludeTools"], json!(["write"]));
    says(&report, "off", "unset", &["IMPORT_TEST_UNSET"]);
    assert_eq!(servers["unwanted"]["disabled"], true);
    says(&report, "notes", "unwanted", &["excluded there"]);
    // For a project's file, the directory is known.
    let file = home.write(
        "app/.gemini/settings.json",
        include_str!("import_fixtures/gemini.json"),
    );
    fs::remove_file(home.servers()).expect("it is there");
    import(&home, file.to_str().expect("UTF-8")).await;
    assert_eq!(imported(&home)["local"]["cwd"], under(&home, "app/servers"));
}

#[tokio::test]
async fn lmstudio() {
    let home = Home::new();
    home.write(
        ".lmstudio/mcp.json",
        include_str!("import_fixtures/lmstudio.json"),
    );
    let report = import(&home, "lmstudio").await;
    assert_eq!(report["added"], json!(["hub", "local", "open"]));
    says(&report, "off", "open", &["${workspaceFolder}"]);
    let local = &imported(&home)["local"];
    assert_eq!(local["args"][2], "${userHome}/data");
}

#[tokio::test]
async fn codex() {
    let home = Home::new();
    home.write(
        ".codex/config.toml",
        include_str!("import_fixtures/codex.toml"),
    );
    let report = import(&home, "codex").await;
    let servers = imported(&home);
    let docs = json!({
        "command": "npx",
        "args": ["-y", "@example/docs", "$${literal}"],
        "env": {"MODE": "a", "HOME": "${HOME}"},
        "disabledTools": ["write"],
        "enabledTools": ["search"],
        "toolwharf": {"startTimeoutMs": 20000, "callTimeoutMs": 45500},
    });
    assert_eq!(servers["docs"], docs);
    says(
        &report,
        "notes",
        "docs",
        &["`enabledTools` is not imported"],
    );
    assert_eq!(
        servers["remote"]["headers"],
        json!({"X-Region": "eu", "X-Home": "${HOME}", "Authorization": "Bearer ${IMPORT_TEST_UNSET}"})
    );
    says(&report, "off", "remote", &["IMPORT_TEST_UNSET"]);
    assert_eq!(servers["off"]["disabled"], true);
    says(&report, "notes", "off", &["`scopes` is not imported"]);
    home.write("broken.toml", "[mcp_servers.x]\ncommand = \"sesame\n");
    let said = home.run("import broken.toml").await;
    let said = said.code(1).says("invalid TOML").says("broken.toml:2");
    assert!(!format!("{said:?}").contains("sesame"), "{said:?}");
}

#[tokio::test]
async fn opencode() {
    let home = Home::new();
    let place = ".config/opencode/opencode.json";
    home.write(place, include_str!("import_fixtures/opencode.json"));
    let report = import(&home, "opencode").await;
    let servers = imported(&home);
    assert_eq!(
        servers["local"],
        json!({"command": "bun", "args": ["x", "my-server"], "env": {"HOME_DIR": "${HOME}"}, "enabled": true})
    );
    says(&report, "notes", "local", &["`timeout` is not imported"]);
    says(&report, "off", "remote", &["IMPORT_TEST_UNSET"]);
    says(&report, "notes", "remote", &["`oauth` is not imported"]);
    says(&report, "off", "keyed", &["~/.secret"]);
    assert_eq!(servers["off"]["enabled"], false);

    let home = Home::new();
    home.write(place, include_str!("import_fixtures/opencode-2.json"));
    let report = import(&home, "opencode").await;
    assert_eq!(report["added"], json!(["local", "off"]));
    let servers = imported(&home);
    assert_eq!(
        servers["local"],
        json!({"command": "npx", "args": ["-y", "my-server"], "env": {"A": "b"}})
    );
    assert_eq!(servers["off"]["disabled"], true);
}

#[tokio::test]
async fn claude_code_with_the_servers_of_projects() {
    let home = Home::new();
    home.write(
        ".claude.json",
        include_str!("import_fixtures/claude-code.json"),
    );
    let report = import(&home, "claude-code").await;
    assert_eq!(report["added"], json!(["files", "db", "files-shop", "api"]));
    let servers = imported(&home);
    assert_eq!(servers["db"]["cwd"], "/srv/shop");
    assert_eq!(servers["db"]["disabled"], true);
    assert_eq!(servers["files-shop"]["args"], json!(["other-files"]));
    assert_eq!(servers["files-shop"]["cwd"], "/srv/shop");
    says(
        &report,
        "notes",
        "files-shop",
        &["its name there is `files`"],
    );
    says(&report, "notes", "api", &["/srv/site"]);
    assert_eq!(servers["api"].get("cwd"), None);
}

#[tokio::test]
async fn a_file_of_a_workspace_keeps_its_folder() {
    let home = Home::new();
    let file = home.write(
        "app/.vscode/mcp.json",
        include_str!("import_fixtures/vscode.json"),
    );
    let report = import(&home, file.to_str().expect("UTF-8")).await;
    let servers = imported(&home);
    says(&report, "off", "asked", &["${input:api-key}"]);
    assert_eq!(servers["asked"]["disabled"], true);
    let here = &servers["here"];
    assert_eq!(here["args"], json!(["--root", under(&home, "app/data")]));
    assert_eq!(here["cwd"], under(&home, "app/tools"));
    assert_eq!(servers["near"]["cwd"], under(&home, "app/sub"));
    assert_eq!(servers["below"]["cwd"], under(&home, "app"));
    says(&report, "notes", "near", &["`cwd` sub is"]);
    says(&report, "off", "file", &["envFile"]);
    says(
        &report,
        "notes",
        "plain",
        &["plain text `$TOKEN`", "${TOKEN}"],
    );
    says(
        &report,
        "notes",
        "plain",
        &["`alwaysAllow` is not imported"],
    );
    // A relative path means the same as the absolute one.
    let said = home.run("import app/.vscode/mcp.json -o json").await;
    let unchanged = said.code(0).json()["unchanged"].as_array().map(Vec::len);
    assert_eq!(unchanged, Some(6));
    // The text output contains everything, too.
    fs::remove_file(home.servers()).expect("it is there");
    let said = home.run("import app/.vscode/mcp.json").await.code(0);
    assert!(
        said.out.contains("`alwaysAllow` is not imported"),
        "{said:?}"
    );
}
