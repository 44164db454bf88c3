//! Replicas and their leases. SQLite has none.

use std::time::Duration;

use store::{CallStatus, CallWrite, NewReplica, Page, RunFilter, Sight, Store, Topic};

use crate::{
    audit::{intent, outcome},
    support::{Db, new_run, ok},
};

fn new(id: &str) -> NewReplica<'_> {
    NewReplica {
        id,
        name: "host",
        version: "1",
        address: None,
    }
}

async fn join(store: &Store, ids: &[&str]) {
    for id in ids {
        store.replica_add(new(id), LONG_LEASE).await.unwrap();
    }
}

async fn ids(store: &Store) -> Vec<String> {
    let all = store.replica_list().await.unwrap();
    all.into_iter().map(|row| row.id).collect()
}

const LONG_LEASE: Duration = Duration::from_secs(60);
const SHORT_LEASE: Duration = Duration::from_millis(100);

#[tokio::test]
async fn on_a_file_there_are_none() {
    let db = Db::sqlite().await;
    assert!(!db.store.has_replicas());
    db.store.replica_add(new("a"), LONG_LEASE).await.unwrap();
    assert!(ids(&db.store).await.is_empty());
}

#[tokio::test]
async fn one_at_a_time_holds_a_lease_and_each_fence_is_higher() {
    let db = Db::postgres().await;
    let (a, b) = (&db.store, &db.another().await);
    a.replica_add(new("a"), LONG_LEASE).await.unwrap();
    b.replica_add(new("b"), LONG_LEASE).await.unwrap();
    assert_error!(b.replica_add(new("b"), LONG_LEASE).await, Conflict);
    assert_eq!(ids(a).await, ["a", "b"]);

    let takes = (0..20).map(|n| {
        let (store, who) = if n % 2 == 0 { (a, "a") } else { (b, "b") };
        store.lease_take("server:x", who, LONG_LEASE)
    });
    let taken = futures_util::future::join_all(takes).await;
    let fences: Vec<i64> = taken.into_iter().filter_map(Result::unwrap).collect();
    // The holder may ask again, and the other replica never gets the lease.
    assert_eq!(fences.len(), 10, "{fences:?}");
    assert!(fences.iter().all(|fence| *fence == fences[0]), "{fences:?}");
    let held = a.lease_list().await.unwrap();
    assert_eq!((held.len(), held[0].fence), (1, fences[0]));

    // An older fencing token releases nothing.
    a.lease_release("server:x", fences[0] - 1).await.unwrap();
    assert_eq!(a.lease_list().await.unwrap().len(), 1);
    a.lease_release("server:x", fences[0]).await.unwrap();
    let next = ok(b.lease_take("server:x", "b", LONG_LEASE)).await;
    assert!(next > Some(fences[0]));
    b.replica_remove("b").await.unwrap();
    assert!(a.lease_list().await.unwrap().is_empty());
    let taken = ok(a.lease_take("server:x", "b", LONG_LEASE)).await;
    assert_eq!(taken, None);
}

#[tokio::test]
async fn all_agree_on_who_has_a_lease_that_is_taken_from_the_unreachable() {
    let db = Db::postgres().await;
    let store = &db.store;
    join(store, &["a", "b", "c"]).await;
    let agree = async |holder, from| store.lease_agree("sessions:x/1", holder, from).await;
    let first = ["a", "b"].map(|id| agree(id, None));
    let first = futures_util::future::try_join_all(first).await.unwrap();
    assert_eq!(first[0], first[1]);
    let holder = first[0].clone().unwrap();
    let fence = store.lease_list().await.unwrap()[0].fence;
    let other = if holder == "a" { "b" } else { "a" };
    // The lease is taken only from its actual holder, and only one of those that ask gets it.
    assert_eq!(
        agree("c", Some(other)).await.unwrap().as_ref(),
        Some(&holder)
    );
    let next = [other, "c"].map(|id| agree(id, Some(holder.as_str())));
    let next = futures_util::future::try_join_all(next).await.unwrap();
    assert_eq!(next[0], next[1]);
    assert_ne!(next[0].as_ref(), Some(&holder));
    assert!(store.lease_list().await.unwrap()[0].fence > fence);
    // A lost replica can take no lease and holds none.
    let next = next[0].clone().unwrap();
    store.replica_remove(&next).await.unwrap();
    assert_eq!(agree(&next, None).await.unwrap(), None);
    assert_eq!(agree(&holder, None).await.unwrap(), Some(holder));
}

