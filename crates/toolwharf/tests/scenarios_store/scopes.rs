//! P08, G08, G09 and G12: the servers of projects that a caller sees, and under which names.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{DEADLINE, Peer, peer, wait_for};

use crate::{
    api::Api,
    common::{Gateway, LEGACY, checks, names, real::python, rpc, says, scripted, tools},
    support::{Db, both, legacy, pid, up, works},
};

on_both!(
    p08_names_are_kept_as_given,
    g08_a_project_is_named_by_path_header_or_meta,
    g08_what_there_is_not_is_refused,
    g08_a_key_reaches_its_own_project_only,
    g09_no_project_means_all_enabled_servers,
    g12_a_single_tool_is_switched_renamed_and_described,
);

async fn p08_names_are_kept_as_given(db: &Db) {
    let settings = "naming = \"always-prefix\"\n";
    let gateway = db.setup().settings(settings).serve().await;
    let api = Api::admin(&gateway);
    api.project("a").await;
    let time = python("mcp-server-time", &["--local-timezone", "Europe/Paris"]);
    api.server("a", "time", time).await;
    up(&api, "a", "time").await;
    let options = ["--no-builtin", "--tools", "2", "--prompts", "1"];
    api.server("a", "one", scripted("one", &options)).await;
    for mut peer in both(&gateway, "a").await {
        let mut listed = tools(&mut peer).await;
        listed.sort();
        let expected = ["convert_time", "get_current_time", "tool_0", "tool_1"];
        assert_eq!(listed, expected);
        let prompts = names(&mut peer, "prompts/list", "prompts", "name").await;
        assert_eq!(prompts, ["prompt_0"]);
        works(&mut peer, "tool_1").await;
    }
    // A clash is an error that names both tools, and both can still be reached.
    let two = scripted("two", &["--no-builtin", "--tools", "1"]);
    api.server("a", "two", two).await;
    let mut peer = legacy(&gateway, "a").await;
    wait_for("both", DEADLINE, async || {
        let listed = tools(&mut peer).await;
        let clashing = listed.iter().filter(|name| name.ends_with("tool_0"));
        clashing.count() == 2
    })
    .await;
    let line = gateway.logged("tool_0").await;
    checks::contains(&line, &["`one`", "`two`"]);
    let listed = tools(&mut peer).await;
    assert!(listed.contains(&"tool_1".to_owned()), "{listed:?}");
    for name in listed.iter().filter(|name| name.ends_with("tool_0")) {
        peer.tool(name, json!({})).await.result();
    }
}

/// Projects `red` and `blue` with one server each, of the same name but with different content.
async fn two_projects(db: &Db) -> Gateway {
    let gateway = db.setup().serve().await;
    let api = Api::admin(&gateway);
    for (project, tools) in [("red", "1"), ("blue", "2")] {
        api.project(project).await;
        let options = ["--tools", tools, "--prompts", tools, "--resources", tools];
        let own = scripted(project, &options);
        api.server(project, "own", own).await;
    }
    gateway
}

