//! Agent turns when something fails around them: unavailable servers, a gateway that stops or is killed. The tests use
//! `POST /api/v1/chat` of the built gateway, with a scripted model.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use std::time::Duration;

use common::{
    Setup,
    chat::{agent, ask, chat, of, offered, put, rest, say, text, told, until, with_agent},
    checks, scripted,
    shell::{json_of, on},
    steps::{accepted, replied},
    with,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::llm::{Llm, asks, expecting, says, turns};
use tokio::time::Instant;

/// Returns the servers that a turn reports as missing, each with its reason.
fn missing(events: &[Value]) -> Vec<(String, String)> {
    let told = of(events, "servers_missing");
    assert!(told.len() <= 1, "{events:?}");
    let servers = told.iter().flat_map(|event| list(&event["servers"]));
    servers
        .map(|one| {
            let text = |key: &str| one[key].as_str().unwrap().to_owned();
            (text("server"), text("reason"))
        })
        .collect()
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}

/// Returns how many times a request tells the model about missing servers.
fn notes(request: &Value) -> usize {
    let messages = request["body"]["messages"].to_string();
    messages.matches("[System note]").count()
}

fn last(events: &[Value]) -> (&str, &str) {
    let last = events.last().unwrap();
    let text = |key: &str| last[key].as_str().unwrap_or_default();
    (text("type"), text("message"))
}

const GOOD: &[&str] = &["--no-builtin", "--tools", "1"];
const BROKEN: &[&str] = &["--exit-at-start"];

/// The default policy: an unreachable address and a failing command, both of the project, do not fail a chat. The user
/// is told of the missing servers each time, the model once.
#[tokio::test]
async fn p12_a_projects_own_servers_never_end_a_chat() {
    let llm = Llm::start(&turns(&vec![says("Hello."); 3])).await;
    let gateway = with_agent(Setup::new(), &llm, "", "").await;
    put(&gateway, "/projects/shop", json!({})).await;
    let closed = json!({ "type": "sse", "url": "http://127.0.0.1:1/sse" });
    for (name, entry) in [
        ("away", closed),
        ("broken", scripted("broken", BROKEN)),
        ("good", scripted("good", GOOD)),
    ] {
        let path = format!("/mcp/servers/{name}?project=shop");
        put(&gateway, &path, entry).await;
    }
    let first = json!({ "message": "Hi" });
    let events = replied(chat(&gateway, "/chat?project=shop", &first).await, "Hello.");
    let gone = missing(&events);
    let names: Vec<&str> = gone.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["away", "broken"], "{gone:?}");
    assert!(gone[0].1.contains("127.0.0.1:1"), "{gone:?}");
    assert!(gone[1].1.contains("exit"), "{gone:?}");
    let on = json!({ "conversation": events[0]["id"], "message": "And again" });
    let events = chat(&gateway, "/chat?project=shop", &on).await;
    assert_eq!(missing(&events).len(), 2, "{events:?}");
    let requests = llm.requests().await;
    for request in &requests {
        assert_eq!(offered(request), ["read_result", "tool_0"]);
        assert_eq!(notes(request), 1, "{request}");
    }
    checks::contains(&requests[0]["body"]["messages"], &["`away`, `broken`"]);
    // The agent of all servers continues without them, too, and names their project.
    let events = say(&gateway, "Hi").await;
    let gone = missing(&events);
    assert_eq!(gone.len(), 2, "{gone:?}");
    assert!(gone[0].0.contains("shop"), "{gone:?}");
}

/// A server in backoff does not fail a chat, nor does a stopped server.
#[tokio::test]
async fn p12_a_hosted_server_that_is_away_ends_no_chat() {
    let llm = Llm::start(&turns(&[says("Hello."), says("Hello.")])).await;
    let setup = Setup::new().scripted("good", GOOD);
    let gateway = with_agent(setup, &llm, "", "").await;
    let entry = json!({ "name": "bad", "command": "/bin/false" });
    let made = accepted(&gateway, "POST", "/mcp/servers", entry).await;
    let stop = format!("/mcp/servers/{}/stop", made["id"].as_str().unwrap());
    let events = replied(say(&gateway, "Hi").await, "Hello.");
    assert_eq!(missing(&events)[0].0, "bad", "{events:?}");
    accepted(&gateway, "POST", &stop, Value::Null).await;
    let events = replied(say(&gateway, "Hi").await, "Hello.");
    let expect = ("bad".to_owned(), "it is stopped".to_owned());
    assert_eq!(missing(&events), [expect]);
    assert_eq!(offered(&llm.requests().await[1]), ["read_result", "tool_0"]);
}

