//! Messages that break rules, or that few peers send: they are read if their meaning is clear, and named otherwise.

use mcp::Era;
use model::ServerSpec;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{ERAS, World, client::Reply, stdio};

const CONTENT: &str = r#"{"content":[{"type":"text","text":"hey"}]}"#;

/// A world whose server has a tool that writes text as it is, with `$ID` for the id of the call.
async fn writing(era: Era) -> World {
    let (world, _) = World::running(stdio("one"), |script| {
        script.era = era;
        script.tools = ["write", "echo"].map(str::to_owned).to_vec();
    })
    .await;
    world
}

async fn written(world: &World, era: Era, text: &str) -> Reply {
    let client = world.client(era).await;
    client.tool("write", json!({ "text": text })).await
}

#[tokio::test(start_paused = true)]
async fn unambiguous_responses_reach_their_caller() {
    let world = writing(Era::Legacy).await;
    for text in [
        r#"{"jsonrpc":"2.0","id":"$ID","result":CONTENT}"#,
        r#"{"jsonrpc":"2.0","id":$ID.0,"result":CONTENT}"#,
        r#"{"id":$ID,"result":CONTENT}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":CONTENT,"error":null}"#,
        r#"[{"jsonrpc":"2.0","id":$ID,"result":CONTENT}]"#,
        "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":CONTENT}",
        r#"loading... {"jsonrpc":"2.0","id":$ID,"result":CONTENT}"#,
    ] {
        let text = text.replace("CONTENT", CONTENT) + "\n";
        for era in ERAS {
            let began = Instant::now();
            let reply = written(&world, era, &text).await;
            assert_eq!(reply.text(), "hey", "{text}");
            assert!(began.elapsed().is_zero(), "{text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn malformed_errors_become_valid_and_keep_their_text() {
    let world = writing(Era::Legacy).await;
    for (error, code, message) in [
        (r#""boom""#, -32603, "boom"),
        (r#"{"code":"E1","message":"says no"}"#, -32603, "says no"),
        (
            r#"{"code":-5,"message":null}"#,
            -5,
            r#"the server sent an error without a message: {"code":-5,"message":null}"#,
        ),
    ] {
        for (before, after) in [("", ""), ("\"result\":null,", ""), ("", ",\"result\":null")] {
            let text =
                format!("{{\"jsonrpc\":\"2.0\",\"id\":$ID,{before}\"error\":{error}{after}}}\n");
            let reply = written(&world, Era::Legacy, &text).await;
            assert_eq!(reply.error()["code"], code, "{text}");
            assert_eq!(reply.message(), message, "{text}");
        }
    }
    let text = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"disk full"}}"#;
    let reply = written(&world, Era::Legacy, &format!("{text}\n")).await;
    assert_eq!(reply.message(), "disk full");
}

/// Refusals come at once, name the server, and show what was received.
#[tokio::test(start_paused = true)]
async fn other_responses_are_refused_at_once() {
    let world = writing(Era::Legacy).await;
    for (text, shown) in [
        (
            r#"{"jsonrpc":"2.0","id":$ID,"result":"ok"}"#,
            r#"`result` must be an object: "ok""#,
        ),
        (
            r#"{"jsonrpc":"2.0","id":$ID,"result":null}"#,
            "`result` must be an object: null",
        ),
        (
            r#"{"jsonrpc":"2.0","id":$ID,"result":{},"error":{"code":1,"message":"x"}}"#,
            r#"or `error`: {"jsonrpc":"#,
        ),
        (
            r#"{"jsonrpc":"2.0","result":{"x":1}}"#,
            r#""result":{"x":1}}"#,
        ),
        (
            r#"{"jsonrpc":"2.0","id":$ID,"result":{"a":1,"a":2}}"#,
            "duplicate key \"a\": {\"jsonrpc\"",
        ),
    ] {
        let began = Instant::now();
        let reply = written(&world, Era::Legacy, &format!("{text}\n")).await;
        assert!(began.elapsed().is_zero(), "{text}");
        assert_eq!(reply.reason(), "server_failed");
        reply.says("server `one` failed on `write`");
        reply.says(shown);
    }
}

/// A prompt without a line break, a log and a response with another id are shown when the call times out.
#[tokio::test(start_paused = true)]
async fn a_call_that_times_out_says_what_was_printed() {
    for (text, shown) in [
        ("Password: ", "`Password:`"),
        ("[info] one\n[info] two\n", "`[info] one`, `[info] two`"),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{}}\n",
            r#"`{"jsonrpc":"2.0","id":0,"result":{}}`"#,
        ),
    ] {
        let world = writing(Era::Legacy).await;
        let reply = written(&world, Era::Legacy, text).await;
        assert_eq!(reply.reason(), "timeout");
        reply.says("during the call, it wrote to standard output what answers no request: ");
        reply.says(shown);
    }
    // The error does not contain output of an earlier call.
    let world = writing(Era::Legacy).await;
    let client = world.legacy().await;
    let text = format!("before\n{{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{CONTENT}}}\n");
    client.tool("write", json!({ "text": text })).await.result();
    let client = world.legacy().await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let reply = client.tool("write", json!({ "text": "{" })).await;
    let ms = ServerSpec::DEFAULT_CALL_TIMEOUT.as_millis();
    assert!(
        reply.message().ends_with(&format!("within {ms} ms")),
        "{}",
        reply.raw
    );
}

