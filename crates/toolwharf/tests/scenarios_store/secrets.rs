//! P04: `${VAR}` is filled from the secrets of the project only.

use serde_json::{Value, json};
use testkit::{Bin, Outcome, Peer, Process};

use crate::{
    api::Api,
    common::{Gateway, checks, is_away, scripted},
    support::{Db, legacy, pid, works},
};

on_both!(
    p04_variables_are_filled_from_the_projects_secrets,
    p04_a_missing_secret_is_named,
    p04_no_error_tells_a_secret,
);

async fn set(api: &Api<'_>, project: &str, name: &str, value: &str) {
    let path = format!("/projects/{project}/secrets/{name}");
    api.put(&path, json!({"value": value})).await;
}

/// Creates a project whose tools are named after their servers.
async fn prefixed(api: &Api<'_>, project: &str) {
    let path = format!("/projects/{project}");
    api.put(&path, json!({"naming": "always-prefix"})).await;
}

/// Asserts that both servers of a project see this key.
async fn see_key(peer: &mut Peer, key: &str) {
    let env = peer.tool("local__env", json!({})).await;
    assert_eq!(env.result()["structuredContent"]["KEY"], format!("<{key}>"));
    let headers = peer.tool("remote__headers", json!({})).await;
    let expected = json!({"x-key": format!("<{key}>"), "authorization": format!("Bearer {key}")});
    checks::members(&headers.result()["structuredContent"], expected);
}

/// A server over HTTP, and its host and port.
async fn remote() -> (Process, String) {
    let mut process = Process::bin("testkit-scripted", ["--http", "127.0.0.1:0"]);
    let url = process.url().await;
    let host = url.strip_prefix("http://").unwrap();
    let host = host.strip_suffix("/mcp").unwrap().to_owned();
    (process, host)
}

async fn p04_variables_are_filled_from_the_projects_secrets(db: &Db) {
    let (_remote, host) = remote().await;
    let gateway = db.setup().serve().await;
    let api = Api::admin(&gateway);
    let stdio = json!({
        "command": "${FOLDER}/testkit-scripted",
        "args": ["--name", "${NAME}-${NAME}", "--tools", "${NONE:-1}"],
        "env": {"KEY": "<${KEY}>", "PLAIN": "$${KEY}"},
    });
    let http = json!({
        "type": "http", "url": "http://${HOST}/mcp",
        "headers": {"X-Key": "<${KEY}>", "Authorization": "Bearer ${KEY}"},
    });
    let folder = Bin::path("testkit-scripted");
    let folder = folder.parent().unwrap().to_str().unwrap();
    for project in ["a", "b"] {
        prefixed(&api, project).await;
        api.server(project, "local", stdio.clone()).await;
        api.server(project, "remote", http.clone()).await;
        let key = format!("canary-{project}");
        for (name, value) in [
            ("FOLDER", folder),
            ("NAME", project),
            ("HOST", &host),
            ("KEY", &key),
        ] {
            set(&api, project, name, value).await;
        }
    }
    for project in ["a", "b"] {
        let mut peer = legacy(&gateway, project).await;
        see_key(&mut peer, &format!("canary-{project}")).await;
        let env = peer.tool("local__env", json!({})).await;
        assert_eq!(env.result()["structuredContent"]["PLAIN"], "${KEY}");
        let process = pid(&mut peer, "local__pid").await;
        let line = std::fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap();
        let expected = format!("testkit-scripted --name {project}-{project} --tools 1 ");
        assert!(line.replace('\0', " ").ends_with(&expected), "{line:?}");
    }
    // A new value is used from the next call on, in this project only.
    let mut peers = [legacy(&gateway, "a").await, legacy(&gateway, "b").await];
    set(&api, "a", "KEY", "canary-new").await;
    for (peer, value) in peers.iter_mut().zip(["canary-new", "canary-b"]) {
        see_key(peer, value).await;
    }
    untold(&gateway, &api, &["canary"]).await;
}

/// Asserts that neither the log nor the API responses for project `a` contain any of these values.
async fn untold(gateway: &Gateway, api: &Api<'_>, values: &[&str]) {
    let mut texts = vec![gateway.process.stderr(), gateway.metrics().await];
    for path in [
        "/projects/a",
        "/mcp/servers?project=a",
        "/tools?project=a",
        "/projects/a/secrets",
        "/calls?project=a",
    ] {
        texts.push(api.get(path).await.to_string());
    }
    for text in texts {
        checks::lacks(&text, values);
    }
}

