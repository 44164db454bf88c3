//! P05, P10 and P11: start, sharing and end of the process of a project's server.

use std::time::Duration;

use serde_json::json;
use testkit::{Bin, wait_for};
use tokio::{task::JoinSet, time::Instant};

use crate::{
    api::Api,
    common::{checks, gone, scripted, tools},
    support::{Db, Governed, legacy, modern, pid, with_server},
};

on_both!(
    p05_a_server_is_terminated_then_killed,
    p10_the_first_use_connects_and_later_ones_reuse,
    p11_a_project_shares_one_connection,
);

async fn p05_a_server_is_terminated_then_killed(db: &Db) {
    let settings = "[limits]\nstop_grace = \"2s\"\n";
    let gateway = db.setup().settings(settings).serve().await;
    let api = Api::admin(&gateway);
    // The server records SIGTERM and keeps running.
    let script = r#"trap 'echo term >> "$0"' TERM; exec 3<&0; "$1" --ignore-eof --ignore-sigterm <&3 & while :; do sleep 0.1; done"#;
    let stubborn = |file: &str| {
        let told = gateway.folder().join(file);
        json!({"command": "sh", "args": ["-c", script, told, Bin::path("testkit-scripted")]})
    };
    let is_told = |file: &str| {
        let told = std::fs::read_to_string(gateway.folder().join(file));
        told.is_ok_and(|text| text.contains("term"))
    };
    let settings = json!({"naming": "always-prefix"});
    let mut peers = Vec::new();
    let mut pids = Vec::new();
    for project in ["changed", "removed", "disabled"] {
        let path = format!("/projects/{project}");
        api.put(&path, settings.clone()).await;
        api.server(project, "stubborn", stubborn(project)).await;
        let polite = scripted("polite", &[]);
        api.server(project, "polite", polite).await;
        let mut peer = legacy(&gateway, project).await;
        for server in ["stubborn", "polite"] {
            pids.push(pid(&mut peer, &format!("{server}__pid")).await);
        }
        peers.push(peer);
    }
    let start = Instant::now();
    // The servers are reconfigured, removed with their project, or disabled with their project.
    let stubborn = scripted("stubborn", &[]);
    api.server("changed", "stubborn", stubborn).await;
    let mut entry = scripted("polite", &[]);
    entry["env"] = json!({"NEW": "yes"});
    api.server("changed", "polite", entry).await;
    api.delete("/projects/removed").await;
    let off = json!({"naming": "always-prefix", "enabled": false});
    api.put("/projects/disabled", off).await;
    let env = peers[0].tool("polite__env", json!({})).await;
    assert_eq!(env.result()["structuredContent"]["NEW"], "yes");
    let fresh = pid(&mut peers[0], "stubborn__pid").await;
    assert!(!pids.contains(&fresh));
    for peer in &mut peers[1..] {
        let refused = peer.tool("polite__pid", json!({})).await;
        assert!(refused.response.get("error").is_some(), "{refused:?}");
    }
    // The polite servers exit when stdin is closed, the others only when they are killed.
    let (stubborn, polite): (Vec<u32>, Vec<u32>) =
        pids.chunks(2).map(|pair| (pair[0], pair[1])).unzip();
    gone(&polite, false, Duration::from_secs(2)).await;
    gone(&stubborn, true, Duration::from_secs(10)).await;
    let had_time = start.elapsed() >= Duration::from_millis(1500);
    assert!(had_time, "the servers had no time to exit by themselves");
    for file in ["changed", "removed", "disabled"] {
        assert!(is_told(file), "{file}: killed without SIGTERM");
    }
}

async fn p10_the_first_use_connects_and_later_ones_reuse(db: &Db) {
    let gateway = db.setup().serve().await;
    let api = Api::admin(&gateway);
    let folder = gateway.folder().to_owned();
    let servers = ["listed", "called"].map(|name| Governed::new(&folder, name, &["--tools", "1"]));
    for server in &servers {
        let project = server.name();
        with_server(&api, project, server.entry()).await;
    }
    let starts = || [servers[0].starts(), servers[1].starts()];
    assert_eq!(starts(), [0, 0], "registering a server has started it");
    // The servers were never used before, so a list or a call has to wait for the start.
    let mut list = legacy(&gateway, "listed").await;
    assert_eq!(starts(), [0, 0], "the handshake has started a server");
    assert!(tools(&mut list).await.contains(&"tool_0".to_owned()));
    assert_eq!(starts(), [1, 0]);
    let mut call = modern(&gateway, "called").await;
    let first = pid(&mut call, "pid").await;
    assert_eq!(starts(), [1, 1]);
    for _ in 0..5 {
        assert_eq!(pid(&mut call, "pid").await, first);
        let mut other = legacy(&gateway, "called").await;
        assert_eq!(pid(&mut other, "pid").await, first);
        tools(&mut call).await;
    }
    assert_eq!(starts(), [1, 1]);

    // If the lists are known, nothing is started at boot.
    let gateway = gateway.restarted().await;
    let api = Api::admin(&gateway);
    for server in &servers {
        let path = format!("/mcp/servers/one?project={}", server.name());
        let shown = api.get(&path).await;
        checks::members(&shown, json!({"status": "idle", "starts": 0}));
    }
    assert_eq!(starts(), [1, 1], "a server was started at boot");
    let mut peer = legacy(&gateway, "called").await;
    let second = pid(&mut peer, "pid").await;
    assert_ne!(second, first);
    // The first use in one project does not start another project's server.
    assert_eq!(starts(), [1, 2]);
    // A list request is answered from the known list, and starts the server in the background.
    let mut peer = legacy(&gateway, "listed").await;
    assert!(tools(&mut peer).await.contains(&"tool_0".to_owned()));
    wait_for("the second start", Duration::from_secs(10), async || {
        starts() == [2, 2]
    })
    .await;
    let shown = api.get("/mcp/servers/one?project=called").await;
    checks::members(&shown, json!({"pid": second, "status": "running"}));
}

async fn p11_a_project_shares_one_connection(db: &Db) {
    let gateway = db.setup().serve().await;
    let api = Api::admin(&gateway);
    let server = Governed::new(gateway.folder(), "shared", &[]);
    for project in ["a", "b"] {
        with_server(&api, project, server.entry()).await;
    }
    // Clients of both eras and projects call at once, before any server is connected.
    let mut clients = JoinSet::new();
    for n in 0..16 {
        let project = if n % 2 == 0 { "a" } else { "b" };
        let mut peer = if n < 8 {
            legacy(&gateway, project).await
        } else {
            modern(&gateway, project).await
        };
        clients.spawn(async move {
            let first = pid(&mut peer, "pid").await;
            assert_eq!(pid(&mut peer, "pid").await, first);
            (project, first)
        });
    }
    let mut seen = clients.join_all().await;
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert_eq!((seen[0].0, seen[1].0), ("a", "b"));
    assert_ne!(seen[0].1, seen[1].1, "two projects share a process");
    let starts = server.starts();
    assert_eq!(starts, 2, "racing first calls started it more than once");
    for (project, process) in seen {
        let path = format!("/mcp/servers/one?project={project}");
        let shown = api.get(&path).await;
        checks::members(&shown, json!({"pid": process, "calls": 16}));
    }
}
