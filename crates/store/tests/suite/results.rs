//! Long results of tool calls.

use std::time::Duration;

use model::ProjectId;
use store::{NewResult, ResultRoom, Store};

use crate::support::{Db, ok};

on_both!(
    a_result_belongs_to_its_caller_and_project_until_it_expires,
    the_oldest_results_of_the_same_caller_go_first,
    replicas_share_the_room,
);

const ROOM: ResultRoom = ResultRoom {
    of_caller: 10_000,
    in_total: 15_000,
};

fn new<'a>(
    project: Option<&'a ProjectId>,
    caller: &'a str,
    id: &'a str,
    text: &'a [u8],
) -> NewResult<'a> {
    NewResult {
        id,
        project,
        caller,
        text,
        structured: None,
        expires_at: store::now() + Duration::from_secs(60),
    }
}

/// Returns which of these results of the caller exist.
async fn there<'i>(store: &Store, caller: &str, ids: &[&'i str]) -> Vec<&'i str> {
    let mut found = Vec::new();
    for id in ids {
        if ok(store.result_get(None, caller, id)).await.is_some() {
            found.push(*id);
        }
    }
    found
}

async fn a_result_belongs_to_its_caller_and_project_until_it_expires(db: &Db) {
    let (store, project) = (&db.store, db.project("p").await);
    let result = NewResult {
        structured: Some(b"{}"),
        ..new(Some(&project), "ci", "one", b"a\0\xff")
    };
    assert!(ok(store.result_put(result, ROOM)).await);
    let other = db.another().await;
    let row = ok(other.result_get(Some(&project), "ci", "one")).await;
    let row = row.expect("the result");
    assert_eq!(
        (&*row.text, row.structured.as_deref()),
        (&b"a\0\xff"[..], Some(&b"{}"[..]))
    );
    for (project, caller, id) in [
        (None, "ci", "one"),
        (Some(&project), "cj", "one"),
        (Some(&project), "ci", "two"),
    ] {
        assert!(ok(store.result_get(project, caller, id)).await.is_none());
    }
    let over = NewResult {
        expires_at: store::now() - Duration::from_secs(1),
        ..new(None, "ci", "over", b"x")
    };
    assert!(ok(store.result_put(over, ROOM)).await);
    assert!(ok(store.result_get(None, "ci", "over")).await.is_none());
    assert_eq!(ok(store.result_prune()).await, 1);
    assert_eq!(ok(store.result_prune()).await, 0);
    assert!(
        ok(store.result_get(Some(&project), "ci", "one"))
            .await
            .is_some()
    );
}

async fn the_oldest_results_of_the_same_caller_go_first(db: &Db) {
    let store = &db.store;
    let text = vec![b'x'; 4_000];
    let put = async |caller: &'static str, id: &'static str, text: &[u8]| {
        ok(store.result_put(new(None, caller, id, text), ROOM)).await
    };
    assert!(put("a", "a1", &text).await);
    assert!(put("a", "a2", &text).await);
    // The room of the caller is full.
    assert!(put("a", "a3", &text).await);
    assert_eq!(there(store, "a", &["a1", "a2", "a3"]).await, ["a2", "a3"]);
    // All results together have no room, so a caller replaces its own.
    assert!(put("b", "b1", &text).await);
    assert!(put("b", "b2", &text).await);
    assert_eq!(there(store, "b", &["b1", "b2"]).await, ["b2"]);
    assert_eq!(there(store, "a", &["a2", "a3"]).await, ["a2", "a3"]);
    // A caller without results cannot replace those of others, and nothing has room beyond that of its caller.
    assert!(!put("c", "c1", &text).await);
    assert!(!put("a", "a4", &[b'x'; 10_000]).await);
    assert_eq!(there(store, "a", &["a2", "a3", "a4"]).await, ["a2", "a3"]);
    // One that needs the room of two replaces both.
    assert!(put("a", "a5", &[b'x'; 8_000]).await);
    assert_eq!(there(store, "a", &["a2", "a3", "a5"]).await, ["a5"]);
}

async fn replicas_share_the_room(db: &Db) {
    let others = [db.another().await, db.another().await];
    let text = vec![b'x'; 4_000];
    let ids: Vec<String> = (0..12).map(|n| n.to_string()).collect();
    let puts = ids.iter().enumerate().map(|(at, id)| {
        let caller = ["a", "b", "c"][at % 3];
        others[at % 2].result_put(new(None, caller, id, &text), ROOM)
    });
    for put in futures_util::future::join_all(puts).await {
        put.unwrap();
    }
    let mut stored = 0;
    for (at, id) in ids.iter().enumerate() {
        let caller = ["a", "b", "c"][at % 3];
        stored += there(&db.store, caller, &[id]).await.len();
    }
    assert_eq!(stored, 3);
}
