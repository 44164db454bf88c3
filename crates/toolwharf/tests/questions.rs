//! Requests from servers to clients: which client gets them, how calls of several sessions share a server that sends
//! them, and what a call reports that waits behind one.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use std::time::Duration;

use common::{Gateway, Setup, real::npm, scripted, with};
use serde_json::{Value, json};
use testkit::{DEADLINE, Peer, Process, peer::answer, wait_for, wait_for_some, within};

const ELICIT: &str = "elicitation/create";
const ROOTS: &str = "roots/list";

/// Params of an elicitation that a client can answer.
fn elicitation() -> Value {
    json!({ "message": "Name?", "requestedSchema": { "type": "object", "properties": {} } })
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

/// A request sent just before the call's response is still in transit then: both arrive, and so does the client's
/// answer.
#[tokio::test]
async fn a_question_just_before_the_answer_is_answered() {
    for sharing in ["shared", "session"] {
        let entry = with(scripted("one", &[]), json!({ "sharing": sharing }));
        let gateway = Setup::new().server("one", entry).serve().await;
        let mut peer = gateway.legacy().await;
        let mut count = 0;
        for method in [ROOTS, ELICIT, "sampling/createMessage"] {
            for _ in 0..3 {
                let arguments = json!({ "method": method, "params": elicitation() });
                let asked = peer.tool("ask_beside", arguments).await;
                assert_eq!(asked.text(), "asked", "{asked:?}");
                count += 1;
                let all = replies(&mut peer, count).await;
                assert_eq!(
                    all[count - 1]["result"],
                    answer(method),
                    "{sharing}: {all:?}"
                );
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
        let arguments = json!({ "method": ELICIT, "params": elicitation() });
        let asked = peer.tool("ask_beside", arguments).await;
        assert_eq!(asked.text(), "asked", "{asked:?}");
        count += 1;
        let all = replies(&mut peer, count).await;
        let last = &all[count - 1];
        assert!(
            last["result"].is_object() || last["error"].is_object(),
            "{last}"
        );
    }
    // The client never returns with the answer, or cancels the call.
    for mut peer in [gateway.modern().await, gateway.legacy().await] {
        let arguments = json!({ "method": ELICIT, "params": elicitation(), "silent": true });
        let params = json!({ "name": "ask_beside", "arguments": arguments });
        let id = peer.begin("tools/call", params).await;
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
    let entry = with(scripted("one", &[]), json!({ "sharing": "session" }));
    let gateway = Setup::new().server("one", entry).serve().await;
    let other = gateway.legacy().await;
    let mut peer = gateway
        .legacy()
        .await
        .answering(|_, _| json!({ "roots": [{ "uri": "file:///mine" }] }));
    let late = json!({ "method": ROOTS, "late": 50 });
    peer.tool("ask_beside", late).await;
    let all = replies(&mut peer, 1).await;
    assert_eq!(
        all[0]["result"]["roots"][0]["uri"], "file:///mine",
        "{all:?}"
    );
    let params = json!({ "name": "hold", "arguments": { "ms": 700 } });
    let holds = [
        peer.begin("tools/call", params.clone()).await,
        peer.begin("tools/call", params).await,
    ];
    let asked = peer
        .tool("server_request", json!({ "method": ROOTS }))
        .await;
    let said: Value = serde_json::from_str(asked.text()).unwrap();
    assert_eq!(
        said["result"]["roots"][0]["uri"], "file:///mine",
        "{asked:?}"
    );
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
    let (configured, mine) = (folder.join("configured"), folder.join("mine"));
    let entry = npm(
        "server-filesystem/dist/index.js",
        &[&configured.display().to_string()],
    );
    let entry = with(entry, json!({ "sharing": "session" }));
    let gateway = setup.server("files", entry).serve().await;
    gateway.up("files").await;
    let uri = format!("file://{}", mine.display());
    let mut peer = gateway
        .legacy()
        .await
        .answering(move |_, _| json!({ "roots": [{ "uri": uri, "name": "mine" }] }));
    let mine = mine.display().to_string();
    wait_for("the client's root", DEADLINE, async || {
        let allowed = peer.tool("list_allowed_directories", json!({})).await;
        allowed.text().contains(&mine)
    })
    .await;
}

/// Makes two calls: one holds while the other asks. Returns the response that the server got.
async fn asks_beside(holder: &mut Peer, asker: &mut Peer, gateway: &Gateway) -> Value {
    let params = json!({ "name": "hold", "arguments": { "ms": 1500 } });
    let hold = holder.begin("tools/call", params).await;
    wait_for("a call at the server", DEADLINE, async || {
        gateway.metric("calls_in_flight", Some("one")).await == Some(1)
    })
    .await;
    let arguments = json!({ "method": ELICIT, "params": elicitation() });
    let asked = asker.tool("server_request", arguments).await;
    let said = serde_json::from_str(asked.text()).unwrap();
    holder.finish(hold).await;
    said
}

async fn most_held(peer: &mut Peer) -> u64 {
    let counted = peer.tool("counter", json!({})).await;
    counted.result()["structuredContent"]["max"]
        .as_u64()
        .unwrap()
}

/// Makes several calls at a time, like a direct client.
async fn hold_many(peers: &mut [Peer]) {
    let mut begun = Vec::new();
    for _ in 0..4 {
        for (at, peer) in peers.iter_mut().enumerate() {
            let params = json!({ "name": "hold", "arguments": { "ms": 300 } });
            begun.push((at, peer.begin("tools/call", params).await));
        }
    }
    for (at, id) in begun {
        let response = peers[at].finish(id).await;
        assert_eq!(response["result"]["content"][0]["text"], "held");
    }
}

/// Calls reach a server in parallel until it sends a request that could be for several sessions. From then on,
/// including after a restart, it gets the calls of one session at a time.
#[tokio::test]
async fn a_server_that_asks_gets_one_session_at_a_time() {
    let gateway = Setup::new().scripted("one", &[]).serve().await;
    gateway.up("one").await;
    let mut peers = [gateway.legacy().await, gateway.legacy().await];
    hold_many(&mut peers).await;
    let most = most_held(&mut peers[0]).await;
    assert!(most > 4, "{most} calls at a time");
    let [one, two] = &mut peers;
    let refused = asks_beside(one, two, &gateway).await;
    let message = refused["error"]["message"].as_str().unwrap();
    for part in [
        "\"maxConcurrency\": 1",
        "\"sharing\": \"session\"",
        "call again",
    ] {
        assert!(message.contains(part), "{message}");
    }
    gateway.logged("calls of one session at a time").await;
    let shown = gateway
        .at("/api/v1/mcp/servers/one")
        .with("authorization", &format!("Bearer {}", gateway.token()))
        .get(&[])
        .await
        .collect(DEADLINE)
        .await;
    let shown: Value = serde_json::from_slice(&shown.body).unwrap();
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
    // One session, not one call: a session's own calls still run in parallel.
    let mut peers = [gateway.legacy().await];
    hold_many(&mut peers).await;
    assert_eq!(most_held(&mut peers[0]).await, 4);
}

/// Over HTTP, a legacy server may send requests on the session's stream, where they name no call either.
#[tokio::test]
async fn an_http_server_that_asks_gets_one_session_at_a_time() {
    let mut server = Process::bin("testkit-scripted", ["--http", "127.0.0.1:0"]);
    let url = server.url().await;
    let entry = json!({ "type": "http", "url": url });
    let gateway = Setup::new().server("one", entry).serve().await;
    gateway.up("one").await;
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
    let gateway = Setup::new().scripted("one", &[]).serve().await;
    gateway.up("one").await;
    let mut peer = gateway.legacy().await;
    let params = json!({ "name": "hold", "arguments": { "ms": 1000 } });
    let hold = peer.begin("tools/call", params).await;
    wait_for("a call at the server", DEADLINE, async || {
        gateway.metric("calls_in_flight", Some("one")).await == Some(1)
    })
    .await;
    let arguments = json!({ "method": ELICIT, "params": elicitation() });
    let asked = peer.tool("server_request", arguments).await;
    assert_eq!(asked.asked, [ELICIT], "{asked:?}");
    let said: Value = serde_json::from_str(asked.text()).unwrap();
    assert_eq!(said["result"], answer(ELICIT), "{said}");
    peer.finish(hold).await;
}

/// An explicit limit is respected.
#[tokio::test]
async fn a_limit_set_by_hand_holds() {
    let entry = with(scripted("one", &[]), json!({ "maxConcurrency": 3 }));
    let gateway = Setup::new().server("one", entry).serve().await;
    gateway.up("one").await;
    let mut peers = [gateway.legacy().await, gateway.legacy().await];
    let [one, two] = &mut peers;
    for _ in 0..2 {
        let refused = asks_beside(one, two, &gateway).await;
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains("\"maxConcurrency\": 1"), "{message}");
        assert!(!message.contains("call again"), "{message}");
    }
    hold_many(&mut peers).await;
    assert_eq!(most_held(&mut peers[0]).await, 3);
}

/// While a client thinks about a server request, the next call waits in the queue, and its error says what it waited
/// for.
#[tokio::test]
async fn a_call_behind_an_open_question_is_told_what_it_waits_for() {
    let options = json!({ "maxConcurrency": 1, "callTimeoutMs": 700 });
    let gateway = Setup::new()
        .server("one", with(scripted("one", &[]), options))
        .serve()
        .await;
    gateway.up("one").await;
    let mut peer = gateway.modern().await;
    let arguments = json!({ "method": ELICIT, "params": elicitation() });
    let params = json!({ "name": "server_request", "arguments": arguments });
    let id = peer.begin("tools/call", params).await;
    let held = peer.finish(id).await;
    assert_eq!(held["result"]["resultType"], "input_required", "{held}");
    for mut peer in [peer, gateway.legacy().await] {
        let late = within(
            "an error in time",
            Duration::from_secs(5),
            peer.tool("echo", json!({})),
        )
        .await;
        let error = &late.response["error"];
        let message = error["message"].as_str().unwrap();
        for part in [
            "`one`",
            "700 ms",
            "1 call is in flight",
            "question",
            "client's answer",
        ] {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(error["data"]["reason"], "server_busy", "{late:?}");
    }
}
