//! Scenarios P of the acceptance list: transports, projects of the configuration file, and endpoints for orchestrators.

mod common;

use std::time::Duration;

use common::{
    LEGACY, Setup, echoes, gone, is_away, names, scripted,
    steps::{begin_tool, refused},
    tools, with,
};
use serde_json::json;
use testkit::{Bin, DEADLINE, Peer, Process, at_once, peer, wait_for, wait_for_some, within};
use tokio::time::Instant;

#[tokio::test]
async fn p03_stdio_is_a_child_of_command_args_and_env() {
    let setup = Setup::new();
    let folder = setup.folder().join("work");
    std::fs::create_dir(&folder).unwrap();
    let mut entry = scripted("child", &["--tools", "2"]);
    entry["type"] = json!("stdio");
    entry["env"] = json!({"GREETING": "hello ${NAME:-world}"});
    entry["cwd"] = json!(folder);
    let gateway = setup.server("child", entry).connected().await;
    let mut peer = gateway.legacy().await;
    // The server received its arguments.
    assert!(tools(&mut peer).await.contains(&"tool_1".to_owned()));
    let env = peer.tool("env", json!({})).await;
    assert_eq!(env.result()["structuredContent"]["GREETING"], "hello world");
    let cwd = peer.tool("cwd", json!({})).await;
    assert_eq!(cwd.text(), folder.to_str().unwrap());
}

/// A reconfigured server's process is terminated; the new process does not wait for its exit.
#[tokio::test]
async fn p05_a_reconfigured_server_is_terminated_then_killed() {
    let setup =
        Setup::new().settings("naming = \"always-prefix\"\n[limits]\nstop_grace = \"2s\"\n");
    let told = setup.folder().join("told");
    // The server records SIGTERM and keeps running.
    let script = r#"trap 'echo term >> "$0"' TERM; exec 3<&0; "$1" --ignore-eof --ignore-sigterm <&3 & while :; do sleep 0.1; done"#;
    let stubborn =
        json!({"command": "sh", "args": ["-c", script, told, Bin::path("testkit-scripted")]});
    let mut gateway = setup
        .server("stubborn", stubborn)
        .scripted("polite", &[])
        .connected()
        .await;
    let mut peer = gateway.legacy().await;
    let mut old = Vec::new();
    for server in ["stubborn", "polite"] {
        let pid = peer.tool(&format!("{server}__pid"), json!({})).await;
        old.push(pid.text().parse::<u32>().unwrap());
    }
    gateway.edit(|servers| {
        servers["stubborn"] = scripted("stubborn", &["--tools", "1"]);
        servers["polite"]["env"] = json!({"NEW": "yes"});
    });
    let start = Instant::now();
    wait_for("the new servers", Duration::from_secs(5), async || {
        let env = peer.tool("polite__env", json!({})).await;
        let is_new = env.response["result"]["structuredContent"]["NEW"] == "yes";
        let stubborn = "stubborn__tool_0".to_owned();
        is_new && tools(&mut peer).await.contains(&stubborn)
    })
    .await;
    // The polite server exits when stdin is closed, the other one only when it is killed.
    gone(&old[1..], false, Duration::from_secs(2)).await;
    gone(&old, true, Duration::from_secs(8)).await;
    // The killed server had time to exit by itself.
    assert!(start.elapsed() >= Duration::from_millis(1500));
    let told = std::fs::read_to_string(told).unwrap();
    assert!(told.contains("term"), "killed without SIGTERM");
}

/// Starts a scripted server over HTTP+SSE. Returns its process and URL.
async fn sse_server(address: &str) -> (Process, String) {
    let options = ["--sse-http", address, "--name", "remote"];
    let mut process = Process::bin("testkit-scripted", options);
    let url = process.url().await;
    (process, url)
}

