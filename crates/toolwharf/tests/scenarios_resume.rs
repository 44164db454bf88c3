//! Streams that break off are taken up again by legacy clients (2025-11-25 basic/transports "Resumability and
//! Redelivery"): nothing is lost or doubled, no one else gets it, and what nobody comes back for ends.

#![expect(
    clippy::unwrap_used,
    reason = "a failure in a test's helper is the test's"
)]

mod common;

use std::{collections::HashSet, time::Duration};

use common::{Gateway, LEGACY, Setup, scripted, with};
use serde_json::{Value, json};
use testkit::{DEADLINE, Event, RawClient, Streaming, wait_for, within};
use tokio::time::Instant;

/// Names event streams first, so that it gets one at once.
const STREAMS: [(&str, &str); 1] = [("accept", "text/event-stream, application/json")];

async fn gateway() -> Gateway {
    let options = json!({"maxConcurrency": 100, "callTimeoutMs": 120_000});
    let gateway = Setup::new()
        .server("one", with(scripted("one", &["--resources", "1"]), options))
        .serve()
        .await;
    gateway.up("one").await;
    gateway
}

/// A client with a session of its own.
async fn session(gateway: &Gateway, version: &str) -> RawClient {
    let params = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
    let reply = gateway.client().post(hello.to_string()).await;
    let session = reply.header("mcp-session-id").unwrap();
    gateway
        .client()
        .with("mcp-session-id", session)
        .with("mcp-protocol-version", version)
}