/// Only a failed first start can fail a chat. A server that was running before cannot, not even for an agent that is
/// rebuilt after a change of the settings.
#[tokio::test]
async fn a10_a_server_of_the_file_that_fails_later_ends_no_chat() {
    let llm = Llm::start(&turns(&vec![says("Hello."); 3])).await;
    let setup = Setup::new();
    let broken = setup.folder().join("broken");
    let fails = json!({
        "command": "sh",
        "args": ["-c", "test ! -e \"$0\" || exit 5; exec \"$@\"", broken, testkit::Bin::path("testkit-scripted"), "--name", "fails"],
    });
    let setup = setup.server("fails", fails).scripted("good", GOOD);
    let gateway = with_agent(setup, &llm, "", "").await;
    replied(say(&gateway, "Hi").await, "Hello.");
    // The process exits and cannot be restarted.
    std::fs::write(&broken, "").unwrap();
    gateway.legacy().await.tool("crash", json!({})).await;
    gateway.logged("next attempt in").await;
    let events = replied(say(&gateway, "Hi").await, "Hello.");
    assert_eq!(missing(&events)[0].0, "fails");
    let settings = agent(&llm, "system = \"Be brief.\"\n");
    gateway.replace(&gateway.settings_file(), &settings);
    gateway.logged("reloaded the changed configuration").await;
    let events = replied(say(&gateway, "Hi").await, "Hello.");
    assert_eq!(missing(&events)[0].0, "fails");
    // The agent was rebuilt.
    checks::contains(&llm.requests().await[2]["body"]["system"], &["Be brief."]);
}

/// Each project sets whether its chats fail if a server of the file fails to start. A chat that fails to start leaves
/// no conversation and no run.
#[tokio::test]
async fn a10_the_start_policy_is_the_projects_and_a_chat_that_does_not_start_leaves_nothing() {
    let llm = Llm::start(&turns(&[says("Hello."), says("Hello.")])).await;
    let setup = Setup::new()
        .scripted("broken", BROKEN)
        .scripted("good", GOOD);
    let both =
        "[projects.shop]\nservers = [\"broken\", \"good\"]\n[projects.lab]\nstart = \"parallel\"\n";
    let gateway = with_agent(setup, &llm, "", both).await;
    let events = chat(&gateway, "/chat?project=shop", &json!({ "message": "Hi" })).await;
    let (kind, why) = last(&events);
    assert_eq!((kind, events.len()), ("error", 1), "{events:?}");
    checks::contains(why, &["`broken` did not start"]);
    checks::contains(why, &["toolwharf project add shop --start parallel"]);
    let kept = told(&gateway, "/conversations?project=shop").await;
    assert_eq!(kept["conversations"], json!([]));
    assert_eq!(told(&gateway, "/runs").await["runs"], json!([]));

    let lazy = json!({ "start": "lazy" });
    let wrong = ask(&gateway, "PUT", "/projects/shop", &lazy).await;
    assert_eq!(wrong.status, 400, "{}", wrong.text());
    let set = put(&gateway, "/projects/shop", json!({ "start": "parallel" })).await;
    assert_eq!(set["start"], "parallel", "{set}");
    assert_eq!(told(&gateway, "/projects/shop").await["start"], "parallel");
    for project in ["shop", "lab"] {
        let path = format!("/chat?project={project}");
        let events = chat(&gateway, &path, &json!({ "message": "Hi" })).await;
        let events = replied(events, "Hello.");
        assert_eq!(missing(&events)[0].0, "broken", "{events:?}");
    }
    // Only the project's conversation is kept.
    let kept = told(&gateway, "/conversations?project=shop").await;
    assert_eq!(list(&kept["conversations"]).len(), 1);
}

/// A first message that the model's provider rejects leaves no conversation, and the client is told so. A later
/// rejected message keeps the conversation.
#[tokio::test]
async fn a_first_message_that_the_provider_refuses_leaves_no_empty_conversation() {
    let refused = json!({ "fail": { "status": 400, "kind": "invalid_request_error", "message": "prompt is too long" } });
    let script = [refused.clone(), refused.clone(), says("Hi."), refused];
    let llm = Llm::start(&turns(&script)).await;
    let gateway = with_agent(Setup::new(), &llm, "", "").await;
    let events = say(&gateway, "Hi").await;
    assert_eq!(last(&events).0, "error", "{events:?}");
    let (first, gone) = (&events[0], &events[events.len() - 2]);
    assert!(first["id"].is_string(), "{events:?}");
    assert!(gone["id"].is_null(), "{events:?}");
    assert!(gone.get("type").is_none(), "{events:?}");
    let kept = told(&gateway, "/conversations").await;
    assert_eq!(kept["conversations"], json!([]));
    let said = on(&gateway, "chat Hi").await.code(1);
    checks::lacks(said.says("prompt is too long").err, &["to continue"]);

    let events = replied(say(&gateway, "Hi").await, "Hi.");
    let more = json!({ "conversation": events[0]["id"], "message": "Something very long" });
    let events = chat(&gateway, "/chat", &more).await;
    assert_eq!(last(&events).0, "error", "{events:?}");
    let kept = told(&gateway, "/conversations").await;
    assert_eq!(list(&kept["conversations"]).len(), 1);
}

