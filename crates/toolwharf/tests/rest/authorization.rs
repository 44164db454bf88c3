//! Authorization: every route of the API with every kind of key, compared with the route table.
//!
//! The test fails if a route has no row here, unless the route is a list, or if a row has no route.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::api::{Api, ROLES, problem, rank};
use crate::common::{Setup, item};
use serde_json::{Value, json};
use testkit::{DEADLINE, Reply};

/// A meaningful request for each route that is not a list: method, route, status if it is allowed, path if it differs
/// (or `=`), body. In a path, `NEW` is a key created for this request and `MADE` a server. `FRESH` is an unused name.
const ROWS: &str = r#"
POST /master-key/rotate 200
POST /browser-links 200
PUT /secrets/{name} 201 /secrets/S {"value":"v"}
DELETE /secrets/{name} 204 /secrets/S
POST /import 200 = {"text":"{\"mcpServers\":{}}"}
POST /mcp/servers 201 = {"name":"h","project":"a","command":"true","enabled":false}
PUT /mcp/servers/{id} 201 /mcp/servers/FRESH?project=a {"url":"https://x.example.com","enabled":false}
GET /mcp/servers/{id} 200 /mcp/servers/own?project=a
GET /mcp/servers/{id}/entry 200 /mcp/servers/own/entry?project=a
PUT /mcp/servers/{id}/entry 200 /mcp/servers/own/entry?project=a&dry_run=true {"url":"https://x.example.com"}
POST /mcp/servers/{id}/enable 200 /mcp/servers/own/enable?project=a
POST /mcp/servers/{id}/disable 200 /mcp/servers/MADE/disable?project=a
POST /mcp/servers/{id}/stop 200 /mcp/servers/own/stop?project=a
POST /mcp/servers/{id}/start 200 /mcp/servers/own/start?project=a
POST /mcp/servers/{id}/restart 200 /mcp/servers/own/restart?project=a
POST /mcp/servers/{id}/call 200 /mcp/servers/own/call?project=a {"method":"ping"}
PUT /mcp/servers/{id}/recording 200 /mcp/servers/own/recording?project=a {"seconds":60}
DELETE /mcp/servers/{id}/recording 204 /mcp/servers/own/recording?project=a
GET /mcp/servers/{id}/confinement 200 /mcp/servers/own/confinement?project=a
GET /mcp/servers/{id}/logs 200 /mcp/servers/own/logs?project=a
GET /mcp/servers/{id}/events 200 /mcp/servers/own/events?project=a
GET /mcp/servers/{id}/tools 200 /mcp/servers/own/tools?project=a
PUT /mcp/servers/{id}/tools/{tool} 200 /mcp/servers/own/tools/echo?project=a {}
DELETE /mcp/servers/{id}/tools/{tool} 204 /mcp/servers/own/tools/echo?project=a
POST /mcp/servers/{id}/approve 409 /mcp/servers/own/approve?project=a {"tools":{"echo":"x"}}
POST /mcp/servers/{id}/update 409 /mcp/servers/own/update?project=a {"check":true}
GET /mcp/servers/{id}/login 404 /mcp/servers/own/login?project=a
POST /mcp/servers/{id}/login 409 /mcp/servers/own/login?project=a {}
POST /mcp/servers/{id}/login/finish 400 /mcp/servers/own/login/finish?project=a {"redirect":"http://127.0.0.1/login/callback?code=x&state=y"}
DELETE /mcp/servers/{id}/login 204 /mcp/servers/own/login?project=a
GET /mcp/servers/{id}/changes 200 /mcp/servers/own/changes?project=a
DELETE /mcp/servers/{id} 204 /mcp/servers/MADE?project=a
PUT /projects/{project} 200 /projects/a {}
GET /projects/{project} 200 /projects/a
PUT /projects/{project}/secrets/{name} 201 /projects/a/secrets/S {"value":"v"}
GET /projects/{project}/secrets 200 /projects/a/secrets
DELETE /projects/{project}/secrets/{name} 204 /projects/a/secrets/S
PUT /projects/{project}/products/{name} 201 /projects/a/products/p {"name":"p","version":"1","mcp":{"servers":{}}}
GET /projects/{project}/products 200 /projects/a/products
GET /projects/{project}/products/{name} 404 /projects/a/products/none
DELETE /projects/{project}/products/{name} 204 /projects/a/products/p
GET /registry/servers/{name} 200 /registry/servers/time?project=a
POST /registry/servers/{name}/install 404 /registry/servers/none/install?project=a {}
GET /runs/{run} 404 /runs/none?project=a
GET /calls/{call} 404 /calls/none?project=a
POST /keys 201 /keys?project=a {"name":"FRESH","role":"read"}
DELETE /keys/{key} 204 /keys/NEW?project=a
POST /chat 409 /chat?project=a {"message":"hi"}
GET /conversations/{conversation} 404 /conversations/none?project=a
DELETE /conversations/{conversation} 404 /conversations/none?project=a
POST /conversations/{conversation}/answers 409 /conversations/none/answers?project=a {"call":"toolu_1","answers":{}}
POST /clients/{client}/connect 409 /clients/cursor/connect {"dry_run":true}
POST /clients/{client}/disconnect 409 /clients/cursor/disconnect
DELETE /projects/{project} 204 /projects/a
"#;

