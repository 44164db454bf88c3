//! The console in a real browser, on the real binary with real servers: C01 to C14, X01.
//!
//! The browser steps are in `web/tests`, one file per test, run by Node with Playwright. The gateways they use are set
//! up here.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

#[path = "../common/mod.rs"]
mod common;
mod served;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use axum::http::Uri;
use common::{
    Gateway, Setup,
    chat::{ask, put},
    first_hour::{KEY, new_user},
    real::{EVERYTHING, installed, npm, python, venv},
};
use serde_json::{Value, json};
use testkit::{
    Bin, DEADLINE, Issuer, PathProxy, Protected,
    conformance::node_modules,
    llm::{Llm, asks, says, turns},
    protected, wait_for,
};
use tokio::{io::AsyncReadExt as _, net::TcpListener, process::Command, task::JoinSet};

fn web() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web")
}

/// Runs a test of `web/tests` against the gateway. If `TOOLWHARF_PICTURES` names a directory, screenshots are written
/// to it.
///
/// # Panics
/// If the test fails.
async fn browse(gateway: &Gateway, test: &str) {
    browse_with(gateway, test, &[]).await;
}

async fn browse_with(gateway: &Gateway, test: &str, env: &[(&str, &str)]) {
    installed(web().join("node_modules/playwright-core"));
    let link = gateway.logged("/sign-in#").await;
    let link = link.split_whitespace().last().unwrap();
    let answers = gateway.folder().join(ANSWERS);
    let ran = Command::new(node_modules().join("node/bin/node"))
        .arg(web().join("tests").join(format!("{test}.mjs")))
        .env("TOOLWHARF_URL", &gateway.url)
        .env("TOOLWHARF_LINK", link)
        .env("TOOLWHARF_TOKEN", gateway.token())
        .env("TOOLWHARF_ANSWERS", answers)
        .env("PATH", path())
        .envs(env.iter().copied())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let text = String::from_utf8_lossy;
    let said = format!("{}{}", text(&ran.stdout), text(&ran.stderr));
    assert!(ran.status.success(), "{said}\n{}", gateway.process.stderr());
    eprintln!("{said}");
}

/// A `PATH` with `toolwharf` on it, for commands that a user would paste.
fn path() -> String {
    let folder = Bin::path("toolwharf");
    let folder = folder.parent().unwrap().display().to_string();
    format!("{folder}:{}", std::env::var("PATH").unwrap())
}

/// The file with a server's answers, which a browser test may rewrite.
const ANSWERS: &str = "answers.json";

/// The entry of a scripted server with the answers of this file.
fn answering(setup: &Setup, name: &str, file: &str, answers: &Value) -> Value {
    let file = setup.folder().join(file);
    std::fs::write(&file, answers.to_string()).unwrap();
    let file = file.to_str().unwrap();
    common::scripted(name, &["--answers", file])
}

/// Builds a server's answers: it has these tools, and every call returns `content`.
fn with_tools(tools: &[Value], content: &Value) -> Value {
    json!({ "methods": { "tools/list": { "tools": tools }, "tools/call": { "content": content } } })
}

fn tool(name: &str, description: &str) -> Value {
    json!({ "name": name, "description": description, "inputSchema": { "type": "object" } })
}

fn done() -> Value {
    json!([{ "type": "text", "text": "done" }])
}

/// A gateway with the reference server `everything`.
async fn with_everything(setup: Setup) -> Gateway {
    let setup = setup.server("everything", npm(EVERYTHING, &[]));
    setup.connected().await
}

fn clock(setup: Setup) -> Setup {
    let clock = npm("server-basic-react/dist/index.js", &["--stdio"]);
    setup.server("clock", clock)
}

fn hopeless(setup: Setup) -> Setup {
    let why = ["--stderr-at-start", "Error: the index is gone"];
    setup.scripted("hopeless", &[&["--exit-at-start"], &why[..]].concat())
}

/// Configures hosting as processes, and puts `uv` on the `PATH`.
fn hosting(setup: Setup) -> Setup {
    let path = format!("{}:{}", path(), venv().join("bin").display());
    setup
        .settings("[hosting]\nproviders = [\"process\"]\n")
        .env("PATH", &path)
}

/// Gives the user a Cursor configuration file with this text.
fn with_cursor(text: &str) -> Setup {
    let setup = Setup::new();
    let folder = setup.folder().join(".cursor");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("mcp.json"), text).unwrap();
    setup
}

