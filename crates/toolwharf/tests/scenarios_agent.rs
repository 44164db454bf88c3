//! Scenarios A of SCENARIOS.md: many servers as own child processes, and an agent that uses them. The agent is talked to
//! over `POST /api/v1/chat` of the built gateway, with a scripted model; what the model and the servers are asked is
//! looked at where it arrives.

#![expect(
    clippy::unwrap_used,
    reason = "a failure in a test's helper is the test's"
)]

mod common;

use std::{path::Path, time::Duration};

use common::{
    Gateway, Setup,
    chat::{agent, begin, chat, of, say, text, told},
    gone,
    real::python,
    scripted, tools, with,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{
    Bin, DEADLINE,
    llm::{Llm, asks, expecting, says, turns},
    wait_for,
};

/// Two servers under their names, each its own child, each with its answered handshake.
#[tokio::test]
async fn a01_stdio_servers_run_as_own_children() {
    let gateway = Setup::new()
        .scripted("alpha", &[])
        .scripted("beta", &[])
        .settings("naming = \"always-prefix\"\n")
        .serve()
        .await;
    let mut peer = gateway.legacy().await;
    let listed = tools(&mut peer).await;
    let mut pids = Vec::new();
    for server in ["alpha", "beta"] {
        assert!(listed.contains(&format!("{server}__echo")), "{listed:?}");
        let pid = peer.tool(&format!("{server}__pid"), json!({})).await;
        pids.push(pid.text().parse::<u32>().unwrap());
    }
    assert_ne!(pids[0], pids[1]);
    for pid in pids {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let parent = stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap();
        assert_eq!(parent, gateway.process.pid().to_string(), "{stat}");
    }
}

/// A duplicate name is refused before anything runs, and both lines are named.
#[tokio::test]
async fn a01_a_duplicate_name_is_refused_at_load() {
    let setup = Setup::new();
    let file = setup.folder().join("twice.json");
    let marker = setup.folder().join("started");
    let text = format!(
        "{{\n  \"mcpServers\": {{\n    \"time\": {{\"command\": \"touch\", \"args\": [{:?}]}},\n    \
         \"other\": {{\"command\": \"true\"}},\n    \"time\": {{\"command\": \"true\"}}\n  }}\n}}\n",
        marker.display().to_string()
    );
    std::fs::write(&file, text).unwrap();
    let stderr = setup.config(&file).refused().await;
    for part in ["twice.json:5", "`time`", "twice.json:3", "rename or remove"] {
        assert!(stderr.contains(part), "{part} is missing: {stderr}");
    }
    assert!(!marker.exists(), "a server was started all the same");
}

/// A scripted server whose input is also written to `file`.
fn recorded(name: &str, file: &Path) -> Value {
    recorded_with(name, file, "")
}

/// The same with options of its command line.
fn recorded_with(name: &str, file: &Path, options: &str) -> Value {
    let script = format!("tee \"$0\" | exec \"$1\" --name \"$2\" {options}");
    json!({
        "command": "sh",
        "args": ["-c", script, file, Bin::path("testkit-scripted"), name],
    })
}

/// The methods of what a recorded server was asked to do with tools.
fn calls(file: &Path) -> Vec<String> {
    let calls = frames(file).into_iter();
    let calls = calls.filter(|frame| frame["method"] == "tools/call");
    calls
        .map(|frame| frame["params"]["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Starts a gateway with an agent on this model.
async fn with_agent(setup: Setup, llm: &Llm, before: &str, more: &str) -> Gateway {
    let settings = format!("{before}{}", agent(llm, more));
    let setup = setup.settings(&settings);
    setup.env("ANTHROPIC_API_KEY", "sk-test").serve().await
}

/// The names of the tools that the model was offered with a request.
fn offered(request: &Value) -> Vec<String> {
    let tools = request["body"]["tools"].as_array().unwrap();
    let mut names: Vec<String> = tools
        .iter()
        .map(|tool| tool["name"].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

/// Of each call of a tool in these events: the tool, and the server that it was routed to.
fn routed(events: &[Value]) -> Vec<(&str, &str)> {
    let calls = of(events, "tool_call").into_iter();
    calls
        .map(|call| {
            let server = call["server"].as_str().unwrap_or("nobody");
            (call["name"].as_str().unwrap(), server)
        })
        .collect()
}

/// The one error that ended a turn: its kind and its words.
fn error(events: &[Value]) -> (&str, &str) {
    let last = events.last().unwrap();
    assert_eq!(last["type"], "error", "{events:?}");
    (
        last["kind"].as_str().unwrap(),
        last["message"].as_str().unwrap(),
    )
}

fn frames(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Each server sees ids of its own sequence, none twice, whatever ids the clients use.
#[tokio::test]
async fn a02_each_server_has_its_own_sequence_of_ids() {
    let setup = Setup::new().settings("naming = \"always-prefix\"\n");
    let files = ["alpha", "beta"].map(|name| setup.folder().join(name));
    let setup = setup
        .server(
            "alpha",
            with(recorded("alpha", &files[0]), json!({"maxConcurrency": 8})),
        )
        .server(
            "beta",
            with(recorded("beta", &files[1]), json!({"maxConcurrency": 8})),
        );
    let gateway = setup.serve().await;
    // Two clients that number their requests alike.
    let mut clients = [gateway.legacy().await, gateway.modern().await];
    let mut begun = Vec::new();
    for n in 0..40 {
        for (at, client) in clients.iter_mut().enumerate() {
            for server in ["alpha", "beta"] {
                let params =
                    json!({"name": format!("{server}__echo"), "arguments": {"from": at, "n": n}});
                begun.push((at, n, client.begin("tools/call", params).await));
            }
        }
    }
    for (at, n, id) in begun {
        let response = clients[at].finish(id).await;
        assert_eq!(
            response["result"]["structuredContent"],
            json!({"from": at, "n": n})
        );
    }
    for file in &files {
        let requests: Vec<Value> = frames(file)
            .into_iter()
            .filter(|frame| frame.get("id").is_some())
            .collect();
        let mut ids: Vec<u64> = requests
            .iter()
            .map(|frame| frame["id"].as_u64().unwrap())
            .collect();
        assert!(ids.len() >= 80, "{}", ids.len());
        ids.sort_unstable();
        let sequence: Vec<u64> = (ids[0]..).take(ids.len()).collect();
        assert_eq!(
            ids, sequence,
            "not one sequence without gaps and repetitions"
        );
        assert!(
            ids[0] <= 2,
            "the sequence is shared with another server: it begins at {}",
            ids[0]
        );
    }
}

/// A child sees its own variables and a few harmless ones: nothing of the host's, nothing of a sibling's.
#[tokio::test]
async fn a09_a_child_sees_its_own_variables_only() {
    let mut alpha = scripted("alpha", &[]);
    alpha["env"] = json!({"ALPHA_KEY": "alpha-value", "FILLED": "${HOST_GIVEN}"});
    let mut beta = scripted("beta", &[]);
    beta["env"] = json!({"BETA_KEY": "beta-value"});
    let gateway = Setup::new()
        .settings("naming = \"always-prefix\"\n")
        .env("HOST_SECRET", "hunter2")
        .env("AWS_SECRET_ACCESS_KEY", "hunter2")
        .env("TOOLWHARF_SECRET", "hunter2")
        .env("LD_PRELOAD_X", "hunter2")
        .env("HOST_GIVEN", "given-on-purpose")
        .server("alpha", alpha)
        .server("beta", beta)
        .serve()
        .await;
    let mut peer = gateway.legacy().await;
    let alpha = peer.tool("alpha__env", json!({})).await;
    let beta = peer.tool("beta__env", json!({})).await;
    let alpha = alpha.result()["structuredContent"].as_object().unwrap();
    let beta = beta.result()["structuredContent"].as_object().unwrap();
    assert_eq!(alpha["ALPHA_KEY"], "alpha-value");
    assert_eq!(alpha["FILLED"], "given-on-purpose");
    assert_eq!(beta["BETA_KEY"], "beta-value");
    assert!(!alpha.contains_key("BETA_KEY") && !beta.contains_key("ALPHA_KEY"));
    let token = gateway.token();
    for (name, value) in alpha.iter().chain(beta) {
        let value = value.as_str().unwrap();
        assert!(!value.contains("hunter2"), "{name} reached the child");
        assert!(
            !value.contains(&token),
            "{name} holds the administrator's token"
        );
    }
    assert!(!beta.contains_key("HOST_GIVEN") && !beta.contains_key("FILLED"));
    // What is there beside its own: nothing that a test machine may have made up.
    let harmless = [
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TZ", "LANG", "PWD",
    ];
    for name in beta.keys() {
        let known = harmless.contains(&name.as_str())
            || name.starts_with("LC_")
            || name.starts_with("TOOLWHARF_")
            || name == "BETA_KEY";
        assert!(known, "{name} reached the child");
    }
}

/// The processes of two servers: their own, a child of each, and a child that left its process group.
async fn family(gateway: &Gateway) -> (Vec<u32>, Vec<u32>) {
    let mut peer = gateway.legacy().await;
    let (mut children, mut grandchildren) = (Vec::new(), Vec::new());
    let calls = [
        ("pid", json!({})),
        ("fork", json!({})),
        ("fork", json!({"setsid": true})),
        ("fork", json!({"hold_stdout": true})),
    ];
    for server in ["alpha", "beta"] {
        for (tool, arguments) in &calls {
            let outcome = peer
                .tool(&format!("{server}__{tool}"), arguments.clone())
                .await;
            let pid: u32 = outcome.text().parse().unwrap();
            assert!(common::process_state(pid).is_some(), "{pid} is not there");
            if *tool == "pid" {
                &mut children
            } else {
                &mut grandchildren
            }
            .push(pid);
        }
    }
    (children, grandchildren)
}

fn two_servers() -> Setup {
    Setup::new()
        .settings("naming = \"always-prefix\"\n[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\n")
        .scripted("alpha", &[])
        // One that does not go when it is asked to.
        .scripted("beta", &["--ignore-sigterm", "--ignore-eof"])
}

/// SIGTERM ends the gateway, every child, and every child of a child.
#[tokio::test]
async fn a11_sigterm_leaves_no_process() {
    let mut gateway = two_servers().serve().await;
    let (children, grandchildren) = family(&gateway).await;
    gateway.process.signal(Signal::TERM);
    let status = gateway.process.wait(Duration::from_secs(15)).await;
    assert!(status.success(), "{status}: {}", gateway.process.stderr());
    // At once: the gateway waits for its children before it ends.
    gone(&children, false, Duration::from_secs(1)).await;
    gone(&grandchildren, true, Duration::from_secs(2)).await;
}

/// Nothing survives the gateway when it is killed without a word.
#[tokio::test]
async fn a11_kill_9_leaves_no_process() {
    let mut gateway = two_servers().serve().await;
    let (children, grandchildren) = family(&gateway).await;
    gateway.process.signal(Signal::KILL);
    gateway.process.wait(DEADLINE).await;
    gone(&children, true, Duration::from_secs(5)).await;
    gone(&grandchildren, true, Duration::from_secs(5)).await;
}

/// The same for the gateway on standard input and output, when its client closes its end.
#[tokio::test]
async fn a11_a_stdio_gateway_ends_with_its_client() {
    let (mut client, _dir) = two_servers().stdio();
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    client
        .ask(json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}))
        .await;
    client
        .send_json(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        .await;
    let mut pids = Vec::new();
    for (id, name) in [(2, "alpha__pid"), (3, "beta__pid"), (4, "beta__fork")] {
        let call =
            json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name}});
        let answer = client.ask(call).await;
        let text = answer["result"]["content"][0]["text"]
            .as_str()
            .unwrap_or_else(|| panic!("{answer}"));
        pids.push(text.parse::<u32>().unwrap());
    }
    let status = client.finish(Duration::from_secs(15)).await;
    assert!(status.success(), "{status}");
    gone(&pids, true, Duration::from_secs(2)).await;
}

/// A call in flight is answered before its server is stopped; a listening stream holds nothing up.
#[tokio::test]
async fn calls_in_flight_finish_when_the_gateway_stops() {
    let mut gateway = Setup::new().scripted("alpha", &[]).serve().await;
    let mut listening = gateway.modern().await;
    let filter = json!({ "notifications": { "toolsListChanged": true } });
    listening.begin("subscriptions/listen", filter).await;
    let mut peer = gateway.legacy().await;
    let params = json!({ "name": "slow", "arguments": { "ms": 1500 } });
    let call = peer.begin("tools/call", params).await;
    wait_for("the call to be at its server", DEADLINE, async || {
        gateway.metric("calls_in_flight", Some("alpha")).await == Some(1)
    })
    .await;
    gateway.process.signal(Signal::TERM);
    let response = peer.finish(call).await;
    assert!(response["result"].is_object(), "{response}");
    let status = gateway.process.wait(Duration::from_secs(10)).await;
    assert!(status.success(), "{status}: {}", gateway.process.stderr());
}

const NATIVE: &str = "native = [\"display_recipe\"]\n";

fn recipe() -> Value {
    json!({ "title": "Soup", "ingredients": ["leeks"], "steps": ["Cook."] })
}

/// The recipe server has five tools, the official fetch server one.
#[tokio::test]
async fn a03_the_model_is_offered_the_tools_of_all_servers_and_native_ones() {
    let llm = Llm::start(&turns(&[says("Hello.")])).await;
    let setup = Setup::new();
    let file = setup.folder().join("recipes.db");
    let recipes =
        json!({ "command": Bin::path("toolwharf-example-recipes"), "args": ["--file", file] });
    let setup = setup
        .server("recipes", recipes)
        .server("fetch", python("mcp-server-fetch", &[]));
    let gateway = with_agent(setup, &llm, "", NATIVE).await;
    // The first chat itself waits for them: nobody else has.
    assert_eq!(text(&say(&gateway, "Hi").await), "Hello.");
    let requests = llm.requests().await;
    let all = [
        "create_recipe",
        "delete_recipe",
        "display_recipe",
        "fetch",
        "get_recipe",
        "list_recipes",
        "read_result",
        "update_recipe",
    ];
    assert_eq!(offered(&requests[0]), all);
    let tools = requests[0]["body"]["tools"].as_array().unwrap();
    for tool in tools {
        assert_eq!(tool["input_schema"]["type"], "object", "{tool}");
    }
}

/// Each call goes where the registry says: to the server of the tool, to this process, or nowhere.
#[tokio::test]
async fn a04_a_tool_leads_to_its_server_or_to_native() {
    let calls = asks(&[
        ("t1", "echo", json!({})),
        ("t2", "tool_0", json!({})),
        ("t3", "display_recipe", recipe()),
        ("t4", "nowhere", json!({})),
    ]);
    let llm = Llm::start(&turns(&[calls, says("Done.")])).await;
    let setup = Setup::new()
        .scripted("alpha", &[])
        .scripted("beta", &["--no-builtin", "--tools", "1"]);
    let gateway = with_agent(setup, &llm, "", NATIVE).await;
    let events = say(&gateway, "Go").await;
    let expect = [
        ("echo", "alpha"),
        ("tool_0", "beta"),
        ("display_recipe", "native"),
        ("nowhere", "nobody"),
    ];
    assert_eq!(routed(&events), expect, "{events:?}");
    // The records say the same; what is nowhere is no call.
    let recorded = told(&gateway, "/calls").await;
    let mut recorded: Vec<_> = recorded["calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| {
            (
                call["tool"].as_str().unwrap(),
                call["server"].as_str().unwrap(),
            )
        })
        .collect();
    recorded.sort_unstable();
    let mut expect = expect[..3].to_vec();
    expect.sort_unstable();
    assert_eq!(recorded, expect);
}

/// One name of two servers: the later one's tool is offered and called, and the log names both, once.
#[tokio::test]
async fn a05_the_later_server_wins_a_name_and_a_warning_names_both() {
    let setup = Setup::new();
    // Names in another order than that of the file.
    let files = ["zeta", "beta"].map(|name| setup.folder().join(name));
    let options = |name: &str| format!("--no-builtin --tools 1 --description Of-{name}");
    let setup = setup
        .server("zeta", recorded_with("zeta", &files[0], &options("zeta")))
        .server("beta", recorded_with("beta", &files[1], &options("beta")));
    let call = asks(&[("t1", "tool_0", json!({ "n": 7 }))]);
    let answered =
        json!({ "tools": ["tool_0", "read_result"], "tool_results": [{ "contains": "7" }] });
    let llm = Llm::start(&turns(&[
        call,
        expecting(says("Done."), answered),
        says("Again."),
    ]))
    .await;
    let gateway = with_agent(setup, &llm, "", "").await;
    let events = say(&gateway, "Go").await;
    assert_eq!(text(&events), "Done.", "{events:?}");
    assert_eq!(routed(&events), [("tool_0", "beta")]);
    assert_eq!((calls(&files[0]).len(), calls(&files[1]).len()), (0, 1));
    let requests = llm.requests().await;
    let described = &requests[0]["body"]["tools"][0]["description"];
    assert!(
        described.as_str().unwrap().starts_with("Of-beta"),
        "{described}"
    );
    assert_eq!(text(&say(&gateway, "Again").await), "Again.");
    gateway.logged("both offer the tool `tool_0`").await;
    let log = gateway.process.stderr();
    let mut warnings = log
        .lines()
        .filter(|line| line.contains("both offer the tool"));
    let warning = warnings.next().unwrap();
    for part in ["WARN", "`zeta`", "`beta`", "the agent uses that of `beta`"] {
        assert!(warning.contains(part), "{part} is missing: {warning}");
    }
    assert_eq!(warnings.next(), None);
}

/// `tools/call` reaches the tool's server alone, and its result the model.
#[tokio::test]
async fn a06_only_the_server_of_a_tool_is_asked() {
    let setup = Setup::new();
    let files = ["alpha", "beta"].map(|name| setup.folder().join(name));
    let setup = setup.server("alpha", recorded("alpha", &files[0])).server(
        "beta",
        recorded_with("beta", &files[1], "--no-builtin --tools 1"),
    );
    let call = asks(&[("t1", "tool_0", json!({ "only": "beta" }))]);
    let answered =
        json!({ "tool_results": [{ "id": "t1", "contains": "only", "is_error": false }] });
    let llm = Llm::start(&turns(&[call, expecting(says("Done."), answered)])).await;
    let gateway = with_agent(setup, &llm, "", "").await;
    let events = say(&gateway, "Go").await;
    assert_eq!(text(&events), "Done.", "{events:?}");
    assert_eq!(calls(&files[1]), ["tool_0"]);
    assert_eq!(calls(&files[0]), [""; 0]);
}

/// A native tool is done in this process: the servers hear nothing of it.
#[tokio::test]
async fn a07_a_native_tool_makes_no_traffic_to_servers() {
    let setup = Setup::new();
    let file = setup.folder().join("alpha");
    let setup = setup.server("alpha", recorded("alpha", &file));
    let call = asks(&[("t1", "display_recipe", recipe())]);
    let shown = json!({ "tool_results": [{ "contains": "shown", "is_error": false }] });
    let llm = Llm::start(&turns(&[
        says("Ready."),
        call,
        expecting(says("Done."), shown),
    ]))
    .await;
    let gateway = with_agent(setup, &llm, "", NATIVE).await;
    assert_eq!(text(&say(&gateway, "Hi").await), "Ready.");
    let before = frames(&file).len();
    let events = say(&gateway, "Go").await;
    assert_eq!(text(&events), "Done.", "{events:?}");
    assert_eq!(of(&events, "native")[0]["payload"], recipe());
    assert_eq!(frames(&file).len(), before, "the server was sent something");
    // What it was sent last is what it was sent before: a call of its own gets through after all of that.
    gateway.legacy().await.tool("echo", json!({})).await;
    assert_eq!(calls(&file), ["echo"]);
}

/// A server that writes down its start and its process, and then does `rest`.
fn noted(name: &str, notes: &Path, rest: &str) -> Value {
    let script = format!(
        "echo {name} $$ >> \"$0\"; {rest} exec \"$1\" --name {name} --no-builtin --tools 1"
    );
    json!({"command": "sh", "args": ["-c", script, notes, Bin::path("testkit-scripted")]})
}

/// The servers that were started, and their processes.
fn started(notes: &Path) -> Vec<(String, u32)> {
    let text = std::fs::read_to_string(notes).unwrap_or_default();
    text.lines()
        .map(|line| {
            let (name, pid) = line.split_once(' ').unwrap();
            (name.to_owned(), pid.parse().unwrap())
        })
        .collect()
}

/// The agent's start is sequential if nothing is said: the first chat fails with the first server that does, which it
/// names; what was started for it is stopped; what is behind it is not started. Who comes next tries again.
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
    for part in [
        "`b-broken` did not start",
        "exit code 5",
        "start = \"parallel\"",
    ] {
        assert!(why.contains(part), "{part} is missing: {why}");
    }
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

/// What the gateway itself starts in parallel is looked at by the agent in the same way; and `parallel` goes on without
/// the servers that fail.
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
    assert!(
        kind == "servers" && why.contains("`broken` did not start"),
        "{why}"
    );
    let parallel = with_agent(two(), &llm, "", "start = \"parallel\"\n").await;
    assert_eq!(text(&say(&parallel, "Hi").await), "Hello.");
    assert_eq!(offered(&llm.requests().await[0]), ["read_result", "tool_0"]);
}

/// A chat with a call in flight ends with the gateway, and so does the server.
#[tokio::test]
async fn a11_the_gateway_stops_in_mid_chat_and_leaves_no_process() {
    let call = asks(&[
        ("t1", "pid", json!({})),
        ("t2", "slow", json!({ "ms": 600_000 })),
    ]);
    let llm = Llm::start(&turns(&[call])).await;
    let entry = with(scripted("alpha", &[]), json!({ "maxConcurrency": 2 }));
    let setup = Setup::new().server("alpha", entry);
    let mut gateway = with_agent(setup, &llm, "", "").await;
    let message = json!({ "message": "Go" });
    let mut streaming = begin(&gateway, "POST", "/chat", &message).await;
    let (mut pid, mut run) = (None, None);
    while pid.is_none() {
        let event = streaming.next_event(DEADLINE).await.unwrap();
        let data: Value = serde_json::from_str(&event.data).unwrap();
        if data["type"] == "started" {
            run = Some(data["run"].as_str().unwrap().to_owned());
        }
        if data["type"] == "tool_result" {
            assert_eq!(data["id"], "t1", "{data}");
            pid = Some(data["preview"].as_str().unwrap().parse::<u32>().unwrap());
        }
    }
    gateway.process.signal(Signal::TERM);
    let mut last = Value::Null;
    while let Some(event) = streaming.next_event(DEADLINE).await {
        last = serde_json::from_str(&event.data).unwrap();
    }
    assert_eq!(
        (&last["type"], &last["kind"]),
        (&json!("error"), &json!("stopped")),
        "{last}"
    );
    let status = gateway.process.wait(Duration::from_secs(20)).await;
    assert!(status.success(), "{status}: {}", gateway.process.stderr());
    gone(&[pid.unwrap()], false, Duration::from_secs(1)).await;
    // What is recorded of it is closed: the run, and the call that was cut.
    let gateway = gateway.restarted().await;
    let run = told(&gateway, &format!("/runs/{}", run.unwrap())).await;
    assert_eq!(run["status"], "interrupted", "{run}");
    let calls = run["calls"].as_array().unwrap().iter();
    let mut calls: Vec<_> = calls
        .map(|call| (call["tool"].as_str(), call["status"].as_str()))
        .collect();
    calls.sort_unstable();
    assert_eq!(
        calls,
        [(Some("pid"), Some("ok")), (Some("slow"), Some("cancelled"))],
        "{run}"
    );
}

/// Servers that nobody needed yet are started by the first chats, each once; later chats use them as they are.
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
        assert_eq!(text(&events), "Hello.", "{events:?}");
    }
    let names = || -> Vec<String> { started(&notes).into_iter().map(|(name, _)| name).collect() };
    assert_eq!(names(), ["a", "b"]);
    assert_eq!(text(&say(&gateway, "Hi").await), "Hello.");
    assert_eq!(names(), ["a", "b"]);
    for request in llm.requests().await {
        assert_eq!(offered(&request), ["read_result", "tool_0"]);
    }
}

