//! Tool settings, pins, and catalog snapshots.

use store::{Page, Seen, ToolSetting};

use crate::support::{self, Db, new_server, ok, project, server, snapshot};

on_both!(
    settings,
    pins,
    two_that_see_the_same_tools,
    a_pin_belongs_to_a_configuration,
    several_are_approved_or_none,
    snapshots,
    deleting_a_server_keeps_its_pins_alone,
);

fn seen(tool: &str, version: &str) -> Seen {
    // White space, order and numbers are part of a pinned definition.
    let definition = format!("{{ \"z\": 1.0, \"a\": 12345678901234567890, \"v\": {version:?} }}");
    support::seen(tool, &format!("sha256:{version}"), &definition)
}

async fn settings(db: &Db) {
    let store = &db.store;
    let id = db.project("p").await;
    let name = server("time");
    let off = ToolSetting {
        enabled: Some(false),
        ..ToolSetting::default()
    };
    ok(store.tool_setting_put(&id, &name, "now", &off)).await;
    let renamed = ToolSetting {
        enabled: None,
        alias: Some("jetzt".to_owned()),
        description: Some("die Zeit ⏰".to_owned()),
    };
    let row = ok(store.tool_setting_put(&id, &name, "now", &renamed)).await;
    assert_eq!((row.enabled, &row.alias), (None, &renamed.alias));
    // Another process reads the same setting.
    let list = db.another().await.tool_setting_list(&id).await.unwrap();
    assert_eq!(list, [row]);

    let other = db.project("other").await;
    assert_error!(
        store.tool_setting_delete(&other, &name, "now").await,
        NotFound
    );
    store.tool_setting_delete(&id, &name, "now").await.unwrap();
    assert_error!(store.tool_setting_delete(&id, &name, "now").await, NotFound);
    let result = store
        .tool_setting_put(&project("none"), &name, "now", &off)
        .await;
    assert_error!(result, NotFound);
}

async fn pins(db: &Db) {
    let store = &db.store;
    let id = db.project("p").await;
    let name = server("time");
    for scope in [None, Some(&id)] {
        let see = async |tools: &[Seen]| store.pins_seen(scope, &name, tools).await.unwrap();
        let both = [seen("b", "1"), seen("a", "1")];
        let first = see(&both).await;
        assert_eq!(first.len(), 2);
        assert_eq!(first[0].tool, "a");
        assert_eq!(first[0].definition, both[1].definition);
        assert_eq!(first[0].project_id.as_deref(), scope.map(|id| id.as_str()));
        assert_eq!(see(&both).await, first, "the same again changes nothing");

        // A changed definition waits for approval. A later change replaces it. If the server lists the pinned
        // definition again, nothing waits.
        let waiting = see(&[seen("a", "2")]).await;
        assert_eq!(waiting[0].digest, "sha256:1");
        assert_eq!(waiting[0].pending_digest.as_deref(), Some("sha256:2"));
        assert_eq!(
            waiting[0].pending_definition,
            Some(seen("a", "2").definition)
        );
        assert!(waiting[0].changed_at >= Some(first[0].first_seen_at));
        assert_eq!(waiting[1], first[1]);
        assert_eq!(see(&[seen("a", "2")]).await, waiting);
        let other = see(&[seen("a", "3")]).await;
        assert_eq!(other[0].pending_digest.as_deref(), Some("sha256:3"));
        assert_eq!(see(&both).await, first);

        see(&[seen("a", "4")]).await;
        let approve = async |digest| {
            store
                .pins_approve(scope, &name, &[("a", digest)], None)
                .await
        };
        assert_error!(approve("sha256:3").await, Conflict);
        approve("sha256:4").await.unwrap();
        let approved = &store.pin_list(scope, &name).await.unwrap()[0];
        assert_eq!(
            (approved.digest.as_str(), &approved.pending_digest),
            ("sha256:4", &None)
        );
        assert_eq!(approved.definition, seen("a", "4").definition);
        assert_error!(approve("sha256:4").await, Conflict);
        let result = store
            .pins_approve(scope, &name, &[("none", "x")], None)
            .await;
        assert_error!(result, NotFound);
    }
    let other = db.project("other").await;
    assert_eq!(store.pin_list(Some(&other), &name).await.unwrap(), []);
}

