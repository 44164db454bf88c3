//! Secrets in entries are sealed in the database, however they are written, and unsealed only for their server.

use serde_json::{Value, json};
use store::{NewServer, Store, TransportKind};
use testkit::{DEADLINE, wait_for, wait_for_some};

use crate::{
    api::Api,
    common::{Gateway, checks, scripted},
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

/// Starts the server `local` of the project. Its environment must contain this secret.
async fn starts_with(api: &Api<'_>, secret: &str) {
    let start = "/mcp/servers/local/start?project=shop";
    api.ok("POST", start, Value::Null).await;
    let pid = wait_for_some("the server to run", DEADLINE, async || {
        api.get("/mcp/servers/local").await["pid"].as_u64()
    })
    .await;
    let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    checks::contains(String::from_utf8_lossy(&environ), &[secret]);
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
    let register = "/mcp/servers?wait=false";
    api.ok("POST", register, registration).await;
    let manifest = json!({ "name": "product", "version": "1", "mcp": { "servers": {
        "of-product": { "url": "http://127.0.0.1:9/mcp", "enabled": false, "headers": { "X-Key": secret("product") } } } } });
    let product = "/projects/shop/products/product";
    api.put(product, manifest).await;
    let stored = rows(db, &gateway).await;
    checks::lacks(&stored, &[HIDDEN]);
    assert!(stored.matches("~sealed1~").count() >= 7, "{stored}");

    // Each secret is unsealed for its server, even after a rotation of the master key and a restart.
    api.ok("POST", "/master-key/rotate", Value::Null).await;
    let gateway = gateway.restarted().await;
    let api = Api::admin(&gateway);
    starts_with(&api, &secret("variable")).await;

    // Saving an entry as it was shown changes nothing, and its secrets move to no other server.
    let before = rows(db, &gateway).await;
    for (path, entry) in [
        ("/mcp/servers/local?project=shop", "config"),
        (product, "manifest"),
    ] {
        let shown = api.get(path).await[entry].clone();
        checks::contains(shown.to_string(), &["•••"]);
        api.put(path, shown).await;
    }
    assert_eq!(rows(db, &gateway).await, before);
    let mut moved = api.get(product).await["manifest"].clone();
    moved["mcp"]["servers"]["of-product"]["url"] = "http://127.0.0.2:9/mcp".into();
    let moved = moved.to_string();
    let refused = api.refused("PUT", product, &moved, 422).await;
    let at = "/mcp/servers/of-product/headers/X-Key";
    assert_eq!(refused["errors"][0]["pointer"], at, "{refused}");

    // A sealed value cannot be copied to another place.
    let sealed = before.split("~sealed1~").nth(1).unwrap();
    let sealed = sealed.split('"').next().unwrap();
    let copied = json!({ "url": "http://127.0.0.1:9/mcp", "headers": { "X-Key": format!("~sealed1~{sealed}") } });
    let path = "/mcp/servers/copy?project=shop";
    api.refused("PUT", path, &copied.to_string(), 422).await;
}

async fn rows_of_an_earlier_version_are_sealed_at_the_start(db: &Db) {
    let setup = db.setup();
    let store = Store::open(&db.location(&setup)).await.unwrap();
    let project = model::ProjectId::parse("shop").unwrap();
    let projects = std::slice::from_ref(&project);
    store.project_ensure(projects).await.unwrap();
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
    // Adds a replica of a version that does not support sealing.
    db.old_replica(true).await;
    store.close().await;

    let gateway = setup.serve().await;
    let api = Api::admin(&gateway);
    if !db.is_sqlite() {
        let put = json!({ "url": "http://127.0.0.1:9/mcp", "headers": { "X-Key": secret("new") }, "enabled": false });
        api.server("shop", "remote", put).await;
        let stored = rows(db, &gateway).await;
        checks::contains(&stored, &[&secret("old"), &secret("new")]);
        db.old_replica(false).await;
    }
    wait_for("all rows sealed", DEADLINE, async || {
        !rows(db, &gateway).await.contains(HIDDEN)
    })
    .await;
    let needs = "SELECT CAST(needs AS TEXT) FROM kb.schema_migrations WHERE version = 17";
    assert_eq!(db.texts(&gateway, needs).await, ["17"]);
    starts_with(&api, &secret("old")).await;
}
