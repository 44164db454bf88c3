//! H04 to H07: calls to a server on stdio.

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};
use testkit::{DEADLINE, wait_for};

use crate::support::{LONG_DEADLINE, Platform, Site, body, calling, with};

on_every_platform!(
    h04_a_call_is_answered_with_what_the_server_answered,
    h05_an_error_of_the_server_keeps_its_code_message_and_data,
    h06_a_late_answer_is_nobodys_and_the_server_stays,
    h07_calls_wait_in_a_bounded_queue,
);

async fn h04_a_call_is_answered_with_what_the_server_answered(platform: Platform) {
    let site = Site::new(platform).await;
    let (host, id) = site.hosting("h04", &["--tools", "2"]).await;
    let sent =
        json!({"text": "Grüße, \u{1F980}\n", "big": 9_007_199_254_740_993_u64, "deep": [[[]]]});
    let reply = host.call(&id, "echo", sent.clone()).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(body(&reply)["result"]["structuredContent"], sent);
    // The server can also be addressed by name, with any method.
    let list = host
        .request("h04", json!({"method": "tools/list"}))
        .await
        .unwrap();
    let tools = body(&list)["result"]["tools"].as_array().unwrap().clone();
    assert!(
        tools.iter().any(|tool| tool["name"] == "tool_1"),
        "{tools:?}"
    );
    // The path may be percent-encoded.
    let escaped = host.running.admin("/mcp/servers/%6804/call");
    let again = escaped.send(Method::POST, &[], calling("echo", sent.clone()).to_string());
    let again = again.await.collect(DEADLINE).await;
    assert_eq!(body(&again)["result"]["structuredContent"], sent);
    // Notifications during the call are streamed.
    let client = host.running.admin(&format!("/mcp/servers/{id}/call"));
    let client = client.with("accept", "text/event-stream");
    let call = calling("progress", json!({"count": 3, "ms": 1})).to_string();
    let stream = client.send(Method::POST, &[], call).await;
    assert!(stream.is_event_stream());
    let told = stream.collect(DEADLINE).await.messages();
    let progress: Vec<&Value> = told
        .iter()
        .filter(|message| message["method"] == "notifications/progress")
        .map(|message| &message["params"]["progress"])
        .collect();
    assert_eq!(progress, [1, 2, 3], "{told:?}");
    let last = told.last().unwrap();
    assert_eq!(last["content"][0]["text"], "progressed", "{told:?}");
    // Invalid requests are refused.
    for wrong in [
        json!({"method": ""}),
        json!({"method": "notifications/cancelled"}),
        json!({"method": "tools/call", "params": []}),
        json!({"method": "tools/list", "timeout_ms": 0}),
        json!({"params": {}}),
        json!({"method": "tools/list", "params": {}, "id": 7}),
        json!({"method": "tools/list", "params": {}, "more": 7}),
    ] {
        let reply = host.request(&id, wrong.clone()).await.unwrap();
        assert_eq!(reply.status, 400, "{wrong}: {}", reply.text());
    }
    host.stop().await;
}

async fn h05_an_error_of_the_server_keeps_its_code_message_and_data(platform: Platform) {
    let site = Site::new(platform).await;
    let (host, id) = site.hosting("h05", &[]).await;
    for (code, status) in [
        (-32050, 502),
        (-32602, 400),
        (-32002, 404),
        (-32603, 502),
        (7, 502),
    ] {
        let data = json!({"field": "path", "n": 1});
        let asked = json!({"code": code, "message": "it is broken", "data": data});
        let reply = host.call(&id, "rpc_error", asked).await;
        assert_eq!(reply.status, status, "{code}: {}", reply.text());
        assert_eq!(
            reply.header("content-type"),
            Some("application/problem+json")
        );
        let problem = body(&reply);
        assert_eq!(problem["status"], status);
        let wanted = json!({"code": code, "message": "it is broken", "data": data});
        assert_eq!(problem["mcp"], wanted, "{problem}");
    }
    let unknown = host
        .request(&id, json!({"method": "no/such"}))
        .await
        .unwrap();
    assert_eq!(unknown.status, 404, "{}", unknown.text());
    assert_eq!(body(&unknown)["mcp"]["code"], -32601);
    // A tool failure is a result.
    let failed = host
        .tool(&id, "fail", json!({"text": "no such file"}))
        .await;
    assert_eq!(failed["isError"], true);
    let missing = host
        .request("nobody", json!({"method": "ping"}))
        .await
        .unwrap();
    assert_eq!(missing.status, 404);
    let told = host.status(&id).await;
    assert_eq!(
        (&told["status"], &told["restart_count"]),
        (&json!("running"), &json!(0))
    );
    host.stop().await;
}

