//! Replicas and their leases. On SQLite there are none.

use std::time::Duration;

use store::{CallStatus, CallWrite, NewReplica, NewRun, Page, RunFilter, Sight, Store, Topic};

use crate::{
    audit::{intent, outcome},
    support::Db,
};

fn new(id: &str) -> NewReplica<'_> {
    NewReplica {
        id,
        name: "host",
        version: "1",
        address: None,
    }
}

async fn ids(store: &Store) -> Vec<String> {
    let all = store.replica_list().await.unwrap();
    all.into_iter().map(|row| row.id).collect()
}

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(100);

#[tokio::test]
async fn on_a_file_there_are_none() {
    let db = Db::sqlite().await;
    assert!(!db.store.has_replicas());
    db.store.replica_add(new("a"), LONG).await.unwrap();
    assert!(ids(&db.store).await.is_empty());
}

#[tokio::test]
async fn one_at_a_time_holds_a_lease_and_each_fence_is_higher() {
    let db = Db::postgres().await;
    let (a, b) = (&db.store, &db.another().await);
    a.replica_add(new("a"), LONG).await.unwrap();
    b.replica_add(new("b"), LONG).await.unwrap();
    assert_error!(b.replica_add(new("b"), LONG).await, Conflict);
    assert_eq!(ids(a).await, ["a", "b"]);

    let takes = (0..20).map(|n| {
        let (store, who) = if n % 2 == 0 { (a, "a") } else { (b, "b") };
        store.lease_take("server:x", who, LONG)
    });
    let taken = futures_util::future::join_all(takes).await;
    let fences: Vec<i64> = taken.into_iter().filter_map(Result::unwrap).collect();
    // Whoever has it may ask again, and the other one never gets it.
    assert_eq!(fences.len(), 10, "{fences:?}");
    assert!(fences.iter().all(|fence| *fence == fences[0]), "{fences:?}");
    let held = a.lease_list().await.unwrap();
    assert_eq!((held.len(), held[0].fence), (1, fences[0]));

    // An older fence releases nothing.
    a.lease_release("server:x", fences[0] - 1).await.unwrap();
    assert_eq!(a.lease_list().await.unwrap().len(), 1);
    a.lease_release("server:x", fences[0]).await.unwrap();
    let next = b.lease_take("server:x", "b", LONG).await.unwrap().unwrap();
    assert!(next > fences[0]);
    b.replica_remove("b").await.unwrap();
    assert!(a.lease_list().await.unwrap().is_empty());
    assert_eq!(a.lease_take("server:x", "b", LONG).await.unwrap(), None);
}

#[tokio::test]
async fn all_agree_on_who_has_a_lease_that_is_taken_from_the_unreachable() {
    let db = Db::postgres().await;
    let store = &db.store;
    for id in ["a", "b", "c"] {
        store.replica_add(new(id), LONG).await.unwrap();
    }
    let agree = async |holder, from| store.lease_agree("sessions:x/1", holder, from).await;
    let first = ["a", "b"].map(|id| agree(id, None));
    let first = futures_util::future::try_join_all(first).await.unwrap();
    assert_eq!(first[0], first[1]);
    let holder = first[0].clone().unwrap();
    let fence = store.lease_list().await.unwrap()[0].fence;
    let other = if holder == "a" { "b" } else { "a" };
    // Only who is thought to have it loses it, and to one of those that ask.
    assert_eq!(
        agree("c", Some(other)).await.unwrap().as_ref(),
        Some(&holder)
    );
    let next = [other, "c"].map(|id| agree(id, Some(holder.as_str())));
    let next = futures_util::future::try_join_all(next).await.unwrap();
    assert_eq!(next[0], next[1]);
    assert_ne!(next[0].as_ref(), Some(&holder));
    assert!(store.lease_list().await.unwrap()[0].fence > fence);
    // Whoever is lost agrees to nothing, and has nothing.
    let next = next[0].clone().unwrap();
    store.replica_remove(&next).await.unwrap();
    assert_eq!(agree(&next, None).await.unwrap(), None);
    assert_eq!(agree(&holder, None).await.unwrap(), Some(holder));
}

