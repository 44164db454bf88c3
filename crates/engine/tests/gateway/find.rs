//! Search mode: a short list of tools, and what finds, describes and calls the others.

use std::{collections::HashMap, sync::Arc, time::Duration};

use engine::{Hints, Project, SavedTokens, Scope};
use model::{ProjectView, ToolMode, ToolRef};
use relevance::Meanings;
use serde_json::{Value, json};

use crate::support::{ERAS, World, client::Client, owned, project_id, stdio, until};

const FINDERS: [&str; 3] = ["search_tools", "describe_tools", "call_tool"];
const CHANGED: &str = "notifications/tools/list_changed";

fn tool(name: &str, description: &str) -> Value {
    json!({
        "name": name,
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": { "title": { "type": "string" }, "count": { "type": "integer" } },
            "required": ["title"],
        },
    })
}

/// A world with the servers `forge` and `sky`.
async fn world(change: impl FnOnce(&mut model::Settings)) -> World {
    let world = World::with(change);
    let define = |server: &str, tools: Vec<Value>| {
        world.scripted(server).tools(&[]).script(|script| {
            script.definitions.insert("tools", tools);
        });
    };
    define(
        "forge",
        vec![
            tool("create_issue", "Create a new issue in a repository"),
            tool("merge_request", "Merge a pull request"),
        ],
    );
    let mut redraw = tool("redraw", "Draws the weather again");
    redraw["_meta"] = json!({ "ui": { "visibility": ["app"] } });
    define(
        "sky",
        vec![tool("forecast", "Weather of the next days"), redraw],
    );
    world.configure(&[stdio("forge"), stdio("sky")]);
    world.up(&["forge", "sky"]).await;
    world
}

fn searching(settings: &mut model::Settings) {
    settings.tools = ToolMode::Search;
}

fn reference(text: &str) -> ToolRef {
    ToolRef::parse(text).unwrap()
}

async fn search(client: &Client, query: &str) -> String {
    let found = client.tool("search_tools", json!({ "query": query })).await;
    assert_eq!(found.result()["isError"], false, "{}", found.raw);
    found.text().to_owned()
}

/// The message of a result with `isError`.
async fn fails(client: &Client, tool: &str, arguments: Value) -> String {
    let failed = client.tool(tool, arguments).await;
    assert_eq!(failed.result()["isError"], true, "{}", failed.raw);
    failed.text().to_owned()
}

#[tokio::test(start_paused = true)]
async fn x01_a_short_list_leads_to_all_tools() {
    let world = world(|settings| {
        searching(settings);
        settings.listed_tools = [reference("sky/forecast")].into();
    })
    .await;
    for era in ERAS {
        let client = world.client(era).await;
        let tools = client.tools().await;
        assert_eq!(tools, [&FINDERS[..], &["forecast"]].concat());
        let listed = client.list("tools").await;
        assert_eq!(listed[3]["_meta"]["anthropic/alwaysLoad"], true);
        assert_eq!(listed[3]["_meta"]["dev.toolwharf/server"], "sky");
        let found = search(&client, "open an issue").await;
        let first = found.lines().next().unwrap();
        assert!(first.starts_with("create_issue("), "{found}");
        // Models do not call a tool that only an App may call.
        let found = search(&client, "redraw weather").await;
        assert!(
            found.contains("forecast(") && !found.contains("redraw("),
            "{found}"
        );
        fails(&client, "describe_tools", json!({ "names": ["redraw"] })).await;
        let described = json!({ "names": ["create_issue", "forecast"] });
        let described = client.tool("describe_tools", described).await;
        let described: Vec<Value> = described
            .text()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(described[0]["inputSchema"]["required"], json!(["title"]));
        assert_eq!(described[1]["name"], "forecast");
        // The tool is called through the gateway's tool, and by its name.
        let arguments = json!({ "title": "t", "count": 3 });
        let through = json!({ "name": "create_issue", "arguments": arguments });
        client.tool("call_tool", through).await.result();
        client
            .tool("create_issue", arguments.clone())
            .await
            .result();
        let forge = world.scripted("forge");
        let calls = forge.heard("tools/call");
        let calls = &calls[calls.len() - 2..];
        for call in calls {
            assert_eq!(call.frame["params"]["name"], "create_issue");
            assert_eq!(call.frame["params"]["arguments"], arguments);
        }
    }
    // The view of one server is always complete.
    for era in ERAS {
        let client = world.client_at(era, "forge").await;
        assert_eq!(client.tools().await, ["create_issue", "merge_request"]);
    }
}

