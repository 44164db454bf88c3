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
    Gateway, LEGACY, Setup, names,
    real::{EVERYTHING, everything_at, npm, python, said},
    tools, with,
};
use serde_json::{Value, json};
use testkit::{
    Outcome, Peer, Site,
    peer::{MODERN, all_capabilities},
};

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

const SERVERS: [&str; 6] = ["everything", "files", "memory", "time", "fetch", "git"];

async fn world() -> World {
    let setup = Setup::new();
    let folder = setup.folder().canonicalize().expect("the folder is there");
    let files = folder.join("files");
    std::fs::create_dir(&files).expect("a new folder");
    std::fs::write(files.join("hello.txt"), "hello from a file").expect("a new file");
    let repository = repository(&folder);
    let site = Site::new(PAGE).await;
    let memory = {
        let mut entry = npm("server-memory/dist/index.js", &[]);
        entry["env"] = json!({ "MEMORY_FILE_PATH": folder.join("memory.jsonl") });
        entry
    };
    // The server crashes at startup wherever its file is. With this path it leaves no file behind.
    let sqlite = python(
        "mcp-server-sqlite",
        &["--db-path", &folder.join("db").display().to_string()],
    );
    let gateway = setup
        .server("everything", npm(EVERYTHING, &[]))
        .server(
            "files",
            npm(
                "server-filesystem/dist/index.js",
                &[&files.display().to_string()],
            ),
        )
        .server("memory", memory)
        .server(
            "time",
            python("mcp-server-time", &["--local-timezone", "Europe/Paris"]),
        )
        .server(
            "fetch",
            python("mcp-server-fetch", &["--allow-private-ips"]),
        )
        .server(
            "git",
            python(
                "mcp-server-git",
                &["--repository", &repository.display().to_string()],
            ),
        )
        .server("sqlite", sqlite)
        .serve()
        .await;
    for server in SERVERS {
        gateway.up(server).await;
    }
    World {
        gateway,
        files,
        repository,
        site,
    }
}

/// One list of all servers and at least one call to each, from clients of both eras. The server that crashes is down
/// with its reason and affects no other.
#[tokio::test]
async fn real_servers_in_one_gateway() {
    let world = world().await;
    for modern in [false, true] {
        let mut peer = if modern {
            world.gateway.modern().await
        } else {
            world.gateway.legacy().await
        };
        lists(&mut peer).await;
        files(&mut peer, &world.files).await;
        memory(&mut peer, modern).await;
        time(&mut peer).await;
        fetch(&mut peer, &world.site).await;
        git(&mut peer, &world.repository).await;
        everything(&mut peer, "").await;
    }
    let line = world.gateway.logged("server=sqlite").await;
    assert!(
        line.contains("not connected") || line.contains("stderr"),
        "{line}"
    );
    assert_eq!(
        world.gateway.metric("server_up", Some("sqlite")).await,
        Some(0)
    );
    let one = world.gateway.at("/mcp/-/sqlite");
    let mut peer = Peer::http(one, MODERN, json!({})).await;
    let outcome = peer.tool("list_tables", json!({})).await;
    let error = &outcome.response["error"];
    assert_eq!(error["data"]["reason"], "server_unavailable", "{outcome:?}");
    let message = error["message"].as_str().expect("a message");
    assert!(
        message.contains("`sqlite`") && message.contains("exit"),
        "{message}"
    );
}

