//! Servers that are dead, hang or start slowly neither delay nor empty the lists of other servers.

mod common;

use std::time::Duration;

use common::{
    Gateway, LEGACY, Setup, checks, cli, echo, names, real::official_clients, rpc::initialize,
    scripted, tools, with,
};
use serde_json::{Value, json};
use testkit::{DEADLINE, Peer, at_once, peer, wait_for, within};
use tokio::time::Instant;

/// The entry of a server with this number of tools, a prompt and a resource.
fn plain(name: &str, count: &str) -> Value {
    let one = ["--no-builtin", "--prompts", "1", "--resources", "1"];
    scripted(name, &[&one[..], &["--tools", count]].concat())
}

async fn prompts(peer: &mut Peer) -> Vec<String> {
    names(peer, "prompts/list", "prompts", "name").await
}

async fn resources(peer: &mut Peer) -> Vec<String> {
    names(peer, "resources/list", "resources", "name").await
}

/// A client of the view of one server.
async fn single(gateway: &Gateway, server: &str) -> Peer {
    let client = gateway.at(&format!("/mcp/-/{server}"));
    Peer::http(client, LEGACY, json!({})).await
}

async fn everything_of_the_good_one(gateway: &Gateway) {
    let start = Instant::now();
    for version in [LEGACY, peer::MODERN] {
        let mut peer = Peer::http(gateway.client(), version, json!({})).await;
        at_once("the handshake", start);
        echo(&mut peer, "tool_1", 1).await;
        assert_eq!(tools(&mut peer).await, ["tool_0", "tool_1"]);
        assert_eq!(prompts(&mut peer).await, ["prompt_0"]);
        assert_eq!(resources(&mut peer).await, ["resource_0"]);
        let method = "resources/templates/list";
        let templates = names(&mut peer, method, "resourceTemplates", "name").await;
        assert!(templates.is_empty(), "{templates:?}");
    }
    at_once("one of the requests", start);
}

#[tokio::test]
async fn dead_servers_neither_delay_nor_empty_the_lists() {
    let sse = json!({"type": "sse", "url": "http://127.0.0.1:9/sse"});
    let chatty = json!({"command": "echo", "args": ["Usage: chatty [--help]"]});
    let gateway = Setup::new()
        .server("missing", json!({"command": "/no/such/program"}))
        .scripted("exits", &["--exit-at-start"])
        .scripted("discover", &["--era", "modern", "--exit-on-discover"])
        .server("refused", json!({"url": "http://127.0.0.1:9/mcp"}))
        .server("sse", sse)
        .server("silent", json!({"command": "true"}))
        .server("chatty", chatty)
        .server("good", plain("good", "2"))
        .serve()
        .await;
    everything_of_the_good_one(&gateway).await;
    // The log explains what is wrong with each dead server.
    let says = [
        "did not start: ",
        "cannot be started as configured: ",
        "it crashed: ",
    ];
    for server in [
        "missing", "exits", "discover", "refused", "sse", "silent", "chatty",
    ] {
        let field = format!("server={server}");
        wait_for(&format!("a log line on {server}"), DEADLINE, async || {
            let stderr = gateway.process.stderr();
            let mut lines = stderr.lines().filter(|line| line.contains(&field));
            lines.any(|line| says.iter().any(|it| line.contains(it)))
        })
        .await;
    }
    everything_of_the_good_one(&gateway).await;
}

