//! Scenario X04 of the acceptance list: servers that ask the user during a run of code.

mod common;

use common::{
    Gateway, LEGACY, Setup,
    chat::{begin, with_agent},
    shell::{at, json_of},
    steps::{accepted, begin_tool},
};
use serde_json::{Value, json};
use testkit::{
    DEADLINE, Peer, RawClient, StdioClient,
    llm::{Llm, asks, expecting, says, turns},
    peer, wait_for,
};

const ELICIT: &str = "elicitation/create";
/// Functions that ask the user, at a server of each era, and return the name in the answer.
const ASKING: &str = r#"
const params = { message: "Name?", requestedSchema: { type: "object", properties: { name: { type: "string" } } } };
const old = async (server = "one") => {
  const answer = await servers[server].server_request({ method: "elicitation/create", params });
  return answer.result?.content?.name ?? answer.error?.message ?? answer.result.action;
};
const modern = async () => (await servers.fresh.input({ state: "of the server" })).inputResponses.name.content.name;
"#;

/// A gateway with two legacy servers and a modern one.
async fn gateway(settings: &str) -> Gateway {
    Setup::new()
        .settings(&format!("code = true\n{settings}"))
        .scripted("one", &[])
        .scripted("two", &[])
        .scripted("fresh", &["--era", "modern"])
        .connected()
        .await
}

fn run(code: &str) -> Value {
    json!({ "code": format!("{ASKING}{code}") })
}

async fn modern(client: RawClient) -> Peer {
    Peer::http(client, peer::MODERN, peer::all_capabilities()).await
}

/// Begins a run that has to ask, and returns the result that asks.
async fn asked(peer: &mut Peer, code: &str) -> Value {
    let id = begin_tool(peer, "run_code", run(code)).await;
    let response = peer.finish(id).await;
    let kind = &response["result"]["resultType"];
    assert_eq!(kind, "input_required", "{response}");
    response["result"].clone()
}

fn keys(asked: &Value) -> Vec<String> {
    let requests = asked["inputRequests"].as_object().expect("requests");
    requests.keys().cloned().collect()
}

/// The parameters with which a client repeats the request, with answers to these questions.
fn retry(asked: &Value, keys: &[&str], name: &str) -> Value {
    let accepted = json!({ "action": "accept", "content": { "name": name } });
    let answers = keys.iter().map(|key| ((*key).to_owned(), accepted.clone()));
    json!({
        "name": "run_code",
        "arguments": run("return 'not run again'"),
        "requestState": asked["requestState"],
        "inputResponses": answers.collect::<serde_json::Map<_, _>>(),
    })
}

async fn send(peer: &mut Peer, params: Value) -> Value {
    let id = peer.begin("tools/call", params).await;
    peer.finish(id).await
}