/// Configures an agent that uses this model.
fn with_model(llm: &Llm) -> Setup {
    Setup::new()
        .settings(&common::chat::agent(llm, ""))
        .env("ANTHROPIC_API_KEY", "sk-test")
}

#[tokio::test]
async fn c01_the_link_of_serve_leads_to_the_servers_live() {
    let setup = Setup::new().server("time", python("mcp-server-time", &[]));
    let gateway = with_everything(setup).await;
    browse(&gateway, "c01").await;
}

/// The gateway does not know the path: its proxy removes it, and there is no `public_url`.
#[tokio::test]
async fn c01_the_console_works_below_a_path_that_the_gateway_does_not_know() {
    let proxy = PathProxy::removing("/a/b").await;
    let setup = Setup::new().server("time", python("mcp-server-time", &[]));
    let gateway = with_everything(setup).await;
    proxy.leads_to(&gateway.url);
    let link = gateway.logged("/sign-in#").await;
    let (_, secret) = link.split_once('#').unwrap();
    let link = format!("{}/sign-in#{secret}", proxy.url());
    let there = [("TOOLWHARF_URL", proxy.url()), ("TOOLWHARF_LINK", &*link)];
    browse_with(&gateway, "c01", &there).await;
}

#[tokio::test]
async fn c02_a_server_in_trouble_is_shown_with_its_reason() {
    let setup = Setup::new().scripted("fragile", &["--stderr-at-start", "fragile says hello"]);
    let gateway = hopeless(setup).serve().await;
    gateway.up("fragile").await;
    browse(&gateway, "c02").await;
}

#[tokio::test]
async fn c03_a_tool_is_run_asked_and_answered_in_the_page() {
    let gateway = with_everything(clock(Setup::new())).await;
    browse(&gateway, "c03").await;
}

#[tokio::test]
async fn c04_a_call_is_kept_and_copied() {
    let gateway = with_everything(Setup::new()).await;
    browse(&gateway, "c04").await;
}

/// The page of the tools is at `/tools/tools`, which the proxies pass on as it is or as `/tools`.
#[tokio::test]
async fn c04_a_call_is_kept_and_copied_below_a_path() {
    for proxy in [
        PathProxy::keeping("/tools").await,
        PathProxy::removing("/tools").await,
    ] {
        let settings = format!("public_url = \"{}\"\n", proxy.url());
        let gateway = with_everything(Setup::new().settings(&settings)).await;
        proxy.leads_to(&gateway.url);
        browse_with(&gateway, "c04", &[("TOOLWHARF_URL", proxy.url())]).await;
    }
}

#[tokio::test]
async fn c05_calls_are_filtered_opened_and_replayed() {
    let setup = Setup::new().settings("[audit]\nbodies = \"full\"\n");
    let gateway = with_everything(setup).await;
    browse(&gateway, "c05").await;
}

#[tokio::test]
async fn c05_columns_are_sorted_and_bodies_are_recorded_for_an_hour() {
    let gateway = with_everything(clock(Setup::new())).await;
    browse(&gateway, "c05_sorting").await;
}

/// The console shows 500 servers with 5,000 tools, or a tenth of that in a short run. A million calls are tested in
/// `scenarios_store`.
#[tokio::test]
async fn c05_many_servers_and_tools_stay_fast() {
    let count = if testkit::soak() { 500 } else { 50 };
    let setup = (0..count).fold(Setup::new(), |setup, n| {
        let tools = (0..10).map(|one| {
            let says = format!("Server {n} answers {one}.");
            tool(&format!("tool-{one}"), &says)
        });
        let answers = with_tools(&tools.collect::<Vec<_>>(), &done());
        let name = format!("server-{n}");
        let entry = answering(&setup, &name, &format!("answers-{n}.json"), &answers);
        setup.server(&name, entry)
    });
    let gateway = setup.connected().await;
    let servers = count.to_string();
    browse_with(&gateway, "c05_many", &[("TOOLWHARF_SERVERS", &servers)]).await;
}

/// The page shows what a model finds in search mode, why, and how many tokens that saves. It changes a project's list.
#[tokio::test]
async fn x01_the_console_shows_what_a_model_finds() {
    let setup = Setup::new().settings("search_past_calls = true\n");
    let issue = tool("create_issue", "Reports a bug in a repository.");
    let merge = tool("merge_branch", "Merges a branch into another one.");
    let answers = with_tools(&[issue, merge], &done());
    let forge = answering(&setup, "forge", ANSWERS, &answers);
    let many = common::scripted("many", &["--no-builtin", "--tools", "100"]);
    let of_shop = json!({ "projects": ["shop"] });
    let gateway = setup
        .server("forge", common::with(forge, of_shop.clone()))
        .server("many", common::with(many, of_shop))
        .connected()
        .await;
    put(&gateway, "/projects/shop", json!({ "name": "The shop" })).await;
    browse(&gateway, "x01").await;
}

