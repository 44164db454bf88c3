//! Message content: thinking, long results, images.

use agent::{ChatEvent, Conversation, ErrorKind};
use serde_json::json;
use testkit::llm::{asks, expecting, says, turns};

use super::support::recipes;
use crate::shared::{TestServers, outcome, pick, said, set, text, within};

#[tokio::test]
async fn thoughts_and_unknown_blocks_are_replayed_to_the_letter_also_after_storing() {
    let blocks = json!([
        { "thinking": "I need the recipe", "signature": "c2lnbmVk", "deltas": 2 },
        { "redacted_thinking": "b3BhcXVl" },
        { "raw": { "type": "server_tool_use", "id": "s1", "name": "web_search", "input": { "query": "x" } } },
        { "text": "Let me look.", "citations": [{ "type": "page_location", "n": 1 }] },
        { "tool_use": "get_recipe", "id": "t1", "input": { "id": 7 } },
    ]);
    let expect = json!({ "body": {
        "/messages/1/content/0": { "type": "thinking", "thinking": "I need the recipe", "signature": "c2lnbmVk" },
        "/messages/1/content/1": { "type": "redacted_thinking", "data": "b3BhcXVl" },
        "/messages/1/content/2": { "type": "server_tool_use", "id": "s1", "name": "web_search", "input": { "query": "x" } },
        "/messages/1/content/3/citations": [{ "type": "page_location", "n": 1 }],
        "/messages/1/content/4/input": { "id": 7 },
    } });
    let script = turns(&[
        json!({ "reply": { "blocks": blocks, "noise": true, "pings": true } }),
        expecting(says("Here."), expect.clone()),
        expecting(says("Gladly."), expect),
    ]);
    let mut set = set(&script, recipes()).await;
    let events = set.say("the soup").await;
    let thought: String = pick(&events, |event| match event {
        ChatEvent::ThinkingDelta { text } => Some(text.as_str()),
        _ => None,
    });
    assert_eq!(thought, "I need the recipe");
    let stored = serde_json::to_string(&set.conversation).expect("JSON");
    set.conversation = serde_json::from_str(&stored).expect("what was stored");
    assert_eq!(
        serde_json::to_string(&set.conversation).expect("JSON"),
        stored
    );
    assert_eq!(set.told("thanks").await, "Gladly.");
}

#[tokio::test]
async fn a_long_result_is_cut_and_can_be_read_on() {
    let long: String = (0..8000).map(|n| format!("line {n} ")).collect();
    let whole = long.clone();
    let servers = TestServers::default().with("web", "fetch", move |_| {
        let long = long.clone();
        async move { Ok(text(&long)) }
    });
    let uri = "toolwharf://results/0/t1";
    let read = |id, arguments| (id, "read_result", arguments);
    let part = json!({ "uri": uri, "offset": 20000, "length": 500 });
    let other = json!({ "uri": "toolwharf://results/0/other" });
    let before = json!({ "uri": uri, "offset": -1 });
    let given = |part: &str| json!({ "tool_results": [{ "contains": part, "is_error": false }] });
    let refused = json!({ "tool_results": [
        { "contains": "is not available: only the latest", "is_error": true },
        { "contains": "-1 is less than the minimum of 0", "is_error": true },
    ] });
    let wrong = asks(&[read("t3", other), read("t4", before)]);
    let script = turns(&[
        asks(&[("t1", "fetch", json!({ "url": "http://x" }))]),
        expecting(asks(&[read("t2", part)]), given(uri)),
        expecting(wrong, given(&whole[20000..20500])),
        expecting(says("Long."), refused),
    ]);
    let mut set = set(&script, servers).await;
    let events = set.say("read it").await;
    assert_eq!(said(&events), "Long.");
    let shown = events.iter().find_map(|event| match event {
        ChatEvent::ToolResult { preview, bytes, .. } => Some((preview.len(), *bytes)),
        _ => None,
    });
    assert_eq!(shown, Some((2000, whole.len())));
    let given = set.messages()[2]["content"][0]["content"][0]["text"]
        .as_str()
        .map(str::len);
    assert!(
        given.is_some_and(|bytes| (20_000..21_000).contains(&bytes)),
        "{given:?}"
    );
    assert_eq!(set.book.calls()[0].0.tool, "read_result");
}

#[tokio::test]
async fn pictures_go_as_pictures_and_links_as_text() {
    let png = "iVBORw0KGgo=";
    let servers = TestServers::default().with("a", "draw", move |_| async move {
        Ok(outcome(&json!({ "content": [
            { "type": "image", "data": png, "mimeType": "image/png" },
            { "type": "resource_link", "uri": "file:///x", "name": "x" },
        ] })))
    });
    let expect = json!({ "body": {
        "/messages/2/content/0/content/0": { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": png } },
        "/messages/2/content/0/content/1": { "type": "text", "text": "[resource file:///x; x]" },
    } });
    let script = turns(&[
        asks(&[("t1", "draw", json!({}))]),
        expecting(says("Nice."), expect),
    ]);
    let mut set = set(&script, servers).await;
    assert_eq!(set.told("draw").await, "Nice.");
}

#[tokio::test]
async fn a_person_can_show_pictures_of_the_kinds_that_models_take() {
    use agent::{UserMessage, message::Image};
    let png = "iVBORw0KGgo=";
    let expect = json!({ "last_text": "what is it?", "body": {
        "/messages/0/content/0": { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": png } },
    } });
    let set = set(&turns(&[expecting(says("A test."), expect)]), recipes()).await;
    let show = |data: &str| UserMessage {
        text: "what is it?".to_owned(),
        images: vec![Image::base64("image/png", data)],
    };
    let mut conversation = Conversation::new();
    let chat = set
        .agent
        .chat_all(&mut conversation, show("bm90IGEgcGljdHVyZQ=="));
    let why = ChatEvent::Error {
        kind: ErrorKind::Conversation,
        message: "an image cannot be sent: it is not a PNG, JPEG, GIF or WebP file".to_owned(),
    };
    assert_eq!(within("the refusal", chat).await, [why]);
    let events = within(
        "the answer",
        set.agent.chat_all(&mut conversation, show(png)),
    )
    .await;
    assert_eq!(said(&events), "A test.");
}