/// Of a project's own servers, the one registered later wins a name (`last-wins`), for clients and the agent.
#[tokio::test]
async fn a05_of_a_projects_servers_the_later_registered_wins() {
    let call = asks(&[("t1", "tool_0", json!({}))]);
    let llm = Llm::start(&turns(&[call.clone(), says("Done."), call, says("Done.")])).await;
    let gateway = with_agent(Setup::new(), &llm, "", "").await;
    for (project, naming) in [("one", json!("last-wins")), ("other", Value::Null)] {
        let path = format!("/projects/{project}");
        put(&gateway, &path, json!({ "naming": naming })).await;
        // Putting `zeta` a second time does not make it the later one.
        for (name, about) in [("zeta", ""), ("alpha", ""), ("zeta", "again")] {
            let described = format!("Of-{name}");
            let options = [GOOD, &["--description", &described]].concat();
            let mut entry = scripted(name, &options);
            entry["description"] = about.into();
            let path = format!("/mcp/servers/{name}?project={project}");
            put(&gateway, &path, entry).await;
        }
        let message = json!({ "message": "Go" });
        let events = chat(&gateway, &format!("/chat?project={project}"), &message).await;
        let events = replied(events, "Done.");
        assert_eq!(of(&events, "tool_call")[0]["server"], "alpha", "{events:?}");
    }
    let tools = told(&gateway, "/tools?project=one").await;
    let mut tools = list(&tools["tools"]).iter();
    assert!(tools.any(|tool| tool["server"] == "alpha"));
    let log = gateway.process.stderr();
    let about = log.lines().filter(|line| line.contains("`tool_0`"));
    let about: Vec<&str> = about.collect();
    checks::lacks(about.join("\n"), &["that of `zeta`"]);
    checks::lacks(about.join("\n"), &["`tool_0` of server `zeta`"]);
    // If clients get both tools, each log line says to whom it applies.
    for parts in [
        &["the agent uses the tool of `alpha`"][..],
        &["both offer", "as a prefix"],
    ] {
        let is_it = |line: &&str| parts.iter().all(|part| line.contains(part));
        assert!(about.iter().any(is_it), "{parts:?}: {about:#?}");
    }
}

/// After SIGTERM, a turn that ends in time completes normally, with all its calls and model requests.
#[tokio::test]
async fn a11_a_turn_that_ends_within_the_grace_ends_as_it_should() {
    let call = asks(&[("t1", "slow", json!({ "ms": 700 }))]);
    let told = json!({ "tool_results": [{ "id": "t1", "is_error": false }] });
    let more = expecting(asks(&[("t2", "echo", json!({ "n": 2 }))]), told);
    let llm = Llm::start(&turns(&[call, more, says("It is done.")])).await;
    let setup = Setup::new().scripted("alpha", &[]);
    let settings = agent(&llm, "").replace("drain = \"2s\"", "drain = \"15s\"");
    let setup = setup
        .settings(&settings)
        .env("ANTHROPIC_API_KEY", "sk-test");
    let mut gateway = setup.serve().await;
    let (mut streaming, before) = until(&gateway, "Go", "tool_call").await;
    gateway.process.signal(Signal::TERM);
    let events = rest(&mut streaming).await;
    assert_eq!(text(&events), "It is done.", "{before:?} {events:?}");
    assert_eq!(last(&events).0, "done", "{events:?}");
    assert_eq!(of(&events, "tool_result").len(), 2, "{events:?}");
    let status = gateway.process.wait(Duration::from_secs(10)).await;
    assert!(status.success(), "{status}: {}", gateway.process.stderr());
}

