//! Secrets, data keys and the master key.

use model::ProjectId;
use store::Page;

use crate::support::{Db, ok, project, secret};

on_both!(
    secrets,
    u13_secrets_of_the_configuration_file,
    two_writers_of_a_secret,
    secrets_of_two_projects_are_apart,
    the_master_key_is_set_once,
    rotation,
    a_rotation_misses_no_data_key,
);

async fn secrets(db: &Db) {
    let store = &db.store;
    let id = db.project("p").await;
    let first = ok(store.secret_put(&id, &secret("B", 1, b"\0one\xff"))).await;
    assert_eq!((first.name.as_str(), first.version), ("B", 1));
    let second = ok(store.secret_put(&id, &secret("B", 2, b"two"))).await;
    assert_eq!((second.version, second.created_at), (2, first.created_at));
    store.secret_put(&id, &secret("A", 1, b"")).await.unwrap();

    assert_eq!(
        store.secret_get(&id, "B").await.unwrap(),
        secret("B", 2, b"two")
    );
    let all = store.secret_all(&id).await.unwrap();
    assert_eq!(all, [secret("A", 1, b""), secret("B", 2, b"two")]);
    let page = store.secret_list(&id, &Page::after("A", 5)).await.unwrap();
    assert_eq!(page, [second]);
    let shown = format!("{all:?}");
    assert!(
        shown.contains("\"B\"") && !shown.contains("116, 119, 111"),
        "{shown}"
    );

    for stale in [1, 2, 4] {
        let result = store.secret_put(&id, &secret("B", stale, b"stale")).await;
        assert_error!(result, Conflict);
    }
    // The predecessor of this version does not exist.
    assert_error!(store.secret_put(&id, &secret("C", 2, b"x")).await, Conflict);
    assert_error!(
        store
            .secret_put(&project("none"), &secret("A", 1, b"x"))
            .await,
        NotFound
    );

    store.secret_delete(&id, "A").await.unwrap();
    assert_error!(store.secret_delete(&id, "A").await, NotFound);
    assert_error!(store.secret_get(&id, "A").await, NotFound);
}

async fn u13_secrets_of_the_configuration_file(db: &Db) {
    let store = &db.store;
    let first = ok(store.config_secret_put(&secret("B", 0, b"\0one\xff"))).await;
    assert_eq!((first.name.as_str(), first.version), ("B", 1));
    let second = ok(store.config_secret_put(&secret("B", 0, b"two"))).await;
    assert_eq!((second.version, second.created_at), (2, first.created_at));
    ok(store.config_secret_put(&secret("A", 0, b"a"))).await;
    let all = store.config_secret_all().await.unwrap();
    assert_eq!(all, [secret("A", 1, b"a"), secret("B", 2, b"two")]);
    let page = store.config_secret_list(&Page::after("A", 5)).await;
    assert_eq!(page.unwrap(), [second]);
    store.config_secret_delete("A").await.unwrap();
    assert_error!(store.config_secret_delete("A").await, NotFound);

    for number in 1..store::MAX_CONFIG_SECRETS {
        let name = format!("N{number}");
        ok(store.config_secret_put(&secret(&name, 0, b"x"))).await;
    }
    let many = store.config_secret_put(&secret("MANY", 0, b"x")).await;
    assert_error!(many, Conflict);
    ok(store.config_secret_put(&secret("B", 0, b"three"))).await;
}

async fn two_writers_of_a_secret(db: &Db) {
    let id = db.project("p").await;
    let other = db.another().await;
    for version in 1..=10 {
        let (mine, theirs) = (
            secret("K", version, b"mine"),
            secret("K", version, b"theirs"),
        );
        let (first, second) = tokio::join!(
            db.store.secret_put(&id, &mine),
            other.secret_put(&id, &theirs)
        );
        let (won, lost) = if first.is_ok() {
            (mine, second)
        } else {
            (theirs, first)
        };
        assert_error!(lost, Conflict);
        assert_eq!(db.store.secret_get(&id, "K").await.unwrap(), won);
    }
}

async fn secrets_of_two_projects_are_apart(db: &Db) {
    let store = &db.store;
    let (a, b) = (db.project("a").await, db.project("b").await);
    store.secret_put(&a, &secret("K", 1, b"a")).await.unwrap();
    assert_error!(store.secret_get(&b, "K").await, NotFound);
    assert_error!(store.secret_delete(&b, "K").await, NotFound);
    assert_error!(store.secret_put(&b, &secret("K", 2, b"b")).await, Conflict);
    assert_eq!(store.secret_all(&b).await.unwrap(), []);
}

