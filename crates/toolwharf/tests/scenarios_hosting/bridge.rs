//! H04 to H07: calls to a server on stdio.

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};
use testkit::{DEADLINE, Reply, wait_for};

use crate::{
    common::checks,
    support::{LONG_DEADLINE, Platform, Site, body, calling},
};

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
    let tools = host.tools("h04").await;
    assert!(tools.contains(&"tool_1".to_owned()), "{tools:?}");
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
        let kind = reply.header("content-type");
        assert_eq!(kind, Some("application/problem+json"));
        let problem = body(&reply);
        assert_eq!(problem["status"], status);
        let wanted = json!({"code": code, "message": "it is broken", "data": data});
        assert_eq!(problem["mcp"], wanted, "{problem}");
    }
    let unknown = json!({"method": "no/such"});
    let unknown = host.request(&id, unknown).await.unwrap();
    assert_eq!(unknown.status, 404, "{}", unknown.text());
    assert_eq!(body(&unknown)["mcp"]["code"], -32601);
    // A tool failure is returned as a result.
    let failed = json!({"text": "no such file"});
    let failed = host.tool(&id, "fail", failed).await;
    assert_eq!(failed["isError"], true);
    let ping = json!({"method": "ping"});
    let missing = host.request("nobody", ping).await.unwrap();
    assert_eq!(missing.status, 404);
    let told = host.status(&id).await;
    checks::members(&told, json!({"status": "running", "restart_count": 0}));
    host.stop().await;
}

async fn h06_a_late_answer_is_nobodys_and_the_server_stays(platform: Platform) {
    let (site, host) = Site::started(platform).await;
    let mut entry = site.entry("h06", &[]);
    entry["call_timeout_ms"] = 1000.into();
    let id = host.host(entry).await;
    assert_eq!(host.status(&id).await["call_timeout_ms"], 1000);
    host.mark(&id).await;
    let before = host.instances(&id, "h06");
    // Two timeouts apply: the call's and the server's.
    let held = json!({"ms": 3000});
    let own = host.call_within(&id, "hold", held, 200).await;
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
        assert!(counter["max"].is_u64(), "from another call: {counter}");
        counter["now"] == 0
    })
    .await;
    for n in 0..20 {
        let echo = host.tool(&id, "echo", json!({"after": n})).await;
        assert_eq!(echo["structuredContent"], json!({"after": n}));
    }
    // The instance is the same, and no crash is reported.
    assert!(host.is_marked(&id).await);
    assert_eq!(host.instances(&id, "h06"), before);
    let told = host.status(&id).await;
    let expected =
        json!({"status": "running", "restart_count": 0, "last_crash": null, "errors": 2});
    checks::members(&told, expected);
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
        ["in_flight", "waiting"].map(|key| told[key].as_u64().unwrap())
    };
    let loaded = async |expected: [u64; 2]| {
        let what = format!("calls in flight and waiting: {expected:?}");
        wait_for(&what, LONG_DEADLINE, async || load().await == expected).await;
    };
    let first = host.call(&id, "hold", json!({"ms": 8000}));
    let others = async {
        loaded([1, 0]).await;
        let waiting = join_all((0..4).map(|_| host.call(&id, "hold", json!({"ms": 10}))));
        let refused = async {
            loaded([1, 4]).await;
            let refused = host.call(&id, "echo", json!({})).await;
            (refused, load().await)
        };
        tokio::join!(waiting, refused)
    };
    let (first, (waited, (refused, meanwhile))) = tokio::join!(first, others);
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(meanwhile, [1, 4], "the call was not refused at once");
    let retry: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!(retry >= 1);
    assert_eq!(body(&refused)["mcp"]["data"]["reason"], "server_busy");
    let counted = async |id: &str, replies: &[Reply], max: u64| {
        for reply in replies {
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
        let counter = host.tool(id, "counter", json!({})).await;
        let expected = json!({"max": max, "total": replies.len()});
        checks::members(&counter["structuredContent"], expected);
    };
    counted(&id, &[waited, vec![first]].concat(), 1).await;

    // The server gets as many calls at a time as its registration allows.
    let wide = site.entry_with("h07-wide", &[], json!({"max_concurrency": 3}));
    let wide = host.host(wide).await;
    assert_eq!(host.status(&wide).await["max_concurrency"], 3);
    let held = join_all((0..6).map(|_| host.call(&wide, "hold", json!({"ms": 1500})))).await;
    counted(&wide, &held, 3).await;
    host.stop().await;
}
