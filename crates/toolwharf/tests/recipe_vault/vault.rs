//! The scenarios R01, R02 and R04 with the example's own files.
//!
//! This runs what `cargo xtask recipes` runs: `toolwharf serve` with the example's `mcp.json`, `toolwharf.toml` and
//! `prompt.md`, the recipe server, and the fetch server through `uvx`. The files are copied, because two things differ
//! here: the model is scripted (`base_url`), and the fetch server may read a local web site.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::{Connection as _, Row as _, SqliteConnection, sqlite::SqliteConnectOptions};
use testkit::{
    Bin, Browser, DEADLINE, Process, RawClient, Site,
    browser::ENTER,
    conformance::node_modules,
    llm::{Llm, asks, expecting, says, turns},
    wait_for,
};
use tokio::process::Command;

use crate::{
    common::{chat::offered, checks, rollup, steps::children},
    kept::{Kept, Running},
};

/// Memory limit for all processes, in KiB (R04).
const MAX_MEMORY_KIB: u64 = 256 << 10;
/// Target for the memory of all processes, in KiB.
const TARGET_MEMORY_KIB: u64 = 200 << 10;

const TITLE: &str = "Leek soup <img src=x onerror=\"document.title='owned'\">";
const INGREDIENT: &str = "3 leeks <script>document.title='owned'</script>";
const STEP: &str = "Cook <b onmouseover=alert(1)>gently</b>.";

/// The running application.
struct Vault {
    gateway: Running,
    kept: Kept,
}

impl Vault {
    /// Starts the application and waits for its servers.
    async fn start(llm: &Llm) -> Self {
        let (mut kept, work) = copy(llm).await;
        let toolwharf = Bin::path("toolwharf");
        // Panics here if the binary is missing, instead of failing later as a server that does not start.
        Bin::path("toolwharf-example-recipes");
        let bin = toolwharf.parent().expect("it is in a folder");
        let path = path_with(&[bin, &work.join("venv/bin")]);
        kept.set_env("PATH", Some(&path));
        kept.set_env("ANTHROPIC_API_KEY", Some("sk-test"));
        let gateway = kept.start().await;
        for server in ["recipes", "fetch"] {
            let up = format!("toolwharf_server_up{{server={server:?}}} 1");
            wait_for(&up, DEADLINE, async || {
                let metrics = gateway.raw("/metrics").get(&[]).await;
                metrics.collect(DEADLINE).await.text().contains(&up)
            })
            .await;
        }
        Self { gateway, kept }
    }

    /// The title and source of each recipe in the database.
    async fn stored(&self) -> Vec<(String, Option<String>)> {
        let file = self.kept.data("recipes.db");
        let options = SqliteConnectOptions::new().filename(file).read_only(true);
        let mut file = SqliteConnection::connect_with(&options)
            .await
            .expect("a file of SQLite");
        let rows = sqlx::query("SELECT title, source_url FROM recipes ORDER BY id");
        let rows = rows.fetch_all(&mut file).await.expect("recipes");
        file.close().await.expect("closed");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }
}

/// Asserts that the chat page is served.
async fn has_page(client: RawClient) {
    let page = client.get(&[]).await.collect(DEADLINE).await;
    assert_eq!(page.status, 200, "{}", page.text());
}

