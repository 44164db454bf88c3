//! Scenarios G of the acceptance list: lists, names, routing, resources, and changes while clients are connected.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use std::time::Duration;

use common::{
    Gateway, Setup, checks, names, rpc, says, scripted,
    steps::{begin_tool, refused, resource},
    tools, with,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::{DEADLINE, Peer, at_once, within};
use tokio::time::Instant;

/// Time limit for a file change to take effect. Files are checked twice a second.
const MAX_FILE_DELAY: Duration = Duration::from_secs(5);
const TOOLS_CHANGED: &str = "notifications/tools/list_changed";

/// A server whose list contains only `tool_0` …, `count` in total.
fn plain(name: &str, count: &str) -> Value {
    scripted(name, &["--no-builtin", "--tools", count])
}

async fn list(peer: &mut Peer, method: &str, key: &str) -> Vec<Value> {
    let outcome = peer.request(method, json!({})).await;
    outcome.result()[key].as_array().unwrap().clone()
}

#[tokio::test]
async fn g01_one_list_over_all_enabled_servers() {
    let mut off = plain("off", "7");
    off["disabled"] = json!(true);
    let gateway = Setup::new()
        .server("one", scripted("one", &[]))
        .server("two", plain("two", "3"))
        .server("off", off)
        .serve()
        .await;
    for mut peer in [gateway.legacy().await, gateway.modern().await] {
        let listed = list(&mut peer, "tools/list", "tools").await;
        let of = |server: &str| {
            let own = |tool: &&Value| tool["_meta"]["dev.toolwharf/server"] == server;
            let own = listed.iter().filter(own);
            let names = own.map(|tool| tool["name"].as_str().unwrap());
            names.collect::<Vec<_>>()
        };
        let (one, two) = (of("one"), of("two"));
        assert_eq!(two, ["tool_0", "tool_1", "tool_2"]);
        assert!(one.contains(&"echo") && one.contains(&"crash"));
        assert_eq!(one.len() + two.len(), listed.len(), "{listed:?}");
        // The tools are in the order of the file.
        assert_eq!(listed[0]["_meta"]["dev.toolwharf/server"], "one");
        let second = list(&mut peer, "tools/list", "tools").await;
        assert_eq!(listed, second, "the order is not stable");
    }
}

#[tokio::test]
async fn g02_equal_names_are_told_apart() {
    let long = "n".repeat(60);
    let gateway = Setup::new()
        .server("one", plain("one", "2"))
        .server("two", plain("two", "1"))
        .server("with space.and.dots", plain("dotted", "1"))
        .server(&long, plain("long", "1"))
        .connected()
        .await;
    let mut peer = gateway.legacy().await;
    let listed = tools(&mut peer).await;
    // A tool name that only one server has is not prefixed.
    for name in ["tool_1", "one__tool_0", "two__tool_0"] {
        assert!(listed.contains(&name.to_owned()), "{name}: {listed:?}");
    }
    assert_eq!(listed.len(), 5);
    for (at, name) in listed.iter().enumerate() {
        assert!(!listed[..at].contains(name), "{name} is there twice");
        assert!((1..=64).contains(&name.len()), "{name}");
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        assert!(name.bytes().all(allowed), "{name}");
        // Each name routes to its server.
        let answer = peer.tool(name, json!({"called": name})).await;
        assert_eq!(answer.result()["structuredContent"]["called"], *name);
    }
    // The names are the same for later clients.
    let again = tools(&mut gateway.modern().await).await;
    assert_eq!(listed, again);
}

/// The call reaches the server unchanged, and the response reaches the client unchanged.
#[tokio::test]
async fn g03_a_call_is_routed_and_its_answer_unchanged() {
    let gateway = Setup::new()
        .server("one", plain("one", "1"))
        .server("two", plain("two", "1"))
        .scripted("raw", &[])
        .connected()
        .await;
    let mut peer = gateway.legacy().await;
    peer.tool("one__tool_0", json!({})).await;
    let client = rpc::session(gateway.client(), common::LEGACY).await;
    let arguments = r#"{ "z":1, "a" : 12345678901234567890123, "e":1e400,"u":"\u00e9\ud83d\ude00é😀","_meta":{"own":true},"n":null }"#;
    for name in ["one__tool_0", "two__tool_0"] {
        let call = format!(
            r#"{{"jsonrpc":"2.0","id":"x-1","method":"tools/call","params":{{"unknown":[1.0],"name":"{name}","arguments":{arguments}}}}}"#
        );
        let reply = client.post(call).await;
        let text = reply.text();
        assert_eq!(reply.status, 200, "{text}");
        let content = format!("\"structuredContent\":{arguments}");
        checks::contains(text, &[&content, "\"id\":\"x-1\""]);
    }
    // A whole result with unknown members, sent verbatim by the server.
    let result = r#"{"content":[{"type":"image","data":"AAECAw==","mimeType":"image/x","annotations":{"q":0.50}},{"type":"new-kind","x":[{}]}],"_meta":{"a.b/c":1},"structuredContent":{"big":18446744073709551616},"isError":false,"extra":"\u0000"}"#;
    // The gateway's ids count up from the handshake, so one of the next calls has this id.
    let frame = format!(r#"{{"jsonrpc":"2.0","result":{result},"id":60,"also":"unknown"}}"#);
    for _ in 0..60 {
        let call = rpc::call(5, "raw", json!({ "frame": frame }));
        let text = client.post(call).await.text();
        if text.contains("\"extra\"") {
            let result = format!("\"result\":{result}");
            checks::contains(text, &[&result, "\"also\":\"unknown\""]);
            return;
        }
    }
    panic!("no request had this id");
}

#[tokio::test]
async fn g04_an_unknown_tool_is_an_mcp_error() {
    let gateway = Setup::new()
        .server("one", plain("one", "2"))
        .server("two", plain("two", "2"))
        .connected()
        .await;
    for mut peer in [gateway.legacy().await, gateway.modern().await] {
        let answer = refused(&mut peer, "no_such_tool", -32602).await;
        says(&answer, &["no_such_tool"]);
        // If several servers have the tool, the error suggests the prefixed names.
        let answer = peer.tool("tool_1", json!({})).await;
        says(&answer.response, &["one__tool_1", "two__tool_1"]);
        let answer = peer.request("prompts/get", json!({"name": "none"})).await;
        assert_eq!(answer.response["error"]["code"], -32602, "{answer:?}");
    }
}

/// The call fails at once. The error names the server and the reason, and is logged.
#[tokio::test]
async fn g05_a_call_to_a_disconnected_server_fails_at_once() {
    let gateway = Setup::new()
        .server("one", plain("one", "1"))
        .scripted(
            "frail",
            &["--exit-at-start", "--stderr-at-start", "no licence found"],
        )
        .serve()
        .await;
    let mut peer = gateway.legacy().await;
    // The server is known by its path although it has never listed anything.
    let mut single = Peer::http(gateway.at("/mcp/-/frail"), common::LEGACY, json!({})).await;
    let start = Instant::now();
    let answer = single.tool("echo", json!({})).await;
    at_once("the call", start);
    let error = &answer.response["error"];
    let message = error["message"].as_str().unwrap();
    says(&answer.response, &["frail", "unavailable"]);
    let why = message.contains("exit") || message.contains("code 5");
    assert!(why, "{message}");
    // The server's output is for the operator only.
    assert!(!message.contains("no licence"), "{message}");
    assert_eq!(error["data"]["reason"], "server_unavailable");
    gateway.logged("no licence found").await;
    gateway.logged("refused: server `frail`").await;
    assert_eq!(tools(&mut peer).await, ["tool_0"]);
}

/// Lists, reads and update notifications all use `resource://server/…` URIs, which can be read.
#[tokio::test]
async fn g06_resource_uris_find_their_way_back() {
    let gateway = Setup::new()
        .scripted("files", &["--resources", "2"])
        .scripted("notes", &["--resources", "1"])
        .settings("naming = \"always-prefix\"\n")
        .connected()
        .await;
    for mut peer in [gateway.legacy().await, gateway.modern().await] {
        let uris = names(&mut peer, "resources/list", "resources", "uri").await;
        let expected = [
            "resource://files/scripted://0",
            "resource://files/scripted://1",
            "resource://notes/scripted://0",
        ];
        assert_eq!(uris, expected);
        for uri in &uris {
            let contents = resource(&mut peer, uri).await;
            assert_eq!(contents["uri"], **uri);
            // The server received its native URI, byte for byte.
            let native = uri.splitn(4, '/').nth(3).unwrap();
            assert_eq!(contents["text"], native);
        }
        // A URI that was never listed, as a template produces, with every kind of character. (A modern client must
        // repeat it in a header, where testkit's client supports visible ASCII only.)
        let odd = if peer.is_modern() {
            "resource://notes/scripted://a%20b/%2F/../?q=%C3%A4&r=%00#frag/resource://files/x"
        } else {
            "resource://notes/scripted://a b/%2F/../?q=ä&r=%00#frag/resource://files/x"
        };
        let contents = resource(&mut peer, odd).await;
        let native = odd.strip_prefix("resource://notes/").unwrap();
        assert_eq!(contents["text"], native);
        assert_eq!(contents["uri"], odd);
        let unknown = json!({"uri": "resource://nobody/x"});
        let unknown = peer.request("resources/read", unknown).await;
        let code = if peer.is_modern() { -32602 } else { -32002 };
        assert_eq!(unknown.response["error"]["code"], code, "{unknown:?}");
    }
    let mut watcher = gateway.legacy().await;
    watcher.subscribe(&["resource://files/scripted://1"]).await;
    let mut other = gateway.legacy().await;
    for server in ["notes", "files"] {
        let params =
            json!({"method": "notifications/resources/updated", "params": {"uri": "scripted://1"}});
        other.tool(&format!("{server}__notify"), params).await;
    }
    let updated = "notifications/resources/updated";
    let told = watcher.notification(updated, DEADLINE).await.unwrap();
    assert_eq!(told["params"]["uri"], "resource://files/scripted://1");
    // The other server's resource was not subscribed.
    let second = watcher.notification(updated, Duration::from_millis(300));
    assert_eq!(second.await, None);
}

#[tokio::test]
async fn g07_resources_of_all_servers_are_one_list() {
    let mut off = scripted("off", &["--resources", "5"]);
    off["disabled"] = json!(true);
    let gateway = Setup::new()
        .scripted("one", &["--resources", "3", "--page-size", "2"])
        .scripted("none", &[])
        .server("off", off)
        .scripted("two", &["--resources", "2"])
        .serve()
        .await;
    for mut peer in [gateway.legacy().await, gateway.modern().await] {
        let uris = names(&mut peer, "resources/list", "resources", "uri").await;
        assert_eq!(uris.len(), 5, "{uris:?}");
        for (at, uri) in uris.iter().enumerate() {
            let server = if at < 3 { "one" } else { "two" };
            let prefix = format!("resource://{server}/");
            assert!(uri.starts_with(&prefix), "{uris:?}");
        }
        // No server has templates: the result is an empty list, not an error.
        let templates = list(&mut peer, "resources/templates/list", "resourceTemplates").await;
        assert!(templates.is_empty());
    }
}

async fn told(peer: &mut Peer, method: &str) {
    let told = peer.notification(method, MAX_FILE_DELAY).await;
    assert!(told.is_some(), "no notification {method}");
}

/// Discards the notifications received so far.
async fn hush(peers: &mut [Peer]) {
    for peer in peers {
        let limit = Duration::from_millis(200);
        while peer.notification(TOOLS_CHANGED, limit).await.is_some() {}
    }
}

async fn prompts(peer: &mut Peer) -> Vec<String> {
    names(peer, "prompts/list", "prompts", "name").await
}

/// A legacy client with an open stream, and a modern one with a subscription.
async fn listeners(gateway: &Gateway) -> [Peer; 2] {
    let legacy = gateway.legacy().await;
    let mut modern = gateway.modern().await;
    modern.subscribe(&[]).await;
    [legacy, modern]
}

#[tokio::test]
async fn g10_an_enabled_server_is_there_at_once() {
    let mut late = plain("late", "2");
    late["disabled"] = json!(true);
    let mut gateway = Setup::new()
        .server("one", plain("one", "1"))
        .server("late", late)
        .serve()
        .await;
    let mut peers = listeners(&gateway).await;
    for peer in &mut peers {
        assert_eq!(tools(peer).await, ["tool_0"]);
    }
    hush(&mut peers).await;
    gateway.edit(|servers| servers["late"]["disabled"] = json!(false));
    for peer in &mut peers {
        told(peer, TOOLS_CHANGED).await;
    }
    gateway.up("late").await;
    // This server did not exist when the clients connected.
    gateway.edit(|servers| {
        servers.insert(
            "new".to_owned(),
            scripted("new", &["--prompts", "1", "--resources", "1"]),
        );
    });
    gateway.up("new").await;
    for peer in &mut peers {
        told(peer, "notifications/prompts/list_changed").await;
        told(peer, "notifications/resources/list_changed").await;
        let listed = tools(peer).await;
        for name in ["one__tool_0", "late__tool_0", "tool_1", "echo"] {
            assert!(listed.contains(&name.to_owned()), "{name}: {listed:?}");
        }
        let answer = peer.tool("tool_1", json!({"n": 1})).await;
        assert_eq!(answer.result()["structuredContent"]["n"], 1);
        assert_eq!(prompts(peer).await, ["prompt_0"]);
    }
}

#[tokio::test]
async fn g11_a_disabled_server_is_gone_at_once() {
    let mut gateway = Setup::new()
        .server("one", plain("one", "1"))
        .scripted("gone", &["--prompts", "1"])
        .serve()
        .await;
    let mut peers = listeners(&gateway).await;
    let pid = peers[0].tool("pid", json!({})).await;
    let pid: u32 = pid.text().parse().unwrap();
    let starts = gateway.metric("server_starts_total", Some("one")).await;
    hush(&mut peers).await;
    // A call in flight ends with an error and does not hang.
    let hanging = begin_tool(&mut peers[0], "never", json!({})).await;
    gateway.edit(|servers| servers["gone"]["disabled"] = json!(true));
    for peer in &mut peers {
        told(peer, TOOLS_CHANGED).await;
        told(peer, "notifications/prompts/list_changed").await;
        assert_eq!(tools(peer).await, ["tool_0"]);
        refused(peer, "echo", -32602).await;
        assert!(prompts(peer).await.is_empty());
    }
    let ended = peers[0].finish_within(hanging, MAX_FILE_DELAY).await;
    says(&ended.expect("the call in flight ends"), &["gone"]);
    common::gone(&[pid], false, Duration::from_secs(5)).await;
    let since = gateway.metric("server_starts_total", Some("one")).await;
    assert_eq!(starts, since);
    // The servers are removed from the file, and another one is added.
    gateway.edit(|servers| {
        servers.remove("gone");
        servers.remove("one");
        servers.insert("other".to_owned(), plain("other", "2"));
    });
    for peer in &mut peers {
        within("the other server's tools", MAX_FILE_DELAY, async {
            while tools(peer).await != ["tool_0", "tool_1"] {
                peer.notification(TOOLS_CHANGED, Duration::from_millis(100))
                    .await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn g12_a_single_tool_is_switched_without_a_restart() {
    let setup = Setup::new()
        .server("one", plain("one", "3"))
        .scripted("two", &[]);
    let mut gateway = setup.serve().await;
    let mut peers = listeners(&gateway).await;
    let pid = peers[0].tool("pid", json!({})).await.text().to_owned();
    hush(&mut peers).await;
    gateway.edit(|servers| {
        servers["one"]["disabledTools"] = json!(["tool_1"]);
        servers["two"] = with(servers["two"].clone(), json!({"disabledTools": ["crash"]}));
    });
    for peer in &mut peers {
        told(peer, TOOLS_CHANGED).await;
        let listed = tools(peer).await;
        let is_off = |name: &String| name == "tool_1" || name == "crash";
        assert!(!listed.iter().any(is_off), "{listed:?}");
        refused(peer, "tool_1", -32602).await;
        // The server was not restarted.
        assert_eq!(peer.tool("pid", json!({})).await.text(), pid);
    }
    // The server cannot be reached by its own path either.
    let mut single = Peer::http(gateway.at("/mcp/-/two"), common::LEGACY, json!({})).await;
    let answer = single.tool("crash", json!({})).await;
    says(&answer.response, &["crash"]);
    assert_eq!(single.tool("pid", json!({})).await.text(), pid);
    refused(&mut peers[0], "two__crash", -32602).await;
    gateway.edit(|servers| servers["one"] = plain("one", "3"));
    for peer in &mut peers {
        told(peer, TOOLS_CHANGED).await;
        assert!(tools(peer).await.contains(&"tool_1".to_owned()));
    }
}

/// A server's list change is forwarded to the clients.
#[tokio::test]
async fn g10_a_servers_own_change_reaches_the_clients() {
    let gateway = Setup::new()
        .scripted("one", &["--tools", "1"])
        .connected()
        .await;
    let mut peers = listeners(&gateway).await;
    for peer in &mut peers {
        assert!(tools(peer).await.contains(&"tool_0".to_owned()));
    }
    hush(&mut peers).await;
    let changed = json!({"count": 3, "description": "Changed"});
    gateway.legacy().await.tool("set_tools", changed).await;
    for peer in &mut peers {
        told(peer, TOOLS_CHANGED).await;
        let listed = list(peer, "tools/list", "tools").await;
        let last = listed.last().unwrap();
        assert_eq!(last["name"], "tool_2");
        assert_eq!(last["description"], "Changed (one 2)");
    }
}

/// A killed child is restarted, and its tools stay in the list throughout.
#[tokio::test]
async fn g05_a_killed_child_comes_back_and_its_tools_stay() {
    let gateway = Setup::new()
        .scripted("one", &[])
        .server("two", plain("two", "1"))
        .connected()
        .await;
    let mut peer = gateway.modern().await;
    let before = tools(&mut peer).await;
    for _ in 0..2 {
        let pid = peer.tool("pid", json!({})).await.text().to_owned();
        let killed = Pid::from_raw(pid.parse().unwrap()).unwrap();
        kill_process(killed, Signal::KILL).unwrap();
        let back = within("the child's return", Duration::from_secs(5), async {
            loop {
                assert_eq!(tools(&mut peer).await, before);
                let answer = peer.tool("pid", json!({})).await;
                match answer.response["result"]["content"][0]["text"].as_str() {
                    Some(new) if new != pid => break new.to_owned(),
                    Some(_) => {}
                    None => says(&answer.response, &["`one`"]),
                }
                let other = peer.tool("tool_0", json!({"n": 1})).await;
                assert_eq!(other.result()["structuredContent"]["n"], 1);
            }
        })
        .await;
        assert_ne!(back, pid);
        // The killed child was reaped.
        assert_eq!(common::process_state(pid.parse().unwrap()), None);
    }
}
