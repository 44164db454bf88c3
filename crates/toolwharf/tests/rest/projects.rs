//! Projects over the REST API: their configuration, permissions and preconditions.

use crate::api::{Api, problem};
use crate::common::{Gateway, LEGACY, Setup, item, scripted};
use serde_json::{Value, json};
use testkit::{Peer, peer};

async fn legacy(gateway: &Gateway, project: &str) -> Peer {
    let client = gateway.at(&format!("/mcp/{project}"));
    Peer::http(client, LEGACY, peer::all_capabilities()).await
}

#[tokio::test]
async fn a_project_is_made_changed_listed_and_removed() {
    let gateway = Setup::new().serve().await;
    let api = Api::admin(&gateway);
    let made = api.ask("PUT", "/api/v1/projects/a", "{}", &[]).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let tag = made.header("etag").expect("a tag").to_owned();
    let body = json!({"name": "The A", "description": "d", "naming": "always-prefix"});
    let changed = api.put("/projects/a", body.clone()).await;
    assert_eq!(changed["name"], "The A");
    assert_eq!(changed["naming"], "always-prefix");
    assert_eq!(changed["enabled"], true);

    // A second PUT of the same body changes nothing and keeps the tag; the earlier tag is out of date.
    let path = "/api/v1/projects/a";
    let again = api.ask("PUT", path, body.to_string(), &[]).await;
    let new_tag = again.header("etag").expect("a tag").to_owned();
    assert_eq!(again.status, 200);
    assert_ne!(tag, new_tag);
    for (headers, status) in [
        (vec![("if-match", tag.as_str())], 412),
        (vec![("if-none-match", "*")], 412),
        (vec![("if-match", new_tag.as_str())], 200),
    ] {
        let reply = api.ask("PUT", path, body.to_string(), &headers).await;
        assert_eq!(reply.status, status, "{headers:?}: {}", reply.text());
    }
    let any = [("if-match", "*")];
    let none = api.ask("PUT", "/api/v1/projects/none", "{}", &any).await;
    problem(&none, 412);
    let known = [("if-none-match", &*new_tag)];
    let unchanged = api.ask("GET", path, "", &known).await;
    assert_eq!(unchanged.status, 304);
    assert!(unchanged.body.is_empty());

    for id in ["b", "c", "d"] {
        api.project(id).await;
    }
    let mut seen = Vec::new();
    let mut after = String::new();
    loop {
        let page = api.get(&format!("/projects?limit=3&after={after}")).await;
        let rows = page["projects"].as_array().expect("projects");
        assert!(rows.len() <= 3);
        let ids = rows.iter().map(|row| row["id"].as_str().expect("an id"));
        seen.extend(ids.map(str::to_owned));
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut after),
            None => break,
        }
    }
    assert_eq!(seen, ["a", "b", "c", "d"]);

    let kept = api.ask("DELETE", path, "", &[("if-match", &tag)]).await;
    problem(&kept, 412);
    api.delete("/projects/a").await;
    let gone = api.refused("GET", "/projects/a", "", 404).await;
    assert_eq!(gone["detail"], "there is no project `a`");
}

