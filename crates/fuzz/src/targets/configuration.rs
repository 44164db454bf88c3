//! Configuration files: of Toolwharf and of other clients.
//!
//! The parts of an input are a server file, a settings file, and a file of another client. Loading them never fails
//! without a reason, no message shows the value of a variable, and an edited file has the edit and nothing else changed.

use std::{fs, path::Path};

use config::{CLIENTS, ClientFile, Config, ServerFile, Sources, foreign};
use model::ServerName;
use serde_json::{Value, json};

use super::mcpb::Scratch;
use crate::pieces;

pub(crate) const WORDS: &[&str] = &[
    "\"mcpServers\":{",
    "\"servers\":{",
    "\"command\":\"npx\"",
    "\"args\":[\"-y\"",
    "\"env\":{",
    "\"url\":\"https://example.com/mcp\"",
    "\"headers\":{",
    "\"type\":\"http\"",
    "\"disabled\":true",
    "\"timeout\":",
    "\"toolwharf\":{",
    "\"sandbox\":true",
    "\"network\":",
    "\"mounts\":[\"/",
    "\"disabledTools\":[",
    "\"login\":{",
    "${TOKEN}",
    "${TOKEN:-x}",
    "${header:X-A}",
    "${login:a}",
    "// comment\n",
    "/* */",
    "listen = \"127.0.0.1:1\"\n",
    "[limits]\n",
    "[projects.a]\n",
    "[logins.a]\n",
    "[hosting]\n",
    "[mcp_servers.a]\n",
    "mcpServers:\n  a:\n    command: b\n",
    "context_servers",
    "extensions:\n",
];

/// The value of every variable.
const VALUE: &str = "the-value-of-a-variable";

#[expect(clippy::unnecessary_wraps, reason = "the form of a look-up")]
fn env(name: &str) -> Option<String> {
    Some(match name {
        // Paths, which messages may show.
        "HOME" => "/home/me".to_owned(),
        name if name.starts_with("XDG_") => "/home/me/x".to_owned(),
        _ => VALUE.to_owned(),
    })
}

pub(crate) fn run(input: &[u8]) {
    if pieces::mentions(input, VALUE) {
        return;
    }
    let [servers, settings, other] = pieces::parts(input);
    load(servers, settings);
    edited(&pieces::text(servers));
    of_clients(&pieces::text(if other.is_empty() {
        servers
    } else {
        other
    }));
}

fn load(servers: &[u8], settings: &[u8]) {
    let scratch = Scratch::new();
    let files = [
        (scratch.path().join("mcp.json"), servers),
        (scratch.path().join("toolwharf.toml"), settings),
    ];
    for (path, content) in &files {
        fs::write(path, content).expect("a file");
    }
    let named = files.map(|(path, _)| path);
    let sources = Sources::locate(&named, &env).expect("two files");
    let said = match Config::load(&sources, &env) {
        Ok(config) => {
            let again = Config::load(&sources, &env).expect("the same files");
            assert_eq!(again, config);
            let problems = config.problems.iter().chain(&config.warnings);
            problems.map(ToString::to_string).collect::<String>()
        }
        Err(error) => {
            let said = error.to_string();
            assert!(!said.is_empty());
            said
        }
    };
    shows_nothing(&said);
    let _ = config::all_settings(&sources);
}

/// A message has no value of a variable, and no control characters except line breaks.
fn shows_nothing(said: &str) {
    assert!(!said.contains(VALUE), "{said}");
    assert!(
        !said.contains(|c: char| c.is_control() && c != '\n'),
        "{said:?}"
    );
}

/// Every edit of a valid file returns a valid file with the edit.
fn edited(text: &str) {
    let path = Path::new("/x/mcp.json");
    let mut file = match ServerFile::parse(path, text) {
        Ok(file) => file,
        Err(error) => return shows_nothing(&error.to_string()),
    };
    let name = ServerName::parse("a").expect("a name");
    let entry = json!({"command": "c", "args": ["${TOKEN}", "\u{e9}\"\\"], "env": {"A": "b"}});
    let value = |text: &str| {
        let file = ServerFile::parse(path, text).unwrap_or_else(|error| panic!("{error}: {text}"));
        file.value(&name).ok().flatten()
    };
    let before = file.value(&name).ok().flatten();
    if file.set_enabled(&name, false).is_ok() && before.is_some() {
        assert!(value(&file.to_string()).is_some());
    }
    if file.set_tool_enabled(&name, "t", false).is_ok() {
        value(&file.to_string()).expect("the entry with a tool switched off");
    }
    if file.add(&name, &entry, true).is_ok() {
        assert_eq!(value(&file.to_string()), Some(entry.clone()));
        let update = json!({"url": "https://example.com/mcp"});
        file.update(&name, &update).expect("the entry is there");
        assert_eq!(value(&file.to_string()), Some(update));
        file.remove(&name).expect("the entry is there");
        assert_eq!(value(&file.to_string()), None);
    }
}

/// Files of other clients are read and edited in each of their formats.
fn of_clients(text: &str) {
    for file in [
        "/x/a.json",
        "/x/a.toml",
        "/x/a.yaml",
        "/x/.gemini/settings.json",
    ] {
        match foreign(Path::new(file), text, &env) {
            Ok(found) => {
                for one in found {
                    let Ok(name) = ServerName::parse(&one.name) else {
                        continue;
                    };
                    let none = Default::default();
                    if let Err(unfit) =
                        config::check_entry(Path::new(file), &name, &one.entry, &env, &none)
                    {
                        shows_nothing(&unfit.problems.join("\n"));
                    }
                }
            }
            Err(error) => shows_nothing(&error.to_string()),
        }
    }
    let entry = json!({"command": "c", "args": ["a b", "\"\u{e9}\\'#"]});
    for client in CLIENTS
        .iter()
        .step_by(3)
        .chain(CLIENTS.iter().rev().take(2))
    {
        let path = Path::new("/x/file");
        let mut file = match ClientFile::parse(client, path, text) {
            Ok(file) => file,
            Err(error) => {
                shows_nothing(&error.to_string());
                continue;
            }
        };
        let others = |file: &ClientFile| -> Vec<(String, Value)> {
            file.servers()
                .into_iter()
                .filter(|(name, _)| name != "tw")
                .collect()
        };
        let before = others(&file);
        if let Err(error) = file.put("tw", &entry) {
            shows_nothing(&error.to_string());
            continue;
        }
        assert!(file.get("tw").is_some(), "{}", client.name);
        assert_eq!(others(&file), before, "{}", client.name);
        if file.remove("tw").is_ok() {
            assert_eq!(file.get("tw"), None, "{}", client.name);
        }
    }
}