#[tokio::test]
async fn c06_a_changed_definition_is_shown_and_decided() {
    let setup = Setup::new();
    let search = tool("search", "Looks things up.");
    let tools = with_tools(&[search, tool("remove", "Removes one.")], &done());
    let index = answering(&setup, "index", ANSWERS, &tools);
    let gateway = setup.server("index", index).connected().await;
    browse(&gateway, "c06").await;
}

#[tokio::test]
async fn c11_a_link_to_this_computer_or_its_network_asks_first() {
    let setup = Setup::new();
    let links = ["http://2130706433:9/here", "https://elsewhere.example/"];
    let tool = json!({ "name": "links", "inputSchema": { "type": "object" } });
    let links = links.map(|uri| json!({ "type": "resource_link", "uri": uri, "name": "one" }));
    let answers = with_tools(&[tool], &json!(links));
    let links = answering(&setup, "links", ANSWERS, &answers);
    let gateway = setup.server("links", links).connected().await;
    browse(&gateway, "c11-links").await;
}

#[tokio::test]
async fn u13_the_page_of_a_failed_server_opens_at_the_reason() {
    let setup = Setup::new().scripted("fine", &[]);
    let gateway = hopeless(setup).serve().await;
    gateway.up("fine").await;
    browse(&gateway, "u13-failed").await;
}

#[tokio::test]
async fn u13_a_whole_file_is_installed_and_new_names_are_reported() {
    let setup = Setup::new();
    let answers = with_tools(&[tool("search", "Looks things up.")], &done());
    let index = answering(&setup, "index", ANSWERS, &answers);
    let other = answering(&setup, "tea-pot", "other.json", &answers).to_string();
    let gateway = setup.server("index", index).connected().await;
    browse_with(&gateway, "u13-file", &[("TOOLWHARF_OTHER", &other)]).await;
}

#[tokio::test]
async fn u13_a_server_is_confined_after_its_losses_are_shown() {
    // Not under /tmp or /var/tmp, because a sandbox has its own.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folder = folder.path().canonicalize().unwrap().join("notes");
    std::fs::create_dir(&folder).unwrap();
    let folder = folder.to_str().unwrap();
    let mut notes = common::scripted("notes", &[]);
    // The server ignores what its shell names.
    let program = notes["command"].take();
    let options = notes["args"].as_array().unwrap();
    let args = [
        json!("-c"),
        json!("shift; exec \"$0\" \"$@\""),
        program,
        json!(folder),
    ];
    let args: Vec<Value> = args.into_iter().chain(options.iter().cloned()).collect();
    let notes = json!({ "command": "sh", "args": args });
    let gateway = hosting(Setup::new())
        .server("notes", notes)
        .connected()
        .await;
    browse_with(&gateway, "u13-confine", &[("TOOLWHARF_FOLDER", folder)]).await;
}

#[tokio::test]
async fn u13_the_layout_follows_the_window() {
    let setup = Setup::new();
    let answers = with_tools(&[tool("search", "Looks things up.")], &done());
    let index = answering(&setup, "index", ANSWERS, &answers);
    let gateway = setup.server("index", index).connected().await;
    browse(&gateway, "u13-layout").await;
}

#[tokio::test]
async fn u13_a_tool_that_is_kept_back_says_so_in_place_of_run() {
    let setup = Setup::new();
    let answers = with_tools(&[tool("search", "Looks things up.")], &done());
    let index = answering(&setup, "index", ANSWERS, &answers);
    let gateway = setup.server("index", index).connected().await;
    browse(&gateway, "u13-kept-back").await;
}

#[tokio::test]
async fn c07_a_server_of_the_catalogue_is_tried_and_switched_on() {
    let gateway = hosting(Setup::new()).serve().await;
    browse(&gateway, "c07").await;
}

