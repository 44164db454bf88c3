//! Servers hosted in E2B sandboxes, through the product's REST API: H01, H08 and H18 on that provider.
//!
//! E2B is replaced by the stand-in `testkit-e2b`; its documentation lists the differences. The servers, their streams
//! and the HTTP in between are real.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;
mod kept;

use std::{fs, path::Path, time::Duration};

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, Process, RawClient, wait_for, wait_for_some};

use crate::{
    common::checks,
    kept::{Kept, Running},
};

const KEY: &str = "e2b_77aa00bb11cc22dd33ee44ff5500660077008800";
const SECRET: &str = "s3cret-of-the-server";
/// Deadline for each wait, reached only if the test fails.
const LONG_DEADLINE: Duration = Duration::from_secs(60);

/// The parts that outlive the product: its directory, and E2B.
struct Site {
    kept: Kept,
    standin: Process,
    url: String,
}

impl Site {
    async fn new() -> Self {
        let mut standin = Process::bin("testkit-e2b", ["--key", KEY]);
        let url = standin.url().await;
        let mut kept = Kept::sqlite().await;
        kept.set_env("E2B_API_KEY", Some(KEY));
        // Log everything, because the test searches the log for secrets.
        kept.set_env("RUST_LOG", Some("trace"));
        kept.settings(&format!(
            "[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\n[hosting]\nproviders = [\"e2b\", \"process\"]\n\
             e2b_api_key = \"${{E2B_API_KEY}}\"\ne2b_url = \"{url}\"\ne2b_sandbox_url = \"{url}\"\n"
        ));
        Self { kept, standin, url }
    }