async fn lists(peer: &mut Peer) {
    let listed = peer.request("tools/list", json!({})).await;
    let listed = listed.result()["tools"].as_array().expect("a list");
    for server in SERVERS {
        let of = |tool: &&Value| tool["_meta"]["dev.toolwharf/server"] == server;
        let count = listed.iter().filter(of).count();
        let least = match server {
            "everything" => 10,
            "files" => 14,
            "memory" => 9,
            "time" => 2,
            "fetch" => 1,
            _ => 12,
        };
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
    let outside = peer
        .tool("read_text_file", json!({ "path": "/etc/hostname" }))
        .await;
    assert_eq!(outside.result()["isError"], true, "{outside:?}");
}

async fn memory(peer: &mut Peer, modern: bool) {
    let name = format!("entity of a modern client: {modern}");
    let entity = json!({ "name": name, "entityType": "test", "observations": ["it was here"] });
    peer.tool("create_entities", json!({ "entities": [entity] }))
        .await;
    let graph = peer.tool("read_graph", json!({})).await;
    let entities = graph.result()["structuredContent"]["entities"].to_string();
    assert!(entities.contains(&name), "{graph:?}");
}

async fn time(peer: &mut Peer) {
    let arguments = json!({
        "source_timezone": "Europe/Paris",
        "time": "12:00",
        "target_timezone": "Asia/Tokyo",
    });
    let converted = peer.tool("convert_time", arguments).await;
    assert!(
        said(converted.result()).contains("Asia/Tokyo"),
        "{converted:?}"
    );
}

async fn fetch(peer: &mut Peer, site: &Site) {
    let page = peer.tool("fetch", json!({ "url": site.at("/soup") })).await;
    assert!(said(page.result()).contains("add the salt"), "{page:?}");
    let closed = peer
        .tool("fetch", json!({ "url": site.at("/private/soup") }))
        .await;
    let text = closed.response.to_string();
    assert!(text.contains("robots.txt"), "{text}");
}

async fn git(peer: &mut Peer, repository: &Path) {
    let log = peer
        .tool("git_log", json!({ "repo_path": repository }))
        .await;
    assert!(said(log.result()).contains("the first commit"), "{log:?}");
    let status = peer
        .tool("git_status", json!({ "repo_path": repository }))
        .await;
    assert!(said(status.result()).contains("main"), "{status:?}");
}

/// Everything that server-everything offers. Its names begin with `prefix` here.
async fn everything(peer: &mut Peer, prefix: &str) {
    let tool = |name: &str| format!("{prefix}{name}");
    let echo = peer
        .tool(&tool("echo"), json!({ "message": "héllo" }))
        .await;
    assert_eq!(said(echo.result()), "Echo: héllo");
    let sum = peer
        .tool(&tool("get-sum"), json!({ "a": 2, "b": 40 }))
        .await;
    assert!(said(sum.result()).contains("42"), "{sum:?}");
    let arguments = json!({ "location": "New York" });
    let weather = peer.tool(&tool("get-structured-content"), arguments).await;
    assert!(
        weather.result()["structuredContent"]["temperature"].is_number(),
        "{weather:?}"
    );
    let image = peer.tool(&tool("get-tiny-image"), json!({})).await;
    let content = image.result()["content"].as_array().expect("content");
    assert!(
        content.iter().any(|item| item["type"] == "image"),
        "{image:?}"
    );

    for uri in names(peer, "resources/list", "resources", "uri").await {
        // Includes resources of other servers, if there are any.
        assert!(uri.starts_with("resource://"), "{uri}");
        let read = peer.request("resources/read", json!({ "uri": uri })).await;
        assert_eq!(read.result()["contents"][0]["uri"], uri);
    }
    let arguments = json!({ "resourceType": "Text", "resourceId": 1 });
    let reference = peer.tool(&tool("get-resource-reference"), arguments).await;
    let content = reference.result()["content"].as_array().expect("content");
    let resource = content.iter().find(|item| item["type"] == "resource");
    let uri = resource.and_then(|item| item["resource"]["uri"].as_str());
    let uri = uri.unwrap_or_else(|| panic!("{reference:?}")).to_owned();
    assert!(uri.starts_with("resource://everything/"), "{uri}");
    let read = peer.request("resources/read", json!({ "uri": uri })).await;
    assert!(read.result()["contents"][0]["text"].is_string(), "{read:?}");

    let prompts = names(peer, "prompts/list", "prompts", "name").await;
    let simple = prompts
        .iter()
        .find(|name| name.ends_with("simple-prompt"))
        .expect("a prompt");
    let prompt = peer.request("prompts/get", json!({ "name": simple })).await;
    assert!(
        prompt.result()["messages"][0]["content"]["text"].is_string(),
        "{prompt:?}"
    );
    let completable = prompts
        .iter()
        .find(|name| name.ends_with("completable-prompt"));
    let params = json!({
        "ref": { "type": "ref/prompt", "name": completable.expect("a prompt") },
        "argument": { "name": "department", "value": "E" },
    });
    let completed = peer.request("completion/complete", params).await;
    let values = &completed.result()["completion"]["values"];
    assert_eq!(values, &json!(["Engineering"]), "{completed:?}");
}

/// The requests to the client, without `roots/list`, which the server sends by itself at any time.
fn of_calls(outcome: &Outcome) -> impl Iterator<Item = &str> {
    let asked = outcome.asked.iter().map(String::as_str);
    asked.filter(|method| *method != "roots/list")
}

/// Tools that ask the client appear for clients that can answer: every session gets a separate instance.
#[tokio::test]
async fn real_servers_ask_their_client() {
    let entry = with(npm(EVERYTHING, &[]), json!({ "sharing": "session" }));
    let gateway = Setup::new().server("everything", entry).serve().await;
    gateway.up("everything").await;
    let mut peer = gateway.legacy().await;
    let arguments = json!({ "prompt": "Say something", "maxTokens": 20 });
    let sampled = peer.tool("trigger-sampling-request", arguments).await;
    assert!(
        of_calls(&sampled).eq(["sampling/createMessage"]),
        "{sampled:?}"
    );
    assert!(said(sampled.result()).contains("An answer"), "{sampled:?}");
    let elicited = peer.tool("trigger-elicitation-request", json!({})).await;
    assert!(
        of_calls(&elicited).eq(["elicitation/create"]),
        "{elicited:?}"
    );
    assert!(said(elicited.result()).contains("Alice"), "{elicited:?}");
}

/// A session with a separate instance lists the same tools as a direct client: fewer tools for a client with fewer
/// capabilities.
#[tokio::test]
async fn real_servers_list_what_their_client_can_use() {
    let entry = with(npm(EVERYTHING, &[]), json!({ "sharing": "session" }));
    let gateway = Setup::new().server("everything", entry).serve().await;
    gateway.up("everything").await;
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
    let gateway = Setup::new()
        .server("everything", npm(EVERYTHING, &[]))
        .serve()
        .await;
    gateway.up("everything").await;
    for version in [LEGACY, MODERN] {
        let mut peer = Peer::http(gateway.client(), version, json!({})).await;
        for (tool, capability) in [
            ("trigger-sampling-request", "sampling"),
            ("trigger-elicitation-request", "elicitation"),
        ] {
            let outcome = peer.tool(tool, json!({ "prompt": "Say something" })).await;
            assert!(outcome.asked.is_empty(), "{outcome:?}");
            let text = outcome.response.to_string();
            for part in [tool, "`everything`", &format!("`{capability}`")] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    }
}

/// Over stdio, from command and arguments, with its own environment variables.
#[tokio::test]
async fn p03_real_servers_over_stdio() {
    let mut entry = npm(EVERYTHING, &["stdio"]);
    entry["env"] = json!({ "ONLY_FOR_IT": "yes" });
    let gateway = Setup::new()
        .env("OF_THE_HOST", "secret")
        .server("everything", entry)
        .serve()
        .await;
    gateway.up("everything").await;
    for mut peer in [gateway.legacy().await, gateway.modern().await] {
        everything(&mut peer, "").await;
        let env = peer.tool("get-env", json!({})).await;
        let env = said(env.result());
        assert!(
            env.contains("ONLY_FOR_IT") && !env.contains("OF_THE_HOST"),
            "{env}"
        );
    }
}

/// Over HTTP+SSE and streamable HTTP. With type `http`, the transport is detected.
#[tokio::test]
async fn p06_real_servers_over_sse_and_http() {
    for (transport, path, kind) in [
        ("sse", "/sse", "sse"),
        ("sse", "/sse", "http"),
        ("streamableHttp", "/mcp", "http"),
    ] {
        let (_server, url) = everything_at(transport, path).await;
        let entry = json!({ "type": kind, "url": url, "headers": { "X-Test": "1" } });
        let gateway = Setup::new().server("everything", entry).serve().await;
        gateway.up("everything").await;
        for mut peer in [
            Peer::http(gateway.client(), LEGACY, all_capabilities()).await,
            Peer::http(gateway.client(), MODERN, all_capabilities()).await,
        ] {
            everything(&mut peer, "").await;
        }
    }
}