/// A server that never answers its handshake does not delay other servers' handshakes, calls, prompts and reads. Only
/// the first list waits for it, briefly.
#[tokio::test]
async fn a_hung_server_neither_delays_nor_empties_the_lists() {
    let hung = scripted("hung", &["--no-answer-initialize"]);
    let gateway = Setup::new()
        .server("hung", with(hung, json!({"startTimeoutMs": 60_000})))
        .server("sleeps", json!({"command": "sleep", "args": ["1000"]}))
        .server("good", plain("good", "2"))
        .serve()
        .await;
    gateway.up("good").await;
    for version in [LEGACY, peer::MODERN] {
        let start = Instant::now();
        let mut peer = Peer::http(gateway.client(), version, json!({})).await;
        echo(&mut peer, "tool_0", 2).await;
        let name = json!({"name": "prompt_0"});
        peer.request("prompts/get", name).await.result();
        let uri = "resource://good/scripted://0";
        let read = peer.request("resources/read", json!({"uri": uri})).await;
        assert_eq!(read.result()["contents"][0]["uri"], uri);
        at_once("one of the requests", start);
    }
    // The first list may wait for a first start, at most ten seconds.
    let mut peer = gateway.legacy().await;
    let listed = within("the first list", Duration::from_secs(12), tools(&mut peer)).await;
    assert_eq!(listed, ["tool_0", "tool_1"]);
    everything_of_the_good_one(&gateway).await;
    let start = Instant::now();
    let mut single = single(&gateway, "good").await;
    assert_eq!(tools(&mut single).await.len(), 2);
    at_once("the list of one server", start);
}

/// Clients get all pages of every list, in order.
#[tokio::test]
async fn all_pages_of_all_lists_are_there() {
    let options = "--no-builtin --tools 57 --prompts 13 --resources 21 --page-size 5";
    let options: Vec<&str> = options.split(' ').collect();
    let gateway = Setup::new().scripted("paged", &options).serve().await;
    for mut peer in [gateway.legacy().await, gateway.modern().await] {
        let expected = |name: &str, count: usize| {
            let names = (0..count).map(|n| format!("{name}_{n}"));
            names.collect::<Vec<_>>()
        };
        assert_eq!(tools(&mut peer).await, expected("tool", 57));
        assert_eq!(prompts(&mut peer).await, expected("prompt", 13));
        assert_eq!(resources(&mut peer).await, expected("resource", 21));
    }
}

/// A server without prompts and resources does not hide those of others.
#[tokio::test]
async fn a_server_without_prompts_hides_no_others() {
    let gateway = Setup::new()
        .scripted("toolsonly", &["--no-builtin", "--tools", "1"])
        .server("good", plain("good", "0"))
        .scripted("also", &["--no-builtin", "--tools", "0"])
        .serve()
        .await;
    for mut peer in [gateway.legacy().await, gateway.modern().await] {
        assert_eq!(prompts(&mut peer).await, ["prompt_0"]);
        assert_eq!(resources(&mut peer).await, ["resource_0"]);
        assert_eq!(tools(&mut peer).await, ["tool_0"]);
        let name = json!({"name": "prompt_0"});
        let got = peer.request("prompts/get", name).await;
        assert_eq!(got.result()["messages"][0]["content"]["text"], "prompt_0");
    }
}

/// A slow list delays no client. The other servers' lists are available at once, the slow list follows, and clients are
/// notified.
#[tokio::test]
async fn a_slow_list_follows_when_it_is_there() {
    let slow = ["--no-builtin", "--tools", "3", "--list-delay-ms", "12000"];
    let gateway = Setup::new()
        .scripted("slow", &slow)
        .scripted("good", &["--no-builtin", "--tools", "1", "--prompts", "1"])
        .settings("naming = \"always-prefix\"\n")
        .serve()
        .await;
    gateway.up("good").await;
    let mut peer = gateway.legacy().await;
    let start = Instant::now();
    echo(&mut peer, "good__tool_0", 1).await;
    at_once("the call", start);
    // The slow list has not arrived yet.
    let first = tools(&mut peer).await;
    assert_eq!(first, ["good__tool_0"]);
    let told = peer
        .notification("notifications/tools/list_changed", Duration::from_secs(10))
        .await;
    assert!(told.is_some(), "the list change was not announced");
    wait_for("the slow one's tools", Duration::from_secs(5), async || {
        tools(&mut peer).await.len() == 4
    })
    .await;
}

