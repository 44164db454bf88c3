//! Hosted servers and their events.

use model::ProjectId;
use serde_json::{Value, json};
use store::{Error, NewEvent, NewRegistration, Page, RegistrationRow, Result, Store, new_id};

use crate::support::{Db, new_server, ok, project, seen, server, snapshot};

on_both!(
    hosted_servers,
    h01_the_row_of_a_hosted_server,
    a_name_twice,
    a_name_twice_at_once,
    a_name_that_a_server_of_the_project_has,
    hosted_servers_of_two_projects_are_apart,
    h01_the_status_and_what_is_left_are_apart,
    hosted_servers_are_listed_by_age,
    a_project_takes_its_hosted_servers_with_it,
    rows_of_other_kinds_are_left_alone,
    what_happened_to_a_hosted_server,
);

async fn put(store: &Store, project: Option<&ProjectId>, name: &str) -> Result<RegistrationRow> {
    let new = NewRegistration {
        project,
        name: &server(name),
        status: "ready",
        image: "docker.io/mcp/time:1",
        config: &json!({"stdio_bridge": true, "text": "Zürich, ☃"}),
    };
    store.registration_put(new).await
}

/// Runs a statement as another program would, knowing only the tables.
async fn run(db: &Db, text: &'static str) {
    use sqlx::Connection as _;

    match &db.location {
        store::Location::Sqlite(path) => {
            let path = format!("sqlite://{}", path.display());
            let mut conn = sqlx::SqliteConnection::connect(&path).await.unwrap();
            let text = text.replace("kb.", "");
            sqlx::raw_sql(sqlx::AssertSqlSafe(text))
                .execute(&mut conn)
                .await
                .unwrap();
        }
        store::Location::Postgres(url) => {
            let mut conn = sqlx::PgConnection::connect(url).await.unwrap();
            sqlx::raw_sql(text).execute(&mut conn).await.unwrap();
        }
    }
}

async fn hosted_servers(db: &Db) {
    let store = &db.store;
    let id = db.project("p").await;
    for project in [None, Some(&id)] {
        let row = put(store, project, "time").await.unwrap();
        assert_eq!(row.project_id.as_deref(), project.map(ProjectId::as_str));
        assert_eq!(store.registration_get(project, &row.id).await.unwrap(), row);

        let config = json!({"restart_policy": "no"});
        let set = ok(store.registration_set_config(project, &row.id, "other:2", &config)).await;
        assert_eq!((&set.id, &set.name), (&row.id, &row.name));
        assert_eq!((&set.image[..], &set.config), ("other:2", &config));
        assert!(set.updated_at > row.updated_at && set.created_at == row.created_at);

        ok(store.registration_set_status(&row.id, "stopped", "ready")).await;
        let stopped = store.registration_get(project, &row.id).await.unwrap();
        assert_eq!(
            (&stopped.status[..], stopped.updated_at),
            ("stopped", set.updated_at)
        );

        let gone = store.registration_delete(project, &row.id).await.unwrap();
        assert_eq!(gone, stopped);
        assert_error!(store.registration_get(project, &row.id).await, NotFound);
        assert_error!(store.registration_delete(project, &row.id).await, NotFound);
        assert_error!(
            store.registration_set_status(&row.id, "x", "x").await,
            NotFound
        );
        let set = store.registration_set_config(project, &row.id, "x", &config);
        assert_error!(set.await, NotFound);
        // The name is free again, and the new server has a different id.
        let again = put(store, project, "time").await.unwrap();
        assert_ne!(again.id, row.id);
    }
    assert_error!(put(store, Some(&project("none")), "time").await, NotFound);
}

/// The status is the current one. The state for the next start is kept separately, and a status that another program
/// or an earlier version writes replaces both.
async fn h01_the_status_and_what_is_left_are_apart(db: &Db) {
    let store = &db.store;
    let row = put(store, None, "time").await.unwrap();
    let left = async || {
        let (left, _) = store.registration_left(&row.id).await.unwrap();
        let all = store.registration_left_all().await.unwrap();
        assert_eq!(all.get(&row.id), Some(&left));
        left
    };
    assert_eq!(left().await, "ready");
    ok(store.registration_set_status(&row.id, "stopping", "ready")).await;
    ok(store.registration_set_status(&row.id, "stopped", "ready")).await;
    let stopped = store.registration_get(None, &row.id).await.unwrap();
    assert_eq!(
        (stopped.status.as_str(), left().await.as_str()),
        ("stopped", "ready")
    );
    run(
        db,
        "UPDATE kb.agent_workspaces SET status = 'failed' WHERE name = 'time'",
    )
    .await;
    assert_eq!(left().await, "failed");
}

