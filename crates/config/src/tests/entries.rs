//! Entries with problems, names that are no names, and entries as other clients write them.

use insta::assert_snapshot;
use model::{NativeName, Origin, ServerSpec};
use serde_json::{Value, json};

use super::{Folder, env, load};
use crate::{Accepted, Config, SealedValues, ServerFile, Sources, foreign};

const GOOD: &str = r#"{"command": "c"}"#;

/// Loads a file in which this entry is between two good ones.
fn beside(entry: &str) -> Config {
    let text =
        format!("{{\"mcpServers\": {{\n\"a\": {GOOD},\n\"bad\": {entry},\n\"z\": {GOOD}}}}}");
    let folder = Folder::new(&[("mcp.json", &text)]);
    folder.load(&["mcp.json"]).unwrap()
}

fn find<'c>(config: &'c Config, name: &str) -> &'c ServerSpec {
    let mut servers = config.servers.iter();
    let found = servers.find(|spec| spec.name.as_str() == name);
    found.unwrap_or_else(|| panic!("{name}: {config:?}"))
}

#[test]
fn u11_a_bad_entry_blocks_only_its_server() {
    for (entry, part) in [
        (
            r#"{"command": "c", "env": {"T": "${UNSET}"}}"#,
            "`UNSET` is not set",
        ),
        (
            r#"{"url": "http://h/", "headers": {"A": "Bearer ${UNSET}"}}"#,
            "`UNSET` is not set",
        ),
        (
            r#"{"command": "c", "env": {"K": "${input:k}"}}"#,
            "prompts the user",
        ),
        (
            r#"{"type": "websocket", "url": "http://h/"}"#,
            "unknown transport",
        ),
        (r#"{"args": ["x"]}"#, "neither a `command` nor a `url`"),
        (r#"{"command": "c", "env": ["A=b"]}"#, "`env`"),
        (r#"{"command": "c", "args": "x"}"#, "`args`"),
        (r#"{"url": ""}"#, "no scheme"),
        (r#"{"command": "c", "timeout": -1}"#, "`timeout`"),
        (
            r#"{"command": "c", "env": {"A": "1", "A": "2"}}"#,
            "`A` is defined twice",
        ),
        (r#"{"command": "c", "toolwharf": {"era": "old"}}"#, "`era`"),
        (r#""c""#, "not an object"),
        ("null", "not an object"),
    ] {
        let config = beside(entry);
        let names: Vec<&str> = config.servers.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["a", "bad", "z"], "{entry}");
        for good in ["a", "z"] {
            assert_eq!(find(&config, good).unusable, None, "{entry}");
        }
        let why = find(&config, "bad").unusable.as_deref().unwrap_or_default();
        assert!(why.contains(part) && why.contains("mcp.json:3:"), "{why}");
        let [problem] = &config.problems[..] else {
            panic!("{entry}: {:?}", config.problems);
        };
        assert_eq!(problem.at.map(|at| at.line), Some(3), "{entry}");
    }
}

#[test]
fn u11_a_setting_refuses_the_whole_file() {
    let folder = Folder::new(&[
        ("t.toml", "require_valid_entries = true\n"),
        (
            "mcp.json",
            r#"{"mcpServers": {"a": {}, "b": {"command": "c"}}}"#,
        ),
    ]);
    let error = folder.load(&["t.toml", "mcp.json"]).unwrap_err();
    assert!(
        error.to_string().contains("server `a` has neither"),
        "{error}"
    );
    let config = folder.load(&["mcp.json"]).unwrap();
    assert_eq!(config.servers.len(), 2);
}

#[test]
fn a_bad_entry_is_described_as_far_as_possible() {
    let target = |entry: &str| find(&beside(entry), "bad").origin.target();
    for (entry, expect) in [
        (r#"{"command": "c", "args": ["${UNSET}"]}"#, "c"),
        (r#"{"url": "${UNSET}/mcp"}"#, "${UNSET}/mcp"),
        (r#"{"url": "h/mcp?key=secret"}"#, "h/mcp?…"),
        (r#"{"type": "x", "url": "https://h/mcp"}"#, "https://h/mcp"),
        (r#"{"type": "x", "command": "c"}"#, "c"),
        ("{}", ""),
    ] {
        assert_eq!(target(entry), expect, "{entry}");
    }
    let off = beside(r#"{"type": "x", "command": "c", "isActive": false}"#);
    assert!(!find(&off, "bad").enabled);
}

#[test]
fn names_with_slashes_become_short_names() {
    let folder = Folder::new(&[
        (
            "1.json",
            r#"{"servers": {
              "com.atlassian/jira": {"command": "a"},
              "github.com/upstash/context7-mcp": {"command": "b", "name": "Context7"},
              "named": {"command": "c", "name": "For people"},
              "org.other/jira": {"command": "d"},
              "x/late": {"command": "e"}
            }}"#,
        ),
        ("2.json", r#"{"servers": {"late": {"command": "f"}}}"#),
    ]);
    let config = folder.load(&["1.json", "2.json"]).unwrap();
    let shown = config.servers.iter().map(|spec| {
        let label = spec.label.as_deref().unwrap_or("-");
        let state = spec.unusable.as_deref().unwrap_or("usable");
        format!(
            "{} | {label} | {} | {state}",
            spec.name,
            spec.origin.target()
        )
    });
    let shown: Vec<_> = shown.collect();
    assert_snapshot!(folder.redact(&shown.join("\n")), @"
    jira | com.atlassian/jira | a | usable
    context7-mcp | github.com/upstash/context7-mcp | b | usable
    named | For people | c | usable
    org.other-jira | org.other/jira | d | server `org.other/jira` would get the name `jira`, which `com.atlassian/jira` has: rename one of the two (1.json:5:15)
    x-late | x/late | e | server `x/late` would get the name `late`, which `late` has: rename one of the two (1.json:6:15)
    late | - | f | usable
    ");
    // The same key twice is a duplicate, as for other names.
    let twice = Folder::new(&[
        ("1.json", r#"{"servers": {"a/b": {"command": "a"}}}"#),
        ("2.json", r#"{"servers": {"a/b": {"command": "b"}}}"#),
    ]);
    let error = twice.load(&["1.json", "2.json"]).unwrap_err().to_string();
    assert!(error.contains("server `a/b` is defined twice"), "{error}");
}

#[test]
fn short_names_find_their_entries() {
    let text =
        r#"{"servers": {"a/x": {"command": "a"}, "b/x": {"command": "b"}, "y": {"command": "c"}}}"#;
    let mut file = ServerFile::parse(std::path::Path::new("f"), text).unwrap();
    let name = |text: &str| model::ServerName::parse(text).unwrap();
    for (short, command) in [("x", "a"), ("b-x", "b"), ("y", "c")] {
        let entry = file.value(&name(short)).unwrap().unwrap();
        assert_eq!(entry["command"], command);
    }
    file.set_enabled(&name("x"), false).unwrap();
    file.remove(&name("b-x")).unwrap();
    let entries = file.entries();
    assert_eq!(entries[0].0, "a/x");
    assert_eq!(entries[0].1, json!({"command": "a", "disabled": true}));
    assert_eq!(entries.len(), 2);
}

/// Imports servers from a file into an empty one. Returns the result and what was refused.
fn imported(from: &str, text: &str) -> (Value, Vec<(String, String)>) {
    let found = foreign(std::path::Path::new(from), text, &env).unwrap();
    let mut file = ServerFile::parse(std::path::Path::new("f"), "{}").unwrap();
    let report = file.import(&found, |_, _| Ok(Accepted::AsItIs)).unwrap();
    let mut again = file.import(&found, |_, _| Ok(Accepted::AsItIs)).unwrap();
    assert_eq!((again.added.len(), again.clashes.len()), (0, 0));
    assert_eq!(std::mem::take(&mut again.refused), report.refused);
    let text = file.to_string();
    let config = load(&text);
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let value: Value = serde_json::from_str(&text).unwrap();
    (value["mcpServers"].clone(), report.refused)
}

#[test]
fn names_of_galleries_are_imported() {
    let text = r#"{"servers": {
      "github.com/upstash/context7-mcp": {"command": "npx"},
      "io.other/context7-mcp": {"command": "uvx"}
    }}"#;
    let (servers, refused) = imported("/w/.vscode/mcp.json", text);
    let expected =
        json!({"context7-mcp": {"command": "npx", "name": "github.com/upstash/context7-mcp"}});
    assert_eq!(servers, expected);
    let [(name, why)] = &refused[..] else {
        panic!("{refused:?}");
    };
    assert_eq!(name, "io.other/context7-mcp");
    assert!(why.contains("`context7-mcp`"), "{why}");
}

#[test]
fn forms_of_other_clients_are_imported() {
    let json = r#"{"mcpServers": {"a": {
      "command": "c", "environment": {"A": "{{TOKEN}}", "B": "%TOKEN%"}, "working_directory": "/w",
      "isActive": false, "tools": ["read"]
    }, "b": {"url": "https://h", "requestInit": {"headers": {"Authorization": "Bearer ${{ secrets.TOKEN }}"}}},
    "c": {"command": "c", "enabled": true, "active": false},
    "d": {"command": "c", "args": ["%d", "{{x}}", "%TOKEN%"]}}, "disabledMcpServers": ["d"]}"#;
    let (servers, _) = imported("any.json", json);
    assert_eq!(
        servers,
        json!({
            "a": {
                "command": "c", "env": {"A": "${TOKEN}", "B": "${TOKEN}"}, "cwd": "/w",
                "enabledTools": ["read"], "disabled": true,
            },
            "b": {"url": "https://h", "headers": {"Authorization": "Bearer ${TOKEN}"}},
            "c": {"command": "c", "disabled": true},
            "d": {"command": "c", "args": ["%d", "{{x}}", "%TOKEN%"], "disabled": true},
        })
    );
    for (from, text) in [
        (
            "/h/.gemini/settings.json",
            r#"{"mcpServers": {"a": {"command": "c", "env": {"T": "$TOKEN"}, "includeTools": ["x", "z"]}}}"#,
        ),
        (
            "/h/.copilot/mcp-config.json",
            r#"{"mcpServers": {"a": {"type": "local", "command": "c", "env": {"T": "$TOKEN"}, "tools": ["x", "z"]}}}"#,
        ),
        (
            "config.toml",
            "[mcp_servers.a]\ncommand = 'c'\nenv_vars = ['TOKEN']\nenabled_tools = ['x', 'z']\n",
        ),
        (
            "config.yaml",
            "extensions:\n  a: {type: stdio, cmd: c, envs: {T: '${TOKEN}'}, available_tools: [x, z]}\n",
        ),
        (
            "config.yaml",
            "mcpServers:\n  - name: a\n    command: c\n    env: {T: '${{ secrets.TOKEN }}'}\n    enabledTools: [x, z]\n",
        ),
    ] {
        let (servers, _) = imported(from, text);
        let env = servers["a"]["env"].as_object().unwrap();
        assert!(env.values().all(|it| it == "${TOKEN}"), "{from}: {servers}");
        assert_eq!(servers["a"]["enabledTools"], json!(["x", "z"]), "{from}");
    }
}

#[test]
fn keys_of_other_clients_are_named() {
    let config = load(
        r#"{"mcpServers": {"a": {
          "command": "c", "environment": {"A": "1"}, "working_directory": "/w", "tools": ["x"], "includeTools": [],
          "env_vars": [], "tool_timeout_sec": 5, "args": ["%X%", "{{X}}", "{env:X}"]
        }, "b": {"url": "https://h", "http_headers": {}, "requestInit": {}, "tools": ["*"], "isActive": true}}}"#,
    );
    let said = config.warnings.iter().map(|warning| {
        let help = warning.help.as_deref().unwrap_or_default();
        format!("{}: {help}", warning.what)
    });
    let said: Vec<_> = said.collect();
    assert_snapshot!(said.join("\n"), @"
    `environment` of server `a` is ignored: write `env` instead
    `working_directory` of server `a` is ignored: write `cwd` instead
    `tools` of server `a` is ignored: write `enabledTools` instead
    `includeTools` of server `a` is ignored: write `enabledTools` instead
    `env_vars` of server `a` is ignored: write `env` instead
    `tool_timeout_sec` of server `a` is ignored: write `timeout` instead
    `http_headers` of server `b` is ignored: write `headers` instead
    `requestInit` of server `b` is ignored: write `headers` instead
    ");
    let Origin::Launch(launch) = &find(&config, "a").origin else {
        panic!("it is launched");
    };
    assert_eq!(launch.program.args(), ["%X%", "{{X}}", "{env:X}"]);
}

#[test]
fn a_server_that_any_client_switches_off_is_off() {
    for switch in [
        r#""disabled": true"#,
        r#""enabled": false"#,
        r#""isActive": false"#,
        r#""active": false"#,
        r#""is_enabled": false"#,
        r#""isDisabled": true"#,
        r#""state": "disabled""#,
        r#""enabled": true, "isActive": false"#,
    ] {
        let text = format!(r#"{{"mcpServers": {{"a": {{"command": "${{UNSET}}", {switch}}}}}}}"#);
        assert!(!load(&text).servers[0].enabled, "{switch}");
        let mut file = ServerFile::parse(std::path::Path::new("f"), &text).unwrap();
        let name = model::ServerName::parse("a").unwrap();
        file.set_enabled(&name, true).unwrap();
        let text = file.to_string().replace("${UNSET}", "c");
        assert!(load(&text).servers[0].enabled, "{text}");
    }
    for list in [
        r#""mcp": {"excluded": ["a"]}"#,
        r#""mcp": {"allowed": ["b"]}"#,
        r#""excludeMCPServers": ["a"]"#,
        r#""disabledMcpServers": ["a"]"#,
    ] {
        let config = load(&format!(
            r#"{{{list}, "mcpServers": {{"a": {GOOD}, "b": {GOOD}}}}}"#
        ));
        let enabled = ["a", "b"].map(|name| find(&config, name).enabled);
        assert_eq!(enabled, [false, true], "{list}");
        assert_eq!(config.warnings.len(), 1);
    }
    for on in [
        r#""isActive": true"#,
        r#""active": "yes""#,
        r#""state": "enabled""#,
    ] {
        let config = load(&format!(
            r#"{{"mcpServers": {{"a": {{"command": "c", {on}}}}}}}"#
        ));
        assert!(config.servers[0].enabled, "{on}");
    }
}

#[test]
fn only_enabled_tools_are_offered() {
    let offers = |keys: &str| {
        let config = load(&format!(
            r#"{{"mcpServers": {{"a": {{"command": "c"{keys}}}}}}}"#
        ));
        let tools = &config.servers[0].tools;
        ["x", "y"].map(|tool| tools.offers(tool))
    };
    for (keys, expect) in [
        ("", [true, true]),
        (r#", "enabledTools": null"#, [true, true]),
        (r#", "enabledTools": ["x"]"#, [true, false]),
        (r#", "enabledTools": []"#, [false, false]),
        (r#", "toolwharf": {"enabledTools": ["x"]}"#, [true, false]),
        (
            r#", "enabledTools": ["x", "y"], "disabledTools": ["x"]"#,
            [false, true],
        ),
    ] {
        assert_eq!(offers(keys), expect, "{keys}");
    }
    let text = r#"{"mcpServers": {"a": {"command": "c", "enabledTools": ["x"]}}}"#;
    let mut file = ServerFile::parse(std::path::Path::new("f"), text).unwrap();
    let name = model::ServerName::parse("a").unwrap();
    file.set_tool_enabled(&name, "y", true).unwrap();
    file.set_tool_enabled(&name, "x", false).unwrap();
    let mut tools = load(&file.to_string()).servers.remove(0).tools;
    assert_eq!(["x", "y"].map(|tool| tools.offers(tool)), [false, true]);
    tools.set(&NativeName::new("x"), true);
    assert!(tools.offers("x"));
}

#[test]
fn servers_in_a_list() {
    let text = r#"{"mcp_servers": [
      {"name": "a", "command": "c", "args": ["x"], "env": {"A": "1"}},
      {"command": "d"},
      "e"
    ]}"#;
    let folder = Folder::new(&[("mcp.json", text)]);
    let config = folder.load(&["mcp.json"]).unwrap();
    let names: Vec<_> = config.servers.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["a", "server-2", "server-3"]);
    let usable = config.servers.iter().map(|it| it.unusable.is_none());
    assert!(usable.eq([true, false, false]), "{config:?}");
    assert_eq!(find(&config, "a").label, None);
    let twice =
        r#"{"mcp_servers": [{"name": "a", "command": "c"}, {"name": "a", "command": "d"}]}"#;
    let error = super::errors("mcp.json", twice);
    assert!(error.contains("`a` is defined twice"), "{error}");
    let (servers, _) = imported(
        "x.json",
        r#"{"mcp_servers": [{"name": "a", "command": "c"}]}"#,
    );
    assert_eq!(servers, json!({"a": {"command": "c"}}));
}

#[test]
fn headers_of_callers() {
    let config = load(
        r#"{"mcpServers": {"a": {"url": "https://h/mcp", "headers": {
          "X-Tenant": "${header:X-Tenant}", "Authorization": "Bearer ${header:X-Key:-none}",
          "X-Both": "${TOKEN}/${header:X-Tenant}", "X-Plain": "$${header:X}"
        }}}}"#,
    );
    let spec = &config.servers[0];
    let Origin::Remote(remote) = &spec.origin else {
        panic!("{spec:?}");
    };
    let templates = remote.caller_headers.iter();
    let templates: Vec<_> = templates
        .map(|(name, template)| (name.as_str(), template.source()))
        .collect();
    assert_eq!(
        templates,
        [
            ("Authorization", "Bearer ${header:x-key:-none}".to_owned()),
            ("X-Both", "hunter2/${header:x-tenant}".to_owned()),
            ("X-Tenant", "${header:x-tenant}".to_owned()),
        ]
    );
    assert_eq!(remote.headers["X-Plain"], "${header:X}");
    assert_eq!(remote.headers.len(), 1);
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn headers_that_are_never_passed_on_block_the_entry() {
    for name in [
        "Authorization",
        "authorization",
        "Cookie",
        "Host",
        "Connection",
        "Proxy-Authorization",
        "Mcp-Session-Id",
        "Content-Length",
    ] {
        let entry =
            format!(r#"{{"url": "http://h/", "headers": {{"X": "a ${{header:{name}}}"}}}}"#);
        let config = beside(&entry);
        let why = find(&config, "bad").unusable.as_deref().unwrap();
        let part = format!("`${{header:{name}}}` is not allowed");
        assert!(why.contains(&part), "{why}");
        assert_eq!(find(&config, "a").unusable, None);
    }
}

#[test]
fn a_launched_server_gets_no_headers() {
    for entry in [
        r#"{"command": "c", "env": {"T": "${header:X-Tenant}"}}"#,
        r#"{"command": "c", "args": ["${header:X-Tenant}"]}"#,
        r#"{"url": "https://h/${header:X-Tenant}"}"#,
    ] {
        let config = beside(entry);
        let why = find(&config, "bad").unusable.as_deref().unwrap();
        assert!(
            why.contains("can only be in `headers`, next to a `url`"),
            "{why}"
        );
    }
}

/// The environment supplies variables first, then the stored secrets. An empty variable counts as unset in the environment.
#[test]
fn u13_stored_secrets_supply_what_the_environment_does_not() {
    let text = r#"{"mcpServers": {
        "a": {"command": "c", "env": {"A": "${TOKEN}", "B": "<${STORED}>", "C": "${EMPTY:-default}"}},
        "broken": {"command": "c", "env": {"A": "${CLOSED:-default}"}},
        "lacking": {"command": "c", "env": {"A": "${env:NONE}", "B": "${NONE}${MORE}"}},
        "off": {"command": "c", "args": ["${NONE}", "${STORED}"], "disabled": true}
    }}"#;
    let folder = Folder::new(&[("mcp.json", text)]);
    let sources = Sources::locate(&[folder.path("mcp.json")], &env).unwrap();
    let mut stored = SealedValues::default();
    for name in ["TOKEN", "STORED", "EMPTY"] {
        stored.insert(name.to_owned(), Ok(format!("secret of {name}")));
    }
    stored.insert("CLOSED".to_owned(), Err("it was changed".to_owned()));
    // The copy has the secrets that are set later, too.
    let copy = sources.clone();
    sources.sealed.set(stored);
    let env = |name: &str| match name {
        "EMPTY" => Some(String::new()),
        name => env(name),
    };
    let config = Config::load(&copy, &env).unwrap();
    let a = find(&config, "a");
    let env_of_a = &a.launch().unwrap().env;
    assert_eq!(env_of_a["A"], "hunter2");
    assert_eq!(env_of_a["B"], "<secret of STORED>");
    assert_eq!(env_of_a["C"], "secret of EMPTY");
    assert_eq!(
        a.redact("<secret of STORED> secret of TOKEN"),
        "<[secret]> secret of TOKEN"
    );
    assert!(!format!("{copy:?}{config:?}").contains("secret of"));
    let why = find(&config, "broken").unusable.as_deref().unwrap();
    assert!(why.contains("`CLOSED` cannot be decrypted"), "{why}");
    let lacking = find(&config, "lacking");
    let names: Vec<&str> = lacking.unset.iter().map(String::as_str).collect();
    assert_eq!(names, ["MORE", "NONE"]);
    let why = lacking.unusable.as_deref().unwrap();
    assert!(why.contains("toolwharf secret set NONE"), "{why}");
    let off = find(&config, "off");
    let names: Vec<&str> = off.unset.iter().map(String::as_str).collect();
    assert_eq!((names.as_slice(), &off.unusable), (&["NONE"][..], &None));
}
