//! Three replicas behind a simple load balancer: requests of a session are handled by the replica that has it, wherever
//! they arrive.

use http::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{DEADLINE, Peer, RawClient, Streaming, peer, postgres::Database, wait_for};
use tokio::time::Instant;

use crate::{
    api::Api,
    common::{Gateway, replicas::Balancer},
    sessions::{
        ACCEPT_STREAM, VERSIONS, call, goes_on, in_session, is_unknown, open, ping, replica,
        request,
    },
};

async fn three(database: &Database) -> Vec<Gateway> {
    let first = replica(database, None).await;
    let second = replica(database, Some(&first)).await;
    let third = replica(database, Some(&first)).await;
    vec![first, second, third]
}

async fn sessions(replicas: &[Gateway]) -> Vec<u64> {
    let mut all = Vec::new();
    for replica in replicas {
        all.push(replica.metric("sessions", None).await.unwrap_or(0));
    }
    all
}

async fn post(client: &RawClient, body: String) -> Streaming {
    let both = ("accept", "application/json, text/event-stream");
    client.send(Method::POST, &[both], body).await
}

/// Returns the next message, skipping empty events.
async fn message(stream: &mut Streaming) -> Value {
    loop {
        let event = stream.next_event(DEADLINE).await.expect("the stream ended");
        if let Some(message) = event.json() {
            return message;
        }
    }
}

/// Returns the internal address of each replica, with its id.
async fn addresses(at: &Gateway) -> Vec<String> {
    let all = Api::admin(at).ok("GET", "/replicas", Value::Null).await;
    let all = all["replicas"].as_array().unwrap();
    all.iter()
        .map(|one| one["address"].as_str().unwrap().to_owned())
        .collect()
}

/// Calls, server requests, a cancellation and the end of a session, each at the next replica.
#[tokio::test]
async fn d01_a_session_works_through_a_balancer_without_stickiness() {
    let database = Database::create().await;
    let replicas = three(&database).await;
    let balancer = Balancer::before(&replicas).await;
    for version in VERSIONS {
        let id = open(balancer.client(), version).await;
        let client = in_session(balancer.client(), &id);
        for _ in 0..4 {
            goes_on(&client, version).await;
        }
        // A call is cancelled through another replica: its stream ends.
        let slow = request(
            9,
            "tools/call",
            json!({"name": "slow", "arguments": {"ms": 60_000}}),
        );
        let cancel = json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9},
        });
        let cancelled = Instant::now();
        let (_, ()) = tokio::join!(client.post(slow), async {
            wait_for("the call to arrive", DEADLINE, async || {
                let mut calls = 0;
                for replica in &replicas {
                    calls += replica
                        .metric("calls_in_flight", Some("one"))
                        .await
                        .unwrap_or(0);
                }
                calls > 0
            })
            .await;
            for _ in 0..3 {
                assert_eq!(client.post(cancel.to_string()).await.status, 202);
            }
        });
        assert!(cancelled.elapsed() < DEADLINE, "{version}");
        assert_eq!(
            sessions(&replicas).await.iter().sum::<u64>(),
            1,
            "{version}"
        );
        assert_eq!(client.delete(&[]).await.status, 204);
        for _ in 0..3 {
            assert!(is_unknown(&client.post(ping()).await), "{version}");
        }
    }
}

/// A broken event stream is resumed through another replica, after the last event that the client has.
#[tokio::test]
async fn d01_a_stream_is_taken_up_again_through_another_replica() {
    let database = Database::create().await;
    let replicas = three(&database).await;
    let id = open(replicas[0].client(), "2025-11-25").await;
    let asked = json!({
        "method": "elicitation/create",
        "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
    });
    let second = in_session(replicas[1].client(), &id);
    let mut stream = post(&second, call("server_request", asked)).await;
    let mut last = None;
    let question = loop {
        let event = stream.next_event(DEADLINE).await.unwrap();
        last = event.id.clone().or(last);
        if let Some(question) = event.json() {
            break question;
        }
    };
    drop(stream);
    let third = in_session(replicas[2].client(), &id);
    let last = last.expect("events of 2025-11-25 have ids");
    let mut stream = third.get(&[ACCEPT_STREAM, ("last-event-id", &last)]).await;
    assert_eq!(stream.status, 200);
    let answer = json!({
        "jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {}},
    });
    assert_eq!(second.post(answer.to_string()).await.status, 202);
    let answer = message(&mut stream).await;
    assert!(answer.to_string().contains("accept"), "{answer}");
}

/// A 2026-07-28 call that waits for client input is held at one replica. A retry through any replica finds it.
#[tokio::test]
async fn d01_a_client_without_sessions_is_asked_through_a_balancer() {
    let database = Database::create().await;
    let mut replicas = three(&database).await;
    let balancer = Balancer::before(&replicas).await;
    let mut peer = Peer::http(balancer.client(), peer::MODERN, peer::all_capabilities()).await;
    let asked = json!({
        "method": "elicitation/create",
        "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
    });
    for _ in 0..4 {
        let answer = peer.tool("server_request", asked.clone()).await;
        assert!(answer.text().contains("accept"), "{}", answer.text());
        let echoed = peer.tool("echo", json!({"text": "x"})).await;
        assert!(echoed.text().contains('x'), "{}", echoed.text());
    }

    // A held call is lost with its replica, and the client is told what to do.
    let mut first = replicas.remove(0);
    let peer =
        async |at: &Gateway| Peer::http(at.client(), peer::MODERN, peer::all_capabilities()).await;
    let mut params = json!({"name": "server_request", "arguments": asked});
    let mut at_first = peer(&first).await;
    let id = at_first.begin("tools/call", params.clone()).await;
    let held = at_first.finish(id).await;
    assert_eq!(held["result"]["resultType"], "input_required", "{held}");
    params["requestState"] = held["result"]["requestState"].clone();
    params["inputResponses"] = json!({"input1": {"action": "decline"}});
    first.process.signal(Signal::KILL);
    first.process.wait(DEADLINE).await;
    let mut at_second = peer(&replicas[0]).await;
    let id = at_second.begin("tools/call", params).await;
    let lost = at_second.finish(id).await;
    let why = lost["error"]["message"].as_str().unwrap();
    assert!(why.contains("call again without it"), "{lost}");
}

