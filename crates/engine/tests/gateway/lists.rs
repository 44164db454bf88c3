//! Lists of servers that are described badly, cannot be fetched, or change silently.

use std::time::Duration;

use engine::Scope;
use model::Pinning;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{ERAS, World, quiet, server_name, stdio, takes, until, url};

/// A client of one server's view.
async fn single(world: &World, era: mcp::Era, server: &str) -> crate::support::client::Client {
    let scope = Scope {
        server: Some(server_name(server)),
        ..Scope::default()
    };
    world.client_of(era, scope).await
}

fn names(listed: &[Value], key: &str) -> Vec<String> {
    let names = listed.iter().map(|item| item[key].as_str().unwrap_or("?"));
    names.map(str::to_owned).collect()
}

/// Views of several servers show repaired definitions, and leave out what cannot be repaired. The view of the server
/// shows everything as it was sent.
#[tokio::test(start_paused = true)]
async fn u10_bad_definitions_affect_no_other_server() {
    let sent = [
        json!({ "name": "null", "title": null, "inputSchema": { "type": "object", "required": null } }),
        json!({ "name": "none" }),
        json!({ "name": "unfit", "inputSchema": { "type": "string" } }),
        json!({ "inputSchema": { "type": "object" } }),
        json!("text"),
    ];
    let world = World::new();
    world.scripted("bad").tools(&[]).script(|script| {
        script.definitions.insert("tools", sent.to_vec());
        script.prompts = vec!["p".to_owned()];
        let prompts = vec![
            json!({ "name": "q", "arguments": null }),
            json!({ "title": "no name" }),
        ];
        script.definitions.insert("prompts", prompts);
        script.resources = vec!["a:1".to_owned()];
        script
            .definitions
            .insert("resources", vec![json!({ "uri": "a:2" }), json!(7)]);
        let templates = vec![json!({ "uriTemplate": "a:{x}", "annotations": null })];
        script.definitions.insert("resourceTemplates", templates);
    });
    world.scripted("good").tools(&["fine"]);
    world.configure(&[stdio("bad"), stdio("good")]);
    world.up(&["bad", "good"]).await;
    for era in ERAS {
        let client = world.client(era).await;
        let tools = client.list("tools").await;
        assert_eq!(names(&tools, "name"), ["null", "none", "fine"]);
        assert!(
            tools
                .iter()
                .all(|tool| tool["inputSchema"] == json!({ "type": "object" }))
        );
        assert_eq!(tools[0].get("title"), None);
        assert_eq!(names(&client.list("prompts").await, "name"), ["p", "q"]);
        let resources = client.list("resources").await;
        assert_eq!(names(&resources, "name"), ["a:1", "a:2"]);
        let listed = client.request("resources/templates/list", json!({})).await;
        let templates = listed.result()["resourceTemplates"]
            .as_array()
            .unwrap()
            .clone();
        assert_eq!(names(&templates, "name"), ["a:{x}"]);
        assert_eq!(templates[0].get("annotations"), None);
        client.tool("none", json!({ "n": 1 })).await.result();
        let refused = client.tool("bad__unfit", json!({})).await;
        refused.says("Unknown tool: bad__unfit (server `bad`: tool `unfit` is left out");

        let client = single(&world, era, "bad").await;
        assert_eq!(client.list("tools").await, sent);
        assert_eq!(client.list("prompts").await.len(), 3);
        assert_eq!(client.list("resources").await.len(), 3);
        client.tool("unfit", json!({})).await.result();
    }
    let problems = world.server("bad").problems().join("\n");
    for part in [
        "tool `unfit` is left out",
        "tool is left out",
        "prompt is left out",
        "resource is left out",
    ] {
        assert!(problems.contains(part), "{problems}");
    }
    let remarks = world.server("bad").remarks().join("\n");
    assert!(remarks.contains("tool `null` is offered in a repaired form: `inputSchema.required` is null, `title` is null"), "{remarks}");
    assert_eq!(world.server("good").problems(), Vec::<String>::new());
}