/// Calls of one answer are made, their results go back in order, and so on until the model ends its turn; what it says
/// comes while it says it.
#[tokio::test]
async fn a13_a_turn_goes_on_until_the_model_ends_it_and_streams() {
    let two = asks(&[
        ("t1", "echo", json!({ "n": 1 })),
        ("t2", "echo", json!({ "n": 2 })),
    ]);
    let results = json!({ "tool_results": [{ "id": "t1", "contains": "1" }, { "id": "t2", "contains": "2" }] });
    let more = expecting(asks(&[("t3", "echo", json!({ "n": 3 }))]), results);
    let last = json!({ "tool_results": [{ "id": "t3", "contains": "3" }] });
    // It waits before its end: what comes meanwhile was passed on before it was whole.
    let answer =
        json!({ "reply": { "blocks": [{ "text": "It is six.", "deltas": 3 }], "pause_ms": 300 } });
    let llm = Llm::start(&turns(&[two, more, expecting(answer, last)])).await;
    let setup = Setup::new().scripted("alpha", &[]);
    let gateway = with_agent(setup, &llm, "", "").await;
    let message = json!({ "message": "Sum up" });
    let mut streaming = begin(&gateway, "POST", "/chat", &message).await;
    let mut kinds = Vec::new();
    let mut complete = None;
    while let Some(event) = streaming.next_event(DEADLINE).await {
        let kind = event.event.unwrap();
        if kind == "text_delta" && complete.is_none() {
            let requests = llm.requests().await;
            complete = Some(requests[2]["outcome"] == "complete");
        }
        kinds.push(kind);
    }
    let count = |kind: &str| kinds.iter().filter(|one| *one == kind).count();
    assert_eq!(
        (count("tool_call"), count("tool_result"), count("done")),
        (3, 3, 1),
        "{kinds:?}"
    );
    assert!(count("text_delta") > 1, "{kinds:?}");
    assert_eq!(complete, Some(false), "the answer was held back");
}

