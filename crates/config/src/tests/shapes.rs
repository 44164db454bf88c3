//! Typical files of users, as clients and documentation write them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use model::{EraPolicy, Launch, Origin, Place, Program, ServerSpec, Sharing};

use super::{Folder, load};

fn line(spec: &ServerSpec) -> String {
    let state = if spec.enabled { "" } else { " (off)" };
    let rest = match &spec.origin {
        Origin::Remote(remote) => format!("{} {:?}", remote.url, remote.headers),
        Origin::Launch(launch) => {
            let program = &launch.program;
            format!("{} {:?} {:?}", program.target(), program.args(), launch.env)
        }
    };
    format!("{}{state}: {} {rest}", spec.name, spec.origin.transport())
}

fn check(text: &str, expect: &[&str]) {
    let lines: Vec<_> = load(text).servers.iter().map(line).collect();
    assert_eq!(lines, expect);
}

#[test]
fn claude_desktop() {
    check(
        r#"{
          "mcpServers": {
            "filesystem": {
              "command": "npx",
              "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/me/Desktop"]
            },
            "time": {"command": "uvx", "args": ["mcp-server-time"], "env": {"TZ": "UTC"}}
          },
          "globalShortcut": ""
        }"#,
        &[
            r#"filesystem: stdio npx ["-y", "@modelcontextprotocol/server-filesystem", "/home/me/Desktop"] {}"#,
            r#"time: stdio uvx ["mcp-server-time"] {"TZ": "UTC"}"#,
        ],
    );
}

#[test]
fn claude_code_project() {
    check(
        r#"{"mcpServers": {
          "api": {"type": "http", "url": "${API:-https://api.example.com}/mcp",
                  "headers": {"Authorization": "Bearer ${TOKEN}"}},
          "old": {"type": "sse", "url": "https://old.example.com/sse"}
        }}"#,
        &[
            r#"api: http https://api.example.com/mcp {"Authorization": "Bearer hunter2"}"#,
            "old: sse https://old.example.com/sse {}",
        ],
    );
}

#[test]
fn cursor_and_windsurf() {
    check(
        r#"{"mcpServers": {
          "a": {"url": "http://localhost:3000/mcp", "headers": {"API_KEY": "${env:TOKEN}"}},
          "b": {"serverUrl": "https://example.com/mcp"}
        }}"#,
        &[
            r#"a: http http://localhost:3000/mcp {"API_KEY": "hunter2"}"#,
            "b: http https://example.com/mcp {}",
        ],
    );
}

#[test]
fn vs_code_mcp_json() {
    check(
        r#"{
          // Asked for once
          "inputs": [{"type": "promptString", "id": "key", "description": "Key", "password": true}],
          "servers": {
            "github": {"type": "http", "url": "https://api.example.com/mcp/"},
            "py": {"type": "stdio", "command": "python", "args": ["-m", "srv",], "env": {"N": 3, "D": null}, "dev": {}},
          },
        }"#,
        &[
            "github: http https://api.example.com/mcp/ {}",
            r#"py: stdio python ["-m", "srv"] {"N": "3"}"#,
        ],
    );
}

#[test]
fn vs_code_settings() {
    check(
        r#"{"editor.fontSize": 14, "mcp": {"inputs": [], "servers": {"a": {"command": "a"}}}}"#,
        &["a: stdio a [] {}"],
    );
}

#[test]
fn zed() {
    let config = load(
        r#"{
          "theme": "One Dark",
          "context_servers": {
            "new": {"source": "custom", "enabled": false, "command": "uv", "args": ["run"], "env": {}},
            "older": {"command": {"path": "node", "args": ["x.js"], "env": {"A": "1"}}, "settings": {}},
            "remote": {"url": "https://example.com/mcp"},
            "postgres": {"source": "extension", "settings": {"database_url": "postgres://u:hunter2@h"}}
          }
        }"#,
    );
    let lines: Vec<_> = config.servers.iter().map(line).collect();
    assert_eq!(
        lines,
        [
            r#"new (off): stdio uv ["run"] {}"#,
            r#"older: stdio node ["x.js"] {"A": "1"}"#,
            "remote: http https://example.com/mcp {}",
        ]
    );
    assert_eq!(config.warnings.len(), 1);
    assert!(
        config.warnings[0]
            .what
            .contains("`postgres` comes from an editor extension")
    );
}

#[test]
fn gemini_cli() {
    let config = load(
        r#"{"mcp": {"allowed": ["a"]}, "mcpServers": {
          "a": {"httpUrl": "https://example.com/mcp", "timeout": 5000, "trust": false, "excludeTools": ["rm"]}
        }}"#,
    );
    assert_eq!(
        line(&config.servers[0]),
        "a: http https://example.com/mcp {}"
    );
    assert_eq!(config.servers[0].call_timeout, Duration::from_secs(5));
    assert!(config.servers[0].tools.disabled.contains("rm"));
    assert_eq!(config.warnings, []);
}