/// A repaired definition is approved as the server sent it.
#[tokio::test(start_paused = true)]
async fn u10_pins_are_of_the_original_definition() {
    let world = World::with(|settings| settings.pinning = Pinning::Quarantine);
    let one = world.scripted("one");
    let define = |definition: Value| {
        one.tools(&[]).script(|script| {
            script.definitions.insert("tools", vec![definition]);
        });
    };
    define(json!({ "name": "t" }));
    world.configure(&[stdio("one"), stdio("two")]);
    world.up(&["one", "two"]).await;
    // The repaired form is the same, but the definition is not.
    define(json!({ "name": "t", "inputSchema": {} }));
    one.changed("tools");
    let is_kept = || {
        let view = world.gateway.view(&Scope::default()).unwrap();
        view.kept_back_of(&server_name("one"), "t").is_some()
    };
    until("it is kept back", is_kept).await;
    // Nor can it be called by name in the view of its server.
    for era in ERAS {
        let client = single(&world, era, "one").await;
        client.tool("t", json!({})).await.says("kept back");
    }
    assert!(one.heard("tools/call").is_empty());
}

/// A tool that may not be offered cannot be called by name, not even in the view of its server.
#[tokio::test(start_paused = true)]
async fn a_refused_tool_cannot_be_called_by_name() {
    let world = World::new();
    let one = world.scripted("one");
    let odd = json!({ "name": "od\u{7}d", "inputSchema": { "type": "object" } });
    one.script(|script| {
        script.definitions.insert("tools", vec![odd]);
    });
    world.configure(&[stdio("one")]);
    world.up(&["one"]).await;
    for era in ERAS {
        let client = single(&world, era, "one").await;
        let refused = client.tool("od\u{7}d", json!({})).await;
        refused.says("its name has control characters");
        client.tool("unlisted", json!({})).await.result();
    }
    assert_eq!(one.heard("tools/call").len(), ERAS.len());
}

/// A server whose list fails for good is running, and says why it has no tools.
#[tokio::test(start_paused = true)]
async fn a_list_that_fails_is_a_problem_of_its_server() {
    for (list, kind) in [("tools/list", "tool"), ("prompts/list", "prompt")] {
        let (world, one) = World::one(stdio("one"), |script| {
            script.failing.insert(list, "the catalog is broken");
            script.prompts = vec!["p".to_owned()];
        });
        world.up(&["one"]).await;
        let expected = format!("`{list}` failed: the server answered: ");
        let problems = world.server("one").problems();
        assert!(problems[0].starts_with(&expected), "{problems:?}");
        assert!(problems[0].contains("the catalog is broken"));
        assert_eq!(world.status("one").warnings, 1);
        for era in ERAS {
            let client = world.client(era).await;
            let reply = match kind {
                "tool" => client.tool("one__x", json!({})).await,
                _ => client.request("prompts/get", json!({ "name": "x" })).await,
            };
            reply.says(&format!("server `one`: {expected}"));
        }
        // It is requested again, and reported once.
        let asked = || one.heard(list).len();
        until("it is asked again", || asked() > 4).await;
        assert_eq!(world.status("one").warnings, 1);
        one.script(|script| script.failing.clear());
        until("it works", || world.server("one").problems().is_empty()).await;
    }
}

/// A server that declares nothing says so.
#[tokio::test(start_paused = true)]
async fn a_server_without_tools_says_so() {
    let (world, one) = World::one(stdio("one"), |script| script.has_no_tools = true);
    world.up(&["one"]).await;
    let problems = world.server("one").problems().join("");
    assert!(problems.contains("declares no tools"), "{problems}");
    assert_eq!(world.status("one").warnings, 1);
    let client = world.legacy().await;
    client
        .tool("echo", json!({}))
        .await
        .says("Unknown tool: echo (server `one`: it declares no tools");
    // A server with prompts works as intended.
    one.script(|script| script.prompts = vec!["p".to_owned()])
        .exit(1);
    until("it runs again", || {
        one.starts() == 2 && world.state("one") == "running"
    })
    .await;
    quiet().await;
    assert_eq!(world.server("one").problems(), Vec::<String>::new());
    assert!(world.server("one").remarks()[0].contains("declares no tools"));
}

