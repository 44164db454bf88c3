//! Legacy clients resume broken streams (2025-11-25 basic/transports "Resumability and Redelivery"): no event is lost,
//! duplicated or sent to another client, and a call whose client does not return is cancelled.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use std::{collections::HashSet, time::Duration};

use common::{Gateway, LEGACY, Setup, checks, rpc, scripted, with};
use serde_json::{Value, json};
use testkit::{DEADLINE, Event, RawClient, Streaming, wait_for, within};
use tokio::time::Instant;

/// Event streams come first, so that the client gets a stream at once.
const ACCEPT_STREAM_FIRST: [(&str, &str); 1] = [("accept", "text/event-stream, application/json")];

async fn gateway() -> Gateway {
    gateway_with(json!({"maxConcurrency": 100, "callTimeoutMs": 120_000})).await
}

async fn gateway_with(options: Value) -> Gateway {
    let one = with(scripted("one", &["--resources", "1"]), options);
    Setup::new().server("one", one).connected().await
}

/// A client with a separate session.
async fn session(gateway: &Gateway, version: &str) -> RawClient {
    let client = rpc::session(gateway.client(), version).await;
    client.with("mcp-protocol-version", version)
}

fn call(id: u64, tool: &str, arguments: Value) -> String {
    let params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": "t"}});
    rpc::message(id, "tools/call", params).to_string()
}

