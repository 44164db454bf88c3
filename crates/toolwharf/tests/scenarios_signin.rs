//! Scenarios S09 and S10 of the acceptance list: users with tokens of a real issuer.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use common::{Gateway, LEGACY, Setup, checks, tools};
use serde_json::{Value, json};
use testkit::{DEADLINE, Issuer, Peer, RawClient, Reply, peer, wait_for};

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
const ACCESS: &str = r#"access = [
  { claim = "groups", values = ["ml"], role = "call", projects = ["ml"] },
  { claim = "groups", values = ["guests"], role = "read", projects = ["ml"] },
  { claim = "groups", values = ["both"], role = "call", projects = ["ml", "other"] },
  { claim = "groups", values = ["operators"], role = "admin" },
]
"#;

/// A gateway that accepts tokens of `issuer`, with two servers, of which project `ml` sees one.
async fn gateway(issuer: &Issuer) -> Gateway {
    let settings = format!(
        "[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\n[projects.ml]\nservers = [\"one\"]\n\
         [projects.other]\nservers = [\"two\"]\n\
         [auth.oidc.corp]\nissuer = \"{}\"\nscopes = [\"mcp:call\"]\n{ACCESS}",
        issuer.url()
    );
    let setup = Setup::new().settings(&settings);
    let setup = setup.scripted("one", &["--tools", "1"]);
    setup.scripted("two", &["--tools", "1"]).connected().await
}

/// Returns a token for the whole gateway, of a user in these groups, with changed claims.
async fn token(issuer: &Issuer, gateway: &Gateway, groups: &[&str], mut changes: Value) -> String {
    changes["groups"] = json!(groups);
    let scopes = ["mcp:call"];
    issuer
        .token("ann", "client", &gateway.url, &scopes, changes)
        .await
}

fn with(gateway: &Gateway, path: &str, token: &str) -> RawClient {
    gateway
        .at(path)
        .with("authorization", &format!("Bearer {token}"))
}

async fn initialize(gateway: &Gateway, path: &str, token: &str) -> Reply {
    with(gateway, path, token).post(INITIALIZE).await
}

async fn status(gateway: &Gateway, path: &str, token: &str) -> u16 {
    initialize(gateway, path, token).await.status.as_u16()
}

/// An MCP client with this token.
async fn connect(gateway: &Gateway, path: &str, version: &str, token: &str) -> Peer {
    let client = with(gateway, path, token);
    Peer::http(client, version, peer::all_capabilities()).await
}

async fn get(client: &RawClient) -> Reply {
    client.get(&[]).await.collect(DEADLINE).await
}

async fn document(url: &str) -> Value {
    let reply = get(&RawClient::new(url)).await;
    assert_eq!(reply.status, 200, "{url}: {}", reply.text());
    serde_json::from_slice(&reply.body).unwrap()
}

/// Returns the value of `name=` in a challenge, without quotes.
fn parameter(challenge: &str, name: &str) -> String {
    let (_, rest) = challenge.split_once(&format!("{name}=\"")).unwrap();
    rest.split('"').next().unwrap().to_owned()
}

