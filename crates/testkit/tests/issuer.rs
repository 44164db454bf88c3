//! The test authorization server supports what its users rely on.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use testkit::{Issuer, RawClient};

const RESOURCE: &str = "http://127.0.0.1:1/mcp";
const REDIRECT: &str = "http://127.0.0.1:9/callback";
// The example of RFC 7636, appendix B.
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

async fn post_form(url: &str, form: &str) -> (u16, Value) {
    let client = RawClient::new(url);
    let kind = [("content-type", "application/x-www-form-urlencoded")];
    let answer = client.post_with(&kind, form.to_owned()).await;
    let body = serde_json::from_slice(&answer.body).unwrap_or_default();
    (answer.status.as_u16(), body)
}

async fn get(url: &str) -> Value {
    let answer = RawClient::new(url).get(&[]).await;
    let answer = answer.collect(testkit::DEADLINE).await;
    serde_json::from_slice(&answer.body).expect("JSON")
}

fn claims(token: &str) -> Value {
    let payload = token.split('.').nth(1).expect("three parts");
    let payload = URL_SAFE_NO_PAD.decode(payload).expect("base64url");
    serde_json::from_slice(&payload).expect("claims")
}

fn authorization(issuer: &Issuer, client: &str) -> String {
    format!(
        "{}/auth?response_type=code&client_id={client}&redirect_uri={REDIRECT}&scope=openid%20mcp:call&state=s\
         &resource={RESOURCE}&code_challenge={CHALLENGE}&code_challenge_method=S256",
        issuer.url()
    )
}

#[tokio::test]
async fn a_person_signs_in_and_the_token_is_refreshed() {
    let accounts = json!({ "ann": { "groups": ["ml"] } });
    let issuer = Issuer::start(json!({ "accounts": accounts, "lifetime": 60 })).await;
    let url = issuer.url();
    let metadata = get(&format!("{url}/.well-known/oauth-authorization-server")).await;
    assert_eq!(metadata["issuer"], *url);
    assert_eq!(
        metadata["authorization_response_iss_parameter_supported"],
        true
    );
    assert_eq!(metadata["client_id_metadata_document_supported"], true);
    let registration = json!({ "redirect_uris": [REDIRECT], "token_endpoint_auth_method": "none" });
    let registered = RawClient::new(metadata["registration_endpoint"].as_str().unwrap())
        .post(registration.to_string())
        .await;
    assert_eq!(registered.status, 201, "{}", registered.text());
    let registered: Value = serde_json::from_slice(&registered.body).unwrap();
    let client = registered["client_id"].as_str().unwrap();

    let place = issuer.sign_in(&authorization(&issuer, client), "ann").await;
    let (place, query) = place.split_once('?').unwrap();
    assert_eq!(place, REDIRECT);
    let value = |name: &str| {
        let found = query.split('&').find_map(|pair| pair.strip_prefix(name));
        found.unwrap_or_default().to_owned()
    };
    assert_eq!(value("state="), "s");
    assert_ne!(value("iss="), "");
    let token = format!("{url}/token");
    let form = format!(
        "grant_type=authorization_code&code={}&redirect_uri={REDIRECT}&client_id={client}&code_verifier={VERIFIER}&resource={RESOURCE}",
        value("code=")
    );
    let (status, tokens) = post_form(&token, &form).await;
    assert_eq!(status, 200, "{tokens}");
    assert_eq!(tokens["expires_in"], 60);
    let access = claims(tokens["access_token"].as_str().unwrap());
    assert_eq!(access["aud"], RESOURCE);
    assert_eq!(access["sub"], "ann");
    assert_eq!(access["groups"], json!(["ml"]));
    assert_eq!(access["scope"], "mcp:call");
    assert_eq!(claims(tokens["id_token"].as_str().unwrap())["aud"], *client);

    let refresh = |tokens: &Value| {
        let refresh = tokens["refresh_token"].as_str().unwrap();
        format!("grant_type=refresh_token&client_id={client}&refresh_token={refresh}")
    };
    let (status, next) = post_form(&token, &refresh(&tokens)).await;
    assert_eq!(status, 200, "{next}");
    assert_ne!(next["refresh_token"], tokens["refresh_token"]);
    assert_eq!(
        claims(next["access_token"].as_str().unwrap())["aud"],
        RESOURCE
    );
    issuer.set(json!({ "refuse_refresh": true })).await;
    let (status, refused) = post_form(&token, &refresh(&next)).await;
    assert_eq!((status, &refused["error"]), (400, &json!("invalid_grant")));
    issuer.set(json!({ "refuse_refresh": false })).await;
    // Reuse of a refresh token ends the whole sign-in.
    assert_eq!(post_form(&token, &refresh(&tokens)).await.0, 400);
    assert_eq!(post_form(&token, &refresh(&next)).await.0, 400);
    assert_eq!(issuer.count("token:refresh_token").await, 4);
}

