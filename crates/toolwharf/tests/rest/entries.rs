//! Showing and changing server entries, wherever they are declared.

use serde_json::{Value, json};
use testkit::Reply;

use crate::{
    api::{Api, problem},
    common::{Setup, scripted},
};

const ENTRY_PATH: &str = "/api/v1/mcp/servers/notes/entry";

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

    let shown = api.ask("GET", ENTRY_PATH, "", &[]).await;
    let tag = shown.header("etag").expect("a tag").to_owned();
    assert!(!shown.text().contains("sk-hidden"), "{}", shown.text());
    let shown: Value = serde_json::from_slice(&shown.body).expect("JSON");
    assert_eq!(shown["file"], json!(file));
    let env = json!({ "TOKEN": "•••", "PLACE": "${HOME}" });
    assert_eq!(shown["entry"]["env"], env);

    let mut entry = shown["entry"].clone();
    entry["env"]["MORE"] = "sk-hidden-2".into();
    entry["timeout"] = 5000.into();
    let trial = format!("{ENTRY_PATH}?dry_run=true");
    let told = put(&api, &trial, &entry, &tag).await;
    assert_eq!(told.status, 200, "{}", told.text());
    assert!(
        told.text().contains("+  \\\"timeout\\\": 5000"),
        "{}",
        told.text()
    );
    assert!(!told.text().contains("sk-hidden"), "{}", told.text());
    assert_eq!(std::fs::read_to_string(&file).expect("the file"), text);

    let saved = put(&api, ENTRY_PATH, &entry, &tag).await;
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

    // The tag is from before the change.
    problem(&put(&api, ENTRY_PATH, &entry, &tag).await, 412);
    assert_eq!(std::fs::read_to_string(&file).expect("the file"), now);
}

#[tokio::test]
async fn what_is_wrong_with_an_entry_is_told_with_its_place() {
    let gateway = Setup::new().scripted("notes", &[]).serve().await;
    let text = std::fs::read_to_string(gateway.servers_file()).expect("the file");
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
    api.server("shop", "web", entry.clone())
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
    assert_eq!(now["config"]["headers"]["X-Key"], "•••");
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

    // A project key reaches only its own entries, and none in the configuration file.
    let (_, token) = api.key("shop", "manage").await;
    let own = Api::with(&gateway, &token);
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
        let event = stream
            .next_event(testkit::DEADLINE)
            .await
            .expect("an event");
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
    let (_, token) = admin.key("shop", "manage").await;
    let manager = Api::with(&gateway, &token);
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
    // Names are not secret.
    let told = manager.get(&put("web")).await;
    assert_eq!(told["config"]["headers"]["X-More"], "${MORE}");
    let target = told["target"].as_str().expect("a target");
    assert!(target.starts_with("http://127.0.0.1:9/s/"), "{target}");
}

#[tokio::test]
async fn a_masked_value_is_sent_to_no_other_server() {
    let gateway = Setup::new()
        .server(
            "filed",
            json!({ "url": "http://127.0.0.1:9/mcp", "headers": { "X-Key": "hidden-1" }, "enabled": false }),
        )
        .serve()
        .await;
    let api = Api::admin(&gateway);
    api.project("shop").await;
    let web = json!({ "url": "http://127.0.0.1:9/mcp", "headers": { "X-Key": "hidden-2" }, "enabled": false });
    api.server("shop", "web", web).await;
    let (_, token) = api.key("shop", "manage").await;
    let manager = Api::with(&gateway, &token);
    let moved =
        json!({ "url": "http://127.0.0.2:9/mcp", "headers": { "X-Key": "•••" }, "enabled": false });
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
    let (_, token) = api.key("shop", "manage").await;
    let manager = Api::with(&gateway, &token);
    let both = json!({ "type": "http", "url": "http://127.0.0.1:9/mcp", "command": "sh", "args": ["-c", "true"],
        "env": { "A": "1" }, "enabled": false });
    for (who, path) in [
        (&manager, "/api/v1/mcp/servers/both?project=shop"),
        (&api, "/api/v1/mcp/servers/both?project=shop"),
        (&api, "/api/v1/mcp/servers/both"),
    ] {
        let reply = who.ask("PUT", path, both.to_string(), &[]).await;
        let refused = problem(&reply, 422);
        let errors = refused["errors"].as_array().expect("errors");
        let places: Vec<&Value> = errors.iter().map(|error| &error["pointer"]).collect();
        assert_eq!(places, ["/command", "/args", "/env"], "{path}");
    }
    let stdio = json!({ "type": "stdio", "command": "sh", "url": "http://127.0.0.1:9/mcp", "enabled": false });
    let path = "/api/v1/mcp/servers/both?project=shop";
    let reply = api.ask("PUT", path, stdio.to_string(), &[]).await;
    problem(&reply, 422);
    let mut registration = both.clone();
    registration["name"] = "both".into();
    api.refused("POST", "/mcp/servers", &registration.to_string(), 422)
        .await;
    let manifest = json!({ "name": "p", "version": "1", "mcp": { "servers": { "both": both } } });
    api.refused(
        "PUT",
        "/projects/shop/products/p",
        &manifest.to_string(),
        422,
    )
    .await;

    let file = json!({ "url": "http://127.0.0.1:9/mcp", "enabled": false, "login": { "grant": "jwt_bearer",
        "clientId": "c", "assertionFile": "/etc/hostname" } });
    for entry in [
        file.clone(),
        json!({ "url": file["url"], "enabled": false, "toolwharf": { "login": file["login"] } }),
    ] {
        let path = "/api/v1/mcp/servers/file?project=shop";
        let reply = manager.ask("PUT", path, entry.to_string(), &[]).await;
        problem(&reply, 403);
    }
    api.server("shop", "file", file).await;
}
