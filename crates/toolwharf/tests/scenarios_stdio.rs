//! `toolwharf stdio` and `toolwharf serve` on the same data directory: `stdio` is a client of the running gateway, in
//! both eras and both directions. Only one `serve` can use a data directory.

mod common;

use std::{fs, time::Duration};

use common::{
    Gateway, LEGACY, Setup, checks,
    cli::{self, Said},
    names, rpc, says, scripted,
    shell::{self, fails, json_of, ok},
    steps::begin_tool,
    tools, with,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{DEADLINE, Peer, Process, StdioClient, peer, wait_for};
use tokio::process::Command;

const ERAS: [&str; 3] = ["2024-11-05", LEGACY, peer::MODERN];

/// A command line with the gateway's data directory, but without its configuration.
fn line(gateway: &Gateway, line: &str) -> Command {
    let mut command = shell::at(gateway, line);
    command.env_remove("RUST_LOG");
    command
}

/// `toolwharf stdio` with the gateway's configuration.
fn beside(gateway: &Gateway, options: &str) -> StdioClient {
    let files = "--config mcp.json --config toolwharf.toml";
    StdioClient::spawn(line(gateway, &format!("stdio {files} {options}")))
}

async fn peer_beside(gateway: &Gateway, version: &str, options: &str) -> Peer {
    peer_of(beside(gateway, options), version).await
}

async fn peer_of(client: StdioClient, version: &str) -> Peer {
    Peer::stdio(client, version, peer::all_capabilities()).await
}

/// Returns the recorded calls of a tool, newest first.
async fn calls(gateway: &Gateway, tool: &str) -> Vec<Value> {
    let all = json_of(gateway, "calls ls").await;
    let all = all.as_array().cloned().unwrap_or_default();
    let is_it = |call: &Value| call["tool"] == tool;
    all.into_iter().filter(is_it).collect()
}

async fn run(command: Command) -> Said {
    cli::said(command, "").await
}

/// A gateway with one scripted server, which is connected.
async fn one() -> Gateway {
    Setup::new().scripted("one", &[]).connected().await
}

/// Sets how many tools the server has, from another client.
async fn set_tools(gateway: &Gateway, count: usize) {
    let count = json!({ "count": count });
    gateway.legacy().await.tool("set_tools", count).await;
}

async fn pid(peer: &mut Peer) -> String {
    peer.tool("pid", json!({})).await.text().to_owned()
}

/// Returns the next notification of this method.
async fn told(peer: &mut Peer, method: &str) -> Value {
    let told = peer.notification(method, DEADLINE).await;
    told.unwrap_or_else(|| panic!("no {method}"))
}

const TOOLS_CHANGED: &str = "notifications/tools/list_changed";

#[tokio::test]
async fn u07_a_second_serve_is_refused() {
    let gateway = one().await;
    let pid = gateway.process.pid().to_string();
    let data = gateway.folder().join("data").display().to_string();
    // The database option makes no difference: the directory is shared.
    for database in [None, Some("postgres://nobody@127.0.0.1:1/none")] {
        let mut second = line(&gateway, "serve --listen 127.0.0.1:0");
        if let Some(database) = database {
            second.args(["--database-url", database]);
        }
        let said = run(second).await.code(1).err;
        checks::contains(&said, &[&data, &pid, &gateway.url, "--data-dir", "kill"]);
        checks::lacks(&said, &["toolwharf is at"]);
    }
    let is_found = async |gateway: &Gateway| {
        let listed = json_of(gateway, "ls").await;
        assert_eq!(listed["servers"][0]["status"], "running", "{listed}");
    };
    // The first gateway is still found.
    is_found(&gateway).await;
    // A killed gateway holds no lock.
    let gateway = gateway.restarted_after(Signal::KILL).await;
    gateway.up("one").await;
    is_found(&gateway).await;
}

/// Commands check the lock continuously, and prevent no gateway from starting.
#[tokio::test]
async fn u07_whoever_looks_is_in_nobodys_way() {
    let mut gateway = Setup::new().serve().await;
    for _ in 0..3 {
        let looks: Vec<_> = (0..4).map(|_| line(&gateway, "ls -o json")).collect();
        let looks = async {
            for look in looks {
                checks::lacks(run(look).await.err, &["lock"]);
            }
        };
        (_, gateway) = tokio::join!(looks, gateway.restarted());
    }
}

#[tokio::test]
async fn u07_stdio_is_a_client_of_the_running_serve() {
    let gateway = one().await;
    let its = pid(&mut gateway.legacy().await).await;
    for (made, version) in ERAS.into_iter().enumerate() {
        let mut peer = peer_beside(&gateway, version, "").await;
        // The call reaches the same instance, not a second one.
        assert_eq!(pid(&mut peer).await, its, "{version}");
        let listed = tools(&mut peer).await;
        assert!(listed.iter().any(|tool| tool == "echo"), "{listed:?}");
        // The number keeps all its digits, because the text is passed through.
        let big = json!({ "n": 12345678901234567890u64, "text": "grüß\u{2028}" });
        let echoed = peer.tool("echo", big.clone()).await;
        assert_eq!(echoed.result()["structuredContent"], big, "{version}");
        // The server's error is passed on with its code.
        let error = json!({ "code": -32050, "message": "no" });
        let failed = peer.tool("rpc_error", error).await;
        assert_eq!(failed.response["error"]["code"], -32050, "{failed:?}");
        let none = peer.tool("surely_not", json!({})).await;
        assert!(none.response["error"].is_object(), "{none:?}");
        // Each call is recorded once.
        assert_eq!(calls(&gateway, "echo").await.len(), made + 1);
    }
    let starts = gateway.metric("server_starts_total", Some("one")).await;
    assert_eq!(starts, Some(1));
}

#[tokio::test]
async fn u07_a_hosted_server_is_called_through_stdio() {
    let gateway = Setup::new().serve().await;
    let program = testkit::Bin::path("testkit-scripted");
    let add = format!("add --sandbox housed -- {}", program.display());
    ok(&gateway, &add, "connected: ").await;
    for version in [LEGACY, peer::MODERN] {
        let mut peer = peer_beside(&gateway, version, "").await;
        let echoed = peer.tool("echo", json!({ "from": version })).await;
        assert_eq!(echoed.result()["structuredContent"]["from"], version);
    }
    let recorded = calls(&gateway, "echo").await;
    assert_eq!(recorded.len(), 2, "{recorded:?}");
    assert!(recorded.iter().all(|call| call["server"] == "housed"));
    // With `--standalone`, no sandboxed server runs.
    let mut alone = peer_beside(&gateway, LEGACY, "--standalone").await;
    let refused = alone.tool("echo", json!({})).await;
    says(&refused.response, &["only `toolwharf serve`"]);
}

#[tokio::test]
async fn u07_what_servers_say_and_ask_passes_both_ways() {
    let gateway = one().await;
    for version in ERAS {
        let mut peer = peer_beside(&gateway, version, "").await;
        let question = json!({
            "message": "Name?",
            "requestedSchema": { "type": "object", "properties": {} },
        });
        // The server can ask the client during a call.
        let question = json!({ "method": "elicitation/create", "params": question });
        let asked = peer.tool("server_request", question).await;
        assert_eq!(asked.asked, ["elicitation/create"], "{version}: {asked:?}");
        assert!(asked.text().contains("Alice"), "{version}: {asked:?}");
        // Progress notifications arrive with the token of their call.
        let params = json!({
            "name": "progress", "arguments": { "count": 3, "ms": 20 },
            "_meta": { "progressToken": "mine" },
        });
        let progress = peer.request("tools/call", params).await;
        assert!(progress.response["result"].is_object(), "{progress:?}");
        let reports = progress.notifications.iter();
        let reports = reports.filter(|one| one["method"] == "notifications/progress");
        let tokens: Vec<_> = reports.map(|one| &one["params"]["progressToken"]).collect();
        assert_eq!(tokens, ["mine"; 3], "{version}: {progress:?}");
        peer.log_level("debug").await;
        let logged = json!({
            "method": "notifications/message",
            "params": { "level": "warning", "data": "said so" },
        });
        peer.tool("notify", logged).await;
        let message = told(&mut peer, "notifications/message").await;
        assert_eq!(message["params"]["data"], "said so", "{version}");
        // `list_changed` notifications also arrive while no call is in flight.
        let listening = peer.subscribe(&[]).await;
        let count = peer.tool("counter", json!({})).await;
        assert!(count.response["result"].is_object(), "{count:?}");
        let before = tools(&mut peer).await.len();
        set_tools(&gateway, before + 1).await;
        told(&mut peer, TOOLS_CHANGED).await;
        if let Some(listening) = listening {
            peer.cancel(listening).await;
        }
        set_tools(&gateway, 0).await;
    }
}

#[tokio::test]
async fn u07_a_cancelled_call_is_cancelled_at_its_server() {
    let gateway = one().await;
    for (cancelled, version) in ERAS.into_iter().enumerate() {
        let mut peer = peer_beside(&gateway, version, "").await;
        let id = begin_tool(&mut peer, "slow", json!({ "ms": 60_000 })).await;
        wait_for("the call at the server", DEADLINE, async || {
            peer.tool("running", json!({})).await.text() == "1"
        })
        .await;
        peer.cancel(id).await;
        gateway.in_flight("one", 0, DEADLINE).await;
        let count = (cancelled + 1).to_string();
        wait_for("the server to be notified", DEADLINE, async || {
            peer.tool("cancelled_count", json!({})).await.text() == count
        })
        .await;
        let answer = peer.finish_within(id, Duration::from_millis(200)).await;
        assert_eq!(answer, None, "{version}");
        let recorded = calls(&gateway, "slow").await;
        assert_eq!(recorded[0]["status"], "cancelled", "{recorded:?}");
    }
}

#[tokio::test]
async fn u07_the_end_of_the_pipe_ends_the_session_and_its_calls() {
    let gateway = one().await;
    let mut client = beside(&gateway, "");
    // A ping is allowed before the handshake.
    let ping = client.ask(rpc::message(0, "ping", json!({}))).await;
    assert_eq!(ping["result"], json!({}), "{ping}");
    let early = client.ask(rpc::message(1, "tools/list", json!({}))).await;
    assert!(early["error"]["message"].is_string(), "{early}");
    client.send("{").await;
    let refused = client.receive_json().await;
    assert_eq!(refused["error"]["code"], -32700, "{refused}");
    let answer = client.ask(rpc::hello(LEGACY)).await;
    assert_eq!(answer["result"]["protocolVersion"], LEGACY, "{answer}");
    client
        .send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)
        .await;
    assert_eq!(gateway.metric("sessions", None).await, Some(1));
    let call = rpc::call(2, "slow", json!({ "ms": 60_000 }));
    client.send(call).await;
    gateway.in_flight("one", 1, DEADLINE).await;
    let status = client.finish(DEADLINE).await;
    assert!(status.success(), "{status}");
    gateway.in_flight("one", 0, DEADLINE).await;
    assert_eq!(gateway.metric("sessions", None).await, Some(0));
}

