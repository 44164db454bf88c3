//! Secrets appear in no log, database file, response, error, argument list, or environment of another process.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;
mod kept;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use common::{LEGACY, Setup, body, rpc::initialize, scripted, session::Session};
use kept::Kept;
use serde_json::{Value, json};
use testkit::{DEADLINE, Issuer, Peer, Process, soak, wait_for};

/// The secrets of the tests: a name and a unique value each.
const CANARIES: [(&str, &str); 5] = [
    ("IN_ENV", "canary-env-7f3a91c2"),
    ("IN_HEADER", "canary-header-1b8e44d0"),
    ("IN_URL", "canary-url-93c05fe7"),
    ("REPLACED", "canary-replaced-5d2260ab"),
    ("FAILING", "canary-failing-c6e817f4"),
];
const SECOND_CANARY: &str = "canary-second-e09b4d36";
/// The beginning of all values of [`more_canaries`].
const MORE_CANARIES: &str = "canary-more-4be2f6c1";

/// Records each canary found in `bytes`.
fn find(place: &str, bytes: &[u8], found: &mut Vec<String>) {
    let values = CANARIES.iter().map(|(_, value)| *value);
    for value in values.chain([SECOND_CANARY, MORE_CANARIES]) {
        if has(bytes, value) {
            found.push(format!("{value} in {place}"));
        }
    }
}

fn has(bytes: &[u8], text: &str) -> bool {
    memchr::memmem::find(bytes, text.as_bytes()).is_some()
}

fn without(bytes: &[u8], text: &str) -> Vec<u8> {
    String::from_utf8_lossy(bytes).replace(text, "").into()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else if path.is_file() {
            // A socket has no content.
            all.push(path);
        }
    }
    all
}

fn find_in_files(folder: &Path, found: &mut Vec<String>) {
    for file in files(folder) {
        let bytes = std::fs::read(&file).unwrap();
        find(&file.display().to_string(), &bytes, found);
    }
}

fn descendants(root: u32) -> Vec<u32> {
    let mut parents = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let parent = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<u32>().ok());
        parents.insert(pid, parent.unwrap_or_default());
    }
    let mut all = vec![root];
    let mut at = 0;
    while at < all.len() {
        let parent = all[at];
        let children = parents.iter().filter(|(_, of)| **of == parent);
        all.extend(children.map(|(pid, _)| *pid));
        at += 1;
    }
    all
}

/// Adds 10,000 secrets in a soak run, otherwise 20. A project has room for 500. Returns all responses.
async fn more_canaries(running: &kept::Running) -> String {
    let (projects, of_each) = if soak() { (25, 400) } else { (1, 20) };
    let mut answers = String::new();
    for project in 0..projects {
        let place = format!("/projects/more{project}");
        answers += &running.ok("PUT", &place, json!({})).await.to_string();
        for n in 0..of_each {
            let body = json!({"value": format!("{MORE_CANARIES}-{project}-{n}")});
            let path = format!("{place}/secrets/MORE_{n}");
            answers += &running.ok("PUT", &path, body).await.to_string();
        }
        let path = format!("{place}/secrets?limit=1000");
        answers += &running.ok("GET", &path, Value::Null).await.to_string();
    }
    eprintln!(
        "leaks: {} secrets (bound: none is found)",
        projects * of_each
    );
    answers
}

