//! Authorization over MCP: every method with every kind of key, over each transport of both eras.

use serde_json::json;
use testkit::{DEADLINE, Peer, RawClient, Reply, peer, wait_for};

use crate::{
    api::Api,
    common::{Gateway, LEGACY, Setup, scripted},
};

/// Method, params, and whether it uses something or only lists.
const METHODS: &[(&str, &str, bool)] = &[
    ("tools/list", "{}", false),
    ("prompts/list", "{}", false),
    ("resources/list", "{}", false),
    ("resources/templates/list", "{}", false),
    (
        "tools/call",
        r#"{"name":"echo","arguments":{"text":"x"}}"#,
        true,
    ),
    ("prompts/get", r#"{"name":"prompt_0"}"#, true),
    ("resources/read", r#"{"uri":"test://one"}"#, true),
    (
        "completion/complete",
        r#"{"ref":{"type":"ref/prompt","name":"prompt_0"},"argument":{"name":"a","value":""}}"#,
        true,
    ),
];

/// The ways in which clients connect.
const TRANSPORTS: [&str; 3] = [LEGACY, peer::MODERN, "sse"];

fn client(gateway: &Gateway, path: &str, token: Option<&str>) -> RawClient {
    let client = gateway.at(path);
    match token {
        Some(token) => client.with("authorization", &format!("Bearer {token}")),
        None => client,
    }
}

async fn connect(gateway: &Gateway, transport: &str, token: &str) -> Peer {
    let capabilities = peer::all_capabilities();
    match transport {
        "sse" => Peer::sse(client(gateway, "/sse/a", Some(token)), capabilities).await,
        version => {
            Peer::http(
                client(gateway, "/mcp/a", Some(token)),
                version,
                capabilities,
            )
            .await
        }
    }
}

/// Sends a client's first request and returns the response.
async fn knock(gateway: &Gateway, transport: &str, project: &str, token: Option<&str>) -> Reply {
    let at = |path: &str| client(gateway, &format!("{path}/{project}"), token);
    match transport {
        "sse" => at("/sse").get(&[]).await.collect(DEADLINE).await,
        peer::MODERN => {
            let meta = json!({
                "io.modelcontextprotocol/protocolVersion": peer::MODERN,
                "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            });
            let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}});
            let headers = [
                ("mcp-protocol-version", peer::MODERN),
                ("mcp-method", "tools/list"),
            ];
            at("/mcp").post_with(&headers, request.to_string()).await
        }
        version => {
            let params = json!({"protocolVersion": version, "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"}});
            let request =
                json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
            at("/mcp").post(request.to_string()).await
        }
    }
}

#[tokio::test]
async fn every_method_with_every_key() {
    let settings = "require_key = true\n[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\n";
    let gateway = Setup::new().settings(settings).serve().await;
    let admin = Api::admin(&gateway);
    for project in ["a", "b"] {
        admin.project(project).await;
        admin
            .server(project, "own", scripted("own", &["--prompts", "1"]))
            .await;
    }
    let (id, revoked) = admin.key("a", "manage").await;
    admin
        .delete(&format!("/keys/{id}?project=a"))
        .await;
    let soon = chrono::Utc::now() + chrono::Duration::milliseconds(500);
    let wanted = json!({"name": "k", "role": "manage", "expires_at": soon});
    let made = admin.ok("POST", "/keys?project=a", wanted).await;
    let expired = made["token"].as_str().expect("a key").to_owned();
    wait_for("the expiry", DEADLINE, async || {
        knock(&gateway, LEGACY, "a", Some(&expired)).await.status == 401
    })
    .await;
    let unknown = format!("twh_{}", "0".repeat(48));

    // Callers that are rejected at once.
    for transport in TRANSPORTS {
        for token in [
            None,
            Some("theirs"),
            Some(&*unknown),
            Some(&*revoked),
            Some(&*expired),
        ] {
            let reply = knock(&gateway, transport, "a", token).await;
            assert_eq!(reply.status, 401, "{transport} {token:?}: {}", reply.text());
            assert_eq!(
                reply.header("www-authenticate"),
                Some("Bearer"),
                "{transport}"
            );
        }
        for role in ["read", "call", "manage"] {
            let (_, token) = admin.key("b", role).await;
            let reply = knock(&gateway, transport, "a", Some(&token)).await;
            assert_eq!(reply.status, 404, "{transport} {role}: {}", reply.text());
            let none = knock(&gateway, transport, "none", Some(&token)).await;
            assert_eq!(none.status, 404);
            assert_eq!(
                reply.text(),
                none.text().replace("`none`", "`a`"),
                "{transport} {role}"
            );
        }
    }

    // Callers that are admitted.
    let mut callers = vec![("admin", gateway.token())];
    for role in ["read", "call", "manage"] {
        callers.push((role, admin.key("a", role).await.1));
    }
    for transport in TRANSPORTS {
        for (role, token) in &callers {
            let mut peer = connect(&gateway, transport, token).await;
            for (method, params, uses) in METHODS {
                let params = serde_json::from_str(params).expect(params);
                let outcome = peer.request(method, params).await;
                let forbidden = outcome.response["error"]["data"]["reason"] == "forbidden";
                let expected = *uses && *role == "read";
                assert_eq!(
                    forbidden, expected,
                    "{transport} {role} {method}: {outcome:?}"
                );
                if !uses {
                    outcome.result();
                }
            }
            if *role != "read" {
                assert_eq!(
                    peer.tool("echo", json!({"text": "x"})).await.text(),
                    r#"{"text":"x"}"#
                );
            }
        }
    }

    // A project key is limited to its project in every path. Revoking a key ends its session.
    let (id, token) = admin.key("a", "call").await;
    let mut peer = Peer::http(
        client(&gateway, "/mcp", Some(&token)),
        LEGACY,
        peer::all_capabilities(),
    )
    .await;
    peer.tool("echo", json!({"text": "x"})).await.text();
    admin
        .delete(&format!("/keys/{id}?project=a"))
        .await;
    let outcome = peer.tool("echo", json!({"text": "x"})).await;
    assert!(outcome.response["error"].is_object(), "{outcome:?}");
}