/// Method, route, path, body, and the status if it is allowed.
type Row = (&'static str, &'static str, &'static str, &'static str, u16);

fn rows() -> Vec<Row> {
    let rows = ROWS.lines().filter(|line| !line.is_empty()).map(|line| {
        let mut words = line.splitn(5, ' ');
        let method = words.next().expect("a method");
        let route = words.next().expect("a route");
        let status = words.next().expect("a status").parse();
        let path = words.next().filter(|path| *path != "=").unwrap_or(route);
        let body = words.next().unwrap_or_default();
        (method, route, path, body, status.expect("a number"))
    });
    // A list needs no row: its request has no path parameters and no body.
    let document = include_str!("../../../../docs/openapi.json");
    let document: Value = serde_json::from_str(document).expect("JSON");
    let paths = document["paths"].as_object().expect("an object");
    let is_list = |(path, item): &(&String, &Value)| !path.contains('{') && item["get"].is_object();
    let lists = paths.iter().filter(is_list).map(|(path, _)| {
        let route: &str = path["/api/v1".len()..].to_owned().leak();
        let is_of_project = OF_PROJECTS.iter().any(|of| route.starts_with(of));
        let query = if is_of_project { "?project=a" } else { "" };
        ("GET", route, &*format!("{route}{query}").leak(), "", 200)
    });
    // The lists come first, because the last row deletes the project.
    lists.collect::<Vec<_>>().into_iter().chain(rows).collect()
}

/// A counter for unique names.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The caller of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    Nobody,
    /// A key of the requested project.
    Own(&'static str),
    Other(&'static str),
    Admin,
    Revoked,
    Expired,
}

/// Routes of project resources, requested with `?project=`.
const OF_PROJECTS: [&str; 11] = [
    "/attention",
    "/mcp/servers/{id}",
    "/logins",
    "/registry/servers",
    "/tools",
    "/calls",
    "/events",
    "/runs",
    "/keys",
    "/chat",
    "/conversations",
];

/// The expected outcome.
#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Allowed,
    Refused(u16),
}

fn expected(caller: Caller, route: &str, role: &str) -> Expected {
    let in_project =
        route.contains("{project}") || OF_PROJECTS.iter().any(|of| route.starts_with(of));
    match caller {
        Caller::Nobody | Caller::Revoked | Caller::Expired => Expected::Refused(401),
        Caller::Admin => Expected::Allowed,
        Caller::Own(own) if in_project && rank(own) >= rank(role) => Expected::Allowed,
        // Every project key may read this list, which contains the servers of the key's project.
        Caller::Own(_) | Caller::Other(_) if route == "/mcp/servers" && role == "read" => {
            Expected::Allowed
        }
        Caller::Own(_) => Expected::Refused(403),
        Caller::Other(_) if in_project => Expected::Refused(404),
        Caller::Other(_) => Expected::Refused(403),
    }
}

/// Creates everything that the rows refer to.
async fn prepare(admin: &Api<'_>) {
    admin.projects(&["a", "b"], "own", &[]).await;
    for project in ["a", "b"] {
        admin.get(&format!("/tools?project={project}")).await;
    }
}

