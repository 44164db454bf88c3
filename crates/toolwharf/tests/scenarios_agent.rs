//! Scenarios A of SCENARIOS.md, as far as they are the gateway's: many servers as own child processes.

mod common;

use common::{Setup, tools};
use serde_json::json;

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
    assert!(listed.contains(&"alpha__echo".to_owned()), "{listed:?}");
    assert!(listed.contains(&"beta__echo".to_owned()), "{listed:?}");
    let mut pids = Vec::new();
    for name in ["alpha__pid", "beta__pid"] {
        let pid = peer.tool(name, json!({})).await.text().parse::<u32>();
        pids.push(pid.unwrap());
    }
    assert_ne!(pids[0], pids[1]);
    for pid in pids {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let parent = stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap();
        assert_eq!(parent, gateway.process.pid().to_string(), "{stat}");
    }
}
