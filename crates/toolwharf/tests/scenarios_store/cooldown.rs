//! P12: a server that cannot be reached is left alone for a minute, then tried again.
//!
//! With SQLite, the test waits for the default of a minute once; clients and an agent are tested in the same wait. With
//! Postgres, which makes no difference here, the cooldown is shorter.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{
    DEADLINE, at_once,
    llm::{Llm, says},
    wait_for,
};
use tokio::time::Instant;

use crate::{
    api::Api,
    common::{chat, checks, is_away},
    support::{Db, Governed, legacy, pid, restart},
};

/// Part of the message about a server during its cooldown.
const FAILED: &str = "3 attempts in a row failed";

on_both!(p12_three_failures_make_it_unavailable_for_a_minute);

async fn p12_three_failures_make_it_unavailable_for_a_minute(db: &Db) {
    let llm = Llm::start(&json!({ "turns": [says("Hello.")], "repeat_last": true })).await;
    let (seconds, breaker) = match db.is_sqlite() {
        true => (60, ""),
        false => (20, "[breaker]\ncooldown = \"20s\"\n"),
    };
    let cooldown = Duration::from_secs(seconds);
    let settings = chat::agent(&llm, "") + breaker;
    let setup = db.setup().settings(&settings);
    let setup = setup.env("ANTHROPIC_API_KEY", "sk-test");
    let gateway = setup.serve().await;
    let api = Api::admin(&gateway);
    for project in ["/projects/a", "/projects/agents"] {
        api.put(project, json!({})).await;
    }
    // Only an agent uses this server. The agent's chats try to start it, and continue without it.
    let options = ["--no-builtin", "--tools", "1"];
    let talked = Governed::new(gateway.folder(), "talked", &options);
    talked.order("exit 5");
    let path = "/mcp/servers/talked?project=agents";
    api.put(path, talked.entry()).await;
    let is = async |path: &str, status: &str, limit: Duration| {
        wait_for(&format!("{path}: {status}"), limit, async || {
            api.get(path).await["status"] == status
        })
        .await;
    };
    let say = async || {
        let message = json!({ "message": "Hi" });
        let events = chat::chat(&gateway, "/chat?project=agents", &message).await;
        assert_eq!(chat::text(&events), "Hello.", "{events:?}");
        let missing = chat::of(&events, "servers_missing").first().map(|event| {
            let one = &event["servers"][0];
            assert_eq!(one["server"], "talked", "{event}");
            one["reason"].as_str().unwrap().to_owned()
        });
        let requests = llm.requests().await;
        let offered = requests.last().unwrap()["body"]["tools"].to_string();
        let is_offered = offered.contains("\"tool_0\"");
        assert_eq!(missing.is_none(), is_offered, "{offered}");
        missing
    };
    checks::contains(say().await.unwrap(), &["exit code 5"]);
    is(path, "unavailable", DEADLINE).await;
    checks::contains(say().await.unwrap(), &[FAILED]);
    assert_eq!(talked.starts(), 3);
    let path_of = |server: &Governed| format!("/mcp/servers/{}?project=a", server.name());
    let servers = ["bad", "mended"].map(|name| Governed::new(gateway.folder(), name, &[]));
    let mut peers = Vec::new();
    for server in &servers {
        server.order("exit 5");
        api.put(&path_of(server), server.entry()).await;
        peers.push(legacy(&gateway, &format!("a/{}", server.name())).await);
    }
    for (server, peer) in servers.iter().zip(&mut peers) {
        let failed = peer.tool("echo", json!({})).await;
        assert!(is_away(&failed.response), "{failed:?}");
        is(&path_of(server), "unavailable", DEADLINE).await;
        assert_eq!(server.starts(), 3);
    }
    let since = Instant::now();
    let start = Instant::now();
    assert!(say().await.is_some());
    at_once("the turn", start);
    assert_eq!(talked.starts(), 3, "a chat tried to start the server");
    let is_refused = |answer: &Value, start: Instant| {
        assert!(is_away(answer), "{answer}");
        at_once("the call", start);
        checks::string(&answer["error"]["message"], &[FAILED]);
        let retry = answer["error"]["data"]["retryAfterMs"].as_u64().unwrap();
        let expected = seconds * 1000 / 3..=seconds * 1000;
        assert!(expected.contains(&retry), "{retry}");
    };
    for (server, peer) in servers.iter().zip(&mut peers) {
        for _ in 0..5 {
            let start = Instant::now();
            let refused = peer.tool("echo", json!({})).await;
            is_refused(&refused.response, start);
        }
        let shown = api.get(&path_of(server)).await;
        checks::string(&shown["reason"], &[FAILED]);
        let next = shown["next_attempt_ms"].as_u64();
        assert!(next.is_some_and(|ms| ms <= seconds * 1000), "{shown}");
        assert_eq!(server.starts(), 3, "a call tried to start the server");
    }
    // Two servers recover in the meantime, which is noticed only after the minute.
    servers[1].order("");
    talked.order("");
    let over = cooldown + Duration::from_secs(15);
    for server in &servers {
        is(&path_of(server), "idle", over).await;
        assert_eq!(server.starts(), 3, "started without a caller");
    }
    let passed = since.elapsed();
    assert!(passed > cooldown - Duration::from_secs(10), "{passed:?}");
    is(path, "idle", over).await;
    assert_eq!(talked.starts(), 3);
    assert_eq!(say().await, None, "the next turn lacks the server's tools");
    assert_eq!(talked.starts(), 4);
    // The circuit breaker is half open: the next callers share one attempt.
    let mut asked = Vec::new();
    for _ in 0..3 {
        asked.push(peers[0].begin("tools/call", json!({"name": "echo"})).await);
    }
    for id in asked {
        assert!(is_away(&peers[0].finish(id).await));
    }
    let bad = api.get(&path_of(&servers[0])).await;
    assert_eq!(bad["status"], "unavailable", "{bad}");
    let next = bad["next_attempt_ms"].as_u64();
    assert!(next > Some((seconds - 10) * 1000), "{bad}");
    assert_eq!(servers[0].starts(), 4);
    let first = pid(&mut peers[1], "pid").await;
    assert_eq!(pid(&mut peers[1], "pid").await, first);
    assert_eq!(servers[1].starts(), 4);
    let mended = api.get(&path_of(&servers[1])).await;
    assert_eq!(mended["status"], "running");
    // A manual restart ends the cooldown.
    servers[0].order("");
    restart(&api, "bad", "a").await;
    pid(&mut peers[0], "pid").await;
}