/// Begins a slow call with a stream. Also returns the event to resume from.
async fn begin_slow(client: &RawClient, id: u64, ms: u64) -> (Streaming, String) {
    let body = call(id, "slow", json!({ "ms": ms }));
    let mut stream = begin(client, &ACCEPT_STREAM_FIRST, body).await;
    let first = next(&mut stream).await;
    assert_primes(&first);
    (stream, first.id.unwrap())
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

/// Returns the next `count` events.
async fn take(stream: &mut Streaming, count: usize) -> Vec<Event> {
    let mut events = Vec::new();
    for _ in 0..count {
        events.push(next(stream).await);
    }
    events
}

/// Asserts that no event arrives.
async fn is_quiet(stream: &mut Streaming) {
    let event = stream.next_event(Duration::from_millis(300)).await;
    assert_eq!(event, None);
}

/// Returns all events up to the end of the stream.
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

/// Returns the progress values of the events, in order.
fn progress(events: &[Event]) -> Vec<u64> {
    let messages = events.iter().filter_map(Event::json);
    let values = messages.map(|message| message["params"]["progress"].as_u64());
    values.flatten().collect()
}

/// Returns the text of the final response.
fn answer(events: &[Event]) -> String {
    let last = events.last().and_then(Event::json);
    let last = last.unwrap_or_else(|| panic!("{events:?}"));
    let text = last["result"]["content"][0]["text"].as_str();
    text.unwrap().to_owned()
}

async fn cancelled_count(gateway: &Gateway) -> String {
    let mut peer = gateway.modern().await;
    let count = peer.tool("cancelled_count", json!({})).await;
    count.text().to_owned()
}

/// Subscribes to the server's only resource and sends updates for it.
struct Updates {
    client: RawClient,
    sent: u64,
}

impl Updates {
    async fn of(client: &RawClient, source: RawClient) -> Self {
        let params = json!({"uri": "resource://one/scripted://0"});
        let subscribe = rpc::message(1, "resources/subscribe", params);
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

/// Each connection begins with an event id to resume from, and each event has a unique id. Responses that need no
/// stream get none.
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
    // A client that prefers a stream gets one before anything happens.
    begin_slow(&client, 3, 60_000).await;
}

/// A call whose stream breaks repeatedly is answered completely, exactly once.
#[tokio::test]
async fn a_dropped_stream_goes_on_where_it_broke_off() {
    let gateway = gateway().await;
    let client = session(&gateway, LEGACY).await;
    let body = call(7, "progress", json!({"count": 60, "ms": 20}));
    let mut stream = begin(&client, &[], body).await;
    let mut events = Vec::new();
    for _ in 0..6 {
        events.extend(take(&mut stream, 6).await);
        let last = id(events.last().unwrap()).to_owned();
        drop(stream);
        stream = resume(&client, &last).await;
        assert!(stream.is_event_stream(), "{}", stream.status);
        // A connection can be lost before any other event arrives.
        let first = next(&mut stream).await;
        assert_primes(&first);
        assert_eq!(id(&first), last);
    }
    events.extend(rest(stream).await);
    assert_eq!(progress(&events), (1..=60).collect::<Vec<_>>());
    assert_eq!(answer(&events), "progressed");
    let ids: HashSet<&str> = events.iter().map(id).collect();
    assert_eq!(ids.len(), events.len(), "an event id was used twice");
    // The events came from this stream, and the call was made once.
    assert_eq!(gateway.metric("calls_total", Some("one")).await, Some(1));

    // The last events are kept for a while, since they may not have arrived.
    let again = rest(resume(&client, id(&events[40])).await).await;
    assert_eq!(again[1..], events[41..]);
    let over = resume(&client, id(events.last().unwrap())).await;
    assert_eq!(over.status, 405, "no event is left to resume");
}

/// A response that arrives while its client is disconnected waits until the client resumes the stream.
#[tokio::test]
async fn an_answer_waits_for_its_client_and_a_stream_is_taken_over() {
    let gateway = gateway().await;
    let client = session(&gateway, LEGACY).await;
    let (stream, primed) = begin_slow(&client, 1, 1500).await;
    drop(stream);
    wait_for("the call's end", DEADLINE, async || {
        gateway.metric("calls_total", Some("one")).await == Some(1)
            && gateway.metric("calls_in_flight", Some("one")).await == Some(0)
    })
    .await;
    let events = rest(resume(&client, &primed).await).await;
    assert_eq!(answer(&events), "slept");
    assert_eq!(cancelled_count(&gateway).await, "0");
    // The client can resume the stream even if its old connection still looks open.
    let (mut stream, primed) = begin_slow(&client, 1, 2000).await;
    let taken = resume(&client, &primed).await;
    stream.closed(Duration::from_secs(2)).await;
    assert_eq!(answer(&rest(taken).await), "slept");
}

/// An event id is useless to other sessions, and an unknown one gives a clear error.
#[tokio::test]
async fn only_its_session_takes_a_stream_up() {
    let gateway = gateway().await;
    let owner = session(&gateway, LEGACY).await.with("authorization", "");
    let (mut stream, last) = begin_slow(&owner, 1, 60_000).await;
    let thief = owner.clone().with("authorization", "Bearer another");
    assert_eq!(resume(&thief, &last).await.status, 404, "another principal");
    let elsewhere = resume(&owner.at("/mcp/-/one"), &last).await;
    assert_eq!(elsewhere.status, 404, "another address");
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
        let said = refused.response();
        checks::contains(&said["error"]["message"], &["Last-Event-ID"]);
    }
    // The same number in another session refers to that session's own stream.
    let (mut own, first) = begin_slow(&other, 2, 60_000).await;
    assert_eq!(first, last);
    let events = resume(&other, &last).await;
    own.closed(Duration::from_secs(2)).await;
    drop(events);
    // The original reader still has the stream.
    gateway.in_flight("one", 2, DEADLINE).await;
    is_quiet(&mut stream).await;
    let reply = owner.delete(&[]).await;
    assert_eq!(reply.status, 204);
    stream.closed(Duration::from_secs(2)).await;
    assert_eq!(resume(&owner, &last).await.status, 404, "the session ended");
}

/// Messages outside calls are not lost either, and messages that were read are not sent again.
#[tokio::test]
async fn the_session_stream_goes_on_where_it_broke_off() {
    let gateway = gateway().await;
    // The oldest version of this transport has event ids, too.
    for version in ["2025-03-26", LEGACY] {
        let client = session(&gateway, version).await;
        let mut updates = Updates::of(&client, session(&gateway, LEGACY).await).await;
        let mut stream = client.get(&[]).await;
        if version == LEGACY {
            assert_primes(&next(&mut stream).await);
        }
        updates.send(4).await;
        let mut events = take(&mut stream, 4).await;
        drop(stream);
        updates.send(3).await;
        // The client resumes as if the last two events had not arrived.
        events.truncate(2);
        let last = id(&events[1]).to_owned();
        let mut stream = resume(&client, &last).await;
        if version == LEGACY {
            assert_eq!(id(&next(&mut stream).await), last);
        }
        updates.send(1).await;
        events.extend(take(&mut stream, 6).await);
        let all: Vec<u64> = (0..8).collect();
        assert_eq!(progress(&events), all, "in {version}");
        // Calls have separate streams.
        let reply = client.post(call(5, "progress", json!({"count": 2}))).await;
        let stream_of = |event: &Event| id(event).split_once('-').unwrap().0.to_owned();
        let of_call = stream_of(reply.events().last().unwrap());
        assert_ne!(of_call, stream_of(events.last().unwrap()));
        is_quiet(&mut stream).await;
    }
}

/// The replay buffer is bounded. In one stream the oldest notifications are dropped, never the response. Over all
/// streams the oldest streams are dropped, and the client gets an error.
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
    let newest: Vec<u64> = (1001 - seen.len() as u64..=1000).collect();
    assert_eq!(seen, newest, "there is a gap");
    assert_eq!(answer(&again), "progressed");

    let mut last = String::new();
    for n in 0..70 {
        let reply = client.post(call(n, "progress", json!({}))).await;
        last = id(&reply.events()[0]).to_owned();
    }
    let forgotten = resume(&client, &first).await.collect(DEADLINE).await;
    assert_eq!(forgotten.status, 400, "{}", forgotten.text());
    let again = rest(resume(&client, &last).await).await;
    assert_eq!(answer(&again), "progressed");

    // The buffer is also bounded in bytes: each of these responses takes about a quarter of a session's limit.
    let before = gateway.memory_now();
    for n in 0..40 {
        let call = call(n, "big", json!({"bytes": 2_000_000}));
        let reply = client.post_with(&ACCEPT_STREAM_FIRST, call).await;
        last = id(&reply.events()[0]).to_owned();
    }
    let grown = gateway.memory_now().saturating_sub(before);
    assert!(grown < 48 * 1024, "memory grew by {grown} KiB");
    let again = rest(resume(&client, &last).await).await;
    assert_eq!(answer(&again).len(), 2_000_000);
}

