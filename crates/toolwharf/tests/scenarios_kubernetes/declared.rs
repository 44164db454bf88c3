//! D08: a resource declares a server, and its status describes the server.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use testkit::{postgres::Database, wait_for};

use crate::{
    api::Api,
    common::{Gateway, checks, tools},
    support::{
        LONG_DEADLINE, Namespace, call, condition, instances, kubectl, server, token_of, volumes,
    },
};

#[tokio::test]
async fn d08_a_resource_is_a_server_with_status_and_events_and_goes_with_it() {
    let namespace = Namespace::new("whole").await;
    let gateway = namespace.gateway().await;
    let notes = |text: &str| json!({"volumes": ["/kept"], "description": text});
    namespace.scripted("notes", notes("Notes."));
    let object = namespace.ready("notes").await;
    let accepted = condition(&object, "Accepted").unwrap();
    checks::members(accepted, json!({"status": "True", "reason": "Registered"}));
    let status = &object["status"];
    checks::members(status, json!({"state": "running", "observedGeneration": 1}));
    assert!(status["tools"].as_u64() > Some(0), "{status}");

    // The declared server is listed like any other.
    let found = server(&gateway, "notes").await.unwrap();
    let expected = json!({
        "id": status["id"], "declared": "registered", "status": "running", "description": "Notes.", "sandbox": "process",
    });
    checks::members(&found, expected);
    let id = found["id"].as_str().unwrap().to_owned();
    assert!(call(&gateway, &id).await.to_string().contains("hello"));
    let listed = tools(&mut gateway.legacy().await).await;
    let is_its_own = |tool: &String| tool.starts_with("notes__") || tool == "echo";
    assert!(listed.iter().any(is_its_own), "{listed:?}");

    // `kubectl get` shows the columns, and the resource has events.
    let row = namespace.kubectl(&["get", "mcp"], "");
    let row: Vec<&str> = row.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..3], ["notes", "True", "running"]);
    wait_for("the events", LONG_DEADLINE, async || {
        let events = namespace.events("notes").await;
        let has = |reason: &str| {
            let normal = events.iter().filter(|event| event[0] == "Normal");
            normal.filter(|event| event[1] == reason).count() == 1
        };
        has("Registered") && has("Ready")
    })
    .await;

    // A declared server can only be changed in its resource.
    let api = Api::admin(&gateway);
    let path = format!("/api/v1/mcp/servers/{id}");
    for (method, path, body) in [
        ("DELETE", path.clone(), ""),
        ("POST", format!("{path}/disable"), ""),
        ("PUT", path.clone(), r#"{"command": "cat"}"#),
    ] {
        let reply = api.ask(method, &path, body, &[]).await;
        checks::reply(&reply, 409, &[&format!("{}/notes", namespace.name)]);
    }
    namespace.scripted("notes", notes("Other notes."));
    wait_for("the change", LONG_DEADLINE, async || {
        server(&gateway, "notes").await.unwrap()["description"] == "Other notes."
    })
    .await;
    assert_eq!(namespace.id("notes").await, id);

    // The server's volumes are removed before the resource.
    let volumes = volumes(&gateway, &id);
    assert!(volumes.exists(), "{}", volumes.display());
    namespace.remove("notes").await;
    assert_eq!(server(&gateway, "notes").await, None);
    assert_eq!((instances("notes"), volumes.exists()), (0, false));
}

