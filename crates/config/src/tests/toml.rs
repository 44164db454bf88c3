//! `toolwharf.toml`.

use std::{collections::BTreeMap, path::Path, time::Duration};

use insta::assert_snapshot;
use model::{LogFormat, NamingPolicy, Settings, StartPolicy, Surroundings};

use super::super::SETTINGS_SAMPLE;
use super::{errors, load_both, table};

fn load(text: &str) -> Settings {
    let config = load_both(text, "{}").unwrap_or_else(|error| panic!("{error}"));
    config.settings
}

#[test]
fn the_sample_contains_the_defaults() {
    assert_eq!(load(SETTINGS_SAMPLE), Settings::default());
    let page = include_str!("../../../../docs/configuration.md");
    assert!(
        page.contains(SETTINGS_SAMPLE.trim_end()),
        "the sample in docs/configuration.md differs from settings/sample.rs"
    );
    assert_eq!(load(""), Settings::default());
}

#[test]
fn the_settings_in_comments_of_the_sample_are_valid() {
    let keys = "[projects, servers =, naming = \"pre, disabled_tools, tools = \"s, listed_tools = [\"g, [embeddings, data_dir, [agent, api =, model =, base_url, \
                system =, max_, start =, native, [registries, url, input, output, cache_";
    let uncommented = |text: String, key: &str| text.replace(&format!("# {key}"), key);
    let keys = keys.split(", ");
    let settings = load(&keys.fold(SETTINGS_SAMPLE.to_owned(), uncommented));
    let agent = settings.agent.as_ref().unwrap();
    assert_eq!(
        (agent.model.as_str(), agent.max_tokens, agent.max_turns),
        ("claude-sonnet-4-5", Some(8192), 20)
    );
    assert_eq!(
        (agent.max_chats, agent.start),
        (32, StartPolicy::Sequential)
    );
    assert!(agent.native.contains("display_recipe"));
    let embeddings = settings.embeddings.as_ref().unwrap();
    assert_eq!(embeddings.url, "https://api.openai.com/v1");
    assert_eq!(
        agent.prices["claude-sonnet-4-5"],
        [3_000_000, 15_000_000, 300_000, 3_750_000]
    );
    assert_eq!(
        settings.registries["official"],
        "https://registry.modelcontextprotocol.io"
    );
    let view = settings.projects.values().next().unwrap();
    assert_eq!(view.naming, Some(NamingPolicy::Preserve));
    assert_eq!(view.servers.as_ref().unwrap().len(), 2);
    assert!(settings.data_dir.is_some());
}

#[test]
fn variables_for_every_server() {
    let text = "[defaults]\npass_env = [\"TOKEN\", \"UNSET\"]\n\
                env = { A = \"x-${TOKEN}\", B = true, N = 5, P = \"$${TOKEN}\", D = \"${UNSET:-d}\" }\n";
    let all = load(text).host_env;
    let all = all.complete(&BTreeMap::new(), Surroundings::Elsewhere);
    let all: Vec<String> = all
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    assert_eq!(
        all,
        [
            "A=x-hunter2",
            "B=true",
            "D=d",
            "N=5",
            "P=${TOKEN}",
            "TOKEN=hunter2"
        ]
    );
}

#[test]
fn values() {
    let settings = load(
        "listen = \"[::1]:80\"\nallowed_origins = [\"https://App.example.com:443/\"]\n\
         allowed_hosts = [\"Tools.example.com:81\"]\n\
         [limits]\nmax_body_bytes = 2_048\nmax_line_bytes = \"2 MB\"\nmax_bodies_bytes = \"512M\"\ndrain = \"1500ms\"\n\
         [log]\nformat = \"json\"\n",
    );
    assert_eq!(settings.listen, "[::1]:80");
    assert!(settings.allowed_origins.contains("https://app.example.com"));
    assert!(settings.allowed_hosts.contains("tools.example.com:81"));
    assert_eq!(settings.limits.max_body_bytes, 2048);
    assert_eq!(settings.limits.max_line_bytes, 2_000_000);
    assert_eq!(settings.limits.max_bodies_bytes, 512 << 20);
    assert_eq!(settings.limits.drain, Duration::from_millis(1500));
    assert_eq!(settings.log.format, LogFormat::Json);
}

