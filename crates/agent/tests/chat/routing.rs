//! The tools offered to the model, and where calls go.

use std::{
    io::Write,
    sync::{Arc, Mutex, atomic::Ordering},
};

use agent::{
    ChatEvent,
    ledger::{CallStatus, RunStatus},
};
use serde_json::json;
use testkit::llm::{asks, expecting, says, turns};

use super::support::{recipes, results};
use crate::shared::{TestServers, pick, said, set, text};

#[tokio::test]
async fn a03_the_model_is_offered_the_tools_of_all_servers_and_native_ones() {
    let tools = [
        "create_recipe",
        "list_recipe",
        "get_recipe",
        "update_recipe",
        "delete_recipe",
        "fetch",
        "display_recipe",
        "read_result",
    ];
    let expect = json!({ "tools": tools, "system": "You cook." });
    let mut set = set(&turns(&[expecting(says("hi"), expect)]), recipes()).await;
    assert_eq!(set.told("hello").await, "hi");
}

#[tokio::test]
async fn a05_a_warning_names_both_servers_and_is_logged_once() {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let servers = TestServers::default()
        .with("first", "search", |_| async { Ok(text("of the first")) })
        .with("second", "search", |_| async { Ok(text("of the second")) });
    let script = turns(&[
        expecting(
            asks(&[("t1", "search", json!({}))]),
            json!({ "tools": ["search", "display_recipe", "read_result"] }),
        ),
        expecting(says("done"), results(&[("t1", "of the second", false)])),
        says("again"),
    ]);
    let mut set = set(&script, servers).await;
    set.told("search").await;
    set.told("and now?").await;
    assert_eq!(set.servers.called(), ["second/search {}"]);
    let log = String::from_utf8(lines.0.lock().expect("no panic").clone()).expect("text");
    let warned = log
        .matches("`first` and `second` both offer the tool `search`")
        .count();
    assert_eq!(warned, 1, "{log}");
}

#[tokio::test]
async fn a06_a07_a08_calls_go_to_their_server_to_native_or_are_unknown() {
    let script = turns(&[
        asks(&[
            ("t1", "get_recipe", json!({ "id": 7 })),
            ("t2", "display_recipe", json!({ "name": "Soup" })),
            ("t3", "bake", json!({})),
        ]),
        expecting(
            says("Here it is."),
            results(&[
                ("t1", r#"{"id":7}"#, false),
                ("t2", "The recipe is shown.", false),
                ("t3", "Unknown tool: bake", true),
            ]),
        ),
    ]);
    let mut set = set(&script, recipes()).await;
    let events = set.say("show me the soup").await;
    assert_eq!(said(&events), "Here it is.");
    assert_eq!(set.servers.called(), [r#"recipes/get_recipe {"id":7}"#]);
    let calls: Vec<_> = pick(&events, |event| match event {
        ChatEvent::ToolCall {
            id, name, server, ..
        } => Some((id.as_str(), name.as_str(), server.as_deref())),
        _ => None,
    });
    let expect = [
        ("t1", "get_recipe", Some("recipes")),
        ("t2", "display_recipe", Some("native")),
        ("t3", "bake", None),
    ];
    assert_eq!(calls, expect);
    let shown = ChatEvent::Native {
        id: "t2".to_owned(),
        tool: "display_recipe".to_owned(),
        payload: json!({ "shown": "Soup" }),
    };
    assert!(events.contains(&shown), "{events:#?}");

    // Native calls are recorded by the agent. The implementation of `Servers` records its
    // calls under the same run.
    let recorded = set.book.calls();
    let (call, end) = recorded.first().expect("a record");
    assert_eq!((recorded.len(), call.tool.as_str()), (1, "display_recipe"));
    assert_eq!(call.arguments.get(), r#"{"name":"Soup"}"#);
    assert_eq!(end.as_ref().map(|end| end.status), Some(CallStatus::Ok));
    let served = set.servers.calls.lock()[0].clone();
    assert_eq!(served.run, Some(call.run.clone()));
    let end = set.book.end().await;
    assert_eq!(
        (end.status, end.turns, end.error),
        (RunStatus::Done, 2, None)
    );
}

#[tokio::test]
async fn tools_can_be_listed_and_called_without_a_model() {
    let set = set(&turns(&[]), recipes()).await;
    let registry = set.agent.registry().await.expect("the tools");
    assert_eq!(set.servers.starts.load(Ordering::SeqCst), 1);
    let run = agent::RunId("r1".into());
    let fetch = registry.get("fetch").expect("a tool");
    let arguments = agent::Raw::parse(r#"{"url": "http://x"}"#).expect("JSON");
    let called = set.agent.call(fetch, arguments, &run).await;
    assert_eq!(
        called.parts,
        [agent::message::Part::text(r#"{"url": "http://x"}"#)]
    );
    let display = registry.get("display_recipe").expect("a tool");
    let called = set
        .agent
        .call(display, agent::Raw::empty_object(), &run)
        .await;
    assert!(called.is_error, "{called:?}");
    let shown = agent::Raw::parse(r#"{"name": "Soup"}"#).expect("JSON");
    let called = set.agent.call(display, shown, &run).await;
    assert_eq!(called.payload, Some(json!({ "shown": "Soup" })));
    assert!(set.book.calls().iter().all(|(call, _)| call.run == run));
}
