//! S07: the issuer refuses to renew a token.

use serde_json::{Value, json};
use testkit::{DEADLINE, Issuer, Webhook, at_once, protected, wait_for};
use tokio::time::Instant;

use crate::{
    common::{checks, cli::said},
    kept::{Kept, Running},
    persons,
    support::{
        NAME, World, arrive, call, command, cookie, depart, enter, key, link_in, login,
        needs_login, paste, restarted, sign_in, state, text,
    },
};

/// Asserts that a server still works.
async fn works(running: &Running, name: &str, answer: &str) {
    let params = json!({ "name": format!("{name}__whoami"), "arguments": {} });
    let response = running.mcp("", "tools/call", params).await.response();
    assert_eq!(text(&response), answer);
}

#[tokio::test]
async fn s07_a_refused_refresh_is_seen_everywhere_and_harms_nobody_else() {
    let world = World::new(json!({})).await;
    let other = World::new(json!({})).await;
    let kept = Kept::sqlite().await;
    kept.servers(json!({ NAME: world.entry(), "other": other.entry() }));
    let running = kept.start().await;
    sign_in(&world.issuer, &running, "ann").await;
    paste(&other.issuer, &running, "other", "", "ben").await;
    wait_for("the other server", DEADLINE, async || {
        running.ok("GET", "/mcp/servers/other", Value::Null).await["status"] == "running"
    })
    .await;
    works(&running, "other", "ben").await;

    world.issuer.set(json!({ "refuse_refresh": true })).await;
    world.protected.revoke();
    let start = Instant::now();
    let refused = call(&running, "whoami").await;
    let link = link_in(&refused["error"]);
    assert!(link.starts_with(&running.url), "{refused}");
    state(&running, "needs_login").await;
    for _ in 0..20 {
        needs_login(&call(&running, "whoami").await["error"]);
    }
    at_once("a call without a sign-in", start);
    works(&running, "other", "ben").await;

    let listed = command(&running, &["ls", "-o", "json"]);
    let listed = said(listed, "").await.json();
    let rows = listed.as_array().cloned();
    let rows = rows.unwrap_or_else(|| listed["servers"].as_array().unwrap().clone());
    let row = rows.iter().find(|row| row["name"] == NAME).unwrap();
    assert_eq!(row["status"], "needs_login", "{row}");
    let shown = said(command(&running, &["get", NAME]), "").await.code(0);
    checks::contains(&shown.out, &["needs_login", "toolwharf login files"]);
    let metrics = running.raw("/metrics").get(&[]).await;
    let metrics = metrics.collect(DEADLINE).await.text();
    for line in [
        format!("toolwharf_server_needs_login{{server=\"{NAME}\"}} 1"),
        "toolwharf_server_needs_login{server=\"other\"} 0".to_owned(),
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line}: {metrics}");
    }
    let events = said(command(&running, &["events", NAME]), "").await.code(0);
    assert!(events.out.contains("it needs a sign-in"), "{events:?}");
    let login = said(command(&running, &["login", "-o", "json"]), "").await;
    let login = login.json();
    let login = login.as_array().unwrap();
    let of = |name: &str| login.iter().find(|row| row["server"] == name).unwrap();
    assert_eq!(of(NAME)["state"], "needs_login");
    assert_eq!(of("other")["state"], "signed_in");

    world.issuer.set(json!({ "refuse_refresh": false })).await;
    enter(&world.issuer, link, "cid", "").await;
    state(&running, "running").await;
    assert_eq!(text(&call(&running, "whoami").await), "cid");
}