fn seen_under(config: &str, tool: &str, version: &str) -> Seen {
    Seen {
        config_digest: config.to_owned(),
        ..seen(tool, version)
    }
}

/// Returns the changes, newest first: cause, tool, old and new version.
async fn changes(db: &Db, scope: Option<&model::ProjectId>) -> Vec<[String; 4]> {
    let page = Page::default();
    let rows = db
        .store
        .tool_change_list(scope, &server("time"), &page)
        .await;
    let version = |definition: &str| {
        let version = definition.rsplit('"').nth(1);
        version.unwrap_or_default().to_owned()
    };
    let rows = rows.unwrap().into_iter().map(|row| {
        let (old, new) = (version(&row.old_definition), version(&row.new_definition));
        [row.cause, row.tool, old, new]
    });
    rows.collect()
}

async fn a_pin_belongs_to_a_configuration(db: &Db) {
    let store = &db.store;
    let id = db.project("p").await;
    let name = server("time");
    for scope in [None, Some(&id)] {
        let see = async |config, tool, version| {
            let seen = [seen_under(config, tool, version)];
            let pins = store.pins_seen(scope, &name, &seen).await.unwrap();
            let pin = pins.into_iter().find(|pin| pin.tool == tool).unwrap();
            (pin.digest, pin.pending_digest, pin.config_digest)
        };
        let pinned =
            |version: &str, config: &str| (format!("sha256:{version}"), None, config.to_owned());
        // This pin was stored by a version that did not record the configuration, so a changed definition must be
        // approved.
        assert_eq!(see("", "a", "1").await, pinned("1", ""));
        let waiting = (
            "sha256:1".to_owned(),
            Some("sha256:2".to_owned()),
            "x".to_owned(),
        );
        assert_eq!(see("x", "a", "2").await, waiting);
        assert_eq!(changes(db, scope).await, [[""; 4]; 0]);
        // With a changed configuration, the current definition is pinned, including one that was waiting.
        assert_eq!(see("y", "a", "2").await, pinned("2", "y"));
        assert_eq!(see("z", "a", "2").await, pinned("2", "z"));
        assert_eq!(see("w", "a", "3").await, pinned("3", "w"));
        let expected = [
            ["configuration", "a", "2", "3"],
            ["configuration", "a", "1", "2"],
        ];
        assert_eq!(changes(db, scope).await, expected);
        see("w", "a", "4").await;
        ok(store.pins_approve(scope, &name, &[("a", "sha256:4")], Some("key:1"))).await;
        assert_eq!(changes(db, scope).await[0], ["approved", "a", "3", "4"]);
    }
    store.project_delete(&id).await.unwrap();
    assert_eq!(changes(db, Some(&id)).await, [[""; 4]; 0]);
    assert_eq!(changes(db, None).await.len(), 3);
}

async fn several_are_approved_or_none(db: &Db) {
    let store = &db.store;
    let name = server("time");
    let see = async |version| {
        let tools = ["a", "b"].map(|tool| seen(tool, version));
        store.pins_seen(None, &name, &tools).await.unwrap()
    };
    see("1").await;
    let waiting = see("2").await;
    let approve = async |b| {
        let tools = [("a", "sha256:2"), ("b", b)];
        store.pins_approve(None, &name, &tools, None).await
    };
    assert_error!(approve("sha256:3").await, Conflict);
    assert_eq!(store.pin_list(None, &name).await.unwrap(), waiting);
    assert_eq!(changes(db, None).await, [[""; 4]; 0]);
    approve("sha256:2").await.unwrap();
    let pins = store.pin_list(None, &name).await.unwrap();
    assert!(pins.iter().all(|pin| pin.digest == "sha256:2"), "{pins:?}");
    assert_eq!(changes(db, None).await.len(), 2);
}