#[test]
fn scheduled_backups() {
    let backup =
        load("[backup]\nfolder = \"/b\"\nevery = \"90m\"\nkeep = 3\nvolumes = true\n").backup;
    assert_eq!(backup.folder.as_deref(), Some(Path::new("/b")));
    assert_eq!(backup.every, Duration::from_secs(90 * 60));
    assert_eq!((backup.keep, backup.volumes), (3, true));
    for (line, expect) in [
        ("folder = \"b\"", "invalid `folder`"),
        ("every = \"59s\"", "invalid `every`"),
        ("every = \"8d\"", "invalid `every`"),
        ("keep = 0", "invalid `keep`"),
        ("kept = 1", "did you mean `keep`"),
    ] {
        let errors = errors("t.toml", &format!("[backup]\n{line}\n"));
        assert!(errors.contains(expect), "{errors}");
    }
    let text = "data_dir = \"/d\"\n[backup]\nfolder = \"/b\"\n";
    let found = crate::setting_text(text, "data_dir");
    assert_eq!(found.as_deref(), Some("/d"));
    assert_eq!(crate::setting_text(text, "folder"), None);
    assert_eq!(crate::setting_text("not = = toml", "not"), None);
}

#[test]
fn a_model_or_an_endpoint_for_searches() {
    let settings = load("search_model = \"/m\"\nsearch_past_calls = true\n");
    assert_eq!(settings.search_model.as_deref(), Some(Path::new("/m")));
    assert!(settings.search_past_calls);
    let text =
        "embeddings = { url = \"http://127.0.0.1:8080/v1\", model = \"m\", api_key = \"sk-1\" }\n";
    let found = load(text).embeddings.unwrap();
    assert_eq!(
        (found.url.as_str(), found.model.as_str()),
        ("http://127.0.0.1:8080/v1", "m")
    );
    assert_eq!(found.api_key.unwrap().reveal(), "sk-1");
    let valid = "url = \"https://host/v1\"\nmodel = \"m\"\n";
    for (root, line, expect) in [
        ("search_model = \"/m\"\n", valid, "exclude each other"),
        ("search_model = \"m\"\n", "", "invalid `search_model`"),
        ("", "url = \"https://host/v1\"", "has no `model`"),
        ("", "model = \"m\"", "has no `url`"),
        ("", "url = \"ftp://host\"\nmodel = \"m\"", "invalid `url`"),
        (
            "",
            "url = \"https://u:p@host\"\nmodel = \"m\"",
            "invalid `url`",
        ),
        ("", "url = 1\nmodel = \" \"", "invalid `model`"),
        ("", "key = \"sk-1\"", "`embeddings.key` is not a known"),
        ("", "api_key = \"${UNSET_KEY}\"", "UNSET_KEY"),
        ("", "api_key = 7", "`api_key` is not a string"),
    ] {
        let table = match line {
            "" => String::new(),
            line => format!("[embeddings]\n{line}\n"),
        };
        let errors = errors("t.toml", &format!("{root}{table}"));
        assert!(errors.contains(expect), "{errors}");
        assert!(!errors.contains("sk-1"), "{errors}");
    }
}

#[test]
fn bounds_on_results() {
    let settings = load(
        "max_result_tokens = 5000\ncompact_results = true\n[results]\nkeep = \"2h\"\nmax_bytes = \"1MiB\"\n\
         [projects.p]\nmax_result_tokens = 0\ncompact_results = false\n",
    );
    assert_eq!(
        (settings.max_result_tokens, settings.compact_results),
        (5_000, true)
    );
    let results = &settings.results;
    assert_eq!(
        (results.keep, results.max_bytes),
        (Duration::from_secs(7_200), 1 << 20)
    );
    let view = settings.projects.values().next().unwrap();
    assert_eq!(
        (view.max_result_tokens, view.compact_results),
        (Some(0), Some(false))
    );
    for (line, expect) in [
        ("max_result_tokens = 249", "from 250 to 10000000, or 0"),
        ("max_result_tokens = -1", "invalid `max_result_tokens`"),
        ("compact_results = 1", "invalid `compact_results`"),
        ("[results]\nmax_bytes = 10", "invalid `max_bytes`"),
        ("[results]\nkept = \"1h\"", "did you mean `keep`"),
    ] {
        let errors = errors("t.toml", &format!("{line}\n"));
        assert!(errors.contains(expect), "{errors}");
    }
}

