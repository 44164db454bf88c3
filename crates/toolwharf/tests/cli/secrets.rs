//! U13: secrets of the configuration file. They are asked for, stored sealed, and used at once.

use std::path::Path;

use serde_json::{Value, json};
use testkit::{DEADLINE, Peer, StdioClient, peer, wait_for};

use super::support::{read, scripted as program};
use crate::common::{
    Gateway, LEGACY, Setup, checks,
    cli::toolwharf,
    scripted,
    shell::{Home, json_of, ok, ok_with, on, on_with},
    terminal::typed,
};

/// A server whose tool `env` returns its variable `KEY`.
fn needs(name: &str, variable: &str) -> Value {
    let mut entry = scripted(name, &[]);
    entry["env"] = json!({"KEY": format!("<${{{variable}}}>")});
    entry
}

async fn key(peer: &mut Peer) -> Value {
    let told = peer.tool("env", json!({})).await;
    told.result()["structuredContent"]["KEY"].clone()
}

async fn state(gateway: &Gateway, server: &str, state: &str) -> Value {
    let line = format!("get {server}");
    wait_for(&format!("{server} to be {state}"), DEADLINE, async || {
        json_of(gateway, &line).await["status"] == state
    })
    .await;
    json_of(gateway, &line).await
}

/// All files below this folder, as text.
fn files(folder: &Path) -> String {
    let mut all = String::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            all.push_str(&files(&path));
        } else if let Ok(bytes) = std::fs::read(&path) {
            all.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
    all
}

#[tokio::test]
async fn u13_a_secret_is_stored_sealed_and_used_at_once() {
    let gateway = Setup::new()
        .server("needs", needs("needs", "U13_TOKEN"))
        .scripted("other", &["--no-builtin", "--tools", "1"])
        .serve()
        .await;
    gateway.up("other").await;
    let blocked = state(&gateway, "needs", "blocked").await;
    assert_eq!(blocked["unset"], json!(["U13_TOKEN"]));
    let command = "toolwharf secret set U13_TOKEN";
    for line in ["get needs", "doctor"] {
        let said = on(&gateway, line).await;
        checks::contains(&said.out, &["U13_TOKEN", command]);
    }
    let pid = json_of(&gateway, "get other").await["pid"].clone();

    let set = "secret set U13_TOKEN";
    ok_with(&gateway, set, "canary-one\n", "set `U13_TOKEN`, version 1").await;
    gateway.up("needs").await;
    assert_eq!(json_of(&gateway, "get needs").await["unset"], json!([]));
    let mut peer = gateway.legacy().await;
    assert_eq!(key(&mut peer).await, "<canary-one>");
    // The server restarts with a new value, and no other server does.
    ok_with(&gateway, set, "canary-two\n", "set `U13_TOKEN`, version 2").await;
    wait_for("the new value", DEADLINE, async || {
        let mut peer = gateway.legacy().await;
        let told = peer.tool("env", json!({})).await;
        told.response["result"]["structuredContent"]["KEY"] == "<canary-two>"
    })
    .await;
    assert_eq!(json_of(&gateway, "get other").await["pid"], pid);

    let listed = json_of(&gateway, "secret ls").await;
    checks::members(
        &listed[0],
        json!({"name": "U13_TOKEN", "version": 2, "overridden": false}),
    );
    let mut texts = vec![
        files(&gateway.folder().join("data")),
        gateway.process.stderr(),
        gateway.metrics().await,
        listed.to_string(),
        on(&gateway, "doctor").await.out,
    ];
    for path in ["/secrets", "/mcp/servers/needs", "/mcp/servers/needs/entry"] {
        let reply = gateway.admin(path).get(&[]).await.collect(DEADLINE).await;
        assert_eq!(reply.status, 200, "{path}");
        texts.push(reply.text());
    }
    for text in texts {
        checks::lacks(text, &["canary"]);
    }

    let gateway = gateway.restarted().await;
    gateway.up("needs").await;
    ok(&gateway, "secret rm U13_TOKEN", "removed `U13_TOKEN`").await;
    state(&gateway, "needs", "blocked").await;
    on(&gateway, "secret rm U13_TOKEN").await.code(1);
    let wrong = on_with(&gateway, "secret set 1-TOKEN", "canary").await;
    wrong.code(2).says("letters, digits and `_`");
}

/// An entry that must be valid does not keep a gateway from starting if its secret is stored.
#[tokio::test]
async fn u13_a_strict_configuration_starts_with_its_secrets() {
    let gateway = Setup::new()
        .settings("require_valid_entries = true\n")
        .serve()
        .await;
    ok_with(&gateway, "secret set U13_TOKEN", "canary", "version 1").await;
    let mut gateway = gateway;
    gateway.edit(|servers| {
        servers.insert("needs".to_owned(), needs("needs", "U13_TOKEN"));
    });
    gateway.up("needs").await;
    let gateway = gateway.restarted().await;
    gateway.up("needs").await;
}

#[tokio::test]
async fn u13_the_environment_takes_precedence_and_is_named() {
    let gateway = Setup::new()
        .env("U13_TOKEN", "from-outside")
        .server("needs", needs("needs", "U13_TOKEN"))
        .connected()
        .await;
    let said = on_with(&gateway, "secret set U13_TOKEN", "canary").await;
    said.code(0)
        .says("takes precedence")
        .says("restart `toolwharf serve`");
    let mut peer = gateway.legacy().await;
    assert_eq!(key(&mut peer).await, "<from-outside>");
    let listed = json_of(&gateway, "secret ls").await;
    assert_eq!(listed[0]["overridden"], true);
    let table = ok(&gateway, "secret ls", "").await;
    checks::contains(table, &["not used"]);
}

