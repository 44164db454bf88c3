//! Showing and changing server entries, wherever they are declared.

use std::path::Path;

use serde_json::{Value, json};
use testkit::{DEADLINE, Reply};

use crate::{
    api::{Api, problem},
    common::{Setup, body, holds, scripted},
};

const ENTRY_PATH: &str = "/api/v1/mcp/servers/notes/entry";

async fn put(api: &Api<'_>, path: &str, entry: &Value, tag: &str) -> Reply {
    api.ask("PUT", path, entry.to_string(), &[("if-match", tag)])
        .await
}

/// Sends an entry with PUT, which must succeed. Returns the response as text.
async fn saved(api: &Api<'_>, path: &str, entry: &Value, tag: &str) -> String {
    let reply = put(api, path, entry, tag).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.text()
}

/// Returns an entry as the API shows it, which must be without secrets, and its tag.
async fn shown(api: &Api<'_>, path: &str) -> (Value, String) {
    let reply = api.ask("GET", path, "", &[]).await;
    assert!(!reply.text().contains("hidden"), "{}", reply.text());
    let tag = reply.header("etag").expect("a tag").to_owned();
    (body(&reply), tag)
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).expect("the file")
}

#[tokio::test]
async fn an_entry_of_the_file_is_changed_where_it_stands() {
    let mut notes = scripted("notes", &[]);
    notes["env"] = json!({ "TOKEN": "sk-hidden-1", "PLACE": "${HOME}" });
    notes["mine"] = json!("kept");
    let gateway = Setup::new().server("notes", notes).connected().await;
    let file = gateway.servers_file();
    let text = read(&file);
    let text = text.replacen('{', "{ // of mine\n", 1);
    std::fs::write(&file, &text).expect("written");
    let api = Api::admin(&gateway);

    let (shown, tag) = shown(&api, ENTRY_PATH).await;
    assert_eq!(shown["file"], json!(file));
    let env = json!({ "TOKEN": "•••", "PLACE": "${HOME}" });
    assert_eq!(shown["entry"]["env"], env);

    let mut entry = shown["entry"].clone();
    entry["env"]["MORE"] = "sk-hidden-2".into();
    entry["timeout"] = 5000.into();
    let trial = format!("{ENTRY_PATH}?dry_run=true");
    let told = saved(&api, &trial, &entry, &tag).await;
    holds(&told, &["+  \\\"timeout\\\": 5000"]);
    assert!(!told.contains("sk-hidden"), "{told}");
    assert_eq!(read(&file), text);

    saved(&api, ENTRY_PATH, &entry, &tag).await;
    let now = read(&file);
    holds(&now, &["// of mine", "\"mine\"", "5000"]);
    holds(&now, &["sk-hidden-1", "sk-hidden-2"]);
    assert_eq!(read(&file.with_extension("json.bak")), text);
    assert_eq!(api.get("/mcp/servers/notes").await["call_timeout_ms"], 5000);

    // The tag is from before the change.
    problem(&put(&api, ENTRY_PATH, &entry, &tag).await, 412);
    assert_eq!(read(&file), now);
}

#[tokio::test]
async fn what_is_wrong_with_an_entry_is_told_with_its_place() {
    let gateway = Setup::new().scripted("notes", &[]).serve().await;
    let text = read(&gateway.servers_file());
    let api = Api::admin(&gateway);
    let refused = async |entry: Value| {
        let problem = problem(&put(&api, ENTRY_PATH, &entry, "*").await, 422);
        let errors = problem["errors"].as_array().expect("errors").clone();
        let pointers = errors.iter().map(|error| error["pointer"].clone());
        pointers.collect::<Vec<_>>()
    };
    // The tag `*` matches any version.
    let entry = json!({ "command": "c", "args": ["a", 1], "toolwharf": { "sandbox": { "memory": "much" }, "maxConcurrency": 0 } });
    let pointers = refused(entry).await;
    for pointer in ["/args/1", "/toolwharf/maxConcurrency", "/toolwharf/sandbox"] {
        let found = pointers.contains(&json!(pointer));
        assert!(found, "{pointer}: {pointers:?}");
    }
    let pointers = refused(json!({ "command": "c", "env": { "NEW": "•••" } })).await;
    assert_eq!(pointers, ["/env/NEW"]);
    assert_eq!(read(&gateway.servers_file()), text);
}