#[tokio::test]
async fn u07_a_killed_serve_is_waited_for() {
    let [first, second, third] = ERAS.map(killed);
    tokio::join!(first, second, third);
}

async fn killed(version: &str) {
    let gateway = Setup::new()
        .scripted("one", &["--resources", "1"])
        .connected()
        .await;
    let mut peer = peer_beside(&gateway, version, "").await;
    let uris = names(&mut peer, "resources/list", "resources", "uri").await;
    if version == LEGACY {
        peer.subscribe(&[&uris[0]]).await;
    }
    let id = begin_tool(&mut peer, "slow", json!({ "ms": 60_000 })).await;
    gateway.in_flight("one", 1, DEADLINE).await;
    let restarted = gateway.restarted_after(Signal::KILL);
    let (mut gateway, answer) = tokio::join!(restarted, peer.finish(id));
    says(&answer, &["unknown"]);
    gateway.up("one").await;
    let echoed = peer.tool("echo", json!({ "again": true })).await;
    let again = &echoed.result()["structuredContent"]["again"];
    assert_eq!(*again, true, "{version}: {echoed:?}");
    if version == LEGACY {
        // The lists may have changed while the gateway was away.
        told(&mut peer, TOOLS_CHANGED).await;
        // The `stdio` process has a new session with a new stream.
        let before = tools(&mut peer).await.len();
        set_tools(&gateway, before + 1).await;
        told(&mut peer, TOOLS_CHANGED).await;
        // The client's subscriptions are restored.
        let updated = "notifications/resources/updated";
        let update = json!({ "method": updated, "params": { "uri": "scripted://0" } });
        gateway.legacy().await.tool("notify", update).await;
        let update = told(&mut peer, updated).await;
        assert_eq!(update["params"]["uri"], *uris[0]);
    }
    // The gateway exits on SIGTERM. Calls after that fail because no gateway is running.
    gateway.process.signal(Signal::TERM);
    gateway.process.wait(DEADLINE).await;
    let refused = peer.tool("echo", json!({})).await;
    says(&refused.response, &["toolwharf serve"]);
}

