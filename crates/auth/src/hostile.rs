//! Invalid tokens and misbehaving issuers, tested with a real issuer.

use std::sync::Arc;

use model::{AccessRule, Hidden, OidcSettings, Role};
use serde_json::{Value, json};
use testkit::Issuer;

use super::{Refused, Tokens, keys};

const GATEWAY: &str = "http://127.0.0.1:6280";

fn tokens(issuer: &Issuer, change: impl FnOnce(&mut OidcSettings)) -> Arc<Tokens> {
    let mut settings = OidcSettings {
        issuer: issuer.url().to_owned(),
        access: vec![AccessRule {
            claim: None,
            role: Role::Call,
            projects: Default::default(),
        }],
        ..OidcSettings::default()
    };
    change(&mut settings);
    let bases = vec![GATEWAY.to_owned()];
    let tokens = Tokens::new([(&"corp".to_owned(), &settings)], bases);
    Arc::new(tokens)
}

async fn token(issuer: &Issuer, claims: Value) -> String {
    issuer
        .token("ann", "client", GATEWAY, &["mcp:call"], claims)
        .await
}

/// The principal's id, or the reason for the refusal.
async fn outcome(tokens: &Tokens, token: &str) -> String {
    match tokens.verify(token, keys::digest(token), None).await {
        Ok(Some(verified)) => verified.principal.id.to_string(),
        Ok(None) => "nobody".to_owned(),
        Err(Refused::Away(why)) => format!("away: {why}"),
        Err(refused) => format!("{refused:?}"),
    }
}

async fn check(tokens: &Tokens, token: &str, expected: &str) {
    let found = outcome(tokens, token).await;
    assert!(found.contains(expected), "{found}, not {expected}");
    assert!(
        token.len() < 9 || !found.contains(token),
        "the token is in the error"
    );
}

#[tokio::test]
async fn only_what_the_issuer_signed_with_its_own_key_counts() {
    for algorithm in ["RS256", "ES256"] {
        let issuer = Issuer::start(json!({ "algorithm": algorithm })).await;
        let other = Issuer::start(json!({ "algorithm": algorithm })).await;
        let tokens = tokens(&issuer, |_| {});
        let good = token(&issuer, json!({})).await;
        check(&tokens, &good, "user:corp:ann").await;
        let known = tokens.known(&keys::digest(&good)).expect("remembered");
        assert!(known.covers("/api/v1"));

        let (head, signature) = good.rsplit_once('.').expect("a signature");
        let turned: String = signature.chars().rev().collect();
        check(&tokens, &format!("{head}.{turned}"), "signature is wrong").await;
        check(&tokens, &format!("{head}."), "signature is wrong").await;
        let claims =
            json!({ "iss": issuer.url(), "sub": "ann", "aud": GATEWAY, "exp": 4_000_000_000_u64 });
        let forged = other.sign(json!({ "kid": null }), claims.clone()).await;
        check(&tokens, &forged, "Invalid").await;
        for (header, expected) in [
            (json!({ "alg": "none" }), "nobody"),
            (json!({ "alg": "HS256" }), "`HS256` is not accepted"),
            (json!({ "crit": ["b64"], "b64": false }), "Invalid"),
            (json!({ "typ": "id+jwt" }), "`typ`"),
            (json!({ "typ": "JWT" }), "user:corp:ann"),
            (json!({ "kid": "../../etc/passwd" }), "does not list"),
        ] {
            check(
                &tokens,
                &issuer.sign(header, claims.clone()).await,
                expected,
            )
            .await;
        }
        check(
            &tokens,
            &token(&issuer, json!({ "exp": 1000 })).await,
            "expired",
        )
        .await;
        check(&tokens, &token(&other, json!({})).await, "nobody").await;
    }
}

#[tokio::test]
async fn what_is_no_token_is_nobodys() {
    let issuer = Issuer::start(json!({})).await;
    let tokens = tokens(&issuer, |_| {});
    for text in [
        "",
        ".",
        "..",
        "a.b.c",
        "e30.e30.e30",
        "\u{0}\u{ff}",
        "opaque",
    ] {
        check(&tokens, text, "nobody").await;
    }
    check(&tokens, &"a.".repeat(20_000), "longer than").await;
    let deep = format!("e30.{}.x", "W1tb".repeat(2_000));
    check(&tokens, &deep, "nobody").await;
    assert_eq!(issuer.count("jwks").await, 0, "the issuer was asked");
}

