//! Extensions: MCP Apps (SEP-1865), skills (SEP-2640), and the declaration of extensions to both sides.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use common::{Gateway, LEGACY, Setup, checks, real::npm, rpc, scripted, steps::resource, with};
use serde_json::{Value, json};
use testkit::{Peer, conformance, peer::MODERN};

const UI: &str = "io.modelcontextprotocol/ui";

/// Adds a scripted server of this era with these answers.
fn answering(setup: Setup, name: &str, era: &str, answers: &Value) -> Setup {
    let file = setup.folder().join(format!("{name}.answers.json"));
    std::fs::write(&file, answers.to_string()).unwrap();
    let file = file.display().to_string();
    setup.scripted(name, &["--era", era, "--answers", &file])
}

async fn list(peer: &mut Peer, method: &str, key: &str) -> Vec<Value> {
    let outcome = peer.request(method, json!({})).await;
    outcome.result()[key].as_array().unwrap().clone()
}

/// Returns the extensions that a server's client declared, as the server saw them.
async fn declared(peer: &mut Peer, name: &str) -> Value {
    let outcome = peer.tool(&format!("{name}__client"), json!({})).await;
    outcome.result()["structuredContent"]["extensions"].clone()
}

/// Returns the capabilities from `initialize` or `server/discover`, over a separate connection.
async fn capabilities(gateway: &Gateway, path: &str, version: &str) -> Value {
    let mut peer = Peer::http(gateway.at(path), version, json!({})).await;
    let outcome = if peer.is_modern() {
        peer.request("server/discover", json!({})).await
    } else {
        let params = rpc::hello(version)["params"].clone();
        peer.request("initialize", params).await
    };
    outcome.result()["capabilities"].clone()
}

/// A server with a tool `pid` that shows a view.
fn app(view: &str) -> Value {
    let mut tool = json!({ "name": "pid", "inputSchema": { "type": "object" } });
    tool["_meta"] = json!({ "ui": { "resourceUri": view }, "ui/resourceUri": view });
    let read = json!({
        "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
        "contents": [{ "uri": view, "mimeType": "text/html;profile=mcp-app", "text": "<p>" }],
    });
    json!({
        "capabilities": { "resources": {} },
        "methods": {
            "tools/list": { "tools": [tool] },
            // The server lists no resources.
            "resources/list": { "resources": [] },
            (format!("resources/read {view}")): read,
        },
    })
}

#[tokio::test]
async fn apps_of_real_servers_side_by_side() {
    let basic = |name: &str| npm(&format!("server-basic-{name}/dist/index.js"), &["--stdio"]);
    let setup = Setup::new().server("react", basic("react"));
    let gateway = setup.server("vue", basic("vue")).connected().await;
    for mut peer in [gateway.legacy().await, gateway.modern().await] {
        let tools = list(&mut peer, "tools/list", "tools").await;
        let resources = list(&mut peer, "resources/list", "resources").await;
        let mut views = Vec::new();
        for server in ["react", "vue"] {
            let name = format!("{server}__get-time");
            let tool = tools.iter().find(|tool| tool["name"] == *name).unwrap();
            let uri = format!("ui://{server}/get-time/mcp-app.html");
            assert_eq!(tool["_meta"]["ui"]["resourceUri"], uri, "{tool}");
            assert_eq!(tool["_meta"]["ui/resourceUri"], uri, "{tool}");
            assert!(resources.iter().any(|resource| resource["uri"] == *uri));
            let content = resource(&mut peer, &uri).await;
            assert_eq!(content["uri"], uri);
            assert_eq!(content["mimeType"], "text/html;profile=mcp-app");
            views.push(content["text"].as_str().unwrap().to_owned());
            let called = peer.tool(&name, json!({})).await;
            assert!(called.text().starts_with("20"), "{called:?}");
        }
        assert_ne!(views[0], views[1], "a view came from the other server");
    }
    // An app calls its server's tool by its native name.
    for server in ["react", "vue"] {
        let mut peer = gateway.legacy().await;
        peer.tool(&format!("{server}__get-time"), json!({})).await;
        let before = gateway.metric("calls_total", Some(server)).await;
        let called = peer.tool("get-time", json!({})).await;
        assert!(called.text().starts_with("20"), "{called:?}");
        let after = gateway.metric("calls_total", Some(server)).await;
        assert_eq!(after, before.map(|before| before + 1), "{server}");
    }
}

