//! Third-party servers, all behind one gateway.
//!
//! `cargo xtask setup` installs them under `.work`; if one is missing, the test fails and names that command. No
//! network is used: the web page and the repository are created here.

mod common;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use common::{
    Gateway, LEGACY, Setup, checks, names,
    real::{EVERYTHING, everything_at, npm, python, said},
    steps::{completions, resource},
    tools, with,
};
use serde_json::{Value, json};
use testkit::{Outcome, Peer, Site, peer::MODERN};

/// Creates a repository with one commit.
fn repository(folder: &Path) -> PathBuf {
    let repository = folder.join("repository");
    std::fs::create_dir(&repository).expect("a new folder");
    std::fs::write(repository.join("tracked.txt"), "one\n").expect("a new file");
    for arguments in [
        &["init", "--quiet", "--initial-branch=main"][..],
        &["add", "tracked.txt"],
        &["commit", "--quiet", "--message=the first commit"],
    ] {
        let status = Command::new("git")
            .current_dir(&repository)
            .args(["-c", "user.name=Test", "-c", "user.email=test@example.com"])
            .args(arguments)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null")
            .status()
            .expect("git is installed");
        assert!(status.success(), "git {arguments:?}");
    }
    repository
}

const PAGE: &str =
    "<html><body><h1>Soup</h1><p>Boil the water, then add the salt.</p></body></html>";

struct World {
    gateway: Gateway,
    files: PathBuf,
    repository: PathBuf,
    site: Site,
}

/// The servers, with the minimum number of tools of each.
const SERVERS: [(&str, usize); 6] = [
    ("everything", 10),
    ("files", 14),
    ("memory", 9),
    ("time", 2),
    ("fetch", 1),
    ("git", 12),
];

async fn world() -> World {
    let setup = Setup::new();
    let folder = setup.folder().canonicalize().expect("the folder is there");
    let files = folder.join("files");
    std::fs::create_dir(&files).expect("a new folder");
    std::fs::write(files.join("hello.txt"), "hello from a file").expect("a new file");
    let repository = repository(&folder);
    let site = Site::new(PAGE).await;
    let mut memory = npm("server-memory/dist/index.js", &[]);
    memory["env"] = json!({ "MEMORY_FILE_PATH": folder.join("memory.jsonl") });
    let text = |path: &Path| path.display().to_string();
    let filesystem = npm("server-filesystem/dist/index.js", &[&text(&files)]);
    let official = |name: &str, option: &str| python(&format!("mcp-server-{name}"), &[option]);
    let git = format!("--repository={}", text(&repository));
    let sqlite = format!("--db-path={}", text(&folder.join("db")));
    let gateway = setup
        .server("everything", npm(EVERYTHING, &[]))
        .server("files", filesystem)
        .server("memory", memory)
        .server("time", official("time", "--local-timezone=Europe/Paris"))
        .server("fetch", official("fetch", "--allow-private-ips"))
        .server("git", official("git", &git))
        // This server crashes at startup with any path. With this one it leaves no file behind.
        .server("sqlite", official("sqlite", &sqlite))
        .serve()
        .await;
    for (server, _) in SERVERS {
        gateway.up(server).await;
    }
    World {
        gateway,
        files,
        repository,
        site,
    }
}

/// Clients of both eras list all servers' tools, and make at least one call to each server. The server that crashes is
/// down with its reason and affects no other.
#[tokio::test]
async fn real_servers_in_one_gateway() {
    let world = world().await;
    for mut peer in [world.gateway.legacy().await, world.gateway.modern().await] {
        lists(&mut peer).await;
        files(&mut peer, &world.files).await;
        memory(&mut peer).await;
        time(&mut peer).await;
        fetch(&mut peer, &world.site).await;
        git(&mut peer, &world.repository).await;
        everything(&mut peer).await;
    }
    let line = world.gateway.logged("server=sqlite").await;
    let is_down = line.contains("not connected") || line.contains("stderr");
    assert!(is_down, "{line}");
    let up = world.gateway.metric("server_up", Some("sqlite")).await;
    assert_eq!(up, Some(0));
    let one = world.gateway.at("/mcp/-/sqlite");
    let mut peer = Peer::http(one, MODERN, json!({})).await;
    let outcome = peer.tool("list_tables", json!({})).await;
    let error = &outcome.response["error"];
    assert_eq!(error["data"]["reason"], "server_unavailable", "{outcome:?}");
    checks::contains(&error["message"], &["`sqlite`", "exit"]);
}

