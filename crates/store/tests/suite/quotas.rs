//! The quotas of a project.

use store::{Error, MAX_OF_A_PROJECT};

use crate::support::{Db, new_key, new_server, secret};

on_both!(a_project_has_a_bounded_number_of_things);

fn is_full<T: std::fmt::Debug>(put: store::Result<T>, what: &str) {
    let error = put.unwrap_err();
    assert!(matches!(&error, Error::Conflict { .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains(&format!("the project has 500 {what}")),
        "{text}"
    );
}

async fn a_project_has_a_bounded_number_of_things(db: &Db) {
    let (one, other) = (db.project("one").await, db.project("other").await);
    let secret = |n: i64, version| secret(&format!("S{n}"), version, &[1]);
    let server = |n: i64| new_server(&format!("s{n}"));
    let store = &db.store;
    for n in 0..MAX_OF_A_PROJECT {
        store.secret_put(&one, &secret(n, 1)).await.unwrap();
        store.server_put(&one, &server(n)).await.unwrap();
    }
    let last = MAX_OF_A_PROJECT;
    is_full(store.secret_put(&one, &secret(last, 1)).await, "secrets");
    is_full(store.server_put(&one, &server(last)).await, "servers");
    let manifest = serde_json::json!({});
    let servers = [server(last)];
    let product = store.product_install(&one, "p", "1", &manifest, &servers);
    is_full(product.await, "servers");
    assert_eq!(store.secret_all(&one).await.unwrap().len(), 500);
    assert_eq!(store.server_list(&one).await.unwrap().len(), 500);
    // At the limit, replacing works, other projects have room, and removing makes room.
    store.secret_put(&one, &secret(0, 2)).await.unwrap();
    store.server_put(&one, &server(0)).await.unwrap();
    store.secret_put(&other, &secret(last, 1)).await.unwrap();
    store.secret_delete(&one, "S0").await.unwrap();
    store.secret_put(&one, &secret(last, 1)).await.unwrap();

    let key = async |n: i64| {
        let hash = format!("hash{n}");
        store.key_put(new_key(Some(&one), &hash)).await
    };
    let first = key(0).await.unwrap();
    for n in 1..MAX_OF_A_PROJECT {
        key(n).await.unwrap();
    }
    is_full(key(last).await, "keys");
    store.key_revoke(Some(&one), &first.id).await.unwrap();
    key(last).await.unwrap();
}
