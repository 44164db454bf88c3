//! Server requests in REST calls and chats, answered at a replica other than the one that asked.

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{
    DEADLINE, Peer,
    llm::{Llm, asks, says, turns},
    peer,
    postgres::Database,
};

use crate::{
    api::Api,
    common::{
        Gateway, Setup,
        chat::{agent, ask, begin},
        checks,
        replicas::Balancer,
        scripted,
    },
    sessions::{ACCEPT_STREAM, three},
    support::end,
};

const CALL_PATH: &str = "/api/v1/mcp/servers/one/call";

fn question() -> Value {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    let params = json!({"message": "Who?", "requestedSchema": schema});
    json!({"method": "elicitation/create", "params": params})
}

/// Makes a call at a replica and returns the JSON response or the last event.
async fn called(at: &Gateway, body: &Value, streams: bool) -> Value {
    let headers: &[_] = if streams { &[ACCEPT_STREAM] } else { &[] };
    let call = body.to_string();
    let reply = Api::admin(at).ask("POST", CALL_PATH, call, headers).await;
    match streams {
        true => {
            let last = reply.events().pop();
            let last = last.unwrap_or_else(|| panic!("{}", reply.text()));
            last.json().unwrap()
        }
        false => {
            let all: Value = serde_json::from_slice(&reply.body).unwrap();
            all.get("result").cloned().unwrap_or(all)
        }
    }
}

#[tokio::test]
async fn d01_a_call_over_rest_is_answered_at_any_replica() {
    let (_database, [mut first, second, third]) = three().await;
    let params = json!({"name": "server_request", "arguments": question()});
    let capabilities = json!({"elicitation": {"form": {}}});
    let new = json!({"method": "tools/call", "params": params, "capabilities": capabilities});
    let asked = async |streams| {
        let asked = called(&first, &new, streams).await;
        assert_eq!(asked["resultType"], "input_required", "{asked:#}");
        let id = asked["inputRequests"].as_object().unwrap().keys().next();
        let mut again = new.clone();
        let answer = json!({"action": "accept", "content": {"name": "me"}});
        again["params"]["inputResponses"] = json!({ id.unwrap(): answer });
        again["params"]["requestState"] = asked["requestState"].clone();
        again
    };
    for streams in [false, true] {
        for other in [&second, &third] {
            let again = asked(streams).await;
            let end = called(other, &again, streams).await;
            checks::contains(end.to_string(), &["me"]);
            checks::lacks(end.to_string(), &["input_required"]);
        }
    }
    // A held call is lost with its replica, and the client is told what to do.
    let again = asked(false).await;
    end(&mut first, Signal::KILL).await;
    let end = called(&second, &again, false).await;
    checks::contains(end.to_string(), &["call again without it"]);
}

#[tokio::test]
async fn d01_a_chat_is_answered_at_any_replica() {
    let database = Database::create().await;
    let script = turns(&[
        asks(&[("t1", "server_request", question())]),
        says("Hello, me."),
    ]);
    let llm = Llm::start(&script).await;
    let start = async |first: Option<&Gateway>| {
        Setup::new()
            .server("one", scripted("one", &[]))
            .settings(&agent(&llm, ""))
            .env("ANTHROPIC_API_KEY", "sk-test")
            .of_replica(database.url(), first)
            .connected()
            .await
    };
    let first = start(None).await;
    let second = start(Some(&first)).await;
    let message = json!({"message": "Who am I?", "can_answer": true});
    let mut turn = begin(&first, "POST", "/chat", &message).await;
    let mut next = async |kind: &str| loop {
        let event = turn.next_event(DEADLINE).await.expect("an event");
        if event.event.as_deref() == Some(kind) {
            return event.json().unwrap();
        }
    };
    let conversation = next("conversation").await;
    let asked = next("questions").await;
    let key = asked["requests"].as_object().unwrap().keys().next();
    let answer = json!({"action": "accept", "content": {"name": "me"}});
    let answers = json!({"call": asked["id"], "answers": { key.unwrap(): answer }});
    let path = conversation["id"].as_str().unwrap();
    let path = format!("/conversations/{path}/answers");
    let answer = async |answers: &Value| ask(&second, "POST", &path, answers).await;
    // No second turn starts in the meantime.
    let more = json!({"message": "And you?", "conversation": conversation["id"]});
    let more = ask(&second, "POST", "/chat", &more).await;
    checks::reply(&more, 409, &["wait for its end"]);
    // Errors are passed on as well.
    let other = answer(&json!({"call": "none", "answers": {}})).await;
    checks::reply(&other, 409, &["no question is open in the call `none`"]);
    let taken = answer(&answers).await;
    assert_eq!(taken.status, 204, "{}", taken.text());
    next("done").await;
    let over = answer(&answers).await;
    checks::reply(&over, 409, &["no turn of the conversation"]);
}

/// A run of code that waits for its client is held at one replica. A retry through another one finds it.
#[tokio::test]
async fn x04_a_run_is_continued_at_any_replica() {
    let database = Database::create().await;
    let start = async |first: Option<&Gateway>| {
        Setup::new()
            .server("one", scripted("one", &[]))
            .settings("code = true\n")
            .of_replica(database.url(), first)
            .connected()
            .await
    };
    let first = start(None).await;
    let replicas = [start(Some(&first)).await, first];
    let balancer = Balancer::before(&replicas).await;
    let mut peer = Peer::http(balancer.client(), peer::MODERN, peer::all_capabilities()).await;
    let arguments = question();
    let code = format!(
        "const ask = async () => (await servers.one.server_request({arguments})).result.content.name;
         return [await ask(), await ask()].join()"
    );
    for _ in 0..3 {
        let outcome = peer.tool("run_code", json!({ "code": code })).await;
        assert_eq!(outcome.text(), "Alice,Alice");
        assert_eq!(outcome.asked.len(), 2, "{outcome:?}");
    }
}
