//! P12: a server that cannot be reached is left alone for a minute, then tried again.
//!
//! The default of a minute is waited for once, with SQLite; clients and an agent are tested in the same wait. With
//! Postgres, which makes no difference here, the cooldown is shorter.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{
    DEADLINE, Peer, at_once,
    llm::{Llm, says},
    wait_for,
};
use tokio::time::Instant;

use crate::{
    api::Api,
    common::{LEGACY, chat, is_away},
    support::{Db, Governed, pid},
};

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
    // Used by an agent only: its chats try the server, and continue without it.
    let talked = Governed::new(
        gateway.folder(),
        "talked",
        &["--no-builtin", "--tools", "1"],
    );
    talked.order("exit 5");
    let path = "/mcp/servers/talked?project=agents";
    api.put(path, talked.entry()).await;
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
        assert_eq!(
            missing.is_none(),
            offered.contains("\"tool_0\""),
            "{offered}"
        );
        missing
    };
    assert!(
        say()
            .await
            .is_some_and(|reason| reason.contains("exit code 5"))
    );
    wait_for("three attempts for the agent", DEADLINE, async || {
        api.get(path).await["status"] == "unavailable"
    })
    .await;
    let told = say().await.unwrap();
    assert!(told.contains("3 attempts in a row failed"), "{told}");
    assert_eq!(talked.starts(), 3);
    let servers = ["bad", "mended"].map(|name| Governed::new(gateway.folder(), name, &[]));
    let mut peers = Vec::new();
    for server in &servers {
        server.order("exit 5");
        let path = format!("/mcp/servers/{}?project=a", server.name());
        api.put(&path, server.entry()).await;
        let one = gateway.at(&format!("/mcp/a/{}", server.name()));
        peers.push(Peer::http(one, LEGACY, json!({})).await);
    }
    let shown = async |server: &Governed| {
        api.get(&format!("/mcp/servers/{}?project=a", server.name()))
            .await
    };
    for (server, peer) in servers.iter().zip(&mut peers) {
        let failed = peer.tool("echo", json!({})).await;
        assert!(is_away(&failed.response), "{failed:?}");
        wait_for("three attempts", DEADLINE, async || {
            shown(server).await["status"] == "unavailable"
        })
        .await;
        assert_eq!(server.starts(), 3);
    }
    let since = Instant::now();
    let start = Instant::now();
    assert!(say().await.is_some());
    at_once("the turn", start);
    assert_eq!(talked.starts(), 3, "a chat tried it");
    let is_refused = |answer: &Value, start: Instant| {
        assert!(is_away(answer), "{answer}");
        at_once("the call", start);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("3 attempts in a row failed"), "{message}");
        let retry = answer["error"]["data"]["retryAfterMs"].as_u64().unwrap();
        assert!(
            (seconds * 1000 / 3..=seconds * 1000).contains(&retry),
            "{retry}"
        );
    };
    for (server, peer) in servers.iter().zip(&mut peers) {
        for _ in 0..5 {
            let start = Instant::now();
            let refused = peer.tool("echo", json!({})).await;
            is_refused(&refused.response, start);
        }
        let shown = shown(server).await;
        let reason = shown["reason"].as_str().unwrap();
        assert!(reason.contains("3 attempts in a row failed"), "{shown}");
        assert!(
            shown["next_attempt_ms"]
                .as_u64()
                .is_some_and(|ms| ms <= seconds * 1000),
            "{shown}"
        );
        assert_eq!(server.starts(), 3, "a call tried it");
    }
    // Two servers recover in the meantime, which is noticed only after the minute.
    servers[1].order("");
    talked.order("");
    let over = cooldown + Duration::from_secs(15);
    for server in &servers {
        wait_for("the end of the cooldown", over, async || {
            shown(server).await["status"] == "idle"
        })
        .await;
        assert_eq!(server.starts(), 3, "it was tried before it was needed");
    }
    assert!(
        since.elapsed() > cooldown - Duration::from_secs(10),
        "{:?}",
        since.elapsed()
    );
    wait_for("the end of the agent's cooldown", over, async || {
        api.get(path).await["status"] == "idle"
    })
    .await;
    assert_eq!(talked.starts(), 3);
    assert_eq!(say().await, None, "the next turn has its tools");
    assert_eq!(talked.starts(), 4);
    // Half open: the next callers share one attempt.
    let mut asked = Vec::new();
    for _ in 0..3 {
        asked.push(peers[0].begin("tools/call", json!({"name": "echo"})).await);
    }
    for id in asked {
        assert!(is_away(&peers[0].finish(id).await));
    }
    let bad = shown(&servers[0]).await;
    assert_eq!(bad["status"], "unavailable", "{bad}");
    assert!(
        bad["next_attempt_ms"]
            .as_u64()
            .is_some_and(|ms| ms > (seconds - 10) * 1000),
        "{bad}"
    );
    assert_eq!(servers[0].starts(), 4);
    let first = pid(&mut peers[1], "pid").await;
    assert_eq!(pid(&mut peers[1], "pid").await, first);
    assert_eq!(servers[1].starts(), 4);
    assert_eq!(shown(&servers[1]).await["status"], "running");
    // A manual restart ends the cooldown.
    servers[0].order("");
    api.ok("POST", "/mcp/servers/bad/restart?project=a", json!({}))
        .await;
    pid(&mut peers[0], "pid").await;
}
