//! What an entry says of signing in to its server: `"login": "shared"`, or an object. It stands flat or under `toolwharf`, in camel
//! case or in snake case.

use jsonc_parser::ast::{Object, ObjectProp};
use model::{Grant, Login, LoginMode, Origin, ServerSpec};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::super::members::{Reader, texts};
use super::super::problem::Problem;
use super::super::shape::span;
use super::Entry;

const KEYS: [&str; 10] = [
    "mode",
    "grant",
    "client_id",
    "client_secret",
    "private_key",
    "client_auth",
    "issuer",
    "scopes",
    "resource",
    "pkce",
];
const MODES: &str = "must be \"none\", \"shared\" or \"user\"";

impl Entry<'_> {
    pub(super) fn login(&mut self, entry: &Object<'_>, spec: &mut ServerSpec) {
        let ours = entry.get_object("toolwharf");
        let prop = ours.and_then(|ours| ours.get("login"));
        let Some(prop) = prop.or_else(|| entry.get("login")) else {
            return;
        };
        let Origin::Remote(remote) = &mut spec.origin else {
            let what = format!(
                "`login` of server `{}` is of servers with a `url`",
                self.server
            );
            let help = "remove it";
            return self.report(Problem::at(self.source, span(&prop.name), what).help(help));
        };
        let members = match self.json(&prop.value) {
            mode @ Value::String(_) => Map::from_iter([("mode".to_owned(), mode)]),
            Value::Object(members) => members,
            _ => return self.mislogin(prop, "login", MODES),
        };
        let mut errors = Vec::new();
        let mut reader = Reader {
            at: String::new(),
            members: &members,
            errors: &mut errors,
        };
        remote.login = read(&mut reader);
        for wrong in errors {
            let path = format!("login{}", wrong.pointer.replace('/', "."));
            self.mislogin(prop, &path, &wrong.detail);
        }
    }

    fn mislogin(&mut self, prop: &ObjectProp<'_>, path: &str, must: &str) {
        let what = format!("`{path}` of server `{}` is not usable", self.server);
        let help = format!("it {must}");
        self.report(Problem::at(self.source, span(&prop.value), what).help(help));
    }
}

fn read(reader: &mut Reader<'_>) -> Login {
    reader.known(&KEYS);
    let usual = Login::default();
    let login = Login {
        mode: word::<LoginMode>(reader, "mode", MODES),
        grant: word(
            reader,
            "grant",
            "must be \"authorization_code\" or \"client_credentials\"",
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
    };
    if login.grant == Grant::ClientCredentials {
        if login.client_id.is_none() {
            reader.wrong(
                "client_id",
                "must be there with the grant \"client_credentials\"",
            );
        }
        if login.mode == Some(LoginMode::User) {
            reader.wrong(
                "mode",
                "must be \"shared\" with the grant \"client_credentials\": nobody signs in",
            );
        }
    }
    login
}

fn word<T: DeserializeOwned>(reader: &mut Reader<'_>, key: &str, must: &str) -> Option<T> {
    let read = serde_json::from_value(reader.get(key)?.clone()).ok();
    if read.is_none() {
        reader.wrong(key, must);
    }
    read
}
