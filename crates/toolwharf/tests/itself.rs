//! Toolwharf as one of its own servers: it is recognized and left out, and a chain through other gateways has a limit.

mod common;

use std::{fs, path::Path};

use common::{
    Gateway, Setup,
    cli::{self, Said},
    scripted, tools,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{Bin, DEADLINE, wait_for, wait_for_some};
use tokio::net::{TcpListener, TcpStream};

/// Tool names are prefixed with their server, so that their origin is visible.
const SETTINGS: &str =
    "naming = \"always-prefix\"\n[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\n";

fn setup() -> Setup {
    Setup::new().settings(SETTINGS)
}

fn program() -> String {
    Bin::path("toolwharf").display().to_string()
}

async fn run(home: &Path, arguments: &[&str]) -> Said {
    let mut command = cli::toolwharf();
    command.args(arguments).env("HOME", home).current_dir(home);
    cli::said(command, "").await
}

async fn row(gateway: &Gateway, server: &str) -> Value {
    let token = format!("Bearer {}", gateway.token());
    let client = gateway.at(&format!("/api/v1/mcp/servers/{server}"));
    let reply = client.get(&[("authorization", token.as_str())]).await;
    serde_json::from_str(&reply.collect(DEADLINE).await.text()).expect("JSON")
}

/// Waits until the server is blocked for a reason that contains `why`.
async fn down(gateway: &Gateway, server: &str, why: &str) -> Value {
    wait_for_some(&format!("{server} is down: {why}"), DEADLINE, async || {
        let row = row(gateway, server).await;
        let reason = row["reason"].as_str().unwrap_or_default();
        (row["status"] == "blocked" && reason.contains(why)).then_some(row)
    })
    .await
}

/// Returns the `toolwharf stdio` processes that use files of this directory.
fn children(folder: &Path) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let shell = line.starts_with("sh ");
        if !shell && line.contains(" stdio") && line.contains(&*folder.to_string_lossy()) {
            found.push(pid);
        }
    }
    found
}

#[tokio::test]
async fn u08_import_and_add_skip_itself() {
    let home = TempDir::new().expect("a folder");
    let own = home.path().join("client.json");
    let text = json!({"mcpServers": {
        "wharf": {"command": program(), "args": ["stdio"]},
        "by-name": {"command": "npx", "args": ["-y", "toolwharf", "stdio"]},
        "by-url": {"url": "http://localhost:7300/mcp"},
        "time": {"command": "uvx", "args": ["mcp-server-time"]},
    }});
    fs::write(&own, text.to_string()).expect("a file");
    let settings = home.path().join(".config/toolwharf/toolwharf.toml");
    fs::create_dir_all(settings.parent().expect("a folder")).expect("a folder");
    fs::write(&settings, "listen = \"127.0.0.1:7300\"\n").expect("a file");
    let said = run(home.path(), &["import", "client.json", "-o", "json"]).await;
    let report = said.code(0).says("1 added").says("3 skipped").json();
    assert_eq!(report["added"], json!(["time"]), "{report}");
    let skipped = report["skipped"].as_array().expect("an array");
    for (name, word) in [
        ("wharf", "starts"),
        ("by-name", "starts"),
        ("by-url", "127.0.0.1:7300"),
    ] {
        let one = skipped.iter().find(|one| one["name"] == name);
        let why = one.unwrap_or_else(|| panic!("{name}: {report}"))["why"].as_str();
        assert!(
            why.is_some_and(|why| why.contains("itself") && why.contains(word)),
            "{report}"
        );
    }
    let servers = home.path().join(".config/toolwharf/mcp.json");
    let kept = fs::read_to_string(&servers).expect("a file");
    assert!(!kept.contains("wharf"), "{kept}");
    for line in [
        &["add", "me", "--", "toolwharf", "stdio"][..],
        &["add", "--force", "me", "http://127.0.0.1:7300/mcp"],
    ] {
        run(home.path(), line)
            .await
            .code(1)
            .says("this Toolwharf itself");
    }
    // Another installation may be added.
    let other = [
        "add",
        "other",
        "--",
        "toolwharf",
        "--config",
        "o.json",
        "stdio",
    ];
    run(home.path(), &other).await.code(0);
    let kept = fs::read_to_string(&servers).expect("a file");
    assert!(!kept.contains("\"me\""), "{kept}");
}

#[tokio::test]
async fn u08_serve_and_doctor_leave_itself_out() {
    let mut gateway = setup()
        .server("wharf", json!({"command": program(), "args": ["stdio"]}))
        .server("one", scripted("one", &[]))
        .serve()
        .await;
    gateway.up("one").await;
    gateway.logged("server `wharf` is left out").await;
    // The gateway's own address is known only when it listens.
    let url = format!("{}/mcp", gateway.url);
    let token = format!("Bearer {}", gateway.token());
    let client = gateway.at("/api/v1/mcp/servers/me");
    let headers = [
        ("authorization", token.as_str()),
        ("content-type", "application/json"),
    ];
    let body = json!({ "url": url }).to_string();
    let reply = client.send(hyper::Method::PUT, &headers, body).await;
    let reply = reply.collect(DEADLINE).await;
    assert_eq!(reply.status, 422, "{}", reply.text());
    assert!(
        reply.text().contains("this Toolwharf itself"),
        "{}",
        reply.text()
    );
    gateway.edit(|servers| {
        servers.insert("loop".into(), json!({ "url": url }));
    });
    gateway.logged("server `loop` is left out").await;
    let seen = tools(&mut gateway.legacy().await).await;
    assert!(
        seen.iter().all(|tool| tool.starts_with("one__")),
        "{seen:?}"
    );
    let said = run(
        gateway.folder(),
        &[
            "doctor",
            "--data-dir",
            "data",
            "-c",
            "mcp.json",
            "-c",
            "toolwharf.toml",
            "-o",
            "json",
        ],
    )
    .await
    .code(0);
    for name in ["wharf", "loop"] {
        assert!(
            said.out.contains(&format!("server `{name}` is left out")),
            "{said:?}"
        );
    }
    let started = children(gateway.folder());
    assert!(started.is_empty(), "{started:?}");
}