/// A list that exceeds the page timeout is requested again, and the known list is kept.
#[tokio::test]
async fn a_list_that_cannot_be_had_leaves_the_known_one() {
    let setup = Setup::new();
    // The server starts quickly the first time, and never returns its lists from the second start on.
    let marker = setup.folder().join("was-there");
    let script = r#"if [ -e "$0" ]; then exec "$1" --no-builtin --tools 2 --list-delay-ms 3600000; fi; touch "$0"; exec "$1" --no-builtin --tools 2"#;
    let entry = json!({"command": "sh", "args": ["-c", script, marker, testkit::Bin::path("testkit-scripted")]});
    let gateway = setup
        .server("odd", entry)
        .scripted("good", &["--no-builtin", "--tools", "0"])
        .connected()
        .await;
    let mut peer = gateway.legacy().await;
    assert_eq!(tools(&mut peer).await, ["tool_0", "tool_1"]);
    let crashed = single(&gateway, "odd").await.tool("crash", json!({})).await;
    assert!(crashed.response.get("error").is_some(), "{crashed:?}");
    // Its calls work as soon as it is running, whatever happens to its lists.
    wait_for("the server's return", Duration::from_secs(45), async || {
        assert_eq!(tools(&mut peer).await, ["tool_0", "tool_1"]);
        peer.tool("tool_0", json!({"n": 1})).await.response["result"]["structuredContent"]["n"] == 1
    })
    .await;
    let kept = tools(&mut peer).await;
    assert_eq!(kept, ["tool_0", "tool_1"], "the known list is gone");
}

const LIST_CHANGED_METHODS: [&str; 3] = [
    "notifications/tools/list_changed",
    "notifications/prompts/list_changed",
    "notifications/resources/list_changed",
];

/// Counts the change notifications for each list until the client has received none for a while.
async fn told(peer: &mut Peer) -> [usize; 3] {
    let mut told = [0; 3];
    for (count, method) in told.iter_mut().zip(LIST_CHANGED_METHODS) {
        let a_while = Duration::from_millis(1500);
        while peer.notification(method, a_while).await.is_some() {
            *count += 1;
        }
    }
    told
}

/// Starting many servers one after the other causes one notification per client, and none for lists that stay empty.
#[tokio::test]
async fn a_start_of_many_servers_is_told_once() {
    let mut setup = Setup::new().settings("naming = \"always-prefix\"\n");
    for n in 0..8 {
        let delay = (n * 250).to_string();
        let options = ["--no-builtin", "--tools", "1", "--start-delay-ms", &delay];
        setup = setup.scripted(&format!("s{n}"), &options);
    }
    let gateway = setup.serve().await;
    let mut peer = gateway.legacy().await;
    for n in 0..8 {
        gateway.up(&format!("s{n}")).await;
    }
    assert_eq!(told(&mut peer).await, [1, 0, 0]);
    assert_eq!(tools(&mut peer).await.len(), 8);
    assert_eq!(told(&mut peer).await, [0, 0, 0]);
}

/// A list that did not change is not announced, even if its server says so. A burst of changes is announced once.
#[tokio::test]
async fn list_changes_are_true() {
    let options = ["--tools", "1", "--prompts", "1", "--resources", "1"];
    let gateway = Setup::new()
        .settings("tool_pinning = \"off\"\n")
        .scripted("one", &options)
        .scripted("two", &["--no-builtin", "--tools", "1"])
        .connected()
        .await;
    let mut peers = [gateway.legacy().await, gateway.modern().await];
    for peer in &mut peers {
        peer.subscribe(&[]).await;
        tools(peer).await;
        told(peer).await;
    }
    peers[0].tool("set_tools", json!({"times": 20})).await;
    for peer in &mut peers {
        assert_eq!(told(peer).await, [0, 0, 0]);
    }
    let change = json!({"count": 3, "times": 20});
    peers[0].tool("set_tools", change).await;
    for peer in &mut peers {
        assert_eq!(told(peer).await, [1, 0, 0]);
        assert!(tools(peer).await.contains(&"tool_2".to_owned()));
    }
    // Setting the same definition again is not a change.
    let back = json!({"count": 3, "description": "Returns its arguments"});
    peers[0].tool("set_tools", back).await;
    for peer in &mut peers {
        assert_eq!(told(peer).await, [0, 0, 0]);
    }
}

