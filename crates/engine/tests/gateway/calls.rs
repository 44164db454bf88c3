//! One server, many calls: queues, timeouts, ids and cancellation.

use std::{num::NonZeroU32, time::Duration};

use futures_util::FutureExt;
use model::ServerSpec;
use serde_json::{Value, json};
use tokio::{task::coop, time::Instant};

use crate::support::{ERAS, World, client::Client, hosted, quiet, stdio, takes, until};

fn limited(spec: ServerSpec, limit: u32) -> ServerSpec {
    ServerSpec {
        max_concurrency: NonZeroU32::new(limit),
        ..spec
    }
}

fn numbers(held: &[Value]) -> Vec<u64> {
    held.iter()
        .map(|call| call["n"].as_u64().unwrap())
        .collect()
}

/// The caller gets an error after the timeout, and the late response is dropped.
#[tokio::test(start_paused = true)]
async fn h06_a_late_answer_is_nobodys() {
    for spec in [stdio("one"), hosted("one", |_| {})] {
        for era in ERAS {
            let (world, one) = World::running(spec.clone(), |script| script.era = era).await;
            for era in ERAS {
                let client = world.client(era).await;
                let began = Instant::now();
                let reply = client.tool("hold", json!({ "n": 1 })).await;
                assert_eq!(began.elapsed(), ServerSpec::DEFAULT_CALL_TIMEOUT);
                assert_eq!(reply.reason(), "timeout");
                reply.says("`hold`");
                // The server is notified of the timeout. It responds even so, while the next call is waiting.
                quiet().await;
                assert!(one.held().is_empty());
                let next = client.begin_tool("hold", json!({ "n": 2 }));
                until("the next call is there", || !one.held().is_empty()).await;
                assert_eq!(one.release(), 2);
                assert_eq!(next.reply().await.json()["n"], 2);
            }
            assert_eq!((one.starts(), one.cancelled().len()), (1, 2));
            assert_eq!(world.server("one").load(), (0, 0));
        }
    }
}

/// The timeout of the server's entry applies, and the error names it.
#[tokio::test(start_paused = true)]
async fn h06_the_time_is_the_servers_own() {
    let mut spec = stdio("one");
    spec.call_timeout = Duration::from_secs(5);
    let (world, _) = World::running(spec, |_| {}).await;
    let began = Instant::now();
    let reply = world.legacy().await.tool("hold", json!({})).await;
    assert_eq!(began.elapsed(), Duration::from_secs(5));
    reply.says("5000 ms");
}

/// A registered stdio server gets one call at a time, and the rest wait in line. If the line is full, calls are refused
/// immediately.
#[tokio::test(start_paused = true)]
async fn h07_a_hosted_server_has_one_call_in_flight_and_a_bounded_line() {
    let world = World::with(|settings| settings.limits.queue_len = 3);
    let one = world.scripted("one");
    world.host([hosted("one", |_| {})]);
    world.up(&["one"]).await;
    let client = world.legacy().await;
    let mut calls: Vec<_> = (0..4)
        .map(|n| client.begin_tool("hold", json!({ "n": n })))
        .collect();
    quiet().await;
    assert_eq!(numbers(&one.held()), [0]);
    assert_eq!(world.server("one").load(), (1, 3));
    let began = Instant::now();
    let refused = client.tool("hold", json!({ "n": 4 })).await;
    assert!(began.elapsed().is_zero());
    assert_eq!(refused.reason(), "server_busy");
    assert_eq!(refused.error()["data"]["retryAfterMs"], 1000);
    for n in 0..4 {
        assert_eq!(numbers(&one.held()), [n]);
        one.release();
        assert_eq!(calls.remove(0).reply().await.json()["n"], n);
        quiet().await;
    }
}

