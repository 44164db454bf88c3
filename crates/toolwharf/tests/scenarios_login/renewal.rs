//! S06: a token expires while many calls use it, and a process dies while the issuer renews a token.

use serde_json::{Value, json};
use testkit::{postgres::Database, soak, wait_for};
use tokio::task::JoinSet;

use crate::{
    common::rpc,
    kept::{Kept, Running},
    support::{
        LEASE_DEADLINE, LOGIN, NAME, World, call, login, restarted, sign_in, state, text, told,
    },
};

/// Waits until the access token has expired. The next one lasts an hour.
async fn ended(world: &World, running: &Running) {
    wait_for("the end of the token", LEASE_DEADLINE, async || {
        let login = login(running).await;
        let end = login["expires_at"].as_str().unwrap().to_owned();
        let end = chrono::DateTime::parse_from_rfc3339(&end).unwrap();
        end < chrono::Utc::now()
    })
    .await;
    world.issuer.set(json!({ "lifetime": 3600 })).await;
}

/// Makes many parallel calls through these gateways. All must succeed, with a single token refresh.
async fn burst(world: &World, through: &[&Running]) {
    let many = if soak() { 1000 } else { 100 };
    let refreshes = world.issuer.count("token:refresh_token").await;
    let mut calls = JoinSet::new();
    for at in 0..many {
        let client = through[at % through.len()].raw("/mcp");
        calls.spawn(async move {
            let name = format!("{NAME}__whoami");
            let body = rpc::modern_call(at, &name, json!({})).to_string();
            let reply = client.post_with(&rpc::call_headers(&name), body).await;
            reply.response()
        });
    }
    for response in calls.join_all().await {
        assert_eq!(text(&response), "ann");
    }
    let now = world.issuer.count("token:refresh_token").await;
    assert_eq!(now - refreshes, 1);
}

fn settings(kept: &Kept) {
    // All calls run at once, so the queue must be long enough for them.
    kept.settings("[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\nqueue_len = 2000\n");
}

#[tokio::test]
async fn s06_many_calls_over_an_expired_token_make_one_refresh() {
    let world = World::new(json!({ "lifetime": 3 })).await;
    let kept = Kept::sqlite().await;
    settings(&kept);
    kept.servers(json!({ NAME: world.entry() }));
    let running = kept.start().await;
    sign_in(&world.issuer, &running, "ann").await;
    ended(&world, &running).await;
    burst(&world, &[&running]).await;
    // The rotated refresh token was stored.
    let running = restarted(&kept, running, "running").await;
    assert_eq!(text(&call(&running, "whoami").await), "ann");
}

/// Two gateways in front of the server, with one database.
async fn two_gateways(world: &World, database: &Database) -> Vec<(Kept, Running)> {
    let mut both: Vec<(Kept, Running)> = Vec::new();
    for _ in 0..2 {
        let mut kept = Kept::sqlite().await;
        kept.set_env("TOOLWHARF_DATABASE_URL", Some(database.url()));
        kept.set_env("TOOLWHARF_MASTER_KEY", Some(&"5e".repeat(32)));
        settings(&kept);
        kept.servers(json!({ NAME: world.entry() }));
        if let Some((first, _)) = both.first() {
            std::fs::create_dir(kept.data("")).unwrap();
            std::fs::copy(Kept::data(first, "admin-token"), kept.data("admin-token")).unwrap();
        }
        let running = kept.start().await;
        both.push((kept, running));
    }
    both
}

/// A sign-in or sign-out at one replica applies to all replicas.
#[tokio::test]
async fn d05_a_sign_in_is_everywhere() {
    let (world, database) = (World::new(json!({})).await, Database::create().await);
    let both = two_gateways(&world, &database).await;
    let (one, two) = (&both[0].1, &both[1].1);
    state(two, "needs_login").await;
    sign_in(&world.issuer, one, "ann").await;
    state(two, "running").await;
    assert_eq!(text(&call(two, "whoami").await), "ann");
    one.rest("DELETE", LOGIN, Value::Null).await;
    state(two, "needs_login").await;
}

#[tokio::test]
async fn s06_two_gateways_on_one_database_make_one_refresh() {
    let world = World::new(json!({ "lifetime": 3 })).await;
    let database = Database::create().await;
    let both = two_gateways(&world, &database).await;
    let (one, two) = (&both[0].1, &both[1].1);
    sign_in(&world.issuer, one, "ann").await;
    state(two, "running").await;
    ended(&world, one).await;
    burst(&world, &[one, two]).await;
}

/// Kills the product while the issuer processes the refresh token. If `rotate` is true, the token is then used up.
/// Returns the server's state afterwards.
async fn killed(rotate: bool) -> (World, Kept, Running, String) {
    let options = json!({ "lifetime": 3, "rotate": rotate });
    let (world, kept, running) = World::entered("ann", options).await;
    ended(&world, &running).await;
    let refreshes = world.issuer.count("token:refresh_token").await;
    world.issuer.set(json!({ "hold_ms": 60_000 })).await;
    let params = json!({ "name": format!("{NAME}__whoami"), "arguments": {} });
    let calling = running.try_mcp("", "tools/call", params);
    let killing = async {
        wait_for("the refresh at the issuer", LEASE_DEADLINE, async || {
            world.issuer.count("token:refresh_token").await > refreshes
        })
        .await;
        running.process.signal(rustix::process::Signal::KILL);
    };
    let (answer, ()) = tokio::join!(calling, killing);
    assert!(answer.is_err(), "{answer:?}");
    world.issuer.set(json!({ "hold_ms": 0 })).await;
    drop(running);
    let running = kept.start().await;
    let mut found = String::new();
    wait_for("an end of the lease", LEASE_DEADLINE, async || {
        let status = told(&running).await["status"].clone();
        status.as_str().unwrap_or_default().clone_into(&mut found);
        matches!(&*found, "running" | "needs_login")
    })
    .await;
    (world, kept, running, found)
}

#[tokio::test]
async fn s06_a_kill_during_a_refresh_keeps_the_sign_in_if_it_can_be_kept() {
    let (_world, _kept, running, found) = killed(false).await;
    assert_eq!(found, "running");
    assert_eq!(text(&call(&running, "whoami").await), "ann");
}

#[tokio::test]
async fn s06_a_kill_during_a_rotation_asks_for_a_sign_in() {
    let (world, _kept, running, found) = killed(true).await;
    assert_eq!(found, "needs_login");
    sign_in(&world.issuer, &running, "ann").await;
    assert_eq!(text(&call(&running, "whoami").await), "ann");
}

/// A token that is bound to a key is useless to others, and its renewal is bound to the same key, even after a restart.
#[tokio::test]
async fn s06_a_token_that_is_bound_to_a_key_is_renewed() {
    let world = World::new(json!({ "lifetime": 3 })).await;
    world.protected.change(|rules| rules.dpop = true);
    let (kept, running) = world.signed_in("ann").await;
    assert_eq!(text(&call(&running, "whoami").await), "ann");
    ended(&world, &running).await;
    let running = restarted(&kept, running, "running").await;
    assert_eq!(text(&call(&running, "whoami").await), "ann");
    assert!(world.issuer.count("token:refresh_token").await > 0);
    let stolen = world.protected.tokens().pop().unwrap();
    let client = testkit::RawClient::new(world.protected.url());
    let client = client.with("authorization", &format!("DPoP {stolen}"));
    let ping = rpc::message(1, "ping", json!({}));
    let refused = client.post(ping.to_string()).await;
    assert_eq!(refused.status, 401);
}
