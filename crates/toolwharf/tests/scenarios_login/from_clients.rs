//! S03: a client calls a tool of a server that still needs a sign-in.

use std::sync::Arc;

use serde_json::json;
use testkit::{DEADLINE, Peer, peer};
use tokio_util::task::TaskTracker;

use crate::{
    common::{LEGACY, checks, says},
    kept::{Kept, Running},
    support::{
        NAME, World, call, client, enter, follow, link_in, needs_login, restarted, state, text,
        told,
    },
};

/// A gateway whose sign-in was revoked by the issuer: the server's tools are known, and a new sign-in is needed.
async fn lost(world: &World) -> (Kept, Running) {
    let (kept, running) = world.signed_in("ann").await;
    assert_eq!(text(&call(&running, "whoami").await), "ann");
    world.issuer.set(json!({ "refuse_refresh": true })).await;
    world.protected.revoke();
    needs_login(&call(&running, "whoami").await["error"]);
    state(&running, "needs_login").await;
    (kept, running)
}

/// A client whose user opens links and signs in as `ben`.
async fn person(world: &Arc<World>, running: &Running, version: &str) -> Peer {
    let (world, tasks) = (world.clone(), TaskTracker::new());
    client(running, version, move |link| {
        let world = world.clone();
        tasks.spawn(async move { follow(&world.issuer, &link, "ben", "").await });
    })
    .await
}

async fn goes_on(version: &str) {
    let world = Arc::new(World::new(json!({})).await);
    let (_kept, running) = lost(&world).await;
    let mut peer = person(&world, &running, version).await;
    let outcome = peer.tool(&format!("{NAME}__whoami"), json!({})).await;
    assert_eq!(outcome.text(), "ben", "{outcome:?}");
    assert_eq!(outcome.asked, ["elicitation/create"]);
    if version == LEGACY {
        let complete = "notifications/elicitation/complete";
        let complete = peer.notification(complete, DEADLINE).await;
        let id = complete.unwrap()["params"]["elicitationId"].clone();
        assert!(id.is_string(), "{id}");
    }
    state(&running, "running").await;
    let outcome = peer.tool(&format!("{NAME}__whoami"), json!({})).await;
    assert!(outcome.asked.is_empty(), "{outcome:?}");
}

#[tokio::test]
async fn s03_a_modern_client_is_asked_and_the_call_goes_on() {
    goes_on(peer::MODERN).await;
}

#[tokio::test]
async fn s03_a_legacy_client_is_asked_and_the_call_goes_on() {
    goes_on(LEGACY).await;
}

/// After a restart the gateway knows the tools from before, and still asks for the sign-in.
#[tokio::test]
async fn s03_after_a_restart_the_tools_are_known() {
    let world = Arc::new(World::new(json!({})).await);
    let (kept, running) = lost(&world).await;
    let running = restarted(&kept, running, "needs_login").await;
    for version in [LEGACY, peer::MODERN] {
        let mut peer = person(&world, &running, version).await;
        let outcome = peer.tool(&format!("{NAME}__whoami"), json!({})).await;
        assert_eq!(outcome.text(), "ben", "{outcome:?}");
        // Revokes the token again for the next client.
        world.protected.revoke();
        assert!(call(&running, "whoami").await["error"].is_object());
        state(&running, "needs_login").await;
    }
}

#[tokio::test]
async fn s03_a_client_that_opens_no_urls_gets_the_link() {
    let world = World::new(json!({})).await;
    let (_kept, running) = lost(&world).await;
    for version in [LEGACY, peer::MODERN] {
        let forms = json!({ "elicitation": { "form": {} } });
        let mut peer = Peer::http(running.raw("/mcp"), version, forms).await;
        let refused = peer.tool(&format!("{NAME}__whoami"), json!({})).await;
        let error = &refused.response["error"];
        let link = link_in(error);
        assert!(refused.asked.is_empty(), "{refused:?}");
        checks::string(&error["message"], &[link]);
        enter(&world.issuer, link, "ben", "").await;
        let again = peer.tool(&format!("{NAME}__whoami"), json!({})).await;
        assert_eq!(again.text(), "ben");
        world.protected.revoke();
        assert!(call(&running, "whoami").await["error"].is_object());
    }
}

