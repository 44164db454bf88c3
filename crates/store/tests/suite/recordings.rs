//! Temporary recordings of bodies.

use std::{collections::HashMap, time::Duration};

use model::{ProjectId, ServerKey};

use crate::support::{Db, server};

on_both!(a_server_has_one_recording_until_its_end);

fn key(owner: Option<&ProjectId>) -> ServerKey {
    ServerKey {
        owner: owner.cloned(),
        name: server("time"),
    }
}

async fn a_server_has_one_recording_until_its_end(db: &Db) {
    let store = &db.store;
    let (of_file, of_project) = (key(None), key(Some(&db.project("p").await)));
    let later = |seconds| store::now() + Duration::from_secs(seconds);
    store.recording_put(&of_file, later(60)).await.unwrap();
    let (soon, late) = (later(120), later(240));
    store.recording_put(&of_project, soon).await.unwrap();
    store.recording_put(&of_project, late).await.unwrap();
    let list = db.another().await.recording_list().await.unwrap();
    assert_eq!((list.len(), list.get(&of_project)), (2, Some(&late)));
    store.recording_delete(&of_project).await.unwrap();
    store.recording_delete(&of_project).await.unwrap();
    let left = store.recording_list().await.unwrap();
    assert_eq!(left.keys().collect::<Vec<_>>(), [&of_file]);

    let over = store::now() - Duration::from_secs(1);
    store.recording_put(&of_file, over).await.unwrap();
    assert_eq!(store.recording_list().await.unwrap(), HashMap::new());
    store.recording_prune().await.unwrap();
}
