//! `toolwharf doctor` beside a running gateway: it reports what the gateway knows, and each problem once.

use std::path::Path;

use crate::common::{
    Gateway, Setup,
    cli::Said,
    shell::{json_of, ok, on},
};
use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, wait_for};

async fn doctor(gateway: &Gateway) -> Said {
    on(
        gateway,
        "doctor --config mcp.json --config toolwharf.toml -o json",
    )
    .await
}

/// The findings about `of` that are not `ok`.
fn problems(report: &Value, of: &str) -> Vec<String> {
    let findings = report["findings"].as_array().expect("findings");
    let of = format!("`{of}`");
    let text = |finding: &Value| finding["what"].as_str().unwrap_or_default().to_owned();
    let bad = findings.iter().filter(|finding| finding["level"] != "ok");
    bad.map(text).filter(|what| what.contains(&of)).collect()
}

#[tokio::test]
async fn a_hosted_server_that_does_not_come_up_is_a_problem() {
    let gateway = Setup::new().serve().await;
    let scripted = Bin::path("testkit-scripted").display().to_string();
    ok(&gateway, &format!("add good --sandbox -- {scripted}"), "").await;
    let said = doctor(&gateway).await.code(0);
    assert!(said.out.contains("server `good` is running"), "{said:?}");
    let options = "--exit-at-start --stderr-at-start 'no licence'";
    on(
        &gateway,
        &format!("add bad --sandbox -- {scripted} {options}"),
    )
    .await;
    wait_for("its backoff", DEADLINE, async || {
        json_of(&gateway, "get bad").await["status"] == "backoff"
    })
    .await;
    let said = doctor(&gateway).await.code(1);
    let report = said.json();
    assert_eq!(report["problems"], 1, "{said:?}");
    let own = problems(&report, "bad");
    assert_eq!(own.len(), 1, "{said:?}");
    assert!(
        own[0].contains("exit code 5") && own[0].contains("| no licence"),
        "{own:?}"
    );
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
    let said = doctor(&gateway).await.code(1);
    let report = said.json();
    assert_eq!(report["problems"], 2, "{said:?}");
    for server in ["gone", "path"] {
        assert_eq!(problems(&report, server).len(), 1, "{server}: {said:?}");
    }
    assert!(said.out.contains("not in PATH"), "{said:?}");
}

/// The running gateway's view counts: it may find programs that this shell does not.
#[tokio::test]
async fn what_runs_is_no_problem() {
    let bin = Bin::path("testkit-scripted");
    let folder = bin.parent().map(Path::to_owned).unwrap_or_default();
    let path = std::env::var("PATH").unwrap_or_default();
    let gateway = Setup::new()
        .env("PATH", &format!("{}:{path}", folder.display()))
        .server("one", json!({ "command": "testkit-scripted" }))
        .serve()
        .await;
    gateway.up("one").await;
    let said = doctor(&gateway).await.code(0);
    assert_eq!(said.json()["problems"], 0, "{said:?}");
}

/// Variables are taken from the gateway's environment, not from the shell that runs `doctor`.
#[tokio::test]
async fn variables_are_those_of_the_gateway() {
    let bin = Bin::path("testkit-scripted");
    let entry = |key: &str| json!({ "command": bin, "env": { "KEY": key } });
    let gateway = Setup::new()
        .env("ITS_OWN", "1")
        .server("one", entry("${ITS_OWN}"))
        .serve()
        .await;
    gateway.up("one").await;
    let said = doctor(&gateway).await.code(0);
    assert_eq!(said.json()["problems"], 0, "{said:?}");
    let servers = json!({ "mcpServers": { "one": entry("${NOBODYS}") } }).to_string();
    std::fs::write(gateway.folder().join("mcp.json"), servers).expect("a file");
    let said = doctor(&gateway).await.code(1);
    assert_eq!(problems(&said.json(), "NOBODYS").len(), 1, "{said:?}");
}

#[tokio::test]
async fn a_gateway_with_other_files_is_named() {
    let gateway = Setup::new().serve().await;
    std::fs::write(gateway.folder().join("other.json"), r#"{"mcpServers":{}}"#).expect("a file");
    let said = on(&gateway, "doctor --config other.json").await.code(1);
    let pid = gateway.process.pid().to_string();
    for part in [&*gateway.url, &*pid, "mcp.json", "--config"] {
        assert!(said.out.contains(part), "{part}: {said:?}");
    }
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
    let said = doctor(&gateway).await;
    let text = said.json().to_string();
    assert!(!text.contains("hidden"), "{text}");
    let report = said.json();
    let fields = |of: &str| {
        let found = problems(&report, of);
        let found = found.iter().filter(|what| what.contains("plain text"));
        let mut fields: Vec<String> = found
            .filter_map(|what| Some(what.split('`').nth(1)?.to_owned()))
            .collect();
        fields.sort();
        fields
    };
    assert_eq!(fields("web"), ["headers.Authorization"]);
    assert_eq!(fields("local"), ["args.0", "env.API_TOKEN"]);
    for part in [
        "${API_TOKEN}",
        "toolwharf secret set API_TOKEN --project",
        "toolwharf secret set WEB_AUTHORIZATION --project",
        "toolwharf secret set LOCAL_API_KEY --project",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
