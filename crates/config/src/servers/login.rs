//! The sign-in settings of an entry: `"login": "shared"`, or an object. The key is at the top level or under
//! `toolwharf`, in camel case or snake case. Launched servers get access tokens in their environment instead
//! (`${login:NAME}`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use jsonc_parser::ast::{Object, ObjectProp};
use model::{
    Assertion, AssertionText, Grant, Hidden, Idp, Login, LoginMode, LoginVariables, Origin,
    ServerSpec,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::super::interpolate::login_name;
use super::super::members::{Reader, texts};
use super::super::problem::Problem;
use super::super::shape::span;
use super::Entry;

const MODE_RULE: &str = "must be \"none\", \"shared\" or \"user\"";

impl Entry<'_> {
    pub(super) fn login(&mut self, entry: &Object<'_>, spec: &mut ServerSpec) {
        let ours = entry.get_object("toolwharf");
        let prop = ours.and_then(|ours| ours.get("login"));
        let Some(prop) = prop.or_else(|| entry.get("login")) else {
            return;
        };
        let Origin::Remote(remote) = &mut spec.origin else {
            let what = format!(
                "`login` of server `{}` is only for servers with a `url`",
                self.server
            );
            let help = "remove the key; a launched server gets an access token as a variable, such as `\"TOKEN\": \"${login:NAME}\"` in `env`";
            return self.report(Problem::at(self.source, span(&prop.name), what).help(help));
        };
        let members = match self.json(&prop.value) {
            mode @ Value::String(_) => Map::from_iter([("mode".to_owned(), mode)]),
            Value::Object(members) => members,
            _ => return self.mislogin(prop, "login", MODE_RULE),
        };
        let mut errors = Vec::new();
        let mut reader = Reader {
            at: String::new(),
            members: &members,
            errors: &mut errors,
        };
        remote.login = read(&mut reader);
        for wrong in errors {
            let pointer = wrong.pointer.trim_end_matches('/');
            let path = format!("login{}", pointer.replace('/', "."));
            self.mislogin(prop, &path, &wrong.detail);
        }
    }

    /// Records which variables are access tokens, and their login.
    pub(super) fn tokens(&mut self, spec: &mut ServerSpec) {
        let Origin::Launch(launch) = &mut spec.origin else {
            return;
        };
        let Some((_, first)) = self.tokens.first().cloned() else {
            return;
        };
        let found = login_variables(&launch.env, |variable| {
            self.tokens.iter().any(|(token, _)| token == variable)
        });
        let resolved = found.and_then(|mut found| {
            if let (Some(found), Some(logins)) = (&mut found, self.logins) {
                found.resolve(logins)?;
            }
            Ok(found)
        });
        match resolved {
            Ok(found) => Arc::make_mut(launch).login = found,
            Err(what) if self.active => {
                let what = format!("{what} (server `{}`)", self.server);
                let help =
                    "add the table to toolwharf.toml, or name another one (see docs/sign-in.md)";
                self.report(Problem::at(self.source, first, what).help(help));
            }
            Err(_) => {}
        }
    }

    fn mislogin(&mut self, prop: &ObjectProp<'_>, path: &str, must: &str) {
        let what = format!("`{path}` of server `{}` is invalid", self.server);
        let help = format!("`{path}` {must}");
        self.report(Problem::at(self.source, span(&prop.value), what).help(help));
    }
}

/// Finds the variables that are access tokens, among those for which `may_be` returns true.
///
/// # Errors
/// If they belong to more than one login.
pub fn login_variables(
    env: &BTreeMap<String, String>,
    may_be: impl Fn(&str) -> bool,
) -> Result<Option<LoginVariables>, String> {
    let mut variables = BTreeSet::new();
    let mut names = BTreeSet::new();
    for (variable, text) in env {
        if let Some(name) = login_name(text).filter(|_| may_be(variable)) {
            variables.insert(variable.clone());
            names.insert(name.to_owned());
        }
    }
    let mut names = names.into_iter();
    match (names.next(), names.next()) {
        (Some(name), None) => Ok(Some(LoginVariables {
            name,
            variables,
            login: None,
        })),
        (Some(one), Some(other)) => Err(format!(
            "a server can use only one login, not both `{one}` and `{other}`"
        )),
        (None, _) => Ok(None),
    }
}

fn read(reader: &mut Reader<'_>) -> Login {
    reader.known_at("/LoginOfEntry/anyOf/1/properties");
    let usual = Login::default();
    let login = Login {
        mode: word::<LoginMode>(reader, "mode", MODE_RULE),
        grant: word(
            reader,
            "grant",
            "must be \"authorization_code\", \"client_credentials\" or \"jwt_bearer\"",
        )
        .unwrap_or_default(),
        client_id: reader.text("client_id"),
        client_secret: reader.text("client_secret"),
        private_key: reader.text("private_key"),
        client_auth: word(
            reader,
            "client_auth",
            "must be \"none\", \"client_secret_basic\", \"client_secret_post\" or \"private_key_jwt\"",
        ),
        issuer: reader.text("issuer"),
        scopes: reader
            .list("scopes", "must be a string", texts)
            .unwrap_or_default(),
        resource: reader.flag("resource").unwrap_or(usual.resource),
        pkce: word(reader, "pkce", "must be \"required\" or \"assume\"").unwrap_or_default(),
        endpoints: None,
        assertion: assertion(reader).map(Box::new),
    };
    if !login.grant.needs_person() {
        if login.client_id.is_none() {
            reader.wrong("client_id", "is required with this `grant`");
        }
        if login.mode == Some(LoginMode::User) {
            let must = "must be \"shared\" with this `grant`, because no user signs in";
            reader.wrong("mode", must);
        }
    }
    if (login.grant == Grant::JwtBearer) != login.assertion.is_some() {
        let must = "must be \"jwt_bearer\" if `assertion` or `assertionFile` is set, and another grant if not";
        reader.wrong("grant", must);
    }
    login
}

fn assertion(reader: &mut Reader<'_>) -> Option<Assertion> {
    let text = reader.text("assertion").map(Hidden::new);
    let file = reader.text("assertion_file").map(PathBuf::from);
    let mut idp = None;
    if let Some(mut reader) = reader.inner("idp") {
        reader.known_at("/LoginOfEntry/anyOf/1/properties/idp/properties");
        let client_secret = reader.text("client_secret").map(Hidden::new);
        let named = reader.text("issuer").zip(reader.text("client_id"));
        if named.is_none() {
            reader.wrong("", "must have `issuer` and `clientId`");
        }
        idp = named.map(|(issuer, client_id)| Idp {
            issuer,
            client_id,
            client_secret,
        });
    }
    if file.as_ref().is_some_and(|file| !file.is_absolute()) {
        reader.wrong("assertion_file", "must be an absolute path");
    }
    let text = match (text, file) {
        (Some(text), None) => AssertionText::Is(text),
        (None, Some(file)) => AssertionText::File(file),
        (Some(_), Some(_)) => {
            reader.wrong("assertion", "cannot be combined with `assertionFile`");
            return None;
        }
        (None, None) => return None,
    };
    Some(Assertion { text, idp })
}

fn word<T: DeserializeOwned>(reader: &mut Reader<'_>, key: &str, must: &str) -> Option<T> {
    let read = serde_json::from_value(reader.get(key)?.clone()).ok();
    if read.is_none() {
        reader.wrong(key, must);
    }
    read
}
