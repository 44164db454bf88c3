//! S04: another person opens a link or returns with a redirect.

use serde_json::json;
use testkit::{Peer, form_token, peer};

use crate::{
    common::checks,
    kept::Running,
    persons::client,
    support::{
        self, LOGIN, NAME, World, arrive, cookie, depart, enter, key, link, link_in, login, open,
        page, paste, post, state,
    },
};

async fn sign_in_state(running: &Running) -> String {
    login(running).await["state"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn s04_a_link_is_for_the_one_who_asked() {
    let world = World::new(json!({})).await;
    let (_kept, running) = open(world.entry(), "").await;
    let link = link(&running).await;
    let other = json!({ "name": "other" });
    let made = running.ok("POST", "/keys", other).await;
    let other = made["token"].as_str().unwrap_or_else(|| panic!("{made}"));
    let shown = page(&link).await;
    checks::reply(&shown, 200, &["name=\"key\""]);
    for form in ["", "key=", "key=nonsense", &format!("key={other}")] {
        let refused = depart(&link, form).await;
        assert_eq!(refused.status, 403, "{form}: {}", refused.text());
        assert!(refused.header("set-cookie").is_none());
        checks::lacks(refused.text(), &[other]);
    }
    assert_eq!(sign_in_state(&running).await, "absent");
    let form = format!("key={}", running.token);
    enter(&world.issuer, &link, "ann", &form).await;
    state(&running, "running").await;
    assert_eq!(sign_in_state(&running).await, "signed_in");
}

/// A page on another port cannot submit the form, because it cannot read the form's one-time token.
#[tokio::test]
async fn s04_a_form_is_sent_once_and_only_from_its_own_page() {
    let (world, _kept, running) = World::signed_out().await;
    let link = link(&running).await;
    let token_of = async |link: &str| form_token(&page(link).await.text()).unwrap();
    let token = token_of(&link).await;
    assert_ne!(token_of(&link).await, token);
    for form in ["", "form=", "form=guess", "key=x"] {
        let refused = post(&link, form).await;
        assert_eq!(refused.status, 403, "{form}: {}", refused.text());
        assert!(refused.header("location").is_none());
        assert!(refused.header("set-cookie").is_none());
        // The page can be submitted again, with its new token.
        assert!(form_token(&refused.text()).is_some());
    }
    let departed = post(&link, &format!("form={token}")).await;
    assert_eq!(departed.status, 303, "{}", departed.text());
    // The link is used up as well. A used token is refused even for an unused link.
    let (_kept, other) = open(world.entry(), "").await;
    let link = support::link(&other).await;
    let token = token_of(&link).await;
    let wrong = post(&link, &format!("key=nonsense&form={token}")).await;
    checks::contains(wrong.text(), &["not the key of the client"]);
    let right = format!("key={}&form={token}", other.token);
    let replayed = post(&link, &right).await;
    checks::reply(&replayed, 403, &["sent before"]);
    assert!(replayed.header("location").is_none());
}

#[tokio::test]
async fn s04_a_redirect_counts_once_and_in_one_browser() {
    let (world, _kept, running) = World::signed_out().await;
    let link = link(&running).await;
    let departed = depart(&link, "").await;
    let url = departed.header("location").unwrap();
    let own = cookie(&departed);
    assert!(departed.header("set-cookie").unwrap().contains("HttpOnly"));
    // The link is used up.
    assert_eq!(depart(&link, "").await.status, 410);
    let redirect = world.issuer.sign_in(url, "ann").await;
    // A browser without the cookie, or with a different one, is refused.
    for foreign in ["", "twh_login_x=y", &format!("{own}x")] {
        let refused = arrive(&redirect, foreign).await;
        checks::reply(&refused, 400, &["wrong_redirect"]);
    }
    // The user who started the sign-in cannot paste the redirect of a browser.
    let pasted = json!({ "redirect": redirect });
    let pasted = running
        .rest("POST", &format!("{LOGIN}/finish"), pasted)
        .await;
    assert_eq!(pasted.status, 400, "{}", pasted.text());
    let (before, state_and_after) = redirect.split_once("state=").unwrap();
    let after = state_and_after.split_once('&').map_or("", |it| it.1);
    let wrong = format!("{before}state=wrong&{after}");
    assert_eq!(arrive(&wrong, &own).await.status, 400);
    assert_eq!(sign_in_state(&running).await, "absent");
    let page = arrive(&redirect, &own).await;
    assert_eq!(page.status, 200, "{}", page.text());
    state(&running, "running").await;
    let twice = arrive(&redirect, &own).await;
    assert_eq!(twice.status, 400, "{}", twice.text());
    assert_eq!(sign_in_state(&running).await, "signed_in");
}

/// A redirect that names another issuer ends the sign-in (RFC 9207).
#[tokio::test]
async fn s04_a_redirect_of_another_issuer_is_refused() {
    let (world, _kept, running) = World::signed_out().await;
    let departed = depart(&link(&running).await, "").await;
    let url = departed.header("location").unwrap();
    let redirect = world.issuer.sign_in(url, "ann").await;
    let (before, _) = redirect.split_once("iss=").unwrap();
    let lie = format!("{before}iss=https%3A%2F%2Fevil.example%2F%3Cscript%3E");
    let refused = arrive(&lie, &cookie(&departed)).await;
    checks::reply(&refused, 400, &["evil.example"]);
    checks::lacks(refused.text(), &["<script>"]);
    assert_eq!(sign_in_state(&running).await, "absent");
}

/// A shared sign-in requires permission to manage the server, not just to call it.
#[tokio::test]
async fn s04_a_shared_sign_in_takes_the_right_to_manage() {
    let world = World::new(json!({})).await;
    let (_kept, running) = open(world.entry(), "").await;
    running.ok("PUT", "/projects/p", json!({})).await;
    let place = format!("/mcp/servers/{NAME}?project=p");
    running.ok("PUT", &place, world.entry()).await;
    paste(&world.issuer, &running, NAME, "?project=p", "ann").await;
    for (role, status) in [("call", 403), ("manage", 303)] {
        let key = key(&running, role).await;
        let client = client(&running, "/mcp/p", &key);
        let mut peer = Peer::http(client, peer::MODERN, json!({})).await;
        let whoami = format!("{NAME}__whoami");
        peer.request("tools/list", json!({})).await;
        world.protected.change(|rules| rules.refuse = true);
        let refused = peer.tool(&whoami, json!({})).await;
        let link = link_in(&refused.response["error"]);
        let departed = depart(link, &format!("key={key}")).await;
        assert_eq!(departed.status, status, "{role}: {}", departed.text());
    }
}