#[tokio::test]
async fn calls_of_apps_reach_their_own_server() {
    let setup = Setup::new();
    // Both servers have a view with the same URI, and they speak different eras.
    let setup = answering(setup, "one", "legacy", &app("ui://shown"));
    let setup = answering(setup, "two", "modern", &app("ui://shown"));
    let gateway = setup.connected().await;
    let pid = async |peer: &mut Peer, name: &str, meta: Value| {
        let params = json!({ "name": name, "arguments": {}, "_meta": meta });
        let outcome = peer.request("tools/call", params).await;
        outcome.response["result"]["content"][0]["text"].clone()
    };
    let read = async |peer: &mut Peer, server: &str| {
        let uri = format!("ui://{server}/shown");
        assert_eq!(resource(peer, &uri).await["uri"], uri);
    };
    let mut peer = gateway.legacy().await;
    let one = pid(&mut peer, "one__pid", json!({})).await;
    assert!(one.is_string());
    // An app call goes to the server of the last tool call, not of the last read: hosts may read views in advance.
    read(&mut peer, "one").await;
    read(&mut peer, "two").await;
    assert_eq!(pid(&mut peer, "pid", json!({})).await, one);
    // Both views are open now, so the gateway does not guess.
    let two = pid(&mut peer, "two__pid", json!({})).await;
    assert!(two.is_string() && two != one);
    let refused = peer.tool("pid", json!({})).await;
    let which = "`one__pid` or `two__pid`";
    checks::contains(&refused.response["error"]["message"], &[which]);
    // The host can name the view.
    for (server, its) in [("one", &one), ("two", &two)] {
        let said = json!({ "ui": { "resourceUri": format!("ui://{server}/shown") } });
        assert_eq!(pid(&mut peer, "pid", said).await, *its);
    }
    // Views that another client opened do not count.
    let mut peer = gateway.legacy().await;
    assert_eq!(pid(&mut peer, "pid", json!({})).await, Value::Null);
    read(&mut peer, "two").await;
    assert_eq!(pid(&mut peer, "pid", json!({})).await, two);
}

#[tokio::test]
async fn extensions_of_clients_are_told_to_servers() {
    let own = json!({ "extensions": { "com.example/x": { "a": 1 } } });
    let setup = |extensions: &str| {
        let own = with(scripted("own", &[]), json!({ "sharing": "session" }));
        Setup::new()
            .settings(&format!("naming = \"always-prefix\"\n{extensions}"))
            .scripted("shared", &[])
            .server("own", own)
    };
    let gateway = setup("").serve().await;
    let ui = json!({ UI: { "mimeTypes": ["text/html;profile=mcp-app"] } });
    let mut peer = Peer::http(gateway.client(), LEGACY, own.clone()).await;
    assert_eq!(declared(&mut peer, "shared").await, ui);
    assert_eq!(declared(&mut peer, "own").await, own["extensions"]);

    // A modern client on stdio also gets a separate instance.
    let extensions = "[extensions]\n\"com.example/y\" = { level = 3 }\n";
    let (client, _folder) = setup(extensions).stdio();
    let mut peer = Peer::stdio(client, MODERN, own.clone()).await;
    let set = json!({ "com.example/y": { "level": 3 } });
    assert_eq!(declared(&mut peer, "shared").await, set);
    assert_eq!(declared(&mut peer, "own").await, own["extensions"]);
}

#[tokio::test]
async fn extensions_of_servers_reach_clients_of_both_eras() {
    let setup = Setup::new();
    let says = |name: &str| json!({ "capabilities": { "extensions": { name: { "v": 2 } } } });
    let setup = answering(setup, "old", "legacy", &says("com.example/o"));
    let setup = answering(setup, "new", "modern", &says("com.example/n"));
    let gateway = setup.connected().await;
    for version in [LEGACY, MODERN] {
        let found = capabilities(&gateway, "/mcp", version).await;
        let both = json!({ "com.example/o": { "v": 2 }, "com.example/n": { "v": 2 } });
        assert_eq!(found["extensions"], both, "{version}");
        for (server, name) in [("old", "com.example/o"), ("new", "com.example/n")] {
            let path = format!("/mcp/-/{server}");
            let found = capabilities(&gateway, &path, version).await;
            let one = json!({ name: { "v": 2 } });
            assert_eq!(found["extensions"], one, "{version} {server}");
        }
    }
}

const SKILLS: &str = "io.modelcontextprotocol/skills";

