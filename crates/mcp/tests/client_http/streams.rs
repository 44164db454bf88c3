//! Responses that come as streams: events before the response, and interrupted streams.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::Method;
use mcp::{
    Frame,
    client::{CallError, Event},
};
use serde_json::json;
use tokio::{sync::mpsc, time::Instant};

use crate::{
    calls::{answer, start},
    server::{
        Hit, Reply, Server, empty, event, events, json_reply, legacy, modern, result, soon, stream,
    },
};

fn cancellations(server: &Server) -> usize {
    server.count(|hit| hit.rpc() == "notifications/cancelled")
}

#[tokio::test]
async fn notifications_and_requests_come_before_the_answer() {
    let server = legacy("2025-06-18", |hit: Hit| async move {
        if hit.method == Method::GET {
            return empty(405);
        }
        if hit.rpc() != "tools/call" {
            return empty(202);
        }
        let progress = json!({"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":hit.id(),"progress":1}});
        let ping = json!({"jsonrpc":"2.0","id":"p","method":"ping"});
        let ask = json!({"jsonrpc":"2.0","id":77,"method":"roots/list"});
        let forged = json!({"jsonrpc":"2.0","id":999,"result":{}});
        events(&[
            "retry: 5\n\n".into(),
            event(&progress),
            "event: other\ndata: {}\n\n".into(),
            "data: garbage\n\n".into(),
            event(&ping),
            event(&forged),
            event(&ask),
            format!("data: {}\n\n", result(&hit, json!({"ok": true}))),
        ])
    })
    .await;
    let (client, _ambient) = soon(server.connect()).await.expect("a legacy server");
    let mut call = start(&client).await;
    let Ok(Event::Notification(progress)) = soon(call.next()).await else {
        panic!("no progress");
    };
    assert_eq!(progress.method(), "notifications/progress");
    let Ok(Event::Request(request)) = soon(call.next()).await else {
        panic!("no request");
    };
    assert_eq!((request.method(), request.id()), ("roots/list", &b"77"[..]));
    soon(client.send(&Frame::result(request.id(), b"{\"roots\":[]}")))
        .await
        .expect("taken");
    let Ok(Event::Response(response)) = soon(call.next()).await else {
        panic!("no response");
    };
    assert_eq!(response.body(), b"{\"ok\":true}");
    assert_eq!(client.stray_answers(), 2);
    let pong = server.hit(|hit| hit.body["id"] == "p").await;
    assert_eq!(pong.body["result"], json!({}));
    let roots = server.hit(|hit| hit.body["id"] == 77).await;
    assert_eq!(roots.body["result"]["roots"], json!([]));
    assert_eq!(cancellations(&server), 0);
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_at_a_legacy_server() {
    let server = legacy("2025-06-18", |hit: Hit| async move {
        match hit.rpc() {
            "tools/call" => std::future::pending::<Reply>().await,
            "notifications/cancelled" => empty(202),
            _ => empty(405),
        }
    })
    .await;
    let (client, _ambient) = soon(server.connect()).await.expect("a legacy server");
    let mut call = start(&client).await;
    tokio::select! {
        event = call.next() => panic!("{event:?}"),
        hit = server.hit(|hit| hit.rpc() == "tools/call") => assert_eq!(*hit.id(), call.upstream_id()),
    }
    let id = call.upstream_id();
    drop(call);
    let cancelled = server
        .hit(|hit| hit.rpc() == "notifications/cancelled")
        .await;
    assert_eq!(cancelled.body["params"]["requestId"], id);
    assert_eq!(cancelled.header("mcp-session-id"), Some("s-1"));
    // A request that was never sent is not cancelled.
    drop(start(&client).await);
    let _ = soon(client.send(&Frame::notification("notifications/cancelled", None))).await;
    assert_eq!(cancellations(&server), 2);
}