#[tokio::test]
async fn p06_sse_connects_with_its_headers() {
    let (_server, url) = sse_server("127.0.0.1:0").await;
    let gateway = Setup::new()
        .env("KEY", "sesame")
        .server("typed", json!({"type": "sse", "url": url, "headers": {"X-Api-Key": "${KEY}", "Authorization": "Bearer b"}}))
        .server("found", json!({"url": url}))
        .settings("naming = \"always-prefix\"\n")
        .connected()
        .await;
    for mut peer in [gateway.legacy().await, gateway.modern().await] {
        let headers = peer.tool("typed__headers", json!({})).await;
        let headers = &headers.result()["structuredContent"];
        assert_eq!(headers["x-api-key"], "sesame", "{headers}");
        assert_eq!(headers["authorization"], "Bearer b", "{headers}");
        let answer = peer.tool("found__echo", json!({"n": 1})).await;
        assert_eq!(answer.result()["structuredContent"]["n"], 1);
    }
}

#[tokio::test]
async fn p07_a_dropped_sse_stream_fails_calls_at_once_and_comes_back() {
    let (server, url) = sse_server("127.0.0.1:0").await;
    let gateway = Setup::new()
        .server("remote", json!({"type": "sse", "url": url}))
        .scripted("local", &["--no-builtin", "--tools", "1"])
        .connected()
        .await;
    let mut peer = gateway.legacy().await;
    let listed = tools(&mut peer).await;
    // The stream is cut while another call is in flight: both calls end with an error at once.
    let limit = Duration::from_secs(2);
    let other = begin_tool(&mut peer, "never", json!({})).await;
    let cut = peer.tool("drop_stream", json!({}));
    let cut = within("the cut call's end", limit, cut).await;
    assert!(is_away(&cut.response), "{cut:?}");
    let other = peer.finish_within(other, limit).await;
    let other = other.expect("the other call ends");
    assert!(is_away(&other), "{other}");
    echoes("the stream's return", Duration::from_secs(5), &mut peer).await;
    // The server is down for longer: no call waits for it, its tools stay in the list, and attempts become rarer.
    drop(server);
    let address = url.strip_prefix("http://").unwrap();
    let address = address.trim_end_matches("/sse");
    let noticed = async || is_away(&peer.tool("echo", json!({})).await.response);
    wait_for("the end to be noticed", Duration::from_secs(5), noticed).await;
    let start = Instant::now();
    for _ in 0..20 {
        let answer = peer.tool("echo", json!({})).await;
        assert!(is_away(&answer.response), "{answer:?}");
        let data = &answer.response["error"]["data"];
        assert_eq!(data["server"], "remote");
        assert!(data["retryAfterMs"].is_u64(), "{data}");
        let local = peer.tool("tool_0", json!({"n": 2})).await;
        assert_eq!(local.result()["structuredContent"]["n"], 2);
    }
    // A call that waited for the next attempt would have waited up to a minute.
    at_once("some of forty calls", start);
    assert_eq!(tools(&mut peer).await, listed, "the tools left the list");
    let waits = wait_for_some("three attempts", DEADLINE, async || {
        let stderr = gateway.process.stderr();
        let lines = stderr.lines().filter(|line| line.contains("server=remote"));
        let waits = lines.filter_map(|line| line.split("retry_ms=").nth(1));
        let waits = waits.filter_map(|rest| rest.split(' ').next()?.parse().ok());
        let waits: Vec<u64> = waits.collect();
        // Only the waits since the last connection count.
        let last = waits.iter().rposition(|wait| *wait == 0);
        let from = last.map_or(0, |at| at + 1);
        (waits.len() >= from + 4).then(|| waits[from..].to_vec())
    })
    .await;
    assert!(waits[3] > waits[0], "the waits do not increase: {waits:?}");
    let (_server, _) = sse_server(address).await;
    echoes("the server's return", Duration::from_secs(20), &mut peer).await;
}