#[tokio::test(start_paused = true)]
async fn x01_wrong_arguments_are_explained_to_the_model() {
    let world = world(searching).await;
    let client = world.modern().await;
    let long = "issue ".repeat(200_000);
    for query in [
        "",
        "   ",
        "zzz",
        "\"+-*/(){}[]^~:&|!",
        "天气预报",
        long.as_str(),
    ] {
        search(&client, query).await;
    }
    let cases = [
        ("search_tools", json!({}), "needs `query`"),
        ("search_tools", json!({ "query": 7 }), "needs `query`"),
        (
            "search_tools",
            json!({ "query": "a", "limit": 0 }),
            "from 1 to 50",
        ),
        (
            "search_tools",
            json!({ "query": "a", "limit": "x" }),
            "from 1 to 50",
        ),
        (
            "search_tools",
            json!({ "query": "a", "server": "none" }),
            "no server `none`",
        ),
        ("describe_tools", json!({}), "needs `names`"),
        ("describe_tools", json!({ "names": [] }), "needs `names`"),
        (
            "describe_tools",
            json!({ "names": ["none"] }),
            "Unknown: `none`",
        ),
        ("call_tool", json!({}), "needs `name`"),
        ("call_tool", json!({ "name": 1 }), "needs `name`"),
        (
            "call_tool",
            json!({ "name": "forecast", "arguments": [] }),
            "an object",
        ),
        (
            "call_tool",
            json!({ "name": "call_tool" }),
            "cannot call `call_tool`",
        ),
    ];
    for (tool, arguments, part) in cases {
        let why = fails(&client, tool, arguments.clone()).await;
        assert!(why.contains(part), "{tool} {arguments}: {why}");
    }
    // A name that no server has gets the error of a direct call.
    let unknown = json!({ "name": "no_such_tool", "arguments": {} });
    let unknown = client.tool("call_tool", unknown).await;
    unknown.says("Unknown tool: no_such_tool");
    assert_eq!(unknown.error()["code"], -32602);
    // A call may leave out the arguments.
    let bare = json!({ "name": "forecast" });
    client.tool("call_tool", bare).await.result();
    let heard = world.scripted("sky").heard("tools/call");
    assert_eq!(heard[0].frame["params"]["arguments"], json!({}));
}