async fn send(api: &Api<'_>, admin: &Api<'_>, row: &Row, project: &str) -> Reply {
    let (method, _, path, body, _) = row;
    let path = path.replace("/projects/a", &format!("/projects/{project}"));
    let path = path.replace("?project=a", &format!("?project={project}"));
    let fresh = format!("url{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let mut path = path.replace("FRESH", &fresh);
    let body = body.replace("FRESH", &fresh);
    if path.contains("MADE") {
        let entry = json!({"url": "https://x.example.com", "enabled": false});
        admin.server("a", "url", entry).await;
        path = path.replace("MADE", "url");
    }
    if path.contains("NEW") {
        let (id, _) = admin.key("a", "read").await;
        path = path.replace("NEW", &id);
    }
    let path = format!("/api/v1{path}");
    let answer = api.open(method, &path, body, &[]).await;
    if path.contains("/events?") && answer.is_event_stream() {
        // The event stream never ends, so its body is not read.
        return Reply {
            status: answer.status,
            headers: answer.headers,
            body: Default::default(),
        };
    }
    answer.collect(DEADLINE).await
}

#[tokio::test]
async fn every_route_with_every_key() {
    let gateway = Setup::new().scripted("one", &[]).connected().await;
    let admin = Api::admin(&gateway);
    prepare(&admin).await;
    let index = admin.get("").await;
    let routes = index["routes"].as_array().expect("routes").iter();
    let text = |route: &Value, key: &str| route[key].as_str().expect(key).to_owned();
    let needs = routes.map(|route| {
        let [method, path, role] = ["method", "path", "role"].map(|key| text(route, key));
        ((method, path), role)
    });
    let needs: BTreeMap<(String, String), String> = needs.collect();
    let rows = rows();
    for (method, route) in needs.keys() {
        let known = |row: &Row| row.0 == method && format!("/api/v1{}", row.1) == *route;
        assert!(rows.iter().any(known), "{method} {route} needs a row");
    }

    // Callers without permission change nothing, whatever the row would do.
    let mut callers = vec![(Caller::Nobody, Api::nobody(&gateway))];
    for role in &ROLES[..3] {
        callers.push((Caller::Own(role), admin.keyed("a", role).await));
        callers.push((Caller::Other(role), admin.keyed("b", role).await));
    }
    let [revoked, expired] = admin.lost_keys().await;
    callers.push((Caller::Revoked, Api::with(&gateway, &revoked)));
    callers.push((Caller::Expired, Api::with(&gateway, &expired)));
    let file = || std::fs::read_to_string(gateway.servers_file()).expect("a file");
    let own = async || {
        let row = admin.get("/mcp/servers/own?project=a").await;
        ["enabled", "config", "pid", "updated_at"].map(|key| row[key].clone())
    };
    let (before, project) = (file(), own().await);
    for row in &rows {
        let need = &needs[&(row.0.to_owned(), format!("/api/v1{}", row.1))];
        for (caller, api) in &callers {
            let Expected::Refused(status) = expected(*caller, row.1, need) else {
                continue;
            };
            let reply = send(api, &admin, row, "a").await;
            assert_eq!(reply.status, status, "{caller:?} {row:?}: {}", reply.text());
            let said = problem(&reply, status);
            match status {
                401 => assert_eq!(reply.header("www-authenticate"), Some("Bearer")),
                // Identical to the response for something that does not exist.
                404 => {
                    let none = problem(&send(api, &admin, row, "none").await, 404);
                    let none = none.to_string().replace("`none`", "`a`");
                    assert_eq!(said.to_string(), none, "{caller:?} {row:?}");
                }
                _ => {}
            }
        }
    }
    assert_eq!(file(), before, "a refused caller changed the file");
    assert_eq!(own().await, project);

    // Callers with permission: each runs the whole table, starting from the same state.
    callers.push((Caller::Admin, Api::admin(&gateway)));
    let mut allowed = 0;
    for (caller, api) in &callers {
        for row in &rows {
            let need = &needs[&(row.0.to_owned(), format!("/api/v1{}", row.1))];
            if expected(*caller, row.1, need) != Expected::Allowed {
                continue;
            }
            let reply = send(api, &admin, row, "a").await;
            assert_eq!(reply.status, row.4, "{caller:?} {row:?}: {}", reply.text());
            if row.4 == 404 {
                let said = problem(&reply, 404).to_string();
                assert!(!said.contains("no project"), "{caller:?} {row:?}: {said}");
            }
            allowed += 1;
        }
    }
    let pairs = rows.len() * callers.len();
    eprintln!(
        "attacks: {pairs} pairs of route and identity, {allowed} of them permitted (bound: all as expected)"
    );
    assert!(allowed > rows.len(), "{allowed}");
}

#[tokio::test]
async fn a_key_is_wanted_in_one_place_only_and_for_everything() {
    let gateway = Setup::new().serve().await;
    let token = gateway.token();
    let nobody = Api::nobody(&gateway);
    let short = &token[..token.len() - 1];
    let wrong = [
        ("authorization", "Bearer wrong".to_owned()),
        ("authorization", "Bearer ".to_owned()),
        ("authorization", token.clone()),
        ("authorization", format!("Basic {token}")),
        ("authorization", format!("Bearer {short}")),
        ("cookie", format!("authorization=Bearer {token}")),
    ];
    let unknown = [("GET", "/nothing"), ("PATCH", "/mcp/servers")];
    let known = rows().into_iter().map(|row| (row.0, row.2));
    for (method, path) in known.chain(unknown) {
        let path = format!("/api/v1{path}");
        for (name, value) in &wrong {
            let header = [(*name, value.as_str())];
            let said = problem(&nobody.ask(method, &path, "{}", &header).await, 401);
            assert!(!said.to_string().contains(&token), "{said}");
        }
        // A token in the URL would end up in logs and histories.
        let path = format!("{path}?token={token}&access_token={token}");
        problem(&nobody.ask(method, &path, "{}", &[]).await, 401);
    }
    let admin = Api::admin(&gateway);
    admin.refused("GET", "/nothing", "", 404).await;
    admin.refused("PATCH", "/mcp/servers", "", 405).await;
    admin.refused("DELETE", "/tools?project=a", "", 405).await;
}

#[tokio::test]
async fn the_key_of_a_project_means_that_project_with_or_without_its_name() {
    let gateway = Setup::new().serve().await;
    let admin = Api::admin(&gateway);
    prepare(&admin).await;
    let token = admin.key("a", "manage").await.1;
    admin.key("b", "read").await;
    let own = Api::with(&gateway, &token);
    for path in ["/tools", "/calls", "/runs", "/conversations", "/keys"] {
        let named = own.get(&format!("{path}?project=a")).await;
        assert_eq!(own.get(path).await, named, "{path}");
    }
    let made = own.ok("POST", "/keys", json!({"name": "own", "role": "call"}));
    assert_eq!(made.await["project"], "a");
    // Without a project, an administrator sees all keys and creates administrator keys.
    let keys = admin.get("/keys").await;
    let keys = keys["keys"].as_array().expect("keys");
    for project in [json!("a"), json!("b"), Value::Null] {
        let found = keys.iter().any(|key| key["project"] == project);
        assert!(found, "{project}: {keys:?}");
    }
    let made = admin.ok("POST", "/keys", json!({"name": "k"})).await;
    assert_eq!(made["project"], Value::Null);
    assert_eq!(made["role"], "admin");
    let table = r#"POST /keys?project=a 400 @/role | {"name":"k","role":"admin"}"#;
    admin.refuses(table).await;
}

#[tokio::test]
async fn a_key_for_all_projects_does_what_its_role_permits_in_each() {
    let gateway = Setup::new().serve().await;
    let admin = Api::admin(&gateway);
    prepare(&admin).await;
    let wanted = json!({"name": "k", "role": "manage"});
    let made = admin.ok("POST", "/keys", wanted).await;
    assert_eq!(made["project"], Value::Null);
    assert_eq!(made["role"], "manage");
    let own = Api::with(&gateway, made["token"].as_str().expect("a token"));
    for project in ["a", "b"] {
        let path = format!("/keys?project={project}");
        let made = own.ok("POST", &path, json!({"name": project, "role": "call"}));
        assert_eq!(made.await["project"], project);
    }
    // A key cannot create a key with more permissions than its own.
    own.refused("POST", "/keys", r#"{"name":"k"}"#, 403).await;
    own.refused("POST", "/keys", r#"{"name":"k","role":"admin"}"#, 403)
        .await;
    // A key cannot revoke a key with more permissions either.
    for name in ["first", "second"] {
        admin.ok("POST", "/keys", json!({"name": name})).await;
    }
    let keys = admin.get("/keys").await;
    let of_admin = item(&keys["keys"], "role", "admin");
    let id = of_admin["id"].as_str().expect("an id");
    own.refused("DELETE", &format!("/keys/{id}"), "", 403).await;
    admin.delete(&format!("/keys/{id}")).await;
}

#[tokio::test]
async fn foreign_pages_are_refused_with_the_right_token_too() {
    let gateway = Setup::new().scripted("one", &[]).serve().await;
    let admin = Api::admin(&gateway);
    let file = || std::fs::read_to_string(gateway.servers_file()).expect("a file");
    let before = file();
    for (method, _, path, body, _) in rows() {
        for foreign in [
            ("origin", "http://evil.example.com"),
            ("origin", "null"),
            ("host", "evil.example.com"),
        ] {
            let path = format!("/api/v1{path}");
            let reply = admin.ask(method, &path, body, &[foreign]).await;
            assert_eq!(reply.status, 403, "{method} {path} {foreign:?}");
        }
    }
    assert_eq!(file(), before);
}
