//! U01, U02 and U12: one entry format for servers, wherever they are declared, and a project's own server.

mod common;
mod kept;
#[path = "scenarios_servers/own.rs"]
mod own;

use std::fs;

use common::{checks, cli};
use kept::{Kept, Running};
use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, wait_for_some};

/// A file that a sandboxed server must not read.
const SECRET: &str = "of the host";

/// What outlives a gateway with these servers.
async fn kept_with(servers: Value) -> Kept {
    let kept = Kept::sqlite().await;
    kept.settings("[limits]\nstop_grace = \"2s\"\n[hosting]\nproviders = [\"process\"]\n");
    kept.servers(servers);
    kept
}

/// The entry of a scripted server.
fn entry(name: &str, ours: Value) -> Value {
    let server = Bin::path("testkit-scripted");
    json!({"command": server, "args": ["--name", name], "toolwharf": ours})
}

async fn row(gateway: &Running, path: &str, state: &str) -> Value {
    let what = format!("{path} to be {state}");
    wait_for_some(&what, DEADLINE, async || {
        let row = gateway.ok("GET", path, Value::Null).await;
        let word = row.get("status").unwrap_or(&row["state"]);
        (word == state).then_some(row)
    })
    .await
}

/// Calls a tool from this project's view. Returns its text and whether it is an error.
async fn called(gateway: &Running, scope: &str, tool: &str, arguments: Value) -> (String, bool) {
    let params = json!({"name": tool, "arguments": arguments});
    let reply = gateway.mcp(scope, "tools/call", params).await;
    let answer: Value = serde_json::from_str(&reply.text()).expect("JSON");
    let text = answer["result"]["content"][0]["text"].as_str();
    let text = text.unwrap_or_else(|| panic!("{tool}: {answer}"));
    (text.to_owned(), answer["result"]["isError"] == true)
}

#[tokio::test]
async fn u01_an_entry_of_the_file_runs_confined() {
    let notes = json!({"sandbox": true, "volumes": ["/notes"]});
    let servers = json!({"plain": entry("plain", json!({})), "notes": entry("notes", notes)});
    let kept = kept_with(servers).await;
    let secret = kept.dir.path().join("secret");
    fs::write(&secret, SECRET).expect("a file");
    let secret = json!({"path": secret});
    let gateway = kept.start().await;
    row(&gateway, "/mcp/servers/plain", "running").await;
    let notes = row(&gateway, "/mcp/servers/notes", "running").await;
    assert_eq!(notes["transport"], "stdio");
    assert_eq!(notes["sandbox"], "process");
    let enforced = notes["enforced"].as_array().unwrap();
    let holds =
        |what: &str| enforced.iter().find(|one| one["what"] == what).unwrap()["holds"].clone();
    let limits = ["cpu", "memory", "disk", "pids"];
    let confined = ["filesystem", "network", "privileges"];
    for what in limits.into_iter().chain(confined) {
        assert_eq!(holds(what), true, "{what}: {notes:#}");
    }
    assert_eq!(holds("kernel"), false);
    let (text, failed) = called(&gateway, "-/plain", "read", secret.clone()).await;
    assert_eq!((text.as_str(), failed), (SECRET, false));
    let (text, failed) = called(&gateway, "-/notes", "read", secret).await;
    assert!(failed && text.contains("No such file"), "{text}");
    // The command line shows the sandbox, too.
    let listed = said(&kept, &gateway, &["ls"]).await;
    checks::contains(line(&listed, "notes"), &[" process "]);
    let shown = said(&kept, &gateway, &["get", "notes"]).await;
    let kernel = "kernel (shared with the host";
    checks::contains(line(&shown, "not enforced"), &[kernel]);

    // The server's data is kept across a restart of the product.
    let write = json!({"path": "/notes/one", "text": "kept"});
    let (text, _) = called(&gateway, "-/notes", "write", write).await;
    assert_eq!(text, "written");
    drop(gateway);
    let gateway = kept.start().await;
    row(&gateway, "/mcp/servers/notes", "running").await;
    let (text, _) = called(&gateway, "-/notes", "read", json!({"path": "/notes/one"})).await;
    assert_eq!(text, "kept");
}

