//! A slow database, a full one, and one that is not there yet.

use std::time::Duration;

use serde_json::json;
use testkit::{Cluster, DEADLINE, postgres::Database, wait_for};
use tokio::time::Instant;

use crate::{
    api::Api,
    common::Setup,
    load::{Fleet, Load},
    support::{Proxy, Way},
};

/// Delay per direction. Each query is delayed by twice this time.
const SHORT_DELAY: Duration = Duration::from_millis(100);
const LONG_DELAY: Duration = Duration::from_secs(1);
const LEASE: &str = "8s";
/// Calls to each server while the database is slow.
const CALLS_PER_SERVER: usize = 20;
/// Size of the database's file system: enough for Postgres and some records.
const DISK_MIB: u32 = 128;
/// Free space that is left when the test fills the file system.
const FREE_KIB: u64 = 64;

/// With a delay of 200 ms per query, calls take longer. With 2 s, no lease is renewed in time: work under a lease ends
/// before it starts elsewhere, and calls are refused.
#[tokio::test]
async fn d04_a_slow_database_takes_time_and_then_leases() {
    let database = Database::create().await;
    let fleet = Fleet::with_lease(database.url(), LEASE).await;
    let load = Load::on(&fleet).await;
    let all_are = |way: Way| fleet.ways.iter().for_each(|proxy| proxy.be(way));
    all_are(Way::Slow(SHORT_DELAY));
    let slow = Instant::now();
    fleet.answers(CALLS_PER_SERVER).await;
    let mut losses = Vec::new();
    for replica in fleet.replicas.iter().flatten() {
        losses.push(replica.metric("replica_losses_total", None).await);
    }
    eprintln!("calls at 200 ms: {:?}, losses {losses:?}", slow.elapsed());

    all_are(Way::Slow(LONG_DELAY));
    wait_for("its end", DEADLINE, async || fleet.hosted.instances() == 0).await;
    all_are(Way::Open);
    let open = Instant::now();
    fleet.goes_on().await;
    fleet.has(0, 3).await;
    eprintln!("everything works after {:?}", open.elapsed());
    load.balanced(&fleet, |_| false).await;
}

/// Calls are refused while the disk is too full to record them, and succeed again when there is space. Postgres itself
/// may crash on a full disk; then it is restarted, as an operator or service manager would do.
#[tokio::test]
async fn d04_a_full_database_refuses_calls_until_there_is_room() {
    let mut cluster = Cluster::start_within(DISK_MIB).await;
    let fleet = Fleet::on(&cluster.url()).await;
    let load = Load::on(&fleet).await;
    cluster.leave_free(Some(FREE_KIB));
    let call = json!({
        "method": "tools/call",
        "params": {"name": "echo", "arguments": {"text": "x".repeat(8000)}},
    })
    .to_string();
    let admin = Api::admin(fleet.other(0));
    let asked = async || {
        let path = "/api/v1/mcp/servers/near/call";
        admin.ask("POST", path, call.clone(), &[]).await
    };
    wait_for("a call to be refused", DEADLINE, async || {
        let answer = asked().await;
        answer.status == 503 && answer.text().contains("the database is unavailable")
    })
    .await;
    eprintln!("refused with {}", asked().await.text());
    cluster.leave_free(None);
    cluster.start_again().await;
    let roomy = Instant::now();
    fleet.goes_on().await;
    fleet.has(0, 3).await;
    eprintln!("everything works after {:?}", roomy.elapsed());
    load.balanced(&fleet, |_| false).await;
}

/// Gateways and databases are often started at the same time.
#[tokio::test]
async fn d04_a_gateway_that_starts_waits_for_its_database() {
    let database = Database::create().await;
    let way = Proxy::to(database.url()).await;
    way.be(Way::Cut);
    let setup = Setup::new().of_replica(way.url(), None);
    let mut process = setup.launch();
    let waits = process.announced(|line| line.contains("trying again for 30 s").then_some(()));
    waits.await;
    assert!(process.is_running(), "{}", process.stderr());
    way.be(Way::Open);
    process.url().await;
}
