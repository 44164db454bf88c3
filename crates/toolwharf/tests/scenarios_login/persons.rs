//! S05: several people and one server.

use serde_json::{Value, json};
use testkit::{Issuer, Peer, RawClient, peer};

use crate::{
    common::checks,
    kept::{Kept, Running},
    support::{LOGIN, World, key, link_in, needs_login, open, outcome, state},
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
        let path = format!("/api/v1{LOGIN}{below}");
        let client = client(running, &path, &self.key);
        client.post(body.to_string()).await
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

    pub(crate) async fn sign_out(&self, running: &Running) {
        let path = format!("/api/v1{LOGIN}");
        let out = client(running, &path, &self.key).delete(&[]).await;
        assert_eq!(out.status, 204, "{}", out.text());
    }

    /// Returns the account whose token the server sees in a call.
    async fn whoami(&mut self) -> Result<String, Value> {
        outcome(&self.peer.tool("whoami", json!({})).await.response)
    }
}

pub(crate) fn client(running: &Running, path: &str, key: &str) -> RawClient {
    let bearer = format!("Bearer {key}");
    running.raw(path).with("authorization", &bearer)
}

/// A gateway whose server is visible in the project `p`, in which each person signs in.
pub(crate) async fn of_project(mut entry: Value, settings: &str) -> (Kept, Running) {
    entry["toolwharf"] = json!({ "projects": ["p"] });
    let (kept, running) = open(entry, settings).await;
    running.ok("PUT", "/projects/p", json!({})).await;
    (kept, running)
}

/// Each call carries its caller's token, in both eras. A caller without a token is asked to sign in, even if others are
/// signed in.
#[tokio::test]
async fn s05_each_call_carries_its_callers_token() {
    let world = World::new(json!({})).await;
    let mut entry = world.entry();
    entry["login"] = json!("user");
    let (_kept, running) = of_project(entry, "").await;
    let mut ann = Person::new(&running, peer::MODERN).await;
    let mut bob = Person::new(&running, "2025-11-25").await;
    ann.sign_in(&world.issuer, &running, "ann").await;
    state(&running, "running").await;

    assert_eq!(ann.whoami().await.unwrap(), "ann");
    // The tools are known by now from another person's sign-in, which is not used for Bob.
    let refused = bob.whoami().await.unwrap_err();
    checks::contains(link_in(&refused), &["/login/"]);
    bob.sign_in(&world.issuer, &running, "bob").await;
    for _ in 0..3 {
        let (a, b) = tokio::join!(ann.whoami(), bob.whoami());
        assert_eq!([a.unwrap(), b.unwrap()], ["ann", "bob"]);
    }

    // When Bob signs in with another account, nothing of the first account is left.
    bob.sign_in(&world.issuer, &running, "eve").await;
    assert_eq!(bob.whoami().await.unwrap(), "eve");
    bob.sign_out(&running).await;
    needs_login(&bob.whoami().await.unwrap_err());
    assert_eq!(ann.whoami().await.unwrap(), "ann");
}