/// Sends a message to the agent, which must end its turn.
async fn chats(client: RawClient, message: &str) {
    let message = json!({ "message": message });
    let said = client.post(message.to_string()).await;
    assert_eq!(said.status, 200, "{}", said.text());
    checks::contains(said.text(), &[r#""type":"done""#]);
}

/// The search path of this process, with these directories before it.
fn path_with(first: &[&Path]) -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    let first: String = first
        .iter()
        .map(|folder| format!("{}:", folder.display()))
        .collect();
    first + &path
}

/// Copies the example, with this model. Returns the copy and the directory of installed tools.
async fn copy(llm: &Llm) -> (Kept, PathBuf) {
    let example = example();
    let kept = Kept::sqlite().await;
    let at = |name: &str| kept.dir.path().join(name);
    let read = |name: &str| {
        fs::read_to_string(example.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let mut servers: Value = serde_json::from_str(&read("mcp.json")).expect("JSON");
    let arguments = &mut servers["mcpServers"]["fetch"]["args"];
    let arguments = arguments.as_array_mut().expect("arguments");
    arguments.push("--allow-private-ips".into());
    kept.servers(servers["mcpServers"].take());
    let url = format!("[agent]\nbase_url = {:?}\n", llm.url());
    let settings = read("toolwharf.toml").replacen("[agent]\n", &url, 1);
    assert!(settings.contains(&url), "{settings}");
    kept.settings(&settings);
    fs::write(at("prompt.md"), read("prompt.md")).expect("written");
    // The tools that the command would install at its first run.
    let work = node_modules();
    let work = work.parent().expect("it is in a folder");
    let tools = work.join("tools");
    assert!(
        tools.exists(),
        "{} is missing; run: cargo xtask setup",
        tools.display()
    );
    std::os::unix::fs::symlink(tools, at("tools")).expect("a link");
    (kept, work.to_owned())
}

fn example() -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/recipe-vault"
    ))
}

const PAGE: &str = "<html><body><article><h1>Leek soup</h1><ul><li>3 leeks</li><li>1 l stock</li></ul>\
    <p>Cut the leeks. Cook them gently.</p>\
    <p>&lt;img src=x onerror=\"document.title='owned'\"&gt;</p></article></body></html>";

fn recipe(url: &str) -> Value {
    json!({
        "title": TITLE,
        "ingredients": [INGREDIENT, "1 l stock"],
        "steps": ["Cut the leeks.", STEP],
        "servings": 4,
        "prep_minutes": 15,
        "cook_minutes": 75,
        "source_url": url,
    })
}

/// The model's turns for a recipe URL.
fn script(url: &str) -> Value {
    let page = json!({ "tool_results": [{ "contains": "3 leeks", "is_error": false }] });
    let stored = json!({ "tool_results": [{ "contains": "Leek soup", "is_error": false }] });
    turns(&[
        expecting(
            asks(&[("t1", "fetch", json!({ "url": url }))]),
            json!({ "last_text": url, "system": "# URLs" }),
        ),
        expecting(asks(&[("t2", "create_recipe", recipe(url))]), page),
        expecting(asks(&[("t3", "display_recipe", recipe(url))]), stored),
        says("Here is **the soup**."),
    ])
}

#[tokio::test]
async fn r01_five_recipe_tools_fetch_and_display_recipe_are_offered_behind_one_chat() {
    let llm = Llm::start(&turns(&[says("Hello.")])).await;
    let vault = Vault::start(&llm).await;
    has_page(vault.gateway.raw("/chat")).await;
    chats(vault.gateway.admin("/chat"), "Hello?").await;
    let expected = [
        "create_recipe",
        "delete_recipe",
        "display_recipe",
        "fetch",
        "get_recipe",
        "list_recipes",
        // The agent's own tool, with which a model continues reading a truncated result.
        "read_result",
        "update_recipe",
    ];
    assert_eq!(offered(&llm.requests().await[0]), expected);
}