/// A registry that lists this entry only.
async fn registry(entry: &Value) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let one = json!({"server": entry});
    let all = json!({"servers": [one], "metadata": {}}).to_string();
    let answer = move |uri: Uri| {
        let is_list = uri.path() == "/v0.1/servers";
        std::future::ready(if is_list {
            all.clone()
        } else {
            one.to_string()
        })
    };
    let app = axum::Router::new().fallback(answer);
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, app).await.unwrap() });
    (url, serving)
}

#[tokio::test]
async fn u13_a_servers_api_key_is_entered_where_it_is_missing() {
    let needs = |name: &str, variable: &str| {
        let mut entry = common::scripted(name, &[]);
        entry["env"] = json!({"KEY": format!("<${{{variable}}}>")});
        entry
    };
    let mut off = needs("off", "U13_OTHER");
    off["disabled"] = json!(true);
    let mut remote = testkit::Process::bin("testkit-scripted", ["--http", "127.0.0.1:0"]);
    let entry = json!({
        "name": "com.example/weather", "version": "1.0.0", "description": "The weather",
        "remotes": [{"type": "streamable-http", "url": remote.url().await,
            "headers": [{"name": "X-Key", "isSecret": true, "isRequired": true}]}],
    });
    let (url, _serving) = registry(&entry).await;
    let gateway = Setup::new()
        .settings(&format!("[registries.test]\nurl = {url:?}\n"))
        .env("U13_OUTSIDE", "from-outside")
        .server("needs", needs("needs", "U13_TOKEN"))
        .server("off", off)
        .serve()
        .await;
    put(&gateway, "/projects/shop", json!({"name": "Shop"})).await;
    let shops = needs("shops", "U13_SHOP");
    put(&gateway, "/mcp/servers/shops?project=shop", shops).await;
    browse(&gateway, "u13").await;
}

#[tokio::test]
async fn c08_a_client_is_connected_and_gets_its_file_back() {
    let setup = with_cursor("{\n  // mine\n  \"mcpServers\": {}\n}\n");
    let gateway = setup.serve().await;
    browse(&gateway, "c08").await;
}

#[tokio::test]
async fn c09_projects_keys_secrets_and_products_come_and_go() {
    let gateway = Setup::new().serve().await;
    browse(&gateway, "c09").await;
}

/// Walks through the pages as a new user. If `TOOLWHARF_WALK` names a directory, screenshots are written to it.
#[tokio::test]
async fn c01_a_newcomer_calls_a_tool_installs_a_server_and_connects_a_client() {
    let setup = with_cursor("{ \"mcpServers\": {} }\n");
    let gateway = with_everything(hosting(setup)).await;
    browse(&gateway, "c01-walk").await;
}

/// The server attacks the console with every text that it sends.
#[tokio::test]
async fn c11_hostile_text_stays_text() {
    let setup = Setup::new();
    let name = "<img src=x onerror=alert(1)>";
    let answers = json!({ "methods": {
        "tools/list": { "tools": [{
            "name": name, "title": "javascript:alert(1)",
            "description": "<script>alert(2)</script>\u{202e}gnp.exe [x](javascript:alert(2))",
            "inputSchema": { "type": "object", "properties": { "<b onclick=alert(1)>": { "type": "string",
                "description": "<iframe src=https://evil.example/></iframe>" } } },
        }] },
        "tools/call": { "content": [
            { "type": "text", "text": "<svg onload=alert(3)>" },
            { "type": "text", "text": "A".repeat(10 << 20) },
            { "type": "image", "mimeType": "image/svg+xml", "data": "PHN2ZyBvbmxvYWQ9YWxlcnQoMyk+" },
            { "type": "resource_link", "uri": "javascript:alert(3)", "name": "javascript:alert(3)" },
            { "type": "resource_link", "uri": "https://evil.example/", "name": "elsewhere" },
            { "type": "resource", "resource": { "uri": "data:text/html,<script>alert(3)</script>",
                "mimeType": "text/html", "blob": "PHNjcmlwdD5hbGVydCgzKTwvc2NyaXB0Pg==" } },
        ] },
    } });
    let mut hostile = answering(&setup, "hostile", ANSWERS, &answers);
    let stderr = "<img src=https://evil.example/ onerror=alert(4)>";
    let args = hostile["args"].as_array_mut().unwrap();
    args.extend(["--stderr-at-start", stderr].map(Value::from));
    let gateway = setup.server("hostile", hostile).connected().await;
    browse(&gateway, "c11").await;
}