#[tokio::test]
async fn a_dropped_call_closes_its_stream_at_a_modern_server() {
    for headers_first in [false, true] {
        let (gone, mut is_gone) = mpsc::channel::<()>(1);
        let server = modern(move |_| {
            let gone = gone.clone();
            async move {
                if headers_first {
                    let (sender, reply) = stream();
                    let progress =
                        json!({"jsonrpc":"2.0","method":"notifications/progress","params":{}});
                    sender.send(event(&progress)).await.expect("room for one");
                    drop(tokio::task::spawn_blocking(move || {
                        futures_executor(async move {
                            sender.closed().await;
                            let _ = gone.send(()).await;
                        });
                    }));
                    reply
                } else {
                    let _gone = OnDrop(gone);
                    std::future::pending::<Reply>().await
                }
            }
        })
        .await;
        let (client, _ambient) = soon(server.connect()).await.expect("a modern server");
        let mut call = start(&client).await;
        if headers_first {
            assert!(matches!(
                soon(call.next()).await,
                Ok(Event::Notification(_))
            ));
        } else {
            tokio::select! {
                event = call.next() => panic!("{event:?}"),
                _ = server.hit(|hit| hit.rpc() == "tools/call") => {}
            }
        }
        drop(call);
        soon(is_gone.recv()).await;
        assert_eq!(cancellations(&server), 0);
    }
}

fn futures_executor(task: impl Future<Output = ()>) {
    tokio::runtime::Handle::current().block_on(task);
}

struct OnDrop(mpsc::Sender<()>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        let _ = self.0.try_send(());
    }
}

#[tokio::test]
async fn a_stream_that_breaks_off_is_taken_up_again() {
    let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let asked = Arc::new(Mutex::new(None));
    let gets = Arc::new(AtomicUsize::new(0));
    let server = {
        let times = times.clone();
        legacy("2025-11-25", move |hit: Hit| {
            let (times, asked, gets) = (times.clone(), asked.clone(), gets.clone());
            async move {
                if hit.rpc() == "tools/call" {
                    *asked.lock().expect("unharmed") = Some(hit.clone());
                    times.lock().expect("unharmed").push(Instant::now());
                    return events(&["id: e-1\nretry: 300\ndata:\n\n".into()]);
                }
                let Some(last) = hit.header("last-event-id") else {
                    return empty(405);
                };
                times.lock().expect("unharmed").push(Instant::now());
                match (gets.fetch_add(1, Ordering::SeqCst), last) {
                    (0, "e-1") => empty(503),
                    (1, "e-1") => events(&["id: e-2\ndata:\n\n".into()]),
                    (2, "e-2") => {
                        let asked = asked.lock().expect("unharmed").take().expect("a call");
                        events(&[format!(
                            "id: e-3\n{}",
                            event(&result(&asked, json!({"late": 1})))
                        )])
                    }
                    other => panic!("{other:?}"),
                }
            }
        })
        .await
    };
    let (client, _ambient) = soon(server.connect()).await.expect("a legacy server");
    let frame = answer(&client).await.expect("an answer");
    assert_eq!(frame.body(), b"{\"late\":1}");
    let times = times.lock().expect("unharmed");
    assert_eq!(times.len(), 4);
    for pair in times.windows(2) {
        assert!(
            pair[1] - pair[0] >= Duration::from_millis(295),
            "sooner than `retry` said"
        );
    }
}

#[tokio::test]
async fn a_stream_that_cannot_be_taken_up_again_fails_the_call() {
    let check = |chunk: &'static str, expect: &'static str| async move {
        let server = legacy("2025-11-25", move |hit: Hit| async move {
            if hit.method == Method::GET {
                return empty(405);
            }
            events(&[chunk.into()])
        })
        .await;
        let (client, _ambient) = soon(server.connect()).await.expect("a legacy server");
        let Err(CallError::Closed(why)) = answer(&client).await else {
            panic!("not closed");
        };
        assert!(why.contains("ended early") && why.contains(expect), "{why}");
    };
    check(": nothing\n\n", "early").await;
    check("id: 1\nretry: 0\ndata:\n\n", "HTTP 405").await;

    let server = modern(|_| async { events(&["id: 1\nretry: 0\ndata:\n\n".into()]) }).await;
    let (client, _ambient) = soon(server.connect()).await.expect("a modern server");
    assert!(matches!(answer(&client).await, Err(CallError::Closed(_))));
    assert_eq!(server.count(|hit| hit.method == Method::GET), 0);
}