#[tokio::test]
async fn u02_the_same_entry_is_the_same_server_wherever_it_stands() {
    let ours = json!({"sandbox": {"memory": "128M"}, "volumes": ["/v"], "start": "boot"});
    let kept = kept_with(json!({"file": entry("file", ours.clone())})).await;
    let gateway = kept.start().await;
    gateway.ok("PUT", "/projects/shop", json!({})).await;
    let path = "/mcp/servers/own?project=shop";
    gateway.ok("PUT", path, entry("own", ours.clone())).await;
    let manifest = json!({"name": "p", "version": "1", "mcp": {"servers": {"made": entry("made", ours.clone())}}});
    let product = "/projects/shop/products/p";
    gateway.ok("PUT", product, manifest).await;
    let server = Bin::path("testkit-scripted");
    let registration = json!({
        "name": "registered", "command": server, "args": ["--name", "registered"], "volumes": ["/v"],
        "resource_limits": {"memory": "128M"},
    });
    let id = gateway.ok("POST", "/mcp/servers", registration).await["id"].clone();
    let mut the_same = entry("registered", ours);
    the_same["name"] = "posted".into();
    gateway.ok("POST", "/mcp/servers", the_same).await;
    let server = server.to_str().unwrap();
    let added = format!("add added --sandbox --memory 128M --volume /v -- {server} --name added");
    let added: Vec<_> = added.split(' ').collect();
    said(&kept, &gateway, &added).await;

    let registered = format!("/mcp/servers/{}", id.as_str().unwrap());
    let mut all = Vec::new();
    for path in [
        "/mcp/servers/file",
        "/mcp/servers/own?project=shop",
        "/mcp/servers/made?project=shop",
        &registered,
        "/mcp/servers/posted",
        "/mcp/servers/added",
    ] {
        let row = row(&gateway, path, "running").await;
        // Each server lists the same limits, with the same reasons why they are enforced or not.
        let told = |one: &Value| {
            let how = match one["what"] == "privileges" {
                true => Value::Null,
                false => one["how"].clone(),
            };
            (one["what"].clone(), one["holds"].clone(), how)
        };
        let enforced = row["enforced"].as_array().unwrap().iter();
        let enforced: Vec<_> = enforced.map(told).collect();
        all.push((row["sandbox"].clone(), row["tools"].clone(), enforced));
    }
    assert_eq!(all[0].0, "process");
    assert!(all.iter().all(|one| *one == all[0]), "{all:#?}");
    // A server from a project's manifest sees no more of the host than the settings allow.
    let mounts = entry("own", json!({"sandbox": true, "mounts": ["/etc:/in"]}));
    gateway.ok("PUT", path, mounts).await;
    let blocked = wait_for_some("the reason", DEADLINE, async || {
        let row = gateway.ok("GET", path, Value::Null).await;
        row["reason"].as_str().map(str::to_owned)
    });
    checks::contains(blocked.await, &["`/etc` of the host may not be mounted"]);
}

/// Returns the first line that begins with `start`.
fn line<'t>(text: &'t str, start: &str) -> &'t str {
    let found = text.lines().find(|line| line.starts_with(start));
    found.unwrap_or_else(|| panic!("no {start:?}: {text}"))
}

/// Returns the output of a command.
async fn said(kept: &Kept, gateway: &Running, words: &[&str]) -> String {
    outcome(kept, gateway, words).await.code(0).out
}

async fn outcome(kept: &Kept, gateway: &Running, words: &[&str]) -> cli::Said {
    let mut command = cli::toolwharf();
    command
        .args(words.iter().take(1))
        .args(["--url", &gateway.url])
        .args(words.iter().skip(1));
    command
        .env("TOOLWHARF_TOKEN", &gateway.token)
        .env("HOME", kept.dir.path());
    cli::said(command, "").await
}