#[tokio::test]
async fn d08_a_bad_resource_says_where_it_is_wrong_and_harms_no_other() {
    let namespace = Namespace::new("bad").await;
    let gateway = namespace.gateway().await;
    namespace.scripted("good", json!({}));
    let wrong = json!({"network": {"allow": ["http://x"]}, "heartbeat": {"intervalMs": 0}});
    namespace.scripted("bad", wrong);
    let bad = namespace.refused("bad", "Invalid").await;
    let message = &condition(&bad, "Accepted").unwrap()["message"];
    let why = ["`spec.network.allow.0`: must be `host`", "`spec.heartbeat"];
    checks::string(message, &why);
    let ready = condition(&bad, "Ready").unwrap();
    checks::members(ready, json!({"status": "False", "reason": "Invalid"}));
    let warned = |event: &[String; 3]| {
        event[0] == "Warning" && event[1] == "Invalid" && event[2].contains("spec.network.allow.0")
    };
    let events = namespace.events("bad").await;
    assert!(events.iter().any(warned), "{events:?}");
    let id = namespace.id("good").await;

    // Each of these resources has one mistake: a name in use, a missing project, a provider that is not allowed, or a
    // missing command.
    let taken = json!({"name": "taken", "command": testkit::Bin::path("testkit-scripted"), "provider": "process"});
    let taken = Api::admin(&gateway).ok("POST", "/mcp/servers", taken).await;
    namespace.scripted("taken", json!({}));
    namespace.refused("taken", "NameTaken").await;
    namespace.scripted("lost", json!({"project": "nobodys"}));
    namespace.refused("lost", "NoProject").await;
    namespace.apply("image", json!({"image": "x", "provider": "gvisor"}));
    let image = namespace.refused("image", "Invalid").await;
    checks::contains(image.to_string(), &["`spec.provider`"]);
    let missing = json!({"command": "/no/such/program", "provider": "process"});
    namespace.apply("missing", missing);
    namespace
        .condition("missing", "Ready", "False", "Blocked")
        .await;

    // If a valid resource becomes invalid, the server keeps running unchanged. If an invalid one becomes valid, its
    // server is started.
    namespace.scripted("good", json!({"callTimeoutMs": 1.5}));
    let good = namespace.refused("good", "Invalid").await;
    checks::members(&good["status"], json!({"id": id, "state": "running"}));
    call(&gateway, &id).await;
    namespace.scripted("bad", json!({}));
    namespace.ready("bad").await;

    // Invalid resources can be deleted, too, without affecting other servers.
    let all = ["good", "bad", "taken", "lost", "image", "missing"];
    for name in all {
        namespace.delete(name);
    }
    for name in all {
        namespace.gone(name).await;
    }
    assert_eq!(server(&gateway, "taken").await.unwrap()["id"], taken["id"]);
}

#[tokio::test]
async fn d08_variables_come_from_secrets_and_are_seen_nowhere_else() {
    const VALUES: [&str; 2] = ["s3cr3t-${HOME}-value", "an0ther-value"];
    let namespace = Namespace::new("secrets").await;
    let gateway = namespace.gateway().await;
    namespace.scripted("sealed", token_of("keys"));
    let missing = namespace.refused("sealed", "SecretMissing").await;
    let why = "there is no Secret `keys` for `TOKEN`";
    checks::contains(missing.to_string(), &[why]);
    // A Secret with another server's variables cannot be referenced.
    let theirs = json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"token": VALUES[1]},
        "metadata": {"name": "theirs", "labels": {"toolwharf.dev/installation": "x"}}});
    namespace.apply_plain(&theirs);
    namespace.scripted("thief", token_of("theirs"));
    let refused = namespace.refused("thief", "SecretMissing").await;
    let why = "Secret `theirs` is Toolwharf's own";
    checks::contains(refused.to_string(), &[why]);
    namespace.apply_token(VALUES[0]);
    let id = namespace.id("sealed").await;
    let variable = async || {
        let call = json!({"method": "tools/call", "params": {"name": "digest", "arguments": {"name": "TOKEN"}}});
        let path = format!("/api/v1/mcp/servers/{id}/call");
        let reply = Api::admin(&gateway)
            .ask("POST", &path, call.to_string(), &[])
            .await;
        reply.text()
    };
    // The server receives the exact value.
    for value in VALUES {
        namespace.apply_token(value);
        let digest = hex::encode(Sha256::digest(value));
        wait_for("the value", LONG_DEADLINE, async || {
            variable().await.contains(&digest)
        })
        .await;
    }

    let mut seen = namespace.get("sealed").await.unwrap().to_string();
    seen += &format!("{:?}", namespace.events("sealed").await);
    seen += &gateway.process.stderr();
    let api = Api::admin(&gateway);
    for path in ["", "/entry", "/events", "/logs"] {
        let path = format!("/api/v1/mcp/servers/{id}{path}");
        seen += &api.ask("GET", &path, "", &[]).await.text();
    }
    for file in ["toolwharf.db", "toolwharf.db-wal"] {
        let bytes = std::fs::read(gateway.folder().join("data").join(file)).unwrap_or_default();
        seen += &String::from_utf8_lossy(&bytes);
    }
    for value in VALUES {
        assert!(!seen.contains(value), "{value} has leaked");
    }
    namespace.remove("sealed").await;
}

