//! Names of tools and prompts that leave room for the prefix of a client.

use serde_json::json;

use crate::support::{ERAS, World, stdio};

/// The prefix that Claude Code adds to the names of the entry that `toolwharf connect` writes.
const CLIENT_PREFIX: &str = "mcp__toolwharf__";

const LONG: &str = "create_pull_request_review_comment_with_suggestion";

/// Names are the same for all clients, and fit with a prefix. Those from before there was a limit still work.
#[tokio::test(start_paused = true)]
async fn g02_names_fit_with_the_prefix_of_a_client() {
    let world = World::new();
    for name in ["github", "forgejo"] {
        let server = world.scripted(name);
        server.tools(&["echo", LONG]).script(|script| {
            script.prompts = vec![LONG.to_owned()];
        });
    }
    world.configure(&[stdio("github"), stdio("forgejo")]);
    world.up(&["github", "forgejo"]).await;
    for era in ERAS {
        let client = world.client(era).await;
        let tools = client.tools().await;
        assert_eq!(tools.len(), 4);
        for name in &tools {
            assert!(CLIENT_PREFIX.len() + name.len() <= 64, "{name}");
            let reply = client.tool(name, json!({ "by": name })).await;
            assert_eq!(reply.json()["by"], *name);
        }
        assert_eq!(tools[0], "github__echo");
        assert!(tools[1].starts_with("github__create_pull_request_review"));
        let former = format!("forgejo__{LONG}");
        let reply = client.tool(&former, json!({ "by": "former" })).await;
        assert_eq!(reply.json()["by"], "former");
        let prompts = client.list("prompts").await;
        let shown = prompts[0]["name"].as_str().unwrap();
        assert!(CLIENT_PREFIX.len() + shown.len() <= 64, "{shown}");
        for name in [shown, &format!("github__{LONG}")] {
            let reply = client.request("prompts/get", json!({ "name": name })).await;
            let text = &reply.result()["messages"][0]["content"]["text"];
            assert_eq!(text, LONG, "{name}");
        }
    }
    for server in ["github", "forgejo"] {
        let called = world.scripted(server).heard("tools/call");
        let mut names = called.iter().map(|call| &call.frame["params"]["name"]);
        assert!(names.all(|name| name == "echo" || name == LONG));
    }
}

/// The limit is a setting. A name that was exposed before there was one stays callable.
#[tokio::test(start_paused = true)]
async fn g02_the_limit_of_names_is_a_setting() {
    for (max_len, is_shown) in [(64, true), (50, true), (49, false), (48, false)] {
        let world = World::with(|settings| settings.max_name_len = max_len);
        let name = LONG;
        world.scripted("one").tools(&[name]);
        world.configure(&[stdio("one"), stdio("two")]);
        world.up(&["one", "two"]).await;
        let client = world.legacy().await;
        let tools = client.tools().await;
        assert_eq!(tools.iter().any(|tool| tool == name), is_shown, "{max_len}");
        assert!(tools.iter().all(|tool| tool.len() <= max_len), "{tools:?}");
        for name in [name, &format!("one__{name}")] {
            client.tool(name, json!({})).await.result();
        }
        // The view of one server has the names that the server gave.
        let single = world.client_at(mcp::Era::Legacy, "one").await;
        assert_eq!(single.tools().await, [name]);
    }
}