#[tokio::test]
async fn u13_added_and_imported_servers_name_what_they_lack() {
    let gateway = Setup::new().serve().await;
    let add = format!("add -e 'KEY=${{U13_ADDED}}' added -- {}", program());
    let said = on(&gateway, &add).await;
    said.says("added `added`")
        .says("toolwharf secret set U13_ADDED");
    ok_with(&gateway, "secret set U13_ADDED", "canary-added", "").await;
    gateway.up("added").await;

    let entry = json!({"mcpServers": {"imported": needs("imported", "U13_IMPORTED")}});
    let said = on_with(&gateway, "import -", &entry.to_string()).await;
    said.code(0)
        .says("toolwharf secret set U13_IMPORTED")
        .says("disabled 1 of the added servers");
    let off = state(&gateway, "imported", "disabled").await;
    assert_eq!(off["unset"], json!(["U13_IMPORTED"]));
    let doctor = on(&gateway, "doctor").await.out;
    checks::contains(
        doctor,
        &[
            "server `imported` is disabled, and lacks U13_IMPORTED",
            "toolwharf secret set U13_IMPORTED",
            "toolwharf enable imported",
        ],
    );
    ok_with(&gateway, "secret set U13_IMPORTED", "canary", "").await;
    ok(&gateway, "enable imported", "connected:").await;
}

#[tokio::test]
async fn u13_a_terminal_is_asked_for_the_secrets_of_new_servers() {
    let gateway = Setup::new().serve().await;
    let folder = gateway.folder();
    let program = program();
    let add = format!("add --data-dir data -e 'KEY=${{U13_ADDED}}' added -- {program}");
    let answers = [("`U13_ADDED` is not set. Enter its value", "canary-added")];
    let shown = typed(folder, &[], &add, &answers).await.code(0).out;
    checks::contains(&shown, &["set `U13_ADDED`, version 1", "connected:"]);
    checks::lacks(&shown, &["canary"]);
    let entry = json!({"mcpServers": {
        "imported": needs("imported", "U13_IMPORTED"),
        "skipped": needs("skipped", "U13_SKIPPED"),
    }});
    std::fs::write(folder.join("other.json"), entry.to_string()).expect("a file");
    let answers = [
        (
            "`U13_IMPORTED` is not set. Enter its value",
            "canary-imported",
        ),
        ("`U13_SKIPPED` is not set. Enter its value", ""),
    ];
    let import = "import --data-dir data other.json";
    let shown = typed(folder, &[], import, &answers).await.code(0).out;
    checks::contains(&shown, &["enabled `imported`", "skipped;"]);
    checks::lacks(&shown, &["canary"]);
    gateway.up("added").await;
    gateway.up("imported").await;
    state(&gateway, "skipped", "disabled").await;
    checks::lacks(read(&gateway.servers_file()), &["canary"]);
}

#[tokio::test]
async fn u13_commands_without_a_gateway_read_and_write_the_secrets() {
    let home = Home::new();
    let servers = json!({"mcpServers": {"needs": needs("needs", "U13_TOKEN")}});
    home.write(".config/toolwharf/mcp.json", &servers.to_string());
    let data = home.path(".local/share/toolwharf");
    home.transcript("$ ls\n| toolwharf secret set U13_TOKEN\n$ secret ls # no secrets yet")
        .await;
    checks::contains(home.run("doctor").await.out, &["U13_TOKEN"]);
    assert!(!data.exists(), "a command that only reads created the data");

    let set = home.run_with("secret set U13_TOKEN", "canary-one\n").await;
    set.code(0).says("no gateway is running");
    home.transcript("$ ls\n| not running\n! U13_TOKEN\n$ secret ls\n| U13_TOKEN\n! canary")
        .await;
    checks::lacks(home.run("doctor").await.out, &["U13_TOKEN"]);
    checks::lacks(files(&data), &["canary"]);
    let other = json!({"mcpServers": {"imported": needs("imported", "U13_TOKEN")}});
    home.write("other.json", &other.to_string());
    home.transcript("$ import other.json # 1 added\n| imported\n! added, off")
        .await;

    let mut command = toolwharf();
    command
        .args(["stdio", "--standalone", "--server", "needs"])
        .env("HOME", home.path(""))
        .current_dir(home.path(""));
    let client = StdioClient::spawn(command);
    let mut peer = Peer::stdio(client, LEGACY, peer::all_capabilities()).await;
    assert_eq!(key(&mut peer).await, "<canary-one>");
    drop(peer);

    // Without the master key, the secrets count as not set.
    std::fs::rename(data.join("master.key"), data.join("elsewhere")).expect("renamed");
    home.transcript("$ ls\n| toolwharf secret set U13_TOKEN")
        .await;
    let refused = home.run_with("secret set U13_TOKEN", "canary-two").await;
    refused.code(1).says("TOOLWHARF_MASTER_KEY");
    std::fs::rename(data.join("elsewhere"), data.join("master.key")).expect("renamed");
    home.transcript("$ secret rm U13_TOKEN # removed\n1$ secret rm U13_TOKEN # U13_TOKEN")
        .await;
}
