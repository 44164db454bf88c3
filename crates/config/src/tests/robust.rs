//! Arbitrary input in the files: no panic, and no secrets in the messages.

use std::path::Path;

use proptest::prelude::*;

use super::super::interpolate::{Lookup, Variables};
use super::super::source::{Source, Syntax};
use super::super::{ServerFile, servers, settings};
use super::{Folder, env};

fn outcome(text: &str) -> String {
    let source = Source::new(Path::new("/x/mcp.json"), text.to_owned(), Syntax::Json);
    let variables = Variables {
        env: &env,
        workspace: "/x".into(),
        sealed: Lookup::default(),
    };
    let outcome = servers::parse(&source, &variables, None);
    let problems = outcome.problems.iter().chain(&outcome.entry_problems);
    let all = problems.chain(&outcome.warnings);
    all.map(|p| format!("{p}\n")).collect()
}

/// JSON that is often nearly valid.
fn pieces() -> impl Strategy<Value = String> {
    let words = r#"{ } [ ] : , " "mcpServers" "servers" "a" "command" "url" "env" "args" "type" "stdio"
        "${X}" "${" 1 true null // /* */ ü \ ' - 1e999 "timeout""#;
    let mut pieces: Vec<_> = words.split_whitespace().collect();
    pieces.extend(["\n", " ", "\0"]);
    let piece = prop::sample::select(pieces);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let folder = Folder::new(&[]);
        std::fs::write(folder.path("a.json"), &bytes).unwrap();
        std::fs::write(folder.path("a.toml"), &bytes).unwrap();
        if let Err(error) = folder.load(&["a.json", "a.toml"]) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn pieces_of_json_do_not_panic(text in pieces()) {
        outcome(&text);
        if let Ok(mut file) = ServerFile::parse(Path::new("x"), &text) {
            let name = model::ServerName::parse("a").unwrap();
            let _ = file.set_enabled(&name, false);
            let _ = file.set_tool_enabled(&name, "t", false);
            let _ = file.add(&name, &serde_json::json!({"command": "c"}), true);
            let again = ServerFile::parse(Path::new("x"), &file.to_string());
            prop_assert!(again.is_ok(), "{}", file);
        }
    }

    #[test]
    fn text_in_toml_does_not_panic(text in "([a-z_.\\[\\]=\"'#\n 0-9üKMs]|limits|projects){0,60}") {
        let source = Source::new(Path::new("x.toml"), text, Syntax::Toml);
        let mut problems = Vec::new();
        let variables = Variables {
            env: &|_| None,
            workspace: "/".into(),
            sealed: Lookup::default(),
        };
        settings::parse(&source, &variables, &mut problems);
        for problem in problems {
            prop_assert!(!problem.to_string().is_empty());
        }
    }

    /// A valid file with one character removed or inserted: the messages never show its secret values.
    #[test]
    fn broken_files_keep_their_secrets(at in 0usize..400, put in prop::option::of("[\"{}\\[\\],:/x\n\\\\]")) {
        let good = r#"{
  // key: S3CRET-comment
  "mcpServers": {
    "a": {
      "command": "npx",
      "args": ["-y", "--token", "S3CRET-arg"],
      "env": {"KEY": "S3CRET-env", "OTHER": "S3CRET ${NOT_SET} S3CRET"},
      "timeout": true
    },
    "b": {"url": "ftp://me:S3CRET@h/", "headers": {"A\tB": "S3CRET-h", "X": {"y": "S3CRET"}}}
  }
}"#;
        let at = at % good.len();
        let mut text = good.to_owned();
        match put {
            Some(put) => text.insert_str(at, &put),
            None => drop(text.remove(at)),
        }
        let said = outcome(&text);
        prop_assert!(!said.contains("S3CRET"), "{}", said);
    }
}

#[test]
fn depth_and_length_are_bounded() {
    let deep = format!(
        "{}1{}",
        r#"{"mcpServers":"#.repeat(20_000),
        "}".repeat(20_000)
    );
    assert!(outcome(&deep).contains("nesting depth"));
    let wide = format!(
        r#"{{"mcpServers": {{"a": {{"command": 1, "x": "{}"}}}}}}"#,
        "y".repeat(1_000_000)
    );
    assert!(outcome(&wide).len() < 2_000);
}

#[test]
fn a_large_file_of_problems_is_given_up_early() {
    let servers: Vec<_> = (0..20_000)
        .map(|i| format!("\"s{}\": {{}}", i % 10_000))
        .collect();
    let said = outcome(&format!("{{\"mcpServers\": {{{}}}}}", servers.join(",\n")));
    let problems = said.matches("-->").count();
    assert!((100..=200).contains(&problems), "{problems}");
}