async fn the_master_key_is_set_once(db: &Db) {
    let store = &db.store;
    assert_eq!(store.master_get().await.unwrap(), None);
    let first = store.master_set_if_none("m1", b"check 1").await.unwrap();
    let again = store.master_set_if_none("m2", b"check 2").await.unwrap();
    assert_eq!(first, again);
    assert_eq!(
        (first.key_id.as_str(), &first.sealed_check[..]),
        ("m1", &b"check 1"[..])
    );
    assert!(!format!("{first:?}").contains("99, 104"), "{first:?}");
}

async fn rotation(db: &Db) {
    let (a, b) = (db.project("a").await, db.project("b").await);
    let store = &db.store;
    let result = store.project_data_key_set_if_none(&a, "m1", b"a1").await;
    assert_error!(result, Conflict);
    store.master_set_if_none("m1", b"check").await.unwrap();
    assert_eq!(store.project_data_key(&a).await.unwrap(), None);
    let key = ok(store.project_data_key_set_if_none(&a, "m1", b"a1")).await;
    assert_eq!(key, b"a1");
    let key = ok(store.project_data_key_set_if_none(&a, "m1", b"late")).await;
    assert_eq!(key, b"a1", "a data key is never replaced");
    assert_error!(store.project_data_key(&project("none")).await, NotFound);

    let keys = store.master_data_keys().await.unwrap();
    assert_eq!(keys, [(a.clone(), b"a1".to_vec())]);
    let rewrapped = [(a.clone(), b"a2".to_vec())];

    // With too few data keys, too many, or the wrong old key, nothing changes.
    assert_error!(
        store.master_rotate("m1", "m2", b"c", &[], None).await,
        Conflict
    );
    let both = [(a.clone(), b"a2".to_vec()), (b.clone(), b"b2".to_vec())];
    assert_error!(
        store.master_rotate("m1", "m2", b"c", &both, None).await,
        Conflict
    );
    assert_error!(
        store
            .master_rotate("m0", "m2", b"c", &rewrapped, None)
            .await,
        Conflict
    );
    assert_eq!(store.master_get().await.unwrap().unwrap().key_id, "m1");
    assert_eq!(store.master_data_keys().await.unwrap(), keys);

    ok(store.master_rotate("m1", "m2", b"check 2", &rewrapped, None)).await;
    assert_eq!(
        store.master_get().await.unwrap().unwrap().sealed_check,
        b"check 2"
    );
    assert_eq!(store.master_data_keys().await.unwrap(), rewrapped);
    // A process with the old master key can no longer wrap keys with it.
    let result = store.project_data_key_set_if_none(&b, "m1", b"b1").await;
    assert_error!(result, Conflict);
}

/// Returns the same data keys, wrapped with another master key.
fn rewrap(keys: Vec<(ProjectId, Vec<u8>)>, master: &str) -> Vec<(ProjectId, Vec<u8>)> {
    let keys = keys.into_iter();
    keys.map(|(id, _)| (id, master.as_bytes().to_vec()))
        .collect()
}

/// A data key made during a rotation is wrapped with the new key, or refused, or makes the rotation fail. No data key
/// is left that no master key can open.
async fn a_rotation_misses_no_data_key(db: &Db) {
    let store = &db.store;
    let other = db.another().await;
    store.master_set_if_none("m0", b"").await.unwrap();
    for round in 0..20 {
        let id = db.project(&format!("p{round}")).await;
        let (old, new) = (format!("m{round}"), format!("m{}", round + 1));
        let keys = store.master_data_keys().await.unwrap();
        assert!(
            keys.iter().all(|(_, key)| key == old.as_bytes()),
            "{keys:?}"
        );
        let rewrapped = rewrap(keys, &new);
        let (rotated, made) = tokio::join!(
            store.master_rotate(&old, &new, b"", &rewrapped, None),
            other.project_data_key_set_if_none(&id, &old, old.as_bytes()),
        );
        // Either the rotation or the new data key succeeded, and the other request got an error.
        if rotated.is_ok() {
            assert_error!(made, Conflict);
        } else {
            assert_error!(rotated, Conflict);
            made.unwrap();
            let keys = store.master_data_keys().await.unwrap();
            let rewrapped = rewrap(keys, &new);
            ok(store.master_rotate(&old, &new, b"", &rewrapped, None)).await;
        }
    }
}