#[tokio::test]
async fn u07_a_project_and_a_server_choose_the_view() {
    let dice = scripted("dice", &["--no-builtin", "--also", "roll"]);
    let options = ["--no-builtin", "--also", "send", "--also", "read"];
    let mail = scripted("mail", &options);
    let gateway = Setup::new()
        .server("dice", with(dice, json!({ "projects": ["games"] })))
        .server("mail", with(mail, json!({ "projects": ["office"] })))
        .connected()
        .await;
    for version in [LEGACY, peer::MODERN] {
        let mut peer = peer_beside(&gateway, version, "--project games").await;
        assert_eq!(tools(&mut peer).await, ["roll"], "{version}");
        let other = peer.tool("send", json!({})).await;
        assert!(other.response["error"].is_object(), "{other:?}");
        let options = "--project office --server mail";
        let mut peer = peer_beside(&gateway, version, options).await;
        assert_eq!(tools(&mut peer).await, ["send", "read"], "{version}");
        let mut peer = peer_beside(&gateway, version, "--server dice").await;
        assert_eq!(tools(&mut peer).await, ["roll"], "{version}");
    }
    fails(&gateway, "stdio --project surely-not", 1, "surely-not").await;
}

#[tokio::test]
async fn u07_another_configuration_is_refused_and_may_stand_alone() {
    let gateway = one().await;
    let its = pid(&mut gateway.legacy().await).await;
    let other = gateway.folder().join("other.json");
    let text = json!({ "mcpServers": { "two": scripted("two", &[]) } });
    fs::write(&other, text.to_string()).expect("a file");
    let with_other =
        |options: &str| line(&gateway, &format!("stdio --config other.json {options}"));
    let said = run(with_other("")).await.code(1).err;
    let parts = ["--standalone", "other.json", "mcp.json", &gateway.url];
    checks::contains(said, &parts);
    // An open call of the running gateway is not affected when further `stdio` processes start.
    let mut busy = gateway.legacy().await;
    let slow = begin_tool(&mut busy, "slow", json!({ "ms": 60_000 })).await;
    gateway.in_flight("one", 1, DEADLINE).await;
    for options in ["--standalone", "--standalone --server two"] {
        let client = StdioClient::spawn(with_other(options));
        let mut alone = peer_of(client, LEGACY).await;
        assert_ne!(pid(&mut alone).await, its);
    }
    // The same servers are started again, as requested.
    let mut alone = peer_beside(&gateway, LEGACY, "--standalone").await;
    assert_ne!(pid(&mut alone).await, its);
    drop(alone);
    assert_eq!(calls(&gateway, "slow").await[0]["status"], "open");
    busy.cancel(slow).await;
    // The standalone process did not take the gateway's place either. Without explicit settings, `stdio` uses the
    // gateway's.
    let mut command = line(&gateway, "stdio --config mcp.json");
    command.env("TOOLWHARF_CONFIG", "other.json");
    let client = StdioClient::spawn(command);
    let mut peer = peer_of(client, LEGACY).await;
    assert_eq!(pid(&mut peer).await, its);
}