/// An unknown name may belong to a server that is starting or has failed.
#[tokio::test(start_paused = true)]
async fn a08_an_unknown_tool_names_the_servers_that_are_not_there() {
    let world = World::new();
    world
        .scripted("slow")
        .script(|script| script.start_delay = Duration::from_secs(40));
    world
        .scripted("down")
        .script(|script| script.refusals = 100);
    world.configure(&[stdio("slow"), url("down"), stdio("good")]);
    world.up(&["good"]).await;
    tokio::time::sleep(Duration::from_secs(15)).await;
    for era in ERAS {
        let client = world.client(era).await;
        let reply = client.tool("x", json!({})).await;
        reply.says("Unknown tool: x (server `slow`: it is still starting; server `down`: ");
        let reply = client.tool("good__x", json!({})).await;
        assert_eq!(reply.message(), "Unknown tool: good__x");
        let reply = client.tool("slow__x", json!({})).await;
        assert_eq!(
            reply.message(),
            "Unknown tool: slow__x (server `slow`: it is still starting)"
        );
    }
}

/// A server that cannot report changes is listed again.
#[tokio::test(start_paused = true)]
async fn a_silent_change_is_found() {
    let (world, one) = World::one(stdio("one"), |script| {
        script.era = mcp::Era::Modern;
        script.reports_changes = false;
    });
    world.up(&["one"]).await;
    let client = world.modern().await;
    assert_eq!(client.tools().await, ["echo", "hold"]);
    one.tools(&["new"]);
    let changed = || world.gateway.view(&Scope::default()).unwrap();
    let found = until("it is found", || {
        changed().len(catalog::ListKind::Tools) == 1
    });
    takes(found.await, 1.0, 61.0);
    // A server that reports its changes is not asked.
    let (world, one) = World::running(stdio("one"), |_| {}).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(one.heard("tools/list").len(), 1);
    assert_eq!(world.state("one"), "running");
}

/// The first list waits longer while servers come up, and names those that are missing.
#[tokio::test(start_paused = true)]
async fn the_first_list_waits_while_servers_come_up() {
    let world = World::new();
    let names: Vec<String> = (0..9).map(|n| format!("s{n}")).collect();
    for (name, delay) in names.iter().zip([2, 4, 6, 8, 10, 12, 14, 19, 30]) {
        let server = world.scripted(name);
        server.tools(&[name]);
        server.script(|script| script.start_delay = Duration::from_secs(delay));
    }
    let specs: Vec<_> = names.iter().map(|name| stdio(name)).collect();
    world.configure(&specs);
    let began = Instant::now();
    let client = world.legacy().await;
    let listed = client.request("tools/list", json!({})).await;
    takes(began.elapsed(), 16.9, 17.1);
    let meta = &listed.result()["_meta"]["dev.toolwharf/missing"];
    assert_eq!(*meta, json!(["s7", "s8"]));
    assert_eq!(listed.result()["tools"].as_array().unwrap().len(), 7);
    world.up(&["s8"]).await;
    let listed = client.request("tools/list", json!({})).await;
    assert_eq!(listed.result().get("_meta"), None);
}

/// A modern client need not ask again for a minute, unless the list is about to change.
#[tokio::test(start_paused = true)]
async fn complete_lists_may_be_kept_for_a_while() {
    let world = World::new();
    world.scripted("one").tools(&["t"]);
    world.configure(&[stdio("one")]);
    world.up(&["one"]).await;
    let client = world.modern().await;
    let ttl = async || {
        let listed = client.request("tools/list", json!({})).await;
        let listed = listed.result();
        assert_eq!(listed["cacheScope"], "private");
        listed["ttlMs"].as_u64()
    };
    assert_eq!(ttl().await, Some(60_000));
    // The server is not reachable, and its tools are unknown.
    let delay = Duration::from_secs(600);
    world
        .scripted("two")
        .script(|script| script.start_delay = delay);
    world.configure(&[stdio("one"), stdio("two")]);
    assert_eq!(ttl().await, Some(0));
}
