//! `toolwharf doctor` while a gateway runs: the command reports what the gateway knows, and each problem only once.

use std::path::Path;

use super::support::scripted;
use crate::common::{
    Gateway, Setup,
    cli::Said,
    holds,
    shell::{json_of, ok, on},
};
use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, wait_for};

const DOCTOR: &str = "doctor --config mcp.json --config toolwharf.toml -o json";

/// Runs `doctor`, which must find this number of problems. Returns its output.
async fn problems(gateway: &Gateway, count: u64) -> Said {
    let said = on(gateway, DOCTOR).await.code(i32::from(count > 0));
    assert_eq!(said.json()["problems"], count, "{said:?}");
    said
}

/// Returns the findings about `of` whose level is not `ok`.
fn found(said: &Said, of: &str) -> Vec<String> {
    let report = said.json();
    let findings = report["findings"].as_array().expect("findings");
    let of = format!("`{of}`");
    let text = |finding: &Value| finding["what"].as_str().unwrap_or_default().to_owned();
    let bad = findings.iter().filter(|finding| finding["level"] != "ok");
    bad.map(text).filter(|what| what.contains(&of)).collect()
}

#[tokio::test]
async fn a_hosted_server_that_does_not_come_up_is_a_problem() {
    let gateway = Setup::new().serve().await;
    let add =
        |name: &str, options: &str| format!("add {name} --sandbox -- {} {options}", scripted());
    ok(&gateway, &add("good", ""), "").await;
    let said = problems(&gateway, 0).await;
    assert!(said.out.contains("server `good` is running"), "{said:?}");
    let options = "--exit-at-start --stderr-at-start 'no licence'";
    on(&gateway, &add("bad", options)).await;
    wait_for("its backoff", DEADLINE, async || {
        json_of(&gateway, "get bad").await["status"] == "backoff"
    })
    .await;
    let own = found(&problems(&gateway, 1).await, "bad");
    assert_eq!(own.len(), 1, "{own:?}");
    holds(&own[0], &["exit code 5", "| no licence"]);
}

#[tokio::test]
async fn a_missing_command_is_one_problem() {
    let gateway = Setup::new()
        .server("gone", json!({ "command": "surely-not-there" }))
        .server("path", json!({ "command": "/surely/not" }))
        .scripted("one", &[])
        .serve()
        .await;
    gateway.up("one").await;
    let said = problems(&gateway, 2).await;
    for server in ["gone", "path"] {
        assert_eq!(found(&said, server).len(), 1, "{server}: {said:?}");
    }
    assert!(said.out.contains("not in PATH"), "{said:?}");
}

/// `doctor` reports the programs and variables that the running gateway finds, not those of the shell that runs
/// `doctor`.
#[tokio::test]
async fn programs_and_variables_are_those_of_the_gateway() {
    let bin = Bin::path("testkit-scripted");
    let folder = bin.parent().map(Path::to_owned).unwrap_or_default();
    let path = std::env::var("PATH").unwrap_or_default();
    let entry = |key: &str| json!({ "command": "testkit-scripted", "env": { "KEY": key } });
    let gateway = Setup::new()
        .env("PATH", &format!("{}:{path}", folder.display()))
        .env("ITS_OWN", "1")
        .server("one", entry("${ITS_OWN}"))
        .connected()
        .await;
    problems(&gateway, 0).await;
    let servers = json!({ "mcpServers": { "one": entry("${NOBODYS}") } }).to_string();
    std::fs::write(gateway.folder().join("mcp.json"), servers).expect("a file");
    let said = on(&gateway, DOCTOR).await.code(1);
    assert_eq!(found(&said, "NOBODYS").len(), 1, "{said:?}");
}

#[tokio::test]
async fn a_gateway_with_other_files_is_named() {
    let gateway = Setup::new().serve().await;
    std::fs::write(gateway.folder().join("other.json"), r#"{"mcpServers":{}}"#).expect("a file");
    let said = on(&gateway, "doctor --config other.json").await.code(1);
    let pid = gateway.process.pid().to_string();
    holds(&said.out, &[&gateway.url, &pid, "mcp.json", "--config"]);
}

#[tokio::test]
async fn a_secret_in_the_file_is_named_with_the_way_out() {
    let entry = json!({ "url": "http://127.0.0.1:9/mcp", "enabled": false,
        "headers": { "Authorization": "Bearer hidden-1", "X-Team": "hidden-2", "X-Key": "${KEY}" } });
    let run = json!({ "command": "no-such-program", "args": ["--api-key=hidden-3"], "enabled": false,
        "env": { "API_TOKEN": "hidden-4", "REGION": "hidden-5" } });
    let gateway = Setup::new()
        .server("web", entry)
        .server("local", run)
        .serve()
        .await;
    let said = on(&gateway, DOCTOR).await;
    let text = said.json().to_string();
    assert!(!text.contains("hidden"), "{text}");
    let fields = |of: &str| {
        let found = found(&said, of).into_iter();
        let found = found.filter(|what| what.contains("plain text"));
        let fields = found.filter_map(|what| Some(what.split('`').nth(1)?.to_owned()));
        let mut fields: Vec<String> = fields.collect();
        fields.sort();
        fields
    };
    assert_eq!(fields("web"), ["headers.Authorization"]);
    assert_eq!(fields("local"), ["args.0", "env.API_TOKEN"]);
    for name in ["API_TOKEN", "WEB_AUTHORIZATION", "LOCAL_API_KEY"] {
        let set = format!("toolwharf secret set {name}`");
        holds(&text, &["${API_TOKEN}", &set]);
    }
}