fn call(id: u64, tool: &str, arguments: Value) -> String {
    let params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": "t"}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

async fn begin(client: &RawClient, headers: &[(&str, &str)], body: String) -> Streaming {
    let stream = client.send(http::Method::POST, headers, body).await;
    assert!(stream.is_event_stream(), "{}", stream.status);
    stream
}

async fn resume(client: &RawClient, last: &str) -> Streaming {
    client
        .get(&[("accept", "text/event-stream"), ("last-event-id", last)])
        .await
}

async fn next(stream: &mut Streaming) -> Event {
    let event = stream.next_event(DEADLINE).await;
    event.expect("an event")
}

/// All events to the end of the stream.
async fn rest(mut stream: Streaming) -> Vec<Event> {
    let mut events = Vec::new();
    within("the end of the stream", DEADLINE, async {
        while let Some(event) = stream.next_event(DEADLINE).await {
            events.push(event);
        }
    })
    .await;
    events
}

fn id(event: &Event) -> &str {
    event.id.as_deref().unwrap_or_else(|| panic!("{event:?}"))
}

fn assert_primes(event: &Event) {
    assert!(!id(event).is_empty());
    assert_eq!(event.data, "", "{event:?}");
    assert!(event.retry.is_some(), "{event:?}");
}

/// What progress the events report, in their order.
fn progress(events: &[Event]) -> Vec<u64> {
    let params = events.iter().filter_map(Event::json);
    params
        .filter_map(|message| message["params"]["progress"].as_u64())
        .collect()
}

/// The text of the answer that the events end with.
fn answer(events: &[Event]) -> String {
    let last = events.last().and_then(Event::json);
    let last = last.unwrap_or_else(|| panic!("{events:?}"));
    last["result"]["content"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned()
}

async fn in_flight(gateway: &Gateway, count: u64, limit: Duration) {
    wait_for(&format!("{count} calls in flight"), limit, async || {
        gateway.metric("calls_in_flight", Some("one")).await == Some(count)
    })
    .await;
}

async fn cancelled_count(gateway: &Gateway) -> String {
    let mut peer = gateway.modern().await;
    peer.tool("cancelled_count", json!({}))
        .await
        .text()
        .to_owned()
}

/// Subscribes to the server's one resource and tells of it.
struct Updates {
    client: RawClient,
    sent: u64,
}

impl Updates {
    async fn of(client: &RawClient, source: RawClient) -> Self {
        let params = json!({"uri": "resource://one/scripted://0"});
        let subscribe =
            json!({"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": params});
        assert_eq!(client.post(subscribe.to_string()).await.status, 200);
        Self {
            client: source,
            sent: 0,
        }
    }

    async fn send(&mut self, count: u64) {
        for _ in 0..count {
            let params = json!({"uri": "scripted://0", "progress": self.sent});
            let arguments = json!({"method": "notifications/resources/updated", "params": params});
            let reply = self.client.post(call(1, "notify", arguments)).await;
            assert!(reply.response().get("result").is_some());
            self.sent += 1;
        }
    }
}

/// Each connection begins with an id to come back to, each event has an id of its own; what needs no stream
/// gets none.
#[tokio::test]
async fn streams_begin_with_an_event_to_come_back_to() {
    let gateway = gateway().await;
    let client = session(&gateway, LEGACY).await;
    let mut seen = HashSet::new();
    for n in 0..2 {
        let stream = begin(&client, &[], call(n, "progress", json!({"count": 3}))).await;
        let events = rest(stream).await;
        assert_primes(&events[0]);
        assert_eq!(progress(&events), [1, 2, 3]);
        assert_eq!(answer(&events), "progressed");
        assert_eq!(events.len(), 5);
        for event in &events {
            assert!(seen.insert(id(event).to_owned()), "{event:?} again");
        }
    }
    let mut listening = client.get(&[]).await;
    let first = next(&mut listening).await;
    assert_primes(&first);
    assert!(seen.insert(id(&first).to_owned()), "{first:?} again");
    let mut updates = Updates::of(&client, session(&gateway, LEGACY).await).await;
    updates.send(1).await;
    let update = next(&mut listening).await;
    assert!(seen.insert(id(&update).to_owned()), "{update:?} again");
    let reply = client.post(call(9, "echo", json!({}))).await;
    assert_eq!(reply.header("content-type"), Some("application/json"));
    // Whoever would rather have a stream gets it before anything happens.
    let mut stream = begin(&client, &STREAMS, call(3, "slow", json!({"ms": 60_000}))).await;
    assert_primes(&next(&mut stream).await);
}

/// A call whose stream breaks off, again and again, is answered all the same: all of it, once.
#[tokio::test]
async fn a_dropped_stream_goes_on_where_it_broke_off() {
    let gateway = gateway().await;
    let client = session(&gateway, LEGACY).await;
    let body = call(7, "progress", json!({"count": 60, "ms": 20}));
    let mut stream = begin(&client, &[], body).await;
    let mut events = Vec::new();
    for _ in 0..6 {
        for _ in 0..6 {
            events.push(next(&mut stream).await);
        }
        let last = id(events.last().unwrap()).to_owned();
        drop(stream);
        stream = resume(&client, &last).await;
        assert!(stream.is_event_stream(), "{}", stream.status);
        // Each connection can be lost before anything else comes.
        let first = next(&mut stream).await;
        assert_primes(&first);
        assert_eq!(id(&first), last);
    }
    events.extend(rest(stream).await);
    assert_eq!(progress(&events), (1..=60).collect::<Vec<_>>());
    assert_eq!(answer(&events), "progressed");
    let ids: HashSet<&str> = events.iter().map(id).collect();
    assert_eq!(ids.len(), events.len(), "an id twice");
    // Other streams had no part in it, and the call was made once.
    assert_eq!(gateway.metric("calls_total", Some("one")).await, Some(1));

    // The end is held for a while: it may not have arrived.
    let again = rest(resume(&client, id(&events[40])).await).await;
    assert_eq!(again[1..], events[41..]);
    let over = resume(&client, id(events.last().unwrap())).await;
    assert_eq!(over.status, 405, "there is nothing to wait for");
}

/// The answer waits for a client that is away when it comes.
#[tokio::test]
async fn an_answer_waits_for_its_client() {
    let gateway = gateway().await;
    let client = session(&gateway, LEGACY).await;
    let mut stream = begin(&client, &STREAMS, call(1, "slow", json!({"ms": 1500}))).await;
    let primed = next(&mut stream).await;
    drop(stream);
    wait_for("the call's end", DEADLINE, async || {
        gateway.metric("calls_total", Some("one")).await == Some(1)
            && gateway.metric("calls_in_flight", Some("one")).await == Some(0)
    })
    .await;
    let events = rest(resume(&client, id(&primed)).await).await;
    assert_eq!(answer(&events), "slept");
    assert_eq!(cancelled_count(&gateway).await, "0");
}

/// Whoever takes a stream up again has it, whether or not its old connection was seen to break.
#[tokio::test]
async fn a_stream_is_taken_over() {
    let gateway = gateway().await;
    let client = session(&gateway, LEGACY).await;
    let mut stream = begin(&client, &STREAMS, call(1, "slow", json!({"ms": 2000}))).await;
    let primed = next(&mut stream).await;
    let taken = resume(&client, id(&primed)).await;
    stream.closed(Duration::from_secs(2)).await;
    assert_eq!(answer(&rest(taken).await), "slept");
}

/// An id is worth nothing to others, and one that nobody gave is refused in words.
#[tokio::test]
async fn only_its_session_takes_a_stream_up() {
    let gateway = gateway().await;
    let owner = session(&gateway, LEGACY).await.with("authorization", "");
    let mut stream = begin(&owner, &STREAMS, call(1, "slow", json!({"ms": 60_000}))).await;
    let last = id(&next(&mut stream).await).to_owned();
    let thief = owner.clone().with("authorization", "Bearer another");
    assert_eq!(resume(&thief, &last).await.status, 404, "another principal");
    let elsewhere = owner.at("/mcp/-/one");
    assert_eq!(
        resume(&elsewhere, &last).await.status,
        404,
        "another address"
    );
    let nobody = owner.clone().with("mcp-session-id", "");
    assert_eq!(resume(&nobody, &last).await.status, 405, "no session");
    let other = session(&gateway, LEGACY).await;
    for (client, last) in [
        (&other, &*last),
        (&owner, "99-1"),
        (&owner, "1-99"),
        (&owner, "0-1"),
        (&owner, "1"),
        (&owner, "-1--1"),
        (&owner, "1-18446744073709551616"),
        (&owner, "unknown"),
    ] {
        let refused = resume(client, last).await.collect(DEADLINE).await;
        assert_eq!(refused.status, 400, "{last}");
        let said = refused.response()["error"]["message"].to_string();
        assert!(said.contains("Last-Event-ID"), "{said}");
    }
    // Another session's stream of the same number is that session's own.
    let mut own = begin(&other, &STREAMS, call(2, "slow", json!({"ms": 60_000}))).await;
    assert_eq!(id(&next(&mut own).await), last);
    let events = resume(&other, &last).await;
    own.closed(Duration::from_secs(2)).await;
    drop(events);
    // None of this took the stream away from its reader.
    in_flight(&gateway, 2, DEADLINE).await;
    assert!(
        stream
            .next_event(Duration::from_millis(300))
            .await
            .is_none()
    );
    let reply = owner.delete(&[]).await;
    assert_eq!(reply.status, 204);
    stream.closed(Duration::from_secs(2)).await;
    assert_eq!(resume(&owner, &last).await.status, 404, "the session ended");
}

/// What belongs to no call is not lost either, and what was seen is not sent again.
#[tokio::test]
async fn the_session_stream_goes_on_where_it_broke_off() {
    let gateway = gateway().await;
    // The oldest version of this transport has ids, too.
    for version in ["2025-03-26", LEGACY] {
        let client = session(&gateway, version).await;
        let mut updates = Updates::of(&client, session(&gateway, LEGACY).await).await;
        let mut stream = client.get(&[]).await;
        if version == LEGACY {
            assert_primes(&next(&mut stream).await);
        }
        let mut events = Vec::new();
        updates.send(4).await;
        for _ in 0..4 {
            events.push(next(&mut stream).await);
        }
        drop(stream);
        updates.send(3).await;
        // As if the last two had not arrived.
        events.truncate(2);
        let last = id(&events[1]).to_owned();
        let mut stream = resume(&client, &last).await;
        if version == LEGACY {
            assert_eq!(id(&next(&mut stream).await), last);
        }
        updates.send(1).await;
        for _ in 0..6 {
            events.push(next(&mut stream).await);
        }
        assert_eq!(
            progress(&events),
            (0..8).collect::<Vec<_>>(),
            "in {version}"
        );
        // Calls have streams of their own.
        let reply = client.post(call(5, "progress", json!({"count": 2}))).await;
        let streams = |event: &Event| id(event).split_once('-').unwrap().0.to_owned();
        assert_ne!(
            streams(reply.events().last().unwrap()),
            streams(events.last().unwrap())
        );
        assert!(
            stream
                .next_event(Duration::from_millis(300))
                .await
                .is_none()
        );
    }
}

/// There is an end to what is held: of one stream the oldest notifications go, never the answer; of all streams
/// the oldest go, and that is said.
#[tokio::test]
async fn what_is_held_is_bounded() {
    let gateway = gateway().await;
    let client = session(&gateway, LEGACY).await;
    let body = call(1, "progress", json!({"count": 1000}));
    let first = rest(begin(&client, &[], body).await).await;
    let first = id(&first[0]).to_owned();
    let again = rest(resume(&client, &first).await).await;
    let seen = progress(&again);
    assert!((100..500).contains(&seen.len()), "{} events", seen.len());
    assert_eq!(
        seen,
        (1001 - seen.len() as u64..=1000).collect::<Vec<_>>(),
        "the newest, without a gap"
    );
    assert_eq!(answer(&again), "progressed");

    let mut last = String::new();
    for n in 0..70 {
        let reply = client.post(call(n, "progress", json!({}))).await;
        last = id(&reply.events()[0]).to_owned();
    }
    let forgotten = resume(&client, &first).await.collect(DEADLINE).await;
    assert_eq!(forgotten.status, 400, "{}", forgotten.text());
    assert_eq!(
        answer(&rest(resume(&client, &last).await).await),
        "progressed"
    );

    // In bytes as well: each of these answers is a quarter of what a session may hold, or nearly so.
    let before = gateway.memory_now();
    for n in 0..40 {
        let reply = client
            .post_with(&STREAMS, call(n, "big", json!({"bytes": 2_000_000})))
            .await;
        last = id(&reply.events()[0]).to_owned();
    }
    let grown = gateway.memory_now().saturating_sub(before);
    assert!(grown < 48 * 1024, "{grown} KiB more");
    let again = rest(resume(&client, &last).await).await;
    assert_eq!(answer(&again).len(), 2_000_000);
}

/// A call that nobody comes back for is cancelled at its server: after a while, and at once if the client says
/// so, its session ends or its time is over.
#[tokio::test]
async fn a_call_that_nobody_comes_back_for_is_cancelled() {
    let gateway = gateway().await;
    let client = session(&gateway, LEGACY).await;
    let slow = async |client: &RawClient, id: u64| {
        let body = call(id, "slow", json!({"ms": 100_000}));
        let mut stream = begin(client, &STREAMS, body).await;
        let primed = next(&mut stream).await;
        // At the server itself: it has its place in line a moment before, while it is recorded.
        let mut peer = gateway.modern().await;
        wait_for("the call at the server", DEADLINE, async || {
            peer.tool("running", json!({})).await.text() == "1"
        })
        .await;
        primed.id.unwrap()
    };
    // Its stream is dropped before the client says so.
    slow(&client, 1).await;
    let params = json!({"requestId": 1});
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
    assert_eq!(client.post(cancel.to_string()).await.status, 202);
    in_flight(&gateway, 0, Duration::from_secs(5)).await;
    let ending = session(&gateway, LEGACY).await;
    slow(&ending, 2).await;
    assert_eq!(ending.delete(&[]).await.status, 204);
    in_flight(&gateway, 0, Duration::from_secs(5)).await;

    let last = slow(&client, 3).await;
    let left = Instant::now();
    in_flight(&gateway, 0, Duration::from_secs(50)).await;
    let after = left.elapsed();
    assert!(after > Duration::from_secs(20), "{after:?}");
    wait_for("the cancellations", Duration::from_secs(5), async || {
        cancelled_count(&gateway).await == "3"
    })
    .await;
    assert_eq!(resume(&client, &last).await.status, 400);
}

/// The call's own time limit goes on while nobody reads.
#[tokio::test]
async fn a_call_that_nobody_reads_has_its_own_time_limit() {
    let options = json!({"callTimeoutMs": 2000});
    let gateway = Setup::new()
        .server("one", with(scripted("one", &[]), options))
        .serve()
        .await;
    gateway.up("one").await;
    let client = session(&gateway, LEGACY).await;
    let body = call(1, "slow", json!({"ms": 100_000}));
    let mut stream = begin(&client, &STREAMS, body).await;
    let primed = next(&mut stream).await;
    drop(stream);
    in_flight(&gateway, 0, Duration::from_secs(10)).await;
    let events = rest(resume(&client, id(&primed)).await).await;
    let told = events.last().and_then(Event::json).unwrap();
    assert!(
        told["error"]["message"]
            .as_str()
            .unwrap()
            .contains("2000 ms"),
        "{told}"
    );
}

/// Clients of older versions choke on an event without data, and do not come back: their streams begin with
/// what there is, and a dropped one cancels its call.
#[tokio::test]
async fn older_clients_are_not_primed() {
    let gateway = gateway().await;
    for version in ["2025-03-26", "2025-06-18"] {
        let client = session(&gateway, version).await;
        for headers in [&[][..], &STREAMS[..]] {
            let body = call(1, "progress", json!({"count": 2}));
            let reply = client.post_with(headers, body).await;
            let events = reply.events();
            assert_eq!(progress(&events), [1, 2], "{version}");
            assert_eq!(answer(&events), "progressed");
            assert_eq!(events.len(), 3, "{events:?}");
            for event in &events {
                assert!(event.id.is_some() && event.retry.is_none(), "{event:?}");
            }
            // What was answered can be had again, all the same.
            let again = rest(resume(&client, id(&events[0])).await).await;
            assert_eq!(again, events[1..]);
        }
        let body = call(2, "progress", json!({"count": 100_000, "ms": 10}));
        let mut stream = begin(&client, &[], body).await;
        let last = next(&mut stream).await;
        in_flight(&gateway, 1, DEADLINE).await;
        drop(stream);
        in_flight(&gateway, 0, Duration::from_secs(5)).await;
        assert_eq!(resume(&client, id(&last)).await.status, 400);
    }
}
