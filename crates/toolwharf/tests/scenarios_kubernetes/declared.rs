//! D08: a resource declares a server, and its status describes the server.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use testkit::{postgres::Database, wait_for};

use crate::{
    api::Api,
    common::tools,
    support::{LONG_DEADLINE, Namespace, call, condition, instances, kubectl, scripted, server},
};

#[tokio::test]
async fn d08_a_resource_is_a_server_with_status_and_events_and_goes_with_it() {
    let namespace = Namespace::new("whole").await;
    let gateway = namespace.gateway().await;
    namespace.apply(
        "notes",
        scripted(
            "notes",
            json!({"volumes": ["/kept"], "description": "Notes."}),
        ),
    );
    let object = namespace.ready("notes").await;
    let accepted = condition(&object, "Accepted").unwrap();
    assert_eq!(
        (&accepted["status"], &accepted["reason"]),
        (&json!("True"), &json!("Registered")),
        "{object}"
    );
    let status = &object["status"];
    assert_eq!(
        (&status["state"], &status["observedGeneration"]),
        (&json!("running"), &json!(1)),
        "{status}"
    );
    assert!(
        status["tools"].as_u64().is_some_and(|tools| tools > 0),
        "{status}"
    );

    // It is listed like any other server.
    let found = server(&gateway, "notes").await.unwrap();
    assert_eq!(
        (&found["id"], &found["declared"], &found["status"]),
        (&status["id"], &json!("registered"), &json!("running"))
    );
    assert_eq!(
        (&found["description"], &found["sandbox"]),
        (&json!("Notes."), &json!("process"))
    );
    let id = found["id"].as_str().unwrap().to_owned();
    assert!(call(&gateway, &id).await.to_string().contains("hello"));
    let listed = tools(&mut gateway.legacy().await).await;
    assert!(
        listed
            .iter()
            .any(|tool| tool.starts_with("notes__") || tool == "echo"),
        "{listed:?}"
    );

    // The columns of `kubectl get`, and the events.
    let row = namespace.kubectl(&["get", "mcp"], "");
    let row: Vec<&str> = row.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..3], ["notes", "True", "running"]);
    wait_for("the events", LONG_DEADLINE, async || {
        let events = namespace.events("notes");
        let has = |reason: &str| {
            events
                .iter()
                .filter(|event| event[0] == "Normal" && event[1] == reason)
                .count()
                == 1
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
        assert_eq!(reply.status, 409, "{method} {path}: {}", reply.text());
        assert!(
            reply.text().contains(&format!("{}/notes", namespace.0)),
            "{}",
            reply.text()
        );
    }
    namespace.apply(
        "notes",
        scripted(
            "notes",
            json!({"volumes": ["/kept"], "description": "Other notes."}),
        ),
    );
    wait_for("the change", LONG_DEADLINE, async || {
        server(&gateway, "notes").await.unwrap()["description"] == "Other notes."
    })
    .await;
    assert_eq!(namespace.ready("notes").await["status"]["id"], id.as_str());

    // Its volumes are removed first.
    let volumes = gateway
        .folder()
        .join("data/hosting/process/volumes")
        .join(&id);
    assert!(volumes.exists(), "{}", volumes.display());
    namespace.delete("notes");
    namespace.gone("notes").await;
    assert_eq!(
        (
            server(&gateway, "notes").await,
            instances("notes"),
            volumes.exists()
        ),
        (None, 0, false)
    );
}

#[tokio::test]
async fn d08_a_bad_resource_says_where_it_is_wrong_and_harms_no_other() {
    let namespace = Namespace::new("bad").await;
    let gateway = namespace.gateway().await;
    namespace.apply("good", scripted("good", json!({})));
    namespace.apply(
        "bad",
        scripted(
            "bad",
            json!({"network": {"allow": ["http://x"]}, "heartbeat": {"intervalMs": 0}}),
        ),
    );
    let bad = namespace
        .condition("bad", "Accepted", "False", "Invalid")
        .await;
    let message = condition(&bad, "Accepted").unwrap()["message"]
        .as_str()
        .unwrap();
    assert!(
        message.contains("`spec.network.allow.0`: must be `host`")
            && message.contains("`spec.heartbeat"),
        "{message}"
    );
    let ready = condition(&bad, "Ready").unwrap();
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("False"), &json!("Invalid"))
    );
    let warned = |event: &[String; 3]| {
        event[0] == "Warning" && event[1] == "Invalid" && event[2].contains("spec.network.allow.0")
    };
    assert!(
        namespace.events("bad").iter().any(warned),
        "{:?}",
        namespace.events("bad")
    );
    let id = namespace.ready("good").await["status"]["id"].clone();

    // A name in use, a missing project, a provider that is not allowed, and a missing command.
    let taken = json!({"name": "taken", "command": testkit::Bin::path("testkit-scripted"), "provider": "process"});
    let taken = Api::admin(&gateway).ok("POST", "/mcp/servers", taken).await;
    namespace.apply("taken", scripted("taken", json!({})));
    namespace
        .condition("taken", "Accepted", "False", "NameTaken")
        .await;
    namespace.apply("lost", scripted("lost", json!({"project": "nobodys"})));
    namespace
        .condition("lost", "Accepted", "False", "NoProject")
        .await;
    namespace.apply("image", json!({"image": "x", "provider": "gvisor"}));
    let image = namespace
        .condition("image", "Accepted", "False", "Invalid")
        .await;
    assert!(image.to_string().contains("`spec.provider`"), "{image}");
    namespace.apply(
        "missing",
        json!({"command": "/no/such/program", "provider": "process"}),
    );
    namespace
        .condition("missing", "Ready", "False", "Blocked")
        .await;

    // If a valid resource becomes invalid, the server keeps running unchanged. If an invalid one becomes valid, its
    // server is started.
    namespace.apply("good", scripted("good", json!({"callTimeoutMs": 1.5})));
    let good = namespace
        .condition("good", "Accepted", "False", "Invalid")
        .await;
    assert_eq!(
        (&good["status"]["id"], &good["status"]["state"]),
        (&id, &json!("running"))
    );
    call(&gateway, id.as_str().unwrap()).await;
    namespace.apply("bad", scripted("bad", json!({})));
    namespace.ready("bad").await;

    // Invalid resources can be deleted, too, without affecting other servers.
    for name in ["good", "bad", "taken", "lost", "image", "missing"] {
        namespace.delete(name);
    }
    for name in ["good", "bad", "taken", "lost", "image", "missing"] {
        namespace.gone(name).await;
    }
    assert_eq!(server(&gateway, "taken").await.unwrap()["id"], taken["id"]);
}