/// A user who declines gets the link in the error.
#[tokio::test]
async fn s03_a_person_may_decline() {
    let world = World::new(json!({})).await;
    let (_kept, running) = lost(&world).await;
    let mut capabilities = peer::all_capabilities();
    capabilities["elicitation"] = json!({ "url": {} });
    for version in [LEGACY, peer::MODERN] {
        let peer = Peer::http(running.raw("/mcp"), version, capabilities.clone()).await;
        let mut peer = peer.answering(|_, _| json!({ "action": "decline" }));
        let refused = peer.tool(&format!("{NAME}__whoami"), json!({})).await;
        says(&refused.response, &["needs you to sign in: open http"]);
        assert_eq!(refused.asked, ["elicitation/create"]);
    }
    assert_eq!(told(&running).await["status"], "needs_login");
}

/// Nobody has ever signed in, so the server's tools are unknown. A tool of the gateway signs in.
#[tokio::test]
async fn s03_a_server_without_tools_offers_to_sign_in() {
    const TOOL: &str = "sign_in_to_files";
    for version in [LEGACY, peer::MODERN] {
        let (world, _kept, running) = World::signed_out().await;
        let world = Arc::new(world);
        let forms = json!({ "elicitation": { "form": {} } });
        let mut plain = Peer::http(running.raw("/mcp"), version, forms).await;
        let listed = plain.request("tools/list", json!({})).await;
        let tools = listed.response["result"]["tools"].as_array().unwrap();
        assert_eq!(tools.len(), 1, "{tools:?}");
        assert_eq!(tools[0]["name"], TOOL);
        let offered = plain.tool(TOOL, json!({})).await;
        let link = offered.text().split_whitespace();
        let link = link
            .map(str::to_owned)
            .find(|word| word.starts_with("http"));
        assert!(link.unwrap().starts_with(&running.url), "{offered:?}");
        needs_login(&call(&running, "whoami").await["error"]);

        let mut peer = person(&world, &running, version).await;
        let outcome = peer.tool(TOOL, json!({})).await;
        assert_eq!(outcome.asked, ["elicitation/create"], "{outcome:?}");
        checks::contains(outcome.text(), &["List the tools again"]);
        let outcome = peer.tool(&format!("{NAME}__whoami"), json!({})).await;
        assert_eq!(outcome.text(), "ben", "{outcome:?}");
        assert!(outcome.asked.is_empty(), "{outcome:?}");
    }
}

/// The same for a call of a tool that is still unknown: it continues after the sign-in.
#[tokio::test]
async fn s03_a_call_of_an_unknown_tool_goes_on() {
    for version in [LEGACY, peer::MODERN] {
        let (world, _kept, running) = World::signed_out().await;
        let mut peer = person(&Arc::new(world), &running, version).await;
        let outcome = peer.tool(&format!("{NAME}__whoami"), json!({})).await;
        assert_eq!(outcome.text(), "ben", "{outcome:?}");
        assert_eq!(outcome.asked, ["elicitation/create"]);
    }
}

/// Over REST, a call that needs a sign-in gets 409, with the link. A console signs out at a 401.
#[tokio::test]
async fn s03_a_call_over_rest_gets_the_link() {
    let world = World::new(json!({})).await;
    let (_kept, running) = world.serve().await;
    state(&running, "needs_login").await;
    let params = json!({ "name": "whoami", "arguments": {} });
    let body = json!({ "method": "tools/call", "params": params });
    let place = format!("/mcp/servers/{NAME}/call");
    for account in ["ann", "ben"] {
        let refused = running.rest("POST", &place, body.clone()).await;
        assert_eq!(refused.status, 409, "{}", refused.text());
        let refused: serde_json::Value = serde_json::from_slice(&refused.body).unwrap();
        assert_eq!(refused["reason"], "needs_login");
        let link = refused["login_url"].as_str().unwrap();
        enter(&world.issuer, link, account, "").await;
        state(&running, "running").await;
        let answer = running.ok("POST", &place, body.clone()).await;
        assert_eq!(text(&answer), account);
        // The sign-in is lost while the server runs.
        world.issuer.set(json!({ "refuse_refresh": true })).await;
        world.protected.revoke();
    }
}
