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
        .env("TOOLWHARF_FOLDER", gateway.folder())
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