#[tokio::test]
async fn a_set_of_keys_that_cannot_be_used_is_an_issuer_that_cannot_be_asked() {
    let issuer = Issuer::start(json!({})).await;
    let good = token(&issuer, json!({})).await;
    let json_type = json!({ "content-type": "application/json" });
    for (answer, expected) in [
        (
            json!({ "body": "<html>Sign in</html>" }),
            "not the expected JSON document",
        ),
        (json!({ "body": { "keys": [] } }), "none of its 0 keys"),
        (
            json!({ "body": { "keys": [{ "kty": "oct", "k": "c2VjcmV0" }, 7, { "kty": "RSA" }] } }),
            "none of its 3 keys",
        ),
        (
            json!({ "body": { "keys": [{ "kty": "RSA", "n": "AQAB", "e": "AQAB" }] } }),
            "none of its 1 keys",
        ),
        (
            json!({ "body": "x".repeat(600 << 10), "headers": json_type }),
            "longer than 524288 bytes",
        ),
        (
            json!({ "status": 302, "headers": { "location": "http://169.254.169.254/" } }),
            "302",
        ),
        (
            json!({ "status": 500, "body": "secret-of-the-issuer" }),
            "500",
        ),
    ] {
        issuer.set(json!({ "answers": { "/jwks": answer } })).await;
        let tokens = tokens(&issuer, |_| {});
        check(&tokens, &good, expected).await;
        check(&tokens, &good, "away: the issuer `corp` cannot be queried").await;
        assert!(
            !outcome(&tokens, &good)
                .await
                .contains("secret-of-the-issuer")
        );
    }
}

#[tokio::test]
async fn metadata_that_lies_is_refused() {
    let issuer = Issuer::start(json!({})).await;
    let good = token(&issuer, json!({})).await;
    let url = issuer.url();
    let slash = format!("{url}/");
    for (issuer_named, jwks, expected) in [
        (
            "https://login.example",
            format!("{url}/jwks"),
            "its metadata names the issuer",
        ),
        (
            slash.as_str(),
            format!("{url}/jwks"),
            "its metadata names the issuer",
        ),
        (
            url,
            "http://169.254.169.254/keys".to_owned(),
            "origin and is not https",
        ),
        (
            url,
            "https://169.254.169.254/keys".to_owned(),
            "a private address",
        ),
        (url, "https://[::1]/keys".to_owned(), "a private address"),
        (
            url,
            "https://localhost/keys".to_owned(),
            "a private address",
        ),
        (
            url,
            "file:///etc/passwd".to_owned(),
            "origin and is not https",
        ),
        (url, "jwks".to_owned(), "not a URL"),
    ] {
        let lie = json!({ "body": { "issuer": issuer_named, "jwks_uri": jwks } });
        let answers = json!({ "/.well-known/openid-configuration": lie });
        issuer.set(json!({ "answers": answers })).await;
        let tokens = tokens(&issuer, |_| {});
        check(&tokens, &good, expected).await;
    }
    // The metadata may also be at the OAuth well-known path.
    let missing = json!({ "/.well-known/openid-configuration": { "status": 404 } });
    issuer.set(json!({ "answers": missing })).await;
    check(&tokens(&issuer, |_| {}), &good, "user:corp:ann").await;
    let keys = format!("{url}/jwks");
    issuer.set(json!({ "answers": {} })).await;
    let direct = tokens(&issuer, |settings| settings.jwks_uri = Some(keys));
    let before = issuer.count("discovery").await;
    check(&direct, &good, "user:corp:ann").await;
    assert_eq!(issuer.count("discovery").await, before);
}

#[tokio::test]
async fn a_thousand_unknown_keys_are_one_question() {
    let issuer = Issuer::start(json!({})).await;
    let tokens = tokens(&issuer, |_| {});
    let good = token(&issuer, json!({})).await;
    issuer.rotate().await;
    let mut others = tokio::task::JoinSet::new();
    let claims =
        json!({ "iss": issuer.url(), "sub": "eve", "aud": GATEWAY, "exp": 4_000_000_000_u64 });
    let bogus = issuer.sign(json!({ "kid": "unknown" }), claims).await;
    for _ in 0..1000 {
        let (tokens, bogus) = (tokens.clone(), bogus.clone());
        others.spawn(async move { outcome(&tokens, &bogus).await });
    }
    while let Some(found) = others.join_next().await {
        let found = found.expect("no panic");
        assert!(
            found.contains("signed with a key that the issuer"),
            "{found}"
        );
    }
    assert_eq!(issuer.count("jwks").await, 1);
    // Tokens signed with the old key are now refused; one signed with the new key needs no request to the issuer.
    check(&tokens, &good, "does not list").await;
    check(&tokens, &token(&issuer, json!({})).await, "user:corp:ann").await;
    assert_eq!(issuer.count("jwks").await, 1);
}

