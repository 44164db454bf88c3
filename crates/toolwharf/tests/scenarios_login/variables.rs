//! S05: a launched server gets its caller's access token in an environment variable (`${login:NAME}`).

use std::collections::BTreeSet;

use hex::encode;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use testkit::{Bin, DEADLINE, Issuer, Peer, RawClient, Reply, peer, protected, wait_for};

use crate::{
    command::{no_page_with, stop_without},
    common::checks,
    kept::{Kept, Running},
    persons::{Person, client, of_project},
    support::{
        LOGIN, NAME, call, enter, link_in, needs_login, outcome, paste, sign_in, state, text, told,
    },
};

/// A server that can return the digest of a variable.
fn entry() -> Value {
    json!({ "command": Bin::path("testkit-scripted"), "env": { "ACCESS": "${login:hub}", "PLAIN": "1" } })
}

/// The settings of a login at the issuer.
fn settings(issuer: &Issuer, whose: &str) -> String {
    let url = issuer.url();
    format!("[logins.hub]\nissuer = \"{url}\"\nscopes = [\"openid\"]\nlogin = \"{whose}\"\n")
}

async fn issuer(mut options: Value) -> Issuer {
    options["scopes"] = json!(protected::SCOPES);
    Issuer::start(options).await
}

/// Asks the issuer whose access token this is.
async fn userinfo(issuer: &Issuer, token: &str) -> Reply {
    let client = RawClient::new(&format!("{}/me", issuer.url()));
    let client = client.with("authorization", &format!("Bearer {token}"));
    client.get(&[]).await.collect(DEADLINE).await
}

/// Returns the account whose access token has this digest.
async fn whose(issuer: &Issuer, digest: &str) -> String {
    let secrets = issuer.secrets().await;
    let is_it = |secret: &&String| encode(Sha256::digest(secret)) == digest;
    let token = secrets.iter().find(is_it);
    let token = token.unwrap_or_else(|| panic!("{digest} matches no token of the issuer"));
    let answer = userinfo(issuer, token).await;
    let known: Value = serde_json::from_slice(&answer.body).unwrap();
    known["sub"].as_str().unwrap().to_owned()
}

/// Returns the digest of the token that the administrator's call uses.
async fn digest(running: &Running) -> Result<String, Value> {
    let params = json!({ "name": format!("{NAME}__digest"), "arguments": { "name": "ACCESS" } });
    outcome(&running.mcp("", "tools/call", params).await.response())
}

impl Person {
    async fn digest(&mut self) -> Result<String, Value> {
        let arguments = json!({ "name": "ACCESS" });
        outcome(&self.peer.tool("digest", arguments).await.response)
    }
}

#[tokio::test]
async fn s05_each_caller_has_a_process_with_a_token_of_their_own() {
    let issuer = issuer(json!({})).await;
    let (_kept, running) = of_project(entry(), &settings(&issuer, "user")).await;
    let mut ann = Person::new(&running, peer::MODERN).await;
    let mut bob = Person::new(&running, "2025-11-25").await;
    ann.sign_in(&issuer, &running, "ann").await;
    state(&running, "running").await;
    assert_eq!(whose(&issuer, &ann.digest().await.unwrap()).await, "ann");
    // The tools are known by now from another person's sign-in, which is not used for Bob.
    let refused = bob.digest().await.unwrap_err();
    let form = format!("key={}", bob.key);
    enter(&issuer, link_in(&refused), "bob", &form).await;
    for _ in 0..3 {
        let (a, b) = tokio::join!(ann.digest(), bob.digest());
        assert_eq!(whose(&issuer, &a.unwrap()).await, "ann");
        assert_eq!(whose(&issuer, &b.unwrap()).await, "bob");
    }
    // When Bob signs in with another account, the first account's process is ended.
    let pid = bob.peer.tool("pid", json!({})).await.text().to_owned();
    bob.sign_in(&issuer, &running, "eve").await;
    assert_eq!(whose(&issuer, &bob.digest().await.unwrap()).await, "eve");
    gone(&pid).await;
    let pid = bob.peer.tool("pid", json!({})).await.text().to_owned();
    bob.sign_out(&running).await;
    gone(&pid).await;
    needs_login(&bob.digest().await.unwrap_err());
    assert_eq!(whose(&issuer, &ann.digest().await.unwrap()).await, "ann");
}