/// A turn that does not end in time ends with an error and its reason. The run is recorded accordingly, and the
/// conversation can be continued.
#[tokio::test]
async fn a11_a_turn_that_does_not_end_in_time_is_told_why_and_recorded() {
    let calls = asks(&[
        ("t1", "echo", json!({ "n": 1 })),
        ("t2", "slow", json!({ "ms": 600_000 })),
    ]);
    let llm = Llm::start(&turns(&[calls])).await;
    let entry = with(scripted("alpha", &[]), json!({ "maxConcurrency": 2 }));
    let setup = Setup::new().server("alpha", entry);
    let mut gateway = with_agent(setup, &llm, "", "").await;
    let (mut streaming, before) = until(&gateway, "Go", "tool_result").await;
    let signalled = Instant::now();
    gateway.process.signal(Signal::TERM);
    let events = rest(&mut streaming).await;
    let waited = signalled.elapsed().as_secs_f32();
    let (kind, why) = last(&events);
    assert_eq!(kind, "error", "{events:?}");
    assert_eq!(events.last().unwrap()["kind"], "stopped");
    checks::contains(why, &["Toolwharf was stopped"]);
    let seconds = why
        .split(" s; completed")
        .next()
        .and_then(|why| why.rsplit(' ').next());
    let seconds: f32 = seconds.unwrap().parse().unwrap();
    assert!(
        (2.0..=waited + 0.1).contains(&seconds),
        "{why} (it was {waited} s)"
    );
    let status = gateway.process.wait(Duration::from_secs(20)).await;
    assert!(status.success(), "{status}: {}", gateway.process.stderr());

    let expect = json!({ "tool_results": [{ "id": "t1", "contains": "1" }, { "id": "t2", "equals": "cancelled" }], "last_text": "And?" });
    llm.script(&turns(&[expecting(says("Again."), expect)]))
        .await;
    let gateway = gateway.restarted().await;
    let id = of(&before, "started")[0]["run"].as_str().unwrap();
    let run = told(&gateway, &format!("/runs/{id}")).await;
    assert_eq!(run["status"], "interrupted", "{run}");
    assert_eq!(run["error"].as_str(), Some(why));
    let on = json!({ "conversation": before[0]["id"], "message": "And?" });
    replied(chat(&gateway, "/chat", &on).await, "Again.");
}

/// After SIGKILL while the model responds, the user's message is kept, and the run is marked as interrupted. The run
/// can be read with its calls.
#[tokio::test]
async fn a_killed_gateway_keeps_the_message_and_closes_the_run_at_its_next_start() {
    let stalls = json!({ "reply": { "blocks": [{ "text": "well" }], "after": { "events": 3, "then": "stall" } } });
    let echo = ("t1", "echo", json!({ "n": 1 }));
    let calls = asks(&[echo, ("t2", "tool_0", json!({}))]);
    let llm = Llm::start(&turns(&[calls, stalls])).await;
    let setup = Setup::new().scripted("alpha", &[]).scripted("beta", GOOD);
    let gateway = with_agent(setup, &llm, "", "").await;
    let (_streaming, events) = until(&gateway, "Which soup?", "text_delta").await;
    let running = told(&gateway, "/runs?status=running").await;
    assert_eq!(list(&running["runs"]).len(), 1, "{running}");
    let gateway = gateway.restarted_after(Signal::KILL).await;

    let conversation = events[0]["id"].as_str().unwrap();
    let whole = told(&gateway, &format!("/conversations/{conversation}")).await;
    let asked = &whole["messages"][0]["content"][0]["text"];
    assert_eq!(asked, "Which soup?", "{whole}");
    let id = of(&events, "started")[0]["run"].as_str().unwrap();
    let runs = told(&gateway, "/runs").await;
    let run = &runs["runs"][0];
    assert_eq!(run["id"], id, "{runs}");
    assert_eq!(run["status"], "interrupted", "{runs}");
    checks::contains(&run["error"], &["stopped before"]);
    assert_eq!(run["conversation"], conversation);
    assert!(run["finished_at"].is_string(), "{runs}");
    let whole = told(&gateway, &format!("/runs/{id}")).await;
    let calls = list(&whole["calls"]).iter();
    let mut tools: Vec<_> = calls.map(|call| call["tool"].as_str().unwrap()).collect();
    tools.sort_unstable();
    assert_eq!(tools, ["echo", "tool_0"], "{whole}");
    let calls = told(&gateway, &format!("/calls?run={id}")).await;
    assert_eq!(list(&calls["calls"]).len(), 2, "{calls}");
    let none = told(&gateway, "/runs?status=done").await;
    assert_eq!(none["runs"], json!([]));
    // A project does not see the runs of other projects.
    put(&gateway, "/projects/shop", json!({})).await;
    for (path, status) in [
        ("/runs?status=dead", 400),
        ("/runs/nothing", 404),
        (&*format!("/runs/{id}?project=shop"), 404),
    ] {
        let refused = ask(&gateway, "GET", path, &Value::Null).await;
        assert_eq!(refused.status, status, "{path}");
    }
    let others = told(&gateway, "/runs?project=shop").await;
    assert_eq!(others["runs"], json!([]));

    let listed = on(&gateway, "runs ls").await.code(0);
    checks::contains(listed.out, &[id, "interrupted"]);
    let listed = format!("runs ls --conversation {conversation}");
    assert_eq!(json_of(&gateway, &listed).await[0]["id"], id);
    let shown = on(&gateway, &format!("runs get {id}")).await.code(0);
    checks::contains(&shown.out, &["interrupted", conversation, "stopped before"]);
    checks::contains(&shown.out, &["alpha/echo", "beta/tool_0"]);
}
