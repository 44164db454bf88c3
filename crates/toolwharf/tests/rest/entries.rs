//! Entries of servers as they are shown and changed, wherever they are declared.

use serde_json::{Value, json};
use testkit::Reply;

use crate::{
    api::{Api, problem},
    common::{Setup, scripted},
};

const FILE: &str = "/api/v1/mcp/servers/notes/entry";

async fn put(api: &Api<'_>, path: &str, entry: &Value, tag: &str) -> Reply {
    api.ask("PUT", path, entry.to_string(), &[("if-match", tag)])
        .await
}

#[tokio::test]
async fn an_entry_of_the_file_is_changed_where_it_stands() {
    let mut notes = scripted("notes", &[]);
    notes["env"] = json!({ "TOKEN": "sk-hidden-1", "PLACE": "${HOME}" });
    notes["mine"] = json!("kept");
    let gateway = Setup::new().server("notes", notes).connected().await;
    let file = gateway.servers_file();
    let text = std::fs::read_to_string(&file).expect("the file");
    let text = text.replacen('{', "{ // of mine\n", 1);
    std::fs::write(&file, &text).expect("written");
    let api = Api::admin(&gateway);

    let shown = api.ask("GET", FILE, "", &[]).await;
    let tag = shown.header("etag").expect("a tag").to_owned();
    assert!(!shown.text().contains("sk-hidden"), "{}", shown.text());
    let shown: Value = serde_json::from_slice(&shown.body).expect("JSON");
    assert_eq!(shown["file"], json!(file));
    let env = json!({ "TOKEN": "•••", "PLACE": "${HOME}" });
    assert_eq!(shown["entry"]["env"], env);

    let mut entry = shown["entry"].clone();
    entry["env"]["MORE"] = "sk-hidden-2".into();
    entry["timeout"] = 5000.into();
    let trial = format!("{FILE}?dry_run=true");
    let told = put(&api, &trial, &entry, &tag).await;
    assert_eq!(told.status, 200, "{}", told.text());
    assert!(
        told.text().contains("+  \\\"timeout\\\": 5000"),
        "{}",
        told.text()
    );
    assert!(!told.text().contains("sk-hidden"), "{}", told.text());
    assert_eq!(std::fs::read_to_string(&file).expect("the file"), text);

    let saved = put(&api, FILE, &entry, &tag).await;
    assert_eq!(saved.status, 200, "{}", saved.text());
    let now = std::fs::read_to_string(&file).expect("the file");
    for kept in [
        "// of mine",
        "sk-hidden-1",
        "sk-hidden-2",
        "\"mine\"",
        "5000",
    ] {
        assert!(now.contains(kept), "{kept}: {now}");
    }
    let backup = file.with_extension("json.bak");
    assert_eq!(std::fs::read_to_string(backup).expect("a copy"), text);
    assert_eq!(api.get("/mcp/servers/notes").await["call_timeout_ms"], 5000);

    // Read before it was changed.
    problem(&put(&api, FILE, &entry, &tag).await, 412);
    assert_eq!(std::fs::read_to_string(&file).expect("the file"), now);
}

#[tokio::test]
async fn what_is_wrong_with_an_entry_is_told_with_its_place() {
    let gateway = Setup::new().scripted("notes", &[]).serve().await;
    let text = std::fs::read_to_string(gateway.servers_file()).expect("the file");
    let api = Api::admin(&gateway);
    let refused = async |entry: Value| {
        let problem = problem(&put(&api, FILE, &entry, "*").await, 422);
        let errors = problem["errors"].as_array().expect("errors").clone();
        let pointers = errors.iter().map(|error| error["pointer"].clone());
        pointers.collect::<Vec<_>>()
    };
    // The tag `*` is any.
    let entry = json!({ "command": "c", "args": ["a", 1], "toolwharf": { "sandbox": { "memory": "much" }, "maxConcurrency": 0 } });
    let pointers = refused(entry).await;
    for pointer in ["/args/1", "/toolwharf/maxConcurrency", "/toolwharf/sandbox"] {
        assert!(
            pointers.contains(&json!(pointer)),
            "{pointer}: {pointers:?}"
        );
    }
    let pointers = refused(json!({ "command": "c", "env": { "NEW": "•••" } })).await;
    assert_eq!(pointers, ["/env/NEW"]);
    let now = std::fs::read_to_string(gateway.servers_file()).expect("the file");
    assert_eq!(now, text);
}

#[tokio::test]
async fn entries_of_projects_and_registrations_are_changed_alike() {
    let gateway = Setup::new().serve().await;
    let api = Api::admin(&gateway);
    api.put("/projects/shop", json!({ "name": "Shop" })).await;
    let entry = json!({ "type": "sse", "url": "https://x.example.com/sse", "enabled": false,
        "description": "What it is for", "headers": { "X-Key": "hidden-1", "X-More": "${MORE}" } });
    api.put("/mcp/servers/web?project=shop", entry.clone())
        .await;
    let path = "/api/v1/mcp/servers/web/entry?project=shop";
    let shown = api.ask("GET", path, "", &[]).await;
    let tag = shown.header("etag").expect("a tag").to_owned();
    let mut told: Value = serde_json::from_slice(&shown.body).expect("JSON");
    assert_eq!(told["entry"]["headers"]["X-Key"], "•••");
    told["entry"]["headers"]["X-More"] = "${OTHER}".into();
    let reply = put(&api, path, &told["entry"], &tag).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let now = api.get("/mcp/servers/web?project=shop").await;
    assert_eq!(now["config"]["headers"]["X-Key"], "hidden-1");
    assert_eq!(now["config"]["headers"]["X-More"], "${OTHER}");
    for (key, value) in [
        ("transport", json!("sse")),
        ("enabled", json!(false)),
        ("description", entry["description"].clone()),
    ] {
        assert_eq!(now[key], value, "{key}");
    }
    problem(&put(&api, path, &told["entry"], &tag).await, 412);

    let registered = json!({ "name": "hosted", "command": ["no-such-program"], "env": { "A": "hidden-2" }, "enabled": false });
    let made = api.ok("POST", "/mcp/servers", registered).await;
    let path = format!(
        "/api/v1/mcp/servers/{}/entry",
        made["id"].as_str().expect("an id")
    );
    let shown = api.ask("GET", &path, "", &[]).await;
    let tag = shown.header("etag").expect("a tag").to_owned();
    let mut told: Value = serde_json::from_slice(&shown.body).expect("JSON");
    assert_eq!(told["declared"], "registered");
    assert_eq!(told["entry"]["env"]["A"], "•••");
    told["entry"]["description"] = "later".into();
    let reply = put(&api, &path, &told["entry"], &tag).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    told["entry"]["disk"] = "much".into();
    let trial = format!("{path}?dry_run=true");
    problem(&put(&api, &trial, &told["entry"], "*").await, 422);

    // A project's key reaches its own only, and none of the configuration file.
    let (_, token) = api.key("shop", "manage").await;
    let own = Api::with(&gateway, &token);
    problem(&own.ask("GET", &path, "", &[]).await, 404);
}
