//! `public_url` and `[auth.oidc.NAME]`.

use std::collections::BTreeSet;

use model::{AccessRule, Role};

use super::Folder;
use crate::SETTINGS_SAMPLE;

#[test]
fn what_the_sample_shows_of_an_issuer_is_valid() {
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
    let folder = Folder::new(&[("t.toml", &text)]);
    let config = folder.load(&["t.toml"]).unwrap();
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
fn what_is_wrong_is_said_with_what_to_write() {
    let check = |text: &str, what: &str, help: &str| {
        let text = text.replace(
            "ISSUER",
            "[auth.oidc.corp]\nissuer = \"https://a.example\"\n",
        );
        let folder = Folder::new(&[("t.toml", &text)]);
        let error = folder.load(&["t.toml"]).expect_err(&text).to_string();
        assert!(error.contains(what) && error.contains(help), "{error}");
        assert!(!error.contains("S3CRET"), "{error}");
    };
    check(
        "public_url = \"https://a/b\"",
        "bad `public_url`",
        "without a path",
    );
    check(
        "[auth.oidc]\ncorp = 1",
        "`auth.oidc.corp` is not a table",
        "[auth.oidc.corp]",
    );
    check(
        "[auth.oidc.\"a b\"]\nissuer = \"https://a\"",
        "bad name of an issuer",
        "letters",
    );
    check(
        "[auth.oidc.corp]\nscopes = []",
        "an issuer without its address",
        "issuer =",
    );
    check(
        "[auth.oidc.corp]\nissuer = \"http://a.example\"",
        "bad `issuer`",
        "https://",
    );
    check(
        "ISSUERjwks_uri = \"http://10.0.0.1/x\"",
        "bad `jwks_uri`",
        "https://",
    );
    check(
        "ISSUERintrospection = true",
        "`introspection` without a client",
        "client_secret",
    );
    check(
        "ISSUERclient_secret = \"${NOT_SET}S3CRET\"",
        "`NOT_SET` is not set",
        "",
    );
    check(
        "ISSUER[auth.oidc.again]\nissuer = \"https://a.example\"",
        "two entries for the same issuer",
        "all its rules in one",
    );
    check(
        "ISSUERgroups = 1",
        "`auth.oidc.*.groups` is not a known",
        "known are",
    );
    for (rule, what, help) in [
        (
            "{ claim = \"g\", role = \"call\" }",
            "need each other",
            "both",
        ),
        (
            "{ claim = \"g\", values = [\"a\"] }",
            "a rule without a role",
            "`admin`",
        ),
        ("{ role = \"root\" }", "bad `role`", "`manage`"),
        (
            "{ role = \"call\", projects = [] }",
            "a rule of no project",
            "remove the key",
        ),
        (
            "{ role = \"call\", projects = [\"a b\"] }",
            "a b",
            "the id of a project",
        ),
        (
            "{ role = \"admin\", projects = [\"a\"] }",
            "an administrator of a project",
            "`manage`",
        ),
        (
            "\"ml\"",
            "`access` contains something that is not a rule",
            "rules such as",
        ),
    ] {
        check(&format!("ISSUERaccess = [{rule}]"), what, help);
    }
}
