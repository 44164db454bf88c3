//! P05, P10 and P11: start, sharing and end of the process of a project's server.

use std::time::Duration;

use serde_json::json;
use testkit::{Bin, wait_for};
use tokio::{task::JoinSet, time::Instant};

use crate::{
    api::Api,
    common::{gone, scripted, tools},
    support::{Db, Governed, legacy, modern, pid},
};

on_both!(
    p05_a_server_is_terminated_then_killed,
    p10_the_first_use_connects_and_later_ones_reuse,
    p11_a_project_shares_one_connection,
);

async fn p05_a_server_is_terminated_then_killed(db: &Db) {
    let gateway = db
        .setup()
        .settings("[limits]\nstop_grace = \"2s\"\n")
        .serve()
        .await;
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
        api.put(&format!("/projects/{project}"), settings.clone())
            .await;
        let path = |name: &str| format!("/mcp/servers/{name}?project={project}");
        api.put(&path("stubborn"), stubborn(project)).await;
        api.put(&path("polite"), scripted("polite", &[])).await;
        let mut peer = legacy(&gateway, project).await;
        for server in ["stubborn", "polite"] {
            pids.push(pid(&mut peer, &format!("{server}__pid")).await);
        }
        peers.push(peer);
    }
    let start = Instant::now();
    // Reconfigured, removed with its project, or disabled with its project.
    api.server("changed", "stubborn", scripted("stubborn", &[]))
        .await;
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
    assert!(
        start.elapsed() >= Duration::from_millis(1500),
        "they had no time to exit by themselves"
    );
    for file in ["changed", "removed", "disabled"] {
        assert!(is_told(file), "{file}: it was killed without SIGTERM");
    }
}

async fn p10_the_first_use_connects_and_later_ones_reuse(db: &Db) {
    let gateway = db.setup().serve().await;
    let api = Api::admin(&gateway);
    let folder = gateway.folder().to_owned();
    let servers = ["listed", "called"].map(|name| Governed::new(&folder, name, &["--tools", "1"]));
    for server in &servers {
        let project = server.name();
        api.project(project).await;
        api.server(project, "one", server.entry()).await;
    }
    let starts = || [servers[0].starts(), servers[1].starts()];
    assert_eq!(starts(), [0, 0], "registering a server must not start it");
    // Never used before: the list has to wait for it, and so does a call.
    let mut list = legacy(&gateway, "listed").await;
    assert_eq!(starts(), [0, 0], "the handshake must not start it");
    assert!(tools(&mut list).await.contains(&"tool_0".to_owned()));
    assert_eq!(starts(), [1, 0]);
    let mut call = modern(&gateway, "called").await;
    let first = pid(&mut call, "pid").await;
    assert_eq!(starts(), [1, 1]);
    for _ in 0..5 {
        assert_eq!(pid(&mut call, "pid").await, first);
        assert_eq!(
            pid(&mut legacy(&gateway, "called").await, "pid").await,
            first
        );
        tools(&mut call).await;
    }
    assert_eq!(starts(), [1, 1]);

    // Known lists mean that nothing is started at boot.
    let gateway = gateway.restarted().await;
    let api = Api::admin(&gateway);
    for server in &servers {
        let shown = api
            .get(&format!("/mcp/servers/one?project={}", server.name()))
            .await;
        assert_eq!(
            (&shown["status"], &shown["starts"]),
            (&json!("idle"), &json!(0)),
            "{shown}"
        );
    }
    assert_eq!(starts(), [1, 1], "it was started at boot");
    let mut peer = legacy(&gateway, "called").await;
    let second = pid(&mut peer, "pid").await;
    assert_ne!(second, first);
    assert_eq!(
        starts(),
        [1, 2],
        "the first use in one project must not start another project's server"
    );
    // A list request is answered from the known list, and starts the server in the background.
    let mut peer = legacy(&gateway, "listed").await;
    assert!(tools(&mut peer).await.contains(&"tool_0".to_owned()));
    wait_for("the second start", Duration::from_secs(10), async || {
        starts() == [2, 2]
    })
    .await;
    let shown = api.get("/mcp/servers/one?project=called").await;
    assert_eq!(shown["pid"], second);
    assert_eq!(shown["status"], "running");
}

async fn p11_a_project_shares_one_connection(db: &Db) {
    let gateway = db.setup().serve().await;
    let api = Api::admin(&gateway);
    let server = Governed::new(gateway.folder(), "shared", &[]);
    for project in ["a", "b"] {
        api.project(project).await;
        api.server(project, "one", server.entry()).await;
    }
    // All at once, of both eras and projects, before anything is connected.
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
    assert_eq!(
        server.starts(),
        2,
        "racing first calls started it more than once"
    );
    for (project, process) in seen {
        let shown = api
            .get(&format!("/mcp/servers/one?project={project}"))
            .await;
        assert_eq!(shown["pid"], process);
        assert_eq!(shown["calls"], 16);
    }
}