fn text(response: &Value) -> &str {
    let text = response["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("no text: {response}"))
}

#[track_caller]
fn is_unknown(response: &Value) {
    assert_eq!(response["error"]["code"], -32602, "{response}");
    let message = response["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("call again without it"), "{message}");
}

/// Reads a path of the REST API.
async fn read(gateway: &Gateway, path: &str) -> Value {
    accepted(gateway, "GET", path, Value::Null).await
}

async fn runs(gateway: &Gateway) -> Vec<Value> {
    let runs = json_of(gateway, "runs ls").await;
    runs.as_array().cloned().expect("a list")
}

/// Waits until all calls have ended, and all runs with this status.
async fn over(gateway: &Gateway, status: &str) {
    wait_for("the end of the calls", DEADLINE, async || {
        let mut calls = 0;
        for server in ["one", "two", "fresh"] {
            calls += gateway
                .metric("calls_in_flight", Some(server))
                .await
                .unwrap_or(0);
        }
        calls == 0
    })
    .await;
    wait_for("the end of the run", DEADLINE, async || {
        runs(gateway)
            .await
            .iter()
            .all(|run| run["status"] == status)
    })
    .await;
}

/// The questions of servers of both eras reach clients of both eras, over HTTP and stdio, and the code gets the answers.
#[tokio::test]
async fn x04_questions_during_a_run_reach_the_person() {
    let gateway = gateway("").await;
    for version in [LEGACY, peer::MODERN] {
        let http = Peer::http(gateway.client(), version, peer::all_capabilities()).await;
        let line = "stdio --config mcp.json --config toolwharf.toml";
        let stdio = StdioClient::spawn(at(&gateway, line));
        let stdio = Peer::stdio(stdio, version, peer::all_capabilities()).await;
        for mut peer in [http, stdio] {
            let code = "console.log(await old()); console.log(await modern()); return await old()";
            let outcome = peer.tool("run_code", run(code)).await;
            assert_eq!(outcome.text(), "Alice\nAlice\nAlice", "{version}");
            assert_eq!(outcome.asked, [ELICIT; 3], "{version}");
        }
        // Without the capability, the request is refused as in a direct call.
        let mut silent = Peer::http(gateway.client(), version, json!({})).await;
        let outcome = silent.tool("run_code", run("return await old()")).await;
        let refused = outcome.text();
        assert!(refused.contains("does not support"), "{version}: {refused}");
        assert!(outcome.asked.is_empty(), "{version}");
    }
    over(&gateway, "done").await;
    for run in runs(&gateway).await {
        let path = format!("/runs/{}", run["id"].as_str().expect("an id"));
        let run = read(&gateway, &path).await;
        let calls = run["calls"].as_array().map_or(0, Vec::len);
        assert!(calls > 0, "{run}");
    }
}

/// Calls of a run ask at the same time. The client may answer each question alone.
#[tokio::test]
async fn x04_parallel_questions_of_a_run() {
    let gateway = gateway("").await;
    let mut peer = gateway.modern().await;
    let code = "return (await Promise.all([old('one'), old('two'), modern()])).join()";
    let mut asking = asked(&mut peer, code).await;
    let mut rounds = 0;
    let response = loop {
        rounds += 1;
        let first = keys(&asking).swap_remove(0);
        let name = match first.split('.').next() {
            Some("1") => "Ada",
            Some("2") => "Bob",
            _ => "Cleo",
        };
        // Answers to nothing change nothing.
        let params = retry(&asking, &["other", "1.", ""], "Eve");
        let again = send(&mut peer, params).await;
        assert!(keys(&again["result"]).contains(&first), "{again}");
        let params = retry(&again["result"], &[&first], name);
        let response = send(&mut peer, params).await;
        if response["result"]["resultType"] != "input_required" {
            break response;
        }
        asking = response["result"].clone();
    };
    assert_eq!((text(&response), rounds), ("Ada,Bob,Cleo", 3));
    over(&gateway, "done").await;
}

/// A run is continued once, by the principal that started it, at the same address.
#[tokio::test]
async fn x04_a_run_is_continued_once_by_its_caller() {
    let gateway = gateway("[projects.red]\n").await;
    let mut keyed = Vec::new();
    for name in ["ada", "bob"] {
        let key = json_of(&gateway, &format!("key create {name} --role call")).await;
        keyed.push(format!(
            "Bearer {}",
            key["token"].as_str().expect("a token")
        ));
    }
    let at = |path: &str, key: &str| gateway.at(path).with("authorization", key);
    let mut ada = modern(at("/mcp", &keyed[0])).await;
    let asking = asked(&mut ada, "return await old()").await;
    let keys = keys(&asking);
    assert_eq!(keys.len(), 1, "{asking}");
    let params = retry(&asking, &[&keys[0]], "Ada");
    for (path, key) in [("/mcp", &keyed[1]), ("/mcp/red", &keyed[0])] {
        let mut other = modern(at(path, key)).await;
        is_unknown(&send(&mut other, params.clone()).await);
    }
    // A tool of a server cannot take it either.
    let mut direct = params.clone();
    direct["name"] = json!("one__server_request");
    is_unknown(&send(&mut ada, direct).await);
    let response = send(&mut ada, params.clone()).await;
    assert_eq!(text(&response), "Ada");
    is_unknown(&send(&mut ada, params).await);
    let mut none = asking.clone();
    none["requestState"] = json!("of.nobody");
    is_unknown(&send(&mut ada, retry(&none, &[], "")).await);
    over(&gateway, "done").await;
}

/// A run whose client does not return is cancelled, with the calls that wait and those that do not.
#[tokio::test]
async fn x04_a_run_without_an_answer_is_cancelled() {
    let gateway = gateway("[limits]\nheld_call_ttl = \"1s\"\n").await;
    let mut peer = gateway.modern().await;
    let code = "await Promise.all([old(), servers.two.never({})])";
    let asking = asked(&mut peer, code).await;
    over(&gateway, "cancelled").await;
    gateway.logged("cancelled a run of code").await;
    let keys = keys(&asking);
    is_unknown(&send(&mut peer, retry(&asking, &[&keys[0]], "late")).await);
    wait_for("the record of the other call", DEADLINE, async || {
        let calls = read(&gateway, "/calls").await;
        let mut calls = calls["calls"].as_array().into_iter().flatten();
        calls.any(|call| call["tool"] == "never" && call["status"] == "cancelled")
    })
    .await;
}

/// A run that was continued ends with its request. If a program ends while a call waits for an answer, the call ends.
#[tokio::test]
async fn x04_a_continued_run_is_cancelled_with_its_request() {
    let gateway = gateway("").await;
    let mut peer = gateway.modern().await;
    let asking = asked(&mut peer, "await old(); await servers.two.never({})").await;
    let keys = keys(&asking);
    let params = retry(&asking, &[&keys[0]], "Ada");
    let id = peer.begin("tools/call", params).await;
    gateway.in_flight("two", 1, DEADLINE).await;
    peer.cancel(id).await;
    over(&gateway, "cancelled").await;

    let asking = asked(
        &mut peer,
        "const waits = old(); await servers.two.hold({ ms: 2000 }); throw new Error('no time')",
    )
    .await;
    gateway.in_flight("one", 0, DEADLINE).await;
    let response = send(&mut peer, retry(&asking, &[], "")).await;
    assert!(text(&response).contains("no time"), "{response}");
    assert_eq!(response["result"]["isError"], true, "{response}");
}

/// The agent's user answers a question during a run of code.
#[tokio::test]
async fn x04_the_user_of_the_agent_is_asked() {
    let done = json!({ "tool_results": [{ "contains": "hello Ada", "is_error": false }] });
    let script = turns(&[
        asks(&[("t1", "run_code", run("return 'hello ' + await old()"))]),
        expecting(says("Done."), done),
    ]);
    let llm = Llm::start(&script).await;
    let setup = Setup::new().scripted("one", &[]);
    let gateway = with_agent(setup, &llm, "code = true\ntools = \"search\"\n", "").await;
    gateway.up("one").await;
    let message = json!({ "message": "Greet me", "can_answer": true });
    let mut turn = begin(&gateway, "POST", "/chat", &message).await;
    let mut next = async |kind: &str| loop {
        let event = turn.next_event(DEADLINE).await.expect("an event");
        if event.event.as_deref() == Some(kind) {
            return event.json().expect("JSON");
        }
    };
    let conversation = next("conversation").await;
    let asking = next("questions").await;
    let key = asking["requests"]
        .as_object()
        .and_then(|all| all.keys().next());
    let answer = json!({ "action": "accept", "content": { "name": "Ada" } });
    let answers = json!({ "call": asking["id"], "answers": { key.expect("a key"): answer } });
    let path = format!(
        "/conversations/{}/answers",
        conversation["id"].as_str().expect("an id")
    );
    let answered = common::chat::ask(&gateway, "POST", &path, &answers).await;
    assert_eq!(answered.status, 204, "{}", answered.text());
    next("done").await;
}