/// A server's tool stays reachable if a gateway tool has the same name.
#[tokio::test(start_paused = true)]
async fn x01_a_servers_own_search_tool_is_not_lost() {
    let world = World::new();
    world.scripted("one").tools(&["search_tools", "other"]);
    world.scripted("two").tools(&["third"]);
    world.configure(&[stdio("one"), stdio("two")]);
    world.up(&["one", "two"]).await;
    let plain = world.modern().await;
    plain.tool("search_tools", json!({ "n": 1 })).await.result();
    let calls = || world.scripted("one").heard("tools/call").len();
    assert_eq!(
        calls(),
        1,
        "the list is complete, so the server's tool is meant"
    );
    let scope = Scope {
        tools: Some(ToolMode::Search),
        ..Scope::default()
    };
    let client = world.client_of(mcp::Era::Modern, scope).await;
    search(&client, "other").await;
    assert_eq!(calls(), 1);
    client.tool("one__search_tools", json!({})).await.result();
    assert_eq!(calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn x02_auto_follows_the_length_of_the_list() {
    let world = world(|settings| {
        settings.tools = ToolMode::Auto;
        settings.search_above = 400;
    })
    .await;
    let client = world.legacy().await;
    assert_eq!(client.tools().await.len(), 4, "the list is short");
    assert_eq!(world.gateway.saved_tokens(), SavedTokens::default());
    let many: Vec<String> = (0..30)
        .map(|at| format!("tool_with_a_long_name_{at}"))
        .collect();
    let many: Vec<Value> = many
        .iter()
        .map(|name| tool(name, "Does something"))
        .collect();
    let sky = world.scripted("sky");
    client.notifications(CHANGED);
    let told = || !client.notifications(CHANGED).is_empty();
    sky.script(|script| {
        script.definitions.insert("tools", many);
    });
    sky.changed("tools");
    until("the mode changes", told).await;
    assert_eq!(client.tools().await, FINDERS);
    // Each list counts, for a day.
    let lengths = world.gateway.view(&Scope::default()).unwrap().list_tokens();
    let saved = (lengths.whole - lengths.search) as u64;
    assert_eq!(client.tools().await, FINDERS);
    let total = SavedTokens {
        since_start: 2 * saved,
        last_day: 2 * saved,
    };
    assert_eq!(world.gateway.saved_tokens(), total);
    tokio::time::sleep(Duration::from_hours(24)).await;
    assert_eq!(
        world.gateway.saved_tokens(),
        SavedTokens {
            last_day: 0,
            ..total
        }
    );
    client.notifications(CHANGED);
    // A change that the short list does not show is not announced.
    let more: Vec<Value> = (0..40)
        .map(|at| tool(&format!("other_long_name_{at}"), "Else"))
        .collect();
    sky.script(|script| {
        script.definitions.insert("tools", more);
    });
    sky.changed("tools");
    let renamed = || {
        let view = world.gateway.view(&Scope::default()).unwrap();
        view.tool("other_long_name_39").is_ok()
    };
    until("the tools change", renamed).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(client.notifications(CHANGED).is_empty());
    sky.script(|script| {
        let few = vec![tool("forecast", "Weather of the next days")];
        script.definitions.insert("tools", few);
    });
    sky.changed("tools");
    until("the mode changes back", told).await;
    assert_eq!(client.tools().await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn x02_the_request_goes_before_the_project_and_the_gateway() {
    let world = world(searching).await;
    let view = ProjectView {
        tools: Some(ToolMode::All),
        ..ProjectView::default()
    };
    let project = Project {
        view,
        ..Project::default()
    };
    let own = owned("red", stdio("paint"));
    world.owned("red", "paint").tools(&["brush"]);
    let id = project_id("red");
    world
        .gateway
        .project_set(&id, project, vec![own], HashMap::new());
    for era in ERAS {
        let project = world.client_in(era, "red").await;
        assert!(project.tools().await.contains(&"brush".to_owned()));
        let asked = json!({ "_meta": { "dev.toolwharf/tools": "search" } });
        let listed = project.request("tools/list", asked).await;
        let listed = listed.result()["tools"].as_array().unwrap();
        assert_eq!(listed.len(), 3, "{listed:?}");
        let wrong = json!({ "_meta": { "dev.toolwharf/tools": "some" } });
        let wrong = project.request("tools/list", wrong).await;
        wrong.says("must be one of all, search, auto");
    }
}

#[tokio::test(start_paused = true)]
async fn x03_hidden_tools_are_not_found() {
    let view = ProjectView {
        disabled_tools: [reference("forge/create_issue")].into(),
        tools: Some(ToolMode::Search),
        ..ProjectView::default()
    };
    let world = world(|settings| {
        settings.projects.insert(project_id("red"), view);
    })
    .await;
    for era in ERAS {
        let client = world.client_in(era, "red").await;
        let found = search(&client, "create_issue create an issue").await;
        assert!(!found.contains("create_issue("), "{found}");
        let described = json!({ "names": ["create_issue"] });
        let why = fails(&client, "describe_tools", described).await;
        assert!(!why.contains("repository"), "{why}");
        for arguments in [
            json!({ "name": "create_issue", "arguments": { "title": "t" } }),
            json!({ "name": "forge__create_issue", "arguments": { "title": "t" } }),
        ] {
            let refused = client.tool("call_tool", arguments).await;
            assert_eq!(refused.error()["code"], -32602, "{}", refused.raw);
        }
    }
    assert!(world.scripted("forge").heard("tools/call").is_empty());
}

/// With a sentence model, searches compare meanings as soon as those of the tools are computed.
#[tokio::test]
async fn meanings_are_computed_beside_searches() {
    let world = world(searching).await;
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../discovery-model/tests/tiny.model"
    );
    let meanings = Arc::new(Meanings::load(file.as_ref()).unwrap());
    world.gateway.keep_meanings(meanings.clone());
    let hints = Hints {
        vectors: meanings.of_query("open an issue").await,
        past: None,
    };
    let client = world.modern().await;
    let found = search(&client, "open an issue").await;
    assert!(found.starts_with("create_issue("), "{found}");
    let similarities = || {
        let view = world.gateway.view(&Scope::default()).unwrap();
        let found = view.find("open an issue", None, 3, &hints);
        found
            .iter()
            .filter_map(|found| found.hit.similarity)
            .count()
    };
    until("the meanings are there", || similarities() > 0).await;
    assert!(Meanings::load(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").as_ref()).is_err());
}

/// With `search_past_calls`, the words of searches that led to successful calls find the tool.
#[tokio::test(start_paused = true)]
async fn searches_learn_from_successful_calls_of_the_same_project() {
    for learns in [false, true] {
        let world = World::with(|settings| {
            searching(settings);
            settings.search_past_calls = learns;
            let view = ProjectView::default();
            settings.projects.insert(project_id("red"), view);
        });
        world.scripted("forge").tools(&[]).script(|script| {
            let tools = [
                ("create_issue", "Create a new issue"),
                ("fail", "It fails"),
                ("rpc_error", "It fails"),
            ];
            let tools = tools.map(|(name, description)| tool(name, description));
            script.definitions.insert("tools", tools.to_vec());
        });
        world.configure(&[stdio("forge")]);
        world.up(&["forge"]).await;
        for (era, word, other) in [(ERAS[0], "zorp", "quux"), (ERAS[1], "blarg", "frob")] {
            let client = world.client(era).await;
            let found = async |word: &str| {
                let found = search(&client, word).await;
                !found.starts_with("No tool fits")
            };
            for called in ["create_issue", "call_tool"] {
                assert!(!found(word).await, "before the second call");
                assert!(found(&format!("open an issue: {word}")).await);
                let arguments = json!({ "title": "t" });
                let arguments = match called {
                    "call_tool" => json!({ "name": "create_issue", "arguments": arguments }),
                    _ => arguments,
                };
                client.tool(called, arguments).await.result();
            }
            for failing in ["fail", "rpc_error"] {
                for _ in 0..2 {
                    assert!(found(&format!("{failing} {other}")).await);
                    client.tool(failing, json!({ "title": "t" })).await;
                }
            }
            assert_eq!(found(word).await, learns, "{word}");
            assert!(!found(other).await);
            let view = world.gateway.view(&Scope::default()).unwrap();
            let hints = world.gateway.hints(&view, word).await;
            let hits = view.find(word, None, 3, &hints);
            assert_eq!(hits.len(), usize::from(learns));
            assert!(hits.iter().all(|found| found.hit.fields.past > 0.0));
            let project = world.client_in(era, "red").await;
            let elsewhere = search(&project, word).await;
            assert!(elsewhere.starts_with("No tool fits"), "{elsewhere}");
        }
    }
}
