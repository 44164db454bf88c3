//! `[auth.oidc.NAME]`: trusted token issuers.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use model::{AccessRule, OidcSettings, ProjectId, Role};
use toml::{Spanned, de::DeValue};

use super::{
    values::is_private_address,
    walk::{Table, Walk},
};
use crate::shape::printable;

const RULE_EXAMPLE: &str =
    r#"rules such as { claim = "groups", values = ["ml"], role = "call", projects = ["ml"] }"#;
const STRINGS_EXAMPLE: &str = r#"strings, such as ["one", "two"]"#;

pub(super) fn auth(mut table: Table<'_, '_>) -> BTreeMap<String, OidcSettings> {
    let mut issuers = BTreeMap::new();
    let Some(all) = table.items("oidc") else {
        return issuers;
    };
    let walk = table.walk;
    for (key, value) in all {
        let name: &str = key.get_ref();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if name.is_empty() || name.len() > 64 || !name.bytes().all(plain) {
            let must = "at most 64 letters, digits, `-` and `_`: [auth.oidc.corp]";
            let what = format!("invalid issuer name `{}`", printable(name));
            walk.wrong(key.span(), &what, must);
        } else if let Some(items) = value.get_ref().as_table() {
            let table = Table::new(walk, items, "auth.oidc.*.");
            if let Some(issuer) = issuer(table, key.span()) {
                let is_same = |(_, other): &(&String, &OidcSettings)| other.issuer == issuer.issuer;
                if let Some((other, _)) = issuers.iter().find(is_same) {
                    let what =
                        format!("`auth.oidc.{name}` has the same `issuer` as `auth.oidc.{other}`");
                    walk.wrong(key.span(), &what, "all rules for an issuer in one table");
                }
                issuers.insert(name.to_owned(), issuer);
            }
        } else {
            let what = format!("`auth.oidc.{name}` is not a table");
            let must = format!("the header [auth.oidc.{name}] above its settings");
            walk.wrong(value.span(), &what, &must);
        }
    }
    issuers
}

fn issuer(mut table: Table<'_, '_>, at: Range<usize>) -> Option<OidcSettings> {
    let text = |text: &str| Some(text.to_owned());
    let mut into = OidcSettings::default();
    into.audiences
        .extend(table.each("audiences", STRINGS_EXAMPLE, text));
    into.scopes
        .extend(table.each("scopes", STRINGS_EXAMPLE, text));
    into.client_id = table.string("client_id").map(|(text, _)| text);
    into.client_secret = table.secret("client_secret");
    table.flag("introspection", &mut into.introspection);
    let walk = table.walk;
    if into.introspection && (into.client_id.is_none() || into.client_secret.is_none()) {
        let must = "`client_id` and `client_secret`, too: issuers answer introspection requests only from their clients";
        walk.wrong(at.clone(), "`introspection` needs a client", must);
    }
    let must = r#""https://…", as the issuer writes it; plain http only on loopback"#;
    let issuer = table.text("issuer", must, is_private_address);
    into.jwks_uri = table.text("jwks_uri", must, is_private_address);
    into.access = access(&mut table);
    if !table.items.contains_key("issuer") {
        let must = r#"`issuer = "https://login.example.com/realms/corp"` below this line"#;
        walk.wrong(at, "the table has no `issuer`", must);
    }
    into.issuer = issuer?;
    Some(into)
}

fn access(table: &mut Table<'_, '_>) -> Vec<AccessRule> {
    let Some(item) = table.item("access") else {
        return Vec::new();
    };
    let Some(rules) = item.get_ref().as_array() else {
        table
            .walk
            .wrong(item.span(), "`access` is not a list", RULE_EXAMPLE);
        return Vec::new();
    };
    let rules = rules
        .iter()
        .filter_map(|rule| access_rule(table.walk, rule));
    rules.collect()
}

fn access_rule(walk: &Walk<'_>, item: &Spanned<DeValue<'_>>) -> Option<AccessRule> {
    let Some(items) = item.get_ref().as_table() else {
        walk.wrong(
            item.span(),
            "`access` contains a value that is not a table",
            RULE_EXAMPLE,
        );
        return None;
    };
    let mut table = Table::new(walk, items, "auth.oidc.*.access.");
    if !items.contains_key("role") {
        let must = format!("`role = …` with one of `{}`", Role::WORDS.join("`, `"));
        walk.wrong(item.span(), "an `access` rule has no `role`", &must);
        // Reading the other keys marks them as known.
        for key in ["claim", "values", "projects"] {
            table.item(key);
        }
        return None;
    }
    let role = table.word("role", Role::WORDS).unwrap_or(Role::Read);
    let values = table.each("values", STRINGS_EXAMPLE, |text| Some(text.to_owned()));
    let values: BTreeSet<String> = values.into_iter().collect();
    let claim = table.string("claim");
    let listed = items.contains_key("projects");
    let named = items
        .get("projects")
        .and_then(|item| item.get_ref().as_array());
    let named = named.map_or(0, |all| all.len());
    let projects = table.each_or("projects", "the id of a project", ProjectId::parse);
    let claim = match (claim, values.is_empty()) {
        (Some((claim, _)), false) => Some((claim, values)),
        (None, true) => None,
        _ => {
            let must = "both, or neither for all users of the issuer";
            walk.wrong(
                item.span(),
                "`claim` and `values` are only valid together",
                must,
            );
            return None;
        }
    };
    // A rule with an invalid project id is dropped, because without its list it would apply to all projects.
    if projects.len() < named {
        return None;
    }
    if listed && projects.is_empty() {
        let must =
            "the ids of projects, or remove `projects` so that the rule applies to all projects";
        walk.wrong(item.span(), "`projects` of an `access` rule is empty", must);
        return None;
    }
    if listed && role == Role::Admin {
        let must = "`manage`, or leave `projects` out";
        walk.wrong(
            item.span(),
            "a rule with `projects` cannot have the role `admin`",
            must,
        );
        return None;
    }
    Some(AccessRule {
        claim,
        role,
        projects: projects.into_iter().collect(),
    })
}
