//! Machines whose clocks differ by minutes.

use std::{path::Path, time::Duration};

use rustix::process::Signal;
use serde_json::json;
use testkit::{DEADLINE, wait_for};

use crate::{
    api::Api,
    common::Gateway,
    elsewhere::works,
    sessions::{open, pings},
    support::{Hosted, database, replica, replica_with},
};

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// Lifetime of a key, long enough to ask all replicas.
const KEY_LIFETIME: Duration = Duration::from_secs(8);

/// Tolerance for a slow response of the database, in seconds.
const TOLERANCE_SECONDS: i64 = 3;

/// A replica whose clock is off by `seconds`. Its clock runs at normal speed.
async fn off_by(seconds: &str, url: &str, first: Option<&Gateway>) -> Gateway {
    let exists = Path::new(LIBRARY).exists();
    assert!(exists, "{LIBRARY} is missing: run `cargo xtask setup`");
    replica_with(url, first, |setup| {
        setup
            .env("LD_PRELOAD", LIBRARY)
            .env("FAKETIME", seconds)
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    })
    .await
}

/// One clock is five minutes ahead, another five minutes behind. Replicas cooperate as if they had the same clock.
#[tokio::test]
async fn d01_clocks_may_differ_by_minutes() {
    let database = database().await;
    let ahead = off_by("+300", database.url(), None).await;
    let hosted = Hosted::register(&ahead).await;
    let behind = off_by("-300", database.url(), Some(&ahead)).await;
    let right = replica(database.url(), Some(&ahead)).await;
    let clock = "the clock of this machine is 300 s";
    ahead.logged(&format!("{clock} ahead of")).await;
    behind.logged(&format!("{clock} behind")).await;
    let replicas = [&right, &ahead, &behind];
    for replica in replicas {
        works(&hosted, replica).await;
    }

    // A session is served by the replica that opened it.
    for opener in replicas {
        let id = open(opener.client(), "2025-11-25").await;
        for replica in replicas {
            pings(replica.client(), &id).await;
        }
        assert_eq!(opener.metric("sessions", None).await, Some(1));
    }

    // A key expires at the same time everywhere.
    let admin = Api::admin(&behind);
    admin.put("/projects/shop", json!({"name": "Shop"})).await;
    let made =
        json!({"name": "k", "role": "read", "expires_at": chrono::Utc::now() + KEY_LIFETIME});
    let key = admin.ok("POST", "/keys?project=shop", made).await;
    let key = key["token"].as_str().unwrap();
    let may = async |at: &Gateway| {
        let api = Api::with(at, key);
        let listing = api.ask("GET", "/api/v1/mcp/servers?project=shop", "", &[]);
        listing.await.status == 200
    };
    for replica in replicas {
        wait_for("the key", KEY_LIFETIME, async || may(replica).await).await;
    }
    for replica in replicas {
        wait_for("the end of the key", DEADLINE, async || !may(replica).await).await;
    }

    // Call records have the database's time (within its response time), and are ordered by it.
    let now = chrono::Utc::now();
    let listed = Api::admin(&right).get("/calls?limit=100").await;
    let calls = listed["calls"].as_array().unwrap().iter();
    let ages: Vec<i64> = calls
        .map(|call| {
            let began: chrono::DateTime<chrono::Utc> =
                serde_json::from_value(call["started_at"].clone()).unwrap();
            (now - began).num_seconds()
        })
        .collect();
    assert!(ages.len() >= replicas.len(), "{ages:?}");
    let is_right = |age: &i64| (-TOLERANCE_SECONDS..120).contains(age);
    assert!(ages.iter().all(is_right), "{ages:?}");
    let is_sorted = ages.is_sorted_by(|a, b| *a <= b + TOLERANCE_SECONDS);
    assert!(is_sorted, "{ages:?}");

    // A takeover takes no longer than with equal clocks, and nothing runs twice.
    let watched = hosted.watched();
    let id = open(ahead.client(), "2025-11-25").await;
    ahead.process.signal(Signal::KILL);
    works(&hosted, &behind).await;
    works(&hosted, &right).await;
    assert_eq!(watched.most(), 1);
    pings(behind.client(), &id).await;
}
