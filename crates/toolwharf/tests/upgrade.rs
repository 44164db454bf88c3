//! A data directory of an older version is used unchanged: pins, secrets, keys, volumes and stopped servers.
//!
//! `upgrade_fixtures` was created by the version before the unified server lifecycle (2026-11). It contains a dump of
//! the database by SQLite's shell, with `@SERVER@` in place of the scripted server's path, and the files beside the
//! database. It has a server of the configuration file (`files`), one of project `shop` with a secret (`own`), a hosted
//! one with a volume (`notes`), and one that was stopped manually (`stopped`). `same_names.sql` adds keys with the same
//! name to it.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;
mod kept;

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use kept::Kept;
use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, wait_for_some};

const NOTES_ID: &str = "01a207a1-e3dc-74ed-bd13-517fde8229d5";
const STOPPED_ID: &str = "01a207a1-e46b-703e-97ea-ccb73da5579f";

fn fixture(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upgrade_fixtures");
    folder.join(name)
}

/// Runs a program with this input and returns its output.
fn output(program: &str, args: &[&str], input: &[u8]) -> Vec<u8> {
    let spawned = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = spawned
        .unwrap_or_else(|why| panic!("{program}: {why}; install it with `cargo xtask setup`"));
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    let writing = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap().unwrap();
    assert!(output.status.success(), "{program} {args:?}");
    output.stdout
}

/// The data directory of the older version, with its configuration. `more` is SQL that changes its database.
async fn left(more: &str) -> Kept {
    let mut kept = Kept::sqlite().await;
    let server = Bin::path("testkit-scripted");
    kept.set_env("PROGRAM", server.to_str());
    // The path is passed in a variable named like a key, which is not part of the approval, so it may differ between
    // runs.
    kept.servers(json!({"files": {
        "command": "sh",
        "args": ["-c", "exec \"$PROGRAM_KEY\" --name files --no-builtin --tools 2"],
        "env": {"PROGRAM_KEY": "${PROGRAM}"},
    }}));
    kept.settings("[limits]\nstop_grace = \"2s\"\n[hosting]\nproviders = [\"process\"]\n");
    let volume = kept.data("hosting/process/volumes").join(NOTES_ID);
    fs::create_dir_all(&volume).unwrap();
    for name in ["master.key", "installation", "admin-token"] {
        fs::copy(fixture(name), kept.data(name)).unwrap();
    }
    let tables = fs::read_to_string(fixture("tables.sql")).unwrap();
    let tables = tables.replace("@SERVER@", server.to_str().unwrap());
    let database = kept.data("toolwharf.db");
    let tables = tables + more;
    output("sqlite3", &[database.to_str().unwrap()], tables.as_bytes());
    let packed = fs::read(fixture("disk.ext4.gz")).unwrap();
    fs::write(volume.join("disk.ext4"), output("gzip", &["-dc"], &packed)).unwrap();
    kept
}

#[tokio::test]
async fn what_an_older_version_left_is_taken_over_whole() {
    let mut kept = left("").await;
    let gateway = kept.start().await;

    let row = async |path: &str, state: &str| {
        wait_for_some(&format!("{path} to be {state}"), DEADLINE, async || {
            let row = gateway.ok("GET", path, Value::Null).await;
            let word = row.get("status").unwrap_or(&row["state"]);
            (word == state).then_some(row)
        })
        .await
    };
    let files = row("/mcp/servers/files", "running").await;
    assert_eq!(files["tools"], 2);
    assert_eq!(files["kept_back"], 0);
    // The volume contains what the older version wrote.
    row(&format!("/mcp/servers/{NOTES_ID}"), "running").await;
    let read = json!({"method": "tools/call", "params": {"name": "read", "arguments": {"path": "/data/kept"}}});
    let call = format!("/mcp/servers/{NOTES_ID}/call");
    let text = gateway.ok("POST", &call, read).await["result"]["content"][0]["text"].clone();
    assert_eq!(text, "written by an older version");
    // A manually stopped server stays stopped.
    row(&format!("/mcp/servers/{STOPPED_ID}"), "stopped").await;
    // The project's server starts, so its secret was decrypted.
    let listed = gateway.mcp("shop", "tools/list", json!({})).await;
    assert!(listed.text().contains("tool_0"), "{}", listed.text());
    let own = row("/mcp/servers/own?project=shop", "running").await;
    assert_eq!(own["tools"], 1);
    assert_eq!(own["kept_back"], 0);
    let events = format!("/mcp/servers/{NOTES_ID}/events");
    let events = gateway.ok("GET", &events, Value::Null).await;
    let ready = events["events"].as_array().unwrap().iter();
    assert_eq!(ready.filter(|event| event["kind"] == "ready").count(), 2);
    drop(gateway);

    // Definitions approved in the older version are still the reference.
    let other = kept.dir.path().join("other");
    let server = Bin::path("testkit-scripted");
    let script = format!(
        "#!/bin/sh\nexec {} --name other --no-builtin --tools 2\n",
        server.display()
    );
    fs::write(&other, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&other, mode).unwrap();
    kept.set_env("PROGRAM", other.to_str());
    let gateway = kept.start().await;
    let files = wait_for_some("its tools to be kept back", DEADLINE, async || {
        let row = gateway.ok("GET", "/mcp/servers/files", Value::Null).await;
        (row["kept_back"] != 0).then_some(row)
    })
    .await;
    assert_eq!(files["kept_back"], 2, "{files:#}");
}

/// Of several keys with one name, the newest keeps it, and all of them still open what they opened.
#[tokio::test]
async fn u13_keys_with_the_same_name_get_different_names() {
    let more = fs::read_to_string(fixture("same_names.sql")).unwrap();
    let kept = left(&more).await;
    let gateway = kept.start().await;
    let keys = gateway.ok("GET", "/keys", Value::Null).await;
    let keys = keys["keys"].as_array().unwrap();
    let name = |hint: &str| {
        let key = keys.iter().find(|key| key["hint"] == hint);
        key.unwrap_or_else(|| panic!("{hint}: {keys:#?}"))["name"].clone()
    };
    let names = ["twh_1", "twh_2", "twh_3", "twh_4", "twh_5"].map(name);
    // The last one is revoked.
    assert_eq!(names, ["chat (4)", "chat", "chat (3)", "chat (2)", "chat"]);
    for (token, status) in [
        ("twh_1", 200),
        ("twh_2", 200),
        ("twh_3", 200),
        ("twh_5", 401),
    ] {
        let servers = gateway.raw("/api/v1/mcp/servers?project=shop");
        let servers = servers.with("authorization", &format!("Bearer {token}"));
        let reply = servers.get(&[]).await.collect(DEADLINE).await;
        assert_eq!(reply.status, status, "{token}: {}", reply.text());
    }
    let again = json!({"name": "chat", "role": "call"});
    let refused = gateway.rest("POST", "/keys?project=shop", again).await;
    assert_eq!(refused.status, 409, "{}", refused.text());
}