#[test]
fn tls_needs_both_files() {
    let tls = load("[tls]\ncert = \"/c.pem\"\nkey = \"/k.pem\"\n")
        .tls
        .unwrap();
    assert_eq!(
        (tls.cert.as_path(), tls.key.as_path()),
        (Path::new("/c.pem"), Path::new("/k.pem"))
    );
    for (lines, expect) in [
        ("cert = \"/c.pem\"", "`[tls]` has `cert`, but no `key`"),
        ("key = \"/k.pem\"", "`[tls]` has `key`, but no `cert`"),
        ("cert = \"c.pem\"\nkey = \"/k.pem\"", "invalid `cert`"),
        ("certs = \"/c.pem\"", "did you mean `cert`"),
    ] {
        let errors = errors("t.toml", &format!("[tls]\n{lines}\n"));
        assert!(errors.contains(expect), "{errors}");
    }
}

#[test]
fn trusted_proxies_are_addresses_and_networks() {
    let trusted =
        load("trusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\", \"fd00::/8\", \"::1\"]\n")
            .trusted_proxies;
    let is_trusted = |ip: &str| {
        let ip = ip.parse().expect(ip);
        trusted.iter().any(|range| range.contains(ip))
    };
    for ip in [
        "127.0.0.1",
        "::ffff:127.0.0.1",
        "10.255.0.1",
        "fd12::1",
        "::1",
    ] {
        assert!(is_trusted(ip), "{ip}");
    }
    for ip in ["127.0.0.2", "11.0.0.1", "fe80::1", "::2", "::ffff:11.0.0.1"] {
        assert!(!is_trusted(ip), "{ip}");
    }
    let all = load("trusted_proxies = [\"0.0.0.0/0\"]\n").trusted_proxies;
    assert!(all[0].contains([255, 1, 2, 3].into()));
    for wrong in [
        "*",
        "10.0.0.0/33",
        "10.0.0.0/",
        "::/129",
        "localhost",
        "::ffff:10.0.0.0/104",
    ] {
        let errors = errors("t.toml", &format!("trusted_proxies = [\"{wrong}\"]\n"));
        assert!(
            errors.contains("invalid `trusted_proxies`"),
            "{wrong}: {errors}"
        );
    }
}

/// Names fit into the 64 characters of model APIs with the prefix that clients make of the entry `toolwharf`.
#[test]
fn g02_the_limit_of_names() {
    assert_eq!(load("").max_name_len + "mcp__toolwharf__".len(), 64);
    for (value, is_valid) in [("32", true), ("128", true), ("31", false), ("129", false)] {
        let text = format!("max_name_len = {value}\n");
        if is_valid {
            assert_eq!(load(&text).max_name_len.to_string(), value);
        } else {
            let errors = errors("t.toml", &text);
            assert!(errors.contains("invalid `max_name_len`"), "{errors}");
            assert!(errors.contains("from 32 to 128"), "{errors}");
        }
    }
}

#[test]
fn invalid_settings_of_an_agent() {
    let rows = r#"
        api = "x" | invalid `api`
        base_url = "x" | invalid `base_url`
        max_turns = 0 | invalid `max_turns`
        max_chats = 0 | invalid `max_chats`
        start = "lazy" | invalid `start`
        native = ["rm"] | invalid `native`
        system_file = "/no/such" | cannot be read
        [agent.prices.m]\ninput = "x" | invalid `input`
    "#;
    for [setting, what] in table(rows) {
        let errors = errors("t.toml", &format!("[agent]\nmodel = \"m\"\n{setting}\n"));
        assert!(errors.contains(&what), "{setting}: {errors}");
    }
    assert!(errors("t.toml", "[agent]\n").contains("`[agent]` has no `model`"));
}