#[tokio::test]
async fn d08_variables_come_from_secrets_and_are_seen_nowhere_else() {
    const VALUES: [&str; 2] = ["s3cr3t-${HOME}-value", "an0ther-value"];
    let namespace = Namespace::new("secrets").await;
    let gateway = namespace.gateway().await;
    let from = |key: &str| json!({"secretKeyRef": {"name": "keys", "key": key}});
    namespace.apply(
        "sealed",
        scripted("sealed", json!({"secretEnv": {"TOKEN": from("token")}})),
    );
    let missing = namespace
        .condition("sealed", "Accepted", "False", "SecretMissing")
        .await;
    assert!(
        missing
            .to_string()
            .contains("there is no Secret `keys` for `TOKEN`"),
        "{missing}"
    );
    let secret = |value: &str| {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"token": value}});
        namespace.kubectl(&["apply", "--filename=-"], &secret.to_string());
    };
    // A Secret with another server's variables cannot be referenced.
    let theirs = json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"token": VALUES[1]},
        "metadata": {"name": "theirs", "labels": {"toolwharf.dev/installation": "x"}}});
    namespace.kubectl(&["apply", "--filename=-"], &theirs.to_string());
    let named = json!({"secretKeyRef": {"name": "theirs", "key": "token"}});
    namespace.apply(
        "thief",
        scripted("thief", json!({"secretEnv": {"TOKEN": named}})),
    );
    let refused = namespace
        .condition("thief", "Accepted", "False", "SecretMissing")
        .await;
    assert!(
        refused
            .to_string()
            .contains("Secret `theirs` is Toolwharf's own"),
        "{refused}"
    );
    secret(VALUES[0]);
    let object = namespace.ready("sealed").await;
    let id = object["status"]["id"].as_str().unwrap().to_owned();
    let variable = async || {
        let call = json!({"method": "tools/call", "params": {"name": "digest", "arguments": {"name": "TOKEN"}}});
        let path = format!("/api/v1/mcp/servers/{id}/call");
        let reply = Api::admin(&gateway)
            .ask("POST", &path, call.to_string(), &[])
            .await;
        reply.text()
    };
    // The server receives the exact value.
    let digest = |value: &str| hex::encode(Sha256::digest(value));
    wait_for("the variable", LONG_DEADLINE, async || {
        variable().await.contains(&digest(VALUES[0]))
    })
    .await;
    secret(VALUES[1]);
    wait_for("the other value", LONG_DEADLINE, async || {
        variable().await.contains(&digest(VALUES[1]))
    })
    .await;

    let mut seen = namespace.get("sealed").unwrap().to_string();
    seen += &format!("{:?}", namespace.events("sealed"));
    seen += &gateway.process.stderr();
    let api = Api::admin(&gateway);
    for path in ["", "/entry", "/events", "/logs"] {
        let reply = api
            .ask("GET", &format!("/api/v1/mcp/servers/{id}{path}"), "", &[])
            .await;
        seen += &reply.text();
    }
    for file in ["toolwharf.db", "toolwharf.db-wal"] {
        let bytes = std::fs::read(gateway.folder().join("data").join(file)).unwrap_or_default();
        seen += &String::from_utf8_lossy(&bytes);
    }
    for value in VALUES {
        assert!(!seen.contains(value), "{value} is somewhere");
    }
    namespace.delete("sealed");
    namespace.gone("sealed").await;
}

