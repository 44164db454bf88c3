//! Unusual, long or malicious input.

use model::ServerName;
use serde_json::json;
use store::{
    Error, MAX_KEY, NewEvent, NewKey, NewProject, NewRun, NewSnapshot, NewWorkspace, Page, Role,
    SealedSecret, Seen, ToolSetting,
};

use crate::support::{Db, new_server, project, server};

on_both!(
    names_are_only_names,
    a_nul_is_refused_everywhere,
    names_of_a_megabyte,
    long_texts_are_kept,
);

async fn names_are_only_names(db: &Db) {
    let id = db.project("p").await;
    let store = &db.store;
    for name in [
        "'; DROP TABLE kb.projects; --",
        "\" OR \"\"=\"",
        "$1 ? :a @b %s {0} \\'\\",
        "☃ Zürich 👩‍👩‍👧 \u{202e}",
        "%",
        "NULL",
    ] {
        let server = ServerName::parse(name).unwrap();
        let mut new = new_server("x");
        new.name = server.clone();
        new.description = name.to_owned();
        new.config = json!({name: name});
        store.server_put(&id, &new).await.unwrap();
        let row = store.server_get(&id, &server).await.unwrap();
        assert_eq!(
            (row.name, row.description, row.config),
            (server.clone(), name.into(), new.config)
        );

        store
            .product_install(&id, name, name, &json!(name), &[])
            .await
            .unwrap();
        assert_eq!(store.product_get(&id, name).await.unwrap().version, name);
        let secret = SealedSecret {
            name: name.to_owned(),
            version: 1,
            nonce: name.into(),
            sealed: name.into(),
        };
        store.secret_put(&id, &secret).await.unwrap();
        assert_eq!(store.secret_get(&id, name).await.unwrap(), secret);
        let seen = Seen {
            tool: name.to_owned(),
            digest: name.to_owned(),
            definition: name.to_owned(),
            config_digest: "c".to_owned(),
        };
        let pins = store.pins_seen(Some(&id), &server, &[seen]).await.unwrap();
        assert_eq!(pins[0].tool, name);
        let rows = store
            .event_list(None, Some(name), &Page::after(name, 1))
            .await
            .unwrap();
        assert_eq!(rows, []);
    }
    assert_eq!(store.server_list(&id).await.unwrap().len(), 6);
    assert_eq!(
        store
            .secret_list(&id, &Page::default())
            .await
            .unwrap()
            .len(),
        6
    );
    assert_eq!(store.project_list(&Page::default()).await.unwrap().len(), 1);
}