/// `cargo xtask recipes` itself, without the build, which is done already. The printed link opens the page, the key in
/// the link gives access to the agent, and Ctrl-C ends all processes.
#[tokio::test]
async fn r01_the_command_serves_it_prints_the_link_and_ends_with_ctrl_c() {
    let llm = Llm::start(&turns(&[says("Hello.")])).await;
    let (kept, work) = copy(&llm).await;
    let folder = kept.dir.path();
    let cargo = folder.join("cargo");
    let built = folder.join("built");
    let real = std::env::var("CARGO").unwrap_or_else(|_| env!("CARGO").to_owned());
    let stub = format!(
        "#!/bin/sh\ncase \"$1\" in\nbuild) echo \"$@\" > {built:?} ;;\n*) exec {real:?} \"$@\" ;;\nesac\n"
    );
    fs::write(&cargo, stub).expect("written");
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect("executable");
    // This port was free a moment ago.
    let address = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("an address");
    let profile = Bin::path("toolwharf");
    let profile = profile.parent().expect("it is in a folder");
    let is_release = profile.ends_with("release");
    let target = profile.parent().expect("it is in a folder");
    let mut command = Command::new(Bin::path("xtask"));
    command
        .args(["recipes", "--listen", &address.to_string(), "--example"])
        .arg(folder)
        .args(is_release.then_some("--release"))
        .env("CARGO", &cargo)
        .env("CARGO_TARGET_DIR", target)
        .env("PATH", path_with(&[&work.join("venv/bin")]))
        .env("ANTHROPIC_API_KEY", "sk-test")
        .env_remove("RUST_LOG");
    let mut process = Process::spawn(command);
    let link = process
        .announced(|line| {
            let (page, key) = line.trim().split_once("/chat#key=")?;
            Some((page.to_owned(), key.to_owned()))
        })
        .await;
    assert_eq!(link.0, format!("http://{address}"));
    let asked = fs::read_to_string(&built).expect("it runs a build");
    let packages = "build --bins --package=toolwharf --package=recipe-vault";
    assert!(asked.starts_with(packages), "{asked}");
    let page = RawClient::new(&format!("{}/chat", link.0));
    has_page(page.clone()).await;
    let chat = page.at("/api/v1/chat");
    let chat = chat.with("authorization", &format!("Bearer {}", link.1));
    chats(chat, "Hello?").await;
    let asked = llm.requests().await;
    let names = asked[0]["body"]["tools"].as_array().map(Vec::len);
    assert_eq!(names, Some(8), "{}", asked[0]["body"]["tools"]);
    process.signal(Signal::INT);
    let status = process.wait(DEADLINE).await;
    assert!(status.success(), "{status}: {}", process.stderr());
    let gone = std::net::TcpStream::connect(address);
    assert!(gone.is_err(), "{address} still accepts connections");
}

#[tokio::test]
async fn r02_a_recipes_address_becomes_a_row_and_a_card_in_a_browser() {
    let site = Site::new(PAGE).await;
    let url = site.at("/soup");
    let llm = Llm::start(&script(&url)).await;
    let vault = Vault::start(&llm).await;
    let page = format!("{}/chat", vault.gateway.url);
    let browser = Browser::open().await;
    browser
        .go(&format!("{page}#key={}", vault.gateway.token))
        .await;
    browser
        .wait("document.querySelectorAll('#servers li').length === 2")
        .await;
    // The key has been removed from the address bar.
    assert_eq!(browser.eval("location.href").await, page);
    browser
        .type_into("#message", &format!("Keep {url}{ENTER}"))
        .await;
    browser
        .wait("document.querySelector('.recipe') && document.querySelector('#send')")
        .await;

    // All content from the web page is shown as text.
    for (selector, texts) in [
        (".recipe h2", &[TITLE][..]),
        (".recipe .ingredients li", &[INGREDIENT, "1 l stock"]),
        (".recipe .steps li", &["Cut the leeks.", STEP]),
        (
            ".recipe dl div",
            &[
                "Preparation15 min",
                "Cooking1 h 15 min",
                "In all1 h 30 min",
                "Serves4",
            ],
        ),
        (".tool .name", &["fetch", "create_recipe", "display_recipe"]),
        (".tool .state", &["done", "done", "done"]),
        (".theirs > .md strong", &["the soup"]),
    ] {
        assert_eq!(browser.texts(selector).await, texts, "{selector}");
    }
    // The recipe's page is on this computer, so its link is a button that asks before it opens the page.
    let link = "[document.querySelectorAll('.recipe a').length, document.querySelector('.recipe [role=link]')?.tagName]";
    assert_eq!(browser.eval(link).await, json!([0, "BUTTON"]));
    harmless(&browser).await;
    let stored = [(TITLE.to_owned(), Some(url.clone()))];
    assert_eq!(vault.stored().await, stored);

    // The conversation is kept: after a reload the same card is shown.
    browser.go("about:blank").await;
    browser.go(&page).await;
    browser
        .wait("document.querySelectorAll('#list li').length === 1")
        .await;
    browser.click("#list .open").await;
    browser.wait("document.querySelector('.recipe')").await;
    assert_eq!(browser.texts(".recipe h2").await, [TITLE]);
    assert_eq!(browser.texts(".mine").await, [format!("Keep {url}")]);

    // The conversation continues. Text and cards from the model are harmless, too.
    let mut bad = recipe("javascript:document.title='owned'");
    bad["tags"] = json!(["<i>tag</i>"]);
    bad["notes"] = "<svg onload=\"document.title='owned'\">".into();
    let text = "[press](javascript:alert(1)) [press](data:text/html,x) <img src=x onerror=alert(1)> `<b>`\n\n\
                ```\n<script>alert(1)</script>\n```";
    llm.script(&turns(&[
        asks(&[("t4", "display_recipe", bad)]),
        says(text),
    ]))
    .await;
    browser
        .type_into("#message", &format!("Another one{ENTER}"))
        .await;
    browser
        .wait(
            "document.querySelectorAll('.recipe').length === 2 && document.querySelector('#send')",
        )
        .await;
    let sources = browser.texts(".recipe .source").await;
    assert_eq!(
        sources[1], "From javascript:document.title='owned'",
        "{sources:?}"
    );
    assert_eq!(
        browser
            .eval("document.querySelectorAll('#log a, #log [role=link]').length")
            .await,
        1
    );
    harmless(&browser).await;

    // The conversation can be deleted, after a confirmation.
    browser.click("#list .icon").await;
    browser.click("[role=dialog] button.text-bad").await;
    browser
        .wait("document.querySelectorAll('#list li').length === 0")
        .await;
    let left = vault.gateway.ok("GET", "/conversations", Value::Null).await;
    assert_eq!(left["conversations"], json!([]));
    // The browser reported no violation of the content security policy.
    let complaints = browser.complaints().await;
    assert!(complaints.is_empty(), "{complaints:?}");
    browser.quit().await;
}

