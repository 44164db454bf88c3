//! The administrator's API: authorization, refusals, and answers that are true at once.

mod common;

use common::{Gateway, Setup, scripted};
use http::Method;
use serde_json::{Value, json};
use testkit::{DEADLINE, Reply, within};
use tokio::task::JoinSet;

/// Routes that change files or processes, each with a meaningful request.
const ROWS: &[(&str, &str, &str, &str)] = &[
    ("GET", "/api/v1", "/api/v1", ""),
    ("GET", "/api/v1/mcp/servers", "/api/v1/mcp/servers", ""),
    (
        "GET",
        "/api/v1/mcp/servers/{id}",
        "/api/v1/mcp/servers/one",
        "",
    ),
    (
        "PUT",
        "/api/v1/mcp/servers/{id}",
        "/api/v1/mcp/servers/new",
        r#"{"command":"true"}"#,
    ),
    (
        "POST",
        "/api/v1/mcp/servers/{id}/disable",
        "/api/v1/mcp/servers/new/disable",
        "{}",
    ),
    (
        "POST",
        "/api/v1/mcp/servers/{id}/enable",
        "/api/v1/mcp/servers/new/enable",
        "{}",
    ),
    (
        "DELETE",
        "/api/v1/mcp/servers/{id}",
        "/api/v1/mcp/servers/new",
        "",
    ),
    (
        "POST",
        "/api/v1/import",
        "/api/v1/import",
        r#"{"text":"{\"mcpServers\":{}}"}"#,
    ),
    (
        "GET",
        "/api/v1/mcp/servers/{id}/logs",
        "/api/v1/mcp/servers/one/logs",
        "",
    ),
    (
        "PUT",
        "/api/v1/mcp/servers/{id}/tools/{tool}",
        "/api/v1/mcp/servers/one/tools/echo",
        r#"{"enabled":false}"#,
    ),
    (
        "DELETE",
        "/api/v1/mcp/servers/{id}/tools/{tool}",
        "/api/v1/mcp/servers/one/tools/echo",
        "",
    ),
    ("GET", "/api/v1/tools", "/api/v1/tools", ""),
];

async fn ask(
    gateway: &Gateway,
    method: &str,
    path: &str,
    body: impl Into<bytes::Bytes>,
    headers: &[(&str, &str)],
) -> Reply {
    let method: Method = method.parse().expect("a method");
    let answer = gateway.at(path).send(method, headers, body).await;
    answer.collect(DEADLINE).await
}

/// Sends a request as the administrator.
async fn admin(
    gateway: &Gateway,
    method: &str,
    path: &str,
    body: impl Into<bytes::Bytes>,
) -> Reply {
    let token = format!("Bearer {}", gateway.token());
    ask(gateway, method, path, body, &[("authorization", &token)]).await
}

#[track_caller]
fn problem(reply: &Reply, status: u16) -> String {
    assert_eq!(reply.status, status, "{}", reply.text());
    assert_eq!(
        reply.header("content-type"),
        Some("application/problem+json")
    );
    let problem: Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!(problem["status"], status);
    assert_eq!(problem["type"], "about:blank");
    assert!(problem["title"].is_string(), "{problem}");
    problem["detail"].as_str().expect("a detail").to_owned()
}

fn file(gateway: &Gateway) -> String {
    std::fs::read_to_string(gateway.servers_file()).expect("a file")
}

#[tokio::test]
async fn foreign_pages_are_refused_with_the_right_token_too() {
    let gateway = Setup::new().scripted("one", &[]).serve().await;
    let token = format!("Bearer {}", gateway.token());
    let before = file(&gateway);
    for (method, _, path, body) in ROWS {
        for foreign in [
            ("origin", "http://evil.example.com"),
            ("origin", "null"),
            ("host", "evil.example.com"),
        ] {
            let headers = [("authorization", token.as_str()), foreign];
            let reply = ask(&gateway, method, path, *body, &headers).await;
            assert_eq!(reply.status, 403, "{method} {path} {foreign:?}");
        }
    }
    assert_eq!(file(&gateway), before);
}

