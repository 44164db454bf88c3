//! When an agent starts its servers, and what happens if one fails to start.

use serde_json::{Value, json};
use testkit::{
    DEADLINE,
    llm::{Llm, says, turns},
    wait_for,
};

use super::support::{error, started};
use crate::common::{
    Setup,
    chat::{of, offered, say, text, with_agent},
    checks, gone, noted,
    steps::replied,
};

/// By default the agent starts servers one by one. The first failure fails the first chat and is named in the error.
/// Servers started before it are stopped, later ones are not started. The next chat tries again.
#[tokio::test]
async fn a10_the_first_server_that_does_not_start_fails_the_first_chat() {
    let setup = Setup::new();
    let notes = setup.folder().join("notes");
    let mended = setup.folder().join("mended");
    let broken = format!("test -e {:?} || exit 5;", mended.display().to_string());
    let setup = setup
        .server("a-first", noted("a-first", &notes, ""))
        .server("b-broken", noted("b-broken", &notes, &broken))
        .server("c-never", noted("c-never", &notes, ""));
    let llm = Llm::start(&turns(&[says("Hello.")])).await;
    let gateway = with_agent(setup, &llm, "start = \"lazy\"\n", "").await;
    let events = say(&gateway, "Hi").await;
    let (kind, why) = error(&events);
    assert_eq!(kind, "servers", "{why}");
    checks::contains(why, &["`b-broken` did not start", "exit code 5"]);
    checks::contains(why, &["start = \"parallel\""]);
    assert_eq!(of(&events, "started").len(), 0, "{events:?}");
    assert!(llm.requests().await.is_empty());
    let all = started(&notes);
    assert_eq!(all[0].0, "a-first", "{all:?}");
    assert!(all.iter().all(|(name, _)| name != "c-never"), "{all:?}");
    gone(&[all[0].1], false, DEADLINE).await;

    std::fs::write(&mended, "").unwrap();
    wait_for("a chat with all three", DEADLINE, async || {
        text(&say(&gateway, "Hi").await) == "Hello."
    })
    .await;
    let all = started(&notes);
    assert_eq!(all.last().unwrap().0, "c-never", "{all:?}");
}

/// Servers that the gateway itself starts in parallel are checked by the agent in the same way. With `parallel`, the
/// chat continues without the failed servers.
#[tokio::test]
async fn a10_a_failing_server_is_named_or_left_out_as_the_settings_say() {
    let two = || {
        Setup::new()
            .scripted("broken", &["--exit-at-start"])
            .scripted("good", &["--no-builtin", "--tools", "1"])
    };
    let llm = Llm::start(&turns(&[says("Hello.")])).await;
    let sequential = with_agent(two(), &llm, "", "").await;
    let events = say(&sequential, "Hi").await;
    let (kind, why) = error(&events);
    assert_eq!(kind, "servers", "{why}");
    checks::contains(why, &["`broken` did not start"]);
    let parallel = with_agent(two(), &llm, "", "start = \"parallel\"\n").await;
    replied(say(&parallel, "Hi").await, "Hello.");
    assert_eq!(offered(&llm.requests().await[0]), ["read_result", "tool_0"]);
}

/// A server that its own entry blocks is skipped, and reported as missing.
#[tokio::test]
async fn a10_a_blocked_entry_is_skipped() {
    let bad = json!({"command": "x", "env": {"KEY": "${SURELY_NOT_SET_ANYWHERE}"}});
    let setup = Setup::new().server("bad", bad);
    let setup = setup.scripted("good", &["--no-builtin", "--tools", "1"]);
    let llm = Llm::start(&turns(&[says("Hello.")])).await;
    let gateway = with_agent(setup, &llm, "", "").await;
    let events = replied(say(&gateway, "Hi").await, "Hello.");
    let told = serde_json::to_string(&events).expect("JSON");
    checks::contains(&told, &["SURELY_NOT_SET_ANYWHERE"]);
    assert_eq!(offered(&llm.requests().await[0]), ["read_result", "tool_0"]);
}

/// Unused servers are started by the first chats, each once. Later chats use the running servers.
#[tokio::test]
async fn a12_racing_first_chats_start_each_server_once() {
    let setup = Setup::new();
    let notes = setup.folder().join("notes");
    let setup = setup
        .server("a", noted("a", &notes, "sleep 0.3;"))
        .server("b", noted("b", &notes, "sleep 0.1;"));
    let says: Vec<Value> = (0..9).map(|_| says("Hello.")).collect();
    let llm = Llm::start(&turns(&says)).await;
    let gateway = with_agent(setup, &llm, "start = \"lazy\"\n", "").await;
    assert!(started(&notes).is_empty(), "a start without a chat");
    let racing = (0..8).map(|_| say(&gateway, "Hi"));
    for events in futures_util::future::join_all(racing).await {
        replied(events, "Hello.");
    }
    let names = || -> Vec<String> { started(&notes).into_iter().map(|(name, _)| name).collect() };
    assert_eq!(names(), ["a", "b"]);
    replied(say(&gateway, "Hi").await, "Hello.");
    assert_eq!(names(), ["a", "b"]);
    for request in llm.requests().await {
        assert_eq!(offered(&request), ["read_result", "tool_0"]);
    }
}