/// Apps try to leave their sandbox. The test's loopback listener receives no request, though the apps declare it.
#[tokio::test]
async fn c11_hostile_apps_stay_framed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let far = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heads = asked.clone();
    let mut listening = JoinSet::new();
    listening.spawn(async move {
        let mut visitors = JoinSet::new();
        while let Ok((mut visitor, _)) = listener.accept().await {
            let heads = heads.clone();
            visitors.spawn(async move {
                let mut head = [0; 200];
                // Chromium connects before it checks the policy, and then sends nothing.
                if let Ok(read @ 1..) = visitor.read(&mut head).await {
                    let head = String::from_utf8_lossy(&head[..read]).into_owned();
                    heads.lock().unwrap().push(head);
                }
            });
        }
    });
    let flood = "<script>setInterval(() => { for (let i = 0; i < 500; i++) parent.postMessage({ jsonrpc: '2.0', method: 'x' }, '*') }, 10)</script>";
    let large =
        "<script>parent.postMessage({ jsonrpc: '2.0', method: 'x'.repeat(2000000) }, '*')</script>";
    let pages = [
        ("attack", include_str!("attack.html").replace("FAR", &far)),
        ("flood", flood.to_owned()),
        ("large", large.to_owned()),
        (
            "early",
            format!("<script>location.href = '{far}/early'</script>"),
        ),
        (
            "leave",
            format!(
                "<script>onload = () => setTimeout(() => (location.href = '{far}/left'))</script>"
            ),
        ),
        (
            "submit",
            format!(
                r#"<form action="{far}/form" method="post"><input name="a"></form><script>document.forms[0].submit()</script>"#
            ),
        ),
        ("huge", "A".repeat(11 << 20)),
        ("busy", "<script>for (;;);</script>".to_owned()),
    ];
    let setup = Setup::new();
    let tool = |name: &str, meta: Value| json!({ "name": name, "inputSchema": { "type": "object" }, "annotations": { "readOnlyHint": true }, "_meta": { "ui": meta } });
    let mut tools = vec![tool("for-models", json!({ "visibility": ["model"] }))];
    let mut methods = json!({ "tools/call": { "content": [{ "type": "text", "text": "done" }] } });
    for (name, html) in pages {
        let uri = format!("ui://{name}");
        tools.push(tool(name, json!({ "resourceUri": uri })));
        methods[format!("resources/read {uri}")] = json!({ "contents": [{
            "uri": uri, "mimeType": "text/html;profile=mcp-app", "text": html,
            "_meta": { "ui": { "csp": { "connectDomains": [far, "*"], "resourceDomains": [far], "frameDomains": [far] } } },
        }] });
    }
    methods["tools/list"] = json!({ "tools": tools });
    let scripted = |name: &str, answers: Value| {
        answering(&setup, name, &format!("{name}.answers.json"), &answers)
    };
    let hostile = scripted(
        "hostile",
        json!({ "capabilities": { "resources": {} }, "methods": methods }),
    );
    let secret = json!({ "tools": [tool("secret", json!({}))] });
    let other = scripted("other", json!({ "methods": { "tools/list": secret } }));
    let gateway = setup
        .server("hostile", hostile)
        .server("other", other)
        .connected()
        .await;
    browse(&gateway, "c11-apps").await;
    assert_eq!(*asked.lock().unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn c10_a_log_of_ten_thousand_lines_a_second_stays_smooth() {
    // The server writes ten thousand log lines per second, and keeps answering.
    let script = "(n=0; while :; do seq -f 'line %.0f of what it has to say' $n $((n + 999)) >&2; \
                  n=$((n + 1000)); sleep 0.1; done) & exec \"$0\" --name chatty";
    let server = Bin::path("testkit-scripted");
    let entry = json!({ "command": "sh", "args": ["-c", script, server] });
    let gateway = Setup::new().server("chatty", entry).connected().await;
    browse(&gateway, "c10").await;
}

#[tokio::test]
async fn c12_every_page_is_accessible_and_the_keyboard_is_enough() {
    let setup = Setup::new().server("everything", npm(EVERYTHING, &[]));
    let gateway = hopeless(setup).serve().await;
    gateway.up("everything").await;
    browse(&gateway, "c12").await;
}

#[tokio::test]
async fn c13_the_palette_finds_everything() {
    let time = python("mcp-server-time", &[]);
    let gateway = Setup::new().server("time", time).connected().await;
    browse(&gateway, "c13").await;
}

#[tokio::test]
async fn c14_a_chat_is_shown_kept_and_gone_on_with() {
    let table = "| port | ships |\n| --- | --- |\n| Rotterdam | 28,000 |\n\n[a source](https://ports.example/) ![far](https://evil.example/x.png) \
                 <b onclick=alert(1)>\n\n```rust\nlet ports = 2;\n```";
    let slow = |word: &str| {
        let mut turn = says(&word.repeat(200));
        turn["reply"]["pause_ms"] = 100.into();
        turn["reply"]["blocks"][0]["deltas"] = 200.into();
        turn
    };
    let llm = Llm::start(&turns(&[
        says(table),
        asks(&[("t1", "get-tiny-image", json!({}))]),
        says("There it is."),
        asks(&[("t3", "trigger-elicitation-request", json!({}))]),
        says("Thank you, Ada."),
        asks(&[("t2", "get-time", json!({}))]),
        says("Late."),
        slow("word "),
        slow("more "),
        says("Back again."),
    ]))
    .await;
    let gateway = with_everything(clock(with_model(&llm))).await;
    browse(&gateway, "c14").await;
}

#[tokio::test]
async fn c09_a_servers_sign_in_is_shown_ended_and_begun() {
    let issuer = Issuer::start(json!({ "scopes": protected::SCOPES })).await;
    let server = Protected::start(&issuer).await;
    let entry = json!({ "type": "http", "url": server.url(), "login": { "mode": "shared" } });
    let gateway = Setup::new().server("files", entry).serve().await;
    let rest = gateway.admin("/mcp/servers/files");
    // The required scopes are unknown until the server has refused a request.
    wait_for("the refusal", DEADLINE, async || {
        let told = rest.get(&[]).await.collect(DEADLINE).await;
        told.text().contains("needs_login")
    })
    .await;
    let path = "/mcp/servers/files/login";
    let begun = ask(&gateway, "POST", path, &json!({ "way": "paste" })).await;
    let begun = common::body(&begun);
    let url = begun["authorize_url"].as_str().unwrap();
    let redirect = json!({ "redirect": issuer.sign_in(url, "ann").await });
    let finished = ask(&gateway, "POST", &format!("{path}/finish"), &redirect).await;
    assert_eq!(finished.status, 204, "{}", finished.text());
    browse(&gateway, "c09-sign-in").await;
}

#[tokio::test]
async fn c09_an_entry_of_each_place_is_changed_as_a_form_and_as_json() {
    let mut notes = common::scripted("notes", &[]);
    notes["env"] = json!({ "TOKEN": "sk-hidden" });
    notes["timeout"] = json!(5000);
    let gateway = Setup::new().server("notes", notes).connected().await;
    let file = gateway.servers_file();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen('{', "{ // of mine\n", 1)).unwrap();
    put(&gateway, "/projects/shop", json!({ "name": "Shop" })).await;
    let web = json!({ "url": "https://x.example.com/mcp", "enabled": false });
    put(&gateway, "/mcp/servers/web?project=shop", web).await;
    let hosted = json!({ "name": "hosted", "command": ["no-such-program"], "description": "at first", "enabled": false });
    let made = ask(&gateway, "POST", "/mcp/servers", &hosted).await;
    assert!(made.status.is_success(), "{}", made.text());
    browse(&gateway, "c09-entries").await;
}

/// The agent calls a tool whose definition has changed. The chat shows the change and continues after approval.
#[tokio::test]
async fn c14_a_tool_that_is_kept_back_is_approved_in_the_chat() {
    let llm = Llm::start(&turns(&[
        asks(&[("t1", "search", json!({}))]),
        says("Found it."),
        asks(&[("t2", "search", json!({}))]),
        says("It is kept back."),
        asks(&[("t3", "search", json!({}))]),
        says("Found it again."),
    ]))
    .await;
    let setup = with_model(&llm);
    let answers = with_tools(&[tool("search", "Looks things up.")], &done());
    let index = answering(&setup, "index", ANSWERS, &answers);
    let gateway = setup.server("index", index).connected().await;
    browse(&gateway, "c14-approval").await;
}

/// The time limit is in the browser test.
#[tokio::test]
async fn u13_ten_servers_run_from_the_console_alone() {
    let (gateway, hour) = new_user().await;
    let given = json!({
        "servers": hour.servers,
        "caFile": hour.ca_file,
        "nodeFolder": hour.node.parent(),
        "key": KEY,
    });
    let given = given.to_string();
    browse_with(&gateway, "u13-ten", &[("TOOLWHARF_FIRST_HOUR", &given)]).await;
}
