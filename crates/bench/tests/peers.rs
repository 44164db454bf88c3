//! Measures peers that are scripts: one is correct, one changes responses, and one does not start. The peers of the
//! registries are installed by `cargo xtask bench peers` only. No figure is checked.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

const BENCH: &str = env!("CARGO_BIN_EXE_bench");

/// Writes a script for `sh`.
fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
    let file = folder.join(name);
    fs::write(&file, format!("#!/bin/sh\n{text}\n")).expect("a script");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("an executable");
    file
}

#[test]
fn peers_are_measured_and_faults_are_named() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let dir = dir.path();
    let floor = format!(r#"exec {BENCH} floor-stdio --listen "127.0.0.1:$port" --"#);
    // The fourth word of both command lines is the port, and the server's command follows `--`.
    let correct = script(
        dir,
        "correct",
        &format!(r#"port=$4; shift 7; {floor} "$@""#),
    );
    let change = r#"sh -c '"$@" | sed -u "s/call 3:/call 4:/"' sh "$@""#;
    let wrong = script(dir, "wrong", &format!("port=$4; shift 5; {floor} {change}"));
    let broken = script(dir, "broken", "echo no such option >&2; exit 3");
    let list = dir.join("installed.json");
    let peers = json!({
        "npm-mcp-proxy": { "version": "1.0", "program": correct, "path": dir },
        "pypi-mcp-proxy": { "version": "2.0", "program": wrong },
        "supergateway": { "version": "3.0", "program": broken },
        "mcpo": { "version": "4.0", "error": "no network" },
    });
    fs::write(&list, peers.to_string()).expect("the list");
    let document = dir.join("performance.md");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/performance.md");
    fs::copy(page, &document).expect("a copy");
    let figures = dir.join("figures.json");
    let names = peers.as_object().expect("an object").keys();
    let output = Command::new(BENCH)
        .args(["peers", "--smoke", "--installed"])
        .arg(&list)
        .args(names.flat_map(|name| ["--only", name]))
        .arg("--into")
        .arg(&document)
        .arg("--json")
        .arg(&figures)
        .output()
        .expect("bench is started");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    // Peers that were asked for failed.
    assert_eq!(output.status.code(), Some(1), "{stdout}{stderr}");
    // Call 3 of the single client, and of each of the 32.
    for line in [
        "mcp-proxy 2.0 (PyPI), a stdio server: 33 wrong responses; one of them: client ",
        "supergateway 3.0 (npm), a stdio server: not measured: it ended with exit status: 3: no such option",
        "mcpo (PyPI), a REST route: not measured: it could not be installed: no network",
    ] {
        let found = stdout.lines().filter(|it| it.starts_with(line)).count();
        assert_eq!(found, 1, "{line}: {stdout}{stderr}");
    }
    let document = fs::read_to_string(&document).expect("the document");
    for line in stdout.lines().filter(|line| line.starts_with("| ")) {
        assert!(document.contains(line), "{line}: {stdout}");
    }
    let figures: Value = serde_json::from_slice(&fs::read(&figures).expect("the figures"))
        .expect("the figures are JSON");
    let measured = |name: &str| {
        let programs = figures["programs"].as_array().expect("programs");
        let programs = programs.iter().filter(|program| program["name"] == name);
        programs.count()
    };
    for (name, servers) in [
        ("floor", 2),
        ("toolwharf", 2),
        ("toolwharf-recorded", 2),
        ("npm-mcp-proxy", 1),
        ("pypi-mcp-proxy", 1),
        ("supergateway", 0),
    ] {
        assert_eq!(measured(name), servers, "{name}: {figures:#}");
    }
}