async fn canaries(mut kept: Kept) {
    kept.set_env("RUST_LOG", Some("trace"));
    kept.settings("[audit]\nbodies = \"full\"\n");
    kept.servers(json!({"bystander": scripted("bystander", &[])}));
    let running = kept.start().await;
    let mut found = Vec::new();
    let mut answers = String::new();
    running.ok("PUT", "/projects/p", json!({})).await;
    for (name, value) in CANARIES {
        let body = json!({"value": value});
        let path = format!("/projects/p/secrets/{name}");
        answers += &running.ok("PUT", &path, body).await.to_string();
    }
    answers += &more_canaries(&running).await;
    let mut holder = scripted("holder", &[]);
    holder["env"] = json!({"TOKEN": "${IN_ENV}"});
    // No server listens at this address. The error must not contain it.
    let remote = json!({
        "url": "http://user:${IN_URL}@127.0.0.1:9/mcp?key=${IN_URL}",
        "headers": {"Authorization": "Bearer ${IN_HEADER}"},
    });
    let sse = json!({"type": "sse", "url": "http://127.0.0.1:9/${IN_URL}", "headers": {"X-Key": "${IN_HEADER}"}});
    // This server writes its environment to stderr and exits.
    let failing =
        json!({"command": "sh", "args": ["-c", "env >&2; exit 3"], "env": {"TOKEN": "${FAILING}"}});
    let other = scripted("other", &[]);
    for (name, entry) in [
        ("holder", holder),
        ("remote", remote),
        ("sse", sse),
        ("failing", failing),
        ("other", other),
    ] {
        let path = format!("/mcp/servers/{name}?project=p");
        answers += &running.ok("PUT", &path, entry).await.to_string();
    }
    let call = async |name: &str, arguments: Value| {
        let params = json!({"name": name, "arguments": arguments});
        running.mcp("p", "tools/call", params).await.text()
    };
    answers += &running.mcp("p", "tools/list", json!({})).await.text();
    // The server that received the secret may return it. The response is passed on, but recorded without the secret.
    let said = call("holder__env", json!({})).await;
    assert!(said.contains(CANARIES[0].1), "{said}");
    call("holder__echo", json!({"text": CANARIES[0].1})).await;
    for path in ["/mcp/p/remote", "/mcp/p/sse", "/mcp/p/failing"] {
        let reply = initialize(&running.raw(path), LEGACY).await;
        answers += &reply.text();
    }
    wait_for("the failures", DEADLINE, async || {
        let path = "/mcp/servers?project=p";
        let rows = running.ok("GET", path, Value::Null).await;
        let rows = rows["servers"].as_array().unwrap().iter();
        rows.filter(|row| row["reason"].is_string()).count() == 3
    })
    .await;
    let second = json!({"value": SECOND_CANARY});
    let path = "/projects/p/secrets/REPLACED";
    answers += &running.ok("PUT", path, second).await.to_string();
    for path in [
        "",
        "/status",
        "/mcp/servers",
        "/tools",
        "/projects",
        "/projects/p",
        "/mcp/servers?project=p",
        "/mcp/servers/holder?project=p",
        "/mcp/servers/remote?project=p",
        "/mcp/servers/sse?project=p",
        "/mcp/servers/failing?project=p",
        "/tools?project=p",
        "/projects/p/secrets",
        "/projects/p/secrets/IN_ENV",
        "/calls?project=p",
        "/calls",
        "/keys",
    ] {
        answers += &running.rest("GET", path, Value::Null).await.text();
    }
    let calls = running.ok("GET", "/calls", Value::Null).await;
    for row in calls["calls"].as_array().unwrap() {
        let path = format!("/calls/{}", row["id"].as_str().unwrap());
        answers += &running.rest("GET", &path, Value::Null).await.text();
    }
    let replaced = answers.contains("[secret]");
    assert!(replaced, "no body was recorded with its secrets replaced");
    let metrics = running.raw("/metrics").get(&[]).await;
    answers += &metrics.collect(DEADLINE).await.text();
    find("an answer", answers.as_bytes(), &mut found);
    // A secret is only in the process that it is meant for.
    let mut holders = 0;
    for pid in descendants(running.process.pid()) {
        let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let arguments = read("cmdline");
        let line = String::from_utf8_lossy(&arguments);
        find(&format!("arguments of {line}"), &arguments, &mut found);
        let mut environment = read("environ");
        // The failing server is restarted, and has its own secret while it runs.
        if has(&arguments, "env >&2") || arguments.starts_with(b"env\0") {
            environment = without(&environment, CANARIES[4].1);
        }
        if has(&arguments, "\0holder") {
            holders += 1;
            assert!(has(&environment, CANARIES[0].1));
            environment = without(&environment, CANARIES[0].1);
        }
        find(&format!("environment of {line}"), &environment, &mut found);
    }
    assert_eq!(holders, 1);
    find_in_files(&kept.data(""), &mut found);
    if let Some(database) = &kept.database {
        let dump = database.dump().await;
        find("the dump of the database", &dump, &mut found);
    }
    let log = running.stop().await;
    assert!(log.contains("TRACE"), "the log is incomplete");
    find("the log", log.as_bytes(), &mut found);
    find_in_files(&kept.data(""), &mut found);
    assert!(found.is_empty(), "{found:#?}");
}

#[tokio::test]
async fn no_secret_leaks_with_sqlite() {
    canaries(Kept::sqlite().await).await;
}