/// Asserts that all content is shown as text or as links to web pages.
async fn harmless(browser: &Browser) {
    assert_eq!(
        browser.eval("document.title").await,
        "Chat · Toolwharf",
        "a script ran"
    );
    let bad = "document.querySelectorAll('#log :is(img, script, iframe, b, [onerror], [onload], \
               [onmouseover], a:not([href^=\"http\"]))').length";
    assert_eq!(browser.eval(bad).await, 0);
    let wide = "document.documentElement.scrollWidth > innerWidth";
    assert_eq!(browser.eval(wide).await, false, "the page scrolls sideways");
}

#[tokio::test]
async fn r04_the_whole_of_it_fits_into_a_small_home_server() {
    let site = Site::new(PAGE).await;
    let url = site.at("/soup");
    let llm = Llm::start(&script(&url)).await;
    let vault = Vault::start(&llm).await;
    chats(vault.gateway.admin("/chat"), &format!("Keep {url}")).await;
    assert_eq!(vault.stored().await.len(), 1);

    let tree = tree(vault.gateway.process.pid());
    let mut sums = [0; 2];
    for (pid, name) in &tree {
        let [proportional, resident] = ["Pss:", "Rss:"].map(|field| rollup(*pid, field));
        println!("{name} ({pid}): {proportional} KiB PSS, {resident} KiB RSS");
        sums[0] += proportional;
        sums[1] += resident;
    }
    let [proportional, resident] = sums.map(|kib| kib / 1024);
    println!(
        "all: {proportional} MiB PSS, {resident} MiB RSS; the goal is {} MiB",
        TARGET_MEMORY_KIB / 1024
    );
    // The kernel truncates process names to 15 characters.
    for name in ["toolwharf", "toolwharf-examp", "uv", "mcp-server-fetc"] {
        let is = |(_, found): &(u32, String)| found == name;
        assert!(tree.iter().any(is), "{name} is not among {tree:?}");
    }
    assert!(sums[0] < MAX_MEMORY_KIB, "{proportional} MiB");
}

/// Returns the process and its descendants, with their names.
fn tree(root: u32) -> Vec<(u32, String)> {
    let mut pids = vec![root];
    let mut at = 0;
    while at < pids.len() {
        pids.extend(children(pids[at]));
        at += 1;
    }
    let names = pids.into_iter().filter_map(|pid| {
        // The file is missing if the process is gone.
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Some((pid, name.trim_end().to_owned()))
    });
    names.collect()
}