/// The first `initialize` response contains the instructions of all servers that start quickly. A server without
/// instructions delays no client.
#[tokio::test]
async fn the_first_introduction_has_the_instructions() {
    let says = |text: &'static str, more: &[&'static str]| {
        let mut options = vec!["--no-builtin", "--instructions", text];
        options.extend(more);
        options
    };
    let gateway = Setup::new()
        .scripted("one", &says("Ask me first.", &["--start-delay-ms", "300"]))
        .scripted("two", &says("Ask me last.", &[]))
        .scripted("hung", &["--no-answer-initialize"])
        .serve()
        .await;
    let start = Instant::now();
    let answer = initialize(&gateway.client(), LEGACY).await.response();
    at_once("the introduction", start);
    let both = "## one\n\nAsk me first.\n\n## two\n\nAsk me last.";
    assert_eq!(answer["result"]["instructions"], both, "{answer}");
}

/// Lists everything with an official client and calls the tools of `good`. Arguments: MODULES SDK URL
const TYPESCRIPT: &str = r#"
const [modules, sdk, url] = process.argv.slice(2);
const at = (file) => import(`${modules}/@modelcontextprotocol/${file}`);
const { Client, StreamableHTTPClientTransport } =
  sdk === "v1" ? { ...(await at("sdk/dist/esm/client/index.js")), ...(await at("sdk/dist/esm/client/streamableHttp.js")) } : await at("client/dist/index.mjs");
const options = sdk === "v2 modern" ? { versionNegotiation: { mode: "auto" } } : {};
const client = new Client({ name: "t", version: "1" }, options);
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const tools = (await client.listTools()).tools.map((one) => one.name);
const prompts = (await client.listPrompts()).prompts.map((one) => one.name);
const resources = (await client.listResources()).resources.map((one) => one.uri);
const templates = (await client.listResourceTemplates()).resourceTemplates.length;
const called = [];
for (const name of tools.filter((name) => name.startsWith("tool_")))
  called.push((await client.callTool({ name, arguments: { n: 1 } })).content.length);
console.log(JSON.stringify({ tools, prompts, resources, templates, called }));
process.exit(0);
"#;

/// The same in Python. Arguments: MODE URL
const PYTHON: &str = r#"
import asyncio, json, sys
from mcp import Client

async def main(mode, url):
    async with Client(url, mode=mode) as client:
        tools = [one.name for one in (await client.list_tools()).tools]
        prompts = [one.name for one in (await client.list_prompts()).prompts]
        resources = [str(one.uri) for one in (await client.list_resources()).resources]
        templates = len((await client.list_resource_templates()).resource_templates)
        called = [len((await client.call_tool(name, {"n": 1})).content) for name in tools if name.startswith("tool_")]
        print(json.dumps({"tools": tools, "prompts": prompts, "resources": resources, "templates": templates, "called": called}))

asyncio.run(main(*sys.argv[1:]))
"#;

/// Malformed tools, each with whether it can be offered.
fn malformed() -> Vec<(Value, bool)> {
    let object = || json!({"type": "object"});
    let output = |schema: Value| json!({"inputSchema": object(), "outputSchema": schema});
    let of_property = |schema: Value| json!({"type": "object", "properties": {"a": schema}});
    let mut tools = vec![
        (json!({}), true),
        (json!({"inputSchema": null}), true),
        (json!({"inputSchema": {}}), true),
        (json!({"inputSchema": []}), true),
        (json!({"inputSchema": {"anyOf": [object()]}}), true),
        (
            json!({"inputSchema": {"type": "object", "properties": null, "required": null}}),
            true,
        ),
        (
            json!({"inputSchema": {"type": "object", "properties": {"a": null, "b": true, "c": "string"}}}),
            true,
        ),
        (
            json!({"inputSchema": {"type": "object", "required": "a"}}),
            true,
        ),
        (json!({"inputSchema": {"type": "string"}}), false),
        (json!({"inputSchema": "object"}), false),
        (output(json!(null)), true),
        (output(json!([])), true),
        (output(json!({"type": "array"})), true),
        (output(of_property(json!({"type": "int"}))), true),
        (output(of_property(json!({"$ref": "#/$defs/none"}))), true),
        (output(of_property(json!({"pattern": "["}))), true),
        (output(of_property(json!({"minimum": "1"}))), true),
    ];
    for (member, value) in [
        ("title", json!(null)),
        ("description", json!(7)),
        ("icons", json!(null)),
        ("icons", json!([null, {"mimeType": "image/png"}])),
        ("annotations", json!(null)),
        ("annotations", json!({"readOnlyHint": null, "title": 1})),
        ("execution", json!({"taskSupport": "maybe"})),
        ("_meta", json!(null)),
    ] {
        tools.push((json!({"inputSchema": object(), member: value}), true));
    }
    tools
}