async fn h01_the_row_of_a_hosted_server(db: &Db) {
    let row = put(&db.store, None, "time").await.unwrap();
    // Containers, cgroups and volumes are named after the id.
    assert!(
        row.id
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'f' | b'0'..=b'9' | b'-'))
    );
    let change = "UPDATE kb.agent_workspaces SET image = 'seen'
                  WHERE container_type = 'mcp_server' AND name = 'time' AND status = 'ready'";
    run(db, change).await;
    let row = db.store.registration_get(None, &row.id).await.unwrap();
    assert_eq!(row.image, "seen");
}

async fn a_name_twice(db: &Db) {
    let store = &db.store;
    let id = db.project("p").await;
    for project in [None, Some(&id)] {
        let row = put(store, project, "time").await.unwrap();
        let Err(error @ Error::Conflict { .. }) = put(store, project, "time").await else {
            panic!("two of one name");
        };
        assert!(error.to_string().contains("\"time\""), "{error}");
        assert_eq!(store.registration_get(project, &row.id).await.unwrap(), row);
    }
    assert_eq!(store.registration_list_all().await.unwrap().len(), 2);
}

async fn a_name_twice_at_once(db: &Db) {
    let other = db.another().await;
    let id = db.project("p").await;
    for project in [None, Some(&id)] {
        for round in 0..10 {
            let name = format!("time-{round}");
            let (first, second) =
                tokio::join!(put(&db.store, project, &name), put(&other, project, &name));
            let lost = if first.is_ok() { second } else { first };
            assert_error!(lost, Conflict);
        }
    }
    assert_eq!(db.store.registration_list_all().await.unwrap().len(), 20);
}

async fn a_name_that_a_server_of_the_project_has(db: &Db) {
    let store = &db.store;
    let (id, other) = (db.project("p").await, db.project("other").await);
    store.server_put(&id, &new_server("time")).await.unwrap();
    assert_error!(put(store, Some(&id), "time").await, Conflict);
    put(store, Some(&other), "time").await.unwrap();
    put(store, None, "time").await.unwrap();

    // In the other direction, a project's server cannot take the name of a registered one.
    put(store, Some(&id), "hosted").await.unwrap();
    assert_error!(store.server_put(&id, &new_server("hosted")).await, Conflict);
    let servers = [new_server("free"), new_server("hosted")];
    let manifest = json!({});
    let install = store.product_install(&id, "prod", "1", &manifest, &servers);
    assert_error!(install.await, Conflict);
    assert_eq!(store.server_list(&id).await.unwrap().len(), 1);
    ok(store.server_put(&other, &new_server("hosted"))).await;
}

async fn hosted_servers_of_two_projects_are_apart(db: &Db) {
    let store = &db.store;
    let (a, b) = (db.project("a").await, db.project("b").await);
    let mine = put(store, Some(&a), "time").await.unwrap();
    let nobodys = put(store, None, "time").await.unwrap();
    let config = json!({});
    for id in [&mine.id, &nobodys.id] {
        assert_error!(store.registration_get(Some(&b), id).await, NotFound);
        let set = store.registration_set_config(Some(&b), id, "x", &config);
        assert_error!(set.await, NotFound);
        assert_error!(store.registration_delete(Some(&b), id).await, NotFound);
    }
    let all = store.registration_list_all().await.unwrap();
    assert_eq!(all, [mine.clone(), nobodys]);
    assert_eq!(store.registration_get(None, &mine.id).await.unwrap(), mine);
}

async fn hosted_servers_are_listed_by_age(db: &Db) {
    let id = db.project("p").await;
    let mut expect = Vec::new();
    for n in 0..7 {
        let owner = (n % 2 == 0).then_some(&id);
        expect.push(put(&db.store, owner, &format!("s{n}")).await.unwrap());
    }
    assert_eq!(db.store.registration_list_all().await.unwrap(), expect);
}

