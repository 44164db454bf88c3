//! Secrets in entries are sealed in the database, however they are written, and unsealed only for their server.

use serde_json::{Value, json};
use store::{NewServer, Store, TransportKind};
use testkit::{DEADLINE, wait_for};

use crate::{
    api::{Api, problem},
    common::{Gateway, scripted},
    support::Db,
};

/// Every secret in these tests contains this text.
const HIDDEN: &str = "hidden-value";

on_both!(
    secrets_of_entries_are_sealed_in_the_rows,
    rows_of_an_earlier_version_are_sealed_at_the_start,
);

/// Returns the entries and manifests in the database, as text.
async fn rows(db: &Db, gateway: &Gateway) -> String {
    let all = "SELECT CAST(config AS TEXT) FROM kb.project_mcp_servers
        UNION ALL SELECT CAST(config AS TEXT) FROM kb.agent_workspaces
        UNION ALL SELECT CAST(manifest AS TEXT) FROM kb.products";
    db.texts(gateway, all).await.join("\n")
}

fn secret(of: &str) -> String {
    format!("{HIDDEN}-{of}")
}

/// Returns the environment of a server's process.
async fn environment(api: &Api<'_>, server: &str) -> String {
    let path = format!("/mcp/servers/{server}");
    wait_for(&format!("{server} up"), DEADLINE, async || {
        api.get(&path).await["pid"].is_u64()
    })
    .await;
    let pid = api.get(&path).await["pid"].to_string();
    let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    String::from_utf8_lossy(&environ).into_owned()
}

async fn secrets_of_entries_are_sealed_in_the_rows(db: &Db) {
    let gateway = db.setup().serve().await;
    let api = Api::admin(&gateway);
    api.project("shop").await;
    let remote = json!({ "url": format!("http://127.0.0.1:9/mcp?token={}", secret("query")),
        "headers": { "X-Key": secret("header") }, "login": { "mode": "none" }, "enabled": false });
    api.server("shop", "remote", remote).await;
    let mut local = scripted("local", &[]);
    local["env"] = json!({ "PLACE": secret("variable") });
    api.server("shop", "local", local.clone()).await;
    let registration = json!({ "name": "hosted", "command": ["no-such-program", "--token", secret("argument")],
        "enabled": false, "environment": { "A": secret("registered") } });
    api.ok("POST", "/mcp/servers?wait=false", registration)
        .await;
    let manifest = json!({ "name": "product", "version": "1", "mcp": { "servers": {
        "of-product": { "url": "http://127.0.0.1:9/mcp", "enabled": false, "headers": { "X-Key": secret("product") } } } } });
    api.put("/projects/shop/products/product", manifest.clone())
        .await;
    let stored = rows(db, &gateway).await;
    assert!(!stored.contains(HIDDEN), "{stored}");
    assert!(stored.matches("~sealed1~").count() >= 7, "{stored}");

    // It is unsealed for its server, even after a rotation of the master key and a restart.
    api.ok("POST", "/master-key/rotate", Value::Null).await;
    let gateway = gateway.restarted().await;
    let api = Api::admin(&gateway);
    api.ok("POST", "/mcp/servers/local/start?project=shop", Value::Null)
        .await;
    let environ = environment(&api, "local").await;
    assert!(environ.contains(&secret("variable")), "{environ}");

    // Saving an entry as it was shown changes nothing, and its secrets move to no other server.
    let before = rows(db, &gateway).await;
    for (path, entry) in [
        ("/mcp/servers/local?project=shop", "config"),
        ("/projects/shop/products/product", "manifest"),
    ] {
        let shown = api.get(path).await[entry].clone();
        assert!(shown.to_string().contains("•••"), "{shown}");
        api.put(path, shown).await;
    }
    assert_eq!(rows(db, &gateway).await, before);
    let mut moved = api.get("/projects/shop/products/product").await["manifest"].clone();
    moved["mcp"]["servers"]["of-product"]["url"] = "http://127.0.0.2:9/mcp".into();
    let path = "/api/v1/projects/shop/products/product";
    let refused = problem(&api.ask("PUT", path, moved.to_string(), &[]).await, 422);
    let at = "/mcp/servers/of-product/headers/X-Key";
    assert_eq!(refused["errors"][0]["pointer"], at, "{refused}");

    // A sealed value cannot be copied to another place.
    let sealed = before.split("~sealed1~").nth(1).unwrap();
    let sealed = sealed.split('"').next().unwrap();
    let copied = json!({ "url": "http://127.0.0.1:9/mcp", "headers": { "X-Key": format!("~sealed1~{sealed}") } });
    let path = "/api/v1/mcp/servers/copy?project=shop";
    problem(&api.ask("PUT", path, copied.to_string(), &[]).await, 422);
}

async fn rows_of_an_earlier_version_are_sealed_at_the_start(db: &Db) {
    let setup = db.setup();
    let store = Store::open(&db.location(&setup)).await.unwrap();
    let project = model::ProjectId::parse("shop").unwrap();
    store
        .project_ensure(std::slice::from_ref(&project))
        .await
        .unwrap();
    let mut config = scripted("local", &[]);
    config["env"] = json!({ "PLACE": secret("old") });
    let server = NewServer {
        name: model::ServerName::parse("local").unwrap(),
        description: String::new(),
        transport: TransportKind::Stdio,
        config,
        enabled: true,
    };
    store.server_put(&project, &server).await.unwrap();
    // A replica of a version that does not support sealing.
    db.old_replica(true).await;
    store.close().await;

    let gateway = setup.serve().await;
    let api = Api::admin(&gateway);
    if !db.is_sqlite() {
        let put = json!({ "url": "http://127.0.0.1:9/mcp", "headers": { "X-Key": secret("new") }, "enabled": false });
        api.server("shop", "remote", put).await;
        let stored = rows(db, &gateway).await;
        for plain in ["old", "new"] {
            assert!(stored.contains(&secret(plain)), "{stored}");
        }
        db.old_replica(false).await;
    }
    wait_for("all rows sealed", DEADLINE, async || {
        !rows(db, &gateway).await.contains(HIDDEN)
    })
    .await;
    let needs = "SELECT CAST(needs AS TEXT) FROM kb.schema_migrations WHERE version = 17";
    assert_eq!(db.texts(&gateway, needs).await, ["17"]);
    api.ok("POST", "/mcp/servers/local/start?project=shop", Value::Null)
        .await;
    let environ = environment(&api, "local").await;
    assert!(environ.contains(&secret("old")), "{environ}");
}
