//! `[logins.NAME]`, and `${login:NAME}` in the environment of a server.

use model::{LoginMode, Origin, Pkce};

use super::{load_both as load, table};
use crate::SETTINGS_SAMPLE;

const TABLE: &str = "[logins.hub]\nissuer = \"https://hub.example\"\n";

#[test]
fn the_login_of_the_sample_is_valid() {
    let from = SETTINGS_SAMPLE.find("# [logins.github]").unwrap();
    let to = SETTINGS_SAMPLE.find("[extensions]").unwrap();
    let lines = SETTINGS_SAMPLE[from..to].lines();
    let lines: Vec<_> = lines.map(|line| line.trim_start_matches("# ")).collect();
    let text = lines.join("\n").replace("GITHUB_CLIENT_SECRET", "TOKEN");
    let config = load(&text.replace("GITHUB_CLIENT_KEY", "TOKEN"), "{}").unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
    let login = &config.settings.logins["github"];
    assert_eq!(login.mode, Some(LoginMode::User));
    assert_eq!(login.client_secret.as_deref(), Some("hunter2"));
    assert_eq!(login.pkce, Pkce::Assume);
    let endpoints = login.endpoints.as_ref().unwrap();
    assert!(endpoints.token.ends_with("/access_token") && endpoints.device.is_some());
}

#[test]
fn a_variable_is_an_access_token() {
    let entry = r#"{"mcpServers": {"s": {"command": "x", "env": {"A": "${login:hub}", "B": "plain", "C": "${login:hub}"}}}}"#;
    let config = load(TABLE, entry).unwrap();
    let Origin::Launch(launch) = &config.servers[0].origin else {
        panic!("it is launched")
    };
    let login = launch.login.as_ref().unwrap();
    assert_eq!(login.name, "hub");
    assert!(login.variables.iter().eq(["A", "C"]));
    let issuer = login.login.as_ref().unwrap().issuer.as_deref();
    assert_eq!(issuer, Some("https://hub.example"));
    assert_eq!(launch.env["B"], "plain");
}

#[test]
fn an_access_token_is_refused_outside_of_env() {
    let refused = |entry: &str, what: &str, help: &str| {
        let text = format!("{{\"mcpServers\": {{\n\"s\": {entry}}}}}");
        let error = load(TABLE, &text).expect_err(entry);
        assert!(error.contains(what) && error.contains(help), "{error}");
        assert!(error.contains("mcp.json:2:"), "{error}");
    };
    let only = "can only be the whole value of a variable in `env`";
    for entry in [
        r#"{"command": "x", "args": ["--token=${login:hub}"]}"#,
        r#"{"command": "${login:hub}"}"#,
        r#"{"command": "x", "cwd": "/${login:hub}"}"#,
        r#"{"command": "x", "env": {"A": "Bearer ${login:hub}"}}"#,
        r#"{"url": "https://h/${login:hub}"}"#,
        r#"{"url": "https://h", "headers": {"X": "${login:hub}"}}"#,
    ] {
        refused(entry, only, "in the `env` of a server with a `command`");
    }
    let rows = r#"
        {"command": "x", "env": {"A": "${login:hob}"}} | `[logins.hob]` is missing in toolwharf.toml, which defines `hub` | add the table
        {"command": "x", "env": {"A": "${login:a}", "B": "${login:b}"}} | one login, not both `a` and `b` | name another one
        {"command": "x", "login": "user"} | `login` of server `s` is only for servers with a `url` | ${login:NAME}
    "#;
    for [entry, what, help] in table(rows) {
        refused(&entry, &what, &help);
    }
}

#[test]
fn an_invalid_table_is_reported_with_the_remedy() {
    let refused = |table: &str, what: &str| {
        let error = load(&format!("[logins.hub]\n{table}\n"), "{}").expect_err(table);
        assert!(error.contains(what), "{error}");
        assert!(!error.contains("S3CRET"), "{error}");
    };
    refused("client_id = \"a\"", "neither `issuer` nor `token_url`");
    refused("issuer = \"http://h\"", "https://");
    refused(
        "authorize_url = \"https://h/a\"",
        "only some of the endpoint URLs",
    );
    let both = "authorize_url = \"https://h/a\"\ntoken_url = \"https://h/t\"\n";
    refused(both, "but no `client_id`");
    let issuer = "issuer = \"https://h\"\n";
    refused(&format!("{issuer}login = \"nobody\""), "`user` or `shared`");
    refused(&format!("{issuer}client_secret = [\"S3CRET\"]"), "secret");
    refused(&format!("{issuer}scope = \"a\""), "did you mean `scopes`?");
}

#[test]
fn an_assertion_belongs_to_its_grant() {
    let check = |login: &str| {
        let entry =
            format!(r#"{{"mcpServers": {{"s": {{"url": "https://h", "login": {login}}}}}}}"#);
        load("", &entry)
    };
    let good = r#"{"grant": "jwt_bearer", "clientId": "c", "assertion": "${TOKEN}", "idp": {"issuer": "https://i", "clientId": "d"}}"#;
    let config = check(good).unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
    assert_eq!(config.servers[0].redact("hunter2"), "[secret]");
    let rows = r#"
        {"grant": "jwt_bearer", "clientId": "c"} | if `assertion` or `assertionFile` is set
        {"assertion": "x"} | if `assertion` or `assertionFile` is set
        {"grant": "jwt_bearer", "clientId": "c", "assertionFile": "x"} | an absolute path
        {"grant": "jwt_bearer", "assertion": "x"} | is required with this `grant`
    "#;
    for [login, what] in table(rows) {
        let error = check(&login).expect_err(&login);
        assert!(error.contains(&what), "{error}");
    }
}