#[tokio::test]
async fn an_endless_event_is_refused() {
    let server = modern(|_| async {
        let (sender, reply) = stream();
        drop(tokio::task::spawn_blocking(move || {
            let chunk = "x".repeat(64 * 1024);
            let _ = sender.blocking_send("data: ".into());
            while sender.blocking_send(chunk.clone()).is_ok() {}
        }));
        reply
    })
    .await;
    let (client, _ambient) = soon(server.connect()).await.expect("a modern server");
    let error = answer(&client).await.expect_err("too long");
    assert!(matches!(error, CallError::Refused(_)), "{error}");
}

#[tokio::test]
async fn a_broken_answer_in_a_stream_ends_its_call() {
    let server = modern(|hit: Hit| async move {
        events(&[format!(
            "data: {{\"jsonrpc\":\"2.0\",\"id\":{0},\"result\":1,\"result\":2}}\n\n",
            hit.id()
        )])
    })
    .await;
    let (client, _ambient) = soon(server.connect()).await.expect("a modern server");
    assert!(matches!(answer(&client).await, Err(CallError::Refused(_))));
}

#[tokio::test]
async fn the_event_stream_brings_what_belongs_to_no_call() {
    let gets = Arc::new(AtomicUsize::new(0));
    let server = legacy("2025-06-18", move |hit: Hit| {
        let gets = gets.clone();
        async move {
            if hit.method != Method::GET {
                return json_reply(202, &json!({}));
            }
            let changed = json!({"jsonrpc":"2.0","method":"notifications/tools/list_changed"});
            let ask = json!({"jsonrpc":"2.0","id":5,"method":"roots/list"});
            match gets.fetch_add(1, Ordering::SeqCst) {
                0 => events(&[
                    "retry: 10\n\n".into(),
                    format!("id: a\n{}", event(&changed)),
                ]),
                1 if hit.header("last-event-id") == Some("a") => events(&[event(&ask)]),
                1 => panic!("no Last-Event-ID"),
                _ => empty(405),
            }
        }
    })
    .await;
    let (client, mut ambient) = soon(server.connect()).await.expect("a legacy server");
    let Some(Event::Notification(frame)) = soon(ambient.recv()).await else {
        panic!("no notification");
    };
    assert_eq!(frame.method(), "notifications/tools/list_changed");
    let Some(Event::Request(frame)) = soon(ambient.recv()).await else {
        panic!("no request");
    };
    assert_eq!(frame.method(), "roots/list");
    drop(client);
}

/// A client knows whether the server can send messages outside of any call.
#[tokio::test]
async fn a_server_has_a_stream_or_not() {
    for has_stream in [false, true] {
        let open = Arc::new(Mutex::new(Vec::new()));
        let opened = open.clone();
        let server = legacy("2025-06-18", move |hit: Hit| {
            let opened = opened.clone();
            async move {
                if hit.method != Method::GET || !has_stream {
                    return empty(405);
                }
                let (sender, reply) = stream();
                opened.lock().expect("no panic").push(sender);
                reply
            }
        })
        .await;
        let (client, _ambient) = soon(server.connect()).await.expect("a legacy server");
        server.hit(|hit| hit.method == Method::GET).await;
        if has_stream {
            crate::server::wait_for(|| client.has_stream().then_some(())).await;
        }
        assert_eq!(client.has_stream(), has_stream);
    }
}
