//! Three replicas behind a simple load balancer: requests of a session are handled by the replica that has it, wherever
//! they arrive.

use rustix::process::Signal;
use serde_json::json;
use testkit::{DEADLINE, Peer, RawClient, peer, postgres::Database, wait_for};
use tokio::time::Instant;

use crate::{
    common::{Gateway, checks, replicas::Balancer, says},
    sessions::{
        ACCEPT_STREAM, VERSIONS, accept, call, call_as, elicitation, goes_on, in_session,
        is_unknown, message, open, ping, pings, post, replica, three,
    },
    support::{end, listed},
};

async fn sessions(replicas: &[Gateway]) -> Vec<u64> {
    let mut all = Vec::new();
    for replica in replicas {
        all.push(replica.metric("sessions", None).await.unwrap_or(0));
    }
    all
}

/// Waits until more than `count` calls are at the server that these replicas run.
async fn in_flight(replicas: &[Gateway], count: u64) {
    wait_for("the call to arrive", DEADLINE, async || {
        let mut calls = 0;
        for replica in replicas {
            let here = replica.metric("calls_in_flight", Some("one")).await;
            calls += here.unwrap_or(0);
        }
        calls > count
    })
    .await;
}

/// Calls, server requests, a cancellation and the end of a session all work, each at the next replica.
#[tokio::test]
async fn d01_a_session_works_through_a_balancer_without_stickiness() {
    let (_database, replicas) = three().await;
    let balancer = Balancer::before(&replicas).await;
    for version in VERSIONS {
        let id = open(balancer.client(), version).await;
        let client = in_session(balancer.client(), &id);
        for _ in 0..4 {
            goes_on(&client, version).await;
        }
        // A call is cancelled through another replica, and the call's stream ends.
        let slow = call_as(9, "slow", json!({"ms": 60_000}));
        let cancel = json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9},
        });
        let cancelled = Instant::now();
        let (_, ()) = tokio::join!(client.post(slow), async {
            in_flight(&replicas, 0).await;
            for _ in 0..3 {
                assert_eq!(client.post(cancel.to_string()).await.status, 202);
            }
        });
        assert!(cancelled.elapsed() < DEADLINE, "{version}");
        let sessions: u64 = sessions(&replicas).await.iter().sum();
        assert_eq!(sessions, 1, "{version}");
        assert_eq!(client.delete(&[]).await.status, 204);
        for _ in 0..3 {
            assert!(is_unknown(&client.post(ping()).await), "{version}");
        }
    }
}

/// A broken event stream is resumed through another replica, after the last event that the client has.
#[tokio::test]
async fn d01_a_stream_is_taken_up_again_through_another_replica() {
    let (_database, replicas) = three().await;
    let id = open(replicas[0].client(), "2025-11-25").await;
    let second = in_session(replicas[1].client(), &id);
    let mut stream = post(&second, call("server_request", elicitation())).await;
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
    accept(&second, &question).await;
    let answer = message(&mut stream).await;
    checks::contains(answer.to_string(), &["accept"]);
}

/// A 2026-07-28 call that waits for client input is held at one replica. A retry through any replica finds it.
#[tokio::test]
async fn d01_a_client_without_sessions_is_asked_through_a_balancer() {
    let (_database, replicas) = three().await;
    let balancer = Balancer::before(&replicas).await;
    let mut peer = Peer::http(balancer.client(), peer::MODERN, peer::all_capabilities()).await;
    for _ in 0..4 {
        let answer = peer.tool("server_request", elicitation()).await;
        checks::contains(answer.text(), &["accept"]);
        let echoed = peer.tool("echo", json!({"text": "x"})).await;
        checks::contains(echoed.text(), &["x"]);
    }

    // A held call is lost with its replica, and the client is told what to do.
    let [mut first, second, _third] = replicas;
    let mut params = json!({"name": "server_request", "arguments": elicitation()});
    let mut at_first = first.modern().await;
    let id = at_first.begin("tools/call", params.clone()).await;
    let held = at_first.finish(id).await;
    assert_eq!(held["result"]["resultType"], "input_required", "{held}");
    params["requestState"] = held["result"]["requestState"].clone();
    params["inputResponses"] = json!({"input1": {"action": "decline"}});
    end(&mut first, Signal::KILL).await;
    let mut at_second = second.modern().await;
    let id = at_second.begin("tools/call", params).await;
    let lost = at_second.finish(id).await;
    says(&lost, &["call again without it"]);
}

/// HTTP+SSE sends messages and the stream over different connections, and so through different replicas.
#[tokio::test]
async fn d01_http_sse_works_through_a_balancer() {
    let (_database, replicas) = three().await;
    let balancer = Balancer::before(&replicas).await;
    let mut peer = Peer::sse(balancer.client().at("/sse"), json!({})).await;
    for _ in 0..6 {
        let answer = peer.tool("echo", json!({"text": "x"})).await;
        checks::contains(answer.text(), &["x"]);
    }
}

/// SIGKILL during a call: the call fails at once, and its session continues at another replica.
#[tokio::test]
async fn d02_a_call_ends_with_its_replica_and_the_session_goes_on() {
    let (_database, [first, second, third]) = three().await;
    let replicas = [second, third];
    let id = open(first.client(), "2025-11-25").await;
    let through = in_session(replicas[0].client(), &id);
    let slow = call_as(8, "slow", json!({"ms": 60_000}));
    let mut stream = post(&through, call("server_request", elicitation())).await;
    assert_eq!(message(&mut stream).await["method"], "elicitation/create");
    let killed = async {
        in_flight(std::slice::from_ref(&first), 1).await;
        first.process.signal(Signal::KILL);
        Instant::now()
    };
    let (reply, killed) = tokio::join!(through.post(slow), killed);
    assert!(killed.elapsed().as_secs() < 5, "{:?}", killed.elapsed());
    checks::contains(reply.text(), &["was lost"]);
    let last = message(&mut stream).await;
    checks::string(&last["error"]["message"], &["was lost"]);
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
    let (database, [mut first, second, third]) = three().await;
    let mut replicas = vec![second, third];
    let mut ids = Vec::new();
    for _ in 0..SESSIONS {
        ids.push(open(first.client(), "2025-11-25").await);
    }
    end(&mut first, Signal::KILL).await;
    for id in &ids {
        pings(replicas[0].client(), id).await;
    }
    replicas.push(replica(&database, Some(&replicas[0])).await);
    for id in &ids {
        for replica in &replicas {
            pings(replica.client(), id).await;
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
    let [one] = listed(&first).await.try_into().unwrap();
    let address = one["address"].as_str().unwrap();
    let token = format!("Bearer {}", first.token());
    let inside = RawClient::new(&format!("http://{address}/mcp")).with("authorization", &token);
    for hop in ["", "AAAA", &"A".repeat(300), "ü"] {
        for path in ["/mcp", "/healthz", "/api/v1/replicas", "/"] {
            let client = inside.at(path).with("toolwharf-hop", hop);
            let reply = client.post(ping()).await;
            assert_eq!(reply.status, 403, "{path} {hop}: {}", reply.text());
        }
    }
    // The public listener ignores the header.
    let id = open(first.client(), "2025-11-25").await;
    let public = in_session(first.client(), &id).with("toolwharf-hop", "AAAA");
    assert_eq!(public.post(ping()).await.status, 200);
}