async fn a_project_takes_its_hosted_servers_with_it(db: &Db) {
    let store = &db.store;
    for name in ["a", "b"] {
        let id = db.project(name).await;
        put(store, Some(&id), "time").await.unwrap();
    }
    let nobodys = put(store, None, "time").await.unwrap();
    // If deleting a project only cleared the project id, both would be called `time` and belong to no project.
    for name in ["a", "b"] {
        store.project_delete(&project(name)).await.unwrap();
    }
    assert_eq!(store.registration_list_all().await.unwrap(), [nobodys]);

    // Deleting a server deletes its settings and its snapshot, but not its tool pins.
    let id = db.project("c").await;
    for owner in [None, Some(&id)] {
        let row = put(store, owner, "new").await.unwrap();
        let name = server("new");
        let seen = [seen("now", "d", "{}")];
        store.pins_seen(owner, &name, &seen).await.unwrap();
        ok(store.snapshot_put(owner, snapshot(&name, "c", "{}"))).await;
        store.registration_delete(owner, &row.id).await.unwrap();
        assert_eq!(store.pin_list(owner, &name).await.unwrap().len(), 1);
        assert_eq!(store.snapshot_list(owner).await.unwrap(), []);
    }
}

async fn rows_of_other_kinds_are_left_alone(db: &Db) {
    let store = &db.store;
    let id = db.project("p").await;
    run(
        db,
        "INSERT INTO kb.agent_workspaces VALUES
             ('one', 'p', 'time', 'agent', 's', 'i', '{}', '2026-01-01T00:00:00+00:00', '2026-01-01T00:00:00+00:00'),
             ('two', 'p', 'time', 'agent', 's', 'i', '{}', '2026-01-01T00:00:00+00:00', '2026-01-01T00:00:00+00:00'),
             ('three', NULL, 'time', 'agent', 's', 'i', '{}', '2026-01-01T00:00:00+00:00', '2026-01-01T00:00:00+00:00')",
    )
    .await;
    let mine = put(store, Some(&id), "time").await.unwrap();
    assert_eq!(store.registration_list_all().await.unwrap(), [mine]);
    for project in [None, Some(&id)] {
        assert_error!(store.registration_get(project, "one").await, NotFound);
        assert_error!(store.registration_delete(project, "one").await, NotFound);
        let set = store.registration_set_config(project, "one", "x", &Value::Null);
        assert_error!(set.await, NotFound);
    }
    assert_error!(
        store.registration_set_status("one", "x", "x").await,
        NotFound
    );
    store.project_delete(&id).await.unwrap();
    // The rows remain, without their project. Changing their type makes them visible.
    let change = "UPDATE kb.agent_workspaces SET container_type = 'mcp_server', name = id
                  WHERE container_type = 'agent' AND status = 's' AND project_id IS NULL";
    run(db, change).await;
    assert_eq!(store.registration_list_all().await.unwrap().len(), 3);
}

async fn what_happened_to_a_hosted_server(db: &Db) {
    let store = &db.store;
    let id = db.project("p").await;
    let mine = put(store, Some(&id), "time").await.unwrap();
    let other = put(store, None, "time").await.unwrap();
    let mut details = Vec::new();
    for n in 0..25 {
        let detail = json!({
            "exit": {"code": n, "signal": null},
            "stderr": "☃ a line\nanother",
            "next_attempt_ms": 5_000,
        });
        for (row, project) in [(&mine, Some(&id)), (&other, None)] {
            let event = NewEvent {
                project,
                server: &row.id,
                kind: "crashed",
                detail: &detail,
            };
            store.event_add(event).await.unwrap();
        }
        details.insert(0, detail);
    }
    for (row, project) in [(&mine, Some(&id)), (&mine, None), (&other, None)] {
        let (mut seen, mut page) = (Vec::new(), Page::first(10));
        loop {
            let events = ok(store.event_list(project, Some(&row.id), &page)).await;
            assert!(events.iter().all(|event| event.server == row.id));
            seen.extend(events.iter().map(|event| event.detail.clone()));
            let Some(last) = events.last().filter(|_| events.len() == 10) else {
                break;
            };
            page = Page::after(last.id.as_str(), 10);
        }
        assert_eq!(seen, details, "newest first");
    }
    // A project sees no events of another project, and events remain after their server is removed.
    let list = async |project, id: &str| {
        let page = Page::default();
        store.event_list(project, Some(id), &page).await.unwrap()
    };
    assert_eq!(list(Some(&id), &other.id).await, []);
    assert_eq!(list(None, &new_id()).await, []);
    store.registration_delete(None, &other.id).await.unwrap();
    assert_eq!(list(None, &other.id).await.len(), 25);
}
