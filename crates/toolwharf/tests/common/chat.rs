//! Talks to a gateway's agent over `POST /api/v1/chat` and reads the events.

use std::path::Path;

use http::Method;
use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, Reply, Streaming, llm::Llm};

use super::{Gateway, Setup};

/// Settings of an agent with this model, and short stop timeouts.
pub(crate) fn agent(llm: &Llm, more: &str) -> String {
    format!(
        "[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\n[agent]\nmodel = \"claude-test\"\nbase_url = {:?}\n{more}",
        llm.url()
    )
}

/// Starts a gateway with an agent on this model. `more` is added to the `[agent]` settings, `before` is put above them.
pub(crate) async fn with_agent(setup: Setup, llm: &Llm, before: &str, more: &str) -> Gateway {
    let settings = format!("{before}{}", agent(llm, more));
    let setup = setup.settings(&settings);
    setup.env("ANTHROPIC_API_KEY", "sk-test").serve().await
}

/// The entry of the recipe server with this database.
pub(crate) fn recipes(file: &Path) -> Value {
    json!({ "command": Bin::path("toolwharf-example-recipes"), "args": ["--file", file] })
}

/// Returns the names of the tools that a request offered to the model, sorted.
pub(crate) fn offered(request: &Value) -> Vec<&str> {
    let tools = request["body"]["tools"].as_array().expect("tools").iter();
    let mut names: Vec<_> = tools.filter_map(|tool| tool["name"].as_str()).collect();
    names.sort_unstable();
    names
}

/// Sends a REST request as the administrator. The response body has not been read yet.
pub(crate) async fn begin(gateway: &Gateway, method: &str, path: &str, body: &Value) -> Streaming {
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let method: Method = method.parse().expect("a method");
    let client = gateway.admin(path);
    let begun = client.try_send(method, &[], body).await;
    begun.expect("an answer")
}

pub(crate) async fn ask(gateway: &Gateway, method: &str, path: &str, body: &Value) -> Reply {
    let begun = begin(gateway, method, path, body).await;
    begun.collect(DEADLINE).await
}

/// Sends a PUT request that must succeed, and returns the result.
pub(crate) async fn put(gateway: &Gateway, path: &str, body: Value) -> Value {
    let reply = ask(gateway, "PUT", path, &body).await;
    assert!(reply.status.is_success(), "{path}: {}", reply.text());
    serde_json::from_slice(&reply.body).unwrap_or_default()
}

pub(crate) async fn told(gateway: &Gateway, path: &str) -> Value {
    let reply = ask(gateway, "GET", path, &Value::Null).await;
    assert_eq!(reply.status, 200, "{path}: {}", reply.text());
    super::body(&reply)
}

/// Sends a message and returns the data of all events. The data of each event contains its type.
pub(crate) async fn chat(gateway: &Gateway, path: &str, body: &Value) -> Vec<Value> {
    let reply = ask(gateway, "POST", path, body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let events = reply.events();
    let events = events.iter().map(|event| event.json().expect("JSON"));
    events.collect()
}

/// Starts a conversation with the agent of all servers and returns the events.
pub(crate) async fn say(gateway: &Gateway, message: &str) -> Vec<Value> {
    chat(gateway, "/chat", &json!({ "message": message })).await
}

pub(crate) fn of<'e>(events: &'e [Value], kind: &str) -> Vec<&'e Value> {
    let events = events.iter();
    events.filter(|event| event["type"] == kind).collect()
}

pub(crate) fn text(events: &[Value]) -> String {
    let deltas = of(events, "text_delta").into_iter();
    deltas.filter_map(|event| event["text"].as_str()).collect()
}

/// Starts a chat and reads up to an event of this type. Returns the events so far.
pub(crate) async fn until(gateway: &Gateway, message: &str, kind: &str) -> (Streaming, Vec<Value>) {
    let message = json!({ "message": message });
    let mut streaming = begin(gateway, "POST", "/chat", &message).await;
    let mut events: Vec<Value> = Vec::new();
    while of(&events, kind).is_empty() {
        events.push(next(&mut streaming).await.expect("an event"));
    }
    (streaming, events)
}

async fn next(streaming: &mut Streaming) -> Option<Value> {
    let event = streaming.next_event(DEADLINE).await?;
    Some(serde_json::from_str(&event.data).expect("JSON"))
}

/// Reads the remaining events of a chat.
pub(crate) async fn rest(streaming: &mut Streaming) -> Vec<Value> {
    let mut events = Vec::new();
    while let Some(event) = next(streaming).await {
        events.push(event);
    }
    events
}
