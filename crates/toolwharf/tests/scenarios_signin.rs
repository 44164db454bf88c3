//! Scenarios S09 and S10 of SCENARIOS.md: users with tokens of a real issuer.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use common::{Gateway, LEGACY, Setup, tools};
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
async fn gateway(issuer: &Issuer, more: &str) -> Gateway {
    let settings = format!(
        "[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\n[projects.ml]\nservers = [\"one\"]\n\
         [projects.other]\nservers = [\"two\"]\n\
         [auth.oidc.corp]\nissuer = \"{}\"\nscopes = [\"mcp:call\"]\n{more}{ACCESS}",
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

/// Returns the status of `initialize` with this token.
async fn status(gateway: &Gateway, path: &str, token: &str) -> u16 {
    let reply = with(gateway, path, token).post(INITIALIZE).await;
    reply.status.as_u16()
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
    let gateway = gateway(&issuer, "").await;
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
    let code = place
        .split("code=")
        .nth(1)
        .unwrap()
        .split('&')
        .next()
        .unwrap();
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
        let client = with(&gateway, "/mcp/ml", token);
        let mut peer = Peer::http(client, version, peer::all_capabilities()).await;
        assert!(
            tools(&mut peer).await.contains(&"tool_0".to_owned()),
            "{version}"
        );
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
    assert!(
        calls.contains("user:corp:ann") && !calls.contains(token),
        "{calls}"
    );
}

#[tokio::test]
async fn s09_metadata_is_at_every_endpoint_and_only_with_an_issuer() {
    let issuer = Issuer::start(json!({})).await;
    let gateway = gateway(&issuer, "").await;
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
    let gateway = gateway(&issuer, "").await;
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let invalid = "error=\"invalid_token\"";
    let (ended, early) = (
        json!({ "exp": now - 300 }),
        json!({ "exp": now + 900, "nbf": now + 300 }),
    );
    let (other, nowhere) = (
        json!({ "aud": "https://other.example" }),
        json!({ "aud": null }),
    );
    let (unknown, scope) = (
        json!({ "iss": "https://other.example" }),
        json!({ "scope": "other" }),
    );
    let lacking = "error=\"insufficient_scope\"";
    for (changes, status, said, challenged) in [
        (ended, 401, "it expired 300 s ago", invalid),
        (early, 401, "ahead of the clock", invalid),
        (
            other,
            401,
            "which is not this gateway",
            "resource_metadata=",
        ),
        (nowhere, 401, "has no audience", "resource_metadata="),
        (unknown, 401, "unknown, revoked or expired", invalid),
        (scope.clone(), 403, "needs the scopes `mcp:call`", lacking),
        (scope, 403, "all of them", "scope=\"mcp:call\""),
    ] {
        let token = token(&issuer, &gateway, &["ml"], changes.clone()).await;
        for path in ["/mcp/ml", "/api/v1/mcp/servers/one/call"] {
            let reply = with(&gateway, path, &token).post(INITIALIZE).await;
            assert_eq!(reply.status, status, "{path} {changes}: {}", reply.text());
            // Both clocks may have advanced by a second.
            let text = reply.text().replace("301 s", "300 s");
            assert!(text.contains(said), "{changes}: {text}");
            let challenge = reply.header("www-authenticate").unwrap();
            assert!(challenge.contains(challenged), "{changes}: {challenge}");
            assert!(
                challenge.contains(&format!("{}/.well-known", gateway.url)),
                "{challenge}"
            );
            assert!(!text.contains(&token) && !challenge.contains(&token));
        }
    }
    // A user without groups, and a token where none is accepted.
    let nobody = token(&issuer, &gateway, &[], json!({})).await;
    let reply = with(&gateway, "/mcp", &nobody).post(INITIALIZE).await;
    assert_eq!(reply.status, 403);
    assert!(
        reply
            .text()
            .contains("`user:corp:ann` is signed in, but no rule"),
        "{}",
        reply.text()
    );
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
    let gateway = gateway(&issuer, "").await;
    let status = async |groups: &[&str], path: &str| {
        let token = token(&issuer, &gateway, groups, json!({})).await;
        let client = with(&gateway, path, &token);
        let reply = match path.starts_with("/api") {
            true => get(&client).await,
            false => client.post(INITIALIZE).await,
        };
        (reply.status.as_u16(), reply.text())
    };
    assert_eq!(status(&["ml"], "/mcp").await.0, 200);
    assert_eq!(status(&["ml"], "/mcp/other").await.0, 404);
    assert_eq!(status(&["both"], "/mcp/other").await.0, 200);
    let (refused, why) = status(&["both"], "/mcp").await;
    assert_eq!(refused, 400);
    assert!(
        why.contains("name one of `ml`, `other` as `/mcp/PROJECT`"),
        "{why}"
    );
    let (refused, why) = status(&["both"], "/api/v1/mcp/servers").await;
    assert_eq!(refused, 400);
    assert!(why.contains("as `?project=`"), "{why}");
    assert_eq!(
        status(&["both"], "/api/v1/mcp/servers?project=ml").await.0,
        200
    );
    assert_eq!(status(&["ml"], "/api/v1/mcp/servers").await.0, 200);
    assert_eq!(
        status(&["ml"], "/api/v1/mcp/servers?project=other").await.0,
        404
    );
    assert_eq!(status(&["both"], "/api/v1/status").await.0, 403);
    assert_eq!(status(&["operators"], "/api/v1/status").await.0, 200);

    let mut outcomes = Vec::new();
    for groups in [["guests"], ["ml"]] {
        let token = token(&issuer, &gateway, &groups, json!({ "sub": groups[0] })).await;
        let client = with(&gateway, "/mcp", &token);
        let mut peer = Peer::http(client, LEGACY, peer::all_capabilities()).await;
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
    let gateway = gateway(&issuer, "").await;
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
        let session = [
            ("mcp-session-id", id.as_str()),
            ("accept", "text/event-stream"),
        ];
        let stream = client.get(&session).await;
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
    let session = [("mcp-session-id", renewed.as_str())];
    let pong = with(&gateway, "/mcp", &second)
        .post_with(&session, ping)
        .await;
    assert_eq!(pong.status, 200, "{}", pong.text());
    assert!(
        kept.next_event(std::time::Duration::from_millis(50))
            .await
            .is_none_or(|event| event.json().is_none())
    );
}

#[tokio::test]
async fn s10_known_keys_go_on_while_the_issuer_rotates_is_down_or_lies() {
    let issuer = Issuer::start(json!({})).await;
    let gateway = gateway(&issuer, "").await;
    let fetched = async || issuer.count("jwks").await == 1;
    wait_for("the keys at the start", DEADLINE, fetched).await;
    let status = async |token: &str| status(&gateway, "/mcp/ml", token).await;
    let fresh = async |who: &str| token(&issuer, &gateway, &["ml"], json!({ "sub": who })).await;
    assert_eq!(status(&fresh("ann").await).await, 200);
    let asked = issuer.count("jwks").await;

    // The first token with a new key makes the gateway query the issuer. Further unknown keys do not for a minute.
    let old = fresh("old").await;
    issuer.rotate().await;
    assert_eq!(status(&fresh("bob").await).await, 200);
    assert_eq!(issuer.count("jwks").await, asked + 1);
    assert_eq!(status(&old).await, 401);
    let current = fresh("dan").await;
    issuer.rotate().await;
    for _ in 0..20 {
        let reply = with(&gateway, "/mcp/ml", &fresh("cy").await)
            .post(INITIALIZE)
            .await;
        assert_eq!(reply.status, 401);
        assert!(
            reply.text().contains("asked once a minute"),
            "{}",
            reply.text()
        );
    }
    assert_eq!(issuer.count("jwks").await, asked + 1);

    // Unreachable, wrong, or responding with a page: the known keys stay in use.
    let lie = json!({ "body": { "issuer": "https://evil.example", "jwks_uri": "https://evil.example/keys" } });
    let page = json!({ "body": "<html>Sign in</html>" });
    for trouble in [
        json!({ "answers": { "/.well-known/openid-configuration": lie } }),
        json!({ "answers": { "/jwks": page } }),
        json!({ "down": true }),
    ] {
        issuer.set(trouble).await;
        assert_eq!(status(&current).await, 200);
    }
}

#[tokio::test]
async fn s10_an_issuer_that_lies_from_the_start_is_not_believed() {
    let lie = json!({ "body": { "issuer": "https://evil.example", "jwks_uri": "https://evil.example/keys" } });
    let answers = json!({ "/.well-known/openid-configuration": lie });
    let issuer = Issuer::start(json!({ "answers": answers })).await;
    let gateway = gateway(&issuer, "").await;
    let token = token(&issuer, &gateway, &["ml"], json!({})).await;
    let reply = with(&gateway, "/mcp/ml", &token).post(INITIALIZE).await;
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert_eq!(reply.header("retry-after"), Some("5"));
    let logged = gateway
        .logged("its metadata names the issuer `https://evil.example`")
        .await;
    assert!(logged.contains("issuer `corp`"), "{logged}");
    // API keys and other users are not affected.
    let key = gateway.token();
    assert_eq!(status(&gateway, "/mcp", &key).await, 200);
    assert_eq!(get(&gateway.at("/healthz")).await.status, 200);
}