/// A server with the skill `team/{name}`, and a skill that the server does not list.
fn skills(name: &str) -> Value {
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    let file = |path: &str| format!("skill://{path}/SKILL.md");
    let entry = |path: &str, name: &str| {
        let file = file(path);
        let help = format!("skill://{path}/docs/help.md");
        json!({
            "uri": file,
            "frontmatter": {
                "name": name,
                "description": "What it is for",
                "metadata": { "link": "skill://left/alone", "n": 1 },
            },
            "resources": [
                { "uri": file, "digest": digest, "size": 118 },
                { "uri": help, "digest": digest, "size": 4 },
            ],
        })
    };
    let path = format!("team/{name}");
    let text = |name: &str| {
        format!(
            "---\nname: {name}\ndescription: What it is for\nmetadata:\n  link: skill://left/alone\n  n: 1\n---\n\nDo it.\n"
        )
    };
    let complete = |mut members: Value| {
        members["resultType"] = json!("complete");
        members["ttlMs"] = json!(1000);
        members["cacheScope"] = json!("public");
        members
    };
    let read = |path: &str, name: &str| {
        let content = json!({ "uri": file(path), "mimeType": "text/markdown", "text": text(name) });
        complete(json!({ "contents": [content] }))
    };
    let listed = json!({
        "uri": file(&path),
        "name": name,
        "description": "What it is for",
        "mimeType": "text/markdown",
    });
    let docs = format!("skill://{path}/docs");
    let docs = json!({ "uri": docs, "name": "docs", "mimeType": "inode/directory" });
    let children = json!({ "resultType": "complete", "resources": [listed, docs] });
    let refused = json!({ "error": { "code": -32602 } });
    json!({
        "capabilities": {
            "resources": {},
            "extensions": { SKILLS: { "directoryRead": true } },
        },
        "methods": {
            "skills/list": complete(json!({ "skills": [entry(&path, name)] })),
            (format!("skills/get {}", file(&path))): complete(json!({ "skill": entry(&path, name) })),
            "skills/get skill://hidden/SKILL.md": complete(json!({ "skill": entry("hidden", "hidden") })),
            "skills/get *": refused,
            "resources/list": complete(json!({ "resources": [listed] })),
            (format!("resources/read {}", file(&path))): read(&path, name),
            "resources/read skill://hidden/SKILL.md": read("hidden", "hidden"),
            (format!("resources/directory/read skill://{path}")): children,
            "resources/directory/read *": refused,
        },
    })
}

#[tokio::test]
async fn skills_of_all_servers_are_one_list() {
    let setup = answering(Setup::new(), "one", "modern", &skills("refunds"));
    let setup = answering(setup, "two", "modern", &skills("refunds"));
    let gateway = setup.scripted("three", &[]).connected().await;
    let mut peer = gateway.modern().await;
    let listed = list(&mut peer, "skills/list", "skills").await;
    let original = skills("refunds")["methods"]["skills/list"]["skills"][0].clone();
    for (server, entry) in ["one", "two"].into_iter().zip(&listed) {
        let exposed = |uri: &Value| {
            let uri = uri.as_str().unwrap();
            json!(uri.replace("skill://", &format!("skill://{server}/")))
        };
        let mut expected = original.clone();
        expected["uri"] = exposed(&original["uri"]);
        for at in 0..2 {
            expected["resources"][at]["uri"] = exposed(&original["resources"][at]["uri"]);
        }
        assert_eq!(*entry, expected);
        let uri = &entry["uri"];
        let got = peer.request("skills/get", json!({ "uri": uri })).await;
        assert_eq!(got.result()["skill"], *entry);
        let uri = uri.as_str().unwrap();
        assert_eq!(resource(&mut peer, uri).await["uri"], uri);
        let root = uri.strip_suffix("/SKILL.md").unwrap();
        let params = json!({ "uri": root });
        let children = peer.request("resources/directory/read", params).await;
        let children = &children.result()["resources"];
        assert_eq!(children[0]["uri"], uri);
        assert_eq!(children[1]["uri"], format!("{root}/docs"));
        // This skill is not listed.
        let hidden = format!("skill://{server}/hidden/SKILL.md");
        let got = peer.request("skills/get", json!({ "uri": hidden })).await;
        assert_eq!(got.result()["skill"]["uri"], hidden);
        assert_eq!(resource(&mut peer, &hidden).await["uri"], hidden);
    }
    assert_eq!(listed.len(), 2);
    let missing = json!({ "uri": "skill://one/nothing/SKILL.md" });
    for method in ["skills/get", "resources/directory/read"] {
        let outcome = peer.request(method, missing.clone()).await;
        assert_eq!(outcome.response["error"]["code"], -32602, "{method}");
    }
    let found = capabilities(&gateway, "/mcp", MODERN).await;
    let read = json!({ "directoryRead": true });
    assert_eq!(found["extensions"][SKILLS], read);
    // Extensions exist from 2026-07-28 on.
    let found = capabilities(&gateway, "/mcp", LEGACY).await;
    assert_eq!(found.get("extensions"), None, "{found}");
    let mut legacy = gateway.legacy().await;
    let outcome = legacy.request("skills/list", json!({})).await;
    assert_eq!(outcome.response["error"]["code"], -32601);
}

#[tokio::test]
async fn skills_conform() {
    let setup = answering(Setup::new(), "one", "modern", &skills("refunds"));
    let setup = answering(setup, "two", "modern", &skills("returns"));
    let gateway = setup.connected().await;
    let all = format!("{}/mcp", gateway.url);
    let single = format!("{}/mcp/-/one", gateway.url);
    for url in [all, single] {
        for (scenario, passes) in [
            ("sep-2640-skills-enumeration", 25),
            ("sep-2640-skills-manifest", 5),
            ("sep-2640-skills-directory", 6),
        ] {
            let summary = conformance::run_scenario(scenario, MODERN, &url).await;
            let complaints = summary.complaints.join("\n");
            assert!(complaints.is_empty(), "{url}:\n{complaints}");
            let counts = summary.total;
            assert!(counts.passed >= passes, "{url} {scenario}: {counts:?}");
            assert_eq!(counts.skipped, 0, "{url} {scenario}: {counts:?}");
        }
    }
}