/// After a failover leases may be missing: nobody gets one before those have run out, and no fence is given twice.
#[tokio::test]
async fn leases_are_given_again_when_lost_ones_have_run_out() {
    let db = Db::postgres().await;
    let store = &db.store;
    for id in ["a", "b"] {
        store.replica_add(new(id), LONG).await.unwrap();
    }
    let take = async |who, lease| store.lease_take("server:x", who, lease).await.unwrap();
    let fence = take("a", LONG).await.unwrap();
    // Whoever has it may ask again, and it is nobody else's.
    assert_eq!(take("a", LONG).await, Some(fence));
    assert_eq!(take("b", LONG).await, None);
    assert!(!store.timeline_is_new().await.unwrap());
    let mut sight = Sight::default();
    store.change_list(&mut sight).await.unwrap();
    let keys = store.keys_revision().await.unwrap();

    let database = db.database();
    // As a standby says after the failover that lost this lease.
    let function = "CREATE OR REPLACE FUNCTION kb.toolwharf_timeline() RETURNS TEXT LANGUAGE sql AS $$ SELECT '00000002' $$";
    database.run(function).await;
    store.lease_release("server:x", fence).await.unwrap();
    assert_eq!(take("b", SHORT).await, None, "it was not noticed yet");
    assert!(store.timeline_is_new().await.unwrap());
    store.timeline_begin().await.unwrap();
    assert!(!store.timeline_is_new().await.unwrap());
    assert_eq!(take("b", LONG).await, None);
    let changed = store.change_list(&mut sight).await.unwrap();
    assert_eq!(changed, Topic::ALL.into());
    assert_ne!(store.keys_revision().await.unwrap(), keys);
    testkit::wait_for("the lease", Duration::from_secs(5), async || {
        take("b", SHORT)
            .await
            .is_some_and(|next| next > fence + 1000)
    })
    .await;
}

#[tokio::test]
async fn a_replica_that_expired_cannot_come_back() {
    let db = Db::postgres().await;
    let store = &db.store;
    for id in ["a", "b"] {
        store.replica_add(new(id), LONG).await.unwrap();
    }
    store.lease_take("sweep", "a", LONG).await.unwrap().unwrap();
    let held = store.replica_renew("a", SHORT).await.unwrap().unwrap();
    assert!(held.contains_key("sweep"));
    testkit::wait_for("the expiry", Duration::from_secs(5), async || {
        ids(store).await == ["b"]
    })
    .await;
    assert!(store.replica_renew("a", LONG).await.unwrap().is_none());
    // Nobody has the lease before it was taken from whoever is lost.
    assert_eq!(store.lease_take("sweep", "b", LONG).await.unwrap(), None);
    let lost = store.replica_remove_lost().await.unwrap();
    assert_eq!(lost[0].id, "a");
    assert!(
        store
            .lease_take("sweep", "b", LONG)
            .await
            .unwrap()
            .is_some()
    );
    assert!(store.replica_renew("b", LONG).await.unwrap().is_some());
}

/// What a lost replica had begun and cannot end is closed, and what another one has begun is not.
#[tokio::test]
async fn what_a_lost_replica_left_open_is_closed() {
    let db = Db::postgres().await;
    let (a, b) = (&db.store, &db.another().await);
    a.replica_add(new("a"), LONG).await.unwrap();
    b.replica_add(new("b"), LONG).await.unwrap();
    let mut ids = Vec::new();
    for store in [a, b] {
        let call = intent(None, "t");
        ids.push(call.id.clone());
        let writes = [CallWrite::Intent(call)];
        store.call_writer().write(&writes).await.unwrap();
        let run = NewRun {
            project: None,
            agent: "x",
            model: "m",
            conversation: None,
        };
        store.run_put(run).await.unwrap();
    }
    a.replica_remove("a").await.unwrap();
    let status = async |id: &str| b.call_get(None, id).await.unwrap().call.status;
    assert_eq!(status(&ids[0]).await, CallStatus::Unknown);
    assert_eq!(status(&ids[1]).await, CallStatus::Open);
    let runs = b.run_list(&RunFilter::default(), &Page::first(10)).await;
    let words: Vec<_> = runs.unwrap().into_iter().map(|run| run.status).collect();
    assert_eq!(words, ["running", "interrupted"]);
    // It was only slow: what came of the call is known after all.
    let end = CallWrite::Outcome(outcome(&ids[0], CallStatus::Ok));
    a.call_writer().write(&[end]).await.unwrap();
    assert_eq!(status(&ids[0]).await, CallStatus::Ok);
}
