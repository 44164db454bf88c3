//! Third-party servers for tests. `cargo xtask setup` installs them under `.work`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testkit::{DEADLINE, Process, conformance::node_modules, wait_for};
use tokio::{net::TcpListener, process::Command};

/// Asserts that a file installed by `cargo xtask setup` exists.
pub(crate) fn installed(path: PathBuf) -> PathBuf {
    assert!(
        path.exists(),
        "{} is missing; run: cargo xtask setup",
        path.display()
    );
    path
}

fn node() -> PathBuf {
    node_modules().join("node/bin/node")
}

fn script(name: &str) -> String {
    let scripts = node_modules().join("@modelcontextprotocol");
    installed(scripts.join(name)).display().to_string()
}

pub(crate) fn npm(name: &str, arguments: &[&str]) -> Value {
    let script = script(name);
    let all = [&[&*script][..], arguments].concat();
    json!({ "command": node(), "args": all })
}

pub(crate) const EVERYTHING: &str = "server-everything/dist/index.js";

/// The directory of the Python packages.
pub(crate) fn venv() -> PathBuf {
    let work = node_modules();
    let work = work.parent().expect("it is in a folder");
    installed(work.join("venv"))
}

pub(crate) fn python(server: &str, arguments: &[&str]) -> Value {
    let program = installed(venv().join("bin").join(server));
    json!({ "command": program, "args": arguments })
}

/// Returns a free port, for servers that cannot listen on port 0 and report the chosen port. The kernel assigns it and
/// it is released again.
pub(crate) async fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// Starts server-everything on a free port.
pub(crate) async fn everything_at(transport: &str, path: &str) -> (Process, String) {
    let port = free_port().await;
    let process = everything_on(port, transport).await;
    (process, format!("http://127.0.0.1:{port}{path}"))
}

/// Starts server-everything on this port.
pub(crate) async fn everything_on(port: u16, transport: &str) -> Process {
    let mut command = Command::new(node());
    command.arg(script(EVERYTHING)).arg(transport);
    command.env("PORT", port.to_string());
    let process = Process::spawn(command);
    wait_for("server-everything", DEADLINE, async || {
        tokio::net::TcpStream::connect(("127.0.0.1", port))
            .await
            .is_ok()
    })
    .await;
    process
}

/// Returns all texts of a result, joined.
pub(crate) fn said(result: &Value) -> String {
    let content = result["content"].as_array();
    let texts = content
        .into_iter()
        .flatten()
        .filter_map(|item| item["text"].as_str());
    texts.collect::<Vec<_>>().join("\n")
}

/// The official clients, which run these scripts: TypeScript v1, v2 in both eras, and Python in both. The script
/// `typescript` gets the folder of modules, the client and the URL; `python` gets the era and the URL.
pub(crate) fn official_clients(typescript: &Path, python: &Path, url: &str) -> [Command; 5] {
    let modules = node_modules();
    let of_typescript = |client: &str| {
        let mut command = Command::new(node());
        command.arg(typescript).arg(&modules).args([client, url]);
        command
    };
    let of_python = |era: &str| {
        let mut command = Command::new(venv().join("bin/python"));
        command.arg(python).args([era, url]);
        command
    };
    [
        of_typescript("v1"),
        of_typescript("v2"),
        of_typescript("v2 modern"),
        of_python("legacy"),
        of_python("auto"),
    ]
}
