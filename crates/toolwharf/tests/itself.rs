//! Toolwharf as one of its own servers: it is recognized and left out, and a chain through other gateways has a limit.

mod common;

use std::{fs, path::Path};

use common::{
    Gateway, Setup, checks, scripted,
    shell::{Home, on},
    steps::admin,
    tools,
};
use serde_json::{Value, json};
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

/// Asserts that the gateway offers the tools of the server `one` only.
async fn offers_one(gateway: &Gateway) {
    let seen = tools(&mut gateway.legacy().await).await;
    let is_its = |tool: &String| tool.starts_with("one__");
    assert!(seen.iter().all(is_its), "{seen:?}");
}

/// Waits until the server is blocked for a reason that contains `why`.
async fn down(gateway: &Gateway, server: &str, why: &str) -> Value {
    let client = admin(gateway, &format!("/mcp/servers/{server}"));
    wait_for_some(&format!("{server} is down: {why}"), DEADLINE, async || {
        // The server may not exist yet.
        let row = client.get(&[]).await.collect(DEADLINE).await.text();
        let row: Value = serde_json::from_str(&row).expect("JSON");
        let reason = row["reason"].as_str().unwrap_or_default();
        (row["status"] == "blocked" && reason.contains(why)).then_some(row)
    })
    .await
}

/// Returns the `toolwharf stdio` processes that use files of this directory.
fn children(folder: &Path) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
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
    let home = Home::new();
    let text = json!({"mcpServers": {
        "wharf": {"command": program(), "args": ["stdio"]},
        "by-name": {"command": "npx", "args": ["-y", "toolwharf", "stdio"]},
        "by-url": {"url": "http://localhost:7300/mcp"},
        "time": {"command": "uvx", "args": ["mcp-server-time"]},
    }});
    home.write("client.json", &text.to_string());
    let settings = "listen = \"127.0.0.1:7300\"\n";
    home.write(".config/toolwharf/toolwharf.toml", settings);
    let said = home.run("import client.json -o json").await;
    let report = said.code(0).says("1 added").says("3 skipped").json();
    assert_eq!(report["added"], json!(["time"]), "{report}");
    let skipped = report["skipped"].as_array().expect("an array");
    for (name, word) in [
        ("wharf", "starts"),
        ("by-name", "starts"),
        ("by-url", "127.0.0.1:7300"),
    ] {
        let one = skipped.iter().find(|one| one["name"] == name);
        let one = one.unwrap_or_else(|| panic!("{name}: {report}"));
        checks::contains(&one["why"], &["itself", word]);
    }
    let kept = || fs::read_to_string(home.servers()).expect("a file");
    checks::lacks(kept(), &["wharf"]);
    // A gateway of another installation may be added.
    home.transcript(
        "1$ add me -- toolwharf stdio # this Toolwharf itself
         1$ add --force me http://127.0.0.1:7300/mcp # this Toolwharf itself
         $ add other -- toolwharf --config o.json stdio",
    )
    .await;
    checks::lacks(kept(), &["\"me\""]);
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
    // The gateway knows its own address only once it listens.
    let url = format!("{}/mcp", gateway.url);
    let client = admin(&gateway, "/mcp/servers/me");
    let headers = [("content-type", "application/json")];
    let body = json!({ "url": url }).to_string();
    let reply = client.send(hyper::Method::PUT, &headers, body).await;
    let reply = reply.collect(DEADLINE).await;
    assert_eq!(reply.status, 422, "{}", reply.text());
    checks::contains(reply.text(), &["this Toolwharf itself"]);
    gateway.edit(|servers| {
        servers.insert("loop".into(), json!({ "url": url }));
    });
    gateway.logged("server `loop` is left out").await;
    offers_one(&gateway).await;
    let doctor = "doctor -c mcp.json -c toolwharf.toml -o json";
    let out = on(&gateway, doctor).await.code(0).out;
    checks::contains(&out, &["server `wharf` is left out"]);
    checks::contains(&out, &["server `loop` is left out"]);
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
    offers_one(&gateway).await;
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
                let to = TcpStream::connect(target).await;
                let mut to = to.expect("the gateway listens");
                let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
            });
        }
    };
    let looking = async {
        gateway.up("one").await;
        down(&gateway, "proxied", "this Toolwharf itself").await;
        offers_one(&gateway).await;
    };
    tokio::select! {
        () = looking => {}
        () = forwarding => panic!("the proxy ended too early"),
    }
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
    offers_one(&first).await;
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
        let servers = json!({ "mcpServers": servers }).to_string();
        fs::write(at.join("mcp.json"), servers).expect("a file");
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
