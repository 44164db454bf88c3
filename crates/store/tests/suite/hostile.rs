//! Unusual, long or malicious input.

use model::ServerName;
use serde_json::json;
use store::{
    Error, MAX_KEY, NewEvent, NewKey, NewProject, NewRegistration, NewRun, Page, Role,
    SealedSecret, ToolSetting,
};

use crate::support::{
    Db, new_key, new_run, new_server, ok, project, secret, seen, server, snapshot,
};

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

        ok(store.product_install(&id, name, name, &json!(name), &[])).await;
        assert_eq!(store.product_get(&id, name).await.unwrap().version, name);
        let secret = SealedSecret {
            nonce: name.into(),
            ..secret(name, 1, name.as_bytes())
        };
        store.secret_put(&id, &secret).await.unwrap();
        assert_eq!(store.secret_get(&id, name).await.unwrap(), secret);
        let seen = [seen(name, name, name)];
        let pins = store.pins_seen(Some(&id), &server, &seen).await.unwrap();
        assert_eq!(pins[0].tool, name);
        let rows = ok(store.event_list(None, Some(name), &Page::after(name, 1))).await;
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

/// The results of calls.
#[derive(Default)]
struct Results(Vec<(&'static str, Result<(), Error>)>);

impl Results {
    fn push<T>(&mut self, what: &'static str, result: Result<T, Error>) {
        self.0.push((what, result.map(drop)));
    }
}

/// Passes `text` to every method that takes a name or a text, and returns the results.
async fn everywhere(db: &Db, text: &str, doc_too: bool) -> Vec<(&'static str, Result<(), Error>)> {
    let (id, name) = (project("p"), server("s"));
    let store = &db.store;
    let mut all = Results::default();
    macro_rules! call {
        ($method:ident($($argument:expr),*)) => {
            all.push(stringify!($method), store.$method($($argument),*).await)
        };
    }
    let mut new = NewProject::new(id.clone());
    new.name = text.to_owned();
    call!(project_put(&new));
    let page = Page::after(text, 1);
    call!(project_list(&page));
    call!(product_install(&id, text, "1", &json!({}), &[]));
    call!(product_get(&id, text));
    call!(product_uninstall(&id, text));
    let secret = secret(text, 1, &[]);
    call!(secret_put(&id, &secret));
    call!(secret_get(&id, text));
    call!(secret_list(&id, &page));
    call!(secret_delete(&id, text));
    call!(master_set_if_none(text, b""));
    call!(master_rotate(text, "m", b"", &[], None));
    call!(project_data_key_set_if_none(&id, text, b""));
    let setting = ToolSetting::default();
    call!(tool_setting_put(&id, &name, text, &setting));
    let alias = ToolSetting {
        alias: Some(text.to_owned()),
        ..setting
    };
    all.push(
        "alias",
        store.tool_setting_put(&id, &name, "t", &alias).await,
    );
    call!(tool_setting_delete(&id, &name, text));
    for (what, tool, digest) in [("pins_seen", text, "d"), ("digest", "t", text)] {
        let seen = [seen(tool, digest, "")];
        all.push(what, store.pins_seen(None, &name, &seen).await);
        call!(pins_approve(None, &name, &[(tool, digest)], None));
    }
    let catalog = snapshot(&name, text, "");
    call!(snapshot_put(None, catalog));
    let key = NewKey {
        role: Role::Admin,
        ..new_key(None, text)
    };
    call!(key_put(key));
    call!(key_by_hash(text));
    call!(key_named(Some(&id), text));
    call!(key_names(&[text]));
    call!(key_list(None, &page));
    call!(key_revoke(None, text));
    call!(keys_touch(&[(text.to_owned(), store::now())]));
    call!(registration_get(None, text));
    call!(registration_set_config(None, text, "i", &json!({})));
    call!(registration_set_status(text, "s", "s"));
    call!(registration_delete(None, text));
    let event = NewEvent {
        project: None,
        server: text,
        kind: "k",
        detail: &json!({}),
    };
    call!(event_add(event));
    call!(event_list(None, Some(text), &page));
    call!(run_get(None, text));
    call!(call_get(None, text));
    call!(calls_list(&store::CallFilter::default(), &page));
    if doc_too {
        let mut new = NewProject::new(id.clone());
        new.description = text.to_owned();
        all.push("description", store.project_put(&new).await);
        new.description = String::new();
        new.settings = json!({"deep": [{text: 1}]});
        all.push("settings", store.project_put(&new).await);
        let run = NewRun {
            agent: text,
            ..new_run(None)
        };
        call!(run_put(run));
        call!(calls_close_open(store::now(), text));
        let catalog = snapshot(&name, "", text);
        all.push("catalog", store.snapshot_put(None, catalog).await);
        let config = json!({"env": {"KEY": text}});
        let empty = json!({});
        for (what, status, image, config) in [
            ("status", text, "i", &empty),
            ("image", "s", text, &empty),
            ("config", "s", "i", &config),
        ] {
            let new = NewRegistration {
                project: None,
                name: &name,
                status,
                image,
                config,
            };
            all.push(what, store.registration_put(new).await);
            let set = store
                .registration_set_config(None, "x", image, config)
                .await;
            if status != text {
                all.push("registration_set_config", set);
            }
        }
        call!(registration_set_status("x", text, text));
    }
    all.0
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
    // A name of the maximum length works everywhere, including in an index with several columns.
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