/// A model that asks for tools without end is stopped, with a message that says so; the conversation can go on.
#[tokio::test]
async fn a13_a_runaway_loop_ends_at_the_turn_limit() {
    let forever = json!({
        "turns": [{ "reply": { "blocks": [{ "tool_use": "echo", "input": { "again": true } }] } }],
        "repeat_last": true,
    });
    let llm = Llm::start(&forever).await;
    let setup = Setup::new();
    let file = setup.folder().join("alpha");
    let setup = setup.server("alpha", recorded("alpha", &file));
    let gateway = with_agent(setup, &llm, "", "max_turns = 3\n").await;
    let events = say(&gateway, "Go").await;
    let (kind, why) = error(&events);
    assert_eq!(kind, "turn_limit");
    assert!(
        why.contains("3 turns") && why.contains("`max_turns`"),
        "{why}"
    );
    assert_eq!(llm.requests().await.len(), 3);
    assert_eq!(
        calls(&file),
        ["echo", "echo"],
        "the last ask was not to be met"
    );
    llm.script(&turns(&[says("Sorry.")])).await;
    let on = json!({ "conversation": events[0]["id"], "message": "Stop it" });
    assert_eq!(text(&chat(&gateway, "/chat", &on).await), "Sorry.");
}

/// A model that falls silent in mid-answer ends the turn with an error; what it had called is kept, half an answer is
/// not, and nothing is done twice.
#[tokio::test]
async fn a13_a_model_that_stops_in_mid_stream_ends_the_turn_and_the_conversation_goes_on() {
    let cut = json!({
        "reply": { "blocks": [{ "text": "As I was saying", "deltas": 3 }], "after": { "events": 4, "then": "cut" } },
    });
    let llm = Llm::start(&turns(&[asks(&[("t1", "echo", json!({ "n": 1 }))]), cut])).await;
    let setup = Setup::new();
    let file = setup.folder().join("alpha");
    let setup = setup.server("alpha", recorded("alpha", &file));
    let gateway = with_agent(setup, &llm, "", "").await;
    let events = say(&gateway, "Go").await;
    assert_eq!(error(&events).0, "model", "{events:?}");
    assert!(text(&events).starts_with("As"), "{events:?}");
    let expect = json!({
        "last_text": "Again",
        "body": { "/messages/2/content/0/tool_use_id": "t1", "/messages/2/content/1/text": "Again" },
        "absent": ["/messages/3"],
    });
    llm.script(&turns(&[expecting(says("Here."), expect)]))
        .await;
    let on = json!({ "conversation": events[0]["id"], "message": "Again" });
    let events = chat(&gateway, "/chat", &on).await;
    assert_eq!(text(&events), "Here.", "{events:?}");
    assert_eq!(calls(&file), ["echo"]);
}