#[tokio::test]
async fn d08_one_of_several_replicas_makes_the_servers_and_another_goes_on() {
    let namespace = Namespace::new("replicas").await;
    let database = Database::create().await;
    let mut first = namespace.replica(&database, None).await;
    let second = namespace.replica(&database, Some(&first)).await;
    namespace.apply("shared", scripted("shared", json!({})));
    let id = namespace
        .condition("shared", "Accepted", "True", "Registered")
        .await["status"]["id"]
        .clone();
    let callable = async |gateway: &crate::common::Gateway| {
        wait_for("a call", LONG_DEADLINE, async || {
            let body = json!({"method": "tools/list"}).to_string();
            let path = format!("/api/v1/mcp/servers/{}/call", id.as_str().unwrap());
            Api::admin(gateway)
                .ask("POST", &path, body, &[])
                .await
                .status
                == 200
        })
        .await;
    };
    callable(&first).await;
    callable(&second).await;
    first.process.signal(rustix::process::Signal::KILL);
    first.process.wait(testkit::DEADLINE).await;
    namespace.apply("later", scripted("later", json!({})));
    namespace.ready("later").await;
    namespace.ready("shared").await;
    callable(&second).await;
    assert_eq!((instances("shared"), instances("later")), (1, 1));
    let first = first.again().await;
    namespace.delete("shared");
    namespace.gone("shared").await;
    assert_eq!(
        (instances("shared"), server(&second, "shared").await),
        (0, None)
    );
    wait_for("the end everywhere", LONG_DEADLINE, async || {
        server(&first, "shared").await.is_none()
    })
    .await;
    namespace.delete("later");
    namespace.gone("later").await;
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
    let output = convert
        .args(["kubernetes", "convert"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success());
    let warnings = String::from_utf8(output.stderr).unwrap();
    assert_eq!(warnings.lines().count(), 1, "{warnings}");
    assert!(
        warnings.starts_with("warning: fetch: `spec.podTemplateSpec`: is not converted"),
        "{warnings}"
    );
    let ours = String::from_utf8(output.stdout).unwrap();
    let args = ["apply", "--dry-run=server", "--output=json", "--filename=-"];
    let applied: Value = serde_json::from_str(&namespace.kubectl(&args, &ours)).unwrap();
    assert_eq!(
        applied["spec"],
        json!({
            "image": "ghcr.io/x/fetch:1", "stdioBridge": false, "ports": [3000], "network": "open", "reclaimPolicy": "Delete",
            "sandbox": {"cpu": "100m", "memory": "128Mi"}, "secretEnv": {"TOKEN": {"secretKeyRef": {"name": "keys", "key": "token"}}},
            "env": {"MCP_TRANSPORT": "streamable-http", "MCP_PORT": "3000", "FASTMCP_PORT": "3000"},
        })
    );
    assert!(kubectl(&["explain", "mcpserver.spec.secretEnv"], "").contains("Secrets"));
}
