//! D06: replicas that host on one swarm, which must exist: `cargo xtask postgres -- cargo xtask swarm -- cargo nextest
//! run -p toolwharf --test scenarios_replicas -E 'test(d06)'`.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tokio::time::Instant;

use crate::{
    api::Api,
    support::{Hosted, database, replica_hosting},
};

const VARIABLE: &str = "TOOLWHARF_TEST_SWARM";
/// Limit from the loss of a replica until its servers run elsewhere.
const MAX_TAKEOVER: Duration = Duration::from_secs(30);

fn settings() -> String {
    let dir = std::env::var(VARIABLE)
        .unwrap_or_else(|_| panic!("{VARIABLE} names no swarm; run it with: cargo xtask swarm"));
    let socket = |number: &str| format!("unix://{dir}/{number}/sock");
    let daemons = ["1", "2"].map(socket);
    format!("[hosting]\nproviders = [\"swarm\"]\n[swarm]\ndaemons = {daemons:?}\ngvisor = false\n")
}

#[tokio::test]
async fn d06_a_killed_replicas_server_in_a_swarm_runs_on_once_with_its_volume() {
    let database = database().await;
    let first = replica_hosting(database.url(), None, &settings()).await;
    let body =
        json!({"image": "toolwharf-test/scripted", "provider": "swarm", "volumes": ["/data"]});
    let hosted = Hosted::of(&first, "swarm", body).await;
    hosted.is(&first, "running").await;
    let written = json!({"path": "/data/x", "text": "kept"});
    assert_eq!(hosted.said(&first, "write", written).await, "written");
    let second = replica_hosting(database.url(), Some(&first), &settings()).await;
    hosted.is(&second, "elsewhere").await;
    let watched = hosted.watched();
    let lost = Instant::now();
    first.process.signal(Signal::KILL);
    hosted.is_within(MAX_TAKEOVER, &second, "running").await;
    eprintln!("taken over after {:?}", lost.elapsed());
    assert_eq!(hosted.instances(), 1);
    assert_eq!(watched.most(), 1);
    let path = json!({"path": "/data/x"});
    assert_eq!(hosted.said(&second, "read", path).await, "kept");
    let path = hosted.path("?volumes=true");
    Api::admin(&second).delete(&path).await;
    assert_eq!(hosted.instances(), 0);
}
