//! Keys: their names, their projects, and their names in records.

use serde_json::{Value, json};
use testkit::{DEADLINE, Peer, wait_for};

use crate::{
    api::Api,
    common::{
        Gateway, LEGACY, Setup,
        shell::{fails, json_of, ok},
    },
};

async fn made(api: &Api<'_>, query: &str, wanted: Value) -> (String, String) {
    let made = api.ok("POST", &format!("/keys{query}"), wanted).await;
    let text = |key: &str| made[key].as_str().expect(key).to_owned();
    (text("id"), text("token"))
}

/// Returns the names of the keys that a caller sees and that are not revoked.
async fn names(api: &Api<'_>) -> Vec<String> {
    let keys = api.get("/keys").await;
    let keys = keys["keys"].as_array().expect("keys").iter();
    let living = keys.filter(|key| key["revoked_at"].is_null());
    living
        .map(|key| key["name"].as_str().expect("a name").to_owned())
        .collect()
}

#[tokio::test]
async fn u13_a_name_is_taken_until_its_key_is_revoked() {
    let gateway = Setup::new().serve().await;
    let admin = Api::admin(&gateway);
    admin.project("a").await;
    admin.project("b").await;
    let wanted = json!({"name": "ci", "role": "call"});
    let (id, _) = made(&admin, "?project=a", wanted.clone()).await;
    for query in ["?project=a", "?project=b", ""] {
        let path = format!("/keys{query}");
        let problem = admin.refused("POST", &path, &wanted.to_string(), 409).await;
        let detail = problem["detail"].as_str().expect("a detail");
        assert!(
            detail.contains("`ci`") && detail.contains("revoke"),
            "{detail}"
        );
    }
    // White space around a name makes no other name.
    let spaces = json!({"name": " ci ", "role": "call"}).to_string();
    admin.refused("POST", "/keys", &spaces, 409).await;
    admin.delete(&format!("/keys/{id}")).await;
    made(&admin, "?project=b", wanted).await;
}

/// A manager of one project learns nothing about keys of another, not even that a name is taken.
#[tokio::test]
async fn u13_a_refused_name_tells_nothing_about_keys_of_other_projects() {
    let gateway = Setup::new().serve().await;
    let admin = Api::admin(&gateway);
    admin.project("a").await;
    admin.project("b").await;
    let manager = admin.keyed("b", "manage").await;
    let wanted = json!({"name": "secret plan", "role": "call"});
    made(&admin, "?project=a", wanted.clone()).await;
    made(&admin, "", json!({"name": "of all", "role": "call"})).await;
    // Each name behaves like a free one.
    for name in ["secret plan", "of all", "free"] {
        let wanted = json!({"name": name, "role": "call"}).to_string();
        let reply = manager
            .ask("POST", "/api/v1/keys", wanted.clone(), &[])
            .await;
        assert_eq!(reply.status, 201, "{name}: {}", reply.text());
        let key: Value = serde_json::from_slice(&reply.body).expect("JSON");
        assert_eq!(key["name"], name);
        assert_eq!(key["projects"], json!(["b"]));
        manager.refused("POST", "/keys", &wanted, 409).await;
    }
    let seen = names(&manager).await;
    assert_eq!(seen.len(), 4, "{seen:?}");
    // Its projects' managers see a shared key without the other projects.
    let both = json!({"name": "both", "role": "call", "projects": ["a", "b"]});
    made(&admin, "", both).await;
    let keys = manager.get("/keys").await;
    let keys = keys["keys"].as_array().expect("keys");
    let both = keys.iter().find(|key| key["name"] == "both");
    let both = both.expect("the shared key");
    assert_eq!(
        (&both["project"], &both["projects"]),
        (&json!("b"), &json!(["b"]))
    );
    // A manager cannot create a key for a project of others.
    let foreign = json!({"name": "x", "role": "call", "projects": ["b", "a"]}).to_string();
    let problem = manager.refused("POST", "/keys", &foreign, 404).await;
    assert_eq!(problem["errors"][0]["pointer"], "/projects/1", "{problem}");
    let none = json!({"name": "x", "role": "call", "projects": ["b", "none"]}).to_string();
    let missing = manager.refused("POST", "/keys", &none, 404).await;
    let told = |problem: &Value| problem["detail"].to_string().replace("none", "a");
    assert_eq!(told(&missing), told(&problem));
}

