//! Projects, their servers, and products.

use model::ServerName;
use serde_json::json;
use store::{NewProject, NewServer, Page, ToolSetting, TransportKind};

use crate::support::{Db, new_key, new_server, ok, project, secret, seen, server, snapshot};

on_both!(
    projects,
    projects_are_paged,
    deleting_a_project_takes_all_of_it,
    servers,
    servers_of_two_projects_are_apart,
    all_servers_are_listed,
    products,
    a_product_takes_nobodys_server,
    two_installations_at_once,
    what_is_wrong_changes_nothing,
);

async fn projects(db: &Db) {
    let store = &db.store;
    let mut new = NewProject::new(project("p"));
    let put = store.project_put(&new).await.unwrap();
    assert!(put.created);
    assert_eq!((put.row.name.as_str(), put.row.enabled), ("p", true));

    new.description = "Zürich, ☃".to_owned();
    new.enabled = false;
    new.settings = json!({"naming": "preserve", "limits": [1, 2.5, null]});
    let put = store.project_put(&new).await.unwrap();
    assert!(!put.created);
    let row = store.project_get(&new.id).await.unwrap();
    assert_eq!(row, put.row);
    assert_eq!(row.settings, new.settings);
    assert_eq!((row.description, row.enabled), (new.description, false));
    assert!(row.updated_at > row.created_at);

    ok(store.project_ensure(&[project("q"), new.id.clone()])).await;
    assert_eq!(
        store.project_get(&new.id).await.unwrap().settings,
        new.settings
    );
    assert_eq!(store.project_get(&project("q")).await.unwrap().name, "q");

    assert_error!(store.project_get(&project("none")).await, NotFound);
    assert_error!(store.project_delete(&project("none")).await, NotFound);
}

async fn projects_are_paged(db: &Db) {
    let store = &db.store;
    // Sorted by bytes on both engines, regardless of the locale's rules for case and dashes.
    let ids = ["A-b", "Ab", "_", "a", "a-b", "aB", "ab", "b"].map(project);
    store.project_ensure(&ids).await.unwrap();
    let mut seen = Vec::new();
    let mut page = Page::first(3);
    loop {
        let rows = store.project_list(&page).await.unwrap();
        seen.extend(rows.iter().map(|row| row.id.clone()));
        let Some(last) = rows.last().filter(|_| rows.len() == 3) else {
            break;
        };
        page = Page::after(last.id.as_str(), 3);
    }
    assert_eq!(seen, ids);

    let many: Vec<_> = (0..1_005).map(|n| project(&format!("many-{n}"))).collect();
    store.project_ensure(&many).await.unwrap();
    let rows = store.project_list(&Page::first(u32::MAX)).await.unwrap();
    assert_eq!(rows.len(), 1_000);
}

async fn deleting_a_project_takes_all_of_it(db: &Db) {
    let (mine, other) = (db.project("mine").await, db.project("other").await);
    let store = &db.store;
    for id in [&mine, &other] {
        let name = server("time");
        store.server_put(id, &new_server("time")).await.unwrap();
        let servers = [new_server("from-product")];
        ok(store.product_install(id, "prod", "1", &json!({}), &servers)).await;
        let setting = ToolSetting::default();
        ok(store.tool_setting_put(id, &name, "now", &setting)).await;
        let seen = [seen("now", "d", "{}")];
        store.pins_seen(Some(id), &name, &seen).await.unwrap();
        ok(store.snapshot_put(Some(id), snapshot(&name, "c", "{}"))).await;
        ok(store.secret_put(id, &secret("KEY", 1, &[2]))).await;
        ok(store.key_put(new_key(Some(id), id.as_str()))).await;
    }
    store.project_delete(&mine).await.unwrap();

    for (id, count) in [(&mine, 0), (&other, 1)] {
        let name = server("time");
        assert_eq!(store.server_list(id).await.unwrap().len(), 2 * count);
        assert_eq!(store.product_list(id).await.unwrap().len(), count);
        assert_eq!(store.tool_setting_list(id).await.unwrap().len(), count);
        assert_eq!(store.pin_list(Some(id), &name).await.unwrap().len(), count);
        assert_eq!(store.snapshot_list(Some(id)).await.unwrap().len(), count);
        assert_eq!(store.secret_all(id).await.unwrap().len(), count);
        let keys = store.key_list(Some(id), &Page::default()).await.unwrap();
        assert_eq!(keys.len(), count);
    }
}