/// A gateway that does not own the data directory runs no sandbox: the server is blocked, and the reason says what to
/// do.
#[tokio::test]
async fn u07_a_gateway_of_its_own_runs_no_sandbox() {
    let mut confined = scripted("confined", &[]);
    confined["sandbox"] = true.into();
    let gateway = Setup::new()
        .server("confined", confined)
        .scripted("plain", &[])
        .serve()
        .await;
    gateway.up("confined").await;
    let options = "--standalone --server confined";
    let mut alone = peer_beside(&gateway, LEGACY, options).await;
    let answer = alone.tool("pid", json!({})).await.response;
    says(&answer, &["only `toolwharf serve` runs sandboxes"]);
    // The server that the gateway runs still works.
    let mut peer = peer_beside(&gateway, LEGACY, "--server confined").await;
    pid(&mut peer).await;
}

/// An invalid servers file does not prevent clients from connecting to the running gateway.
#[tokio::test]
async fn u07_stdio_needs_no_servers_of_its_own_to_be_right() {
    let gateway = one().await;
    gateway.replace(&gateway.servers_file(), "{ no json");
    pid(&mut peer_beside(&gateway, LEGACY, "").await).await;
}

/// Without a `serve`, each `stdio` is a separate gateway, and none prevents a `serve` from starting.
#[tokio::test]
async fn u07_several_stdio_without_a_serve() {
    let home = TempDir::new().expect("a folder");
    let text = json!({ "mcpServers": { "one": scripted("one", &[]) } });
    fs::write(home.path().join("mcp.json"), text.to_string()).expect("a file");
    let command = |words: &[&str]| {
        let mut command = cli::toolwharf();
        command
            .args(["--config", "mcp.json"])
            .args(words)
            .args(["--data-dir", "data"])
            .env("HOME", home.path())
            .env_remove("RUST_LOG")
            .current_dir(home.path());
        command
    };
    let mut pids = Vec::new();
    let mut peers = Vec::new();
    for _ in 0..2 {
        let client = StdioClient::spawn(command(&["stdio"]));
        let mut peer = peer_of(client, LEGACY).await;
        pids.push(pid(&mut peer).await);
        peers.push(peer);
    }
    assert_ne!(pids[0], pids[1]);
    let mut serve = Process::spawn(command(&["serve", "--listen", "127.0.0.1:0"]));
    serve.url().await;
    // These processes keep running. A later `stdio` is a client of the `serve`.
    for (peer, its) in peers.iter_mut().zip(&pids) {
        assert_eq!(pid(peer).await, *its);
    }
    let client = StdioClient::spawn(command(&["stdio"]));
    let mut client = peer_of(client, peer::MODERN).await;
    let own = pid(&mut client).await;
    assert!(!pids.contains(&own), "{own}");
    serve.signal(Signal::TERM);
    assert!(serve.wait(DEADLINE).await.success());
}

