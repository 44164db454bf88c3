//! Requests from servers to clients: which client gets them, how calls of several sessions share a server that sends
//! them, and the error of a call that waits behind such a request.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use std::time::Duration;

use common::{
    Gateway, Setup, checks,
    real::npm,
    scripted,
    steps::{accepted, begin_tool, hold_many},
    with,
};
use serde_json::{Value, json};
use testkit::{DEADLINE, Outcome, Peer, Process, peer::answer, wait_for, wait_for_some, within};

const ELICIT: &str = "elicitation/create";
const ROOTS: &str = "roots/list";

/// The arguments with which the scripted server sends a request that a client can answer.
fn question(method: &str) -> Value {
    let schema = json!({ "type": "object", "properties": {} });
    let params = json!({ "message": "Name?", "requestedSchema": schema });
    json!({ "method": method, "params": params })
}

/// A gateway with a scripted server that has these settings and is connected.
async fn gateway(options: Value) -> Gateway {
    let one = with(scripted("one", &[]), options);
    Setup::new().server("one", one).connected().await
}

/// Lets the server send a request just before its response, and returns the client's answer to the request.
async fn answer_beside(peer: &mut Peer, method: &str, count: usize) -> Value {
    let asked = peer.tool("ask_beside", question(method)).await;
    assert_eq!(asked.text(), "asked", "{asked:?}");
    replies(peer, count).await.swap_remove(count - 1)
}

/// Returns the responses to the requests that the scripted server sent outside its calls; `null` for an open request.
async fn asked(peer: &mut Peer) -> Vec<Value> {
    let told = peer.tool("replies", json!({})).await;
    let replies = told.result()["structuredContent"]["replies"].as_array();
    replies.unwrap().clone()
}

/// Waits until the scripted server has this many responses to requests outside its calls, and returns all of them.
async fn replies(peer: &mut Peer, count: usize) -> Vec<Value> {
    wait_for_some("responses to all requests", DEADLINE, async || {
        let replies = asked(peer).await;
        let all = replies.len() >= count && !replies.iter().any(Value::is_null);
        all.then_some(replies)
    })
    .await
}

/// A server request that is sent just before a call's response is still in transit when the response is sent. Both
/// arrive, and so does the client's answer.
#[tokio::test]
async fn a_question_just_before_the_answer_is_answered() {
    for sharing in ["shared", "session"] {
        let gateway = gateway(json!({ "sharing": sharing })).await;
        let mut peer = gateway.legacy().await;
        let mut count = 0;
        for method in [ROOTS, ELICIT, "sampling/createMessage"] {
            for _ in 0..3 {
                count += 1;
                let said = answer_beside(&mut peer, method, count).await;
                assert_eq!(said["result"], answer(method), "{sharing}: {said}");
            }
        }
    }
}

/// A modern client cannot be asked once it has its response. The server then gets an error.
#[tokio::test]
async fn a_question_that_nobody_can_be_asked_is_refused() {
    let entry = with(scripted("one", &[]), json!({ "maxConcurrency": 2 }));
    let gateway = Setup::new()
        .server("one", entry)
        .settings("[limits]\nheld_call_ttl = \"1s\"\nstop_grace = \"2s\"\n")
        .connected()
        .await;
    let mut peer = gateway.modern().await;
    let mut other = gateway.modern().await;
    let mut count = 0;
    for _ in 0..5 {
        count += 1;
        let said = answer_beside(&mut peer, ELICIT, count).await;
        let is_answered = said["result"].is_object() || said["error"].is_object();
        assert!(is_answered, "{said}");
    }
    // The client never returns with the answer, or cancels the call.
    for mut peer in [gateway.modern().await, gateway.legacy().await] {
        let mut silent = question(ELICIT);
        silent["silent"] = true.into();
        let id = begin_tool(&mut peer, "ask_beside", silent).await;
        if peer.is_modern() {
            let held = peer.finish(id).await;
            assert_eq!(held["result"]["resultType"], "input_required", "{held}");
        } else {
            wait_for("the question", DEADLINE, async || {
                asked(&mut other).await.len() > count
            })
            .await;
            peer.cancel(id).await;
        }
        count += 1;
        let all = replies(&mut peer, count).await;
        assert_eq!(all.len(), count, "{all:?}");
    }
}

