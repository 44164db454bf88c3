//! Failover of the database to its standby.

use std::time::Duration;

use rustix::process::Signal;
use testkit::{Cluster, DEADLINE, soak, wait_for};
use tokio::time::Instant;

use crate::{
    common::Gateway,
    load::{Call, Fleet, Harm, Load},
    support::{Proxy, Way, listed, refuses_keys},
};

/// Time limit from the failure of the database until everything works, on a busy machine.
const MAX_FAILOVER: Duration = Duration::from_secs(50);

/// The replicas' lease, longer than a replica takes to restart.
const LEASE: &str = "12s";
/// The largest lag of a healthy asynchronous standby.
const MAX_LAG: Duration = Duration::from_secs(1);

/// A Postgres, the proxy that connects its standby to it, and the standby.
async fn two() -> (Cluster, Proxy, Cluster) {
    let primary = Cluster::start().await;
    let link = Proxy::to(&primary.url()).await;
    let standby = primary.standby(&link.address().to_string()).await;
    (primary, link, standby)
}

/// Kills the primary, does what an operator or a failover tool would do, and asserts that everything works again.
async fn fail_over(fleet: &Fleet, primary: &mut Cluster, standby: &Cluster) {
    let killed = Instant::now();
    primary.kill().await;
    standby.promote().await;
    for way in &fleet.ways {
        way.turn_to(&standby.address()).await;
    }
    let turned = killed.elapsed();
    fleet.goes_on().await;
    fleet.has(0, 3).await;
    let all = killed.elapsed();
    let noticed = |replica: &&Gateway| {
        let log = replica.process.stderr();
        log.contains("the database failed over or was restored")
    };
    // A replica notices the failover at its next lease renewal at the latest. No lease is granted before.
    wait_for("the failover to be noticed", DEADLINE, async || {
        fleet.replicas.iter().flatten().any(|it| noticed(&it))
    })
    .await;
    eprintln!("failed over in {turned:?}, everything works after {all:?}");
    assert!(all < MAX_FAILOVER, "{all:?}");
}

/// A synchronous standby has every confirmed transaction. Before the failover, a replica is connected to the read-only
/// standby, as happens when an address moves too early or too late.
#[tokio::test]
async fn d04_nothing_is_lost_when_a_synchronous_standby_takes_over() {
    let (mut primary, _link, standby) = two().await;
    let fleet = Fleet::on(&primary.url()).await;
    primary.be_synchronous().await;
    let load = Load::on(&fleet).await;
    for at in 0..if soak() { 3 } else { 1 } {
        fleet.ways[at].turn_to(&standby.address()).await;
        fleet.has(at, 2).await;
        // A revocation may not have reached the standby yet.
        refuses_keys(fleet.replicas[at].as_ref().unwrap()).await;
        fleet.goes_on().await;
        fleet.ways[at].turn_to(&primary.address()).await;
        fleet.has(at, 3).await;
    }
    fail_over(&fleet, &mut primary, &standby).await;
    load.balanced(&fleet, |_| false).await;
}

/// Returns whether a replica has the lease of the registered server.
async fn holds(replica: &Gateway) -> bool {
    let all = listed(replica).await;
    let own = all.iter().find(|row| row["is_self"] == true).unwrap();
    let mut leases = own["leases"].as_array().unwrap().iter();
    leases.any(|lease| lease["name"].as_str().unwrap().starts_with("server:"))
}

/// Gracefully stops the replica that has the lease of the registered server. The standby learns that the lease is free,
/// but not which replica gets it next. Returns that replica and when it got the lease.
async fn moved(fleet: &mut Fleet, standby: &Cluster, link: &Proxy) -> (usize, Instant) {
    let mut at = 0;
    while !holds(fleet.replicas[at].as_ref().unwrap()).await {
        at += 1;
    }
    let mut first = fleet.replicas[at].take().unwrap();
    let others = |signal| {
        let others = fleet.replicas.iter().flatten();
        others.for_each(|other| other.process.signal(signal));
    };
    // The other replicas are suspended; otherwise they would take the lease at once.
    others(Signal::STOP);
    first.process.signal(Signal::TERM);
    wait_for("the lease to be free", DEADLINE, async || {
        let held = "SELECT COUNT(*)::TEXT FROM kb.toolwharf_leases WHERE name LIKE 'server:%'";
        standby.one(held).await == "0"
    })
    .await;
    link.be(Way::Cut);
    let since = Instant::now();
    others(Signal::CONT);
    first.process.wait(DEADLINE).await;
    fleet.replicas[at] = Some(first.again().await);
    (at, since)
}

/// An asynchronous standby lacks the last transactions: call records and leases of that time. Still, no instance runs
/// twice.
#[tokio::test]
async fn d03_no_server_runs_twice_when_a_standby_lacks_its_lease() {
    let (mut primary, link, standby) = two().await;
    let mut fleet = Fleet::with_lease(&primary.url(), LEASE).await;
    let load = Load::on(&fleet).await;
    let (at, behind) = moved(&mut fleet, &standby, &link).await;
    fleet.goes_on().await;
    fail_over(&fleet, &mut primary, &standby).await;
    let ahead = Instant::now();
    // The restarted replica checks at its start whether the lease is free.
    fleet.harm(at, Harm::Restart).await;
    fleet.goes_on().await;
    let in_doubt = |call: &Call| call.ended >= behind - MAX_LAG && call.began <= ahead;
    load.balanced(&fleet, in_doubt).await;
}