#[tokio::test]
async fn entries_of_projects_and_registrations_are_changed_alike() {
    let gateway = Setup::new().serve().await;
    let api = Api::admin(&gateway);
    api.put("/projects/shop", json!({ "name": "Shop" })).await;
    let entry = json!({ "type": "sse", "url": "https://x.example.com/sse", "enabled": false,
        "description": "What it is for", "headers": { "X-Key": "hidden-1", "X-More": "${MORE}" } });
    api.server("shop", "web", entry.clone()).await;
    let path = "/api/v1/mcp/servers/web/entry?project=shop";
    let (mut told, tag) = shown(&api, path).await;
    assert_eq!(told["entry"]["headers"]["X-Key"], "•••");
    told["entry"]["headers"]["X-More"] = "${OTHER}".into();
    saved(&api, path, &told["entry"], &tag).await;
    let now = api.get("/mcp/servers/web?project=shop").await;
    assert_eq!(now["config"]["headers"]["X-Key"], "•••");
    assert_eq!(now["config"]["headers"]["X-More"], "${OTHER}");
    assert_eq!(now["transport"], "sse");
    assert_eq!(now["enabled"], false);
    assert_eq!(now["description"], entry["description"]);
    problem(&put(&api, path, &told["entry"], &tag).await, 412);

    let registered = json!({ "name": "hosted", "command": ["no-such-program"], "env": { "A": "hidden-2" }, "enabled": false });
    let made = api.ok("POST", "/mcp/servers", registered).await;
    let id = made["id"].as_str().expect("an id");
    let path = format!("/api/v1/mcp/servers/{id}/entry");
    let (mut told, tag) = shown(&api, &path).await;
    assert_eq!(told["declared"], "registered");
    assert_eq!(told["entry"]["env"]["A"], "•••");
    told["entry"]["description"] = "later".into();
    saved(&api, &path, &told["entry"], &tag).await;
    told["entry"]["disk"] = "much".into();
    let trial = format!("{path}?dry_run=true");
    problem(&put(&api, &trial, &told["entry"], "*").await, 422);

    // A project key reaches only its project's entries, and none in the configuration file.
    let own = api.keyed("shop", "manage").await;
    problem(&own.ask("GET", &path, "", &[]).await, 404);
}

/// An entry with every kind of secret that a remote server can have.
fn secretive() -> Value {
    json!({ "url": "http://me:hidden-1@127.0.0.1:9/s/hidden1234567890abcd/mcp?token=hidden-2&n=1",
        "headers": { "X-Key": "hidden-3", "X-More": "${MORE}" }, "enabled": false,
        "login": { "mode": "none", "clientId": "me", "clientSecret": "hidden-4", "privateKey": "hidden-5" } })
}

/// Returns the first event about this server.
async fn told_in_events(api: &Api<'_>, server: &str) -> String {
    let mut stream = api.open("GET", "/api/v1/events", "", &[]).await;
    loop {
        let event = stream.next_event(DEADLINE).await.expect("an event");
        if event.data.contains(server) {
            return event.data;
        }
    }
}

#[tokio::test]
async fn no_answer_tells_a_secret_of_an_entry() {
    let gateway = Setup::new().serve().await;
    let admin = Api::admin(&gateway);
    admin.project("shop").await;
    let put = |name: &str| format!("/mcp/servers/{name}?project=shop");
    let answered = admin.put(&put("web"), secretive()).await;
    assert!(!answered.to_string().contains("hidden"), "{answered}");
    let local = json!({ "command": "no-such-program", "enabled": false,
        "args": ["--api-key=hidden-6", "--token", "hidden-7", "-H", "X-Mine: hidden-8", "-e", "PLACE=hidden-9",
            "--header=Authorization: Bearer hidden-10", "postgres://me:hidden-11@h/db", "run --password hidden-12"],
        "env": { "A": "hidden-13" } });
    admin.put(&put("local"), local.clone()).await;
    let mut registered = local;
    registered["name"] = "hosted".into();
    registered["project"] = "shop".into();
    let hosted = admin.ok("POST", "/mcp/servers", registered).await;
    assert!(!hosted.to_string().contains("hidden"), "{hosted}");
    let manifest = json!({ "name": "product", "version": "1", "mcp": { "servers": { "brought": secretive() } } });
    admin.put("/projects/shop/products/product", manifest).await;
    let manager = admin.keyed("shop", "manage").await;
    let id = hosted["id"].as_str().expect("an id");
    for api in [&admin, &manager] {
        for path in [
            "/mcp/servers".to_owned(),
            put("web"),
            put("local"),
            put("brought"),
            "/mcp/servers/web/entry?project=shop".to_owned(),
            "/mcp/servers/local/entry?project=shop".to_owned(),
            "/mcp/servers/web/events?project=shop".to_owned(),
            format!("/mcp/servers/{id}"),
            format!("/mcp/servers/{id}/events"),
            "/projects/shop".to_owned(),
            "/projects/shop/products".to_owned(),
            "/projects/shop/products/product".to_owned(),
        ] {
            let told = api.get(&path).await.to_string();
            assert!(!told.contains("hidden"), "{path}: {told}");
        }
        let told = told_in_events(api, "brought").await;
        assert!(!told.contains("hidden"), "{told}");
    }
    let told = admin.get(&format!("/mcp/servers/{id}/entry")).await;
    assert!(!told.to_string().contains("hidden"), "{told}");
    // The names of headers and secrets may be shown.
    let told = manager.get(&put("web")).await;
    assert_eq!(told["config"]["headers"]["X-More"], "${MORE}");
    let target = told["target"].as_str().expect("a target");
    assert!(target.starts_with("http://127.0.0.1:9/s/"), "{target}");
}