#[tokio::test]
async fn no_secret_leaks_with_postgres() {
    canaries(Kept::postgres().await).await;
}

/// Users' tokens, the gateway's client secret at their issuer, and a browser's cookie do not leak either.
#[tokio::test]
async fn nothing_that_people_sign_in_with_leaks() {
    let client = |name: &str, secret: &str| {
        json!({
            "client_id": name, "client_secret": secret, "grant_types": ["client_credentials"], "redirect_uris": [],
            "response_types": [], "token_endpoint_auth_method": "client_secret_post",
        })
    };
    let own = "canary-own-secret-4ad1770c";
    let mut clients = json!([client("wharf", own), client("robot", "of-the-robot")]);
    // The gateway's client authenticates with a header.
    clients[0]["token_endpoint_auth_method"] = json!("client_secret_basic");
    let issuer = Issuer::start(json!({ "clients": clients, "opaque": true })).await;
    let mut upstream = Process::bin("testkit-scripted", ["--http", "127.0.0.1:0"]);
    let settings = format!(
        "[audit]\nbodies = \"full\"\n[auth.oidc.corp]\nissuer = \"{}\"\nintrospection = true\nclient_id = \"wharf\"\n\
             client_secret = \"${{OWN_SECRET}}\"\naccess = [{{ role = \"admin\" }}]\n",
        issuer.url()
    );
    let setup = Setup::new()
        .settings(&settings)
        .env("OWN_SECRET", own)
        .env("RUST_LOG", "trace")
        .server("up", json!({ "url": upstream.url().await }));
    let mut gateway = setup.connected().await;
    let resource = gateway.url.clone();
    let token = async |claims| issuer.token("ann", "client", &resource, &[], claims).await;
    let good = token(json!({})).await;
    let expired = token(json!({ "exp": 1000 })).await;
    let form = format!(
        "grant_type=client_credentials&client_id=robot&client_secret=of-the-robot&resource={resource}&scope=mcp:call"
    );
    let endpoint = testkit::RawClient::new(&format!("{}/token", issuer.url()));
    let kind = [("content-type", "application/x-www-form-urlencoded")];
    let opaque = body(&endpoint.post_with(&kind, form).await);
    let opaque = opaque["access_token"].as_str().unwrap().to_owned();
    let session = Session::enter(&gateway, &gateway.token()).await;
    let (_, cookie) = session.cookie.split_once('=').unwrap();

    let mut answers = String::new();
    for token in [&good, &opaque] {
        let bearer = format!("Bearer {token}");
        let client = gateway.client().with("authorization", &bearer);
        let mut peer = Peer::http(client, testkit::peer::MODERN, json!({})).await;
        let seen = peer.tool("headers", json!({})).await;
        assert!(seen.text().contains("host"), "{seen:?}");
        answers += &format!("{seen:?}");
    }
    for token in [&good, &expired, &opaque, &"canary-unknown-5b0e".to_owned()] {
        for path in [
            "/mcp",
            "/api/v1/calls",
            "/api/v1/status",
            "/api/v1/mcp/servers",
        ] {
            let bearer = format!("Bearer {token}");
            let reply = gateway.at(path).get(&[("authorization", &bearer)]).await;
            answers += &format!("{:?}", reply.headers);
            answers += &reply.collect(DEADLINE).await.text();
        }
    }
    let reply = session.get(gateway.at("/api/v1/calls")).await;
    assert_eq!(reply.status, 200);
    answers += &reply.text();
    answers += &gateway.metrics().await;
    gateway.process.signal(rustix::process::Signal::TERM);
    gateway.process.ended(DEADLINE).await;
    let log = gateway.process.stderr();
    assert!(log.contains("TRACE"), "the log is incomplete");
    let mut places = vec![
        ("an answer".to_owned(), answers.into_bytes()),
        ("the log".to_owned(), log.into_bytes()),
    ];
    for file in files(&gateway.folder().join("data")) {
        places.push((file.display().to_string(), std::fs::read(&file).unwrap()));
    }
    let part = |token: &str| token.rsplit('.').next().unwrap().to_owned();
    for secret in [
        part(&good),
        part(&expired),
        opaque,
        own.to_owned(),
        cookie.to_owned(),
        session.secret.clone(),
        "canary-unknown-5b0e".to_owned(),
    ] {
        for (place, bytes) in &places {
            assert!(!has(bytes, &secret), "{secret} in {place}");
        }
    }
}