/// A call whose client does not return is cancelled at its server: after a while, or at once if the client cancels it,
/// ends its session or the call times out.
#[tokio::test]
async fn a_call_that_nobody_comes_back_for_is_cancelled() {
    let gateway = gateway().await;
    let client = session(&gateway, LEGACY).await;
    let slow = async |client: &RawClient, id: u64| {
        let (_stream, primed) = begin_slow(client, id, 100_000).await;
        // Waits until the call is at the server. It is queued and recorded a moment earlier.
        let mut peer = gateway.modern().await;
        wait_for("the call at the server", DEADLINE, async || {
            peer.tool("running", json!({})).await.text() == "1"
        })
        .await;
        primed
    };
    // `slow` drops the stream before the client cancels the call.
    slow(&client, 1).await;
    let params = json!({"requestId": 1});
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
    assert_eq!(client.post(cancel.to_string()).await.status, 202);
    gateway.in_flight("one", 0, Duration::from_secs(5)).await;
    let ending = session(&gateway, LEGACY).await;
    slow(&ending, 2).await;
    assert_eq!(ending.delete(&[]).await.status, 204);
    gateway.in_flight("one", 0, Duration::from_secs(5)).await;

    let last = slow(&client, 3).await;
    let left = Instant::now();
    gateway.in_flight("one", 0, Duration::from_secs(50)).await;
    let after = left.elapsed();
    assert!(after > Duration::from_secs(20), "{after:?}");
    wait_for("the cancellations", Duration::from_secs(5), async || {
        cancelled_count(&gateway).await == "3"
    })
    .await;
    assert_eq!(resume(&client, &last).await.status, 400);
}

/// The call timeout continues to run without a reader.
#[tokio::test]
async fn a_call_that_nobody_reads_has_its_own_time_limit() {
    let gateway = gateway_with(json!({"callTimeoutMs": 2000})).await;
    let client = session(&gateway, LEGACY).await;
    let (stream, primed) = begin_slow(&client, 1, 100_000).await;
    drop(stream);
    gateway.in_flight("one", 0, Duration::from_secs(10)).await;
    let events = rest(resume(&client, &primed).await).await;
    let told = events.last().and_then(Event::json).unwrap();
    checks::contains(&told["error"]["message"], &["2000 ms"]);
}

/// Clients of older versions fail on an event without data: their streams begin with the first message. A dropped
/// stream does not cancel the call, and can be resumed.
#[tokio::test]
async fn older_clients_are_not_primed() {
    let gateway = gateway().await;
    for version in ["2025-03-26", "2025-06-18"] {
        let client = session(&gateway, version).await;
        for headers in [&[][..], &ACCEPT_STREAM_FIRST[..]] {
            let body = call(1, "progress", json!({"count": 2}));
            let reply = client.post_with(headers, body).await;
            let events = reply.events();
            assert_eq!(progress(&events), [1, 2], "{version}");
            assert_eq!(answer(&events), "progressed");
            assert_eq!(events.len(), 3, "{events:?}");
            for event in &events {
                assert!(event.id.is_some() && event.retry.is_none(), "{event:?}");
            }
            // The events of an answered call can still be replayed.
            let again = rest(resume(&client, id(&events[0])).await).await;
            assert_eq!(again, events[1..]);
        }
        let body = call(2, "progress", json!({"count": 100_000, "ms": 10}));
        let mut stream = begin(&client, &[], body).await;
        let last = next(&mut stream).await;
        gateway.in_flight("one", 1, DEADLINE).await;
        drop(stream);
        let mut again = resume(&client, id(&last)).await;
        let event = next(&mut again).await;
        assert!(progress(&[event])[0] > progress(&[last])[0]);
        gateway.in_flight("one", 1, DEADLINE).await;
        let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}});
        client.post(cancelled.to_string()).await;
        gateway.in_flight("one", 0, Duration::from_secs(5)).await;
    }
}
