//! S08: a tool needs more scopes than the sign-in has.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use futures_util::future::join_all;
use serde_json::json;
use testkit::peer;
use tokio_util::task::TaskTracker;

use crate::support::{NAME, World, call, client, login, text};

#[tokio::test]
async fn s08_one_sign_in_for_all_scopes() {
    let world = Arc::new(World::new(json!({})).await);
    let (_kept, running) = world.signed_in("ann").await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (links, tasks, browser) = (asked.clone(), TaskTracker::new(), world.clone());
    let mut peer = client(&running, peer::MODERN, move |link| {
        links.lock().unwrap().push(link.clone());
        let world = browser.clone();
        tasks.spawn(async move { world.follow(&link, "ann", "").await });
    })
    .await;
    let whoami = format!("{NAME}__whoami");
    assert_eq!(peer.tool(&whoami, json!({})).await.text(), "ann");
    let outcome = peer.tool(&format!("{NAME}__admin"), json!({})).await;
    assert_eq!(outcome.asked, ["elicitation/create"], "{outcome:?}");
    let granted: Vec<&str> = outcome.text().split(' ').collect();
    for scope in ["files:read", "files:write"] {
        assert!(granted.contains(&scope), "{granted:?}");
    }
    // The earlier scopes are kept, and the user is not asked again.
    assert_eq!(peer.tool(&whoami, json!({})).await.text(), "ann");
    let again = peer.tool(&format!("{NAME}__admin"), json!({})).await;
    assert!(again.asked.is_empty(), "{again:?}");
    assert_eq!(asked.lock().unwrap().len(), 1);
    let login = login(&running).await;
    assert_eq!(login["scopes"].as_array().unwrap().len(), 2, "{login}");
}

#[tokio::test]
async fn s08_at_most_three_times() {
    let world = World::new(json!({ "withheld": ["files:write"] })).await;
    let (_kept, running) = world.signed_in("ann").await;
    for round in 0..3 {
        let refused = call(&running, "admin").await;
        let error = &refused["error"];
        assert_eq!(error["data"]["reason"], "needs_login", "{round}: {refused}");
        let link = error["data"]["url"].as_str().unwrap();
        let page = world.follow(link, "ann", "").await;
        assert_eq!(page.status, 200, "{}", page.text());
    }
    let refused = call(&running, "admin").await;
    assert_eq!(refused["error"]["data"]["url"], json!(null), "{refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("files:write"), "{message}");
    assert_eq!(text(&call(&running, "whoami").await), "ann");
}

/// Many calls that lack the same scopes cause a single step-up, and all succeed after it.
#[tokio::test]
async fn s08_many_calls_at_once_are_one_step() {
    let world = World::new(json!({})).await;
    let (_kept, running) = world.signed_in("ann").await;
    let calls = (0..10).map(|_| call(&running, "admin"));
    let refused = join_all(calls).await;
    let links: BTreeSet<_> = refused
        .iter()
        .map(|refused| refused["error"]["data"]["url"].as_str())
        .collect();
    let link = links.first().copied().flatten();
    assert_eq!(links.len(), 1, "{refused:?}");
    let page = world.follow(link.unwrap(), "ann", "").await;
    assert_eq!(page.status, 200, "{}", page.text());
    for answer in join_all((0..10).map(|_| call(&running, "admin"))).await {
        assert!(text(&answer).contains("files:write"), "{answer}");
    }
}