/// Every request of a session's own instance goes to that session, whether or not a call is in flight.
#[tokio::test]
async fn an_own_instance_asks_its_session() {
    let gateway = gateway(json!({ "sharing": "session" })).await;
    let other = gateway.legacy().await;
    let mine = json!({ "roots": [{ "uri": "file:///mine" }] });
    let answer = mine.clone();
    let peer = gateway.legacy().await;
    let mut peer = peer.answering(move |_, _| answer.clone());
    let late = json!({ "method": ROOTS, "late": 50 });
    peer.tool("ask_beside", late).await;
    let all = replies(&mut peer, 1).await;
    assert_eq!(all[0]["result"], mine, "{all:?}");
    let hold = json!({ "ms": 700 });
    let holds = [
        begin_tool(&mut peer, "hold", hold.clone()).await,
        begin_tool(&mut peer, "hold", hold).await,
    ];
    let asked = peer.tool("server_request", json!({ "method": ROOTS }));
    assert_eq!(said(&asked.await)["result"], mine);
    for id in holds {
        peer.finish(id).await;
    }
    drop(other);
}

/// server-filesystem asks for roots when it starts and whenever they change. Its directories are the roots of its
/// client.
#[tokio::test]
async fn server_filesystem_has_the_roots_of_its_session() {
    let setup = Setup::new();
    let folder = setup.folder().canonicalize().unwrap();
    for name in ["configured", "mine"] {
        std::fs::create_dir(folder.join(name)).unwrap();
    }
    let [configured, mine] =
        ["configured", "mine"].map(|name| folder.join(name).display().to_string());
    let entry = npm("server-filesystem/dist/index.js", &[&configured]);
    let entry = with(entry, json!({ "sharing": "session" }));
    let gateway = setup.server("files", entry).connected().await;
    let uri = format!("file://{mine}");
    let peer = gateway.legacy().await;
    let mut peer = peer.answering(move |_, _| json!({ "roots": [{ "uri": uri, "name": "mine" }] }));
    wait_for("the client's root", DEADLINE, async || {
        let allowed = peer.tool("list_allowed_directories", json!({})).await;
        allowed.text().contains(&mine)
    })
    .await;
}

/// Makes two calls: one waits at the server while the other makes the server send a request. Returns the response that
/// the server got.
async fn asks_beside(holder: &mut Peer, asker: &mut Peer, gateway: &Gateway) -> Value {
    let hold = begin_tool(holder, "hold", json!({ "ms": 1500 })).await;
    gateway.in_flight("one", 1, DEADLINE).await;
    let asked = asker.tool("server_request", question(ELICIT)).await;
    holder.finish(hold).await;
    said(&asked)
}

/// The response to its request that a scripted server reports.
fn said(asked: &Outcome) -> Value {
    serde_json::from_str(asked.text()).unwrap()
}

/// Makes several calls at a time, like a direct client, and returns how many were at the server at once.
async fn most_held(peers: &mut [Peer]) -> u64 {
    hold_many(peers, 4, "hold", 300).await;
    let counted = peers[0].tool("counter", json!({})).await;
    let max = &counted.result()["structuredContent"]["max"];
    max.as_u64().unwrap()
}