/// Arguments that do not match are the call's result, for native tools as for those of servers; no call is made of what
/// is no object.
#[tokio::test]
async fn a13_arguments_that_do_not_match_are_told_to_the_model() {
    let wrong = json!({ "reply": { "blocks": [
        { "tool_use": "display_recipe", "id": "t1", "input": { "title": "", "steps": [] } },
        { "tool_use": "create_recipe", "id": "t2", "input": { "title": 7 } },
        { "tool_use": "create_recipe", "id": "t3", "input_raw": "{\"title\": \"So" },
    ] } });
    let told = json!({ "tool_results": [
        { "id": "t1", "contains": "ingredients", "is_error": true },
        { "id": "t2", "is_error": true },
        { "id": "t3", "is_error": true },
    ] });
    let llm = Llm::start(&turns(&[wrong, expecting(says("I see."), told)])).await;
    let setup = Setup::new();
    let file = setup.folder().join("recipes.db");
    let recipes =
        json!({ "command": Bin::path("toolwharf-example-recipes"), "args": ["--file", file] });
    let gateway = with_agent(setup.server("recipes", recipes), &llm, "", NATIVE).await;
    let events = say(&gateway, "Go").await;
    assert_eq!(text(&events), "I see.", "{events:?}");
    assert_eq!(of(&events, "native").len(), 0);
    let mut peer = gateway.legacy().await;
    let listed = peer.tool("list_recipes", json!({})).await;
    assert_eq!(listed.result()["structuredContent"]["recipes"], json!([]));
}