async fn h06_a_late_answer_is_nobodys_and_the_server_stays(platform: Platform) {
    let site = Site::new(platform).await;
    let host = site.start().await;
    let mut entry = site.entry("h06", &[]);
    entry["call_timeout_ms"] = 1000.into();
    let id = host.host(entry).await;
    assert_eq!(host.status(&id).await["call_timeout_ms"], 1000);
    host.mark(&id).await;
    let before = host.instances(&id, "h06");
    // Two timeouts apply: the call's and the server's.
    let own = host
        .call_within(&id, "hold", json!({"ms": 3000}), 200)
        .await;
    assert_eq!(own.status, 504, "{}", own.text());
    let problem = body(&own);
    assert_eq!(problem["mcp"]["data"]["reason"], "timeout", "{problem}");
    let configured = host.call(&id, "never", json!({})).await;
    assert_eq!(configured.status, 504, "{}", configured.text());
    // Each call gets its own response, before and after the late one arrives.
    let mut asked = 0;
    wait_for("the late answer", LONG_DEADLINE, async || {
        asked += 1;
        let echo = host.tool(&id, "echo", json!({"n": asked})).await;
        assert_eq!(echo["structuredContent"], json!({"n": asked}), "{echo}");
        let counter = host.tool(&id, "counter", json!({})).await;
        let counter = &counter["structuredContent"];
        assert!(
            counter["max"].is_u64(),
            "the response of another call: {counter}"
        );
        counter["now"] == 0
    })
    .await;
    for n in 0..20 {
        let echo = host.tool(&id, "echo", json!({"after": n})).await;
        assert_eq!(echo["structuredContent"], json!({"after": n}));
    }
    // The instance is the same, and nothing looks like a crash.
    assert!(host.is_marked(&id).await);
    assert_eq!(host.instances(&id, "h06"), before);
    let told = host.status(&id).await;
    assert_eq!(told["status"], "running");
    assert_eq!(told["restart_count"], 0);
    assert_eq!(told["last_crash"], Value::Null);
    assert_eq!(told["errors"], 2, "{told:#}");
    assert!(host.events_of(&id, "crashed").await.is_empty());
    let log = host.stop().await;
    assert!(log.contains("did not answer `hold` within 200 ms"), "{log}");
}

async fn h07_calls_wait_in_a_bounded_queue(platform: Platform) {
    let site = Site::with(platform, "queue_len = 4\n", &[platform.word()]).await;
    let (host, id) = site.hosting("h07", &[]).await;
    assert_eq!(host.status(&id).await["max_concurrency"], 1);
    let load = async || {
        let told = host.status(&id).await;
        (
            told["in_flight"].as_u64().unwrap(),
            told["waiting"].as_u64().unwrap(),
        )
    };
    let first = host.call(&id, "hold", json!({"ms": 8000}));
    let others = async {
        wait_for("a call in flight", LONG_DEADLINE, async || {
            load().await == (1, 0)
        })
        .await;
        let waiting = join_all((0..4).map(|_| host.call(&id, "hold", json!({"ms": 10}))));
        let refused = async {
            wait_for("a full queue", LONG_DEADLINE, async || {
                load().await == (1, 4)
            })
            .await;
            let refused = host.call(&id, "echo", json!({})).await;
            (refused, load().await)
        };
        tokio::join!(waiting, refused)
    };
    let (first, (waited, (refused, meanwhile))) = tokio::join!(first, others);
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(meanwhile, (1, 4), "it was not refused at once");
    let retry: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!(retry >= 1);
    assert_eq!(body(&refused)["mcp"]["data"]["reason"], "server_busy");
    for reply in waited.iter().chain([&first]) {
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let counter = host.tool(&id, "counter", json!({})).await;
    let counter = counter["structuredContent"].clone();
    assert_eq!((&counter["max"], &counter["total"]), (&json!(1), &json!(5)));

    // As many calls at a time as the registration allows.
    let wide = with(site.entry("h07-wide", &[]), json!({"max_concurrency": 3}));
    let wide = host.host(wide).await;
    assert_eq!(host.status(&wide).await["max_concurrency"], 3);
    let held = join_all((0..6).map(|_| host.call(&wide, "hold", json!({"ms": 1500})))).await;
    for reply in &held {
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let counter = host.tool(&wide, "counter", json!({})).await;
    let counter = counter["structuredContent"].clone();
    assert_eq!((&counter["max"], &counter["total"]), (&json!(3), &json!(6)));
    host.stop().await;
}
