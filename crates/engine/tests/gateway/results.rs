//! Long results: previews, and reading the rest (X05). Uses a real clock and a working store, except for one test.

use std::time::Duration;

use mcp::Era;
use model::ProjectView;
use serde_json::{Value, json};

use crate::{
    recorded::{eventually, up},
    support::{
        ERAS, World,
        client::{Client, Reply},
        project_id, stdio,
    },
};

const BOUND: usize = 500;
const PREFIX: &str = "toolwharf://results/";

/// A world with a bound on results, and the server `one`.
async fn world(change: impl FnOnce(&mut model::Settings)) -> World {
    let world = World::recorded_with(|settings| {
        settings.max_result_tokens = BOUND;
        change(settings);
    })
    .await;
    let one = world.scripted("one");
    one.tools(&["write", "echo"]).script(|script| {
        let tool = |name: &str, meta: Value| {
            json!({
                "name": name,
                "inputSchema": { "type": "object" },
                "outputSchema": { "type": "object" },
                "_meta": meta,
            })
        };
        let app = json!({ "ui": { "resourceUri": "ui://one/app" } });
        let only = json!({ "ui": { "resourceUri": "ui://one/app", "visibility": ["app"] } });
        let tools = vec![
            tool("plain", json!({})),
            tool("app", app),
            tool("app_only", only),
        ];
        script.definitions.insert("tools", tools);
    });
    world.configure(&[stdio("one")]);
    up(&world, "one").await;
    world
}

