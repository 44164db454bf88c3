//! S08: a tool needs more scopes than the sign-in has.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use futures_util::future::join_all;
use serde_json::json;
use testkit::peer;
use tokio_util::task::TaskTracker;

use crate::{
    common::{checks, says},
    support::{NAME, World, call, client, enter, follow, link_in, login, text},
};

#[tokio::test]
async fn s08_one_sign_in_for_all_scopes() {
    let world = Arc::new(World::new(json!({})).await);
    let (_kept, running) = world.signed_in("ann").await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (links, tasks, browser) = (asked.clone(), TaskTracker::new(), world.clone());
    let mut peer = client(&running, peer::MODERN, move |link| {
        links.lock().unwrap().push(link.clone());
        let world = browser.clone();
        tasks.spawn(async move { follow(&world.issuer, &link, "ann", "").await });
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
    let withheld = json!({ "withheld": ["files:write"] });
    let (world, _kept, running) = World::entered("ann", withheld).await;
    for _ in 0..3 {
        let refused = call(&running, "admin").await;
        enter(&world.issuer, link_in(&refused["error"]), "ann", "").await;
    }
    let refused = call(&running, "admin").await;
    assert_eq!(refused["error"]["data"]["url"], json!(null), "{refused}");
    says(&refused, &["files:write"]);
    assert_eq!(text(&call(&running, "whoami").await), "ann");
}

/// Many calls that lack the same scopes cause a single step-up, and all succeed after it.
#[tokio::test]
async fn s08_many_calls_at_once_are_one_step() {
    let (world, _kept, running) = World::entered("ann", json!({})).await;
    let calls = (0..10).map(|_| call(&running, "admin"));
    let refused = join_all(calls).await;
    let links = refused.iter().map(|refused| link_in(&refused["error"]));
    let links: BTreeSet<&str> = links.collect();
    assert_eq!(links.len(), 1, "{refused:?}");
    enter(&world.issuer, links.first().unwrap(), "ann", "").await;
    for answer in join_all((0..10).map(|_| call(&running, "admin"))).await {
        checks::contains(text(&answer), &["files:write"]);
    }
}
