//! `[logins.NAME]`: the issuers at which users sign in to get access tokens for variables (`${login:NAME}`).

use std::{collections::BTreeMap, ops::Range};

use model::{Endpoints, Login, LoginMode};
use serde::de::DeserializeOwned;
use toml::de::DeTable;

use super::{
    values::is_private_address,
    walk::{Table, Walk},
};
use crate::{interpolate::is_login, shape::printable};

const URL_RULE: &str = r#""https://…"; plain http only on loopback"#;

pub(super) fn logins(walk: &Walk<'_>, all: &DeTable<'_>) -> BTreeMap<String, Login> {
    let mut logins = BTreeMap::new();
    for (key, value) in all {
        let name: &str = key.get_ref();
        if !is_login(name) {
            let must = "at most 64 letters, digits, `-` and `_`: [logins.github]";
            let what = format!("invalid login name `{}`", printable(name));
            walk.wrong(key.span(), &what, must);
        } else if let Some(items) = value.get_ref().as_table() {
            let table = Table::new(walk, items, "logins.*.");
            logins.extend(login(table, key.span()).map(|login| (name.to_owned(), login)));
        } else {
            let what = format!("`logins.{name}` is not a table");
            let must = format!("the header [logins.{name}] above its settings");
            walk.wrong(value.span(), &what, &must);
        }
    }
    logins
}

fn login(mut table: Table<'_, '_>, at: Range<usize>) -> Option<Login> {
    let issuer = table.text("issuer", URL_RULE, is_private_address);
    let authorize = table.text("authorize_url", URL_RULE, is_private_address);
    let token = table.text("token_url", URL_RULE, is_private_address);
    let device = table.text("device_url", URL_RULE, is_private_address);
    let mut secret = |key| table.secret(key).map(|secret| secret.reveal().to_owned());
    let (client_secret, private_key) = (secret("client_secret"), secret("private_key"));
    let modes = [("user", LoginMode::User), ("shared", LoginMode::Shared)];
    let mode = table.either("login", modes);
    let must = r#""none", "client_secret_basic", "client_secret_post" or "private_key_jwt""#;
    let login = Login {
        mode,
        client_id: table.string("client_id").map(|(text, _)| text),
        client_secret,
        private_key,
        client_auth: word(&mut table, "client_auth", must),
        scopes: table.each(
            "scopes",
            r#"strings, such as ["repo", "read:org"]"#,
            |text| Some(text.to_owned()),
        ),
        resource: false,
        pkce: word(&mut table, "pkce", r#""required" or "assume""#).unwrap_or_default(),
        endpoints: authorize.zip(token).map(|(authorize, token)| {
            Box::new(Endpoints {
                authorize,
                token,
                device,
            })
        }),
        issuer,
        ..Login::default()
    };
    let has = |key: &str| table.items.contains_key(key);
    let walk = table.walk;
    if has("authorize_url") != has("token_url") || (has("device_url") && !has("token_url")) {
        let must = "`authorize_url` and `token_url`, or `issuer` alone";
        walk.wrong(at, "the table has only some of the endpoint URLs", must);
        return None;
    }
    if !has("issuer") && !has("token_url") {
        let must = "`issuer = \"https://login.example.com\"`, or `authorize_url` and `token_url`";
        walk.wrong(at, "the table has neither `issuer` nor `token_url`", must);
        return None;
    }
    if has("token_url") && login.client_id.is_none() {
        let must = "`client_id = …` with the id that the issuer registered for Toolwharf";
        walk.wrong(at, "the table has a `token_url`, but no `client_id`", must);
        return None;
    }
    Some(login)
}

fn word<T: DeserializeOwned>(
    table: &mut Table<'_, '_>,
    key: &'static str,
    must: &str,
) -> Option<T> {
    table.value(key, must, |value| {
        serde_json::from_value(value.as_str()?.into()).ok()
    })
}