/// Calls a tool that has this result.
async fn result(client: &Client, result: &Value) -> Reply {
    let text = format!("{{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{result}}}\n");
    client.tool("write", json!({ "text": text })).await
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn tokens(value: &Value) -> usize {
    discovery::tokens(value.to_string().as_bytes())
}

/// The URI of the result that a preview names.
#[track_caller]
fn uri(reply: &Reply) -> String {
    let blocks = reply.result()["content"].as_array().unwrap();
    let link = blocks.iter().find(|block| block["type"] == "resource_link");
    let uri = link.unwrap_or_else(|| panic!("no link: {}", reply.raw))["uri"]
        .as_str()
        .unwrap();
    assert!(
        uri.starts_with(PREFIX) && reply.text().contains(uri),
        "{uri}"
    );
    uri.to_owned()
}

async fn read(client: &Client, uri: &str, mut more: Value) -> Reply {
    more["uri"] = uri.into();
    client.tool("read_result", more).await
}

/// A part of a result, without its note.
async fn part(client: &Client, uri: &str, more: Value) -> String {
    let reply = read(client, uri, more).await;
    assert_eq!(reply.result()["isError"], false, "{}", reply.raw);
    assert!(tokens(&json!(reply.text())) <= 2 * BOUND, "{}", reply.raw);
    reply.text().rsplit_once("\n\n[").unwrap().0.to_owned()
}

async fn fails(client: &Client, uri: &str, more: Value) -> String {
    let reply = read(client, uri, more).await;
    assert_eq!(reply.result()["isError"], true, "{}", reply.raw);
    reply.text().to_owned()
}

#[tokio::test]
async fn x05_each_kind_of_content() {
    let world = world(|_| {}).await;
    let long = "a long text with words and words ".repeat(200);
    let rows: Vec<Value> = (0..500)
        .map(|n| json!({ "id": n, "name": format!("row {n}") }))
        .collect();
    let table = json!({ "rows": rows });
    let image =
        json!({ "type": "image", "data": "iVBORw0KGgo=".repeat(500), "mimeType": "image/png" });
    let audio = json!({ "type": "audio", "data": "QUJD", "mimeType": "audio/wav" });
    let blob = json!({ "type": "resource", "resource": { "uri": "x:1", "blob": "QUJD" } });
    for era in ERAS {
        let client = world.client(era).await;
        // Within the bound, nothing changes. Pictures are no text.
        let short =
            json!({ "content": [text("short"), image], "structuredContent": { "a": [1] }, "x": 1 });
        let reply = result(&client, &short).await;
        assert_eq!(reply.result()["content"], short["content"]);
        assert_eq!(
            reply.result()["structuredContent"],
            short["structuredContent"]
        );
        // Texts are cut, and everything else stays.
        let mixed = json!({ "content": [text(&long), image, text("the end"), audio, blob], "isError": true, "_meta": { "k": 1 } });
        let reply = result(&client, &mixed).await;
        let uri_of_mixed = uri(&reply);
        let content = reply.result()["content"].as_array().unwrap();
        assert!(tokens(&json!(&content[..2])) <= BOUND + 40, "{content:?}");
        assert_eq!(content[2..4], [image.clone(), audio.clone()]);
        assert_eq!(content[4]["resource"]["blob"], "QUJD");
        assert_eq!(
            (&reply.result()["isError"], &reply.result()["_meta"]["k"]),
            (&json!(true), &json!(1))
        );
        let last = part(&client, &uri_of_mixed, json!({ "offset": long.len() })).await;
        assert_eq!(last, "\nthe end");
        // Structured content above the bound is left out.
        let same = json!({ "content": [text(&table.to_string())], "structuredContent": table });
        let only = json!({ "structuredContent": table });
        let summary = json!({ "content": [text("500 rows")], "structuredContent": table });
        for (long, path) in [
            (same, "rows[499].name"),
            (only, "/rows/499/name"),
            (summary, "rows[499].name"),
        ] {
            let reply = result(&client, &long).await;
            assert_eq!(
                reply.result().get("structuredContent"),
                None,
                "{}",
                reply.raw
            );
            let uri = uri(&reply);
            assert_eq!(
                part(&client, &uri, json!({ "path": path })).await,
                "row 499"
            );
            let rows = json!({ "path": "rows", "row": 7, "rows": 2, "columns": ["name"] });
            assert_eq!(part(&client, &uri, rows).await, "name\nrow 7\nrow 8");
        }
        // Embedded texts and links count, too.
        let resource = json!({ "type": "resource", "resource": { "uri": "x:2", "text": long } });
        let links: Vec<Value> = (0..100)
            .map(|n| json!({ "type": "resource_link", "uri": format!("x:{n}"), "name": format!("link {n}") }))
            .collect();
        let reply = result(&client, &json!({ "content": [resource] })).await;
        let found = part(&client, &uri(&reply), json!({ "search": "[resource" })).await;
        assert!(found.contains("x:2]\na long text"), "{found}");
        let reply = result(&client, &json!({ "content": links })).await;
        assert_eq!(reply.result()["content"].as_array().map(Vec::len), Some(2));
        let found = part(&client, &uri(&reply), json!({ "line": 100 })).await;
        assert_eq!(found, "[resource resource://one/x:99; link 99]");
    }
}

#[tokio::test]
async fn x05_definitions_promise_no_structured_content() {
    let world = world(|settings| {
        settings.projects.insert(
            project_id("off"),
            ProjectView {
                max_result_tokens: Some(0),
                ..ProjectView::default()
            },
        );
    })
    .await;
    for era in ERAS {
        let find = |list: &[Value], name: &str| {
            list.iter()
                .find(|tool| tool["name"] == name)
                .cloned()
                .unwrap_or_default()
        };
        let client = world.client(era).await;
        let list = client.list("tools").await;
        assert_eq!(list[0]["name"], "read_result");
        assert!(find(&list, "plain")["inputSchema"].is_object());
        assert!(find(&list, "plain").get("outputSchema").is_none());
        // The structured content of a tool with an App is for the App, not for the model.
        assert!(find(&list, "app")["outputSchema"].is_object());
        // Without a bound, and in the view of one server, nothing changes.
        for client in [
            world.client_in(era, "off").await,
            world.client_at(era, "one").await,
        ] {
            let list = client.list("tools").await;
            assert_eq!(find(&list, "read_result"), Value::Null);
            assert!(find(&list, "plain")["outputSchema"].is_object());
            let big = json!({ "content": [text(&"word ".repeat(9_000))], "structuredContent": { "a": "x ".repeat(9_000) } });
            let reply = result(&client, &big).await;
            assert_eq!(reply.result()["content"], big["content"]);
            assert_eq!(
                reply.result()["structuredContent"],
                big["structuredContent"]
            );
        }
        let off = world.client_in(era, "off").await;
        let unknown = off.tool("read_result", json!({ "uri": "x" })).await;
        unknown.says("Unknown tool: read_result");
    }
}

/// Everybody else gets the same error as for an id that does not exist.
#[tokio::test]
async fn x05_a_result_belongs_to_its_caller_and_expires() {
    let world = world(|settings| {
        let other = project_id("other");
        settings.projects.insert(other, ProjectView::default());
    })
    .await;
    let short = self::world(|settings| settings.results.keep = Duration::ZERO).await;
    let none = format!("{PREFIX}AAAAAAAAAAAAAAAAAAAA");
    for era in ERAS {
        let client = world.client(era).await;
        let reply = result(
            &client,
            &json!({ "content": [text(&"word ".repeat(9_000))] }),
        )
        .await;
        let uri = uri(&reply);
        let read = client
            .request("resources/read", json!({ "uri": uri }))
            .await;
        let contents = &read.result()["contents"][0];
        assert_eq!(contents["text"], "word ".repeat(9_000));
        assert_eq!(
            (&contents["uri"], &contents["mimeType"]),
            (&json!(uri), &json!("text/plain"))
        );
        if era == Era::Modern {
            assert_eq!(read.result()["cacheScope"], "private");
        }
        let elsewhere = world.client_in(era, "other").await;
        let passed = short.client(era).await;
        let reply = result(
            &passed,
            &json!({ "content": [text(&"word ".repeat(9_000))] }),
        )
        .await;
        let expired = self::uri(&reply);
        for (client, uri) in [(&elsewhere, &uri), (&passed, &expired)] {
            let unknown = fails(client, &none, json!({})).await;
            assert_eq!(
                fails(client, uri, json!({})).await,
                unknown.replace(&none, uri)
            );
            let missing = client
                .request("resources/read", json!({ "uri": none }))
                .await;
            let theirs = client
                .request("resources/read", json!({ "uri": uri }))
                .await;
            let (missing, theirs) = (missing.error(), theirs.error());
            assert_eq!(
                (&theirs["code"], &theirs["message"]),
                (&missing["code"], &missing["message"])
            );
        }
    }
}

#[tokio::test]
async fn x05_wrong_arguments_are_explained_to_the_model() {
    let world = world(|_| {}).await;
    let client = world.modern().await;
    let table = json!({ "rows": [[1], "é".repeat(2_000)] });
    let reply = result(&client, &json!({ "content": [text(&table.to_string())] })).await;
    let uri = uri(&reply);
    for (more, part) in [
        (json!({ "offset": -1 }), "`offset` must be a whole number"),
        (json!({ "offset": 1_000_000 }), "nothing at the offset"),
        (json!({ "line": 2 }), "there is no line 2"),
        (json!({ "path": "/".repeat(1 << 20) }), "at most 64 steps"),
        (
            json!({ "path": format!("/{}", "x".repeat(1 << 20)) }),
            "there is no `xxx",
        ),
        (json!({ "row": 0 }), "this is no table"),
        (json!({ "path": "rows", "row": 9 }), "there is no row 9"),
        (
            json!({ "search": "x".repeat(1 << 20) }),
            "`search` must have",
        ),
        (json!({ "offset": 0, "row": 1 }), "different ways to read"),
    ] {
        let why = fails(&client, &uri, more).await;
        assert!(why.contains(part) && why.len() < 1_000, "{why}");
    }
    for odd in [
        "",
        "x",
        PREFIX,
        &format!("{PREFIX}../x"),
        &format!("{PREFIX}{}", "a".repeat(1 << 20)),
    ] {
        let why = fails(&client, odd, json!({})).await;
        assert!(
            why.contains("There is no result") && why.len() < 300,
            "{why}"
        );
    }
    let bare = client.tool("read_result", json!({})).await;
    assert!(bare.text().contains("needs `uri`"), "{}", bare.raw);
    // An offset within a character reads the whole character.
    let inside = part(&client, &uri, json!({ "offset": 16, "length": 1 })).await;
    assert_eq!(inside, "é");
}

/// The preview of a result that cannot be kept says so.
#[tokio::test]
async fn x05_a_store_that_is_full() {
    let world = world(|settings| settings.results.max_bytes = 20_000).await;
    let client = world.legacy().await;
    let long = |bytes: usize| json!({ "content": [text(&"word ".repeat(bytes / 5))] });
    let first = uri(&result(&client, &long(12_000)).await);
    let second = uri(&result(&client, &long(12_000)).await);
    // The oldest one made room.
    fails(&client, &first, json!({})).await;
    part(&client, &second, json!({})).await;
    let lost = result(&client, &long(30_000)).await;
    assert!(
        lost.text()
            .contains("The rest was not kept: the store for results is full."),
        "{}",
        lost.raw
    );
    assert_eq!(lost.result()["content"].as_array().map(Vec::len), Some(1));
    part(&client, &second, json!({})).await;
}

/// A server may be a gateway that has such a tool, too.
#[tokio::test]
async fn x05_a_servers_own_read_result_is_not_lost() {
    let world = world(|_| {}).await;
    let one = world.scripted("one");
    one.tools(&["write", "read_result"]);
    one.changed("tools");
    let client = world.modern().await;
    eventually("the list changes", async || {
        client
            .tools()
            .await
            .contains(&"one__read_result".to_owned())
    })
    .await;
    let names = client.tools().await;
    assert_eq!(
        names.iter().filter(|name| *name == "read_result").count(),
        1,
        "{names:?}"
    );
    let before = one.heard("tools/call").len();
    fails(&client, "x", json!({})).await;
    assert_eq!(one.heard("tools/call").len(), before);
    client.tool("one__read_result", json!({})).await.result();
    assert_eq!(one.heard("tools/call").len(), before + 1);
}

/// With `compact_results`, the texts have fewer tokens, and nothing else changes.
#[tokio::test]
async fn x05_compact_texts() {
    let rows = |count: usize| {
        let row =
            |n: usize| json!({ "identifier": n, "description": null, "repository": "toolwharf" });
        (0..count).map(row).collect::<Vec<_>>()
    };
    let world = world(|settings| settings.compact_results = true).await;
    for era in ERAS {
        let client = world.client(era).await;
        let table = json!({ "items": rows(2), "next": null });
        let both = json!({ "content": [text(&format!("{table:#}")), text("as it is")], "structuredContent": table });
        let reply = result(&client, &both).await;
        let expect = "{\"items\":\"(below)\"}\n\nitems:\nidentifier,description,repository\n0,,toolwharf\n1,,toolwharf";
        assert_eq!(
            reply.result()["content"],
            json!([text(expect), text("as it is")])
        );
        assert_eq!(reply.result()["structuredContent"], table);
        // A result that is within the bound because of this is not cut. Otherwise, the text is that of the server.
        let medium = json!(rows(60)).to_string();
        let reply = result(&client, &json!({ "content": [text(&medium)] })).await;
        assert_eq!(reply.text().lines().count(), 61, "{}", reply.raw);
        let long = json!(rows(600)).to_string();
        let reply = result(&client, &json!({ "content": [text(&long)] })).await;
        let uri = uri(&reply);
        assert!(reply.text().starts_with(&long[..500]), "{}", reply.raw);
        assert_eq!(
            part(&client, &uri, json!({ "length": 500 })).await,
            long[..500]
        );
        let failed = json!({ "content": [text(&format!("{table:#}"))], "isError": true });
        let reply = result(&client, &failed).await;
        assert_eq!(reply.result()["content"], failed["content"]);
        let single = world.client_at(era, "one").await;
        let reply = result(&single, &both).await;
        assert_eq!(reply.result()["content"], both["content"]);
    }
}

#[tokio::test(start_paused = true)]
async fn x05_a_database_that_is_away() {
    let world = World::with(|settings| settings.max_result_tokens = BOUND);
    world.scripted("one").tools(&["write"]);
    world.configure(&[stdio("one")]);
    world.up(&["one"]).await;
    let client = world.modern().await;
    let lost = result(
        &client,
        &json!({ "content": [text(&"word ".repeat(2_000))] }),
    )
    .await;
    let why = "The rest was not kept: the database is not available.";
    assert!(lost.text().contains(why), "{}", lost.raw);
    let unread = fails(&client, &format!("{PREFIX}x"), json!({})).await;
    assert!(unread.contains("the database is not available"), "{unread}");
    let read = client
        .request("resources/read", json!({ "uri": format!("{PREFIX}x") }))
        .await;
    read.says("the database is not available");
}
