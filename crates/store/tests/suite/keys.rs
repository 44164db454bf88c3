//! API keys.

use chrono::Duration;
use store::{NewKey, Page, Role, now};

use crate::support::{Db, new_key, ok, project};

on_both!(
    keys,
    keys_of_two_projects_are_apart,
    the_last_administrator_stays,
    two_administrators_revoke_each_other,
    touching,
);

fn admin<'a>(name: &'a str, hash: &'a str) -> NewKey<'a> {
    NewKey {
        name,
        role: Role::Admin,
        ..new_key(None, hash)
    }
}

async fn keys(db: &Db) {
    let store = &db.store;
    let id = db.project("p").await;
    let expires_at = Some(now() + Duration::hours(1));
    let new = NewKey {
        expires_at,
        ..new_key(Some(&id), "hash-1")
    };
    let row = store.key_put(new).await.unwrap();
    assert_eq!(
        (row.project_id.as_deref(), row.role),
        (Some("p"), Role::Call)
    );
    assert_eq!(
        (row.expires_at, row.last_used_at, row.revoked_at),
        (expires_at, None, None)
    );
    assert!(row.is_living(now()));
    assert!(!row.is_living(now() + Duration::hours(2)));
    assert_eq!(
        store.key_by_hash("hash-1").await.unwrap(),
        Some(row.clone())
    );
    assert_eq!(store.key_by_hash("hash-2").await.unwrap(), None);

    assert_error!(store.key_put(admin("again", "hash-1")).await, Conflict);
    let everywhere = NewKey {
        project: None,
        hash: "everywhere",
        ..new
    };
    let other = store.key_put(everywhere).await.unwrap();
    assert_eq!((other.project_id, other.role), (None, Role::Call));
    let result = store
        .key_put(NewKey {
            role: Role::Admin,
            ..new
        })
        .await;
    assert_error!(result, Invalid);
    let none = project("none");
    let result = store
        .key_put(NewKey {
            project: Some(&none),
            hash: "x",
            ..new
        })
        .await;
    assert_error!(result, NotFound);

    let other = ok(store.key_put(NewKey {
        hash: "hash-3",
        ..new
    }))
    .await;
    let page = store.key_list(None, &Page::first(1)).await.unwrap();
    assert_eq!(page, std::slice::from_ref(&row));
    let page = ok(store.key_list(Some(&id), &Page::after(row.id.as_str(), 9))).await;
    assert_eq!(page, [other]);

    let revoked = store.key_revoke(Some(&id), &row.id).await.unwrap();
    assert!(revoked.revoked_at.is_some() && !revoked.is_living(now()));
    let again = store.key_revoke(None, &row.id).await.unwrap();
    assert_eq!(again, revoked);
}

async fn keys_of_two_projects_are_apart(db: &Db) {
    let store = &db.store;
    let (a, b) = (db.project("a").await, db.project("b").await);
    let mut ids = Vec::new();
    for id in [&a, &b] {
        let key = NewKey {
            project: Some(id),
            role: Role::Manage,
            ..admin("k", id.as_str())
        };
        ids.push(store.key_put(key).await.unwrap().id);
    }
    store.key_put(admin("root", "r")).await.unwrap();
    let mine = store.key_list(Some(&a), &Page::default()).await.unwrap();
    assert_eq!(
        mine.iter().map(|key| &key.id).collect::<Vec<_>>(),
        [&ids[0]]
    );
    assert_error!(store.key_revoke(Some(&a), &ids[1]).await, NotFound);
    let theirs = store.key_by_hash("b").await.unwrap().unwrap();
    assert_eq!(theirs.revoked_at, None);
}

async fn the_last_administrator_stays(db: &Db) {
    let store = &db.store;
    let first = store.key_put(admin("first", "1")).await.unwrap();
    let expired = NewKey {
        expires_at: Some(now() - Duration::seconds(1)),
        ..admin("expired", "2")
    };
    let expired = store.key_put(expired).await.unwrap();
    assert_error!(store.key_revoke(None, &first.id).await, Conflict);
    assert!(
        store
            .key_by_hash("1")
            .await
            .unwrap()
            .unwrap()
            .is_living(now())
    );
    store.key_revoke(None, &expired.id).await.unwrap();
    store.key_put(admin("second", "3")).await.unwrap();
    store.key_revoke(None, &first.id).await.unwrap();
}

async fn two_administrators_revoke_each_other(db: &Db) {
    let store = &db.store;
    let other = db.another().await;
    let mut living = store.key_put(admin("k", "0")).await.unwrap();
    for round in 1..=10 {
        let hash = round.to_string();
        let new = store.key_put(admin("k", &hash)).await.unwrap();
        let (first, second) = tokio::join!(
            store.key_revoke(None, &living.id),
            other.key_revoke(None, &new.id)
        );
        if first.is_ok() {
            assert_error!(second, Conflict);
            living = new;
        } else {
            assert_error!(first, Conflict);
            second.unwrap();
        }
    }
}

async fn touching(db: &Db) {
    let store = &db.store;
    let key = store.key_put(admin("k", "h")).await.unwrap();
    let at = now();
    let used = |at| [(key.id.clone(), at), ("no such key".to_owned(), at)];
    store.keys_touch(&used(at)).await.unwrap();
    ok(store.keys_touch(&used(at - Duration::seconds(5)))).await;
    let row = store.key_by_hash("h").await.unwrap().unwrap();
    assert_eq!(row.last_used_at, Some(at));
}
