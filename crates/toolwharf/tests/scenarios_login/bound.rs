//! The client id of an entry without `issuer` is bound to the first issuer that was found. Its secret is sent to no
//! other issuer.

use serde_json::{Value, json};
use testkit::{DEADLINE, Issuer, Process, Protected, protected, wait_for};

use crate::{
    common::checks,
    kept::{Kept, Running},
    support::{LOGIN, NAME, call, command, sign_in, state, told},
};

const SECRET: &str = "a-secret-of-the-client-in-the-entry";

/// An issuer that knows the client of the entry.
async fn issuer(grant: &str) -> Issuer {
    let client = json!({
        "client_id": "toolwharf", "client_secret": SECRET, "application_type": "native",
        "redirect_uris": ["http://127.0.0.1/login/callback"], "grant_types": [grant],
        "response_types": if grant == "authorization_code" { vec!["code"] } else { vec![] },
        "token_endpoint_auth_method": "client_secret_basic",
    });
    Issuer::start(json!({ "clients": [client], "scopes": protected::SCOPES })).await
}

fn entry(protected: &Protected, grant: &str, issuer: Option<&Issuer>) -> Value {
    let mut login = json!({ "mode": "shared", "grant": grant, "clientId": "toolwharf", "clientSecret": SECRET });
    if let Some(issuer) = issuer {
        login["issuer"] = issuer.url().into();
    }
    json!({ "type": "http", "url": protected.url(), "login": login })
}

fn paste() -> Value {
    json!({ "way": "paste" })
}

/// Starts a sign-in that must be refused. Returns the reason.
async fn refused(running: &Running) -> String {
    let reply = running.rest("POST", LOGIN, paste()).await;
    assert_eq!(reply.status, 409, "{}", reply.text());
    reply.text()
}

async fn a_person_is_sent_to_no_other_issuer(kept: Kept) {
    let grant = "authorization_code";
    let (first, other) = (issuer(grant).await, issuer(grant).await);
    let protected = Protected::start(&first).await;
    let plain = entry(&protected, grant, None);
    kept.servers(json!({ NAME: plain }));
    let running = kept.start().await;
    sign_in(&first, &running, "ann").await;

    // The server now names another issuer: it was sold or compromised.
    protected.change(|rules| rules.issuer = other.url().to_owned());
    let check = async |running: Running| {
        let why = refused(&running).await;
        checks::contains(&why, &[other.url(), first.url()]);
        checks::contains(&why, &["set `issuer`", "toolwharf logout files"]);
        running.stop().await;
    };
    check(running).await;
    check(kept.start().await).await;
    assert_eq!(other.count("authorize").await, 0);
    assert_eq!(other.count("token").await, 0);

    // The entry may name the new issuer explicitly.
    let meant = entry(&protected, grant, Some(&other));
    kept.servers(json!({ NAME: meant }));
    let running = kept.start().await;
    running.ok("POST", LOGIN, paste()).await;
    running.stop().await;

    // Signing out releases the binding, too.
    kept.servers(json!({ NAME: plain }));
    let running = kept.start().await;
    refused(&running).await;
    let mut out = Process::spawn(command(&running, &["logout", NAME]));
    assert!(out.ended(DEADLINE).await.success(), "{}", out.stderr());
    running.ok("POST", LOGIN, paste()).await;
}

#[tokio::test]
async fn a_person_is_sent_to_no_other_issuer_sqlite() {
    a_person_is_sent_to_no_other_issuer(Kept::sqlite().await).await;
}

#[tokio::test]
async fn a_person_is_sent_to_no_other_issuer_postgres() {
    a_person_is_sent_to_no_other_issuer(Kept::postgres().await).await;
}

#[tokio::test]
async fn the_secret_of_a_client_is_sent_to_no_other_issuer() {
    let grant = "client_credentials";
    let (first, other) = (issuer(grant).await, issuer(grant).await);
    let protected = Protected::start(&first).await;
    let kept = Kept::sqlite().await;
    kept.servers(json!({ NAME: entry(&protected, grant, None) }));
    let running = kept.start().await;
    state(&running, "running").await;
    assert!(first.count("token").await > 0);

    protected.change(|rules| rules.issuer = other.url().to_owned());
    let refused = call(&running, "whoami").await;
    checks::contains(refused.to_string(), &[other.url()]);
    let restart = format!("/mcp/servers/{NAME}/restart");
    running.ok("POST", &restart, Value::Null).await;
    wait_for("the reason", DEADLINE, async || {
        let told = told(&running).await;
        let reason = told["reason"].as_str().unwrap_or_default();
        reason.contains("set `issuer`") && reason.contains(other.url())
    })
    .await;
    assert_eq!(other.count("token").await, 0);
}