#[tokio::test]
async fn u08_itself_behind_a_script_is_found_out_and_started_once() {
    let setup = setup();
    let folder = setup.folder().to_owned();
    let line = format!(
        "exec {} --config {dir}/mcp.json --config {dir}/toolwharf.toml stdio --data-dir {dir}/data",
        program(),
        dir = folder.display()
    );
    let gateway = setup
        .server("hidden", json!({"command": "sh", "args": ["-c", line]}))
        .server("one", scripted("one", &[]))
        .serve()
        .await;
    gateway.up("one").await;
    let row = down(&gateway, "hidden", "this Toolwharf itself").await;
    assert_eq!(row["starts"], 1, "{row}");
    gateway.logged("will not be retried").await;
    wait_for("the end of the child", DEADLINE, async || {
        children(&folder).is_empty()
    })
    .await;
    let seen = tools(&mut gateway.legacy().await).await;
    assert!(
        seen.iter().all(|tool| tool.starts_with("one__")),
        "{seen:?}"
    );
}

#[tokio::test]
async fn u08_its_own_address_behind_another_is_found_out() {
    let proxy = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = proxy.local_addr().expect("an address");
    let gateway = setup()
        .server("proxied", json!({"url": format!("http://{address}/mcp")}))
        .server("one", scripted("one", &[]))
        .serve()
        .await;
    let target = gateway.url.trim_start_matches("http://").to_owned();
    let forwarding = async {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((mut from, _)) = proxy.accept().await {
            let target = target.clone();
            connections.spawn(async move {
                let mut to = TcpStream::connect(target)
                    .await
                    .expect("the gateway listens");
                let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
            });
        }
    };
    let looking = async {
        gateway.up("one").await;
        down(&gateway, "proxied", "this Toolwharf itself").await;
        tools(&mut gateway.legacy().await).await
    };
    let seen = tokio::select! {
        seen = looking => seen,
        () = forwarding => panic!("the proxy ended"),
    };
    assert!(
        seen.iter().all(|tool| tool.starts_with("one__")),
        "{seen:?}"
    );
}

#[tokio::test]
async fn u08_two_that_point_at_each_other_make_no_circle() {
    let mut first = setup().server("one", scripted("one", &[])).serve().await;
    first.up("one").await;
    let second = setup()
        .server("first", json!({"url": format!("{}/mcp", first.url)}))
        .server("two", scripted("two", &[]))
        .serve()
        .await;
    second.up("first").await;
    second.up("two").await;
    let url = format!("{}/mcp", second.url);
    first.edit(|servers| {
        servers.insert("second".into(), json!({ "url": url }));
    });
    down(&first, "second", "leads back to this Toolwharf").await;
    let seen = tools(&mut first.legacy().await).await;
    assert!(
        seen.iter().all(|tool| tool.starts_with("one__")),
        "{seen:?}"
    );
    // Servers outside the cycle keep working.
    let seen = tools(&mut second.legacy().await).await;
    assert!(seen.contains(&"first__one__echo".to_owned()), "{seen:?}");
    assert!(seen.contains(&"two__echo".to_owned()), "{seen:?}");
}

#[tokio::test]
async fn u08_a_row_of_others_has_an_end() {
    const LEVELS: usize = 6;
    let setup = setup();
    let folder = setup.folder().to_owned();
    for level in 1..LEVELS {
        let at = folder.join(level.to_string());
        fs::create_dir_all(&at).expect("a folder");
        let mut servers = json!({ "s": scripted("s", &[]) });
        if level + 1 < LEVELS {
            servers["n"] = next(&folder, level + 1);
        }
        fs::write(at.join("toolwharf.toml"), SETTINGS).expect("a file");
        fs::write(
            at.join("mcp.json"),
            json!({ "mcpServers": servers }).to_string(),
        )
        .expect("a file");
    }
    let gateway = setup
        .server("s", scripted("s", &[]))
        .server("n", next(&folder, 1))
        .serve()
        .await;
    gateway.up("n").await;
    let mut client = gateway.legacy().await;
    let level = |level: usize| format!("{}s__echo", "n__".repeat(level));
    wait_for("what is four steps away", DEADLINE, async || {
        tools(&mut client).await.contains(&level(4))
    })
    .await;
    let last = folder.join("5/data");
    wait_for("the fifth to have started", DEADLINE, async || {
        last.exists()
    })
    .await;
    wait_for("the end of the fifth", DEADLINE, async || {
        children(&folder.join("5")).is_empty()
    })
    .await;
    let seen = tools(&mut client).await;
    assert!(!seen.contains(&level(5)), "{seen:?}");
}

fn next(folder: &Path, level: usize) -> Value {
    let at = folder.join(level.to_string());
    json!({
        "command": program(),
        "args": ["--config", at.join("mcp.json"), "--config", at.join("toolwharf.toml"), "stdio", "--data-dir", at.join("data")],
    })
}
