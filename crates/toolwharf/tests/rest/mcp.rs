//! Authorization over MCP: every method with every kind of key, over each transport of both eras.

use serde_json::json;
use testkit::{DEADLINE, Peer, RawClient, Reply, peer};

use crate::{
    api::Api,
    common::{Gateway, LEGACY, Setup, rpc},
};

/// Method, params, and whether the request uses something or only lists.
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
    let at = |path: &str| client(gateway, path, Some(token));
    match transport {
        "sse" => Peer::sse(at("/sse/a"), capabilities).await,
        version => Peer::http(at("/mcp/a"), version, capabilities).await,
    }
}

/// Sends a client's first request and returns the response.
async fn knock(gateway: &Gateway, transport: &str, project: &str, token: Option<&str>) -> Reply {
    let at = |path: &str| client(gateway, &format!("{path}/{project}"), token);
    match transport {
        "sse" => at("/sse").get(&[]).await.collect(DEADLINE).await,
        peer::MODERN => {
            let method = "tools/list";
            let request = rpc::modern(1, method, json!({})).to_string();
            at("/mcp").post_with(&rpc::headers(method), request).await
        }
        version => rpc::initialize(&at("/mcp"), version).await,
    }
}

#[tokio::test]
async fn every_method_with_every_key() {
    let settings = "require_key = true\n[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\n";
    let gateway = Setup::new().settings(settings).serve().await;
    let admin = Api::admin(&gateway);
    let options = ["--prompts", "1"];
    admin.projects(&["a", "b"], "own", &options).await;
    let [revoked, expired] = admin.lost_keys().await;
    let unknown = format!("twh_{}", "0".repeat(48));

    // These callers are rejected at once.
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
            let challenge = reply.header("www-authenticate");
            assert_eq!(challenge, Some("Bearer"), "{transport}");
        }
        for role in ["read", "call", "manage"] {
            let (_, token) = admin.key("b", role).await;
            let reply = knock(&gateway, transport, "a", Some(&token)).await;
            assert_eq!(reply.status, 404, "{transport} {role}: {}", reply.text());
            let none = knock(&gateway, transport, "none", Some(&token)).await;
            assert_eq!(none.status, 404);
            let same = none.text().replace("`none`", "`a`");
            assert_eq!(reply.text(), same, "{transport} {role}");
        }
    }

    // These callers are admitted.
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
                let what = format!("{transport} {role} {method}: {outcome:?}");
                assert_eq!(forbidden, *uses && *role == "read", "{what}");
                if !uses {
                    outcome.result();
                }
            }
            if *role != "read" {
                let echoed = peer.tool("echo", json!({"text": "x"})).await;
                assert_eq!(echoed.text(), r#"{"text":"x"}"#);
            }
        }
    }

    // A project key is limited to its project in every path. Revoking a key ends its session.
    let (id, token) = admin.key("a", "call").await;
    let own = client(&gateway, "/mcp", Some(&token));
    let mut peer = Peer::http(own, LEGACY, peer::all_capabilities()).await;
    peer.tool("echo", json!({"text": "x"})).await.text();
    admin.delete(&format!("/keys/{id}?project=a")).await;
    let outcome = peer.tool("echo", json!({"text": "x"})).await;
    assert!(outcome.response["error"].is_object(), "{outcome:?}");
}
