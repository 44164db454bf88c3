//! U12: a project's own server in a sandbox: a script with its modules, virtual environment or packages.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{DEADLINE, wait_for_some};

use crate::{SECRET, called, common::checks, kept::Running, kept_with, line, outcome, row, said};

/// A Python server with one tool, which reads a file.
const PYTHON: &str = r#"
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked: continue
    params = asked.get("params") or {}
    def read(path):
        try: return {"content": [{"type": "text", "text": open(path).read()}]}
        except OSError as error: return {"content": [{"type": "text", "text": str(error)}], "isError": True}
    answers = {
        "initialize": lambda: {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "own", "version": "1"}},
        "tools/list": lambda: {"tools": [{"name": "read", "inputSchema": {"type": "object"}}]},
        "tools/call": lambda: read(params["arguments"]["path"]),
    }
    found = answers.get(asked["method"])
    reply = {"result": found()} if found else {"error": {"code": -32601, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **reply}), flush=True)
"#;

/// The same server in JavaScript.
const JAVASCRIPT: &str = r#"
import readline from "node:readline";
import fs from "node:fs";
const read = (path) => {
  try { return { content: [{ type: "text", text: fs.readFileSync(path, "utf8") }] }; }
  catch (error) { return { content: [{ type: "text", text: String(error) }], isError: true }; }
};
readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return;
  const answers = {
    initialize: () => ({ protocolVersion: "2025-06-18", capabilities: { tools: {} }, serverInfo: { name: "own", version: "1" } }),
    "tools/list": () => ({ tools: [{ name: "read", inputSchema: { type: "object" } }] }),
    "tools/call": () => read(params.arguments.path),
  };
  const reply = answers[method] ? { result: answers[method]() } : { error: { code: -32601, message: "no" } };
  process.stdout.write(JSON.stringify({ jsonrpc: "2.0", id, ...reply }) + "\n");
});
"#;