async fn lists(peer: &mut Peer) {
    let listed = peer.request("tools/list", json!({})).await;
    let listed = listed.result()["tools"].as_array().expect("a list");
    for (server, least) in SERVERS {
        let of = |tool: &&Value| tool["_meta"]["dev.toolwharf/server"] == server;
        let count = listed.iter().filter(of).count();
        assert!(count >= least, "{server}: {count} tools");
    }
    let mut all = tools(peer).await;
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count, "names are unique");
}

async fn files(peer: &mut Peer, folder: &Path) {
    let path = folder.join("hello.txt");
    let read = peer.tool("read_text_file", json!({ "path": path })).await;
    assert_eq!(said(read.result()), "hello from a file");
    let new = folder.join("new.txt");
    let arguments = json!({ "path": new, "content": "written through the gateway" });
    let written = peer.tool("write_file", arguments).await;
    assert_ne!(written.result()["isError"], true, "{written:?}");
    let text = std::fs::read_to_string(&new).expect("it was written");
    assert_eq!(text, "written through the gateway");
    let outside = json!({ "path": "/etc/hostname" });
    let outside = peer.tool("read_text_file", outside).await;
    assert_eq!(outside.result()["isError"], true, "{outside:?}");
}

async fn memory(peer: &mut Peer) {
    let name = format!("entity of a modern client: {}", peer.is_modern());
    let entity = json!({ "name": name, "entityType": "test", "observations": ["it was here"] });
    let entities = json!({ "entities": [entity] });
    peer.tool("create_entities", entities).await;
    let graph = peer.tool("read_graph", json!({})).await;
    checks::contains(&graph.result()["structuredContent"]["entities"], &[&name]);
}

async fn time(peer: &mut Peer) {
    let arguments = json!({
        "source_timezone": "Europe/Paris",
        "time": "12:00",
        "target_timezone": "Asia/Tokyo",
    });
    let converted = peer.tool("convert_time", arguments).await;
    checks::contains(said(converted.result()), &["Asia/Tokyo"]);
}

async fn fetch(peer: &mut Peer, site: &Site) {
    let page = peer.tool("fetch", json!({ "url": site.at("/soup") })).await;
    checks::contains(said(page.result()), &["add the salt"]);
    let closed = json!({ "url": site.at("/private/soup") });
    let closed = peer.tool("fetch", closed).await;
    checks::contains(closed.response, &["robots.txt"]);
}

async fn git(peer: &mut Peer, repository: &Path) {
    for (tool, part) in [("git_log", "the first commit"), ("git_status", "main")] {
        let told = peer.tool(tool, json!({ "repo_path": repository })).await;
        checks::contains(said(told.result()), &[part]);
    }
}

/// Uses everything that server-everything offers.
async fn everything(peer: &mut Peer) {
    let echo = peer.tool("echo", json!({ "message": "héllo" })).await;
    assert_eq!(said(echo.result()), "Echo: héllo");
    let sum = peer.tool("get-sum", json!({ "a": 2, "b": 40 })).await;
    checks::contains(said(sum.result()), &["42"]);
    let arguments = json!({ "location": "New York" });
    let weather = peer.tool("get-structured-content", arguments).await;
    let degrees = &weather.result()["structuredContent"]["temperature"];
    assert!(degrees.is_number(), "{weather:?}");
    let image = peer.tool("get-tiny-image", json!({})).await;
    let mut content = image.result()["content"]
        .as_array()
        .expect("content")
        .iter();
    assert!(content.any(|item| item["type"] == "image"), "{image:?}");

    for uri in names(peer, "resources/list", "resources", "uri").await {
        // The list includes the resources of other servers, if there are any.
        assert!(uri.starts_with("resource://"), "{uri}");
        assert_eq!(resource(peer, &uri).await["uri"], uri);
    }
    let arguments = json!({ "resourceType": "Text", "resourceId": 1 });
    let reference = peer.tool("get-resource-reference", arguments).await;
    let content = reference.result()["content"].as_array().expect("content");
    let found = content.iter().find(|item| item["type"] == "resource");
    let uri = found.and_then(|item| item["resource"]["uri"].as_str());
    let uri = uri.unwrap_or_else(|| panic!("{reference:?}"));
    assert!(uri.starts_with("resource://everything/"), "{uri}");
    let read = resource(peer, uri).await;
    assert!(read["text"].is_string(), "{read}");

    let prompts = names(peer, "prompts/list", "prompts", "name").await;
    let named = |end: &str| {
        let name = prompts.iter().find(|name| name.ends_with(end));
        name.expect("a prompt")
    };
    let params = json!({ "name": named("simple-prompt") });
    let prompt = peer.request("prompts/get", params).await;
    let text = &prompt.result()["messages"][0]["content"]["text"];
    assert!(text.is_string(), "{prompt:?}");
    let of = json!({ "type": "ref/prompt", "name": named("completable-prompt") });
    let values = completions(peer, of, "department", "E").await;
    assert_eq!(values, json!(["Engineering"]));
}