/// The official clients list and call all tools of all other servers while one server lists malformed definitions. What
/// is repaired or left out is shown.
#[tokio::test]
async fn u10_official_clients_list_everything_beside_malformed_definitions() {
    let mut offered: Vec<String> = Vec::new();
    let mut listed = vec![
        json!({"inputSchema": {"type": "object"}}),
        json!({"name": 7}),
        json!("text"),
    ];
    for (at, (mut tool, fits)) in malformed().into_iter().enumerate() {
        let name = format!("bad_{at}");
        tool["name"] = name.as_str().into();
        listed.push(tool);
        offered.extend(fits.then_some(name));
    }
    let answers = json!({
        "capabilities": {"prompts": {}, "resources": {}},
        "methods": {
            "tools/list": {"tools": listed},
            "prompts/list": {"prompts": [{"name": "p", "arguments": null}, {"title": "x"}]},
            "resources/list": {"resources": [{"uri": "a:1", "size": 0.5, "annotations": {"priority": 9}}, null]},
            "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "a:{x}", "title": null}]},
        },
    });
    let setup = Setup::new();
    let folder = setup.folder().to_owned();
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).expect("a new file");
        folder.join(name)
    };
    let answers = write("answers.json", &answers.to_string());
    let (mjs, py) = (write("list.mjs", TYPESCRIPT), write("list.py", PYTHON));
    let answers = answers.display().to_string();
    let gateway = setup
        .scripted("bad", &["--no-builtin", "--answers", &answers])
        .server("good", plain("good", "2"))
        .connected()
        .await;
    offered.extend(["tool_0", "tool_1"].map(str::to_owned));
    let url = format!("{}/mcp", gateway.url);
    for mut client in official_clients(&mjs, &py, &url) {
        client.kill_on_drop(true);
        let said = cli::said(client, "").await.code(0).json();
        assert_eq!(said["tools"], json!(offered));
        assert_eq!(said["prompts"], json!(["p", "prompt_0"]));
        assert_eq!(
            said["resources"].as_array().map(Vec::len),
            Some(2),
            "{said}"
        );
        assert_eq!(said["templates"], 1);
        assert_eq!(said["called"], json!([1, 1]));
    }
    // The view of the server shows what the server sent.
    let mut peer = single(&gateway, "bad").await;
    let sent = peer.request("tools/list", json!({})).await;
    let sent = sent.result()["tools"].as_array().expect("tools").clone();
    assert_eq!(sent.len(), listed.len());
    assert!(listed.iter().all(|tool| sent.contains(tool)));
    // All places that show servers name what is left out.
    let run = async |arguments: &[&str]| {
        let mut command = cli::toolwharf();
        command.args(arguments);
        command.env("TOOLWHARF_URL", &gateway.url);
        command.env("TOOLWHARF_TOKEN", gateway.token());
        let said = cli::said(command, "").await;
        said.out + &said.err
    };
    for arguments in [&["ls"][..], &["get", "bad"], &["doctor"], &["tools", "ls"]] {
        let text = run(arguments).await;
        checks::contains(
            &text,
            &["tool `bad_8` is left out of views of several servers"],
        );
    }
    checks::contains(
        &run(&["get", "bad"]).await,
        &["tool `bad_0` is offered in a repaired form"],
    );
    gateway.logged("tool `bad_8` is left out").await;
}