#[test]
fn cline_writes_seconds() {
    let config = load(
        r#"{"mcpServers": {"a": {"command": "a", "timeout": 60, "disabled": true, "autoApprove": []}}}"#,
    );
    assert_eq!(config.servers[0].call_timeout, Duration::from_secs(60));
    assert!(!config.servers[0].enabled);
    assert_eq!(config.warnings, []);
}

#[test]
fn bare_map() {
    check(
        r#"{"svelte": {"command": "npx"}, "servers": {"url": "https://e.com"}}"#,
        &["svelte: stdio npx [] {}", "servers: http https://e.com {}"],
    );
}

#[test]
fn empty_objects_hold_no_servers() {
    for text in ["{}", r#"{"mcpServers": {}}"#, "\u{feff}{} // nothing yet\n"] {
        check(text, &[]);
    }
}

#[test]
fn words_for_transports() {
    let words = "stdio=stdio http=http streamable-http=http streamableHttp=http streamable_http=http sse=sse SSE=sse \
        local=stdio Local=stdio remote=http https=http http+sse=sse";
    for (word, kind) in words.split(' ').filter_map(|pair| pair.split_once('=')) {
        for key in ["type", "transport"] {
            let text = format!(
                r#"{{"mcpServers": {{"a": {{"{key}": "{word}", "command": "c", "url": "http://h"}}}}}}"#
            );
            let origin = &load(&text).servers[0].origin;
            assert_eq!(origin.transport(), kind, "{key} {word}");
        }
    }
}

#[test]
fn a_type_that_says_nothing() {
    for word in ["null", "\"\""] {
        check(
            &format!(
                r#"{{"mcpServers": {{"a": {{"type": {word}, "command": "c", "url": null}}}}}}"#
            ),
            &["a: stdio c [] {}"],
        );
    }
}

#[test]
fn our_own_options() {
    let config = load(
        r#"{"mcpServers": {"a": {"command": "a", "disabledTools": ["x"], "toolwharf": {
          "maxConcurrency": 8, "sharing": "session", "era": "legacy", "callTimeoutMs": 500,
          "startTimeoutMs": 90000, "projects": ["p", "q"], "disabledTools": ["y"],
          "breakerFailures": 5, "breakerCooldownMs": 2000, "maxCallerValues": 4
        }}}}"#,
    );
    let spec = &config.servers[0];
    assert_eq!(spec.max_concurrency_or_default(), 8);
    assert_eq!(spec.max_caller_values_or_default(), 4);
    assert_eq!(
        (spec.sharing, spec.era),
        (Sharing::Session, EraPolicy::Legacy)
    );
    assert_eq!(spec.call_timeout, Duration::from_millis(500));
    assert_eq!(spec.start_timeout, Duration::from_secs(90));
    let breaker = spec.breaker.expect("it is named");
    assert_eq!(
        (breaker.failures, breaker.cooldown),
        (5, Duration::from_secs(2))
    );
    assert!(spec.projects.contains("p") && spec.projects.contains("q"));
    assert!(spec.tools.disabled.contains("x") && spec.tools.disabled.contains("y"));
}

#[test]
fn variables_and_folders() {
    let folder = Folder::new(&[(
        ".vscode/mcp.json",
        r#"{"servers": {"a": {
          "command": "~/bin/${NAME:-tool}", "cwd": "sub",
          "args": ["${workspaceFolder}", "${x%.*}", "$${TOKEN}"],
          "env": {"T": "${TOKEN}", "H": "${userHome}"}
        }}}"#,
    )]);
    let config = folder.load(&[".vscode/mcp.json"]).unwrap();
    let program = Program::Command {
        program: "/home/me/bin/tool".into(),
        args: vec![
            folder.root().display().to_string(),
            "${x%.*}".into(),
            "${TOKEN}".into(),
        ],
    };
    assert_eq!(
        config.servers[0].launch(),
        Some(&Launch {
            env: BTreeMap::from([
                ("T".into(), "hunter2".into()),
                ("H".into(), "/home/me".into())
            ]),
            cwd: Some(folder.path("sub")),
            ..Launch::new(program, Place::Host)
        })
    );
}

#[test]
fn a_disabled_server_needs_no_variables() {
    let text = r#"{"mcpServers": {"a": {"command": "a", "env": {"K": "${NOT_SET}"}, "disabled": true},
      "b": {"url": "${NOT_SET}", "enabled": false}}}"#;
    assert_eq!(load(text).servers.len(), 2);
}

#[test]
fn several_files_in_order_and_missing_defaults() {
    let folder = Folder::new(&[
        ("1.json", r#"{"mcpServers": {"z": {"command": "z"}}}"#),
        ("2.json", r#"{"servers": {"a": {"command": "a"}}}"#),
    ]);
    let config = folder.load(&["1.json", "2.json"]).unwrap();
    let names: Vec<_> = config.servers.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["z", "a"]);
    let home = |name: &str| (name == "HOME").then(|| folder.root().display().to_string());
    let sources = crate::Sources::locate(&[], &home).unwrap();
    let config = crate::Config::load(&sources, &home).unwrap();
    assert_eq!((config.servers.len(), config.sources.len()), (0, 0));
    assert!(
        sources
            .files()
            .all(|f| f.starts_with(Path::new(folder.root())))
    );
}