#[tokio::test]
async fn a_projects_server_works_at_once_and_keeps_its_entry_as_given() {
    let gateway = Setup::new().serve().await;
    let api = Api::admin(&gateway);
    api.project("a").await;
    let mut entry = scripted("one", &[]);
    entry["description"] = "the one".into();
    entry["env"] = json!({"KEY": "${KEY}"});
    let made = api.server("a", "one", entry.clone()).await;
    assert_eq!(made["description"], "the one");
    assert_eq!(made["enabled"], true);
    let reason = made["reason"].as_str().expect("a reason");
    assert!(reason.contains("secret set KEY"), "{made}");
    let secret = json!({"value": "sesame"});
    api.put("/projects/a/secrets/KEY", secret).await;

    let tools = api.get("/tools?project=a").await;
    let tool = item(&tools["tools"], "native", "echo");
    assert_eq!(tool["project"], "a", "{tools}");
    let shown = api.get("/mcp/servers/one?project=a").await;
    assert_eq!(shown["status"], "running", "{shown}");
    assert_eq!(shown["config"]["env"], json!({"KEY": "${KEY}"}));
    assert_eq!(shown["environment"], json!(["KEY"]));
    assert!(!shown.to_string().contains("sesame"));

    // A key with the role `read` does not see the entry.
    let reader = api.keyed("a", "read").await;
    let seen = reader.get("/mcp/servers/one?project=a").await;
    assert_eq!(seen["config"], Value::Null);
    assert_eq!(seen["status"], "running");

    let post = async |verb: &str| {
        let path = format!("/mcp/servers/one/{verb}?project=a");
        api.ok("POST", &path, json!({})).await
    };
    let off = post("disable").await;
    assert_eq!(off["enabled"], false);
    assert_eq!(off["status"], "disabled");
    let table = "POST /mcp/servers/one/restart?project=a 409 not enabled |";
    api.refuses(table).await;
    post("enable").await;
    // The server is started at its first use, because its tools are known already.
    let mut peer = legacy(&gateway, "a").await;
    let mut pid = async || {
        let call = json!({"name": "echo", "arguments": {"text": "x"}});
        peer.request("tools/call", call).await.result();
        api.get("/mcp/servers/one?project=a").await["pid"].as_u64()
    };
    let before = pid().await;
    assert!(before.is_some());
    post("restart").await;
    let after = pid().await;
    assert!(after.is_some() && after != before, "{before:?} {after:?}");
    api.delete("/mcp/servers/one?project=a").await;
    api.refused("GET", "/mcp/servers/one?project=a", "", 404)
        .await;
    let listed = api.get("/mcp/servers?project=a").await;
    assert_eq!(listed["servers"], json!([]));
}

/// Wherever an entry is accepted, it may have the form of a row in the database. The name may be omitted.
#[tokio::test]
async fn an_entry_may_have_the_shape_of_a_row() {
    let gateway = Setup::new().serve().await;
    let api = Api::admin(&gateway);
    api.project("a").await;
    let row = json!({
        "name": "web", "transport": "http", "description": "the web", "enabled": false,
        "config": {"url": "https://tools.example.com/mcp"},
    });
    let made = api.server("a", "web", row.clone()).await;
    let entry = json!({"type": "http", "url": "https://tools.example.com/mcp"});
    assert_eq!((&made["config"], &made["enabled"]), (&entry, &json!(false)));
    assert_eq!(made["description"], "the web");
    let made = api.put("/mcp/servers/web", row.clone()).await;
    assert_eq!(made["status"], "disabled", "{made}");
    let products = json!({"name": "p", "version": "1", "mcp": {"servers": {"shop": {
        "transport": "http", "config": {"url": "https://shop.example.com/mcp"},
    }}}});
    api.put("/projects/a/products/p", products).await;
    let made = api.get("/mcp/servers/shop?project=a").await;
    assert_eq!(made["config"]["url"], "https://shop.example.com/mcp");

    let five = json!({"config": 5});
    for (path, entry, pointer) in [
        ("/mcp/servers/other?project=a", &row, "/name"),
        ("/mcp/servers/x?project=a", &five, "/config"),
        ("/mcp/servers/x", &five, "/config"),
    ] {
        api.mistaken("PUT", path, entry, pointer).await;
    }
    // A registration is replaced under the name in the path.
    let registered = json!({"name": "kept", "command": "true", "enabled": false});
    let made = api.ok("POST", "/mcp/servers?wait=false", registered).await;
    let path = format!("/mcp/servers/{}", made["id"].as_str().expect("an id"));
    let changed = json!({"command": "true", "args": ["x"], "enabled": false});
    assert_eq!(api.put(&path, changed).await["name"], "kept");
}