    /// Returns the ids of all sandboxes.
    async fn sandboxes(&self) -> Vec<String> {
        let client = RawClient::new(&format!("{}/v2/sandboxes", self.url)).with("x-api-key", KEY);
        let told = client.get(&[]).await.collect(DEADLINE).await;
        let told: Value = serde_json::from_slice(&told.body).unwrap();
        let ids = told.as_array().unwrap().iter();
        ids.map(|one| one["sandboxID"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Waits until there are this many sandboxes, none of which is in `gone`.
    async fn until(&self, count: usize, gone: &[String]) {
        wait_for("the sandboxes", LONG_DEADLINE, async || {
            let now = self.sandboxes().await;
            now.len() == count && now.iter().all(|id| !gone.contains(id))
        })
        .await;
    }
}

/// A registration of a scripted server.
fn entry(name: &str) -> Value {
    let program = Bin::path("testkit-scripted");
    json!({
        "name": name,
        "image": "base",
        "args": [program, "--name", name],
        "provider": "e2b",
        "environment": {"TOKEN": SECRET},
    })
}

async fn register(host: &Running, entry: Value) -> String {
    let told = host.ok("POST", "/mcp/servers", entry).await;
    let id = told["id"].as_str().unwrap().to_owned();
    until(host, &id, "running").await;
    id
}

async fn shown(host: &Running, id: &str) -> Value {
    let path = format!("/mcp/servers/{id}");
    host.ok("GET", &path, Value::Null).await
}

async fn until(host: &Running, id: &str, state: &str) -> Value {
    wait_for_some(state, LONG_DEADLINE, async || {
        let told = shown(host, id).await;
        (told["status"] == state).then_some(told)
    })
    .await
}

async fn said(host: &Running, id: &str, tool: &str, arguments: Value) -> String {
    let body = json!({"method": "tools/call", "params": {"name": tool, "arguments": arguments}});
    let path = format!("/mcp/servers/{id}/call");
    let told = host.ok("POST", &path, body).await;
    let text = told["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("{tool} returned no text: {told:#}"))
        .to_owned()
}

/// Asserts that the server responds and has its environment variables.
async fn speaks(host: &Running, id: &str) {
    let env = said(host, id, "env", json!({})).await;
    checks::contains(env, &[&format!("\"TOKEN\":\"{SECRET}\"")]);
}

/// Asserts that no file of the product contains any of these texts.
fn nowhere(folder: &Path, texts: &[&str]) {
    for found in fs::read_dir(folder).unwrap().flatten() {
        let path = found.path();
        if path.is_dir() {
            nowhere(&path, texts);
            continue;
        }
        let content = fs::read(&path).unwrap_or_default();
        for text in texts {
            let mut parts = content.windows(text.len());
            let there = parts.any(|part| part == text.as_bytes());
            assert!(!there, "{} is in {}", &text[..4], path.display());
        }
    }
}

#[tokio::test]
async fn h18_a_server_in_a_sandbox_of_e2b_says_what_runs_it_and_why() {
    let site = Site::new().await;
    let mut host = site.kept.start().await;
    let id = register(&host, entry("h18-e2b")).await;
    let told = until(&host, &id, "running").await;
    assert_eq!(told["provider"], "e2b");
    let asked = "asked for: virtual machines of E2B";
    checks::contains(&told["provider_reason"], &[asked, &site.url]);
    let rows = told["enforced"].as_array().unwrap();
    let holds = |what: &str| {
        let row = rows.iter().find(|row| row["what"] == what);
        row.unwrap_or_else(|| panic!("{what} is not listed"))["holds"] == true
    };
    assert!(holds("kernel") && holds("network") && holds("memory"));
    // E2B enforces neither the CPU limit nor the process limit.
    assert!(!holds("cpu") && !holds("pids"), "{rows:#?}");

    // The server's tools are in the catalog and can be called by their native names. The server sees only its own
    // variables.
    speaks(&host, &id).await;
    let listed = host.mcp("", "tools/list", json!({})).await.text();
    checks::contains(listed, &["\"echo\""]);
    let big = said(&host, &id, "big", json!({"bytes": 300_000})).await;
    assert_eq!(big.len(), 300_000);

    // Without an explicit provider, an image runs on the strongest allowed one.
    let mut chosen = entry("h18-chosen");
    chosen.as_object_mut().unwrap().remove("provider");
    let other = register(&host, chosen).await;
    let told = until(&host, &other, "running").await;
    assert_eq!(told["provider"], "e2b");
    checks::contains(&told["provider_reason"], &["the strongest"]);
    assert_eq!(site.sandboxes().await.len(), 2);

    // The registration is refused, and the error names the unsupported feature.
    let mut volumes = entry("h18-volumes");
    volumes["volumes"] = json!(["/data"]);
    let reply = host.rest("POST", "/mcp/servers", volumes).await;
    let text = reply.text();
    assert_eq!(reply.status, 422, "{text}");
    checks::contains(text, &["\"/volumes\"", "would not outlive the sandbox"]);

    // The sandbox is removed, and the key was written to no file.
    let other = format!("/mcp/servers/{other}");
    host.ok("DELETE", &other, Value::Null).await;
    site.until(1, &[]).await;
    let all = host.ok("GET", "/mcp/servers", Value::Null).await;
    let one = shown(&host, &id).await;
    let events = shown(&host, &format!("{id}/events")).await;
    checks::lacks(format!("{all} {one} {events}"), &[KEY, SECRET]);
    host.process.signal(Signal::TERM);
    assert!(host.process.wait(LONG_DEADLINE).await.success());
    site.until(0, &[]).await;
    let log = host.process.stderr();
    assert!(!log.contains(KEY) && !log.contains(SECRET));
    nowhere(site.kept.dir.path(), &[KEY]);
}

#[tokio::test]
async fn h08_a_server_that_crashes_in_a_sandbox_is_started_again() {
    let site = Site::new().await;
    let host = site.kept.start().await;
    let id = register(&host, entry("h08-e2b")).await;
    let first = site.sandboxes().await;
    let body = json!({"method": "tools/call", "params": {"name": "crash", "arguments": {}}});
    let path = format!("/mcp/servers/{id}/call");
    let reply = host.rest("POST", &path, body).await;
    assert!(!reply.status.is_success(), "{}", reply.text());
    let told = wait_for_some("a restart", LONG_DEADLINE, async || {
        let told = shown(&host, &id).await;
        (told["status"] == "running" && told["restart_count"] == 1).then_some(told)
    })
    .await;
    let crash = &told["last_crash"];
    let is_told = crash["exit_code"].is_i64() || crash["signal"].is_i64();
    assert!(is_told, "{told:#}");
    speaks(&host, &id).await;
    let second = site.sandboxes().await;
    assert_eq!(second.len(), 1);
    assert_ne!(first, second, "a restart gets a new sandbox");

    // If E2B ends a sandbox, this counts as a server exit, too.
    let client = RawClient::new(&format!("{}/stand-in/forget/{}", site.url, second[0]));
    client.send(http::Method::POST, &[], "").await;
    site.until(1, &second).await;
    let told = until(&host, &id, "running").await;
    checks::contains(&told["last_crash"], &["the sandbox ended"]);
}

#[tokio::test]
async fn what_a_killed_product_left_at_e2b_is_removed_by_the_next() {
    let site = Site::new().await;
    let mut host = site.kept.start().await;
    let id = register(&host, entry("orphan-e2b")).await;
    let before = site.sandboxes().await;
    host.process.signal(Signal::KILL);
    host.process.wait(LONG_DEADLINE).await;
    // The sandbox outlives the product.
    assert_eq!(site.sandboxes().await, before);
    let host = site.kept.start().await;
    until(&host, &id, "running").await;
    site.until(1, &before).await;
    speaks(&host, &id).await;
}

#[tokio::test]
async fn an_e2b_that_is_lost_starts_nothing_twice() {
    let mut site = Site::new().await;
    let host = site.kept.start().await;
    let id = register(&host, entry("lost-e2b")).await;
    let address = site.url.trim_start_matches("http://").to_owned();
    site.standin.signal(Signal::KILL);
    site.standin.wait(LONG_DEADLINE).await;
    // The streams are gone and it is unknown whether the server has exited, so nothing is started in the meantime.
    until(&host, &id, "unknown").await;
    let starts = |told: &Value| told["restart_count"].as_u64().unwrap();
    assert_eq!(starts(&shown(&host, &id).await), 0);
    site.standin = Process::bin("testkit-e2b", ["--key", KEY, "--listen", &address]);
    site.standin.url().await;
    let told = until(&host, &id, "running").await;
    assert_eq!(starts(&told), 1, "{told:#}");
    assert_eq!(site.sandboxes().await.len(), 1);
    speaks(&host, &id).await;
}

#[tokio::test]
async fn a_product_ends_in_time_though_e2b_hangs() {
    let site = Site::new().await;
    let mut host = site.kept.start().await;
    register(&host, entry("hang-e2b")).await;
    site.standin.signal(Signal::STOP);
    host.process.signal(Signal::TERM);
    let status = host.process.wait(LONG_DEADLINE).await;
    assert!(status.success(), "{status}");
    site.standin.signal(Signal::CONT);
}