/// The requests to the client, without `roots/list`, which the server sends by itself at any time.
fn of_calls(outcome: &Outcome) -> Vec<&str> {
    let asked = outcome.asked.iter().map(String::as_str);
    asked.filter(|method| *method != "roots/list").collect()
}

/// A gateway with server-everything, with these options.
async fn gateway(options: Value) -> Gateway {
    let entry = with(npm(EVERYTHING, &[]), options);
    let setup = Setup::new().server("everything", entry);
    setup.connected().await
}

/// Tools that ask the client appear for clients that can answer: every session gets a separate instance.
#[tokio::test]
async fn real_servers_ask_their_client() {
    let gateway = gateway(json!({ "sharing": "session" })).await;
    let mut peer = gateway.legacy().await;
    let arguments = json!({ "prompt": "Say something", "maxTokens": 20 });
    let sampled = peer.tool("trigger-sampling-request", arguments).await;
    assert_eq!(of_calls(&sampled), ["sampling/createMessage"]);
    checks::contains(said(sampled.result()), &["An answer"]);
    let elicited = peer.tool("trigger-elicitation-request", json!({})).await;
    assert_eq!(of_calls(&elicited), ["elicitation/create"]);
    checks::contains(said(elicited.result()), &["Alice"]);
}

/// A session with a separate instance lists the same tools as a direct client: fewer tools for a client with fewer
/// capabilities.
#[tokio::test]
async fn real_servers_list_what_their_client_can_use() {
    let gateway = gateway(json!({ "sharing": "session" })).await;
    let mut plain = Peer::http(gateway.client(), LEGACY, json!({})).await;
    let few = tools(&mut plain).await;
    assert_eq!(few.len(), 13, "{few:?}");
    let mut able = gateway.legacy().await;
    let more = tools(&mut able).await;
    assert!(more.len() > few.len(), "{more:?}");
    assert!(more.iter().any(|name| name == "trigger-sampling-request"));
    assert!(few.iter().all(|name| more.contains(name)), "{few:?}");
    // Every listed tool can be called.
    let echo = plain.tool("echo", json!({ "message": "hello" })).await;
    assert_eq!(said(echo.result()), "Echo: hello");
}

/// A shared instance lists everything, since some client can use it. A client without the capability gets an error that
/// says so.
#[tokio::test]
async fn real_servers_say_what_their_client_lacks() {
    let gateway = gateway(json!({})).await;
    for version in [LEGACY, MODERN] {
        let mut peer = Peer::http(gateway.client(), version, json!({})).await;
        for (tool, capability) in [
            ("trigger-sampling-request", "sampling"),
            ("trigger-elicitation-request", "elicitation"),
        ] {
            let outcome = peer.tool(tool, json!({ "prompt": "Say something" })).await;
            assert!(outcome.asked.is_empty(), "{outcome:?}");
            let capability = format!("`{capability}`");
            checks::contains(outcome.response, &[tool, "`everything`", &capability]);
        }
    }
}

/// server-everything works over stdio, from command and arguments, with its own environment variables.
#[tokio::test]
async fn p03_real_servers_over_stdio() {
    let mut entry = npm(EVERYTHING, &["stdio"]);
    entry["env"] = json!({ "ONLY_FOR_IT": "yes" });
    let setup = Setup::new().env("OF_THE_HOST", "secret");
    let gateway = setup.server("everything", entry).connected().await;
    for mut peer in [gateway.legacy().await, gateway.modern().await] {
        everything(&mut peer).await;
        let env = peer.tool("get-env", json!({})).await;
        let env = said(env.result());
        checks::contains(&env, &["ONLY_FOR_IT"]);
        checks::lacks(&env, &["OF_THE_HOST"]);
    }
}

/// server-everything works over HTTP+SSE and streamable HTTP. With the type `http`, the gateway detects the transport.
#[tokio::test]
async fn p06_real_servers_over_sse_and_http() {
    for (transport, path, kind) in [
        ("sse", "/sse", "sse"),
        ("sse", "/sse", "http"),
        ("streamableHttp", "/mcp", "http"),
    ] {
        let (_server, url) = everything_at(transport, path).await;
        let entry = json!({ "type": kind, "url": url, "headers": { "X-Test": "1" } });
        let gateway = Setup::new().server("everything", entry).connected().await;
        for mut peer in [gateway.legacy().await, gateway.modern().await] {
            everything(&mut peer).await;
        }
    }
}