/// Calls reach a server in parallel until it sends a request that could be for several sessions. From then on,
/// including after a restart, it gets the calls of one session at a time.
#[tokio::test]
async fn a_server_that_asks_gets_one_session_at_a_time() {
    let gateway = gateway(json!({})).await;
    let mut peers = [gateway.legacy().await, gateway.legacy().await];
    let most = most_held(&mut peers).await;
    assert!(most > 4, "{most} calls at a time");
    let [one, two] = &mut peers;
    let refused = asks_beside(one, two, &gateway).await;
    let message = refused["error"]["message"].as_str().unwrap();
    checks::contains(message, &["\"maxConcurrency\": 1", "call again"]);
    checks::contains(message, &["\"sharing\": \"session\""]);
    gateway.logged("calls of one session at a time").await;
    let shown = accepted(&gateway, "GET", "/mcp/servers/one", Value::Null).await;
    assert_eq!(shown["one_session_at_a_time"], true, "{shown}");
    let said = asks_beside(one, two, &gateway).await;
    assert_eq!(said["result"], answer(ELICIT), "{said}");
    let said = asks_beside(two, one, &gateway).await;
    assert_eq!(said["result"], answer(ELICIT), "{said}");

    let gateway = gateway.restarted().await;
    gateway.up("one").await;
    let mut peers = [gateway.legacy().await, gateway.modern().await];
    let [one, two] = &mut peers;
    let said = asks_beside(one, two, &gateway).await;
    assert_eq!(said["result"], answer(ELICIT), "{said}");
    // The limit is one session, not one call: the calls of a session still run in parallel.
    assert_eq!(most_held(&mut [gateway.legacy().await]).await, 4);
}

/// Over HTTP, a legacy server may send requests on the session's stream. As over stdio, such a request names no call.
#[tokio::test]
async fn an_http_server_that_asks_gets_one_session_at_a_time() {
    let mut server = Process::bin("testkit-scripted", ["--http", "127.0.0.1:0"]);
    let url = server.url().await;
    let entry = json!({ "type": "http", "url": url });
    let gateway = Setup::new().server("one", entry).connected().await;
    let mut peers = [gateway.legacy().await, gateway.legacy().await];
    let [one, two] = &mut peers;
    // The server's stream is opened in the background. Until then, requests arrive on the call's own stream.
    wait_for("a request that names no call", DEADLINE, async || {
        let said = asks_beside(one, two, &gateway).await;
        let refused = said["error"]["message"].as_str();
        refused.is_some_and(|message| message.contains("call again"))
    })
    .await;
    let said = asks_beside(one, two, &gateway).await;
    assert_eq!(said["result"], answer(ELICIT), "{said}");
}

/// Several calls of one session are not ambiguous: the client is the same.
#[tokio::test]
async fn a_question_beside_other_calls_of_its_session_is_asked() {
    let gateway = gateway(json!({})).await;
    let mut peer = gateway.legacy().await;
    let hold = begin_tool(&mut peer, "hold", json!({ "ms": 1000 })).await;
    gateway.in_flight("one", 1, DEADLINE).await;
    let asked = peer.tool("server_request", question(ELICIT)).await;
    assert_eq!(asked.asked, [ELICIT], "{asked:?}");
    assert_eq!(said(&asked)["result"], answer(ELICIT), "{asked:?}");
    peer.finish(hold).await;
}

/// An explicit limit is respected.
#[tokio::test]
async fn a_limit_set_by_hand_holds() {
    let gateway = gateway(json!({ "maxConcurrency": 3 })).await;
    let mut peers = [gateway.legacy().await, gateway.legacy().await];
    let [one, two] = &mut peers;
    for _ in 0..2 {
        let refused = asks_beside(one, two, &gateway).await;
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains("\"maxConcurrency\": 1"), "{message}");
        assert!(!message.contains("call again"), "{message}");
    }
    assert_eq!(most_held(&mut peers).await, 3);
}

/// While a client has not answered a server request, the next call waits in the queue, and its error says what it
/// waited for.
#[tokio::test]
async fn a_call_behind_an_open_question_is_told_what_it_waits_for() {
    let gateway = gateway(json!({ "maxConcurrency": 1, "callTimeoutMs": 700 })).await;
    let mut peer = gateway.modern().await;
    let id = begin_tool(&mut peer, "server_request", question(ELICIT)).await;
    let held = peer.finish(id).await;
    assert_eq!(held["result"]["resultType"], "input_required", "{held}");
    for mut peer in [peer, gateway.legacy().await] {
        let late = peer.tool("echo", json!({}));
        let late = within("an error in time", Duration::from_secs(5), late).await;
        let error = &late.response["error"];
        let parts = [
            "`one`",
            "700 ms",
            "1 call is in flight",
            "a request from the server",
        ];
        checks::contains(&error["message"], &parts);
        checks::contains(&error["message"], &["client's answer"]);
        assert_eq!(error["data"]["reason"], "server_busy", "{late:?}");
    }
}