/// At ten times the load that a server can take, its calls are answered as before: clients that repeat refused calls at
/// once are slowed down, and no refused call waits for longer than a second.
#[tokio::test(start_paused = true)]
async fn h07_refused_calls_do_not_crowd_out_others() {
    let world = World::with(|settings| settings.limits.queue_len = 10);
    let one = world.scripted("one");
    world.host([hosted("one", |_| {})]);
    world.up(&["one"]).await;
    let client = world.legacy().await;
    let accepted: Vec<_> = (0..11)
        .map(|n| client.begin_tool("hold", json!({ "n": n })))
        .collect();
    quiet().await;
    let began = Instant::now();
    let persistent = (0..100).map(|_| async {
        let mut count = 0;
        while began.elapsed() < Duration::from_secs(10) {
            let asked = Instant::now();
            let reply = client.tool("hold", json!({})).await;
            assert_eq!(reply.reason(), "server_busy");
            assert!(asked.elapsed() <= Duration::from_millis(1001));
            count += 1;
        }
        count
    });
    let count: u32 = futures_util::future::join_all(persistent)
        .await
        .into_iter()
        .sum();
    assert!(
        (2000..=2500).contains(&count),
        "{count} refused calls in 10 s"
    );
    for (n, call) in accepted.into_iter().enumerate() {
        assert_eq!(one.release(), 1);
        assert_eq!(call.reply().await.json()["n"], n);
        quiet().await;
    }
}

