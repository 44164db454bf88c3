//! `public_url` and `[auth.oidc.NAME]`.

use std::collections::BTreeSet;

use model::{AccessRule, Role};

use super::{load_both, table};
use crate::SETTINGS_SAMPLE;

#[test]
fn the_issuer_of_the_sample_is_valid() {
    let from = SETTINGS_SAMPLE.find("# public_url").unwrap();
    let to = SETTINGS_SAMPLE.find("[extensions]").unwrap();
    let text = SETTINGS_SAMPLE[from..to]
        .lines()
        .map(|line| line.strip_prefix("# ").unwrap_or(line))
        .filter(|line| !line.starts_with("Issuers whose") && !line.starts_with("Where "))
        .collect::<Vec<_>>()
        .join("\n")
        .replace("OIDC_CLIENT_SECRET", "TOKEN")
        .replace("GITHUB_CLIENT_SECRET", "TOKEN")
        .replace("GITHUB_CLIENT_KEY", "TOKEN");
    let config = load_both(&text, "{}").unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
    let settings = config.settings;
    let url = settings.public_url.as_deref();
    assert_eq!(url, Some("https://tools.example.com"));
    let issuer = &settings.oidc["corp"];
    assert_eq!(issuer.issuer, "https://login.example.com/realms/corp");
    assert_eq!(issuer.client_secret.as_ref().unwrap().reveal(), "hunter2");
    assert!(issuer.introspection && issuer.jwks_uri.is_some());
    let set = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    assert_eq!(issuer.scopes, set(&["mcp:call"]));
    assert_eq!(issuer.access.len(), 3);
    assert_eq!(
        issuer.access[1],
        AccessRule {
            claim: Some(("realm_access.roles".to_owned(), set(&["toolwharf-admin"]))),
            role: Role::Admin,
            projects: BTreeSet::new(),
        }
    );
    assert_eq!(issuer.access[2].claim, None);
}

#[test]
fn a_public_url_may_have_a_path() {
    for (written, read) in [
        ("https://a.example", "https://a.example"),
        ("https://A.example:443/", "https://a.example"),
        ("https://a.example/tools", "https://a.example/tools"),
        (
            "http://a.example:80/x/Tools-1.0_~//",
            "http://a.example/x/Tools-1.0_~",
        ),
    ] {
        let settings = load_both(&format!("public_url = {written:?}"), "{}")
            .unwrap()
            .settings;
        assert_eq!(settings.public_url.as_deref(), Some(read), "{written}");
    }
}

#[test]
fn invalid_settings_are_reported_with_the_remedy() {
    let rows = r#"
        public_url = "https://a/b?c" | invalid `public_url` | or "https://example.com/tools"
        public_url = "https://a//b" | invalid `public_url` | or "https://example.com/tools"
        public_url = "https://a/b/../c" | invalid `public_url` | or "https://example.com/tools"
        public_url = "https://a/b c" | invalid `public_url` | or "https://example.com/tools"
        public_url = "https://u@a/b" | invalid `public_url` | or "https://example.com/tools"
        public_url = "https:///b" | invalid `public_url` | or "https://example.com/tools"
        public_url = "https://a/mcp" | invalid `public_url` | cannot begin with one of the gateway
        public_url = "https://a/servers/b" | invalid `public_url` | cannot begin with one of the gateway
        [auth.oidc]\ncorp = 1 | `auth.oidc.corp` is not a table | [auth.oidc.corp]
        [auth.oidc."a b"]\nissuer = "https://a" | invalid issuer name `a b` | letters
        [auth.oidc.corp]\nscopes = [] | has no `issuer` | issuer =
        [auth.oidc.corp]\nissuer = "http://a.example" | invalid `issuer` | https://
        ISSUERjwks_uri = "http://10.0.0.1/x" | invalid `jwks_uri` | https://
        ISSUERintrospection = true | `introspection` needs a client | client_secret
        ISSUERclient_secret = "${NOT_SET}S3CRET" | `NOT_SET` is not set | set NOT_SET in
        ISSUER[auth.oidc.again]\nissuer = "https://a.example" | has the same `issuer` as `auth.oidc.again` | all rules for an issuer in one
        ISSUERgroups = 1 | `auth.oidc.*.groups` is not a known | known settings are
        ISSUERaccess = [{ claim = "g", role = "call" }] | only valid together | both
        ISSUERaccess = [{ claim = "g", values = ["a"] }] | an `access` rule has no `role` | `admin`
        ISSUERaccess = [{ role = "root" }] | invalid `role` | `manage`
        ISSUERaccess = [{ role = "call", projects = [] }] | `projects` of an `access` rule is empty | remove `projects`
        ISSUERaccess = [{ role = "call", projects = ["a b"] }] | a b | the id of a project
        ISSUERaccess = [{ role = "admin", projects = ["a"] }] | a rule with `projects` cannot have the role `admin` | `manage`
        ISSUERaccess = ["ml"] | `access` contains a value that is not a table | rules such as
    "#;
    let issuer = "[auth.oidc.corp]\nissuer = \"https://a.example\"\n";
    for [settings, what, help] in table(rows) {
        let text = settings.replace("ISSUER", issuer);
        let error = load_both(&text, "{}").expect_err(&text);
        assert!(error.contains(&what) && error.contains(&help), "{error}");
        assert!(!error.contains("S3CRET"), "{error}");
    }
}