async fn servers(db: &Db) {
    let store = &db.store;
    let id = db.project("p").await;
    let mut new = new_server("time");
    let put = store.server_put(&id, &new).await.unwrap();
    assert!(put.created);
    assert_eq!(put.row.config, new.config);
    assert_eq!(put.row.product_id, None);

    new.transport = TransportKind::Http;
    new.config = json!({"url": "https://example.com/mcp"});
    let again = store.server_put(&id, &new).await.unwrap();
    assert!(!again.created);
    assert_eq!(again.row.id, put.row.id);
    assert_eq!(store.server_get(&id, &new.name).await.unwrap(), again.row);

    let off = ok(store.server_set_enabled(&id, &new.name, false)).await;
    assert!(!off.enabled);
    assert_eq!(store.server_list(&id).await.unwrap(), [off]);

    store.server_delete(&id, &new.name).await.unwrap();
    assert_error!(store.server_delete(&id, &new.name).await, NotFound);
    assert_error!(store.server_get(&id, &new.name).await, NotFound);
    assert_error!(
        store.server_set_enabled(&id, &new.name, true).await,
        NotFound
    );
    assert_error!(store.server_put(&project("none"), &new).await, NotFound);
}

async fn servers_of_two_projects_are_apart(db: &Db) {
    let store = &db.store;
    let (a, b) = (db.project("a").await, db.project("b").await);
    let name = server("time");
    store.server_put(&a, &new_server("time")).await.unwrap();
    assert_error!(store.server_get(&b, &name).await, NotFound);
    assert_error!(store.server_set_enabled(&b, &name, false).await, NotFound);
    assert_error!(store.server_delete(&b, &name).await, NotFound);
    store.server_put(&b, &new_server("time")).await.unwrap();
    store.server_delete(&b, &name).await.unwrap();
    assert!(store.server_get(&a, &name).await.unwrap().enabled);
}

async fn all_servers_are_listed(db: &Db) {
    for n in 0..3 {
        let id = db.project(&format!("p{n}")).await;
        let servers: Vec<NewServer> = (0..500).map(|n| new_server(&format!("s{n:03}"))).collect();
        ok(db
            .store
            .product_install(&id, "prod", "1", &json!({}), &servers))
        .await;
    }
    let all = db.store.server_list_all().await.unwrap();
    // The rows fill more than one page.
    assert_eq!(all.len(), 1_500);
    assert!(all.is_sorted_by_key(|row| (row.project_id.clone(), row.name.clone())));
}

async fn products(db: &Db) {
    let id = db.project("p").await;
    let manifest = json!({"mcp": {"servers": {}}});
    let servers = ["one", "two"].map(new_server);
    let store = &db.store;
    let first = ok(store.product_install(&id, "prod", "1", &manifest, &servers)).await;
    assert!(first.product.created);
    assert_eq!(first.product.row.manifest, manifest);
    assert_eq!(first.servers, store.server_list(&id).await.unwrap());
    let product = Some(first.product.row.id.clone());
    assert!(first.servers.iter().all(|row| row.product_id == product));

    // An update keeps ids and what a user switched off, and removes servers that the new version lacks.
    ok(store.server_set_enabled(&id, &server("two"), false)).await;
    let servers = ["three", "two"].map(new_server);
    let second = ok(store.product_install(&id, "prod", "2", &manifest, &servers)).await;
    assert!(!second.product.created);
    assert_eq!(second.product.row.version, "2");
    assert_eq!(second.removed, ["one"].map(server));
    let rows = store.server_list(&id).await.unwrap();
    assert_eq!(names(&rows), ["three", "two"]);
    assert_eq!(
        (&rows[1].id, rows[1].enabled),
        (&first.servers[1].id, false)
    );
    assert_eq!(
        store.product_get(&id, "prod").await.unwrap(),
        second.product.row
    );

    assert_error!(store.server_delete(&id, &server("two")).await, Conflict);
    assert_error!(store.server_put(&id, &new_server("two")).await, Conflict);

    let gone = store.product_uninstall(&id, "prod").await.unwrap();
    assert_eq!(gone, ["three", "two"].map(server));
    assert_eq!(store.server_list(&id).await.unwrap(), []);
    assert_error!(store.product_uninstall(&id, "prod").await, NotFound);
    assert_error!(store.product_get(&id, "prod").await, NotFound);
}