#[tokio::test]
async fn what_is_wrong_changes_nothing_and_is_explained() {
    let gateway = Setup::new().scripted("one", &[]).serve().await;
    gateway.up("one").await;
    let before = file(&gateway);
    let pid = async || {
        let reply = admin(&gateway, "GET", "/api/v1/mcp/servers/one", "").await;
        let row: Value = serde_json::from_slice(&reply.body).expect("JSON");
        row["pid"].clone()
    };
    let running = pid().await;
    assert!(running.is_u64());
    let servers = "/api/v1/mcp/servers";
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    let large = format!("{{\"command\":\"{}\"}}", "x".repeat(300 << 10));
    for (method, path, body, status, part) in [
        ("PUT", format!("{servers}/x"), "{", 400, "JSON"),
        ("PUT", format!("{servers}/x"), "", 400, "JSON"),
        (
            "PUT",
            format!("{servers}/x"),
            r#"{"command":"a","command":"b"}"#,
            400,
            "JSON",
        ),
        ("PUT", format!("{servers}/x"), deep.as_str(), 400, "JSON"),
        ("PUT", format!("{servers}/x"), large.as_str(), 413, "large"),
        ("PUT", format!("{servers}/x"), "[]", 422, "object"),
        ("PUT", format!("{servers}/x"), "{}", 422, "command"),
        (
            "PUT",
            format!("{servers}/x"),
            r#"{"command":"a","type":"pigeon"}"#,
            422,
            "pigeon",
        ),
        (
            "PUT",
            format!("{servers}/one"),
            r#"{"url":"gopher://x"}"#,
            422,
            "url",
        ),
        (
            "PUT",
            format!("{servers}/x"),
            r#"{"command":"a","env":{"K":"sesame${SURELY_NOT_SET}"}}"#,
            422,
            "SURELY_NOT_SET",
        ),
        (
            "PUT",
            format!("{servers}/a%2Fb"),
            r#"{"command":"a"}"#,
            422,
            "/",
        ),
        (
            "PUT",
            format!("{servers}/a%0Ab"),
            r#"{"command":"a"}"#,
            422,
            "control",
        ),
        (
            "PUT",
            format!("{servers}/%2E%2E"),
            r#"{"command":"a"}"#,
            422,
            "..",
        ),
        ("GET", format!("{servers}/none"), "", 404, "none"),
        ("DELETE", format!("{servers}/none"), "", 404, "none"),
        ("POST", format!("{servers}/none/enable"), "{}", 404, "none"),
        ("GET", format!("{servers}/none/logs"), "", 404, "none"),
        (
            "GET",
            format!("{servers}/one/logs?tail=many"),
            "",
            400,
            "tail",
        ),
        (
            "PUT",
            format!("{servers}/none/tools/t"),
            r#"{"enabled":false}"#,
            404,
            "none",
        ),
        (
            "PUT",
            format!("{servers}/one/tools/none"),
            r#"{"enabled":false}"#,
            404,
            "none",
        ),
        ("GET", "/api/v1/tools?project=none".into(), "", 404, "none"),
        (
            "GET",
            "/api/v1/tools?project=a%20b".into(),
            "",
            404,
            "project",
        ),
        ("GET", "/api/v1/tools?server=none".into(), "", 404, "none"),
        (
            "POST",
            "/api/v1/import".into(),
            r#"{"text":"{"}"#,
            409,
            "invalid JSON",
        ),
        ("POST", "/api/v1/import".into(), "{}", 400, "text"),
    ] {
        let reply = admin(&gateway, method, &path, body.to_owned()).await;
        let detail = problem(&reply, status);
        assert!(detail.contains(part), "{method} {path}: {detail}");
        assert!(!detail.contains("sesame"), "{detail}");
    }
    let none_match = [
        ("authorization", &*format!("Bearer {}", gateway.token())),
        ("if-none-match", "*"),
    ];
    let path = format!("{servers}/one");
    let reply = ask(&gateway, "PUT", &path, r#"{"command":"a"}"#, &none_match).await;
    problem(&reply, 412);
    assert_eq!(file(&gateway), before);
    assert_eq!(pid().await, running, "the server was restarted");
}

#[tokio::test]
async fn a_broken_file_keeps_the_old_configuration_and_says_so() {
    let gateway = Setup::new().scripted("one", &[]).serve().await;
    gateway.up("one").await;
    let broken = json!({"mcpServers": {"one": scripted("one", &[]), "bad": {"type": "pigeon"}}});
    gateway.replace(&gateway.servers_file(), &broken.to_string());
    gateway.logged("keeping the old one").await;
    let reply = admin(
        &gateway,
        "PUT",
        "/api/v1/mcp/servers/two",
        scripted("two", &[]).to_string(),
    )
    .await;
    assert_eq!(reply.status, 201, "{}", reply.text());
    let saved: Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert!(
        saved["notices"][0]
            .as_str()
            .is_some_and(|w| w.contains("pigeon")),
        "{saved}"
    );
    assert_eq!(saved["status"], "unusable", "{saved}");
    // Removing the invalid entry puts the whole file into effect.
    let reply = admin(&gateway, "DELETE", "/api/v1/mcp/servers/bad", "").await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    gateway.up("two").await;
}

#[tokio::test]
async fn answers_reflect_the_change_and_no_change_is_lost() {
    let mut gateway = Setup::new().scripted("one", &[]).serve().await;
    gateway.up("one").await;
    let path = |n: usize| format!("/api/v1/mcp/servers/s{n}");
    let token = format!("Bearer {}", gateway.token());
    let mut all = JoinSet::new();
    for n in 0..24 {
        let (client, token) = (gateway.at(&path(n)), token.clone());
        all.spawn(async move {
            let headers = [("authorization", token.as_str())];
            // Disabled, because this test is about files and not about processes.
            let body = r#"{"command":"true","disabled":true}"#;
            let reply = client
                .send(Method::PUT, &headers, body)
                .await
                .collect(DEADLINE)
                .await;
            assert_eq!(reply.status, 201, "{}", reply.text());
            let saved: Value = serde_json::from_slice(&reply.body).expect("JSON");
            assert_eq!(saved["status"], "disabled", "{saved}");
            let reply = client
                .send(Method::GET, &headers, "")
                .await
                .collect(DEADLINE)
                .await;
            assert_eq!(reply.status, 200, "{}", reply.text());
        });
    }
    within("all changes", DEADLINE, async {
        while let Some(done) = all.join_next().await {
            done.expect("a change");
        }
    })
    .await;
    let written: Value = serde_json::from_str(&file(&gateway)).expect("JSON");
    assert_eq!(written["mcpServers"].as_object().map(|s| s.len()), Some(25));
    // A later manual edit is still noticed.
    gateway.edit(|servers| {
        servers.insert("hand".into(), scripted("hand", &[]));
    });
    gateway.up("hand").await;
}