fn message(outcome: &Outcome) -> &str {
    let message = outcome.response["error"]["message"].as_str();
    message.unwrap_or_else(|| panic!("no error: {outcome:?}"))
}

async fn p04_a_missing_secret_is_named(db: &Db) {
    let (_remote, host) = remote().await;
    let setup = db.setup().env("MISSING", "canary-of-the-host");
    let gateway = setup.serve().await;
    let api = Api::admin(&gateway);
    for project in ["a", "other"] {
        api.project(project).await;
    }
    // Secrets of other projects are not used.
    set(&api, "other", "MISSING", "canary-of-others").await;
    set(&api, "a", "KEY", "canary-key").await;
    let scripted = scripted("x", &[]);
    let command = scripted["command"].as_str().unwrap();
    let with = |key: &str, value: Value| {
        let mut entry = scripted.clone();
        entry[key] = value;
        entry
    };
    let url = format!("http://{host}/mcp");
    let command = json!(format!("${{MISSING}}{command}"));
    let args = json!(["--name", "x${KEY}${MISSING}"]);
    let env = json!({"K": "${KEY}", "M": "${env:MISSING}"});
    let headers = json!({"K": "${KEY}", "M": "${MISSING}"});
    let cases = [
        ("command", with("command", command)),
        ("args", with("args", args)),
        ("env", with("env", env)),
        ("url", json!({"url": format!("{url}?${{MISSING}}${{KEY}}")})),
        ("headers", json!({"url": url, "headers": headers})),
    ];
    for (name, entry) in &cases {
        api.server("a", name, entry.clone()).await;
    }
    let mut peers = Vec::new();
    for (name, _) in &cases {
        peers.push(legacy(&gateway, &format!("a/{name}")).await);
    }
    for ((name, _), peer) in cases.iter().zip(&mut peers) {
        let shown = api.get(&format!("/mcp/servers/{name}?project=a")).await;
        let refused = peer.tool("echo", json!({})).await;
        assert!(is_away(&refused.response), "{refused:?}");
        let named = ["`MISSING`", "project `a`"];
        checks::string(&shown["reason"], &named);
        checks::contains(message(&refused), &named);
        checks::contains(message(&refused), &[&format!("server `{name}`")]);
        checks::lacks(refused.response.to_string(), &["canary"]);
    }
    untold(&gateway, &api, &["canary"]).await;
    // Setting the secret makes the next call succeed, whatever failed before. After the secret is removed, calls fail
    // again.
    set(&api, "a", "MISSING", "").await;
    for peer in &mut peers {
        works(peer, "echo").await;
    }
    api.delete("/projects/a/secrets/MISSING").await;
    for peer in &mut peers {
        let refused = peer.tool("echo", json!({})).await;
        checks::contains(message(&refused), &["`MISSING`"]);
    }
}

/// If a connection fails for another reason, the error does not quote the secret.
async fn p04_no_error_tells_a_secret(db: &Db) {
    let gateway = db.setup().serve().await;
    let api = Api::admin(&gateway);
    prefixed(&api, "a").await;
    set(&api, "a", "KEY", "canary").await;
    let mut loud = scripted("loud", &["--stderr-at-start", "${KEY}", "--exit-at-start"]);
    loud["env"] = json!({"K": "${KEY}"});
    let at = |url: &str| json!({"url": url});
    let mut folder = scripted("sound", &[]);
    folder["cwd"] = json!("/none/${KEY}");
    let mut sse = at("http://127.0.0.1:1/${KEY}");
    sse["type"] = "sse".into();
    for (name, entry) in [
        ("command", json!({"command": "/none/${KEY}"})),
        ("folder", folder),
        ("loud", loud),
        ("port", at("http://127.0.0.1:1/${KEY}/mcp?k=${KEY}")),
        ("user", at("http://${KEY}:${KEY}@127.0.0.1:1/mcp")),
        ("host", at("http://${KEY}.invalid/mcp")),
        ("sse", sse),
    ] {
        api.server("a", name, entry).await;
        let mut peer = legacy(&gateway, &format!("a/{name}")).await;
        let failed = peer.tool("echo", json!({"text": "x"})).await;
        let text = failed.response.to_string();
        assert!(is_away(&failed.response), "{name}: {text}");
        assert!(!text.contains("canary"), "{name}: {text}");
        let shown = api.get(&format!("/mcp/servers/{name}?project=a")).await;
        assert!(!shown.to_string().contains("canary"), "{name}: {shown}");
    }
    untold(&gateway, &api, &["canary"]).await;
}
