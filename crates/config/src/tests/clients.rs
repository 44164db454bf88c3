//! Clients' files: their locations, and adding and removing a server.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::table;
use crate::{CLIENTS, Client, ClientFile, Machine, Os, Way};

fn client(name: &str) -> &'static Client {
    Client::find(name).unwrap()
}

fn file(name: &str, text: &str) -> ClientFile {
    ClientFile::parse(client(name), Path::new("/h/its-file"), text).unwrap()
}

fn command() -> Way {
    Way::Command {
        program: "/bin/toolwharf".into(),
        args: vec!["stdio".into(), "--client".into(), "x".into()],
    }
}

fn put(name: &str, text: &str) -> String {
    let mut file = file(name, text);
    let entry = client(name).entry("toolwharf", &command());
    file.put("toolwharf", &entry).unwrap();
    assert_eq!(file.get("toolwharf"), Some(entry));
    file.to_string()
}

fn places(name: &str, os: Os, variables: &[(&str, &str)]) -> Vec<String> {
    let env = |name: &str| {
        let found = variables.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let places = client(name).places(Machine { os, env: &env });
    let places = places.iter();
    places.map(|place| place.display().to_string()).collect()
}

#[test]
fn files_are_where_each_system_has_them() {
    // Columns: client, system, variables, and the first place of the client's file.
    let rows = "
        claude-desktop | Linux | HOME=/h | /h/.config/Claude/claude_desktop_config.json
        claude-desktop | Mac | HOME=/h | /h/Library/Application Support/Claude/claude_desktop_config.json
        claude-desktop | Windows | USERPROFILE=C:/u APPDATA=C:/u/roaming | C:/u/roaming/Claude/claude_desktop_config.json
        claude-desktop | Linux | HOME=/h XDG_CONFIG_HOME=/c | /c/Claude/claude_desktop_config.json
        claude-desktop | Linux | HOME=/h XDG_CONFIG_HOME=c | /h/.config/Claude/claude_desktop_config.json
        claude-code | Linux | HOME=/h | /h/.claude.json
        claude-code | Linux | HOME=/h CLAUDE_CONFIG_DIR=/c | /c/.claude.json
        codex | Mac | HOME=/h CODEX_HOME=/c | /c/config.toml
        codex | Windows | USERPROFILE=C:/u APPDATA=C:/u/roaming | C:/u/.codex/config.toml
        vscode | Mac | HOME=/h | /h/Library/Application Support/Code/User/mcp.json
        zed | Mac | HOME=/h | /h/.config/zed/settings.json
        zed | Windows | USERPROFILE=C:/u APPDATA=C:/u/roaming | C:/u/roaming/Zed/settings.json
        goose | Linux | HOME=/h XDG_CONFIG_HOME=/c | /c/goose/config.yaml
        goose | Windows | USERPROFILE=C:/u APPDATA=C:/u/roaming | C:/u/roaming/Block/goose/config/config.yaml
        opencode | Linux | HOME=/h OPENCODE_CONFIG=/o.json | /o.json
    ";
    let all = [Os::Linux, Os::Mac, Os::Windows];
    for [name, system, variables, first] in table(rows) {
        let os = *all.iter().find(|os| format!("{os:?}") == system).unwrap();
        let variables = variables.split(' ').filter_map(|pair| pair.split_once('='));
        let variables: Vec<_> = variables.collect();
        assert_eq!(places(&name, os, &variables)[0], first, "{name} {os:?}");
    }
    let homes = [
        ("HOME", "/h"),
        ("USERPROFILE", "C:/u"),
        ("APPDATA", "C:/u/roaming"),
    ];
    for client in CLIENTS {
        for os in all {
            assert!(!places(client.name, os, &homes).is_empty());
        }
        assert!(places(client.name, Os::Linux, &[]).is_empty());
    }
}

#[test]
fn json_keeps_comments_order_and_style() {
    let text = "// mine\n{\n    \"theme\": \"dark\", // nice\n    \"mcpServers\": {\n        /* first */\n        \"time\": { \"command\": \"uvx\" },\n    },\n    \"z\": [1, 2]\n}\n";
    let new = put("cursor", text);
    assert_eq!(
        new,
        "// mine\n{\n    \"theme\": \"dark\", // nice\n    \"mcpServers\": {\n        /* first */\n        \"time\": { \"command\": \"uvx\" },\n        \"toolwharf\": {\n            \"command\": \"/bin/toolwharf\",\n            \"args\": [\"stdio\", \"--client\", \"x\"],\n        },\n    },\n    \"z\": [1, 2]\n}\n"
    );
    let mut back = file("cursor", &new);
    back.remove("toolwharf").unwrap();
    assert_eq!(back.to_string(), text);
    // A server can also be added without a container, to an empty file, and with Windows line ends and a byte order
    // mark.
    let made = put("zed", "\u{feff}{\r\n  \"vim_mode\": true\r\n}\r\n");
    assert!(
        made.starts_with("\u{feff}{\r\n  \"vim_mode\": true,\r\n  \"context_servers\": {\r\n"),
        "{made:?}"
    );
    assert!(!made.replace("\r\n", "").contains('\n'), "{made:?}");
    for empty in ["", " \n", "{}"] {
        let made: Value = serde_json::from_str(&put("vscode", empty)).unwrap();
        assert_eq!(made["servers"]["toolwharf"]["type"], "stdio");
    }
}

#[test]
fn toml_keeps_comments_and_order() {
    let text = "# mine\nmodel = \"o\" # nice\n\n[mcp_servers.time] # first\ncommand = 'uvx'\nenv = { A = \"1\" }\n\n[tui]\ntheme = \"x\"\n";
    for ends in ["\n", "\r\n"] {
        let text = text.replace('\n', ends);
        let new = put("codex", &text);
        let table = "\n[mcp_servers.toolwharf]\ncommand = \"/bin/toolwharf\"\nargs = [\"stdio\", \"--client\", \"x\"]\n";
        let table = table.replace('\n', ends);
        assert!(new.contains(&table), "{new}");
        assert_eq!(new.replace(&table, ""), text);
        let mut back = file("codex", &new);
        back.remove("toolwharf").unwrap();
        assert_eq!(back.to_string(), text);
    }
    // The servers may be in an inline table, or there may be no table.
    put("codex", "mcp_servers = { a = { command = \"x\" } }\n");
    assert_eq!(
        put("codex", ""),
        "[mcp_servers.toolwharf]\ncommand = \"/bin/toolwharf\"\nargs = [\"stdio\", \"--client\", \"x\"]\n"
    );
}

#[test]
fn yaml_keeps_everything_but_its_own_lines() {
    let goose = "# mine\nextensions:\n  # built in\n  developer:\n    type: builtin\n    enabled: true\n  time:\n    type: stdio\n    cmd: uvx\n    args:\n    - mcp-server-time\n\n# the model\nGOOSE_MODEL: gpt\n";
    let lines = "  toolwharf:\n    type: \"stdio\"\n    cmd: \"/bin/toolwharf\"\n    args: [\"stdio\",\"--client\",\"x\"]\n    envs: {}\n    name: \"toolwharf\"\n    enabled: true\n    timeout: 300\n";
    let new = put("goose", goose);
    assert_eq!(
        new,
        goose.replace("\n\n# the", &format!("\n{lines}\n# the"))
    );
    let mut back = file("goose", &new);
    back.remove("toolwharf").unwrap();
    assert_eq!(back.to_string(), goose);
    back.remove("developer").unwrap();
    assert!(back.to_string().contains("# built in\n  time:\n"), "{back}");

    for (text, expected) in [
        (
            "name: me\nmcpServers:\n- name: time\n  command: uvx\nmodels: []\n",
            "- name: time\n  command: uvx\n- name: \"toolwharf\"\n  command:",
        ),
        (
            "name: me\nmcpServers: []",
            "name: me\nmcpServers:\n  - name: \"toolwharf\"\n    command:",
        ),
        (
            "name: me",
            "name: me\nmcpServers:\n  - name: \"toolwharf\"\n",
        ),
        ("", "mcpServers:\n  - name: \"toolwharf\"\n"),
        (
            "mcpServers:\r\n  - name: a\r\n    command: b",
            "    command: b\r\n  - name: \"toolwharf\"\r\n",
        ),
    ] {
        let new = put("continue", text);
        assert!(new.contains(expected), "{new:?}");
        let mut back = file("continue", &new);
        back.remove("toolwharf").unwrap();
        assert_eq!(back.get("toolwharf"), None);
    }
}

#[test]
fn urls_are_written_in_the_format_of_each_client() {
    let way = Way::Url {
        url: "http://h/mcp".into(),
        token: "t".into(),
    };
    for (name, key, header) in [
        ("claude-code", "/url", "/headers"),
        ("codex", "/url", "/http_headers"),
        ("continue", "/url", "/requestOptions/headers"),
        ("gemini", "/httpUrl", "/headers"),
        ("goose", "/uri", "/headers"),
        ("windsurf", "/serverUrl", "/headers"),
    ] {
        let entry = client(name).entry("toolwharf", &way);
        assert_eq!(entry.pointer(key), Some(&json!("http://h/mcp")), "{entry}");
        let headers = entry.pointer(header).unwrap();
        assert_eq!(headers["Authorization"], "Bearer t", "{entry}");
        let mut file = file(name, "");
        file.put("toolwharf", &entry).unwrap();
    }
    assert!(!client("claude-desktop").takes_urls());
}

#[test]
fn a_file_that_cannot_be_edited_is_reported_with_its_place() {
    let rows = r#"
        cursor | {\n  "mcpServers": {\n    "a" 1\n  }\n} | /h/its-file:3: | `:`
        cursor | [] | is not a JSON object | its-file
        cursor | {"mcpServers": [1]} | `mcpServers` is a list | its-file
        opencode | {"mcp": null} | `mcp` is null | its-file
        codex | a = 1\nb = \n | its-file:2: | invalid TOML
        codex | mcp_servers = 1\n | `mcp_servers` is a number | its-file
        goose | a: 1\n b: sk-secret\n | invalid YAML at line 2 | its-file
        goose | extensions: text\n | `extensions` is a text | its-file
        goose | - 1\n | a list | its-file
    "#;
    for [name, text, what, place] in table(rows) {
        let error = ClientFile::parse(client(&name), Path::new("/h/its-file"), &text).unwrap_err();
        let said = error.to_string();
        assert!(said.contains(&what) && said.contains(&place), "{said}");
        assert!(
            said.contains("help:") && !said.contains("sk-secret"),
            "{said}"
        );
    }
    // A value that would need another style is refused, and the text is unchanged.
    for (name, text) in [
        ("goose", "extensions: {a: {type: builtin}}\n"),
        ("codex", "a = 1\r\nb = 2\n"),
        ("goose", "a: &x 1\n---\nb: 2\n"),
    ] {
        let Ok(mut file) = ClientFile::parse(client(name), Path::new("/h/its-file"), text) else {
            continue;
        };
        let said = file
            .put("toolwharf", &json!({"cmd": "x"}))
            .unwrap_err()
            .to_string();
        assert!(said.contains("by hand"), "{said}");
        assert_eq!(file.to_string(), text);
    }
}

/// Lines in any number and order: comments, blank lines, servers and other keys.
fn texts(format: &str) -> impl Strategy<Value = String> + use<> {
    let yaml = format == "goose";
    let toml = format == "codex";
    let server = "[a-z]{1,8}";
    let servers = proptest::collection::btree_map(server, "[ -~]{0,12}", 0..4);
    let ends = prop_oneof![Just("\n"), Just("\r\n")];
    (servers, "[ -~]{0,20}", any::<bool>(), ends).prop_map(move |(servers, note, last, end)| {
        let note = note.replace("*/", "");
        let text = |value: &String| Value::from(value.as_str()).to_string();
        let mut out = String::new();
        if yaml {
            out.push_str(&format!("# {note}\nextensions:\n"));
            for (name, value) in &servers {
                out.push_str(&format!(
                    "  {}: # {note}\n    cmd: {}\n\n",
                    text(name),
                    text(value)
                ));
            }
            out.push_str(&format!("# {note}\nlast: 1\n"));
        } else if toml {
            out.push_str(&format!("# {note}\nfirst = 1\n"));
            for (name, value) in &servers {
                out.push_str(&format!(
                    "\n# {note}\n[mcp_servers.{name}] # {note}\ncommand = {}\n",
                    text(value)
                ));
            }
            out.push_str(&format!("\n[last] # {note}\nkey = 1\n"));
        } else {
            out.push_str(&format!("// {note}\n{{\n  \"mcpServers\": {{\n"));
            for (name, value) in &servers {
                out.push_str(&format!(
                    "    {}: {{ \"command\": {} }}, // {note}\n",
                    text(name),
                    text(value)
                ));
            }
            out.push_str(&format!("    /* {note} */\n  }},\n  \"last\": 1\n}}\n"));
        }
        if last {
            out.truncate(out.trim_end().len());
        }
        out.replace('\n', end)
    })
}

proptest! {
    #[test]
    fn every_line_stays_in_its_order(
        (name, text) in prop_oneof![Just("cursor"), Just("codex"), Just("goose")]
            .prop_flat_map(|name| (Just(name), texts(name)))
    ) {
        let before = file(name, &text).servers();
        let new = put(name, &text);
        let mut lines = new.lines();
        for line in text.lines() {
            // The line before a new one may get a comma.
            let found = lines.any(|new| new == line || new.replacen(',', "", 1) == line.replacen(',', "", 1));
            prop_assert!(found, "{line:?} is not in {new:?}");
        }
        let mut back = file(name, &new);
        back.remove("toolwharf").unwrap();
        prop_assert_eq!(back.servers(), before);
        prop_assert!(back.to_string().lines().filter(|line| !line.trim().is_empty()).count()
            <= text.lines().filter(|line| !line.trim().is_empty()).count() + 2);
    }

    #[test]
    fn no_text_makes_it_panic(text in "[ -~\\n\\r\\t{}\\[\\]:#\"-]{0,80}") {
        for client in CLIENTS {
            if let Ok(mut file) = ClientFile::parse(client, Path::new("/f"), &text) {
                let before = file.to_string();
                let entry = client.entry("toolwharf", &command());
                if file.put("toolwharf", &entry).is_err() {
                    prop_assert_eq!(file.to_string(), before);
                }
            }
        }
    }
}

#[test]
fn servers_in_yaml_are_read_as_entries() {
    let read = |file: &str, text: &str| crate::foreign(Path::new(file), text, &|_| None).unwrap();
    let goose = read(
        "config.yaml",
        "extensions:\n  developer: {type: builtin, enabled: true}\n  time:\n    type: stdio\n    enabled: false\n    cmd: uvx\n    args: [mcp-server-time]\n    envs: {A: b}\n    env_keys: [TOKEN]\n  web: {type: streamable_http, uri: 'https://h/mcp'}\n",
    );
    assert!(goose[0].skip.is_some());
    assert_eq!(
        goose[1].entry,
        json!({"command": "uvx", "args": ["mcp-server-time"], "env": {"A": "b", "TOKEN": "${TOKEN}"}, "disabled": true})
    );
    assert_eq!(goose[2].entry, json!({"url": "https://h/mcp"}));
    let known = read(
        "config.yaml",
        "mcpServers:\n  - name: a\n    command: x\n  - name: b\n    type: sse\n    url: https://h\n    requestOptions: {headers: {K: v}}\n",
    );
    assert_eq!(known[0].name, "a");
    assert_eq!(known[0].entry, json!({"command": "x"}));
    assert_eq!(
        known[1].entry,
        json!({"type": "sse", "url": "https://h", "headers": {"K": "v"}})
    );
}

/// A file with `count` servers, in the client's own format or on one line.
fn many(name: &str, count: usize, is_one_line: bool) -> String {
    let servers = (0..count).map(|at| format!("s{at}"));
    match name {
        "codex" => servers
            .map(|it| format!("[mcp_servers.{it}]\ncommand = \"x\"\n"))
            .collect(),
        "goose" => {
            let servers = servers.map(|it| format!("  {it}:\n    type: stdio\n    cmd: x\n"));
            format!("extensions:\n{}", servers.collect::<String>())
        }
        _ => {
            let (start, end) = if is_one_line {
                ("", "")
            } else {
                ("\n    ", "\n  ")
            };
            let servers = servers.map(|it| format!("{start}\"{it}\": {{\"command\": \"x\"}}"));
            let servers = servers.collect::<Vec<_>>().join(",");
            format!("{{{end}\"mcpServers\": {{{servers}{end}}}}}")
        }
    }
}

/// CPU seconds of this thread, which other tests on the machine do not affect.
fn cpu() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

#[test]
fn an_edit_takes_time_in_proportion_to_the_file() {
    for (name, is_one_line) in [
        ("cursor", false),
        ("cursor", true),
        ("codex", false),
        ("goose", false),
    ] {
        let took = [2_000, 20_000].map(|count| {
            let text = many(name, count, is_one_line);
            let start = cpu();
            let mut edited = file(name, &text);
            let entry = client(name).entry("toolwharf", &command());
            edited.put("toolwharf", &entry).unwrap();
            assert_eq!(edited.get("toolwharf"), Some(entry));
            edited.remove("toolwharf").unwrap();
            assert_eq!(edited.to_string(), text, "{name} comes back to the byte");
            edited.remove("s1000").unwrap();
            assert_eq!(edited.servers().len(), count - 1);
            cpu() - start
        });
        println!("{name}, on one line: {is_one_line}: {took:.2?} s");
        // Ten times the size: a quadratic edit would take a hundred times as long. The margin is for caches and small
        // divisors.
        let bound = 30.0 * took[0].max(0.05);
        assert!(took[1] < bound, "{name}, {is_one_line}: {took:.2?} s");
    }
}

/// The work of `connect` on the files of the most common clients.
#[test]
fn a_file_of_100_000_servers_is_edited_in_two_seconds() {
    let text = many("cursor", 100_000, false);
    let start = cpu();
    let mut edited = file("cursor", &text);
    edited
        .put(
            "toolwharf",
            &client("cursor").entry("toolwharf", &command()),
        )
        .unwrap();
    let took = cpu() - start;
    println!("100,000 servers: {took:.2} s");
    // A debug build takes about five times as long.
    let bound = if cfg!(debug_assertions) { 10.0 } else { 2.0 };
    assert!(took < bound, "{took:.2} s");
}

#[test]
fn large_files_keep_their_comments() {
    let filler: String = (0..1_100)
        .map(|at| format!("    \"s{at}\": {{}},\n"))
        .collect();
    for (end, new) in [
        (
            "    \"z\": {} // last\n",
            "    \"z\": {},\n    \"toolwharf\"",
        ),
        (
            "    \"z\": {}, // last\n",
            "    \"z\": {},\n    \"toolwharf\"",
        ),
        (
            "    \"z\": {} /* , */ , /* } */\n",
            "/* , */ ,\n    \"toolwharf\"",
        ),
    ] {
        let text = format!("{{\n  // servers\n  \"mcpServers\": {{\n{filler}{end}  }}\n}}\n");
        let mut edited = file("cursor", &text);
        let entry = client("cursor").entry("toolwharf", &command());
        edited.put("toolwharf", &entry).unwrap();
        let with = edited.to_string();
        assert!(with.contains(new), "{}", &with[with.len() - 300..]);
        for comment in ["// servers", "// last", "/* , */", "/* } */"] {
            assert_eq!(with.contains(comment), text.contains(comment), "{comment}");
        }
        let other = json!({"command": "y"});
        edited.put("toolwharf", &other).unwrap();
        assert_eq!(edited.get("toolwharf"), Some(other));
        edited.remove("toolwharf").unwrap();
        assert_eq!(edited.servers().len(), 1_101);
        edited.remove("s7").unwrap();
        assert!(
            edited
                .to_string()
                .contains("    \"s6\": {},\n    \"s8\": {},\n")
        );
        edited.remove("z").unwrap();
        assert_eq!(edited.servers().len(), 1_099);
    }
}

#[test]
fn many_servers_are_added_and_removed_in_one_go() {
    for is_one_line in [false, true] {
        for last in ["", ",", " // c\n", ", /* d */\n"] {
            let text = many("cursor", 300, is_one_line);
            let end = text.rfind("\"x\"}").unwrap() + 4;
            let text = format!("{}{last}{}", &text[..end], &text[end..]);
            let mut edited = file("cursor", &text);
            let all = edited.servers();
            let new: Vec<_> = (0..300)
                .map(|at| (format!("new \"{at}"), json!({"command": "y", "args": [at]})))
                .collect();
            edited.put_all(&new).unwrap();
            assert_eq!(edited.servers(), [all.clone(), new.clone()].concat());
            edited
                .remove_all(&new.iter().map(|(name, _)| name.as_str()).collect())
                .unwrap();
            assert_eq!(edited.servers(), all);
            // The cases keep only the first server, every second one, and none.
            for left in [1, 2, 0] {
                let mut edited = file("cursor", &text);
                let stays = |at: usize| match left {
                    2 => at.is_multiple_of(2),
                    left => at < left,
                };
                let indexed = all.iter().enumerate();
                let gone = indexed
                    .filter(|(at, _)| !stays(*at))
                    .map(|(_, (name, _))| name.as_str());
                edited.remove_all(&gone.collect()).unwrap();
                let count = (0..300).filter(|at| stays(*at)).count();
                assert_eq!(edited.servers().len(), count, "{edited}");
                for comment in ["// c", "/* d */"] {
                    assert_eq!(
                        edited.to_string().contains(comment),
                        last.contains(comment),
                        "{edited}"
                    );
                }
            }
        }
    }
}