#[test]
fn all_problems_at_once() {
    assert_snapshot!(errors(
        "t.toml",
        r#"listn = "127.0.0.1:1"
listen = "6280"
naming = "prefix"
start = 3
allowed_origins = ["*", "https://a.b/path"]
data_dir = "state"

[limits]
queue_length = 5
max_depth = 0
max_body_bytes = "16 megs"
drain = 30

[log]
format = "xml"

[projects."a b"]
[projects.p]
disabled_tools = ["no_slash"]
server = []
"#
    ), @r##"
error: `listn` is not a known setting
  --> t.toml:1:1
   |
 1 | listn = "…"
   | ^^^^^
  help: did you mean `listen`?

error: invalid `listen`
  --> t.toml:2:10
   |
 2 | listen = "6280"
   |          ^^^^^^
  help: write an address and a port, such as "127.0.0.1:6280"

error: invalid `naming`
  --> t.toml:3:10
   |
 3 | naming = "prefix"
   |          ^^^^^^^^
  help: write one of `prefix-on-conflict`, `always-prefix`, `last-wins`, `preserve`

error: `start` is not a string
  --> t.toml:4:9
   |
 4 | start = 3
   |         ^
  help: write text in double quotes

error: invalid `allowed_origins`
  --> t.toml:5:20
   |
 5 | allowed_origins = ["*", "https://a.b/path"]
   |                   ^^^^^^^^^^^^^^^^^^^^^^^^^
  help: write an origin such as "https://app.example.com", without a path or `*`

error: invalid `allowed_origins`
  --> t.toml:5:25
   |
 5 | allowed_origins = ["*", "https://a.b/path"]
   |                   ^^^^^^^^^^^^^^^^^^^^^^^^^
  help: write an origin such as "https://app.example.com", without a path or `*`

error: invalid `data_dir`
  --> t.toml:6:12
   |
 6 | data_dir = "state"
   |            ^^^^^^^
  help: write an absolute path, such as "/var/lib/toolwharf"

error: `limits.queue_length` is not a known setting
  --> t.toml:9:1
   |
 9 | queue_length = …
   | ^^^^^^^^^^^^
  help: did you mean `queue_len`?

error: invalid `max_depth`
  --> t.toml:10:13
    |
 10 | max_depth = 0
    |             ^
  help: write a whole number from 8 to 1024

error: invalid `max_body_bytes`
  --> t.toml:11:18
    |
 11 | max_body_bytes = "16 megs"
    |                  ^^^^^^^^^
  help: write a number of bytes or a size from 1KiB to 4GiB, such as "16MiB"

error: invalid `drain`
  --> t.toml:12:9
    |
 12 | drain = 30
    |         ^^
  help: write a time such as "500ms", "30s", "5m" or "2h", at most a week

error: invalid `format`
  --> t.toml:15:10
    |
 15 | format = "xml"
    |          ^^^^^
  help: write `text` or `json`

error: a project id consists of letters A-Z and a-z, digits, `_` and `-`
  --> t.toml:17:11
    |
 17 | [projects."a b"]
    | ^^^^^^^^^^^^^^^^
  help: write another name for the project

error: a tool is written as `server/tool`
  --> t.toml:19:19
    |
 19 | disabled_tools = ["no_slash"]
    |                  ^^^^^^^^^^^^
  help: write "server/tool"

error: `projects.*.server` is not a known setting
  --> t.toml:20:1
    |
 20 | server = …
    | ^^^^^^
  help: did you mean `servers`?
"##);
}

#[test]
fn syntax_errors_do_not_quote_values() {
    assert_snapshot!(errors("t.toml", "a = \"S3CRET\nb = = 1\n"), @r##"
error: invalid TOML: invalid basic string, expected `"`
  --> t.toml:1:12
   |
 1 | a = "…"
   |        ^
  help: write one `key = value` per line

error: invalid TOML: extra `=`, expected nothing
  --> t.toml:2:5
   |
 2 | b = …
   |     ^
  help: write one `key = value` per line

error: invalid TOML: unexpected key or value, expected newline, `#`
  --> t.toml:2:7
   |
 2 | b = …
   |     ^
  help: write one `key = value` per line
"##);
}

#[test]
fn projects_that_name_unknown_servers_are_a_warning() {
    let settings = "[projects.p]\nservers = [\"a\", \"b\"]\n";
    let config = load_both(settings, r#"{"mcpServers": {"a": {"command": "a"}}}"#).unwrap();
    assert_eq!(config.warnings.len(), 1);
    let warning = &config.warnings[0].what;
    assert!(warning.contains("`b`, which is not configured"));
}

#[test]
fn the_key_to_e2b_comes_from_a_variable_and_is_not_shown() {
    let load = |text: &str| load_both(text, "{}");
    let config = load("[hosting]\ne2b_api_key = \"${TOKEN}\"\n").unwrap();
    let hosting = &config.settings.hosting;
    assert_eq!(hosting.e2b_api_key.as_ref().unwrap().reveal(), "hunter2");
    assert!(!format!("{config:?}").contains("hunter2"));
    assert_eq!(hosting.e2b_sandbox_url, None);
    let rows = r#"
        e2b_api_key = "${NOT_SET}S3CRET" | `NOT_SET` is not set (`e2b_api_key`)
        e2b_api_key = ["S3CRET"] | `e2b_api_key` is not a string
        e2b_api_key = "" | `e2b_api_key` is empty
        e2b_url = "http://api.example.com" | invalid `e2b_url`
        e2b_sandbox_url = "https://a?b" | invalid `e2b_sandbox_url`
    "#;
    for [setting, what] in table(rows) {
        let error = load(&format!("[hosting]\n{setting}\n")).unwrap_err();
        assert!(error.contains(&what), "{error}");
        assert!(!error.contains("S3CRET"), "{error}");
    }
    let local =
        "[hosting]\ne2b_url = \"http://127.0.0.1:1\"\ne2b_sandbox_url = \"http://[::1]:2\"\n";
    let hosting = load(local).unwrap().settings.hosting;
    assert_eq!(hosting.e2b_url, "http://127.0.0.1:1");
    assert_eq!(hosting.e2b_sandbox_url.as_deref(), Some("http://[::1]:2"));
}

#[test]
fn a_device_for_all_volumes_of_a_swarm_is_refused() {
    let swarm = |device: &str| {
        format!("[swarm]\nvolume_driver = \"local\"\nvolume_options = [\"type=nfs\", {device:?}]\n")
    };
    let error = errors("t.toml", &swarm("device=:/volumes"));
    assert!(error.contains("device=:/volumes/{name}"), "{error}");
    let settings = load(&swarm("device=:/volumes/{name}"));
    assert_eq!(
        settings.hosting.swarm.volume_options["device"],
        ":/volumes/{name}"
    );
}

#[test]
fn a_lease_outside_of_its_bounds_is_refused() {
    for lease in ["0s", "2s", "6m"] {
        let error = errors("t.toml", &format!("[replicas]\nlease = \"{lease}\"\n"));
        assert!(error.contains("a time from \"3s\" to \"5m\""), "{error}");
    }
    let settings = load("[replicas]\nlease = \"3s\"\n");
    assert_eq!(settings.replicas.lease, Duration::from_secs(3));
}

#[test]
fn only_the_image_can_make_servers_on_kubernetes_run_as_root() {
    let user = |value: &str| load(&format!("[kubernetes]\nuser = {value}\n"));
    let of = |settings: Settings| settings.hosting.kubernetes.user;
    assert_eq!(of(load("")), Some(65532));
    assert_eq!(of(user("1000")), Some(1000));
    assert_eq!(of(user("\"image\"")), None);
    for wrong in ["0", "-1", "2000000001", "\"root\"", "true", "\"0\""] {
        let errors = errors("t.toml", &format!("[kubernetes]\nuser = {wrong}\n"));
        assert!(errors.contains("invalid `user`"), "{wrong}: {errors}");
        assert!(errors.contains("a user that is not root"), "{errors}");
    }
}