#[tokio::test]
async fn a_masked_value_is_sent_to_no_other_server() {
    let entry = |key: &str| json!({ "url": "http://127.0.0.1:9/mcp", "headers": { "X-Key": key }, "enabled": false });
    let setup = Setup::new().server("filed", entry("hidden-1"));
    let gateway = setup.serve().await;
    let api = Api::admin(&gateway);
    api.project("shop").await;
    api.server("shop", "web", entry("hidden-2")).await;
    let manager = api.keyed("shop", "manage").await;
    let mut moved = entry("•••");
    moved["url"] = "http://127.0.0.2:9/mcp".into();
    for (who, path) in [
        (&manager, "/mcp/servers/web?project=shop"),
        (&manager, "/mcp/servers/web/entry?project=shop"),
        (&api, "/mcp/servers/filed/entry"),
        (&api, "/mcp/servers/filed"),
        (&manager, "/mcp/servers/new?project=shop"),
        (&api, "/mcp/servers/new"),
    ] {
        let path = format!("/api/v1{path}");
        let any = [("if-match", "*")];
        let headers = if path.contains("new") { &[][..] } else { &any };
        let reply = who.ask("PUT", &path, moved.to_string(), headers).await;
        let refused = problem(&reply, 422);
        let error = &refused["errors"][0];
        assert_eq!(error["pointer"], "/headers/X-Key", "{path}: {refused}");
        let why = error["detail"].as_str().expect("a reason");
        assert!(why.contains("write the value again"), "{path}: {why}");
    }
    // Another path on the same host counts as the same server.
    let mut near = moved.clone();
    near["url"] = "http://127.0.0.1:9/other".into();
    manager.server("shop", "web", near).await;
    let shown = manager.get("/mcp/servers/web?project=shop").await;
    assert_eq!(shown["config"]["url"], "http://127.0.0.1:9/other");
    assert_eq!(shown["config"]["headers"]["X-Key"], "•••");
    let import = json!({ "from": "x.json", "text": json!({ "mcpServers": { "import": moved } }).to_string() });
    let imported = api.ok("POST", "/import", import).await;
    assert_eq!(imported["refused"][0]["name"], "import", "{imported}");
}

#[tokio::test]
async fn fields_of_the_other_kind_and_files_of_the_host_are_refused() {
    let gateway = Setup::new().serve().await;
    let api = Api::admin(&gateway);
    api.project("shop").await;
    let manager = api.keyed("shop", "manage").await;
    let both = json!({ "type": "http", "url": "http://127.0.0.1:9/mcp", "command": "sh", "args": ["-c", "true"],
        "env": { "A": "1" }, "enabled": false });
    for (who, path) in [
        (&manager, "/mcp/servers/both?project=shop"),
        (&api, "/mcp/servers/both?project=shop"),
        (&api, "/mcp/servers/both"),
    ] {
        let refused = who.refused("PUT", path, &both.to_string(), 422).await;
        let errors = refused["errors"].as_array().expect("errors");
        let places: Vec<&Value> = errors.iter().map(|error| &error["pointer"]).collect();
        assert_eq!(places, ["/command", "/args", "/env"], "{path}");
    }
    let stdio = json!({ "type": "stdio", "command": "sh", "url": "http://127.0.0.1:9/mcp", "enabled": false });
    let mut registration = both.clone();
    registration["name"] = "both".into();
    let manifest = json!({ "name": "p", "version": "1", "mcp": { "servers": { "both": both } } });
    for (method, path, body) in [
        ("PUT", "/mcp/servers/both?project=shop", stdio),
        ("POST", "/mcp/servers", registration),
        ("PUT", "/projects/shop/products/p", manifest),
    ] {
        api.refused(method, path, &body.to_string(), 422).await;
    }

    let file = json!({ "url": "http://127.0.0.1:9/mcp", "enabled": false, "login": { "grant": "jwt_bearer",
        "clientId": "c", "assertionFile": "/etc/hostname" } });
    for entry in [
        file.clone(),
        json!({ "url": file["url"], "enabled": false, "toolwharf": { "login": file["login"] } }),
    ] {
        let path = "/mcp/servers/file?project=shop";
        manager.refused("PUT", path, &entry.to_string(), 403).await;
    }
    api.server("shop", "file", file).await;
}
