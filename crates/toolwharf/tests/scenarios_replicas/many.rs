//! Many sessions on a replica that is killed.

use std::time::Duration;

use rustix::process::Signal;
use tokio::{task::JoinSet, time::Instant};

use crate::{
    common::Gateway,
    sessions::{open, pings, three},
    support::end,
};

const SESSIONS: usize = 1000;
/// Number of clients that continue at the same time.
const CLIENTS: usize = 20;
/// D02: limit from the kill until the last session has a response.
const MAX_TAKEOVER: Duration = Duration::from_secs(5);
/// Limit for the memory that a replica needs for each session it takes over, in KiB.
const MAX_KIB_PER_SESSION: u64 = 16;

#[tokio::test]
async fn d02_a_thousand_sessions_are_taken_up_at_once() {
    let (_database, [mut first, second, third]) = three().await;
    let others = [second, third];
    let mut opening = JoinSet::new();
    for _ in 0..CLIENTS {
        let client = first.client();
        opening.spawn(async move {
            let mut ids = Vec::new();
            for _ in 0..SESSIONS / CLIENTS {
                ids.push(open(client.clone(), "2025-11-25").await);
            }
            ids
        });
    }
    let ids = opening.join_all().await;
    assert_eq!(first.metric("sessions", None).await, Some(SESSIONS as u64));
    let memory = |all: &[Gateway; 2]| all.each_ref().map(Gateway::memory_now);
    let before = memory(&others);

    end(&mut first, Signal::KILL).await;
    let died = Instant::now();
    let mut going_on = JoinSet::new();
    for (number, ids) in ids.into_iter().enumerate() {
        let clients = others.each_ref().map(Gateway::client);
        going_on.spawn(async move {
            let mut slowest = Duration::ZERO;
            for (at, id) in ids.iter().enumerate() {
                let asked = Instant::now();
                // The first request after the kill must succeed, not only a later one.
                pings(clients[(number + at) % 2].clone(), id).await;
                slowest = slowest.max(asked.elapsed());
            }
            slowest
        });
    }
    let slowest = going_on.join_all().await.into_iter().max().unwrap();
    let all = died.elapsed();
    let after = memory(&others);
    eprintln!(
        "{SESSIONS} sessions continued within {all:?}, the slowest in {slowest:?}; memory in KiB {before:?} -> {after:?}"
    );
    assert!(all < MAX_TAKEOVER, "{all:?}");
    let mut sessions = 0;
    for (replica, (before, after)) in others.iter().zip(before.into_iter().zip(after)) {
        let here = replica.metric("sessions", None).await.unwrap();
        let limit = before + here * MAX_KIB_PER_SESSION + 8192;
        assert!(after < limit, "memory in KiB: {before} -> {after}");
        sessions += here;
    }
    // Each session was taken over by exactly one replica.
    assert_eq!(sessions, SESSIONS as u64);
}