#[tokio::test]
async fn an_issuer_that_is_away_takes_no_known_key_along() {
    let issuer = Issuer::start(json!({})).await;
    let tokens = tokens(&issuer, |_| {});
    let mut following = tokio::task::JoinSet::new();
    let followed = tokens.clone();
    following.spawn(async move { followed.follow().await });
    let fetched = async || issuer.count("jwks").await == 1;
    testkit::wait_for("the keys", testkit::DEADLINE, fetched).await;
    check(&tokens, &token(&issuer, json!({})).await, "user:corp:ann").await;
    let next = token(&issuer, json!({ "sub": "bob" })).await;
    issuer.rotate().await;
    let rotated = token(&issuer, json!({ "sub": "cy" })).await;
    issuer.set(json!({ "down": true })).await;
    check(&tokens, &next, "user:corp:bob").await;
    check(&tokens, &rotated, "away: ").await;
    check(&tokens, &next, "user:corp:bob").await;
}

#[tokio::test]
async fn a_token_that_is_no_jwt_is_asked_about_and_believed_for_a_while() {
    let client = |name: &str| {
        json!({
            "client_id": name, "client_secret": "client-secret", "grant_types": ["client_credentials"],
            "redirect_uris": [], "response_types": [], "token_endpoint_auth_method": "client_secret_basic",
        })
    };
    let issuer =
        Issuer::start(json!({ "clients": [client("wharf"), client("robot")], "opaque": true }))
            .await;
    let tokens = tokens(&issuer, |settings| {
        settings.introspection = true;
        settings.client_id = Some("wharf".to_owned());
        settings.client_secret = Some(Hidden::new("client-secret"));
    });
    let ask = async |resource: &str| {
        let basic = [
            ("content-type", "application/x-www-form-urlencoded"),
            ("authorization", "Basic cm9ib3Q6Y2xpZW50LXNlY3JldA=="),
        ];
        let form = format!("grant_type=client_credentials&scope=mcp:call&resource={resource}");
        let endpoint = testkit::RawClient::new(&format!("{}/token", issuer.url()));
        let answer = endpoint.post_with(&basic, form).await;
        let answer: Value = serde_json::from_slice(&answer.body).expect("JSON");
        answer["access_token"].as_str().expect("a token").to_owned()
    };
    let opaque = ask(GATEWAY).await;
    check(&tokens, &opaque, "client:corp:robot").await;
    assert!(tokens.known(&keys::digest(&opaque)).is_some());
    check(
        &tokens,
        &ask("http://other.example").await,
        "not this gateway",
    )
    .await;
    check(&tokens, "neverissued", "nobody").await;
    let asked = issuer.count("introspection").await;
    assert_eq!(asked, 3);
    // A revoked token is refused when its issuer is asked the next time.
    assert!(tokens.lives("client:corp:robot"));
    let basic = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("authorization", "Basic cm9ib3Q6Y2xpZW50LXNlY3JldA=="),
    ];
    let revocation = testkit::RawClient::new(&format!("{}/token/revocation", issuer.url()));
    let revoked = revocation
        .post_with(&basic, format!("token={opaque}"))
        .await;
    assert_eq!(revoked.status, 200);
    check(&tokens, &opaque, "nobody").await;
    assert!(!tokens.lives("client:corp:robot"));
    issuer.set(json!({ "down": true })).await;
    check(&tokens, "another", "away: ").await;
}

#[tokio::test]
async fn somebody_is_gone_with_their_last_token() {
    let issuer = Issuer::start(json!({})).await;
    let tokens = tokens(&issuer, |_| {});
    let soon = store::now().timestamp() - super::claims::SKEW_SECONDS + 2;
    for (who, end) in [("ann", soon), ("ann", soon + 3600), ("bob", soon)] {
        let token = token(&issuer, json!({ "sub": who, "exp": end, "jti": end })).await;
        check(&tokens, &token, who).await;
    }
    let mut gone = std::collections::HashSet::new();
    testkit::wait_for("the end of two tokens", testkit::DEADLINE, async || {
        gone.extend(tokens.expire());
        gone.len() == 2
    })
    .await;
    assert!(tokens.lives("user:corp:ann") && !tokens.lives("user:corp:bob"));
}