/// What the host needs for itself, all its processes but the servers, after chats that called both. The promise is 50 MB;
/// a release build is to stay below 20. Pages of the program's file count in release builds only: without optimisations it
/// is several times as large.
#[tokio::test]
async fn a14_the_host_with_two_servers_adds_less_than_50_mb() {
    let mut script = Vec::new();
    for n in 0..20 {
        let id = format!("t{n}");
        let tool = if n % 2 == 0 { "echo" } else { "tool_0" };
        script.push(asks(&[(&id, tool, json!({ "n": n }))]));
        script.push(says("Done."));
    }
    let llm = Llm::start(&turns(&script)).await;
    let setup = Setup::new()
        .scripted("alpha", &[])
        .scripted("beta", &["--no-builtin", "--tools", "1"]);
    let gateway = with_agent(setup, &llm, "", "").await;
    for _ in 0..20 {
        assert_eq!(text(&say(&gateway, "Go").await), "Done.");
    }
    let pid = gateway.process.pid();
    let (mut servers, mut own) = (0, vec![pid]);
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut all: Vec<u32> = tasks
        .flat_map(|task| {
            let children = task.unwrap().path().join("children");
            let children = std::fs::read_to_string(children).unwrap_or_default();
            children
                .split_whitespace()
                .map(|pid| pid.parse().unwrap())
                .collect::<Vec<u32>>()
        })
        .collect();
    all.sort_unstable();
    all.dedup();
    for child in all {
        let command = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap();
        match command.contains("testkit-scripted") {
            true => servers += 1,
            false => own.push(child),
        }
    }
    assert_eq!(servers, 2);
    let sum = |field: &str| own.iter().map(|pid| rollup(*pid, field)).sum::<u64>();
    let (all, anonymous) = (sum("Pss:"), sum("Pss_Anon:"));
    let mb = |kib: u64| kib as f64 * 1024.0 / 1e6;
    println!(
        "the host needs {:.1} MB in {} processes, {:.1} MB of it without its program's pages",
        mb(all),
        own.len(),
        mb(anonymous)
    );
    assert!(mb(anonymous) < 20.0, "{anonymous} KiB");
    if !cfg!(debug_assertions) {
        assert!(mb(all) < 50.0, "{all} KiB");
    }
}

/// One field of what the kernel adds up of a process's memory, in KiB; `Pss` shares out what processes have in common.
fn rollup(pid: u32, field: &str) -> u64 {
    let all = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = all.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