#[tokio::test]
async fn d08_one_of_several_replicas_makes_the_servers_and_another_goes_on() {
    let namespace = Namespace::new("replicas").await;
    let database = Database::create().await;
    let mut first = namespace.replica(&database, None).await;
    let second = namespace.replica(&database, Some(&first)).await;
    namespace.scripted("shared", json!({}));
    let shared = namespace
        .condition("shared", "Accepted", "True", "Registered")
        .await;
    let id = shared["status"]["id"].as_str().unwrap();
    let callable = async |gateway: &Gateway| {
        wait_for("a call", LONG_DEADLINE, async || {
            let body = json!({"method": "tools/list"}).to_string();
            let path = format!("/api/v1/mcp/servers/{id}/call");
            let reply = Api::admin(gateway).ask("POST", &path, body, &[]).await;
            reply.status == 200
        })
        .await;
    };
    callable(&first).await;
    callable(&second).await;
    first.process.signal(rustix::process::Signal::KILL);
    first.process.wait(testkit::DEADLINE).await;
    namespace.scripted("later", json!({}));
    namespace.ready("later").await;
    namespace.ready("shared").await;
    callable(&second).await;
    assert_eq!((instances("shared"), instances("later")), (1, 1));
    let first = first.again().await;
    namespace.remove("shared").await;
    assert_eq!(instances("shared"), 0);
    assert_eq!(server(&second, "shared").await, None);
    wait_for("the end everywhere", LONG_DEADLINE, async || {
        server(&first, "shared").await.is_none()
    })
    .await;
    namespace.remove("later").await;
}

#[tokio::test]
async fn d08_toolhives_resources_are_converted_to_ones_that_are_accepted() {
    let namespace = Namespace::new("convert").await;
    let theirs = "apiVersion: toolhive.stacklok.dev/v1alpha1\nkind: MCPServer\nmetadata:\n  name: fetch\nspec:\n  image: ghcr.io/x/fetch:1\n  \
                  transport: streamable-http\n  mcpPort: 3000\n  permissionProfile: {type: builtin, name: network}\n  resources: {limits: {cpu: \
                  100m, memory: 128Mi}}\n  secrets: [{name: keys, key: token, targetEnvName: TOKEN}]\n  podTemplateSpec: {}\n";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("theirs.yaml");
    std::fs::write(&file, theirs).unwrap();
    let mut convert = std::process::Command::new(testkit::Bin::path("toolwharf"));
    convert.args(["kubernetes", "convert"]).arg(&file);
    let output = convert.output().unwrap();
    assert!(output.status.success());
    let warnings = String::from_utf8(output.stderr).unwrap();
    assert_eq!(warnings.lines().count(), 1, "{warnings}");
    let lacking = "warning: fetch: `spec.podTemplateSpec`: is not converted";
    assert!(warnings.starts_with(lacking), "{warnings}");
    let ours = String::from_utf8(output.stdout).unwrap();
    let args = ["apply", "--dry-run=server", "--output=json", "--filename=-"];
    let applied: Value = serde_json::from_str(&namespace.kubectl(&args, &ours)).unwrap();
    let expected = json!({
"image": "ghcr.io/x/fetch:1", "stdioBridge": false, "ports": [3000], "network": "open", "reclaimPolicy": "Delete",
            "sandbox": {"cpu": "100m", "memory": "128Mi"}, "secretEnv": {"TOKEN": {"secretKeyRef": {"name": "keys", "key": "token"}}},
            "env": {"MCP_TRANSPORT": "streamable-http", "MCP_PORT": "3000", "FASTMCP_PORT": "3000"},    });
    assert_eq!(applied["spec"], expected);
    assert!(kubectl(&["explain", "mcpserver.spec.secretEnv"], "").contains("Secrets"));
}