/// Leases may be missing after a failover: none is granted until the missing ones have expired, and no fencing token is
/// used twice.
#[tokio::test]
async fn leases_are_given_again_when_lost_ones_have_run_out() {
    let db = Db::postgres().await;
    let store = &db.store;
    join(store, &["a", "b"]).await;
    let take = async |who, lease| store.lease_take("server:x", who, lease).await.unwrap();
    let fence = take("a", LONG_LEASE).await.unwrap();
    // The holder may ask again, and no other replica gets the lease.
    assert_eq!(take("a", LONG_LEASE).await, Some(fence));
    assert_eq!(take("b", LONG_LEASE).await, None);
    assert!(!store.timeline_is_new().await.unwrap());
    let mut sight = Sight::default();
    store.change_list(&mut sight).await.unwrap();
    let keys = store.keys_revision().await.unwrap();

    let database = db.database();
    // Simulates a failover to a standby that lost this lease.
    let function = "CREATE OR REPLACE FUNCTION kb.toolwharf_timeline() RETURNS TEXT LANGUAGE sql AS $$ SELECT '00000002' $$";
    database.run(function).await;
    store.lease_release("server:x", fence).await.unwrap();
    assert_eq!(take("b", SHORT_LEASE).await, None, "it was not noticed yet");
    assert!(store.timeline_is_new().await.unwrap());
    store.timeline_begin().await.unwrap();
    assert!(!store.timeline_is_new().await.unwrap());
    assert_eq!(take("b", LONG_LEASE).await, None);
    let changed = store.change_list(&mut sight).await.unwrap();
    assert_eq!(changed, Topic::ALL.into());
    assert_ne!(store.keys_revision().await.unwrap(), keys);
    testkit::wait_for("the lease", Duration::from_secs(5), async || {
        take("b", SHORT_LEASE)
            .await
            .is_some_and(|next| next > fence + 1000)
    })
    .await;
}

#[tokio::test]
async fn a_replica_that_expired_cannot_come_back() {
    let db = Db::postgres().await;
    let store = &db.store;
    join(store, &["a", "b"]).await;
    let take = async |who| ok(store.lease_take("sweep", who, LONG_LEASE)).await;
    let renew = async |who, lease| ok(store.replica_renew(who, lease)).await;
    take("a").await.unwrap();
    let held = renew("a", SHORT_LEASE).await.unwrap();
    assert!(held.contains_key("sweep"));
    testkit::wait_for("the expiry", Duration::from_secs(5), async || {
        ids(store).await == ["b"]
    })
    .await;
    assert!(renew("a", LONG_LEASE).await.is_none());
    // The lease becomes free only when the lost replica is removed.
    assert_eq!(take("b").await, None);
    let lost = store.replica_remove_lost().await.unwrap();
    assert_eq!(lost[0].id, "a");
    assert!(take("b").await.is_some());
    assert!(renew("b", LONG_LEASE).await.is_some());
}

/// Open calls and runs of a lost replica are closed, and those of another replica are not.
#[tokio::test]
async fn what_a_lost_replica_left_open_is_closed() {
    let db = Db::postgres().await;
    let (a, b) = (&db.store, &db.another().await);
    a.replica_add(new("a"), LONG_LEASE).await.unwrap();
    b.replica_add(new("b"), LONG_LEASE).await.unwrap();
    let mut ids = Vec::new();
    for store in [a, b] {
        let call = intent(None, "t");
        ids.push(call.id.clone());
        let writes = [CallWrite::Intent(call)];
        store.call_writer().write(&writes).await.unwrap();
        store.run_put(new_run(None)).await.unwrap();
    }
    a.replica_remove("a").await.unwrap();
    let status = async |id: &str| b.call_get(None, id).await.unwrap().call.status;
    assert_eq!(status(&ids[0]).await, CallStatus::Unknown);
    assert_eq!(status(&ids[1]).await, CallStatus::Open);
    let runs = b.run_list(&RunFilter::default(), &Page::first(10)).await;
    let words: Vec<_> = runs.unwrap().into_iter().map(|run| run.status).collect();
    assert_eq!(words, ["running", "interrupted"]);
    // The replica was only slow: its outcome for the call still replaces `unknown`.
    let end = CallWrite::Outcome(outcome(&ids[0], CallStatus::Ok));
    a.call_writer().write(&[end]).await.unwrap();
    assert_eq!(status(&ids[0]).await, CallStatus::Ok);
}