/// How a request names its project.
#[derive(Clone, Copy, Debug)]
enum By {
    Path,
    Header,
    Meta(&'static str),
}

async fn g08_a_project_is_named_by_path_header_or_meta(db: &Db) {
    let gateway = two_projects(db).await;
    for by in [
        By::Path,
        By::Header,
        By::Meta("dev.toolwharf/project"),
        By::Meta("projectId"),
    ] {
        for form in ["legacy", "modern", "sse"] {
            for (project, count) in [("red", 1), ("blue", 2)] {
                sees(&gateway, by, form, project, count).await;
            }
        }
    }
}

/// Asserts that exactly the project's own tools, prompts and resources are visible.
async fn sees(gateway: &Gateway, by: By, form: &str, project: &str, count: usize) {
    let what = format!("{by:?} {form} {project}");
    let base = if form == "sse" { "/sse" } else { "/mcp" };
    let client = match by {
        By::Path => gateway.at(&format!("{base}/{project}")),
        By::Header => gateway.at(base).with("x-project-id", project),
        By::Meta(_) => gateway.at(base),
    };
    let mut peer = match form {
        "legacy" => Peer::http(client, LEGACY, json!({})).await,
        "modern" => Peer::http(client, peer::MODERN, json!({})).await,
        _ => Peer::sse(client, json!({})).await,
    };
    let params = |mut params: Value| {
        if let By::Meta(key) = by {
            params["_meta"] = json!({key: project});
        }
        params
    };
    let expected =
        |prefix: &str| -> Vec<String> { (0..count).map(|n| format!("{prefix}{n}")).collect() };
    let of_resources = "resource://own/scripted://";
    for (method, list, member, prefix) in [
        ("tools/list", "tools", "name", "tool_"),
        ("prompts/list", "prompts", "name", "prompt_"),
        ("resources/list", "resources", "uri", of_resources),
    ] {
        let outcome = peer.request(method, params(json!({}))).await;
        let items = outcome.result()[list].as_array().unwrap();
        let found = items.iter().filter_map(|item| item[member].as_str());
        let found: Vec<&str> = found.filter(|name| name.starts_with(prefix)).collect();
        assert_eq!(found, expected(prefix), "{what} {method}");
        for item in items {
            let server = &item["_meta"]["dev.toolwharf/server"];
            assert_eq!(server, "own", "{what}: {item}");
        }
    }
    let last = count - 1;
    let call = params(json!({"name": format!("tool_{last}"), "arguments": {"n": 7}}));
    let answer = peer.request("tools/call", call).await;
    assert_eq!(answer.result()["structuredContent"]["n"], 7, "{what}");
    let uri = params(json!({"uri": format!("{of_resources}{last}")}));
    let read = peer.request("resources/read", uri).await;
    let text = &read.result()["contents"][0]["text"];
    assert_eq!(*text, format!("scripted://{last}"), "{what}");
    let get = params(json!({"name": format!("prompt_{last}")}));
    let prompt = peer.request("prompts/get", get).await;
    assert!(prompt.result()["messages"].is_array(), "{what}: {prompt:?}");
    // A batch contains several requests. Only one protocol version has batches.
    if form == "legacy" {
        batch(gateway, by, project, count).await;
    }
    // `blue` has further items that `red` does not have.
    for (method, wanted) in [
        ("tools/call", json!({"name": format!("tool_{count}")})),
        ("prompts/get", json!({"name": format!("prompt_{count}")})),
    ] {
        let refused = peer.request(method, params(wanted)).await;
        let code = &refused.response["error"]["code"];
        assert_eq!(*code, -32602, "{what} {method}: {refused:?}");
    }
}

/// A batch of one request, in a separate session.
async fn batch(gateway: &Gateway, by: By, project: &str, count: usize) {
    let (client, own) = match by {
        By::Path => (gateway.at(&format!("/mcp/{project}")), json!({})),
        By::Header => (gateway.client().with("x-project-id", project), json!({})),
        By::Meta(key) => (gateway.client(), json!({"_meta": {key: project}})),
    };
    let client = rpc::session(client, "2025-03-26").await;
    let list = json!([rpc::message(2, "tools/list", own)]);
    let answers = client.post(list.to_string()).await;
    let answers: Value = serde_json::from_slice(&answers.body).unwrap();
    let tools = answers[0]["result"]["tools"].as_array().unwrap();
    let named = |tool: &&Value| tool["name"].as_str().unwrap().starts_with("tool_");
    let found = tools.iter().filter(named).count();
    assert_eq!(found, count, "{by:?} batch: {answers}");
}

/// Sends a modern `tools/list` with these headers and this `_meta`. Returns status and body.
async fn asked(
    gateway: &Gateway,
    path: &str,
    headers: &[(&str, &str)],
    own: Value,
) -> (u16, Value) {
    let mut params = json!({"_meta": rpc::meta()});
    for (key, value) in own.as_object().unwrap() {
        params["_meta"][key] = value.clone();
    }
    let body = rpc::message(1, "tools/list", params);
    let mut all = vec![
        ("mcp-protocol-version", peer::MODERN),
        ("mcp-method", "tools/list"),
    ];
    all.extend_from_slice(headers);
    let reply = gateway.at(path).post_with(&all, body.to_string()).await;
    let answer = serde_json::from_slice(&reply.body).unwrap();
    (reply.status.as_u16(), answer)
}

async fn g08_what_there_is_not_is_refused(db: &Db) {
    let gateway = two_projects(db).await;
    let own = "dev.toolwharf/project";
    let none: &[(&str, &str)] = &[];
    let red: &[(&str, &str)] = &[("x-project-id", "red")];
    let odd: &[(&str, &str)] = &[("x-project-id", "none")];
    let twice = json!({own: "red", "projectId": "red"});
    for (path, headers, meta, status) in [
        ("/mcp/red", red, twice, 200),
        ("/mcp/none", none, json!({}), 404),
        ("/mcp", odd, json!({}), 404),
        ("/mcp", none, json!({own: "none"}), 404),
        ("/mcp", none, json!({"projectId": "none"}), 404),
        ("/mcp/blue", red, json!({}), 400),
        ("/mcp/blue", none, json!({own: "red"}), 400),
        ("/mcp", red, json!({"projectId": "blue"}), 400),
        ("/mcp", none, json!({own: "red", "projectId": "blue"}), 400),
        ("/mcp", none, json!({own: 7}), 400),
        ("/mcp", none, json!({own: "a b"}), 400),
        ("/mcp", none, json!({"projectId": ""}), 400),
    ] {
        let (found, answer) = asked(&gateway, path, headers, meta.clone()).await;
        assert_eq!(found, status, "{path} {headers:?} {meta}: {answer}");
        if status == 404 {
            says(&answer, &["there is no project `none`"]);
        }
    }
    // A session belongs to a project; its requests cannot name another.
    for project in ["blue", "none"] {
        let named = json!({"_meta": {own: project}});
        let mut session = legacy(&gateway, "red").await;
        let refused = session.request("tools/list", named.clone()).await;
        assert!(refused.response.get("error").is_some(), "{refused:?}");
        checks::lacks(refused.response.to_string(), &["tool_1"]);
        let mut session = Peer::sse(gateway.at("/sse/red"), json!({})).await;
        let id = session.begin("tools/list", named).await;
        let refused = session.finish(id).await;
        assert!(refused.get("error").is_some(), "{refused}");
    }
    assert_eq!(gateway.at("/sse/none").get(&[]).await.status, 404);
    // A removed project is gone for connected clients.
    let mut red = legacy(&gateway, "red").await;
    assert!(tools(&mut red).await.contains(&"tool_0".to_owned()));
    Api::admin(&gateway).delete("/projects/red").await;
    let refused = red.request("tools/list", json!({})).await;
    assert!(refused.response.get("error").is_some(), "{refused:?}");
    let (status, _) = asked(&gateway, "/mcp/red", none, json!({})).await;
    assert_eq!(status, 404);
}

async fn g08_a_key_reaches_its_own_project_only(db: &Db) {
    let gateway = two_projects(db).await;
    let (_, token) = Api::admin(&gateway).key("red", "call").await;
    let bearer = format!("Bearer {token}");
    let own = "dev.toolwharf/project";
    let as_red: &[(&str, &str)] = &[("authorization", &bearer)];
    let as_none: &[(&str, &str)] = &[("authorization", &bearer), ("x-project-id", "none")];
    let as_blue: &[(&str, &str)] = &[("authorization", &bearer), ("x-project-id", "blue")];
    for path in ["/mcp", "/mcp/red"] {
        let (status, answer) = asked(&gateway, path, as_red, json!({})).await;
        assert_eq!(status, 200, "{answer}");
        let text = answer.to_string();
        checks::contains(&text, &["tool_0"]);
        checks::lacks(&text, &["tool_1"]);
    }
    // Another key's project looks like one that does not exist.
    for (path, other, headers, instead, meta) in [
        ("/mcp/blue", "/mcp/none", as_red, as_red, json!({})),
        ("/mcp", "/mcp", as_blue, as_none, json!({})),
    ] {
        let (status, answer) = asked(&gateway, path, headers, meta.clone()).await;
        let (same, none) = asked(&gateway, other, instead, meta).await;
        assert_eq!((status, same), (404, 404), "{answer}");
        assert_eq!(answer.to_string().replace("blue", "none"), none.to_string());
    }
    let (status, answer) = asked(&gateway, "/mcp", as_red, json!({own: "blue"})).await;
    let (same, none) = asked(&gateway, "/mcp", as_red, json!({own: "none"})).await;
    assert!(status >= 400 && status == same, "{answer}");
    assert_eq!(answer.to_string().replace("blue", "none"), none.to_string());

    let client = |path: &str| gateway.at(path).with("authorization", &bearer);
    for mut peer in [
        Peer::http(client("/mcp"), LEGACY, json!({})).await,
        Peer::http(client("/mcp"), peer::MODERN, json!({})).await,
        Peer::sse(client("/sse"), json!({})).await,
    ] {
        let listed = tools(&mut peer).await;
        assert!(listed.contains(&"tool_0".to_owned()), "{listed:?}");
        assert!(!listed.contains(&"tool_1".to_owned()), "{listed:?}");
        let refused = peer.tool("tool_1", json!({})).await;
        assert_eq!(refused.response["error"]["code"], -32602, "{refused:?}");
    }
    assert_eq!(client("/sse/blue").get(&[]).await.status, 404);
}

async fn g09_no_project_means_all_enabled_servers(db: &Db) {
    let options = ["--no-builtin", "--tools", "1", "--resources", "1"];
    let setup = db.setup().scripted("file", &options);
    let gateway = setup.serve().await;
    let api = Api::admin(&gateway);
    for project in ["red", "blue"] {
        api.project(project).await;
        for server in ["own", "off"] {
            let mut entry = scripted(project, &options);
            entry["enabled"] = (server == "own").into();
            api.server(project, server, entry).await;
        }
    }
    for mut peer in [
        gateway.legacy().await,
        gateway.modern().await,
        Peer::sse(gateway.at("/sse"), json!({})).await,
    ] {
        let listed = peer.request("tools/list", json!({})).await;
        let listed = listed.result()["tools"].as_array().unwrap().clone();
        let mut whose = Vec::new();
        for tool in &listed {
            let own = &tool["_meta"];
            let text = |key: &str| own[key].as_str().unwrap_or("-").to_owned();
            whose.push((text("dev.toolwharf/project"), text("dev.toolwharf/server")));
            // The name routes to the server in the metadata.
            let name = tool["name"].as_str().unwrap();
            works(&mut peer, name).await;
            let project = own["dev.toolwharf/project"].as_str().unwrap_or("file");
            let described = tool["description"].as_str().unwrap();
            assert!(described.contains(&format!("({project} 0)")), "{tool}");
        }
        whose.sort();
        let expected = [("-", "file"), ("blue", "own"), ("red", "own")];
        assert_eq!(whose, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
        let mut uris = names(&mut peer, "resources/list", "resources", "uri").await;
        assert_eq!(uris.len(), 3);
        for uri in &uris {
            let read = peer.request("resources/read", json!({"uri": uri})).await;
            assert_eq!(read.result()["contents"][0]["uri"], *uri, "{read:?}");
        }
        uris.sort();
        uris.dedup();
        assert_eq!(uris.len(), 3, "{uris:?}");
    }
    // Each call was recorded for the project of its server.
    for project in ["red", "blue"] {
        let calls = api.get(&format!("/calls?project={project}")).await;
        assert_eq!(calls["calls"].as_array().map(Vec::len), Some(3), "{calls}");
    }
    // The projects see neither each other's tools nor those of the configuration file, which does not mention the
    // projects.
    for project in ["red", "blue"] {
        let mut peer = legacy(&gateway, project).await;
        assert_eq!(tools(&mut peer).await, ["tool_0"]);
    }
    // Enabled and disabled servers appear and disappear at once.
    let mut peer = gateway.legacy().await;
    let enable = "/mcp/servers/off/enable?project=red";
    api.ok("POST", enable, json!({})).await;
    wait_for("the enabled one", DEADLINE, async || {
        tools(&mut peer).await.len() == 4
    })
    .await;
    api.delete("/projects/red").await;
    assert_eq!(tools(&mut peer).await.len(), 2);
}

const CHANGED: &str = "notifications/tools/list_changed";

/// Waits until the client has received no tool list change for this time.
async fn settled(peer: &mut Peer, time: Duration) {
    while peer.notification(CHANGED, time).await.is_some() {}
}

async fn g12_a_single_tool_is_switched_renamed_and_described(db: &Db) {
    let gateway = db.setup().serve().await;
    let api = Api::admin(&gateway);
    for project in ["a", "b"] {
        api.project(project).await;
        let entry = scripted("one", &["--tools", "3"]);
        api.server(project, "one", entry).await;
    }
    let mut peers = both(&gateway, "a").await;
    for peer in &mut peers {
        tools(peer).await;
        peer.subscribe(&[]).await;
    }
    let mut other = legacy(&gateway, "b").await;
    tools(&mut other).await;
    let process = pid(&mut peers[0], "pid").await;
    let settle = Duration::from_millis(300);
    settled(&mut peers[0], settle).await;
    settled(&mut other, settle).await;

    for (tool, setting) in [
        ("tool_0", json!({"enabled": false})),
        ("tool_1", json!({"name": "renamed"})),
        ("tool_2", json!({"description": "says something else"})),
    ] {
        let path = format!("/mcp/servers/one/tools/{tool}?project=a");
        for peer in &mut peers {
            settled(peer, Duration::from_millis(10)).await;
        }
        api.put(&path, setting).await;
        for peer in &mut peers {
            // The change takes effect at once, before the notification.
            as_set(peer, tool).await;
            let told = peer.notification(CHANGED, Duration::from_secs(5)).await;
            assert!(told.is_some(), "no notification of {tool}");
        }
    }
    let now = pid(&mut peers[0], "pid").await;
    assert_eq!(now, process, "the server was restarted");
    let listed = tools(&mut other).await;
    assert!(listed.contains(&"tool_0".to_owned()) && listed.contains(&"tool_1".to_owned()));
    let told = other.notification(CHANGED, settle).await;
    assert_eq!(told, None, "another project was notified");

    let gateway = gateway.restarted().await;
    for mut peer in both(&gateway, "a").await {
        for tool in ["tool_0", "tool_1", "tool_2"] {
            as_set(&mut peer, tool).await;
        }
    }
    let api = Api::admin(&gateway);
    for tool in ["tool_0", "tool_1", "tool_2"] {
        let path = format!("/mcp/servers/one/tools/{tool}?project=a");
        api.delete(&path).await;
    }
    let mut peer = legacy(&gateway, "a").await;
    for tool in ["tool_0", "tool_1", "tool_2"] {
        works(&mut peer, tool).await;
    }
    let listed = peer.request("tools/list", json!({})).await;
    assert!(!listed.response.to_string().contains("says something else"));
}

/// Asserts that the tool is listed and callable as configured.
async fn as_set(peer: &mut Peer, tool: &str) {
    let listed = peer.request("tools/list", json!({})).await;
    let listed = listed.result()["tools"].as_array().unwrap();
    let find = |name: &str| listed.iter().find(|tool| tool["name"] == name);
    match tool {
        "tool_0" => assert!(find(tool).is_none()),
        "tool_1" => {
            assert!(find(tool).is_none());
            assert!(find("renamed").is_some());
            works(peer, "renamed").await;
        }
        _ => {
            let tool = find(tool).expect("it is still there");
            assert_eq!(tool["description"], "says something else");
            return;
        }
    }
    let refused = peer.tool(tool, json!({})).await;
    assert_eq!(refused.response["error"]["code"], -32602, "{refused:?}");
}