/// Calls every method that takes a name or a text with this one, and returns the results.
async fn everywhere(db: &Db, text: &str, doc_too: bool) -> Vec<(&'static str, Result<(), Error>)> {
    let (id, name) = (project("p"), server("s"));
    let store = &db.store;
    let mut results = Vec::new();
    let mut push = |what, result| results.push((what, result));
    let mut new = NewProject::new(id.clone());
    new.name = text.to_owned();
    push("project_put", store.project_put(&new).await.map(drop));
    let page = Page::after(text, 1);
    push("project_list", store.project_list(&page).await.map(drop));
    let install = store.product_install(&id, text, "1", &json!({}), &[]).await;
    push("product_install", install.map(drop));
    push("product_get", store.product_get(&id, text).await.map(drop));
    push(
        "product_uninstall",
        store.product_uninstall(&id, text).await.map(drop),
    );
    let secret = SealedSecret {
        name: text.to_owned(),
        version: 1,
        nonce: vec![],
        sealed: vec![],
    };
    push("secret_put", store.secret_put(&id, &secret).await.map(drop));
    push("secret_get", store.secret_get(&id, text).await.map(drop));
    push("secret_list", store.secret_list(&id, &page).await.map(drop));
    push("secret_delete", store.secret_delete(&id, text).await);
    push(
        "master_set_if_none",
        store.master_set_if_none(text, b"").await.map(drop),
    );
    push(
        "master_rotate",
        store.master_rotate(text, "m", b"", &[], None).await,
    );
    let key = store.project_data_key_set_if_none(&id, text, b"").await;
    push("project_data_key_set_if_none", key.map(drop));
    let setting = ToolSetting::default();
    let put = store.tool_setting_put(&id, &name, text, &setting).await;
    push("tool_setting_put", put.map(drop));
    let alias = ToolSetting {
        alias: Some(text.to_owned()),
        ..setting
    };
    push(
        "alias",
        store
            .tool_setting_put(&id, &name, "t", &alias)
            .await
            .map(drop),
    );
    push(
        "tool_setting_delete",
        store.tool_setting_delete(&id, &name, text).await,
    );
    for (what, tool, digest) in [("pins_seen", text, "d"), ("digest", "t", text)] {
        let seen = Seen {
            tool: tool.to_owned(),
            digest: digest.to_owned(),
            definition: String::new(),
            config_digest: "c".to_owned(),
        };
        push(what, store.pins_seen(None, &name, &[seen]).await.map(drop));
        push(
            "pins_approve",
            store.pins_approve(None, &name, &[(tool, digest)]).await,
        );
    }
    let snapshot = NewSnapshot {
        server: &name,
        config_digest: text,
        catalog: "",
    };
    push("snapshot_put", store.snapshot_put(None, snapshot).await);
    let key = NewKey {
        project: None,
        name: "k",
        role: Role::Admin,
        hash: text,
        hint: "",
        expires_at: None,
    };
    push("key_put", store.key_put(key).await.map(drop));
    push("key_by_hash", store.key_by_hash(text).await.map(drop));
    push("key_list", store.key_list(None, &page).await.map(drop));
    push("key_revoke", store.key_revoke(None, text).await.map(drop));
    push(
        "keys_touch",
        store.keys_touch(&[(text.to_owned(), store::now())]).await,
    );
    push(
        "workspace_get",
        store.workspace_get(None, text).await.map(drop),
    );
    push(
        "workspace_set_config",
        store
            .workspace_set_config(None, text, "i", &json!({}))
            .await
            .map(drop),
    );
    push(
        "workspace_set_status",
        store.workspace_set_status(text, "s").await,
    );
    push(
        "workspace_delete",
        store.workspace_delete(None, text).await.map(drop),
    );
    let event = NewEvent {
        project: None,
        server: text,
        kind: "k",
        detail: &json!({}),
    };
    push("event_add", store.event_add(event).await);
    push(
        "event_list",
        store.event_list(None, Some(text), &page).await.map(drop),
    );
    push("run_get", store.run_get(None, text).await.map(drop));
    push("call_get", store.call_get(None, text).await.map(drop));
    let calls = store.calls_list(&store::CallFilter::default(), &page).await;
    push("calls_list", calls.map(drop));
    if doc_too {
        let mut new = NewProject::new(id.clone());
        new.description = text.to_owned();
        push("description", store.project_put(&new).await.map(drop));
        new.description = String::new();
        new.settings = json!({"deep": [{text: 1}]});
        push("settings", store.project_put(&new).await.map(drop));
        let run = NewRun {
            project: None,
            agent: text,
            model: "m",
            conversation: None,
        };
        push("run_put", store.run_put(run).await.map(drop));
        push(
            "calls_close_open",
            store.calls_close_open(store::now(), text).await.map(drop),
        );
        let snapshot = NewSnapshot {
            server: &name,
            config_digest: "",
            catalog: text,
        };
        push("catalog", store.snapshot_put(None, snapshot).await);
        let config = json!({"env": {"KEY": text}});
        let empty = json!({});
        for (what, status, image, config) in [
            ("status", text, "i", &empty),
            ("image", "s", text, &empty),
            ("config", "s", "i", &config),
        ] {
            let new = NewWorkspace {
                project: None,
                name: &name,
                status,
                image,
                config,
            };
            push(what, store.workspace_put(new).await.map(drop));
            let set = store.workspace_set_config(None, "x", image, config).await;
            if status != text {
                push("workspace_set_config", set.map(drop));
            }
        }
        push(
            "workspace_set_status",
            store.workspace_set_status("x", text).await,
        );
    }
    results
}

async fn a_nul_is_refused_everywhere(db: &Db) {
    db.project("p").await;
    for (what, result) in everywhere(db, "a\0b", true).await {
        assert!(
            matches!(result, Err(Error::Invalid(_))),
            "{what}: {result:?}"
        );
    }
    db.store.ping().await.unwrap();
}

async fn names_of_a_megabyte(db: &Db) {
    db.project("p").await;
    // Text that compresses too badly for a Postgres index.
    let long: String = (0..100_000_u32)
        .map(|n| format!("{:x}", n.wrapping_mul(2_654_435_761)))
        .collect();
    for (what, result) in everywhere(db, &long, false).await {
        let Err(Error::Invalid(why)) = &result else {
            panic!("{what}: {result:?}");
        };
        assert!(why.len() < 200, "{what}: an error does not repeat the name");
    }
    // A name of the maximum length works everywhere, including in an index together with others.
    let longest = &long[..MAX_KEY];
    for (what, result) in everywhere(db, longest, true).await {
        assert!(
            !matches!(result, Err(Error::Invalid(_) | Error::Corrupt(_))),
            "{what}: {result:?}"
        );
    }
}

async fn long_texts_are_kept(db: &Db) {
    let mut new = NewProject::new(project("p"));
    new.description = "ü\n".repeat(1 << 20);
    new.settings = json!({"text": new.description});
    let row = db.store.project_put(&new).await.unwrap().row;
    assert!(row.description == new.description && row.settings == new.settings);
}
