//! Edits of texts, and of files on disk.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use insta::assert_snapshot;
use model::ServerName;
use serde_json::json;

use super::super::{Accepted, EditError, ServerFile, edit, foreign};
use super::Folder;

const FILE: &str = r#"{
  // My servers
  "mcpServers": {
    "time": { "command": "uvx", "args": ["mcp-server-time"] }, // keep me
    /* the old one */
    "files": {
      "command": "npx",
      "custom": { "kept": true },
      "disabledTools": ["rm"],
    },
  },
  "other": 1.50,
}
"#;

fn name(name: &str) -> ServerName {
    ServerName::parse(name).unwrap()
}

/// Adds a server to a file on disk.
fn add(path: &Path, server: &str) {
    let entry = json!({"command": server});
    edit(path, |f| f.add(&name(server), &entry, false)).unwrap();
}

fn changed(text: &str, change: impl FnOnce(&mut ServerFile)) -> String {
    let mut file = ServerFile::parse(Path::new("x"), text).unwrap();
    change(&mut file);
    file.to_string()
}

#[test]
fn an_update_keeps_the_text_of_unchanged_members() {
    let text = r#"{ "mcpServers": {
  "files": {
    "command": "npx", // mine
    "args": ["-y"], /* and mine */
    "env": { "A": "1", /* of A */ "B": "2" },
    "custom": 1.50,
  },
} }"#;
    let entry = json!({ "command": "npx", "args": ["-y", "x"], "env": { "A": "1", "C": "3" }, "custom": 1.5, "timeout": 9000 });
    let text = changed(text, |file| file.update(&name("files"), &entry).unwrap());
    for kept in [
        "// mine",
        "/* and mine */",
        "\"A\": \"1\"",
        "1.50",
        "\"timeout\": 9000",
    ] {
        assert!(text.contains(kept), "{kept}: {text}");
    }
    let file = ServerFile::parse(Path::new("x"), &text).unwrap();
    assert_eq!(file.value(&name("files")).unwrap(), Some(entry));
}

#[test]
fn an_edit_without_effect_keeps_the_text() {
    assert_eq!(changed(FILE, |_| {}), FILE);
    assert_eq!(
        changed(FILE, |f| f.set_enabled(&name("time"), true).unwrap()),
        FILE
    );
    assert_eq!(
        changed(FILE, |f| f
            .set_tool_enabled(&name("files"), "rm", false)
            .unwrap()),
        FILE
    );
}