async fn two_that_see_the_same_tools(db: &Db) {
    let other = db.another().await;
    let name = server("time");
    for version in 0..5 {
        let tools: Vec<Seen> = (0..20)
            .map(|n| seen(&n.to_string(), &version.to_string()))
            .collect();
        let (mine, theirs) = tokio::join!(
            db.store.pins_seen(None, &name, &tools),
            other.pins_seen(None, &name, &tools),
        );
        mine.unwrap();
        theirs.unwrap();
        for pin in db.store.pin_list(None, &name).await.unwrap() {
            assert_eq!(pin.digest, "sha256:0");
            let pending = (version > 0).then(|| format!("sha256:{version}"));
            assert_eq!(pin.pending_digest, pending);
        }
    }
}

async fn snapshots(db: &Db) {
    let store = &db.store;
    let (a, b) = (db.project("a").await, db.project("b").await);
    let names = ["one", "two"].map(server);
    let catalog = "{\"tools\": [ 1.0 ],  \"big\": 12345678901234567890}";
    for scope in [Some(&b), Some(&a), None] {
        for name in &names {
            for config in ["old", "new"] {
                let snapshot = snapshot(name, config, catalog);
                store.snapshot_put(scope, snapshot).await.unwrap();
            }
        }
    }
    let list = store.snapshot_list(Some(&a)).await.unwrap();
    assert_eq!(list.len(), 2);
    assert_eq!(
        (list[0].catalog.as_str(), list[0].config_digest.as_str()),
        (catalog, "new")
    );

    for scope in [None, Some(&a), Some(&b)] {
        let list = store.snapshot_list(scope).await.unwrap();
        let found = list
            .iter()
            .map(|row| (row.project_id.as_deref(), row.server.as_str()));
        let scope = scope.map(model::ProjectId::as_str);
        assert!(found.eq([(scope, "one"), (scope, "two")]), "{scope:?}");
    }
}

/// Removing a server and adding it again approves nothing.
async fn deleting_a_server_keeps_its_pins_alone(db: &Db) {
    let id = db.project("p").await;
    let store = &db.store;
    let remember = async |name: &str| {
        let name = server(name);
        ok(store.pins_seen(Some(&id), &name, &[seen("t", "1")])).await;
        let setting = ToolSetting::default();
        ok(store.tool_setting_put(&id, &name, "t", &setting)).await;
        ok(store.snapshot_put(Some(&id), snapshot(&name, "", ""))).await;
    };
    store.server_put(&id, &new_server("mine")).await.unwrap();
    let servers = ["updated-away", "uninstalled"].map(new_server);
    let manifest = serde_json::json!({});
    ok(store.product_install(&id, "prod", "1", &manifest, &servers)).await;
    for name in ["mine", "updated-away", "uninstalled"] {
        remember(name).await;
    }
    let left = async || {
        let settings = store.tool_setting_list(&id).await.unwrap();
        let snapshots = store.snapshot_list(Some(&id)).await.unwrap();
        let mut pins = 0;
        for name in ["mine", "updated-away", "uninstalled"] {
            pins += store
                .pin_list(Some(&id), &server(name))
                .await
                .unwrap()
                .len();
        }
        [settings.len(), snapshots.len(), pins]
    };
    assert_eq!(left().await, [3; 3]);
    store.server_delete(&id, &server("mine")).await.unwrap();
    assert_eq!(left().await, [2, 2, 3]);
    ok(store.product_install(&id, "prod", "2", &manifest, &servers[1..])).await;
    assert_eq!(left().await, [1, 1, 3]);
    store.product_uninstall(&id, "prod").await.unwrap();
    assert_eq!(left().await, [0, 0, 3]);
}
