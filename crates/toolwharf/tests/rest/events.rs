//! The event stream, and calls that ask their caller for input.

use crate::{
    api::Api,
    common::{Setup, scripted},
};
use serde_json::{Value, json};
use testkit::{DEADLINE, Event, Streaming};

const ACCEPT_STREAM: (&str, &str) = ("accept", "text/event-stream");

async fn follow(api: &Api<'_>) -> Streaming {
    let stream = api.open("GET", "/api/v1/events", "", &[]).await;
    assert_eq!(stream.status, 200);
    assert!(stream.is_event_stream());
    stream
}

/// Returns the next event of that kind that satisfies `holds`.
async fn until(stream: &mut Streaming, kind: &str, holds: impl Fn(&Value) -> bool) -> Value {
    loop {
        let event = stream.next_event(DEADLINE).await;
        let event = event.unwrap_or_else(|| panic!("no `{kind}` event arrived"));
        let data = event.json().expect("JSON");
        if event.event.as_deref() == Some(kind) && holds(&data) {
            return data;
        }
    }
}

#[tokio::test]
async fn what_happens_is_told_as_it_happens() {
    let mut gateway = Setup::new().scripted("one", &[]).connected().await;
    let admin = Api::admin(&gateway);
    let mut stream = follow(&admin).await;
    let first = until(&mut stream, "server", |_| true).await;
    assert_eq!(first, admin.get("/mcp/servers/one").await, "{first:#}");

    // The stream reports a call, and its effect on the server.
    admin.call("one", "crash", json!({})).await;
    let called = until(&mut stream, "call", |call| call["status"] == "error").await;
    assert_eq!(called["tool"], "crash", "{called:#}");
    let mut stream = follow(&admin).await;
    let again = |server: &Value| server["starts"] == 2 && server["status"] == "running";
    let up = until(&mut stream, "server", again).await;
    assert!(up["last_crash"]["cause"].is_string(), "{up:#}");

    // The stream reports changed tools, then an added and a removed server.
    admin.call("one", "set_tools", json!({"count": 3})).await;
    let told = until(&mut stream, "tools", |_| true).await;
    assert_eq!(told, json!({"id": "one"}));
    gateway.edit(|servers| {
        servers.insert("two".to_owned(), scripted("two", &[]));
    });
    let two = |server: &Value| server["name"] == "two";
    until(&mut stream, "server", two).await;
    gateway.edit(|servers| {
        servers.remove("two");
    });
    let gone = until(&mut stream, "server_removed", |_| true).await;
    assert_eq!(gone, json!({"id": "two"}));
}

#[tokio::test]
async fn a_projects_key_follows_its_own_project_until_it_is_taken_back() {
    let gateway = Setup::new().scripted("one", &[]).serve().await;
    let admin = Api::admin(&gateway);
    admin.projects(&["a", "b"], "own", &[]).await;
    let (id, token) = admin.key("a", "read").await;
    let reader = Api::with(&gateway, &token);
    let mut stream = follow(&reader).await;
    // Another project's calls come in between; the reader sees only those of its own project.
    for project in ["b", "a"] {
        let call = json!({"method": "tools/call", "params": {"name": "echo", "arguments": {}}});
        let path = format!("/api/v1/mcp/servers/own/call?project={project}");
        let reply = admin.ask("POST", &path, call.to_string(), &[]).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let call = until(&mut stream, "call", |call| call["status"] == "ok").await;
    assert_eq!(call["project"], "a", "{call:#}");
    admin.delete(&format!("/keys/{id}")).await;
    while let Some(event) = stream.next_event(DEADLINE).await {
        let data = event.json().unwrap_or_default();
        assert!(!data.to_string().contains(r#""project":"b""#), "{data:#}");
    }
    stream.closed(DEADLINE).await;
}

/// Makes a streamed call. Returns its events, the final one separately.
async fn streamed(api: &Api<'_>, body: &Value) -> (Vec<Event>, Event) {
    let (path, body) = ("/api/v1/mcp/servers/one/call", body.to_string());
    let reply = api.ask("POST", path, body, &[ACCEPT_STREAM]).await;
    let mut events = reply.events();
    let end = events.pop().unwrap_or_else(|| panic!("{}", reply.text()));
    (events, end)
}

#[tokio::test]
async fn a_call_asks_a_caller_who_says_that_it_can_be_asked() {
    let gateway = Setup::new().scripted("one", &[]).connected().await;
    let admin = Api::admin(&gateway);
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    let question = json!({"message": "Who?", "requestedSchema": schema});
    let arguments = json!({"method": "elicitation/create", "params": question});
    let params = json!({"name": "server_request", "arguments": arguments});
    let capabilities = json!({"elicitation": {"form": {}}});
    let mut body = json!({"method": "tools/call", "params": params, "capabilities": capabilities});
    let (_, asked) = streamed(&admin, &body).await;
    assert_eq!(asked.event.as_deref(), Some("result"), "{asked:?}");
    let asked = asked.json().expect("JSON");
    assert_eq!(asked["resultType"], "input_required", "{asked:#}");
    let requests = asked["inputRequests"].as_object().expect("requests");
    let (id, request) = requests.iter().next().expect("a request");
    assert_eq!(request["params"]["message"], "Who?", "{request:#}");

    let answer = json!({"action": "accept", "content": {"name": "me"}});
    body["params"]["inputResponses"] = json!({ id: answer });
    body["params"]["requestState"] = asked["requestState"].clone();
    let (_, end) = streamed(&admin, &body).await;
    assert!(end.data.contains(r#""name":"me""#), "{end:?}");

    // Without capabilities the caller is not asked for input. A value that is not an object is refused.
    let plain = json!({"method": "tools/call", "params": params});
    let (_, end) = streamed(&admin, &plain).await;
    assert!(!end.data.contains("input_required"), "{end:?}");
    body["params"]["_meta"] = json!({});
    for (value, pointer) in [(json!(1), "/capabilities"), (json!({}), "/params/_meta")] {
        body["capabilities"] = value;
        let path = "/mcp/servers/one/call";
        let said = admin.refused("POST", path, &body.to_string(), 400).await;
        assert!(said.to_string().contains(pointer), "{said:#}");
    }
}
