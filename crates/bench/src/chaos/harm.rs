//! Harms servers: a random action on a random server, every quarter of a second on average.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{CALL_DEADLINE, MAX_HARM_PAUSE, NAME_VARIABLE, Place};
use crate::run::proc;

/// Maximum number of harms in progress at the same time.
const MAX_CONCURRENT_HARMS: usize = 64;
/// Longest time that a server hangs.
const MAX_HANG: Duration = Duration::from_secs(6);

/// The possible actions, with their share of [`TOTAL_SHARES`].
const HARMS: [(&str, u32); 16] = [
    ("kill", 12),
    ("hang", 12),
    ("crash", 6),
    ("freeze", 6),
    ("burn", 8),
    ("memory", 5),
    ("processes", 3),
    ("scratch", 3),
    ("stderr", 5),
    ("garbage", 6),
    ("half a line", 2),
    ("silence", 6),
    ("twice", 6),
    ("forged", 6),
    ("restart", 12),
    ("stop and start", 2),
];
const TOTAL_SHARES: u32 = 100;

/// The harms done so far.
#[derive(Default)]
pub(super) struct Harmed {
    pub(super) done: BTreeMap<&'static str, u64>,
    /// Harms that did not end in time.
    pub(super) overdue: Vec<String>,
}

/// Harms servers while `going` is true. Then waits until the harms in progress have ended, because they resume the
/// servers that they suspended.
pub(super) async fn go_on(
    place: &Arc<Place>,
    seed: u64,
    mut going: watch::Receiver<bool>,
) -> Harmed {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut harmed = Harmed::default();
    let mut under_way = JoinSet::new();
    while *going.borrow() {
        let what = pick(random.random_range(0..TOTAL_SHARES));
        let server = random.random_range(0..place.servers);
        let time = random.random_range(Duration::from_millis(200)..MAX_HANG);
        if under_way.len() < MAX_CONCURRENT_HARMS {
            *harmed.done.entry(what).or_default() += 1;
            let place = place.clone();
            under_way.spawn(async move {
                let ending =
                    timeout(CALL_DEADLINE + MAX_HANG, harm(&place, what, server, time)).await;
                ending.err().map(|_| format!("{what} of s{server}"))
            });
        }
        while let Some(ended) = under_way.try_join_next() {
            harmed.overdue.extend(ended.ok().flatten());
        }
        let pause = random.random_range(Duration::ZERO..MAX_HARM_PAUSE);
        let _ = timeout(pause, going.wait_for(|going| !going)).await;
    }
    while let Some(ended) = under_way.join_next().await {
        harmed.overdue.extend(ended.ok().flatten());
    }
    harmed
}

fn pick(mut at: u32) -> &'static str {
    for (what, often) in HARMS {
        if at < often {
            return what;
        }
        at -= often;
    }
    HARMS[0].0
}

/// Failures are ignored, since the server may be down.
async fn harm(place: &Place, what: &str, server: usize, time: Duration) {
    let ms = time.as_millis() as u64;
    let done = match what {
        "kill" => signal(server, Signal::KILL).map(drop),
        "hang" => hang(server, time).await,
        "restart" | "stop and start" => orders(place, what, server).await,
        "crash" => tool(place, server, "crash", json!({ "code": 3 })).await,
        "freeze" => tool(place, server, "freeze", json!({ "ms": ms })).await,
        "burn" => tool(place, server, "burn", json!({ "ms": ms })).await,
        "memory" => tool(place, server, "alloc", json!({ "mib": 256 })).await,
        "processes" => tool(place, server, "forks", json!({ "most": 200 })).await,
        "scratch" => {
            let much = json!({ "path": "/tmp/much", "mib": 256 });
            tool(place, server, "fill", much).await
        }
        "stderr" => tool(place, server, "stderr", json!({ "bytes": 50 << 20 })).await,
        "garbage" => tool(place, server, "garbage", json!({ "lines": 1000 })).await,
        "half a line" => tool(place, server, "unterminated", json!({})).await,
        "silence" => tool(place, server, "never", json!({})).await,
        "twice" => tool(place, server, "twice", json!({})).await,
        // Forges responses only at a server that takes one call at a time. If a server with several calls in flight
        // answers one of them with the result of another, nobody can detect that.
        _ => tool(place, server & !1, "forge", json!({ "answer": true })).await,
    };
    drop(done);
}

async fn tool(place: &Place, server: usize, name: &str, arguments: Value) -> anyhow::Result<()> {
    let mut api = place.part.api().await?;
    api.call(&format!("s{server}"), name, &arguments).await?;
    Ok(())
}

async fn orders(place: &Place, what: &str, server: usize) -> anyhow::Result<()> {
    let mut api = place.part.api().await?;
    let orders: &[&str] = match what {
        "restart" => &["restart"],
        _ => &["stop", "start"],
    };
    for order in orders {
        api.order(&format!("s{server}"), order).await?;
    }
    Ok(())
}

/// Suspends the server's process for a while.
async fn hang(server: usize, time: Duration) -> anyhow::Result<()> {
    let pid = signal(server, Signal::STOP)?;
    sleep(time).await;
    kill_process(pid, Signal::CONT).context("it was killed meanwhile")
}

fn signal(server: usize, signal: Signal) -> anyhow::Result<Pid> {
    let pid = proc::hosted(&format!("{NAME_VARIABLE}=s{server}"), "testkit-scripte")?;
    kill_process(pid, signal)?;
    Ok(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_harm_has_its_share() {
        let mut found: BTreeMap<&str, u32> = BTreeMap::new();
        for at in 0..TOTAL_SHARES {
            *found.entry(pick(at)).or_default() += 1;
        }
        assert_eq!(found, BTreeMap::from(HARMS));
    }
}