#[tokio::test]
async fn u13_a_key_of_several_projects_names_one_in_each_request() {
    let gateway = Setup::new().serve().await;
    let admin = Api::admin(&gateway);
    admin.projects(&["a", "b", "c"], "own", &[]).await;
    let wanted = json!({"name": "both", "role": "call", "projects": ["a", "b"]});
    let (id, token) = made(&admin, "", wanted).await;
    let own = Api::with(&gateway, &token);
    for project in ["a", "b"] {
        let path = format!("/api/v1/mcp/servers?project={project}");
        assert_eq!(own.ask("GET", &path, "", &[]).await.status, 200);
        let client = client(&gateway, &format!("/mcp/{project}"), &token);
        let mut peer = Peer::http(client, LEGACY, json!({})).await;
        peer.tool("echo", json!({"text": project})).await.result();
    }
    own.refused("GET", "/mcp/servers?project=c", "", 404).await;
    let ambiguous = own.refused("GET", "/mcp/servers", "", 400).await;
    let detail = ambiguous["detail"].as_str().expect("a detail");
    assert!(detail.contains("`a`, `b`"), "{detail}");
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let refused = client(&gateway, "/mcp", &token)
        .post(ping.to_string())
        .await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("`a`, `b`"), "{}", refused.text());
    let foreign = client(&gateway, "/mcp/c", &token)
        .post(ping.to_string())
        .await;
    assert_eq!(foreign.status, 404, "{}", foreign.text());

    // A deleted project is lost to the key, also if its id is used again. With one project left, it need not be named.
    admin.delete("/projects/a").await;
    admin.project("a").await;
    own.refused("GET", "/mcp/servers?project=a", "", 404).await;
    own.get("/mcp/servers").await;
    // The manager of its project may revoke it.
    let manager = admin.keyed("b", "manage").await;
    manager.delete(&format!("/keys/{id}")).await;
    own.refused("GET", "/mcp/servers", "", 401).await;
}

fn client(gateway: &Gateway, path: &str, token: &str) -> testkit::RawClient {
    let bearer = format!("Bearer {token}");
    gateway.at(path).with("authorization", &bearer)
}

#[tokio::test]
async fn u13_callers_are_shown_by_name_also_after_their_keys_are_revoked() {
    let gateway = Setup::new().scripted("one", &[]).connected().await;
    let admin = Api::admin(&gateway);
    let create = "key create desk --role call";
    let token = ok(&gateway, create, "call in all projects").await;
    let token = token.trim().to_owned();
    let mut peer = Peer::http(client(&gateway, "/mcp", &token), LEGACY, json!({})).await;
    peer.tool("echo", json!({"text": "x"})).await.result();
    ok(&gateway, "key revoke desk", "revoked the key `desk`").await;
    fails(&gateway, "key revoke desk", 1, "there is no key").await;
    let calls = admin.get("/calls?caller=desk").await;
    let call = &calls["calls"][0];
    assert_eq!(call["caller_name"], "desk", "{calls}");
    let id = call["id"].as_str().expect("an id");
    assert_eq!(
        admin.get(&format!("/calls/{id}")).await["caller_name"],
        "desk"
    );
    let caller = call["caller"].as_str().expect("a caller");
    assert!(caller.starts_with("key:"), "{call}");
    for line in [
        "calls ls",
        "calls ls --caller desk",
        &format!("calls get {id}"),
    ] {
        let shown = ok(&gateway, line, "").await;
        assert!(
            shown.contains("desk") && !shown.contains(caller),
            "{line}: {shown}"
        );
    }
    let other = json_of(&gateway, "calls ls --caller nobody").await;
    assert_eq!(other.as_array().map(Vec::len), Some(0), "{other}");
    let statistics = admin.get("/calls/statistics?caller=desk").await;
    assert_eq!(statistics["calls"], 1, "{statistics}");
}

/// An approval names the key that approved, here the administrator's first one.
#[tokio::test]
async fn u13_approvals_name_who_approved() {
    let gateway = Setup::new()
        .scripted("one", &["--tools", "1"])
        .connected()
        .await;
    let admin = Api::admin(&gateway);
    admin
        .call("one", "set_tools", json!({"description": "Other"}))
        .await;
    wait_for("the change", DEADLINE, async || {
        admin.get("/mcp/servers/one").await["kept_back"] != 0
    })
    .await;
    ok(&gateway, "tools approve one --yes", "approved").await;
    let changes = admin.get("/mcp/servers/one/changes").await;
    let name = &changes["changes"][0]["caller_name"];
    assert_eq!(name, "administrator (first run)", "{changes}");
    let said = ok(&gateway, "tools changes one", "").await;
    assert!(
        said.contains("approved by administrator (first run)"),
        "{said}"
    );
}
