//! S05: several people and one server.

use serde_json::{Value, json};
use testkit::{Issuer, Peer, RawClient, peer};

use crate::{
    kept::Running,
    support::{NAME, World, key, open, state},
};

/// A person with a personal key.
pub(crate) struct Person {
    pub(crate) key: String,
    pub(crate) peer: Peer,
}

impl Person {
    pub(crate) async fn new(running: &Running, version: &str) -> Self {
        let key = key(running, "call").await;
        let client = client(running, "/mcp/p", &key);
        let peer = Peer::http(client, version, json!({})).await;
        Self { key, peer }
    }

    async fn rest(&self, running: &Running, below: &str, body: Value) -> testkit::Reply {
        let path = format!("/api/v1/mcp/servers/{NAME}/login{below}");
        client(running, &path, &self.key)
            .post(body.to_string())
            .await
    }

    pub(crate) async fn sign_in(&self, issuer: &Issuer, running: &Running, account: &str) {
        let begun = self.rest(running, "", json!({ "way": "paste" })).await;
        assert_eq!(begun.status, 200, "{}", begun.text());
        let begun: Value = serde_json::from_slice(&begun.body).unwrap();
        let url = begun["authorize_url"].as_str().unwrap();
        let redirect = json!({ "redirect": issuer.sign_in(url, account).await });
        let done = self.rest(running, "/finish", redirect).await;
        assert_eq!(done.status, 204, "{}", done.text());
    }

    /// Returns the account whose token the server sees in a call.
    async fn whoami(&mut self) -> Result<String, Value> {
        let outcome = self.peer.tool("whoami", json!({})).await;
        match outcome.response["error"].clone() {
            Value::Null => Ok(outcome.text().to_owned()),
            error => Err(error),
        }
    }
}

pub(crate) fn client(running: &Running, path: &str, key: &str) -> RawClient {
    running
        .raw(path)
        .with("authorization", &format!("Bearer {key}"))
}

/// Each call carries its caller's token, in both eras. A caller without a token is asked to sign in, even if others are
/// signed in.
#[tokio::test]
async fn s05_each_call_carries_its_callers_token() {
    let world = World::new(json!({})).await;
    let mut entry = world.entry();
    entry["login"] = json!("user");
    entry["toolwharf"] = json!({ "projects": ["p"] });
    let (_kept, running) = open(entry).await;
    running.ok("PUT", "/projects/p", json!({})).await;
    let mut ann = Person::new(&running, peer::MODERN).await;
    let mut bob = Person::new(&running, "2025-11-25").await;
    ann.sign_in(&world.issuer, &running, "ann").await;
    state(&running, "running").await;

    assert_eq!(ann.whoami().await.unwrap(), "ann");
    // The tools are known by now from another person's sign-in, which is not used for Bob.
    let refused = bob.whoami().await.unwrap_err();
    assert_eq!(refused["data"]["reason"], "needs_login", "{refused}");
    assert!(refused["data"]["url"].as_str().unwrap().contains("/login/"));
    bob.sign_in(&world.issuer, &running, "bob").await;
    for _ in 0..3 {
        let (a, b) = tokio::join!(ann.whoami(), bob.whoami());
        assert_eq!(
            (a.unwrap(), b.unwrap()),
            ("ann".to_owned(), "bob".to_owned())
        );
    }

    // After signing in with another account, nothing of the first account is left.
    bob.sign_in(&world.issuer, &running, "eve").await;
    assert_eq!(bob.whoami().await.unwrap(), "eve");
    let path = format!("/api/v1/mcp/servers/{NAME}/login");
    let out = client(&running, &path, &bob.key).delete(&[]).await;
    assert_eq!(out.status, 204, "{}", out.text());
    let refused = bob.whoami().await.unwrap_err();
    assert_eq!(refused["data"]["reason"], "needs_login", "{refused}");
    assert_eq!(ann.whoami().await.unwrap(), "ann");
}