/// A path or a header selects a project's view, which follows the project's settings (G08 and G09, in the configuration
/// file).
#[tokio::test]
async fn g08_a_project_sees_its_own_servers() {
    let three = scripted("three", &["--no-builtin", "--tools", "1"]);
    let gateway = Setup::new()
        .settings(
            "[projects.red]\nservers = [\"one\", \"two\"]\nnaming = \"always-prefix\"\n\
             disabled_tools = [\"one/tool_1\"]\n\n[projects.blue]\nnaming = \"last-wins\"\n",
        )
        .scripted("one", &["--no-builtin", "--tools", "2", "--prompts", "1"])
        .scripted("two", &["--no-builtin", "--tools", "1", "--resources", "1"])
        .server("three", with(three, json!({"projects": ["green", "blue"]})))
        .serve()
        .await;
    let everything = ["one__tool_0", "tool_1", "two__tool_0", "three__tool_0"];
    let cases: [(&str, &str, &[&str]); 6] = [
        ("/mcp", "", &everything),
        ("/mcp/red", "", &["one__tool_0", "two__tool_0"]),
        ("/mcp", "red", &["one__tool_0", "two__tool_0"]),
        ("/mcp/green", "", &everything),
        ("/mcp/-/one", "", &["tool_0", "tool_1"]),
        ("/mcp/red/one", "", &["tool_0"]),
    ];
    for (path, header, expected) in cases {
        for version in [LEGACY, peer::MODERN] {
            let client = gateway.at(path).with("x-project-id", header);
            let mut peer = Peer::http(client, version, json!({})).await;
            let listed = tools(&mut peer).await;
            assert_eq!(listed, expected, "{path} {header} {version}");
        }
    }
    // The later server's definition wins, as the project sets, and a warning names both servers.
    let mut blue = Peer::http(gateway.at("/mcp/blue"), LEGACY, json!({})).await;
    let listed = blue.request("tools/list", json!({})).await;
    let mut tools = listed.result()["tools"].as_array().unwrap().iter();
    let tool = tools.find(|tool| tool["name"] == "tool_0").unwrap();
    assert_eq!(tool["_meta"]["dev.toolwharf/server"], "three", "{tool}");
    let warning = gateway.logged("replaces the one of").await;
    let is_named = warning.contains("`one`") || warning.contains("`two`");
    assert!(is_named, "{warning}");
    // Servers, tools, resources and prompts outside the view cannot be reached.
    let mut red = Peer::http(gateway.at("/mcp/red"), LEGACY, json!({})).await;
    for name in ["three__tool_0", "one__tool_1", "tool_1"] {
        refused(&mut red, name, -32602).await;
    }
    let prompts = names(&mut red, "prompts/list", "prompts", "name").await;
    assert_eq!(prompts, ["one__prompt_0"]);
    let uris = names(&mut red, "resources/list", "resources", "uri").await;
    assert_eq!(uris, ["resource://two/scripted://0"]);
    let mut green = Peer::http(gateway.at("/mcp/-/one"), LEGACY, json!({})).await;
    let foreign = json!({"uri": uris[0]});
    let foreign = green.request("resources/read", foreign).await;
    assert!(foreign.response.get("error").is_some(), "{foreign:?}");
}

#[tokio::test]
async fn health_readiness_and_metrics() {
    let gateway = Setup::new()
        .scripted("good", &["--no-builtin", "--tools", "4"])
        .scripted("bad", &["--exit-at-start"])
        .serve()
        .await;
    // One failing server does not affect readiness.
    for path in ["/healthz", "/readyz"] {
        assert_eq!(gateway.at(path).get(&[]).await.status, 200, "{path}");
    }
    gateway.up("good").await;
    let mut peer = gateway.legacy().await;
    peer.tool("tool_0", json!({})).await;
    peer.tool("tool_1", json!({})).await;
    for (name, server, value) in [
        ("server_up", Some("good"), 1),
        ("server_up", Some("bad"), 0),
        ("server_starts_total", Some("good"), 1),
        ("calls_total", Some("good"), 2),
        ("call_errors_total", Some("good"), 0),
        ("calls_in_flight", Some("good"), 0),
        ("calls_waiting", Some("good"), 0),
        ("tools", Some("good"), 4),
        ("tools", Some("bad"), 0),
        ("sessions", None, 1),
        ("held_calls", None, 0),
    ] {
        let found = gateway.metric(name, server).await;
        assert_eq!(found, Some(value), "{name} {server:?}");
    }
    // Each metric family is described once, as the format requires.
    let metrics = gateway.metrics().await;
    for family in ["server_up", "calls_total", "sessions"] {
        let described = format!("# TYPE toolwharf_{family} ");
        assert_eq!(metrics.matches(&described).count(), 1, "{metrics}");
    }
    // Pages of other sites cannot read the metrics.
    let evil = [("host", "evil.example.com")];
    assert_eq!(gateway.at("/metrics").get(&evil).await.status, 403);
}