/// A call that waits in line for too long is never sent.
#[tokio::test(start_paused = true)]
async fn h07_time_in_line_counts() {
    let (world, one) = World::running(hosted("one", |_| {}), |_| {}).await;
    let client = world.legacy().await;
    let first = client.begin_tool("hold", json!({ "n": 0 }));
    quiet().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let second = client.begin_tool("hold", json!({ "n": 1 }));
    assert_eq!(first.reply().await.reason(), "timeout");
    quiet().await;
    assert_eq!(numbers(&one.held()), [1]);
    let third = client.begin_tool("hold", json!({ "n": 2 }));
    let (second, third) = tokio::join!(second.reply(), third.reply());
    assert_eq!(second.reason(), "timeout");
    // The third call arrived after the second was sent, and has the rest of its own timeout.
    assert_eq!(third.reason(), "timeout");
    assert_eq!(one.heard("tools/call").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn g14_a_limit_holds_and_the_rest_is_in_order() {
    for era in ERAS {
        let (world, one) =
            World::running(limited(stdio("one"), 3), |script| script.era = era).await;
        for era in ERAS {
            let client = world.client(era).await;
            let calls: Vec<_> = (0..12)
                .map(|n| client.begin_tool("hold", json!({ "n": n })))
                .collect();
            for batch in 0..4 {
                quiet().await;
                let first = batch * 3;
                assert_eq!(numbers(&one.held()), [first, first + 1, first + 2]);
                one.release();
            }
            for (n, call) in calls.into_iter().enumerate() {
                assert_eq!(call.reply().await.json()["n"], n);
            }
        }
    }
}

/// Clients use the same request ids. The server sees each id once.
#[tokio::test(start_paused = true)]
async fn a02_a_thousand_calls_with_colliding_ids() {
    let (world, one) = World::running(limited(stdio("one"), 1000), |_| {}).await;
    let mut calls = Vec::new();
    for number in 0..10 {
        let client = world.client(ERAS[number % 2]).await;
        for id in 0..100 {
            let params = json!({ "name": "hold", "arguments": { "client": number, "id": id } });
            calls.push((number, id, client.begin_as(id, "tools/call", params)));
        }
    }
    until("all are there", || one.held().len() == 1000).await;
    let heard = one.heard("tools/call");
    let ids: std::collections::BTreeSet<_> = heard
        .iter()
        .map(|heard| heard.frame["id"].as_u64())
        .collect();
    assert_eq!(ids.len(), 1000);
    one.release();
    for (number, id, call) in calls {
        let reply = call.reply().await;
        assert_eq!(reply.frame["id"], id);
        assert_eq!(reply.json(), json!({ "client": number, "id": id }));
    }
}

/// A request id that is in use in the same session is refused. The request in flight continues.
#[tokio::test(start_paused = true)]
async fn a02_an_id_in_use_is_refused() {
    let (world, one) = World::running(stdio("one"), |_| {}).await;
    let client = world.legacy().await;
    let params = json!({ "name": "hold", "arguments": {} });
    let first = client.begin_as(7, "tools/call", params.clone());
    let again = client.begin_as(7, "tools/call", params).reply().await;
    assert_eq!(again.error()["code"], -32600);
    quiet().await;
    assert_eq!(one.release(), 1);
    first.reply().await.result();
}

/// Cancels the call, and checks that nothing of it is left.
async fn cancelled(world: &World, client: &Client, pending: crate::support::client::Pending) {
    if let Some(pending) = client.cancel(pending) {
        assert_eq!(pending.reply().await.frame, Value::Null);
    }
    quiet().await;
    assert_eq!(world.server("one").load().1, 0);
}

#[tokio::test(start_paused = true)]
async fn g15_a_call_in_line_is_cancelled() {
    for era in ERAS {
        let (world, one) = World::running(hosted("one", |_| {}), |_| {}).await;
        let client = world.client(era).await;
        let first = client.begin_tool("hold", json!({ "n": 0 }));
        quiet().await;
        let second = client.begin_tool("hold", json!({ "n": 1 }));
        quiet().await;
        assert_eq!(world.server("one").load(), (1, 1));
        cancelled(&world, &client, second).await;
        one.release();
        assert_eq!(first.reply().await.json()["n"], 0);
        assert_eq!(client.tool("echo", json!({ "n": 2 })).await.json()["n"], 2);
        assert_eq!(numbers(&heard(&world)), [0, 2]);
        assert!(one.cancelled().is_empty());
    }
}

fn heard(world: &World) -> Vec<Value> {
    let heard = world.scripted("one").heard("tools/call");
    let arguments = heard
        .iter()
        .map(|heard| &heard.frame["params"]["arguments"]);
    arguments.cloned().collect()
}

/// A task that has read many requests has used up its budget, so that most futures do nothing until it yields.
#[tokio::test(start_paused = true)]
async fn g14_a_request_has_its_place_once_it_is_polled() {
    let (world, _one) = World::running(stdio("one"), |_| {}).await;
    for era in ERAS {
        let client = world.client(era).await;
        while coop::has_budget_remaining() {
            let _ = coop::consume_budget().now_or_never();
        }
        let call = client.begin_tool("echo", json!({ "n": 1 }));
        assert_eq!(world.server("one").load().0, 1, "{era:?}");
        assert_eq!(call.reply().await.json()["n"], 1);
    }
}

/// The call is cancelled during the server's first start, when its catalog is unknown, and during a later start.
#[tokio::test(start_paused = true)]
async fn g15_a_call_is_cancelled_while_its_server_starts() {
    for era in ERAS {
        let world = World::with(|settings| {
            settings.start = model::StartPolicy::Lazy;
            settings.limits.server_idle = Duration::from_secs(60);
        });
        let one = world.scripted("one");
        one.script(|script| script.start_delay = Duration::from_secs(8));
        world.configure(&[stdio("one")]);
        let client = world.client(era).await;
        for start in 1..=2 {
            let call = client.begin_tool("echo", json!({ "n": 0 }));
            quiet().await;
            assert_eq!((world.state("one"), one.starts()), ("starting", start));
            cancelled(&world, &client, call).await;
            // The start continues, since another client may want the server.
            takes(world.until_state("one", "running").await, 7.9, 8.1);
            assert_eq!(client.tool("echo", json!({ "n": 1 })).await.json()["n"], 1);
            takes(world.until_state("one", "idle").await, 60.0, 121.0);
        }
        assert_eq!(numbers(&heard(&world)), [1, 1]);
        assert_eq!((one.starts(), one.cancelled().len()), (2, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn g15_a_call_in_flight_is_cancelled_at_its_server() {
    for server in ERAS {
        let (world, one) =
            World::running(limited(stdio("one"), 1), |script| script.era = server).await;
        for (times, era) in ERAS.into_iter().enumerate() {
            let client = world.client(era).await;
            let call = client.begin_tool("hold", json!({ "n": 0 }));
            quiet().await;
            assert_eq!(one.held().len(), 1);
            cancelled(&world, &client, call).await;
            let told = one.cancelled();
            assert_eq!(told.len(), times + 1);
            assert_eq!(told[times]["params"]["name"], "hold");
            // The call's place in the queue is free again.
            assert_eq!(world.server("one").load(), (0, 0));
            assert_eq!(client.tool("echo", json!({ "n": 1 })).await.json()["n"], 1);
        }
    }
}

/// When a session ends, its calls are cancelled.
#[tokio::test(start_paused = true)]
async fn g15_calls_end_with_their_session() {
    let (world, one) = World::running(stdio("one"), |_| {}).await;
    let client = world.legacy().await;
    let calls = [1, 2, 3].map(|n| client.begin_tool("hold", json!({ "n": n })));
    quiet().await;
    assert_eq!(one.held().len(), 3);
    client.leave().await;
    for call in calls {
        assert_eq!(call.reply().await.frame, Value::Null);
    }
    quiet().await;
    assert_eq!((one.held().len(), one.cancelled().len()), (0, 3));
    assert_eq!(one.running(), 1);
}