/// A home directory with two projects.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("twh-own-")
            .tempdir_in("/home")
            .expect("a folder");
        let home = Self(directory);
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(home.0.path(), readable).expect("permissions");
        for (file, text) in [
            ("py/pyproject.toml", ""),
            ("py/helper.py", "H = 1\n"),
            (
                "py/server.py",
                &format!("import dependency, helper\n{PYTHON}"),
            ),
            ("py/plain.py", &format!("import helper\n{PYTHON}")),
            ("py/pkg/__init__.py", ""),
            ("py/pkg/__main__.py", PYTHON),
            ("py/.env", SECRET),
            ("py/.git/config", SECRET),
            ("js/package.json", r#"{"type":"module"}"#),
            ("js/.env", SECRET),
            ("js/.npmrc", SECRET),
            (
                "js/node_modules/dep/package.json",
                r#"{"name":"dep","main":"index.js"}"#,
            ),
            ("js/node_modules/dep/index.js", "exports.v = 1"),
            ("js/dist/lib.js", "export const l = 1;"),
            (
                "js/dist/index.js",
                &format!(
                    "import dep from \"dep\";\nimport {{ l }} from \"./lib.js\";\n{JAVASCRIPT}"
                ),
            ),
            ("notes/list.txt", "to do"),
        ] {
            let path = home.path(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        let venv = home.path("py/.venv");
        let made = Command::new("python3")
            .args(["-m", "venv", "--without-pip"])
            .arg(&venv)
            .status();
        assert!(made.expect("python3 runs").success());
        let mut versions = fs::read_dir(venv.join("lib")).expect("lib").flatten();
        let packages = versions.next().expect("a version").path();
        let packages = packages.join("site-packages");
        fs::write(packages.join("dependency.py"), "V = 1\n").expect("a file");
        home
    }

    fn path(&self, below: &str) -> PathBuf {
        self.0.path().join(below)
    }

    fn text(&self, below: &str) -> String {
        self.path(below).display().to_string()
    }
}

/// Reads a file with the server's tool.
async fn read(gateway: &Running, name: &str, path: &Path) -> String {
    let (text, _) = called(gateway, &format!("-/{name}"), "read", json!({"path": path})).await;
    text
}

#[tokio::test]
async fn u12_a_projects_own_server_runs_confined_without_its_secrets() {
    let home = Home::new();
    let (py, js) = (home.text("py"), home.text("js"));
    let script = "import sys, runpy; p = sys.argv[1].split('=')[1]; sys.path.insert(0, p); runpy.run_path(p + '/plain.py')";
    let shell = format!("cd {py} && exec python3 plain.py");
    let commands = [
        (
            "venv",
            json!([format!("{py}/.venv/bin/python"), format!("{py}/server.py")]),
        ),
        ("script", json!(["python3", format!("{py}/plain.py")])),
        ("shell", json!(["sh", "-c", shell])),
        (
            "flag",
            json!(["python3", "-c", script, format!("--root={py}")]),
        ),
        ("module", json!(["python3", "-m", "pkg"])),
        ("node", json!(["node", format!("{js}/dist/index.js")])),
    ];
    let mut servers = json!({});
    for (name, command) in &commands {
        let command = command.as_array().expect("words");
        servers[name] = json!({
            "command": command[0],
            "args": command[1..],
            "toolwharf": {"sandbox": {"memory": "1G"}},
        });
    }
    servers["module"]["env"] = json!({"PYTHONPATH": py});
    let kept = kept_with(servers).await;
    let gateway = kept.start().await;
    for (name, _) in commands {
        let row = row(&gateway, &format!("/mcp/servers/{name}"), "running").await;
        let project = if name == "node" { "js" } else { "py" };
        let secrets = match project {
            "js" => ["js/.env", "js/.npmrc"],
            _ => ["py/.env", "py/.git/config"],
        };
        for secret in secrets {
            let text = read(&gateway, name, &home.path(secret)).await;
            let is_missing = text.contains("no such file") || text.contains("No such file");
            assert!(is_missing, "{name}: {text}");
        }
        let text = read(&gateway, name, &home.path("notes/list.txt")).await;
        assert!(!text.contains("to do"), "{name}: {text}");
        // The status lists the project's files and what is hidden in them.
        let files = row["files"].as_array().expect("a list");
        let hidden = files.iter().filter_map(|one| one["hidden"].as_array());
        let secret = home.text(&format!("{project}/.env"));
        let is_hidden = hidden.flatten().any(|file| *file == *secret);
        assert!(is_hidden, "{name}: {files:?}");
        assert_eq!(row["files_missing"], json!([]), "{name}");
    }
    let shown = said(&kept, &gateway, &["get", "node"]).await;
    let without = format!("without {js}/.env and {js}/.npmrc");
    checks::contains(line(&shown, "can read"), &[&without]);
}

#[tokio::test]
async fn u12_what_is_not_visible_is_named_before_and_after() {
    let home = Home::new();
    let list = home.text("notes/list.txt");
    let plain = home.text("py/plain.py");
    let script = format!("cat {list} >/dev/null && exec python3 {plain}");
    let entry = |mut sandbox: Value| {
        sandbox["memory"] = "1G".into();
        json!({"command": "sh", "args": ["-c", script], "toolwharf": {"sandbox": sandbox}})
    };
    let helper = home.text("py/helper.py");
    let servers = json!({
        "blind": entry(json!({})),
        "shown": entry(json!({"show": [list]})),
        "hidden": entry(json!({"show": [list], "hide": [helper]})),
    });
    let kept = kept_with(servers).await;
    let gateway = kept.start().await;
    let shown = row(&gateway, "/mcp/servers/shown", "running").await;
    assert_eq!(shown["files_missing"], json!([]));
    for (name, path) in [("blind", &list), ("hidden", &helper)] {
        let what = format!("{name} to fail with the path");
        let row = format!("/mcp/servers/{name}");
        wait_for_some(&what, DEADLINE, async || {
            let row = gateway.ok("GET", &row, Value::Null).await;
            let reason = row["reason"].as_str()?;
            let is_named =
                name == "hidden" || reason.contains(&format!("its sandbox does not show `{path}`"));
            (is_named && reason.contains("ended")).then_some(())
        })
        .await;
    }
    let config = kept.dir.path().join("mcp.json").display().to_string();
    let doctor = outcome(&kept, &gateway, &["doctor", "--config", &config]).await;
    let blind = format!("server `blind` names `{list}`, which its sandbox does not show");
    checks::contains(&doctor.out, &[&blind]);
    checks::lacks(&doctor.out, &["server `shown` names"]);
}