/// HTTP+SSE sends messages and the stream over different connections, and so through different replicas.
#[tokio::test]
async fn d01_http_sse_works_through_a_balancer() {
    let database = Database::create().await;
    let replicas = three(&database).await;
    let balancer = Balancer::before(&replicas).await;
    let mut peer = Peer::sse(balancer.client().at("/sse"), json!({})).await;
    for _ in 0..6 {
        let answer = peer
            .request(
                "tools/call",
                json!({"name": "echo", "arguments": {"text": "x"}}),
            )
            .await;
        assert!(answer.text().contains('x'), "{}", answer.text());
    }
}

/// SIGKILL during a call: the call fails at once, and its session continues at another replica.
#[tokio::test]
async fn d02_a_call_ends_with_its_replica_and_the_session_goes_on() {
    let database = Database::create().await;
    let mut replicas = three(&database).await;
    let first = replicas.remove(0);
    let id = open(first.client(), "2025-11-25").await;
    let through = in_session(replicas[0].client(), &id);
    let slow = request(
        8,
        "tools/call",
        json!({"name": "slow", "arguments": {"ms": 60_000}}),
    );
    let asked = json!({
        "method": "elicitation/create",
        "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
    });
    let mut stream = post(&through, call("server_request", asked)).await;
    assert_eq!(message(&mut stream).await["method"], "elicitation/create");
    let killed = async {
        wait_for("the call to arrive", DEADLINE, async || {
            first
                .metric("calls_in_flight", Some("one"))
                .await
                .unwrap_or(0)
                > 1
        })
        .await;
        first.process.signal(Signal::KILL);
        Instant::now()
    };
    let (reply, killed) = tokio::join!(through.post(slow), killed);
    assert!(killed.elapsed().as_secs() < 5, "{:?}", killed.elapsed());
    assert!(
        reply.text().contains("was lost"),
        "{}: {}",
        reply.status,
        reply.text()
    );
    let last = message(&mut stream).await;
    assert!(
        last["error"]["message"]
            .as_str()
            .unwrap()
            .contains("was lost"),
        "{last}"
    );
    // Both replicas agree on which of them has the session now.
    let balancer = Balancer::before(&replicas).await;
    let client = in_session(balancer.client(), &id);
    for _ in 0..4 {
        goes_on(&client, "2025-11-25").await;
    }
    assert!(killed.elapsed().as_secs() < 5, "{:?}", killed.elapsed());
    assert_eq!(sessions(&replicas).await.iter().sum::<u64>(), 1);
}

/// A session that was taken over stays where it is when another replica joins.
#[tokio::test]
async fn d01_a_session_that_was_taken_up_stays_when_a_replica_joins() {
    const SESSIONS: usize = 8;
    let database = Database::create().await;
    let mut replicas = three(&database).await;
    let mut first = replicas.remove(0);
    let mut ids = Vec::new();
    for _ in 0..SESSIONS {
        ids.push(open(first.client(), "2025-11-25").await);
    }
    first.process.signal(Signal::KILL);
    first.process.wait(DEADLINE).await;
    for id in &ids {
        let taken_up = in_session(replicas[0].client(), id).post(ping()).await;
        assert_eq!(taken_up.status, 200, "{}", taken_up.text());
    }
    replicas.push(replica(&database, Some(&replicas[0])).await);
    for id in &ids {
        for replica in &replicas {
            let reply = in_session(replica.client(), id).post(ping()).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
    }
    assert_eq!(sessions(&replicas).await, [SESSIONS as u64, 0, 0]);
}

/// The internal listener responds to other replicas only. The public listener accepts no request that is sealed for the
/// internal one.
#[tokio::test]
async fn d01_the_internal_listener_answers_replicas_only() {
    let database = Database::create().await;
    let first = replica(&database, None).await;
    let [address] = addresses(&first).await.try_into().unwrap();
    let token = format!("Bearer {}", first.token());
    let inside = RawClient::new(&format!("http://{address}/mcp")).with("authorization", &token);
    let ask = request(1, "ping", json!({}));
    for hop in ["", "AAAA", &"A".repeat(300), "ü"] {
        for path in ["/mcp", "/healthz", "/api/v1/replicas", "/"] {
            let reply = inside
                .at(path)
                .with("toolwharf-hop", hop)
                .post(ask.clone())
                .await;
            assert_eq!(reply.status, 403, "{path} {hop}: {}", reply.text());
        }
    }
    // The public listener ignores the header.
    let id = open(first.client(), "2025-11-25").await;
    let public = in_session(first.client(), &id).with("toolwharf-hop", "AAAA");
    assert_eq!(public.post(ping()).await.status, 200);
}
