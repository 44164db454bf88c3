//! C07: installing a server from a registry, offline: form, sandbox, egress, pinned hash, trial run, then enabled. A
//! hostile entry executes nothing. All registries are local, except in the one test that says so.

use std::{
    collections::BTreeMap,
    fs,
    io::{Cursor, Write as _},
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, Uri},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use testkit::{DEADLINE, Issuer, Process, Protected, Registry, protected, within};
use tokio::{io::AsyncWriteExt as _, net::TcpListener, task::JoinSet};
use zip::{ZipWriter, write::SimpleFileOptions};

use crate::{
    packages,
    support::{Host, LONG_DEADLINE, Platform, Site, docker, enforced},
};

/// A server registry: its response to each path, ignoring the query.
#[derive(Clone, Default)]
struct Listed(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

impl Listed {
    async fn serve(&self) -> (String, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answer = async |State(listed): State<Self>, uri: Uri| {
            let found = listed.0.lock().unwrap().get(uri.path()).cloned();
            found.ok_or(StatusCode::NOT_FOUND)
        };
        let app = Router::new().fallback(answer).with_state(self.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, app).await.unwrap() });
        (url, serving)
    }

    fn put(&self, path: &str, answer: impl Into<Vec<u8>>) {
        self.0
            .lock()
            .unwrap()
            .insert(path.to_owned(), answer.into());
    }

    /// Lists exactly these entries.
    fn list(&self, entries: &[Value]) {
        let wrapped = |entry: &Value| json!({"server": entry});
        let all: Vec<Value> = entries.iter().map(wrapped).collect();
        self.put(
            "/v0.1/servers",
            json!({"servers": all, "metadata": {}}).to_string(),
        );
        for entry in entries {
            let name = entry["name"].as_str().unwrap().replace('/', "%2F");
            let path = format!("/v0.1/servers/{name}/versions/latest");
            self.put(&path, wrapped(entry).to_string());
        }
    }
}

fn entry(name: &str, package: Value) -> Value {
    json!({
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": name, "description": "Says hello", "version": "1.0.0", "packages": [package],
    })
}

fn tiny(kind: &str, version: &str) -> Value {
    json!({
        "registryType": kind, "identifier": Registry::PACKAGE, "version": version, "transport": {"type": "stdio"},
    })
}

/// A product whose only server registry is at `url`, with packages from `registry`.
async fn site(url: &str, registry: Option<&Registry>) -> Site {
    let mut site = packages::site().await;
    site.kept.settings(&format!(
        "[limits]\nstop_grace = \"2s\"\n[hosting]\nproviders = [\"process\"]\n[registries.test]\nurl = {url:?}\n"
    ));
    let npm = registry.map_or(packages::NO_REGISTRY.to_owned(), Registry::npm);
    let pypi = registry.map_or(packages::NO_REGISTRY.to_owned(), Registry::pypi);
    packages::registries(&mut site, Some(&npm), Some(&pypi));
    site
}

/// The exit code and output of a command.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