#[test]
fn add_to_existing_servers() {
    assert_snapshot!(changed(FILE, |f| {
        let entry = json!({"command": "npx", "args": ["-y", "x"], "env": {"K": "${K}"}});
        f.add(&name("new one"), &entry, false).unwrap();
        assert!(matches!(f.add(&name("time"), &entry, false), Err(EditError::Exists(_))));
        assert_eq!(f.names(), ["time", "files", "new one"]);
    }), @r##"
{
  // My servers
  "mcpServers": {
    "time": { "command": "uvx", "args": ["mcp-server-time"] }, // keep me
    /* the old one */
    "files": {
      "command": "npx",
      "custom": { "kept": true },
      "disabledTools": ["rm"],
    },
    "new one": {
      "command": "npx",
      "args": ["-y", "x"],
      "env": {
        "K": "${K}",
      },
    },
  },
  "other": 1.50,
}
"##);
}

#[test]
fn add_to_an_empty_file() {
    assert_snapshot!(changed("", |f| {
        f.add(&name("a"), &json!({"url": "https://h/mcp"}), false).unwrap();
        f.add(&name("b"), &json!({"command": "b"}), false).unwrap();
    }), @r##"
{
  "mcpServers": {
    "a": {
      "url": "https://h/mcp"
    },
    "b": {
      "command": "b"
    }
  }
}
"##);
}

#[test]
fn remove_disable_and_tools() {
    assert_snapshot!(changed(FILE, |f| {
        f.set_enabled(&name("time"), false).unwrap();
        f.set_tool_enabled(&name("time"), "now", false).unwrap();
        f.set_tool_enabled(&name("files"), "mv", false).unwrap();
        f.set_tool_enabled(&name("files"), "rm", true).unwrap();
        assert!(matches!(f.remove(&name("none")), Err(EditError::NoServer(_))));
    }), @r##"
{
  // My servers
  "mcpServers": {
    "time": {
      "command": "uvx",
      "args": ["mcp-server-time"],
      "disabled": true,
      "toolwharf": {
        "disabledTools": ["now"]
      }
    }, // keep me
    /* the old one */
    "files": {
      "command": "npx",
      "custom": { "kept": true },
      "disabledTools": ["mv"],
    },
  },
  "other": 1.50,
}
"##);
    assert_snapshot!(changed(FILE, |f| f.remove(&name("files")).unwrap()), @r##"
{
  // My servers
  "mcpServers": {
    "time": { "command": "uvx", "args": ["mcp-server-time"] }, // keep me
    /* the old one */
  },
  "other": 1.50,
}
"##);
}

#[test]
fn enabling_uses_the_key_of_the_entry() {
    let enabled = |text: &str| changed(text, |f| f.set_enabled(&name("a"), true).unwrap());
    let text = r#"{"context_servers": {"a": {"command": "a", "enabled": false}}}"#;
    assert_eq!(enabled(text), text.replace("false", "true"));
    let text = r#"{"servers": {"a": {"command": "a", "disabled": true}}}"#;
    assert_eq!(enabled(text), text.replace("true", "false"));
}

#[test]
fn an_edit_keeps_the_shape_of_the_file() {
    for text in [
        r#"{"servers": {"a": {"command": "a"}}}"#,
        r#"{"mcp": {"servers": {"a": {"command": "a"}}}}"#,
        r#"{"a": {"command": "a"}}"#,
    ] {
        let new = changed(text, |f| {
            f.add(&name("b"), &json!({"command": "b"}), false).unwrap()
        });
        let value: serde_json::Value = serde_json::from_str(&new).unwrap();
        assert!(!new.contains("mcpServers"), "{value}");
    }
}

#[test]
fn import_merges_and_reports() {
    let other = foreign(
        Path::new("y"),
        r#"{"servers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}, "files": {"command": "z"},
            "git": {"command": "uvx", "args": ["mcp-server-git"]}, "a/b": {"command": "x"}, "..": {}}}"#,
        &|_| None,
    )
    .unwrap();
    let mut file = ServerFile::parse(Path::new("x"), FILE).unwrap();
    let report = file.import(&other, |_, _| Ok(Accepted::AsItIs)).unwrap();
    assert_eq!(report.added, [name("git"), name("b")]);
    assert_eq!(report.unchanged, [name("time")]);
    assert_eq!(report.clashes, [name("files")]);
    assert_eq!(report.refused[0].0, "..");
    assert_eq!(file.names(), ["time", "files", "git", "b"]);
}

#[test]
fn a_name_that_occurs_twice_is_an_error() {
    let text = r#"{"mcpServers": {"a": {"command": "1"}, "a": {"command": "2"}}}"#;
    let mut file = ServerFile::parse(Path::new("x"), text).unwrap();
    assert!(matches!(
        file.remove(&name("a")),
        Err(EditError::Ambiguous(_))
    ));
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn new_files_are_private_and_old_ones_keep_their_mode() {
    let folder = Folder::new(&[("old.json", "{}")]);
    let old = folder.path("old.json");
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o640)).unwrap();
    for file in ["old.json", "sub/new.json"] {
        add(&folder.path(file), "a");
    }
    assert_eq!(mode(&old), 0o640);
    assert_eq!(mode(&folder.path("sub/new.json")), 0o600);
    let left: Vec<_> = std::fs::read_dir(folder.root()).unwrap().collect();
    assert_eq!(
        left.len(),
        2,
        "a lock or a temporary file is left: {left:?}"
    );
}

#[test]
fn links_stay_links() {
    let folder = Folder::new(&[("real/mcp.json", "{}")]);
    let link = folder.path("link.json");
    std::os::unix::fs::symlink("real/mcp.json", &link).unwrap();
    add(&link, "a");
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(folder.text("real/mcp.json").contains("\"a\""));
    std::os::unix::fs::symlink("real/none.json", folder.path("dangling")).unwrap();
    add(&folder.path("dangling"), "b");
    assert!(folder.text("real/none.json").contains("\"b\""));
}

#[test]
fn a_failed_edit_leaves_the_file_alone() {
    let folder = Folder::new(&[("a.json", "{ broken"), ("b.json", FILE)]);
    let add = |f: &mut ServerFile| f.add(&name("a"), &json!({"command": "a"}), false);
    assert!(matches!(
        edit(&folder.path("a.json"), add),
        Err(EditError::Unreadable(_))
    ));
    assert_eq!(folder.text("a.json"), "{ broken");
    let fail = |f: &mut ServerFile| {
        f.remove(&name("time"))?;
        f.remove(&name("none"))
    };
    assert!(edit(&folder.path("b.json"), fail).is_err());
    assert_eq!(folder.text("b.json"), FILE);
}

#[test]
fn concurrent_editors_lose_nothing() {
    let folder = Folder::new(&[]);
    let path = folder.path("mcp.json");
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let path = &path;
            scope.spawn(move || {
                for i in 0..5 {
                    add(path, &format!("w{worker}-{i}"));
                }
            });
        }
    });
    let file = ServerFile::parse(&path, &folder.text("mcp.json")).unwrap();
    assert_eq!(file.names().len(), 40);
}