/// The webhook gets one warning, for a shared sign-in and for the sign-in of a single caller.
#[tokio::test]
async fn u13_an_expired_sign_in_is_counted_and_posted_once() {
    let webhook = Webhook::start().await;
    let settings = format!("[hosting]\nwebhook = \"{}\"\n", webhook.url());
    let shared = World::new(json!({})).await;
    let own = World::new(json!({})).await;
    let mut entry = own.entry();
    entry["login"] = json!("user");
    let kept = Kept::sqlite().await;
    kept.settings(&settings);
    kept.servers(json!({ NAME: shared.entry(), "own": entry }));
    let running = kept.start().await;
    sign_in(&shared.issuer, &running, "ann").await;
    paste(&own.issuer, &running, "own", "", "ben").await;
    wait_for("the other server", DEADLINE, async || {
        running.ok("GET", "/mcp/servers/own", Value::Null).await["status"] == "running"
    })
    .await;
    let counted = async |wanted: u64| {
        wait_for(&format!("{wanted} sign-ins"), DEADLINE, async || {
            let all = running.ok("GET", "/attention", Value::Null).await;
            all["sign_ins"] == wanted && all["servers"] == wanted
        })
        .await;
    };
    counted(0).await;
    // No person had signed in yet.
    for server in [NAME, "own"] {
        webhook.warning(server, "needs-login").await;
    }
    let before = webhook.received().len();
    for world in [&shared, &own] {
        world.issuer.set(json!({ "refuse_refresh": true })).await;
        world.protected.revoke();
    }
    for server in [NAME, "own"] {
        for _ in 0..3 {
            // The administrator has signed in to both servers, and calls a tool.
            let params = json!({ "name": "whoami", "arguments": {} });
            let call = json!({ "method": "tools/call", "params": params });
            let path = format!("/mcp/servers/{server}/call");
            let reply = running.rest("POST", &path, call).await;
            checks::contains(reply.text(), &["needs_login"]);
        }
    }
    counted(2).await;
    for server in [NAME, "own"] {
        wait_for("the warning", DEADLINE, async || {
            let new = webhook.received().split_off(before);
            let of = |one: &&Value| one["server"]["name"] == server;
            new.iter().filter(of).count() == 1
        })
        .await;
    }
    let new = webhook.received().split_off(before);
    let kinds = new.iter().map(|one| &one["kind"]);
    assert!(kinds.eq(["needs-login"; 2].iter()), "{new:#?}");
    let said = said(command(&running, &["ls"]), "").await.code(0);
    checks::contains(
        &said.err,
        &["2 servers need a sign-in (", "toolwharf login "],
    );
}

/// An expired sign-in stays expired after a restart of the gateway, and the issuer is not asked again.
#[tokio::test]
async fn s07_a_refusal_is_remembered() {
    let (world, kept, running) = World::entered("ann", json!({})).await;
    world.issuer.set(json!({ "refuse_refresh": true })).await;
    world.protected.revoke();
    call(&running, "whoami").await;
    state(&running, "needs_login").await;
    running.stop().await;
    let asked = world.issuer.count("token").await;
    let running = kept.start().await;
    state(&running, "needs_login").await;
    assert_eq!(world.issuer.count("token").await, asked);
}

/// An unreachable issuer does not sign users out: the call fails, and works again when the issuer is back.
#[tokio::test]
async fn s07_an_issuer_that_is_away_signs_nobody_out() {
    let (world, kept, running) = World::entered("ann", json!({})).await;
    // A token that is refused immediately after it was issued counts as invalid. After the restart, the token is older
    // than the gateway process.
    let running = restarted(&kept, running, "running").await;
    for fault in [
        json!({ "down": true }),
        json!({ "answers": { "/token": { "status": 503, "headers": { "content-type": "text/html" }, "body": "<h1>Busy</h1>" } } }),
        json!({ "answers": { "/token": { "status": 200, "headers": { "content-type": "text/html" }, "body": "<h1>Log in</h1>" } } }),
        json!({ "answers": { "/token": { "status": 307, "headers": { "location": "http://127.0.0.2:9/token" }, "body": "" } } }),
        json!({ "answers": { "/token": { "status": 200, "body": "x".repeat(300_000) } } }),
    ] {
        world.issuer.set(fault.clone()).await;
        world.protected.change(|rules| rules.refuse = true);
        let refused = call(&running, "whoami").await;
        let said = refused.to_string();
        assert!(refused["error"].is_object(), "{fault}: {said}");
        checks::lacks(&said, &["<h1>"]);
        let login = login(&running).await;
        assert_eq!(login["state"], "signed_in", "{fault}: {said}");
        let back = json!({ "down": false, "answers": {} });
        world.issuer.set(back).await;
        world.protected.change(|rules| rules.refuse = false);
        let response = call(&running, "whoami").await;
        assert_eq!(text(&response), "ann", "{fault}");
    }
}