async fn said(site: &Site, verb: &str, args: &[&str], input: &str) -> Said {
    let mut command = site.kept.command(verb);
    command.args(args).arg("--data-dir").arg(site.kept.data(""));
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .await
        .unwrap();
    let output = within(
        &format!("toolwharf {verb} {args:?}"),
        LONG_DEADLINE * 2,
        child.wait_with_output(),
    )
    .await
    .unwrap();
    Said {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

async fn install(site: &Site, args: &[&str]) -> Said {
    said(site, "install", args, "").await
}

/// Calls a server's tool and returns its text.
async fn called(host: &Host, server: &str, tool: &str, arguments: Value) -> String {
    let params = json!({"name": tool, "arguments": arguments});
    let reply = host
        .running
        .mcp(&format!("-/{server}"), "tools/call", params)
        .await;
    let answer: Value = serde_json::from_str(&reply.text()).unwrap();
    let text = answer["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

fn file(site: &Site) -> Value {
    let text = fs::read_to_string(site.kept.dir.path().join("mcp.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn c07_packages_go_from_a_registry_to_a_called_tool() {
    let registry = Registry::new().await;
    let tools = json!([{"name": "hello", "description": "Says hello", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}}]);
    registry.publish("1.0.0", &tools);
    registry.publish("1.1.0", &tools);
    let listed = Listed::default();
    let node = entry("com.example/tiny-node", tiny("npm", "1.0.0"));
    let mut python = entry("com.example/tiny-python", tiny("pypi", "1.0.0"));
    python["packages"][0]["environmentVariables"] =
        json!([{"name": "GREETING", "isRequired": true}]);
    let outbound = json!({"allow_host": ["api.example.com"], "allow_port": [443]});
    python["_meta"] = json!({"io.modelcontextprotocol.registry/publisher-provided": {"io.github.stacklok": {
        Registry::PACKAGE: {"permissions": {"network": {"outbound": outbound}}},
    }}});
    let touched = tempfile::tempdir().unwrap();
    let witness = touched.path().join("witness");
    let mut hostile = entry("com.example/hostile", tiny("npm", "1.0.0"));
    hostile["packages"][0]["runtimeArguments"] = json!([{"type": "named", "name": "--call", "value": format!("touch {}", witness.display())}]);
    listed.list(&[node, python, hostile]);
    let (url, _serving) = listed.serve().await;
    let mut site = site(&url, Some(&registry)).await;
    let host = site.start().await;

    let found = said(&site, "search", &["hello"], "").await;
    assert_eq!(found.code, Some(0), "{found:?}");
    for part in [
        "com.example/tiny-node",
        "com.example/tiny-python",
        "npm",
        "pypi",
        "test",
        "Says hello",
    ] {
        assert!(found.out.contains(part), "{part}: {found:?}");
    }
    // Without a terminal or `--yes`, the command fails and changes nothing.
    let none = install(&site, &["tiny-node"]).await;
    assert_eq!(
        (none.code, file(&site)),
        (Some(2), json!({"mcpServers": {}})),
        "{none:?}"
    );
    let refused = install(&site, &["com.example/hostile", "--yes"]).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.err.contains("`/packages/0/runtimeArguments/0`"),
        "{refused:?}"
    );
    let lacking = install(&site, &["tiny-python", "--yes"]).await;
    assert!(
        lacking.code == Some(1) && lacking.err.contains("/values/GREETING"),
        "{lacking:?}"
    );
    assert_eq!(file(&site), json!({"mcpServers": {}}));
    assert!(!witness.exists() && packages::shelved(&site).is_empty());

    let done = install(&site, &["tiny-node", "--yes", "--name", "node"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    for part in [
        "network: none",
        "it ran under process",
        "it has 1 tool:",
        "hello [reads only]  Says hello",
        "connected: 1 tool,",
    ] {
        assert!(done.err.contains(part), "{part}: {done:?}");
    }
    let done = install(
        &site,
        &[
            "tiny-python",
            "--yes",
            "--name",
            "python",
            "--set",
            "GREETING=Ciao ${HOME}",
        ],
    )
    .await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(
        done.err.contains("network: api.example.com:443"),
        "{done:?}"
    );
    let all = &file(&site)["mcpServers"];
    assert_eq!(
        all["node"]["args"],
        json!(["-y", format!("{}@1.0.0", Registry::PACKAGE)])
    );
    assert_eq!(all["node"]["toolwharf"], json!({"sandbox": true}));
    assert_eq!(all["python"]["env"], json!({"GREETING": "Ciao $${HOME}"}));
    assert_eq!(
        all["python"]["toolwharf"]["network"],
        json!(["api.example.com:443"])
    );
    // A name that is in use is refused before anything is executed.
    let twice = install(&site, &["tiny-node", "--yes", "--name", "node"]).await;
    assert!(
        twice.code == Some(1) && twice.err.contains("choose another name"),
        "{twice:?}"
    );
    host.stop().await;

    // The package is pinned now, so no registry is needed.
    packages::registries(
        &mut site,
        Some(packages::NO_REGISTRY),
        Some(packages::NO_REGISTRY),
    );
    let host = site.start().await;
    for name in ["node", "python"] {
        host.until(name, "running").await;
        assert_eq!(called(&host, name, "hello", json!({})).await, "1.0.0");
        let told = host.status(name).await;
        let (holds, how) = enforced(&told, "package");
        assert!(
            holds && how.contains("pinned with its hashes") && enforced(&told, "network").0,
            "{told:#}"
        );
    }
    host.stop().await;
}

#[tokio::test]
async fn c07_a_failed_trial_leaves_nothing() {
    let registry = Registry::new().await;
    // The package does not declare its tools.
    registry.publish("1.0.0", &Value::Null);
    let listed = Listed::default();
    let mut package = tiny("npm", "1.0.0");
    package["environmentVariables"] =
        json!([{"name": "KEY", "isSecret": true, "isRequired": true}]);
    listed.list(&[entry("com.example/tiny", package)]);
    let (url, _serving) = listed.serve().await;
    let site = site(&url, Some(&registry)).await;
    let host = site.start().await;
    host.running.ok("PUT", "/projects/shop", json!({})).await;
    let body = json!({"values": {"KEY": "hunter2"}});
    let path = "/registry/servers/com.example%2Ftiny/install?project=shop";
    let refused = host.running.rest("POST", path, body).await;
    let text = refused.text();
    assert!(
        refused.status == 422 && text.contains("nothing was installed"),
        "{} {text}",
        refused.status
    );
    let servers = host.running.ok("GET", "/mcp/servers", Value::Null).await;
    assert_eq!(servers["servers"], json!([]));
    let secrets = host
        .running
        .ok("GET", "/projects/shop/secrets", Value::Null)
        .await;
    assert_eq!(secrets["secrets"], json!([]));
    assert!(
        packages::shelved(&site).is_empty(),
        "{:?}",
        packages::shelved(&site)
    );
    assert!(
        !site
            .kept
            .data("hosting/process/volumes")
            .read_dir()
            .is_ok_and(|mut all| all.next().is_some())
    );
    let log = host.stop().await;
    assert!(!log.contains("hunter2") && !text.contains("hunter2"));
}

#[tokio::test]
async fn c07_secrets_go_to_the_project_and_only_there() {
    let registry = Registry::new().await;
    registry.publish(
        "1.0.0",
        &json!([{"name": "hello", "inputSchema": {"type": "object"}}]),
    );
    let listed = Listed::default();
    let mut package = tiny("npm", "1.0.0");
    package["environmentVariables"] =
        json!([{"name": "KEY", "isSecret": true, "isRequired": true}]);
    listed.list(&[entry("com.example/tiny", package)]);
    let (url, _serving) = listed.serve().await;
    let site = site(&url, Some(&registry)).await;
    let host = site.start().await;
    host.running.ok("PUT", "/projects/shop", json!({})).await;
    let form = host
        .running
        .ok("GET", "/registry/servers/tiny", Value::Null)
        .await;
    assert_eq!(
        form["options"][0]["inputs"]["properties"]["KEY"]["format"],
        "password"
    );
    // mcp.json contains no secrets.
    let refused = install(&site, &["tiny", "--yes"]).await;
    assert!(
        refused.code == Some(1) && refused.err.contains("set KEY in the environment"),
        "{refused:?}"
    );
    let in_argv = install(
        &site,
        &["tiny", "--yes", "--project", "shop", "--set", "KEY=hunter2"],
    )
    .await;
    assert!(
        in_argv.code == Some(2) && in_argv.err.contains("--secret-from"),
        "{in_argv:?}"
    );
    let args = [
        "tiny",
        "--yes",
        "--project",
        "shop",
        "--secret-from",
        "KEY=-",
    ];
    let done = said(&site, "install", &args, "hunter2\n").await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let server = host
        .running
        .ok("GET", "/mcp/servers/tiny?project=shop", Value::Null)
        .await;
    assert_eq!(server["config"]["env"], json!({"KEY": "${TINY_KEY}"}));
    let secrets = host
        .running
        .ok("GET", "/projects/shop/secrets", Value::Null)
        .await;
    assert_eq!(secrets["secrets"][0]["name"], "TINY_KEY");
    // The server is not enabled before approval. To give up the installation is to remove the server.
    let digest = &form["digest"];
    let body = json!({"name": "other", "digest": digest, "values": {"KEY": "hunter2"}});
    let path = "/registry/servers/tiny/install?project=shop";
    let installed = host.running.ok("POST", path, body).await;
    let server = &installed["server"];
    assert_eq!(
        (&server["enabled"], &server["status"]),
        (&json!(false), &json!("disabled")),
        "{installed:#}"
    );
    assert_eq!(installed["tools"][0]["name"], "hello");
    let id = server["id"].as_str().unwrap();
    host.running
        .ok("DELETE", &format!("/mcp/servers/{id}"), Value::Null)
        .await;
    // The digest is that of another entry.
    let stale = json!({"name": "third", "digest": "0", "values": {"KEY": "x"}});
    assert_eq!(host.running.rest("POST", path, stale).await.status, 409);
    // A project key cannot install what would run on this host, nor name a registry.
    let wanted = json!({"name": "m", "role": "manage"});
    let key = host.running.ok("POST", "/keys?project=shop", wanted).await;
    let key = key["token"].as_str().unwrap();
    for (method, path, body) in [
        (
            "POST",
            "/registry/servers/tiny/install",
            json!({"name": "fourth", "values": {"KEY": "x"}}),
        ),
        (
            "GET",
            "/registry/servers?registry=http://127.0.0.1:9",
            Value::Null,
        ),
    ] {
        let client = host.running.raw(&format!("/api/v1{path}"));
        let client = client.with("authorization", &format!("Bearer {key}"));
        let method = method.parse().unwrap();
        let sent = client
            .try_send(method, &[], body.to_string())
            .await
            .unwrap();
        let reply = sent.collect(DEADLINE).await;
        assert_eq!(reply.status, 403, "{}", reply.text());
    }
    let log = host.stop().await;
    assert!(!log.contains("hunter2") && !format!("{done:?}{installed}").contains("hunter2"));
}

/// A server of one file, for Node.js without packages. `description` is JavaScript.
fn bundle(description: &str) -> (Vec<u8>, String) {
    let server = format!(
        r#"
const tools = [{{name: "where", description: {description}, inputSchema: {{type: "object"}}}}];
const answers = {{
  initialize: (params) => ({{protocolVersion: params.protocolVersion, capabilities: {{tools: {{}}}}, serverInfo: {{name: "b", version: "1"}}}}),
  "tools/list": () => ({{tools}}),
  "tools/call": () => ({{content: [{{type: "text", text: process.argv[2] + " " + require("fs").existsSync("/root")}}]}}),
  ping: () => ({{}}),
}};
require("readline").createInterface({{input: process.stdin}}).on("line", (line) => {{
  const {{id, method, params}} = JSON.parse(line);
  if (id === undefined) return;
  const answer = answers[method];
  const rest = answer ? {{result: answer(params)}} : {{error: {{code: -32601, message: "unknown"}}}};
  process.stdout.write(JSON.stringify({{jsonrpc: "2.0", id, ...rest}}) + "\n");
}});
"#
    );
    let manifest = json!({
        "manifest_version": "0.3", "name": "b", "version": "1.0.0", "description": "b", "author": {"name": "b"},
        "server": {"type": "node", "entry_point": "server/index.js", "mcp_config": {
            "command": "node", "args": ["${__dirname}/server/index.js", "${user_config.word}"],
        }},
        "user_config": {"word": {"type": "string", "title": "A word", "required": true}},
    });
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, text) in [
        ("manifest.json", manifest.to_string()),
        ("server/index.js", server),
    ] {
        zip.start_file(name, SimpleFileOptions::default()).unwrap();
        zip.write_all(text.as_bytes()).unwrap();
    }
    let file = zip.finish().unwrap().into_inner();
    let sum = hex::encode(Sha256::digest(&file));
    (file, sum)
}

#[tokio::test]
async fn c07_a_bundle_runs_in_its_sandbox_and_its_tools_are_pinned() {
    let listed = Listed::default();
    let (url, _serving) = listed.serve().await;
    let of = |name: &str, description: &str| {
        let (file, sum) = bundle(description);
        listed.put(&format!("/{name}.mcpb"), file);
        let package = json!({
            "registryType": "mcpb", "identifier": format!("{url}/{name}.mcpb"), "fileSha256": sum, "transport": {"type": "stdio"},
        });
        entry(&format!("com.example/{name}"), package)
    };
    let good = of("good", r#""Where it is""#);
    // Its tool descriptions differ at each start.
    let fickle = of("fickle", "`Where it is: ${process.hrtime.bigint()}`");
    let broken = of("broken", "nothing.at.all");
    let mut swapped = of("swapped", r#""Where""#);
    swapped["packages"][0]["fileSha256"] = "0".repeat(64).into();
    listed.list(&[good, fickle, broken, swapped]);
    let site = site(&url, None).await;
    let host = site.start().await;
    let done = install(&site, &["good", "--yes", "--set", "word=here"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.err.contains("/bundle:ro"), "{done:?}");
    assert_eq!(
        called(&host, "good", "where", json!({})).await,
        "here false"
    );
    let refused = install(&site, &["swapped", "--yes"]).await;
    assert!(
        refused.code == Some(1) && refused.err.contains("its hash is"),
        "{refused:?}"
    );
    // A server that does not start leaves nothing behind, and removes no other server's bundle.
    let broken = install(&site, &["broken", "--yes", "--set", "word=x"]).await;
    assert!(
        broken.code == Some(1) && broken.err.contains("nothing was installed"),
        "{broken:?}"
    );
    let bundles = || fs::read_dir(site.kept.data("bundles")).unwrap().count();
    assert_eq!(
        (bundles(), &file(&site)["mcpServers"]["broken"]),
        (1, &Value::Null)
    );
    // The user approves the tools that the trial run showed.
    let done = install(&site, &["fickle", "--yes", "--set", "word=x"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let told = host.until("fickle", "running").await;
    assert_eq!(
        (&told["tools"], &told["kept_back"]),
        (&json!(1), &json!(1)),
        "{told:#}"
    );
    host.stop().await;
}

/// One remote server is open, the other requires a sign-in.
#[tokio::test]
async fn c07_a_remote_server_goes_from_a_registry_to_a_called_tool() {
    let mut open = Process::bin("testkit-scripted", ["--http", "127.0.0.1:0"]);
    let open_url = open.url().await;
    let issuer = Issuer::start(json!({"scopes": protected::SCOPES})).await;
    let closed = Protected::start(&issuer).await;
    let of = |name: &str, url: &str| {
        json!({
            "name": format!("com.example/{name}"), "version": "1.0.0",
            "remotes": [{"type": "streamable-http", "url": url, "headers": [{"name": "X-Region", "default": "eu"}]}],
        })
    };
    let listed = Listed::default();
    listed.list(&[
        of("open", &open_url),
        of("closed", closed.url()),
        of("private", "https://10.0.0.1/mcp"),
    ]);
    let (url, _serving) = listed.serve().await;
    let site = site(&url, None).await;
    let host = site.start().await;
    let done = install(&site, &["open", "--yes"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.err.contains("it runs elsewhere"), "{done:?}");
    let entry = &file(&site)["mcpServers"]["open"];
    assert_eq!(entry["headers"], json!({"X-Region": "eu"}), "{entry}");
    assert_eq!(
        called(&host, "open", "echo", json!({"text": "hello"})).await,
        r#"{"text":"hello"}"#
    );
    let path = "/registry/servers/closed/install";
    let installed = host.running.ok("POST", path, json!({})).await;
    assert!(
        installed["unseen"].is_string() && installed["tools"] == json!([]),
        "{installed:#}"
    );
    host.running
        .ok("POST", "/mcp/servers/closed/enable", Value::Null)
        .await;
    host.until("closed", "needs_login").await;
    let refused = install(&site, &["private", "--yes"]).await;
    assert!(
        refused.code == Some(1) && refused.err.contains("public https address"),
        "{refused:?}"
    );
    host.stop().await;
}

/// Real servers of the built-in catalogue. npm and uv use the registries that this machine is configured for.
#[tokio::test]
async fn c07_real_packages_of_the_built_in_catalogue() {
    let mut site = site("http://127.0.0.1:9", None).await;
    packages::registries(&mut site, None, None);
    let host = site.start().await;
    let found = said(
        &site,
        "search",
        &["time zones", "--registry", "built-in"],
        "",
    )
    .await;
    assert!(found.out.contains("dev.toolwharf/time"), "{found:?}");
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("note"), "hello").unwrap();
    let set = format!("folder={}", folder.path().display());
    for args in [
        &["time", "--yes", "--set", "local-timezone=Europe/Paris"][..],
        &["memory", "--yes"],
        &["filesystem", "--yes", "--set", &set],
    ] {
        let done = install(&site, args).await;
        assert_eq!(done.code, Some(0), "{args:?} {done:?}");
    }
    let time = called(
        &host,
        "time",
        "get_current_time",
        json!({"timezone": "Asia/Tokyo"}),
    )
    .await;
    assert!(time.contains("Asia/Tokyo"), "{time}");
    let entities = json!({"entities": [{"name": "a", "entityType": "b", "observations": ["c"]}]});
    let kept = called(&host, "memory", "create_entities", entities).await;
    assert!(kept.contains("\"a\""), "{kept}");
    let note = folder.path().join("note");
    let read = called(&host, "filesystem", "read_text_file", json!({"path": note})).await;
    assert_eq!(read, "hello");
    let write = called(
        &host,
        "filesystem",
        "write_file",
        json!({"path": note, "content": "x"}),
    )
    .await;
    assert!(
        write.contains("read-only") || write.contains("EROFS"),
        "{write}"
    );
    host.stop().await;
}

mod runc {
    use super::*;

    #[tokio::test]
    async fn c07_an_image_goes_from_a_registry_to_a_called_tool() {
        docker(&[
            "tag",
            "toolwharf-test/scripted",
            "toolwharf-test/scripted:1",
        ]);
        let listed = Listed::default();
        listed.list(&[entry("com.example/scripted", json!({
            "registryType": "oci", "identifier": "toolwharf-test/scripted", "version": "1", "transport": {"type": "stdio"},
            "packageArguments": [{"type": "named", "name": "--name", "valueHint": "name", "isRequired": true}],
        }))]);
        let (url, _serving) = listed.serve().await;
        let site = Site::new(Platform::Runc).await;
        let text = fs::read_to_string(site.kept.dir.path().join("toolwharf.toml")).unwrap();
        site.kept
            .settings(&format!("{text}\n[registries.test]\nurl = {url:?}\n"));
        let host = site.start().await;
        let done = install(&site, &["scripted", "--yes", "--set", "name=it"]).await;
        assert_eq!(done.code, Some(0), "{done:?}");
        assert!(
            done.err.contains("it ran under runc") && done.err.contains("it is not pinned"),
            "{done:?}"
        );
        assert_eq!(
            file(&site)["mcpServers"]["scripted"]["image"],
            "toolwharf-test/scripted:1"
        );
        host.until("scripted", "running").await;
        host.stop().await;
    }
}
