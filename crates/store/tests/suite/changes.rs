//! Change notifications between replicas.

use std::{collections::BTreeSet, time::Duration};

use model::ServerKey;
use sqlx::{Connection as _, Executor as _, PgConnection};
use store::{Sight, Store, Topic};

use crate::support::{Db, new_server, ok, project, secret, server};

async fn look(store: &Store, sight: &mut Sight) -> Vec<Topic> {
    let changed = store.change_list(sight).await.unwrap();
    changed.into_iter().collect()
}

fn of(id: &str) -> Topic {
    Topic::Project(project(id))
}

#[tokio::test]
async fn on_a_file_there_are_none() {
    let db = Db::sqlite().await;
    db.project("p").await;
    assert!(look(&db.store, &mut Sight::default()).await.is_empty());
}

#[tokio::test]
async fn a_change_is_told_once_and_of_its_project_only() {
    let db = Db::postgres().await;
    let store = &db.store;
    let (shop, mine) = (db.project("shop").await, db.project("mine").await);
    let mut sight = Sight::default();
    let all = look(store, &mut sight).await;
    assert_eq!(all, Topic::ALL, "nothing is known of before");
    assert!(look(store, &mut sight).await.is_empty());

    let mut hints = store.change_listen().await.unwrap().unwrap();
    store.server_put(&shop, &new_server("till")).await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), hints.next())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(look(store, &mut sight).await, [of("shop")]);
    assert!(look(store, &mut sight).await.is_empty());

    ok(store.secret_put(&mine, &secret("KEY", 1, &[1]))).await;
    assert_eq!(look(store, &mut sight).await, [of("mine")]);
    let till = ServerKey {
        owner: Some(shop.clone()),
        name: server("till"),
    };
    let later = store::now() + Duration::from_secs(60);
    store.recording_put(&till, later).await.unwrap();
    assert_eq!(look(store, &mut sight).await, [Topic::Recordings]);
    store.secret_delete(&mine, "KEY").await.unwrap();
    store.server_delete(&shop, &server("till")).await.unwrap();
    assert_eq!(look(store, &mut sight).await, [of("mine"), of("shop")]);
    ok(store.config_secret_put(&secret("KEY", 1, &[1]))).await;
    store.config_secret_delete("KEY").await.unwrap();
    assert_eq!(look(store, &mut sight).await, [Topic::Secrets]);
    // The project's keys and its registered servers are deleted too.
    store.project_delete(&shop).await.unwrap();
    let gone = [Topic::Keys, Topic::Servers, of("shop")];
    assert_eq!(look(store, &mut sight).await, gone);
}

/// Earlier versions watch one topic for all projects.
#[tokio::test]
async fn earlier_versions_are_told_too() {
    let db = Db::postgres().await;
    db.project("p").await;
    let database = db.database();
    let count = "SELECT COUNT(*) FROM kb.toolwharf_changes WHERE topic = 'projects'";
    assert!(database.number(count).await > 0.0);
}

#[tokio::test]
async fn that_old_changes_are_forgotten_is_no_change() {
    let db = Db::postgres().await;
    let store = &db.store;
    let database = db.database();
    let mut sight = Sight::default();
    look(store, &mut sight).await;
    db.project("p").await;
    assert_eq!(look(store, &mut sight).await, [of("p")]);
    database
        .run("UPDATE kb.toolwharf_changes SET at = at - INTERVAL '2 hours'")
        .await;
    store.change_prune().await.unwrap();
    let count = "SELECT COUNT(*) FROM kb.toolwharf_changes";
    assert!(database.number(count).await < 1.0);
    assert!(look(store, &mut sight).await.is_empty());
    db.project("q").await;
    assert_eq!(look(store, &mut sight).await, [of("q")]);
}

/// Changes become visible in the order of their commits, not of their numbers.
#[tokio::test]
async fn a_change_with_a_lower_number_that_is_committed_later_is_told() {
    let db = Db::postgres().await;
    let store = &db.store;
    for id in ["early", "late"] {
        db.project(id).await;
    }
    let database = db.database();
    let mut sight = Sight::default();
    look(store, &mut sight).await;
    let begin = async |id: &str| {
        let mut conn = PgConnection::connect(database.url()).await.unwrap();
        conn.execute("BEGIN").await.unwrap();
        sqlx::query("UPDATE kb.projects SET description = 'x' WHERE id = $1")
            .bind(id)
            .execute(&mut conn)
            .await
            .unwrap();
        conn
    };
    let mut lower = begin("early").await;
    let mut higher = begin("late").await;
    assert!(look(store, &mut sight).await.is_empty());
    higher.execute("COMMIT").await.unwrap();
    assert_eq!(look(store, &mut sight).await, [of("late")]);
    lower.execute("COMMIT").await.unwrap();
    assert_eq!(look(store, &mut sight).await, [of("early")]);
    assert!(look(store, &mut sight).await.is_empty());
}

#[tokio::test]
async fn all_is_read_anew_in_another_history_and_after_a_long_absence() {
    let db = Db::postgres().await;
    let store = &db.store;
    let database = db.database();
    let mut sight = Sight::default();
    look(store, &mut sight).await;
    db.project("p").await;
    assert_eq!(look(store, &mut sight).await, [of("p")]);
    let function = "CREATE OR REPLACE FUNCTION kb.toolwharf_timeline() RETURNS TEXT LANGUAGE sql AS $$ SELECT '00000002' $$";
    database.run(function).await;
    assert_eq!(look(store, &mut sight).await, Topic::ALL);
    assert!(look(store, &mut sight).await.is_empty());
    // The new timeline reuses the numbers.
    database
        .run("DELETE FROM kb.toolwharf_changes; ALTER TABLE kb.toolwharf_changes ALTER COLUMN id RESTART WITH 1; CREATE OR REPLACE FUNCTION kb.toolwharf_timeline() RETURNS TEXT LANGUAGE sql AS $$ SELECT '00000003' $$")
        .await;
    assert_eq!(look(store, &mut sight).await, Topic::ALL);
    db.project("q").await;
    let changed: BTreeSet<Topic> = store.change_list(&mut sight).await.unwrap();
    assert_eq!(changed, [of("q")].into());
}