/// Headers that mirror a tool's arguments are derived from the tool's definition.
#[tokio::test]
async fn u07_calls_get_the_headers_that_a_definition_asks_for() {
    let setup = Setup::new();
    let answers = setup.folder().join("answers.json");
    let schema = json!({
        "type": "object",
        "properties": { "region": { "type": "string", "x-mcp-header": "Region" } },
    });
    let text = json!({ "methods": { "tools/list": {
        "tools": [{ "name": "echo", "inputSchema": schema }],
        "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
    } } });
    fs::write(&answers, text.to_string()).expect("a file");
    let answers = answers.display().to_string();
    let gateway = setup
        .scripted("one", &["--era", "modern", "--answers", &answers])
        .connected()
        .await;
    // Without these headers, the gateway refuses the call.
    let arguments = json!({ "region": "süd" });
    let refused = gateway.modern().await.tool("echo", arguments.clone()).await;
    assert_eq!(refused.response["error"]["code"], -32020, "{refused:?}");
    let mut peer = peer_beside(&gateway, peer::MODERN, "").await;
    for _ in 0..2 {
        let echoed = peer.tool("echo", arguments.clone()).await;
        assert_eq!(echoed.result()["structuredContent"], arguments);
    }
    assert_eq!(calls(&gateway, "echo").await.len(), 2);
}

/// A client that stops reading uses bounded memory, and is disconnected.
#[tokio::test]
async fn u07_a_client_that_does_not_read_is_given_up() {
    // The server gets one call at a time.
    let one = with(scripted("one", &[]), json!({ "maxConcurrency": 1 }));
    let gateway = Setup::new().server("one", one).connected().await;
    let mut client = beside(&gateway, "");
    let calls = (0..100).map(|id| {
        let call = rpc::modern_call(id, "big", json!({ "bytes": 1_000_000 }));
        format!("{call}\n")
    });
    // The calls fit into the pipe buffer, so that no write blocks.
    let calls = calls.collect::<String>();
    assert!(calls.len() < 64 << 10);
    client.send_bytes(calls.as_bytes()).await;
    let pid = client.process().pid();
    let mut most = 0;
    wait_for("its end", 4 * DEADLINE, async || {
        // The process may exit at any time.
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("RssAnon:"));
        let held = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        most = most.max(held.unwrap_or_default());
        !client.process().is_running()
    })
    .await;
    // Up to 64 MiB of complete responses may be queued.
    assert!(most > 32 << 10 && most < 160 << 10, "peak: {most} KiB");
}