#[tokio::test]
async fn it_denies_rotates_keys_fails_and_lies_as_told() {
    let client = json!({ "client_id": "web", "redirect_uris": [REDIRECT] });
    let robot = json!({
        "client_id": "robot", "client_secret": "secret-of-the-robot", "grant_types": ["client_credentials"],
        "redirect_uris": [], "response_types": [], "token_endpoint_auth_method": "client_secret_post",
    });
    let options = json!({ "clients": [client, robot], "consent": false, "opaque": true });
    let issuer = Issuer::start(options).await;
    let url = issuer.url();
    let place = issuer.sign_in(&authorization(&issuer, "web"), "bob").await;
    assert!(place.contains("code="), "{place}");
    let mut ask = authorization(&issuer, "web");
    ask.push_str("&prompt=consent");
    let denied = issuer.browse(&ask, "bob", true).await;
    let denied = denied["location"].as_str().unwrap();
    assert!(denied.contains("error=access_denied"), "{denied}");

    let form = format!(
        "grant_type=client_credentials&client_id=robot&client_secret=secret-of-the-robot&scope=mcp:call&resource={RESOURCE}"
    );
    let (_, tokens) = post_form(&format!("{url}/token"), &form).await;
    let opaque = tokens["access_token"].as_str().unwrap();
    let form = format!("client_id=robot&client_secret=secret-of-the-robot&token={opaque}");
    let (_, found) = post_form(&format!("{url}/token/introspection"), &form).await;
    assert_eq!(
        (&found["active"], &found["aud"]),
        (&json!(true), &json!(RESOURCE))
    );
    issuer.set(json!({ "refuse_resource": true })).await;
    let place = issuer.sign_in(&authorization(&issuer, "web"), "bob").await;
    assert!(place.contains("error=invalid_target"), "{place}");

    let jwks = format!("{url}/jwks");
    let before = get(&jwks).await;
    issuer.rotate().await;
    assert_ne!(get(&jwks).await["keys"][0]["kid"], before["keys"][0]["kid"]);
    assert_eq!(issuer.count("jwks").await, 2);
    let lie = json!({ "/jwks": { "status": 500, "body": "<html>" } });
    issuer.set(json!({ "answers": lie })).await;
    assert_eq!(RawClient::new(&jwks).get(&[]).await.status, 500);
    issuer.set(json!({ "down": true })).await;
    let client = RawClient::new(&jwks);
    assert!(client.try_send(http::Method::GET, &[], "").await.is_err());

    let token = issuer
        .token(
            "ann",
            "web",
            RESOURCE,
            &["mcp:call"],
            json!({ "jti": null }),
        )
        .await;
    let claims = claims(&token);
    assert_eq!(
        (&claims["aud"], &claims["jti"]),
        (&json!(RESOURCE), &Value::Null)
    );
    let unsigned = issuer.sign(json!({ "alg": "none" }), claims).await;
    assert!(unsigned.ends_with('.'));
}
