//! The database goes on from its standby.

use std::time::Duration;

use rustix::process::Signal;
use testkit::{Cluster, DEADLINE, soak, wait_for};
use tokio::time::Instant;

use crate::{
    api::Api,
    common::Gateway,
    load::{Call, Fleet, Harm, Load},
    support::{Proxy, Way},
};

/// From the death of the database until all goes on, on a machine that has other things to do.
const GOES_ON: Duration = Duration::from_secs(50);

/// Longer than the restart of a replica takes.
const LEASE: &str = "12s";
/// How far behind an asynchronous standby may be that is well.
const LAG: Duration = Duration::from_secs(1);

/// A Postgres, the way from its standby to it, and the standby.
async fn two() -> (Cluster, Proxy, Cluster) {
    let primary = Cluster::start().await;
    let link = Proxy::to(&primary.url()).await;
    let standby = primary.standby(&link.address()).await;
    (primary, link, standby)
}

/// The end of the primary, and what an operator or their tools do then; when all goes on.
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
        log.contains("the database goes on from a standby")
    };
    // At the next renewal of one of them, at the latest; nobody gets a lease before.
    wait_for("it to be noticed", DEADLINE, async || {
        fleet.replicas.iter().flatten().any(|it| noticed(&it))
    })
    .await;
    eprintln!("failed over in {turned:?}, and all goes on after {all:?}");
    assert!(all < GOES_ON, "{all:?}");
}

/// A synchronous standby has all that was confirmed. Before that, a replica is led to it while it only reads, as happens when an
/// address moves too early or too late.
#[tokio::test]
async fn d04_nothing_is_lost_when_a_synchronous_standby_takes_over() {
    let (mut primary, _link, standby) = two().await;
    let fleet = Fleet::on(&primary.url()).await;
    primary.be_synchronous().await;
    let load = Load::on(&fleet).await;
    for at in 0..if soak() { 3 } else { 1 } {
        fleet.ways[at].turn_to(&standby.address()).await;
        fleet.has(at, 2).await;
        // What was revoked may not be there yet.
        let led_astray = Api::admin(fleet.replicas[at].as_ref().unwrap());
        wait_for("keys to be refused", DEADLINE, async || {
            let listing = led_astray.ask("GET", "/api/v1/mcp/servers", "", &[]).await;
            listing.status == 503 && listing.text().contains("may have been revoked")
        })
        .await;
        fleet.goes_on().await;
        fleet.ways[at].turn_to(&primary.address()).await;
        fleet.has(at, 3).await;
    }
    fail_over(&fleet, &mut primary, &standby).await;
    load.balanced(&fleet, |_| false).await;
}

/// Whether a replica has the lease of the registered server.
async fn holds(replica: &Gateway) -> bool {
    let listed = Api::admin(replica).get("/replicas").await;
    let all = listed["replicas"].as_array().unwrap();
    let own = all.iter().find(|row| row["is_self"] == true).unwrap();
    let mut leases = own["leases"].as_array().unwrap().iter();
    leases.any(|lease| lease["name"].as_str().unwrap().starts_with("server:"))
}

/// Ends the replica that has the lease of the registered server, in order. The standby still hears that it is free, and not who has it
/// next. Which replica, and since when.
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
    // Or they would take it at once.
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

/// An asynchronous standby lacks what was confirmed last: records of calls of that time, and leases. No instance runs twice for it.
#[tokio::test]
async fn d03_no_server_runs_twice_when_a_standby_lacks_its_lease() {
    let (mut primary, link, standby) = two().await;
    let mut fleet = Fleet::with_lease(&primary.url(), LEASE).await;
    let load = Load::on(&fleet).await;
    let (at, behind) = moved(&mut fleet, &standby, &link).await;
    fleet.goes_on().await;
    fail_over(&fleet, &mut primary, &standby).await;
    let ahead = Instant::now();
    // One that starts looks whether the lease is free.
    fleet.harm(at, Harm::Restart).await;
    fleet.goes_on().await;
    let in_doubt = |call: &Call| call.ended >= behind - LAG && call.began <= ahead;
    load.balanced(&fleet, in_doubt).await;
}
