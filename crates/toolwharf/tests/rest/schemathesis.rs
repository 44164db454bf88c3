//! Tests the API with schemathesis: no response is a server error, and every response matches the OpenAPI document.
//!
//! `cargo xtask setup` installs schemathesis. Its inputs are the same in each run, so that a failure points to a change
//! in the code.

use std::time::Duration;

use testkit::soak;
use tokio::{process::Command, time::timeout};

use crate::{
    api::Api,
    common::{
        Gateway, Setup, holds,
        real::{installed, venv},
    },
};

/// Timeout for a run, which takes about twenty seconds.
const RUN_TIMEOUT: Duration = Duration::from_secs(if cfg!(debug_assertions) { 300 } else { 180 });
/// All checks that need only one request and its response. Every request has a valid key, so authorization is not
/// checked.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance,negative_data_rejection,\
                      unsupported_method,allow_header_conformance";
/// Excluded routes. Adding servers (in the configuration file or as registrations) starts any command at once. Calls to
/// a stopped or slow server correctly get 503 or 504. Key ids can be discovered, including the one in use. Logs and
/// events may be followed without end.
const EXCLUDED_PATHS: &str =
    r"^/api/v1/(mcp/servers(/\{id\}(/logs|/call)?)?|import|events|keys/\{key\})$";

async fn prepared() -> Gateway {
    let gateway = Setup::new().scripted("one", &[]).connected().await;
    let admin = Api::admin(&gateway);
    admin.projects(&["a", "0"], "0", &[]).await;
    for project in ["a", "0"] {
        admin.get(&format!("/tools?project={project}")).await;
    }
    gateway
}

async fn run(gateway: &Gateway, token: &str) {
    let examples = if soak() { "200" } else { "10" };
    let folder = gateway.folder().join("schemathesis");
    std::fs::create_dir_all(&folder).expect("a folder");
    let phases = "examples,coverage,fuzzing";
    let mut command = Command::new(installed(venv().join("bin/st")));
    command
        .current_dir(&folder)
        .env("HOME", &folder)
        .args(["run", &format!("{}/openapi.json", gateway.url)])
        .args(["--header", &format!("Authorization: Bearer {token}")])
        .args(["--checks", CHECKS, "--exclude-path-regex", EXCLUDED_PATHS])
        .args(["--phases", phases, "--max-examples", examples])
        .args(["--generation-deterministic", "--continue-on-failure"])
        .args(["--request-timeout", "20", "--workers", "1"])
        .args(["--no-color", "--warnings", "off"])
        .kill_on_drop(true);
    let limit = RUN_TIMEOUT * if soak() { 20 } else { 1 };
    let done = timeout(limit, command.output()).await;
    let done = done.expect("schemathesis ends in time");
    let done = done.expect("schemathesis runs");
    let said = String::from_utf8_lossy(&done.stdout);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}{errors}");
    // Asserts that schemathesis has generated test cases.
    holds(&said, &["Fuzzing", "generated"]);
}

#[tokio::test]
async fn an_administrator_finds_no_fault() {
    let gateway = prepared().await;
    run(&gateway, &gateway.token()).await;
    Api::admin(&gateway).get("/status").await;
}

#[tokio::test]
async fn a_reader_finds_no_fault() {
    let gateway = prepared().await;
    let (_, token) = Api::admin(&gateway).key("a", "read").await;
    run(&gateway, &token).await;
    Api::with(&gateway, &token).get("/projects/a").await;
}