async fn gone(pid: &str) {
    wait_for("the end of the process", DEADLINE, async || {
        !std::path::Path::new(&format!("/proc/{pid}")).exists()
    })
    .await;
}

/// A gateway with a shared sign-in, and with more settings.
async fn shared(issuer: &Issuer, entry: Value, more: &str) -> (Kept, Running) {
    let mut kept = Kept::sqlite().await;
    kept.set_env("RUST_LOG", Some("trace"));
    let audit = "[audit]\nbodies = \"full\"\n";
    kept.settings(&(settings(issuer, "shared") + audit + more));
    kept.servers(json!({ NAME: entry }));
    let running = kept.start().await;
    (kept, running)
}

/// A token expires during calls: afterwards there is a new process, and no call has failed.
#[tokio::test]
async fn s05_a_renewed_token_of_all_is_in_another_process() {
    let issuer = issuer(json!({ "lifetime": 10 })).await;
    let (_kept, running) = shared(&issuer, entry(), "").await;
    sign_in(&issuer, &running, "ann").await;
    let pid = text(&call(&running, "pid").await).to_owned();
    let mut digests = BTreeSet::from([digest(&running).await.unwrap()]);
    let slow = json!({ "name": format!("{NAME}__slow"), "arguments": { "ms": 700 } });
    while digests.len() < 2 {
        let slow = running.mcp("", "tools/call", slow.clone());
        let (slow, digest) = tokio::join!(slow, digest(&running));
        let slow = slow.response();
        assert!(slow["error"].is_null(), "{slow}");
        digests.insert(digest.unwrap());
    }
    let newest = digest(&running).await.unwrap();
    assert_eq!(whose(&issuer, &newest).await, "ann");
    gone(&pid).await;
    // The change of the process counts as a planned restart, not a crash.
    assert_eq!(told(&running).await["last_crash"], Value::Null);
}

#[tokio::test]
async fn s05_a_renewed_token_of_a_caller_is_in_another_process() {
    let issuer = issuer(json!({ "lifetime": 10 })).await;
    let (_kept, running) = of_project(entry(), &settings(&issuer, "user")).await;
    let mut ann = Person::new(&running, peer::MODERN).await;
    ann.sign_in(&issuer, &running, "ann").await;
    state(&running, "running").await;
    let theirs = client(&running, "/mcp/p", &ann.key);
    let mut other = Peer::http(theirs, peer::MODERN, json!({})).await;
    let pid = ann.peer.tool("pid", json!({})).await.text().to_owned();
    let mut digests = BTreeSet::from([ann.digest().await.unwrap()]);
    while digests.len() < 2 {
        let slow = other.tool("slow", json!({ "ms": 700 }));
        let (slow, digest) = tokio::join!(slow, ann.digest());
        assert!(slow.response["error"].is_null(), "{slow:?}");
        digests.insert(digest.unwrap());
    }
    gone(&pid).await;
}

#[tokio::test]
async fn s05_a_refused_renewal_needs_a_sign_in() {
    let issuer = issuer(json!({ "lifetime": 3 })).await;
    let (_kept, running) = shared(&issuer, entry(), "").await;
    issuer.set(json!({ "refuse_refresh": true })).await;
    sign_in(&issuer, &running, "ann").await;
    state(&running, "needs_login").await;
    let refused = digest(&running).await.unwrap_err();
    let renewed = json!({ "refuse_refresh": false, "lifetime": 3600 });
    issuer.set(renewed).await;
    enter(&issuer, link_in(&refused), "ben", "").await;
    state(&running, "running").await;
    let digest = digest(&running).await.unwrap();
    assert_eq!(whose(&issuer, &digest).await, "ben");
}

#[tokio::test]
async fn s05_a_token_in_a_sandbox_is_seen_nowhere() {
    let mut entry = entry();
    entry["toolwharf"] = json!({ "sandbox": { "provider": "process" } });
    seen_nowhere(entry, "").await;
}

