//! Servers whose headers are filled in from the callers' (`"X-Tenant": "${header:X-Tenant}"`).

use std::{num::NonZeroU32, time::Duration};

use engine::{Command, Scope, server::State};
use mcp::Era;
use model::{HeaderPart, HeaderTemplate, Origin, Pinning, ServerSpec};
use serde_json::json;

use crate::support::{ERAS, World, quiet, server_name, until, url};

const TOOLS_CHANGED: &str = "notifications/tools/list_changed";

/// A server that gets the caller's `X-Tenant`.
fn tenants(name: &str, default: Option<&str>) -> ServerSpec {
    let mut spec = url(name);
    let Origin::Remote(remote) = &mut spec.origin else {
        unreachable!("it is at a URL");
    };
    let template = HeaderTemplate(vec![HeaderPart::Caller {
        name: "x-tenant".to_owned(),
        default: default.map(str::to_owned),
    }]);
    remote
        .caller_headers
        .insert("X-Tenant".to_owned(), template);
    spec
}

fn at(server: &str) -> Scope {
    Scope {
        server: Some(server_name(server)),
        ..Scope::default()
    }
}

/// Waits until changes are announced.
async fn announced() {
    tokio::time::sleep(Duration::from_secs(3)).await;
}

#[tokio::test(start_paused = true)]
async fn each_value_has_its_own_connection_and_catalog() {
    for era in ERAS {
        let world = World::new();
        world.scripted_for("one", "a").tools(&["echo", "alpha"]);
        world.scripted_for("one", "b").tools(&["echo", "beta"]);
        world.configure(&[tenants("one", None)]);
        let a = world.client_for(era, "a").await;
        let b = world.client_for(era, "b").await;
        assert_eq!(a.tools().await, ["echo", "alpha"]);
        assert_eq!(b.tools().await, ["echo", "beta"]);
        a.tool("echo", json!({ "text": "of a" })).await.result();
        let called = |tenant: &str| {
            let server = world.scripted_for("one", tenant);
            server.heard("tools/call").len()
        };
        assert_eq!((called("a"), called("b")), (1, 0));
        b.tool("alpha", json!({})).await.says("Unknown tool: alpha");
        let another = world.client_for(era, "a").await;
        another.tool("echo", json!({})).await.result();
        assert_eq!((called("a"), called("b")), (2, 0));
        for tenant in ["a", "b"] {
            assert_eq!(world.scripted_for("one", tenant).starts(), 1);
        }
        // Nothing is started without a value.
        assert!(world.scripted("one").attempts().is_empty());
        assert_eq!(world.state("one"), "idle");
        assert_eq!(
            world
                .server("one")
                .stats
                .calls
                .load(std::sync::atomic::Ordering::Relaxed),
            2
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_without_the_header_is_told_its_name() {
    for era in ERAS {
        let world = World::new();
        world.scripted("other").tools(&["fine"]);
        world.configure(&[tenants("one", None), url("other")]);
        world.up(&["other"]).await;
        let client = world.client(era).await;
        assert_eq!(client.tools().await, ["fine"]);
        let listed = client.request("tools/list", json!({})).await;
        let missing = &listed.result()["_meta"]["dev.toolwharf/missing"];
        assert_eq!(*missing, json!(["one"]));
        let why = "each caller has to send the header `x-tenant`";
        client.tool("echo", json!({})).await.says(why);
        let single = world.client_of(era, at("one")).await;
        single.echo_unavailable().await.says(why);
        assert!(world.scripted("one").attempts().is_empty());
        let reason = world.status("one").reason.expect("it names the header");
        assert!(reason.contains(why), "{reason}");
        let up = world.server("one").up().await;
        assert!(up.is_err_and(|reason| reason.contains(why)));
        // A value that matters to no server of the scope changes nothing.
        client.sends(&[("x-other", "a")]);
        assert_eq!(client.tools().await, ["fine"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_without_the_header_gets_the_default() {
    for era in ERAS {
        let world = World::new();
        world.scripted_for("one", "main").tools(&["echo", "usual"]);
        world.scripted_for("one", "a").tools(&["echo", "alpha"]);
        world.configure(&[tenants("one", Some("main"))]);
        world.up(&["one"]).await;
        let plain = world.client(era).await;
        assert_eq!(plain.tools().await, ["echo", "usual"]);
        let a = world.client_for(era, "a").await;
        assert_eq!(a.tools().await, ["echo", "alpha"]);
        assert_eq!(plain.tools().await, ["echo", "usual"]);
    }
}

#[tokio::test(start_paused = true)]
async fn each_request_of_a_session_has_its_own_value() {
    let world = World::new();
    world.scripted_for("one", "a").tools(&["echo", "alpha"]);
    world.scripted_for("one", "b").tools(&["echo", "beta"]);
    world.configure(&[tenants("one", None)]);
    let client = world.client_for(Era::Legacy, "a").await;
    assert_eq!(client.tools().await, ["echo", "alpha"]);
    client.sends(&[("x-tenant", "b")]);
    assert_eq!(client.tools().await, ["echo", "beta"]);
    client.tool("echo", json!({})).await.result();
    assert_eq!(world.scripted_for("one", "b").heard("tools/call").len(), 1);
    client.sends(&[]);
    client.tool("echo", json!({})).await.says("`x-tenant`");
    assert!(
        world
            .scripted_for("one", "a")
            .heard("tools/call")
            .is_empty()
    );
}

#[tokio::test(start_paused = true)]
async fn the_value_that_is_unused_longest_makes_room() {
    let world = World::new();
    let spec = ServerSpec {
        max_caller_values: NonZeroU32::new(2),
        ..tenants("one", None)
    };
    world.configure(&[spec]);
    let server = |tenant: &str| world.scripted_for("one", tenant);
    let mut clients = Vec::new();
    for tenant in ["a", "b"] {
        let client = world.client_for(Era::Modern, tenant).await;
        client.tool("echo", json!({})).await.result();
        clients.push(client);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let c = world.client_for(Era::Modern, "c").await;
    c.tool("echo", json!({})).await.result();
    until("`a` made room", || server("a").running() == 0).await;
    assert_eq!((server("b").running(), server("c").running()), (1, 1));
    // Calls in flight keep their connections.
    let held = [
        clients[1].begin_tool("hold", json!({})),
        c.begin_tool("hold", json!({})),
    ];
    quiet().await;
    let refused = clients[0].tool("echo", json!({})).await;
    refused.says("connections for 2 other values of the header `x-tenant` are all in use");
    server("b").release();
    let [b, held] = held;
    b.reply().await.result();
    clients[0].tool("echo", json!({})).await.result();
    until("`b` made room", || server("b").running() == 0).await;
    server("c").release();
    held.reply().await.result();
}

#[tokio::test(start_paused = true)]
async fn changes_concern_only_the_callers_with_the_value() {
    for era in ERAS {
        let world = World::new();
        for tenant in ["a", "b"] {
            let server = world.scripted_for("one", tenant);
            server.script(|script| script.resources = vec!["x:1".to_owned()]);
        }
        world.configure(&[tenants("one", None)]);
        let a = world.client_for(era, "a").await;
        let b = world.client_for(era, "b").await;
        let mut streams = Vec::new();
        for client in [&a, &b] {
            client.tools().await;
            let resources = client.list("resources").await;
            let uri = resources[0]["uri"].as_str().unwrap();
            streams.push(client.listen(&[uri]).await);
        }
        announced().await;
        for client in [&a, &b] {
            client.notifications(TOOLS_CHANGED);
        }
        world
            .scripted_for("one", "a")
            .tools(&["new"])
            .changed("tools");
        world.scripted_for("one", "a").updated("x:1");
        announced().await;
        assert_eq!(a.notifications(TOOLS_CHANGED).len(), 1, "{era:?}");
        assert_eq!(b.notifications(TOOLS_CHANGED).len(), 0, "{era:?}");
        let updated = "notifications/resources/updated";
        assert_eq!(a.notifications(updated).len(), 1, "{era:?}");
        assert_eq!(b.notifications(updated).len(), 0, "{era:?}");
        assert_eq!(a.tools().await, ["new"]);
        assert_eq!(b.tools().await, ["echo", "hold"]);
    }
}

#[tokio::test(start_paused = true)]
async fn definitions_are_pinned_for_each_value() {
    let world = World::with(|settings| settings.pinning = Pinning::Quarantine);
    let describe = |tenant: &str, description: &'static str| {
        let server = world.scripted_for("one", tenant);
        server.script(|script| script.description = description);
        server
    };
    describe("a", "for a");
    describe("b", "for b");
    world.configure(&[tenants("one", None)]);
    let a = world.client_for(Era::Legacy, "a").await;
    let b = world.client_for(Era::Legacy, "b").await;
    assert_eq!(a.tools().await.len(), 2);
    assert_eq!(b.tools().await.len(), 2);
    describe("a", "changed").changed("tools");
    announced().await;
    assert!(a.tools().await.is_empty());
    a.tool("echo", json!({}))
        .await
        .says("`toolwharf restart one`");
    assert_eq!(b.tools().await.len(), 2);
    b.tool("echo", json!({})).await.result();
    world.order("one", Command::Restart).await;
    assert_eq!(a.tools().await.len(), 2);
    a.tool("echo", json!({})).await.result();
}

#[tokio::test(start_paused = true)]
async fn a_stopped_server_serves_no_value() {
    let world = World::new();
    world.configure(&[tenants("one", None)]);
    let a = world.client_for(Era::Modern, "a").await;
    a.tool("echo", json!({})).await.result();
    world.order("one", Command::Stop).await;
    until("it is stopped", || {
        world.scripted_for("one", "a").running() == 0
    })
    .await;
    a.tool("echo", json!({})).await.says("it is stopped");
    world.order("one", Command::Start).await;
    a.tool("echo", json!({})).await.result();
    assert_eq!(world.scripted_for("one", "a").starts(), 2);
    // A server that is declared in another way has new connections.
    let spec = ServerSpec {
        call_timeout: Duration::from_secs(5),
        ..tenants("one", None)
    };
    world.configure(&[spec]);
    a.tool("echo", json!({})).await.result();
    assert_eq!(world.scripted_for("one", "a").starts(), 3);
    world.configure(&[]);
    until("it is removed", || {
        world.scripted_for("one", "a").running() == 0
    })
    .await;
}

/// The connection of a failing value is given up. Other values are not affected.
#[tokio::test(start_paused = true)]
async fn a_value_that_the_server_refuses_is_given_up() {
    let world = World::new();
    world
        .scripted_for("one", "bad")
        .script(|script| script.refusals = u32::MAX);
    world.configure(&[tenants("one", None)]);
    let bad = world.client_of(Era::Modern, at("one")).await;
    bad.sends(&[("x-tenant", "bad")]);
    bad.tool("echo", json!({})).await.says("connection refused");
    let good = world.client_for(Era::Modern, "good").await;
    good.tool("echo", json!({})).await.result();
    // Longer than `server_idle`.
    tokio::time::sleep(Duration::from_secs(2 * 3600)).await;
    let attempts = world.scripted_for("one", "bad").attempts().len();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.scripted_for("one", "bad").attempts().len(), attempts);
    good.tool("echo", json!({})).await.result();
    assert!(!matches!(world.server("one").state(), State::Ready(_)));
}

#[tokio::test(start_paused = true)]
async fn values_are_never_shown() {
    let world = World::new();
    world.configure(&[tenants("one", None)]);
    let client = world.client_for(Era::Modern, "hunter2").await;
    client.tool("echo", json!({})).await.result();
    let mut headers = http::HeaderMap::new();
    headers.insert("x-tenant", "hunter2".parse().unwrap());
    let scope = world.gateway.with_values(Scope::default(), &headers);
    let shown = format!("{:?}", scope.unwrap());
    assert!(
        shown.contains("x-tenant") && !shown.contains("hunter2"),
        "{shown}"
    );
    let shown = format!("{:?}", world.server("one").spec);
    assert!(!shown.contains("hunter2"), "{shown}");
}
