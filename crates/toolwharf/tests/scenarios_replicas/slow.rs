//! A database that is slow, or full.

use std::time::Duration;

use serde_json::json;
use testkit::{Cluster, DEADLINE, postgres::Database, wait_for};
use tokio::time::Instant;

use crate::{
    api::Api,
    load::{Fleet, Load},
    support::Way,
};

/// For each direction: all that is asked of the database takes twice as long.
const SLOW: Duration = Duration::from_millis(100);
const SLOWER: Duration = Duration::from_secs(1);
const LEASE: &str = "8s";
/// Calls of each server while it is slow.
const CALLS: usize = 20;
/// What a Postgres of a test takes, and some records.
const MEBIBYTES: u32 = 128;
/// What is left when it runs full.
const LEFT_KIBIBYTES: u64 = 64;

/// With 200 ms for each answer of the database calls take longer. With 2 s nothing is renewed in time: what runs under a lease ends
/// before it runs elsewhere, and calls are refused.
#[tokio::test]
async fn d04_a_slow_database_takes_time_and_then_leases() {
    let database = Database::create().await;
    let fleet = Fleet::with_lease(database.url(), LEASE).await;
    let load = Load::on(&fleet).await;
    let all_are = |way: Way| fleet.ways.iter().for_each(|proxy| proxy.be(way));
    all_are(Way::Slow(SLOW));
    let slow = Instant::now();
    fleet.answers(CALLS).await;
    let mut losses = Vec::new();
    for replica in fleet.replicas.iter().flatten() {
        losses.push(replica.metric("replica_losses_total", None).await);
    }
    eprintln!("calls at 200 ms: {:?}, losses {losses:?}", slow.elapsed());

    all_are(Way::Slow(SLOWER));
    wait_for("its end", DEADLINE, async || fleet.hosted.instances() == 0).await;
    all_are(Way::Open);
    let open = Instant::now();
    fleet.goes_on().await;
    fleet.has(0, 3).await;
    eprintln!("all goes on after {:?}", open.elapsed());
    load.balanced(&fleet, |_| false).await;
}

/// Calls are refused while there is no room for their records, and go on when there is some. Postgres itself may end for want of room; then
/// it is started again, as an operator or a service manager does.
#[tokio::test]
async fn d04_a_full_database_refuses_calls_until_there_is_room() {
    let mut cluster = Cluster::start_within(MEBIBYTES).await;
    let fleet = Fleet::on(&cluster.url()).await;
    let load = Load::on(&fleet).await;
    cluster.leave_free(Some(LEFT_KIBIBYTES));
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
    eprintln!("all goes on after {:?}", roomy.elapsed());
    load.balanced(&fleet, |_| false).await;
}
