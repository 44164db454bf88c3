//! The console in a real browser, on the real binary with real servers: C01 to C14.
//!
//! What happens in the browser is in `web/tests`, one file for each test, run by Node with Playwright; here is what they happen on.

#![expect(clippy::unwrap_used, reason = "a failure is the test's")]

#[path = "../common/mod.rs"]
mod common;
mod served;

use std::path::{Path, PathBuf};

use common::{
    Gateway, Setup,
    real::{EVERYTHING, npm, python},
};
use serde_json::json;
use testkit::conformance::node_modules;
use tokio::process::Command;

fn web() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web")
}

/// Runs a test of `web/tests` against the gateway.
///
/// # Panics
/// If it fails; where `TOOLWHARF_PICTURES` names a folder, its pages are there as pictures.
async fn browse(gateway: &Gateway, test: &str) {
    let modules = web().join("node_modules/playwright-core");
    assert!(
        modules.exists(),
        "{} is missing; run: cargo xtask setup",
        modules.display()
    );
    let link = gateway.logged("/sign-in#").await;
    let link = link.split_whitespace().last().unwrap();
    let ran = Command::new(node_modules().join("node/bin/node"))
        .arg(web().join("tests").join(format!("{test}.mjs")))
        .env("TOOLWHARF_URL", &gateway.url)
        .env("TOOLWHARF_LINK", link)
        .env("TOOLWHARF_TOKEN", gateway.token())
        .env("PATH", path())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr)
    );
    assert!(ran.status.success(), "{said}\n{}", gateway.process.stderr());
    eprintln!("{said}");
}

/// With `toolwharf` on it, as whoever pastes a command has it.
fn path() -> String {
    let folder = testkit::Bin::path("toolwharf");
    let folder = folder.parent().unwrap().display().to_string();
    format!("{folder}:{}", std::env::var("PATH").unwrap())
}

#[tokio::test]
async fn c01_the_link_of_serve_leads_to_the_servers_live() {
    let gateway = Setup::new()
        .server("everything", npm(EVERYTHING, &[]))
        .server("time", python("mcp-server-time", &[]))
        .connected()
        .await;
    browse(&gateway, "c01").await;
}

#[tokio::test]
async fn c02_a_server_in_trouble_is_shown_with_its_reason() {
    let gateway = Setup::new()
        .scripted("fragile", &["--stderr-at-start", "fragile says hello"])
        .scripted(
            "hopeless",
            &[
                "--exit-at-start",
                "--stderr-at-start",
                "Error: the index is gone",
            ],
        )
        .serve()
        .await;
    gateway.up("fragile").await;
    browse(&gateway, "c02").await;
}

#[tokio::test]
async fn c03_a_tool_is_run_asked_and_answered_in_the_page() {
    let gateway = Setup::new()
        .server("everything", npm(EVERYTHING, &[]))
        .connected()
        .await;
    browse(&gateway, "c03").await;
}

#[tokio::test]
async fn c04_a_call_is_kept_and_copied() {
    let gateway = Setup::new()
        .server("everything", npm(EVERYTHING, &[]))
        .connected()
        .await;
    browse(&gateway, "c04").await;
}

/// A server whose every word is an attack.
#[tokio::test]
async fn c11_hostile_text_stays_text() {
    let setup = Setup::new();
    let name = "<img src=x onerror=alert(1)>";
    let answers = json!({ "methods": {
        "tools/list": { "tools": [{
            "name": name, "title": "javascript:alert(1)",
            "description": "<script>alert(2)</script>\u{202e}gnp.exe [x](javascript:alert(2))",
            "inputSchema": { "type": "object", "properties": { "<b onclick=alert(1)>": { "type": "string",
                "description": "<iframe src=https://evil.example/></iframe>" } } },
        }] },
        "tools/call": { "content": [
            { "type": "text", "text": "<svg onload=alert(3)>" },
            { "type": "text", "text": "A".repeat(10 << 20) },
            { "type": "image", "mimeType": "image/svg+xml", "data": "PHN2ZyBvbmxvYWQ9YWxlcnQoMyk+" },
            { "type": "resource_link", "uri": "javascript:alert(3)", "name": "javascript:alert(3)" },
            { "type": "resource_link", "uri": "https://evil.example/", "name": "elsewhere" },
            { "type": "resource", "resource": { "uri": "data:text/html,<script>alert(3)</script>",
                "mimeType": "text/html", "blob": "PHNjcmlwdD5hbGVydCgzKTwvc2NyaXB0Pg==" } },
        ] },
    } });
    let file = setup.folder().join("answers.json");
    std::fs::write(&file, answers.to_string()).unwrap();
    let gateway = setup
        .scripted(
            "hostile",
            &[
                "--answers",
                file.to_str().unwrap(),
                "--stderr-at-start",
                "<img src=https://evil.example/ onerror=alert(4)>",
            ],
        )
        .connected()
        .await;
    browse(&gateway, "c11").await;
}
