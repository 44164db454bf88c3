//! API keys.

use std::slice;

use chrono::Duration;
use model::ToolMode;
use store::{NewKey, Page, Role, now};

use crate::support::{Db, new_key, ok, project};

on_both!(
    keys,
    keys_of_two_projects_are_apart,
    the_last_administrator_stays,
    two_administrators_revoke_each_other,
    touching,
    a_name_is_unique_until_its_key_is_revoked,
    of_many_keys_with_one_name_one_is_stored,
    a_key_of_a_foreign_project_reserves_no_name,
    a_key_has_several_projects_and_loses_those_that_are_deleted,
    names_are_known_by_id,
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
        tools: Some(ToolMode::Search),
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
    assert_eq!(row.tools.as_deref(), Some("search"));
    assert!(row.is_living(now()));
    assert!(!row.is_living(now() + Duration::hours(2)));
    assert_eq!(
        store.key_by_hash("hash-1").await.unwrap(),
        Some(row.clone())
    );
    assert_eq!(store.key_by_hash("hash-2").await.unwrap(), None);

    assert_error!(store.key_put(admin("again", "hash-1")).await, Conflict);
    let everywhere = new_key(None, "everywhere");
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
    let result = store.key_put(new_key(Some(&none), "x")).await;
    assert_error!(result, NotFound);

    let other = ok(store.key_put(new_key(Some(&id), "hash-3"))).await;
    let page = store.key_list(None, &Page::first(1)).await.unwrap();
    assert_eq!(page, slice::from_ref(&row));
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
            role: Role::Manage,
            ..new_key(Some(id), id.as_str())
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
    let mut living = store.key_put(admin("0", "0")).await.unwrap();
    for round in 1..=10 {
        let hash = round.to_string();
        let new = store.key_put(admin(&hash, &hash)).await.unwrap();
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

async fn a_name_is_unique_until_its_key_is_revoked(db: &Db) {
    let store = &db.store;
    let (a, b) = (db.project("a").await, db.project("b").await);
    let named = |project, hash| NewKey {
        name: "ci",
        ..new_key(project, hash)
    };
    let first = store.key_put(named(Some(&a), "1")).await.unwrap();
    assert_error!(store.key_put(named(Some(&a), "2")).await, Conflict);
    assert_error!(store.key_put(named(Some(&b), "2")).await, Conflict);
    assert_error!(store.key_put(admin("ci", "2")).await, Conflict);
    // Letters of another case are another name.
    store.key_put(admin("CI", "3")).await.unwrap();
    let second = ok(store.key_put_numbered(named(None, "4"))).await;
    let third = ok(store.key_put_numbered(named(None, "5"))).await;
    assert_eq!((&*second.name, &*third.name), ("ci (2)", "ci (3)"));
    assert_error!(store.key_put_numbered(named(None, "5")).await, Conflict);
    store.key_revoke(None, &first.id).await.unwrap();
    ok(store.key_put(named(Some(&b), "6"))).await;
    // A revoked key does not get its name back.
    store.key_revoke(None, &first.id).await.unwrap();
    assert_error!(store.key_put(named(Some(&a), "7")).await, Conflict);
}

async fn of_many_keys_with_one_name_one_is_stored(db: &Db) {
    let other = db.another().await;
    let (a, b) = (db.project("a").await, db.project("b").await);
    for round in 0..5 {
        let name = format!("ci {round}");
        let hashes: Vec<String> = (0..12).map(|n| format!("{round} {n}")).collect();
        let puts = hashes.iter().enumerate().map(|(n, hash)| {
            let store = [&db.store, &other][n % 2];
            // Some of the creators may only see the keys of project `a`.
            let visible = (n % 3 == 0).then_some(slice::from_ref(&a));
            let project = [Some(&a), Some(&b), None][n % 3];
            let key = NewKey {
                name: &name,
                visible,
                ..new_key(project, hash)
            };
            store.key_put(key)
        });
        let put = futures_util::future::join_all(puts).await;
        let stored: Vec<_> = put.into_iter().filter_map(Result::ok).collect();
        let full = stored.iter().filter(|key| key.name_scope.is_empty());
        assert_eq!(full.count(), 1, "{stored:?}");
        let of_a = stored
            .iter()
            .filter(|key| key.project_id.as_deref() == Some("a"));
        assert!(of_a.count() <= 1, "{stored:?}");
        assert!(stored.len() <= 2, "{stored:?}");
    }
}

async fn a_key_of_a_foreign_project_reserves_no_name(db: &Db) {
    let store = &db.store;
    let (a, b) = (db.project("a").await, db.project("b").await);
    let foreign = NewKey {
        name: "ci",
        ..new_key(Some(&a), "1")
    };
    store.key_put(foreign).await.unwrap();
    let own = |hash| NewKey {
        name: "ci",
        visible: Some(slice::from_ref(&b)),
        ..new_key(Some(&b), hash)
    };
    let key = store.key_put(own("2")).await.unwrap();
    assert_eq!((&*key.name, &*key.name_scope), ("ci", "b"));
    assert_error!(store.key_put(own("3")).await, Conflict);
    store.key_revoke(None, &key.id).await.unwrap();
    store.key_put(own("4")).await.unwrap();
    // Somebody who sees all keys gets no such name.
    let seen = NewKey {
        visible: None,
        ..own("5")
    };
    assert_error!(store.key_put(seen).await, Conflict);
    let names = store.key_names(&[&key.id]).await.unwrap();
    assert_eq!(names[&key.id].full(), "ci (b)");
}

async fn a_key_has_several_projects_and_loses_those_that_are_deleted(db: &Db) {
    let store = &db.store;
    let mut projects = Vec::new();
    for id in ["c", "a", "b"] {
        projects.push(db.project(id).await);
    }
    let several = NewKey {
        projects: &projects,
        ..new_key(None, "1")
    };
    let key = store.key_put(several).await.unwrap();
    let of = async || {
        let key = store.key_get(&key.id).await.unwrap();
        let projects = key.map(|key| key.projects().map(str::to_owned).collect::<Vec<_>>());
        projects.unwrap_or_default()
    };
    assert_eq!(of().await, ["a", "b", "c"]);
    assert_eq!(key.projects().collect::<Vec<_>>(), ["a", "b", "c"]);
    let hashed = store.keys_hashed().await.unwrap();
    assert_eq!(hashed[0].key, key);
    for project in &projects {
        let listed = ok(store.key_list(Some(project), &Page::default())).await;
        assert_eq!(listed, slice::from_ref(&key), "{project}");
    }
    // `a` is the first project.
    for (gone, left) in [(1, vec!["b", "c"]), (0, vec!["b"])] {
        let before = store.keys_revision().await.unwrap();
        store.project_delete(&projects[gone]).await.unwrap();
        assert_eq!(of().await, left);
        assert_ne!(store.keys_revision().await.unwrap(), before);
    }
    // A new project with the id of a deleted one is another project.
    db.project("a").await;
    assert_eq!(of().await, ["b"]);
    store.project_delete(&projects[2]).await.unwrap();
    assert_eq!(of().await, Vec::<String>::new());
    assert_eq!(store.key_get(&key.id).await.unwrap(), None);
}

async fn names_are_known_by_id(db: &Db) {
    let store = &db.store;
    let first = store.key_put(admin("first", "1")).await.unwrap();
    let second = store.key_put(admin("second", "2")).await.unwrap();
    store.key_revoke(None, &first.id).await.unwrap();
    let names = ok(store.key_names(&[&first.id, "none", &second.id])).await;
    let name = |id: &str| names.get(id).map(|name| name.name.as_str());
    assert_eq!(name(&first.id), Some("first"));
    assert_eq!(name(&second.id), Some("second"));
    assert_eq!((name("none"), names.len()), (None, 2));
    assert_eq!(store.key_names(&[]).await.unwrap().len(), 0);
    assert_eq!(
        store.key_named(None, "first").await.unwrap(),
        Some(first.id)
    );
    assert_eq!(store.key_named(None, "none").await.unwrap(), None);
}