/// The issuer has forgotten the registration, for example because its database was reset. The next sign-in registers
/// again, with and without a refused refresh before.
#[tokio::test]
async fn s07_a_forgotten_registration_is_made_again() {
    let (world, _kept, running) = World::entered("ann", json!({})).await;
    assert_eq!(world.issuer.count("registration").await, 1);
    world.issuer.forget().await;
    world.protected.revoke();
    let refused = call(&running, "whoami").await;
    let link = link_in(&refused["error"]);
    let login = login(&running).await;
    checks::string(&login["reason"], &["invalid_client", "registers again"]);
    enter(&world.issuer, link, "ben", "").await;
    assert_eq!(text(&call(&running, "whoami").await), "ben");
    assert_eq!(world.issuer.count("registration").await, 2);

    world.issuer.forget().await;
    paste(&world.issuer, &running, NAME, "", "cid").await;
    assert_eq!(text(&call(&running, "whoami").await), "cid");
    assert_eq!(world.issuer.count("registration").await, 3);
    // A registration that the issuer knows is used again.
    paste(&world.issuer, &running, NAME, "", "dan").await;
    assert_eq!(text(&call(&running, "whoami").await), "dan");
    assert_eq!(world.issuer.count("registration").await, 3);
}

/// A server whose clock is five minutes ahead accepts tokens for five minutes less. A shorter token lifetime gives a
/// clear error.
#[tokio::test]
async fn s07_a_clock_that_is_five_minutes_off() {
    let world = World::new(json!({})).await;
    world.protected.change(|rules| rules.ahead = 300);
    let (_kept, running) = world.signed_in("ann").await;
    assert_eq!(text(&call(&running, "whoami").await), "ann");
    world.issuer.set(json!({ "lifetime": 200 })).await;
    world.protected.revoke();
    let asked = world.issuer.count("token").await;
    for _ in 0..5 {
        needs_login(&call(&running, "whoami").await["error"]);
    }
    assert!(world.issuer.count("token").await <= asked + 1);
    // The error concerns these calls only: they work as soon as the clock is right.
    let login = login(&running).await;
    assert_eq!(login["state"], "signed_in", "{login}");
    world.protected.change(|rules| rules.ahead = 0);
    assert_eq!(text(&call(&running, "whoami").await), "ann");
}

/// If the server suddenly names another issuer, the new issuer receives nothing that belongs to the old issuer.
#[tokio::test]
async fn s07_a_server_that_has_moved_to_another_issuer() {
    let (world, _kept, running) = World::entered("ann", json!({})).await;
    let other = Issuer::start(json!({ "scopes": protected::SCOPES })).await;
    let new = other.url().to_owned();
    world.protected.change(|rules| rules.issuer = new);
    let refused = call(&running, "whoami").await;
    let departed = depart(link_in(&refused["error"]), "").await;
    let url = departed.header("location").unwrap();
    assert!(url.starts_with(other.url()), "{url}");
    let redirect = other.sign_in(url, "ben").await;
    let page = arrive(&redirect, &cookie(&departed)).await;
    assert_eq!(page.status, 200, "{}", page.text());
    state(&running, "running").await;
    assert_eq!(text(&call(&running, "whoami").await), "ben");
    let (old, new) = (world.issuer.secrets().await, other.secrets().await);
    assert!(new.iter().all(|secret| !old.contains(secret)));
    assert_eq!(other.count("registration").await, 1);
}

/// A server declared by a project's manager cannot reach private addresses, and neither can its sign-in.
#[tokio::test]
async fn s07_a_project_reaches_no_private_issuer() {
    let world = World::new(json!({})).await;
    let kept = Kept::sqlite().await;
    let running = kept.start().await;
    running.ok("PUT", "/projects/p", json!({})).await;
    let key = key(&running, "manage").await;
    let ask = async |method: http::Method, path: &str, body: Value| {
        let path = format!("/api/v1/mcp/servers/{NAME}{path}?project=p");
        let client = persons::client(&running, &path, &key);
        let answer = client.send(method, &[], body.to_string()).await;
        answer.collect(DEADLINE).await
    };
    let made = ask(http::Method::PUT, "", world.entry()).await;
    let way = json!({ "way": "paste" });
    let begun = ask(http::Method::POST, "/login", way).await;
    let is_refused = begun.status.is_client_error() || begun.status.is_server_error();
    assert!(is_refused, "{}", begun.text());
    checks::lacks(begun.text(), &["authorize_url"]);
    assert_eq!(world.protected.refused(), 0, "{}", made.text());
    assert_eq!(world.issuer.count("discovery").await, 0);
    assert_eq!(world.issuer.count("registration").await, 0);
    assert!(made.status.is_success(), "{}", made.text());
    checks::contains(begun.text(), &["public"]);
}