#[tokio::test]
async fn a_projects_key_registers_urls_only() {
    let gateway = Setup::new().serve().await;
    let admin = Api::admin(&gateway);
    admin.project("a").await;
    let api = admin.keyed("a", "manage").await;
    let table = r#"PUT /mcp/servers/x?project=a 403 administrator | {"command":"true"}"#;
    api.refuses(table).await;
    let entry = json!({"url": "https://tools.example.com/mcp"});
    let made = api.server("a", "x", entry.clone()).await;
    assert_eq!(made["registered_by"], "project");
    assert_eq!(made["config"], entry);
    // When an administrator puts the same entry, it counts as registered by the administrator.
    let made = admin.server("a", "x", entry).await;
    assert_eq!(made["registered_by"], Value::Null);
    let table = r#"
        PUT /mcp/servers/x?project=a 422 @/registeredBy | {"url":"https://x.example.com","registeredBy":"admin"}
        PUT /projects/a/products/p 403 - | {"name":"p","version":"1","mcp":{"servers":{}}}
    "#;
    api.refuses(table).await;
}

#[tokio::test]
async fn what_is_wrong_says_where_and_changes_nothing() {
    let gateway = Setup::new().serve().await;
    let api = Api::admin(&gateway);
    api.project("a").await;
    let injected = "a'; DROP TABLE kb.projects; --";
    let long = "x".repeat(1 << 20);
    let long = format!("PUT /projects/b 400 @/name | {{\"name\":\"{long}\"}}");
    let table = r#"
        PUT /projects/a%20b 400 - | {}
        PUT /projects/..%2F 400 - | {}
        PUT /projects/%2E%2E 400 - | {}
        PUT /projects/a%00 400 - | {}
        PUT /projects/%FF 400 - | {}
        PUT /projects/b 400 @/name | {"name":"\u0000"}
        PUT /projects/b 400 @/name | {"name":1}
        PUT /projects/b 400 @/naming | {"naming":"x"}
        PUT /projects/b 400 @/nmae | {"nmae":"x"}
        PUT /projects/b 400 - | ["name"]
        PUT /projects/b 400 - | [
        GET /projects?limit=0 400 - |
        GET /projects?limit=1001 400 - |
        GET /projects?limit=many 400 - |
        PUT /mcp/servers/..?project=a 422 - | {}
        PUT /mcp/servers/%2E%2E?project=a 422 - | {}
        PUT /mcp/servers/a%00b?project=a 422 - | {}
        PUT /mcp/servers/x?project=a 422 @ | []
        PUT /mcp/servers/x?project=a 422 @ | {}
        PUT /mcp/servers/x?project=a 422 @/description | {"command":"x","description":7}
        PUT /projects/a/secrets/a-b 400 - | {"value":"v"}
        PUT /projects/a/secrets/a%00b 400 - | {"value":"v"}
        PUT /projects/a/secrets/A 400 @/value | {"value":"\u0000"}
        DELETE /projects/a/secrets/NONE 404 - |
        GET /calls/none 404 - |
        GET /calls/a%00 400 - |
        GET /calls?status=odd 400 - |
        GET /calls?since=yesterday 400 - |
        POST /keys?project=a 400 @/role | {"name":"k","role":"admin"}
        POST /keys?project=a 400 @/expires_at | {"name":"k","role":"read","expires_at":"2001-01-01T00:00:00Z"}
        DELETE /keys/none?project=a 404 - |
    "#;
    for table in [table, &long] {
        api.refuses(table).await;
    }
    // A name that contains SQL is stored as a name.
    let made = api.put("/projects/b", json!({"name": injected})).await;
    assert_eq!(made["name"], injected);
    let listed = api.get("/projects").await;
    assert_eq!(listed["projects"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn secrets_go_in_and_never_come_out() {
    let gateway = Setup::new().serve().await;
    let api = Api::admin(&gateway);
    api.project("a").await;
    let path = "/projects/a/secrets/KEY";
    let put = async |value: &str| api.put(path, json!({ "value": value })).await;
    let whole = format!("/api/v1{path}");
    let first = json!({"value": "canary-1"}).to_string();
    let made = api.ask("PUT", &whole, first, &[]).await;
    assert_eq!(made.status, 201);
    let set = put("canary-2").await;
    assert_eq!(set["version"], 2);
    let object = r#"{"value":{"canary-3":1}}"#;
    let broken = api.refused("PUT", path, object, 400).await;
    let listed = api.get("/projects/a/secrets").await;
    let answers = format!("{}{set}{broken}{listed}", made.text());
    assert!(!answers.contains("canary"), "{answers}");
    let before = api.ok("POST", "/master-key/rotate", json!({})).await;
    let after = api.ok("POST", "/master-key/rotate", json!({})).await;
    assert_ne!(before["key_id"], after["key_id"]);
    assert_eq!(put("canary-4").await["version"], 3);
    api.delete(path).await;
    assert_eq!(api.get("/projects/a/secrets").await["secrets"], json!([]));
}

#[tokio::test]
async fn products_are_installed_updated_and_removed_as_a_whole() {
    let gateway = Setup::new().serve().await;
    let api = Api::admin(&gateway);
    api.project("a").await;
    let yaml = "name: search\nversion: '1'\nmcp:\n  servers:\n    web: {url: 'https://x.example.com'}\n    old: {url: 'https://y.example.com'}\n";
    let path = "/api/v1/projects/a/products/search";
    let kind = [("content-type", "application/yaml")];
    let made = api.ask("PUT", path, yaml, &kind).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let row = api.get("/mcp/servers/web?project=a").await;
    assert_eq!(row["product"], "search");
    // An invalid product changes nothing.
    let table = r#"
        DELETE /mcp/servers/web?project=a 409 product |
        PUT /projects/a/products/search 422 @/mcp/servers/web | {"name":"search","version":"2","mcp":{"servers":{"web":{}}}}
    "#;
    api.refuses(table).await;
    assert_eq!(api.get("/projects/a/products/search").await["version"], "1");

    let next = json!({"name": "search", "version": "2", "mcp": {"servers": [
        {"name": "web", "transport": "http", "config": {"url": "https://z.example.com"}}]}});
    let updated = api.put("/projects/a/products/search", next.clone()).await;
    assert_eq!(updated["removed"], json!(["old"]));
    assert_eq!(updated["servers"], json!(["web"]));
    let whole = api.get("/projects/a/products/search").await;
    assert_eq!(whole["manifest"], next);
    let kind = [("content-type", "text/html")];
    problem(&api.ask("PUT", path, next.to_string(), &kind).await, 415);

    // A product cannot use the name of a server that exists.
    api.server("a", "mine", json!({"url": "https://m.example.com"}))
        .await;
    let clash = r#"{"name":"other","version":"1","mcp":{"servers":{"mine":{"command":"x"}}}}"#;
    api.refused("PUT", "/projects/a/products/other", clash, 409)
        .await;
    let products = api.get("/projects/a/products").await;
    assert_eq!(products["products"].as_array().map(Vec::len), Some(1));
    api.delete("/projects/a/products/search").await;
    let left = api.get("/mcp/servers?project=a").await;
    assert_eq!(left["servers"].as_array().map(Vec::len), Some(1), "{left}");
}

#[tokio::test]
async fn keys_are_told_once_and_end_at_once() {
    let gateway = Setup::new().serve().await;
    let admin = Api::admin(&gateway);
    admin.project("a").await;
    let (id, token) = admin.key("a", "read").await;
    let reader = Api::with(&gateway, &token);
    reader.get("/projects/a").await;
    let listed = admin.get("/keys?project=a").await;
    assert_eq!(listed["keys"][0]["hint"], token[token.len() - 4..]);
    assert!(!listed.to_string().contains(&token));
    admin.delete(&format!("/keys/{id}?project=a")).await;
    reader.refused("GET", "/projects/a", "", 401).await;

    // The last administrator key cannot be revoked before another one exists.
    let keys = admin.get("/keys").await;
    let first = &item(&keys["keys"], "role", "admin")["id"];
    let first = format!("/keys/{}", first.as_str().expect("an id"));
    admin.refused("DELETE", &first, "", 409).await;
    let made = admin.ok("POST", "/keys", json!({"name": "second"})).await;
    let second = Api::with(&gateway, made["token"].as_str().expect("a key"));
    second.delete(&first).await;
    admin.refused("GET", "/projects", "", 401).await;
    second.get("/projects").await;
    // The keys of a project are revoked when the project is deleted.
    let gone = second.keyed("a", "manage").await;
    second.delete("/projects/a").await;
    gone.refused("GET", "/projects/a", "", 401).await;
}

#[tokio::test]
async fn calls_are_listed_newest_first_with_filters_and_pages() {
    let gateway = Setup::new().serve().await;
    let api = Api::admin(&gateway);
    api.projects(&["a", "b"], "one", &[]).await;
    for project in ["a", "b"] {
        let mut peer = legacy(&gateway, project).await;
        for n in 0..5 {
            let text = format!("{project}{n}");
            let call = json!({"name": "echo", "arguments": {"text": text}});
            peer.request("tools/call", call).await.result();
        }
    }
    let all = api.get("/calls").await;
    assert_eq!(all["calls"].as_array().map(Vec::len), Some(10), "{all}");
    assert_eq!(all["calls"][0]["project"], "b");
    assert_eq!(all["calls"][0]["status"], "ok");
    let path = "/calls?project=a&limit=3";
    let first = api.get(&format!("{path}&tool=echo&status=ok")).await;
    assert_eq!(first["calls"].as_array().map(Vec::len), Some(3));
    let next = first["next"].as_str().expect("more");
    let rest = api.get(&format!("{path}&after={next}")).await;
    assert_eq!(rest["calls"].as_array().map(Vec::len), Some(2));
    assert_eq!(rest["next"], Value::Null);
    for filter in ["project=b&server=none", "since=2999-01-01T00:00:00Z"] {
        let none = api.get(&format!("/calls?{filter}")).await;
        assert_eq!(none["calls"], json!([]), "{filter}");
    }
    let id = first["calls"][0]["id"].as_str().expect("an id");
    let whole = api.get(&format!("/calls/{id}?project=a")).await;
    assert_eq!(whole["tool"], "echo");
    // Another project's call looks like one that does not exist.
    let detail = async |id: &str| {
        let path = format!("/calls/{id}?project=b");
        api.refused("GET", &path, "", 404).await["detail"].to_string()
    };
    assert_eq!(detail(id).await.replace(id, "none"), detail("none").await);
}

#[tokio::test]
async fn tools_are_renamed_described_and_switched_per_project() {
    let gateway = Setup::new().serve().await;
    let api = Api::admin(&gateway);
    api.projects(&["a", "b"], "one", &[]).await;
    let echo = async |project: &str| {
        let path = format!("/tools?project={project}&server=one");
        item(&api.get(&path).await["tools"], "native", "echo").clone()
    };
    assert_eq!(echo("a").await["name"], "echo");
    let path = "/mcp/servers/one/tools/echo?project=a";
    let setting = json!({"name": "say", "description": "says it"});
    api.put(path, setting).await;
    let tool = echo("a").await;
    assert_eq!(tool["name"], "say");
    assert_eq!(tool["description"], "says it");
    assert_eq!(tool["setting"]["name"], "say");
    assert_eq!(echo("b").await["name"], "echo");
    api.put(path, json!({"enabled": false})).await;
    let tool = echo("a").await;
    assert_eq!(tool["name"], "echo");
    assert_eq!(
        (&tool["offered"], &tool["enabled"]),
        (&json!(false), &json!(false))
    );
    let table = r#"
        PUT /mcp/servers/one/tools/echo?project=a 400 @/name | {"name":"a b"}
        PUT /mcp/servers/one/tools/none?project=a 404 - | {}
        PUT /mcp/servers/none/tools/echo?project=a 404 - | {}
    "#;
    api.refuses(table).await;
    api.delete(path).await;
    api.refused("DELETE", path, "", 404).await;
    assert_eq!(echo("a").await["name"], "echo");
}

#[tokio::test]
async fn the_status_says_how_things_are() {
    let gateway = Setup::new().scripted("one", &[]).connected().await;
    let status = Api::admin(&gateway).get("/status").await;
    let database = json!({"kind": "sqlite", "answers": true, "reason": null});
    assert_eq!(status["database"], database);
    assert_eq!(status["servers"], json!({"running": 1}));
    assert_eq!(status["audit"], json!({"enabled": true}));
}
