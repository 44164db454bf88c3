//! Conversations with agents.

use model::ProjectId;
use store::{Page, new_id};

use crate::support::{Db, ok};

on_both!(
    a_conversation_comes_back_to_the_letter,
    of_two_turns_at_once_one_is_kept,
    conversations_of_two_projects_are_apart,
    a_project_takes_its_conversations_with_it,
);

/// A body that a database could change: the keys are not sorted, the number would be rounded, and some characters are
/// escaped although JSON does not require it.
const BODY: &str = r#"{"z":1,"a":12345678901234567890.10, "text":"Zürich, ☃ \u2603 / \/"}"#;

async fn a_conversation_comes_back_to_the_letter(db: &Db) {
    let store = &db.store;
    let project = db.project("p").await;
    for scope in [None, Some(&project)] {
        let made = ok(store.conversation_put(&new_id(), scope, "Soup?", BODY)).await;
        assert_eq!(made.project_id.as_deref(), scope.map(ProjectId::as_str));
        let got = store.conversation_get(scope, &made.id).await.unwrap();
        assert_eq!((&got.row, got.body.as_str()), (&made, BODY));
        let saved = ok(store.conversation_save(scope, &made.id, made.revision, "{}")).await;
        assert_eq!(saved.revision, made.revision + 1);
        assert!(saved.updated_at > made.updated_at);
        store.conversation_remove(scope, &made.id).await.unwrap();
        let gone = store.conversation_remove(scope, &made.id).await;
        assert_error!(gone, NotFound);
    }
    let nul = store.conversation_put(&new_id(), None, "a\0b", "{}").await;
    assert_error!(nul, Invalid);
}

async fn of_two_turns_at_once_one_is_kept(db: &Db) {
    let store = &db.store;
    let made = ok(store.conversation_put(&new_id(), None, "t", "0")).await;
    let (one, other) = tokio::join!(
        store.conversation_save(None, &made.id, made.revision, "1"),
        store.conversation_save(None, &made.id, made.revision, "2"),
    );
    assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    let late = store
        .conversation_save(None, &made.id, made.revision, "3")
        .await;
    assert_error!(late, Conflict);
    let body = store.conversation_get(None, &made.id).await.unwrap().body;
    assert_eq!(body, if one.is_ok() { "1" } else { "2" });
}

async fn conversations_of_two_projects_are_apart(db: &Db) {
    let store = &db.store;
    let (one, other) = (db.project("one").await, db.project("other").await);
    let mut ids = Vec::new();
    for n in 0..3 {
        let title = format!("title {n}");
        let made = store
            .conversation_put(&new_id(), Some(&one), &title, "{}")
            .await;
        ids.push(made.unwrap().id);
    }
    for scope in [None, Some(&other)] {
        let foreign = store.conversation_get(scope, &ids[0]).await;
        assert_error!(foreign, NotFound);
        let saved = store.conversation_save(scope, &ids[0], 1, "{}").await;
        assert_error!(saved, NotFound);
    }
    let first = ok(store.conversation_list(Some(&one), &Page::first(2))).await;
    assert_eq!(
        first.iter().map(|row| &row.id).collect::<Vec<_>>(),
        [&ids[2], &ids[1]]
    );
    let rest = Page::after(&first[1].id, 2);
    let rest = store.conversation_list(Some(&one), &rest).await.unwrap();
    assert_eq!(
        rest.iter().map(|row| &row.id).collect::<Vec<_>>(),
        [&ids[0]]
    );
    let none = store
        .conversation_list(Some(&other), &Page::default())
        .await;
    assert_eq!(none.unwrap(), []);
}

async fn a_project_takes_its_conversations_with_it(db: &Db) {
    let store = &db.store;
    let project = db.project("p").await;
    let made = ok(store.conversation_put(&new_id(), Some(&project), "t", "{}")).await;
    store.project_delete(&project).await.unwrap();
    assert_eq!(
        store
            .conversation_list(None, &Page::default())
            .await
            .unwrap(),
        []
    );
    let gone = store.conversation_get(Some(&project), &made.id).await;
    assert_error!(gone, NotFound);
    let nobody = store
        .conversation_put(&new_id(), Some(&project), "t", "{}")
        .await;
    assert_error!(nobody, NotFound);
}