#[tokio::test]
async fn s05_a_token_in_a_container_is_seen_nowhere() {
    seen_in_no_container("runc").await;
}

#[tokio::test]
async fn s05_a_token_in_gvisor_is_seen_nowhere() {
    seen_in_no_container("gvisor").await;
}

async fn seen_in_no_container(provider: &str) {
    let daemon = std::env::var("TOOLWHARF_TEST_DOCKER")
        .expect("a Docker daemon; run: cargo xtask docker -- cargo nextest run -p toolwharf --test scenarios_login");
    let entry = json!({
        "image": "toolwharf-test/scripted",
        "env": { "ACCESS": "${login:hub}", "PLAIN": "1" },
        "toolwharf": { "sandbox": { "provider": provider } },
    });
    let hosting = format!("[hosting]\nproviders = [{provider:?}]\ndocker_host = {daemon:?}\n");
    seen_nowhere(entry, &hosting).await;
}

/// The token of a sandboxed server appears nowhere outside it. A sign-out ends the process.
async fn seen_nowhere(entry: Value, hosting: &str) {
    let issuer = issuer(json!({})).await;
    let (kept, running) = shared(&issuer, entry, hosting).await;
    sign_in(&issuer, &running, "ann").await;
    let digest = digest(&running).await.unwrap();
    assert_eq!(whose(&issuer, &digest).await, "ann");
    // Even if the server itself returns the token, the call record does not contain it.
    let env = call(&running, "env").await;
    let env: Value = serde_json::from_str(text(&env)).unwrap();
    let token = env["ACCESS"].as_str().unwrap().to_owned();
    assert_eq!(env["PLAIN"], "1");
    let secrets = issuer.secrets().await;
    assert!(secrets.contains(&token));
    no_page_with(&running, &secrets).await;
    let out = running.rest("DELETE", LOGIN, Value::Null).await;
    assert_eq!(out.status, 204, "{}", out.text());
    state(&running, "needs_login").await;
    let answer = userinfo(&issuer, &token).await;
    assert_eq!(answer.status, 401, "the issuer still accepts the token");
    stop_without(&kept, running, &secrets).await;
}

/// Servers of projects and registrations can use tokens, too, and errors list the available logins.
#[tokio::test]
async fn s05_wherever_a_server_is_declared() {
    let issuer = issuer(json!({})).await;
    let kept = Kept::sqlite().await;
    kept.settings(&settings(&issuer, "shared"));
    let running = kept.start().await;
    running.ok("PUT", "/projects/p", json!({})).await;
    let command = Bin::path("testkit-scripted");
    let environment = json!({ "ACCESS": "${login:hub}" });
    let registration = json!({ "name": NAME, "command": command, "environment": environment, "provider": "process" });
    running.ok("POST", "/mcp/servers", registration).await;
    let place = format!("/mcp/servers/{NAME}");
    let of_project = format!("{place}?project=p");
    let ours = running.ok("PUT", &of_project, entry()).await;
    for project in ["", "?project=p"] {
        paste(&issuer, &running, NAME, project, "ann").await;
        let asked = json!({ "method": "tools/call", "params": { "name": "digest", "arguments": { "name": "ACCESS" } } });
        let place = format!("{place}/call{project}");
        let answer = running.ok("POST", &place, asked).await;
        let digest = text(&answer);
        assert_eq!(whose(&issuer, digest).await, "ann", "{ours}");
    }
    let unknown = json!({ "command": command, "env": { "A": "${login:hob}" } });
    let other = "/mcp/servers/other?project=p";
    running.ok("PUT", other, unknown).await;
    let told = running.ok("GET", other, Value::Null).await.to_string();
    checks::contains(
        &told,
        &["`[logins.hob]` is missing in toolwharf.toml, which defines `hub`"],
    );
    let registration = json!({ "name": "third", "command": command, "args": ["${login:hub}"], "provider": "process" });
    let refused = running.rest("POST", "/mcp/servers", registration).await;
    checks::reply(&refused, 422, &["whole value of a variable"]);
}