async fn a_product_takes_nobodys_server(db: &Db) {
    let id = db.project("p").await;
    let store = &db.store;
    store.server_put(&id, &new_server("mine")).await.unwrap();
    let theirs = [new_server("theirs")];
    ok(store.product_install(&id, "a", "1", &json!({}), &theirs)).await;
    let before = store.server_list(&id).await.unwrap();
    for taken in ["mine", "theirs"] {
        let servers = [new_server("new"), new_server(taken)];
        let result = store
            .product_install(&id, "b", "1", &json!({}), &servers)
            .await;
        assert_error!(result, Conflict);
    }
    assert_eq!(store.server_list(&id).await.unwrap(), before);
    assert_error!(store.product_get(&id, "b").await, NotFound);
}

async fn two_installations_at_once(db: &Db) {
    let store = &db.store;
    let id = db.project("p").await;
    let other = db.another().await;
    for round in 0..10 {
        let version = round.to_string();
        let (a, b) = (["x", "a"].map(new_server), ["x", "b"].map(new_server));
        // Both install the same product: the installations take turns, and the servers of the later one remain.
        let manifest = json!({});
        let (first, second) = tokio::join!(
            store.product_install(&id, "same", &version, &manifest, &a),
            other.product_install(&id, "same", &version, &manifest, &b),
        );
        first.unwrap();
        second.unwrap();
        let rows = store.server_list(&id).await.unwrap();
        assert!(
            [["a", "x"], ["b", "x"]]
                .iter()
                .any(|set| names(&rows) == set),
            "{rows:?}"
        );
        store.product_uninstall(&id, "same").await.unwrap();

        // Two products with a server of the same name: exactly one gets it.
        let (first, second) = tokio::join!(
            store.product_install(&id, "one", &version, &manifest, &a),
            other.product_install(&id, "two", &version, &manifest, &b),
        );
        let (name, lost) = if first.is_ok() {
            ("one", second)
        } else {
            ("two", first)
        };
        assert_error!(lost, Conflict);
        assert_eq!(store.server_list(&id).await.unwrap().len(), 2);
        store.product_uninstall(&id, name).await.unwrap();
    }
}

async fn what_is_wrong_changes_nothing(db: &Db) {
    let store = &db.store;
    let id = db.project("p").await;
    let servers = ["same", "same"].map(new_server);
    let result = store
        .product_install(&id, "prod", "1", &json!({}), &servers)
        .await;
    assert_error!(result, Invalid);
    let mut bad = new_server("bad");
    bad.config = json!({"env": {"KEY": "a\0b"}});
    let servers = [new_server("good"), bad];
    let result = store
        .product_install(&id, "prod", "1", &json!({}), &servers)
        .await;
    assert_error!(result, Invalid);
    let result = store
        .product_install(&project("none"), "prod", "1", &json!({}), &[])
        .await;
    assert_error!(result, NotFound);
    assert_eq!(store.server_list_all().await.unwrap(), []);
    assert_eq!(store.product_list(&id).await.unwrap(), []);
}

fn names(rows: &[store::ServerRow]) -> Vec<&str> {
    rows.iter()
        .map(|row| ServerName::as_str(&row.name))
        .collect()
}