#[tokio::test(start_paused = true)]
async fn half_an_emoji_passes_through() {
    for server in ERAS {
        let world = writing(server).await;
        let result = r#"{"resultType":"complete","content":[{"type":"text","text":"cut \ud83d"}],"structuredContent":{"\ud83d":"\ud83d","\ud83e":1}}"#;
        let text = format!("{{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{result}}}\n");
        for era in ERAS {
            let client = world.client(era).await;
            let reply = client
                .begin_tool("write", json!({ "text": text }))
                .reply()
                .await
                .raw;
            assert!(reply.contains(r#""text":"cut \ud83d""#), "{reply}");
            assert!(
                reply.contains(r#"{"\ud83d":"\ud83d","\ud83e":1}"#),
                "{reply}"
            );
        }
    }
}

/// A name cannot hold half an emoji: it is refused, and never taken for another name.
#[tokio::test(start_paused = true)]
async fn half_an_emoji_is_no_name() {
    let (world, one) = World::running(stdio("one"), |_| {}).await;
    one.tools(&["\u{fffd}", "\\ud83d", "echo"]);
    one.changed("tools");
    let client = world.legacy().await;
    for name in [r#""\ud83d""#, r#""echo\udc00""#] {
        let params = format!(r#"{{"name":{name},"arguments":{{}}}}"#);
        let reply = client.begin_raw("tools/call", &params).reply().await;
        assert_eq!(reply.error()["code"], -32602);
        reply.says("`name` must be a string");
    }
    let uri = client.begin_raw("resources/read", r#"{"uri":"x:\ud83d"}"#);
    assert_eq!(uri.reply().await.error()["code"], -32602);
    assert!(one.heard("tools/call").is_empty());
}

#[tokio::test(start_paused = true)]
async fn no_cursor_may_be_written_as_null_or_empty() {
    let (world, _) = World::running(stdio("one"), |_| {}).await;
    for era in ERAS {
        let client = world.client(era).await;
        for cursor in [Value::Null, json!("")] {
            let reply = client
                .request("tools/list", json!({ "cursor": cursor }))
                .await;
            assert_eq!(reply.result()["tools"].as_array().map(Vec::len), Some(2));
        }
        let reply = client.request("tools/list", json!({ "cursor": "x" })).await;
        assert_eq!(reply.error()["code"], -32602);
    }
}

/// A legacy client would take a result of a type that it does not know for an empty success.
#[tokio::test(start_paused = true)]
async fn an_unknown_type_of_result_is_an_error_for_legacy_clients() {
    let world = writing(Era::Modern).await;
    let text = "{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{\"resultType\":\"stream\",\"at\":1}}\n";
    let reply = written(&world, Era::Legacy, text).await;
    assert_eq!(reply.error()["code"], -32603);
    reply.says("server `one` sent a result of type \"stream\"");
    let reply = written(&world, Era::Modern, text).await;
    assert_eq!(reply.result()["resultType"], "stream");
}

/// Tasks are watched with an extension that the client has to declare.
#[tokio::test(start_paused = true)]
async fn watching_tasks_needs_the_extension() {
    let (world, _) = World::running(stdio("one"), |_| {}).await;
    let client = world.modern().await;
    let params = json!({ "notifications": { "taskIds": ["a"] } });
    let reply = client.begin("subscriptions/listen", params).reply().await;
    assert_eq!(reply.error()["code"], -32021);
    let extensions = &reply.error()["data"]["requiredCapabilities"]["extensions"];
    assert!(extensions["io.modelcontextprotocol/tasks"].is_object());
}

/// Results that the gateway makes name a server, like results of servers: the gateway, or the server of a single view.
#[tokio::test(start_paused = true)]
async fn results_of_the_gateway_name_a_server() {
    let (world, one) = World::running(stdio("one"), |script| {
        script.tools = vec!["ask".to_owned()];
    })
    .await;
    let info = |reply: &Reply| {
        reply.result()["_meta"]["io.modelcontextprotocol/serverInfo"]["name"].clone()
    };
    for (client, name) in [
        (world.modern().await, "toolwharf"),
        (world.client_at(Era::Modern, "one").await, "scripted"),
    ] {
        for method in ["tools/list", "server/discover"] {
            let reply = client.begin(method, json!({})).reply().await;
            assert_eq!(info(&reply), name, "{method}");
        }
        let asks = client.begin("tools/call", json!({ "name": "ask", "arguments": {} }));
        let asks = asks.reply().await;
        assert_eq!(asks.result()["resultType"], "input_required");
        assert_eq!(info(&asks), name);
    }
    assert_eq!(one.starts(), 1);
}

/// At the endpoint of one server, the server's own methods are the ones that exist.
#[tokio::test(start_paused = true)]
async fn methods_that_the_only_server_lacks_do_not_exist() {
    let (world, one) = World::running(stdio("one"), |_| {}).await;
    for era in ERAS {
        let client = world.client_at(era, "one").await;
        for (method, params) in [
            ("prompts/list", json!({})),
            ("prompts/get", json!({ "name": "p" })),
            ("resources/list", json!({})),
            ("resources/templates/list", json!({})),
            (
                "completion/complete",
                json!({ "ref": { "type": "ref/prompt", "name": "p" }, "argument": {} }),
            ),
        ] {
            let reply = client.request(method, params.clone()).await;
            assert_eq!(reply.error()["code"], -32601, "{method}");
            // The view of all servers has every list.
            if method.ends_with("/list") {
                world
                    .client(era)
                    .await
                    .request(method, params)
                    .await
                    .result();
            }
        }
        client.request("tools/list", json!({})).await.result();
    }
    let client = world.client_at(Era::Legacy, "one").await;
    let level = json!({ "level": "info" });
    client.request("logging/setLevel", level).await.result();
    // The server itself refuses what is passed to it.
    let read = client
        .request("resources/read", json!({ "uri": "x:a" }))
        .await;
    assert!(read.frame.get("error").is_none() || one.heard("resources/read").len() == 1);
}

/// Clients drop a tool with an invalid annotation. To a stdio server it means nothing.
#[tokio::test(start_paused = true)]
async fn an_invalid_header_annotation_is_not_offered() {
    let region = json!({ "type": "string", "x-mcp-header": "Not valid" });
    let schema = json!({ "type": "object", "properties": { "region": region } });
    let (world, one) = World::running(stdio("one"), |script| script.schema = schema.clone()).await;
    for (client, has) in [
        (world.modern().await, false),
        (world.client_at(Era::Modern, "one").await, false),
        // The annotation does not exist in the legacy era.
        (world.client_at(Era::Legacy, "one").await, true),
    ] {
        let tools = client.list("tools").await;
        let region = &tools[0]["inputSchema"]["properties"]["region"];
        assert_eq!(region["type"], "string");
        assert_eq!(region.get("x-mcp-header").is_some(), has);
        let reply = client.tool("echo", json!({ "region": "eu" })).await;
        assert_eq!(reply.json()["region"], "eu");
    }
    // A valid annotation stays.
    let region = json!({ "type": "string", "x-mcp-header": "Region" });
    let schema = json!({ "type": "object", "properties": { "region": region } });
    one.script(|script| script.schema = schema);
    one.changed("tools");
    crate::support::quiet().await;
    let tools = world.modern().await.list("tools").await;
    let region = &tools[0]["inputSchema"]["properties"]["region"];
    assert_eq!(region["x-mcp-header"], "Region");
}

/// Half an emoji in one definition must not make the list of all servers unreadable.
#[tokio::test(start_paused = true)]
async fn half_an_emoji_in_a_definition_stays_with_its_server() {
    let world = writing(Era::Legacy).await;
    let tools =
        r#"{"tools":[{"name":"cut","description":"\ud83d","inputSchema":{"type":"object"}}]}"#;
    world
        .scripted("one")
        .script(|script| script.tools_text = Some(tools.to_owned()));
    world.scripted("one").changed("tools");
    crate::support::quiet().await;
    let single = world.client_at(Era::Legacy, "one").await;
    let raw = single.begin("tools/list", json!({})).reply().await.raw;
    assert!(raw.contains(r#""description":"\ud83d""#), "{raw}");
    let all = world
        .legacy()
        .await
        .begin("tools/list", json!({}))
        .reply()
        .await
        .raw;
    assert!(all.contains(r#""description":"\ufffd""#), "{all}");
}