/// A client that knows only the gateway's address finds the issuer, registers, has its user sign in, and calls a tool.
#[tokio::test]
async fn s09_a_client_finds_the_issuer_and_signs_its_person_in() {
    let issuer = Issuer::start(json!({ "accounts": { "ann": { "groups": ["ml"] } } })).await;
    let gateway = gateway(&issuer).await;
    let refused = gateway.at("/mcp/ml").post(INITIALIZE).await;
    assert_eq!(refused.status, 401);
    let challenge = refused.header("www-authenticate").unwrap();
    assert_eq!(parameter(challenge, "scope"), "mcp:call");
    assert!(!challenge.contains("error"), "{challenge}");
    let metadata = document(&parameter(challenge, "resource_metadata")).await;
    let resource = format!("{}/mcp/ml", gateway.url);
    assert_eq!(metadata["resource"], resource);
    assert_eq!(metadata["scopes_supported"], json!(["mcp:call"]));
    let found = metadata["authorization_servers"][0].as_str().unwrap();
    assert_eq!(found, issuer.url());
    let found = document(&format!("{found}/.well-known/oauth-authorization-server")).await;

    let redirect = "http://127.0.0.1:9/callback";
    let registration = json!({ "redirect_uris": [redirect], "token_endpoint_auth_method": "none" });
    let registered = RawClient::new(found["registration_endpoint"].as_str().unwrap());
    let registered = registered.post(registration.to_string()).await;
    let registered: Value = serde_json::from_slice(&registered.body).unwrap();
    let client = registered["client_id"].as_str().unwrap();
    let ask = format!(
        "{}?response_type=code&client_id={client}&redirect_uri={redirect}&scope=openid%20mcp:call&resource={resource}\
         &code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM&code_challenge_method=S256",
        found["authorization_endpoint"].as_str().unwrap()
    );
    let place = issuer.sign_in(&ask, "ann").await;
    let code = place.split("code=").nth(1).unwrap();
    let code = code.split('&').next().unwrap();
    let form = format!(
        "grant_type=authorization_code&code={code}&redirect_uri={redirect}&client_id={client}&resource={resource}\
         &code_verifier=dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    );
    let kind = [("content-type", "application/x-www-form-urlencoded")];
    let endpoint = RawClient::new(found["token_endpoint"].as_str().unwrap());
    let tokens = endpoint.post_with(&kind, form).await;
    let tokens: Value = serde_json::from_slice(&tokens.body).unwrap();
    let token = tokens["access_token"].as_str().unwrap();

    for version in [LEGACY, peer::MODERN] {
        let mut peer = connect(&gateway, "/mcp/ml", version, token).await;
        let listed = tools(&mut peer).await;
        assert!(listed.contains(&"tool_0".to_owned()), "{version}");
        let echoed = peer.tool("echo", json!({ "text": "hello" })).await;
        assert!(echoed.result()["isError"] != true, "{version}: {echoed:?}");
    }
    // The token is valid for that endpoint only.
    for path in ["/mcp", "/mcp/other", "/api/v1"] {
        assert_eq!(status(&gateway, path, token).await, 401, "{path}");
    }
    // The caller is recorded, the token is not.
    let admin = with(&gateway, "/api/v1/calls", &gateway.token());
    let calls = get(&admin).await.text();
    checks::contains(&calls, &["user:corp:ann"]);
    checks::lacks(&calls, &[token]);
}

#[tokio::test]
async fn s09_metadata_is_at_every_endpoint_and_only_with_an_issuer() {
    let issuer = Issuer::start(json!({})).await;
    let gateway = gateway(&issuer).await;
    let at = "/.well-known/oauth-protected-resource";
    for path in ["", "/mcp", "/mcp/ml", "/mcp/-/one", "/api/v1"] {
        let metadata = document(&format!("{}{at}{path}", gateway.url)).await;
        assert_eq!(metadata["resource"], format!("{}{path}", gateway.url));
        assert_eq!(metadata["bearer_methods_supported"], json!(["header"]));
    }
    for path in ["/other", "/mcp/a/b/c", "/api/v2"] {
        let reply = get(&gateway.at(&format!("{at}{path}"))).await;
        assert_eq!(reply.status, 404, "{path}");
    }
    let without = Setup::new().serve().await;
    assert_eq!(get(&without.at(at)).await.status, 404);
    let refused = get(&without.at("/api/v1")).await;
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
}

#[tokio::test]
async fn s09_a_token_that_does_not_suffice_is_refused_with_what_helps() {
    let issuer = Issuer::start(json!({})).await;
    let gateway = gateway(&issuer).await;
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let invalid = "error=\"invalid_token\"";
    let ended = json!({ "exp": now - 300 });
    let early = json!({ "exp": now + 900, "nbf": now + 300 });
    let other = json!({ "aud": "https://other.example" });
    let nowhere = json!({ "aud": null });
    let unknown = json!({ "iss": "https://other.example" });
    let scope = json!({ "scope": "other" });
    let lacking = "error=\"insufficient_scope\"";
    let metadata = "resource_metadata=";
    for (changes, status, said, challenged) in [
        (ended, 401, "it expired 300 s ago", invalid),
        (early, 401, "ahead of the clock", invalid),
        (other, 401, "which is not this gateway", metadata),
        (nowhere, 401, "has no audience", metadata),
        (unknown, 401, "unknown, revoked or expired", invalid),
        (
            scope.clone(),
            403,
            "needs all of the scopes `mcp:call`",
            lacking,
        ),
        (scope, 403, "needs all of the scopes", "scope=\"mcp:call\""),
    ] {
        let token = token(&issuer, &gateway, &["ml"], changes.clone()).await;
        for path in ["/mcp/ml", "/api/v1/mcp/servers/one/call"] {
            let reply = initialize(&gateway, path, &token).await;
            assert_eq!(reply.status, status, "{path} {changes}: {}", reply.text());
            // Both clocks may have advanced by a second.
            let text = reply.text().replace("301 s", "300 s");
            checks::contains(&text, &[said]);
            let challenge = reply.header("www-authenticate").unwrap();
            let known = format!("{}/.well-known", gateway.url);
            checks::contains(challenge, &[challenged, &known]);
            checks::lacks(format!("{text}{challenge}"), &[&token]);
        }
    }
    // A user without groups is refused, and so is a token in the URL.
    let nobody = token(&issuer, &gateway, &[], json!({})).await;
    let reply = initialize(&gateway, "/mcp", &nobody).await;
    assert_eq!(reply.status, 403);
    checks::contains(reply.text(), &["`user:corp:ann` is signed in, but no rule"]);
    let good = token(&issuer, &gateway, &["ml"], json!({})).await;
    let query = gateway.at(&format!("/mcp/ml?access_token={good}"));
    assert_eq!(query.post(INITIALIZE).await.status, 401);
    assert_eq!(status(&gateway, "/mcp/ml", &good).await, 200);
    assert!(!gateway.process.stderr().contains(&good));
    // Keys still work.
    let key = gateway.token();
    assert_eq!(status(&gateway, "/mcp", &key).await, 200);
}

#[tokio::test]
async fn s09_claims_decide_role_and_projects() {
    let issuer = Issuer::start(json!({})).await;
    let gateway = gateway(&issuer).await;
    let several = "name one of `ml`, `other` as `/mcp/PROJECT`";
    for (group, path, expected, says) in [
        ("ml", "/mcp", 200, ""),
        ("ml", "/mcp/other", 404, ""),
        ("both", "/mcp/other", 200, ""),
        ("both", "/mcp", 400, several),
        ("both", "/api/v1/mcp/servers", 400, "as `?project=`"),
        ("both", "/api/v1/mcp/servers?project=ml", 200, ""),
        ("ml", "/api/v1/mcp/servers", 200, ""),
        ("ml", "/api/v1/mcp/servers?project=other", 404, ""),
        ("both", "/api/v1/status", 403, ""),
        ("operators", "/api/v1/status", 200, ""),
    ] {
        let token = token(&issuer, &gateway, &[group], json!({})).await;
        let client = with(&gateway, path, &token);
        let reply = match path.starts_with("/api") {
            true => get(&client).await,
            false => client.post(INITIALIZE).await,
        };
        assert_eq!(reply.status, expected, "{group} {path}: {}", reply.text());
        checks::contains(reply.text(), &[says]);
    }

    let mut outcomes = Vec::new();
    for groups in [["guests"], ["ml"]] {
        let token = token(&issuer, &gateway, &groups, json!({ "sub": groups[0] })).await;
        let mut peer = connect(&gateway, "/mcp", LEGACY, &token).await;
        let names = tools(&mut peer).await;
        assert!(names.contains(&"tool_0".to_owned()), "{names:?}");
        let called = peer.tool("tool_0", json!({})).await;
        outcomes.push(called.response["error"].is_null());
    }
    assert_eq!(outcomes, [false, true], "the wrong role may call");
}

/// A session lives as long as the newest token of its user.
#[tokio::test]
async fn s09_a_session_ends_with_the_last_token_of_its_person() {
    let issuer = Issuer::start(json!({})).await;
    let gateway = gateway(&issuer).await;
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    // Clocks may be off by 60 seconds.
    let ending = token(&issuer, &gateway, &["ml"], json!({ "exp": now - 55 })).await;
    let lasting = json!({ "sub": "bob", "exp": now - 55 });
    let first = token(&issuer, &gateway, &["ml"], lasting).await;
    let second = token(&issuer, &gateway, &["ml"], json!({ "sub": "bob" })).await;
    let mut sessions = Vec::new();
    for token in [&ending, &first] {
        let client = with(&gateway, "/mcp", token);
        let reply = client.post(INITIALIZE).await;
        let id = reply.header("mcp-session-id").unwrap().to_owned();
        let session = client.with("mcp-session-id", &id);
        let stream = session.get(&[("accept", "text/event-stream")]).await;
        assert_eq!(stream.status, 200);
        sessions.push((id, stream));
    }
    let (renewed, mut kept) = sessions.pop().unwrap();
    let (_, mut ended) = sessions.pop().unwrap();
    assert_eq!(status(&gateway, "/mcp", &second).await, 200);
    ended.closed(DEADLINE).await;
    assert_eq!(status(&gateway, "/mcp", &ending).await, 401);
    // Bob's session continues with his next token.
    let ping = r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#;
    let session = with(&gateway, "/mcp", &second).with("mcp-session-id", &renewed);
    let pong = session.post(ping).await;
    assert_eq!(pong.status, 200, "{}", pong.text());
    let event = kept.next_event(std::time::Duration::from_millis(50)).await;
    assert!(event.is_none_or(|event| event.json().is_none()));
}

#[tokio::test]
async fn s10_known_keys_go_on_while_the_issuer_rotates_is_down_or_lies() {
    let issuer = Issuer::start(json!({})).await;
    let gateway = gateway(&issuer).await;
    let fetched = async || issuer.count("jwks").await == 1;
    wait_for("the keys at the start", DEADLINE, fetched).await;
    let status = async |token: &str| status(&gateway, "/mcp/ml", token).await;
    let fresh = async |who: &str| token(&issuer, &gateway, &["ml"], json!({ "sub": who })).await;
    assert_eq!(status(&fresh("ann").await).await, 200);
    let asked = issuer.count("jwks").await;

    // The first token with a new key makes the gateway query the issuer. For the next minute, other unknown keys do
    // not.
    let old = fresh("old").await;
    issuer.rotate().await;
    assert_eq!(status(&fresh("bob").await).await, 200);
    assert_eq!(issuer.count("jwks").await, asked + 1);
    assert_eq!(status(&old).await, 401);
    let current = fresh("dan").await;
    issuer.rotate().await;
    for _ in 0..20 {
        let reply = initialize(&gateway, "/mcp/ml", &fresh("cy").await).await;
        assert_eq!(reply.status, 401);
        checks::contains(reply.text(), &["fetched at most once a minute"]);
    }
    assert_eq!(issuer.count("jwks").await, asked + 1);

    // If the issuer is unreachable, wrong, or responds with a page, the known keys stay in use.
    let page = json!({ "body": "<html>Sign in</html>" });
    for trouble in [
        lie(),
        json!({ "answers": { "/jwks": page } }),
        json!({ "down": true }),
    ] {
        issuer.set(trouble).await;
        assert_eq!(status(&current).await, 200);
    }
}

/// Metadata of an issuer that names another one.
fn lie() -> Value {
    let body = json!({ "issuer": "https://evil.example", "jwks_uri": "https://evil.example/keys" });
    json!({ "answers": { "/.well-known/openid-configuration": { "body": body } } })
}

#[tokio::test]
async fn s10_an_issuer_that_lies_from_the_start_is_not_believed() {
    let issuer = Issuer::start(lie()).await;
    let gateway = gateway(&issuer).await;
    let token = token(&issuer, &gateway, &["ml"], json!({})).await;
    let reply = initialize(&gateway, "/mcp/ml", &token).await;
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert_eq!(reply.header("retry-after"), Some("5"));
    let names = "its metadata names the issuer `https://evil.example`";
    checks::contains(gateway.logged(names).await, &["issuer `corp`"]);
    // API keys and other users are not affected.
    let key = gateway.token();
    assert_eq!(status(&gateway, "/mcp", &key).await, 200);
    assert_eq!(get(&gateway.at("/healthz")).await.status, 200);
}
