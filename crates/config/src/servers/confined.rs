//! Toolwharf's own options of an entry. Sandbox options are at the top level of the entry or under `toolwharf`, all
//! other options only under `toolwharf`. Each option means the same as in a registration.

use std::sync::Arc;

use jsonc_parser::ast::{Object, ObjectProp, Value};
use model::{
    Launch, Origin, Packages, Place, Program, Provider, Reach, RestartPolicy, Sandbox, ServerSpec,
    Sharing,
};
use serde_json::Map;

use super::super::interpolate::Unknown;
use super::super::keys::{SANDBOX_KEYS, TOOLWHARF_KEYS, snake};
use super::super::members::Reader;
use super::super::problem::Problem;
use super::super::sandbox;
use super::super::shape::{Found, span};
use super::Entry;
use api::Wrong;

/// Keys that imply a sandbox.
const SANDBOX_MARKS: [&str; 7] = [
    "image",
    "volumes",
    "mounts",
    "network",
    "port",
    "ports",
    PORT_MAPPING,
];

/// Another name of `ports`, next to `command`.
const PORT_MAPPING: &str = "port_mapping";

/// The keys of an entry that only Toolwharf reads. `projects`, `disabledTools` and `login` are read elsewhere.
pub(super) struct OwnKeys<'o, 'a>(Vec<&'o ObjectProp<'a>>);

impl<'o, 'a> OwnKeys<'o, 'a> {
    /// Keys under `toolwharf` come first, because no other program reads them. Sandbox keys may also be next to
    /// `toolwharf`.
    pub(super) fn of(entry: &'o Object<'a>, ours: Option<&'o Object<'a>>) -> Self {
        const READ_ELSEWHERE: [&str; 4] = ["projects", "enabledTools", "disabledTools", "login"];
        let is_option = |key: &str| TOOLWHARF_KEYS.contains(&key) && !READ_ELSEWHERE.contains(&key);
        let nested = ours.into_iter().flat_map(|ours| &ours.properties);
        let nested = nested.filter(|prop| is_option(prop.name.as_str()) || is_of_sandbox(prop));
        let beside = entry.properties.iter().filter(is_of_sandbox);
        Self(nested.chain(beside).collect())
    }

    /// The property with this name, in camel case or snake case.
    pub(super) fn get(&self, key: &str) -> Option<&'o ObjectProp<'a>> {
        let mut props = self.0.iter().copied();
        props.find(|prop| prop.name.as_str() == key || snake(prop.name.as_str()) == key)
    }
}

impl Entry<'_> {
    /// Reads the options, and the sandbox of a launched server.
    pub(super) fn options(
        &mut self,
        server: &Found<'_, '_>,
        own: &OwnKeys<'_, '_>,
        spec: &mut ServerSpec,
    ) {
        let is_launched = spec.launch().is_some();
        let mut members = Map::new();
        for prop in &own.0 {
            let key = match prop.name.as_str() {
                PORT_MAPPING => "ports".to_owned(),
                key => snake(key),
            };
            // In an entry with a `url`, a sandbox key may be meant for another program.
            let is_read = is_launched || !is_of_sandbox(prop);
            if is_read && !members.contains_key(&key) {
                let value = match self.json(&prop.value) {
                    serde_json::Value::Bool(true) if key == "sandbox" => Map::new().into(),
                    value => value,
                };
                members.insert(key, value);
            }
        }
        let mut errors = Vec::new();
        if let Some(port) = members.remove("port")
            && members
                .insert("ports".to_owned(), vec![port].into())
                .is_some()
        {
            errors.push(Wrong::new(
                "/ports",
                "cannot be combined with `ports`: list all ports in `ports`",
            ));
        }
        let mut reader = Reader {
            at: String::new(),
            members: &members,
            errors: &mut errors,
        };
        crate::options(&mut reader, spec);
        self.confine(&mut reader, own, spec);
        for wrong in errors {
            self.misread(server, own, &wrong);
        }
    }

    /// Applies the sandbox settings to a launched server.
    fn confine(&mut self, reader: &mut Reader<'_>, own: &OwnKeys<'_, '_>, spec: &mut ServerSpec) {
        let Origin::Launch(launch) = &mut spec.origin else {
            return self.refuse(own);
        };
        let launch = Arc::make_mut(launch);
        let wanted = match reader.get("sandbox") {
            Some(serde_json::Value::Bool(wanted)) => Some(*wanted),
            Some(_) => Some(true),
            None => None,
        };
        let asks = || SANDBOX_MARKS.iter().any(|key| own.get(key).is_some());
        let is_sandboxed = wanted.unwrap_or_else(|| self.defaults.sandbox || asks());
        if is_sandboxed {
            sandboxed(reader, launch);
        } else if let Some(key) = SANDBOX_MARKS.iter().find(|key| own.get(key).is_some()) {
            reader.wrong(
                key,
                "is only for servers in a sandbox: remove this key, or `\"sandbox\": false`",
            );
        }
        let packages = reader.word::<Packages>("packages");
        if is_sandboxed && packages == Some(Packages::Newest) {
            reader.wrong(
                "packages",
                "is always \"pinned\" in a sandbox: remove this key",
            );
        }
        launch.packages = packages.unwrap_or(self.defaults.packages);
        spec.restart = reader.word::<RestartPolicy>("restart");
        // A program on the host may respond slowly, so it is pinged only if the entry says so.
        if is_sandboxed || reader.get("heartbeat").is_some() {
            spec.heartbeat = crate::heartbeat(reader);
        }
        if is_sandboxed
            && spec.sharing == Sharing::Session
            && launch.sandbox().is_some_and(|it| !it.volumes.is_empty())
        {
            reader.wrong("volumes", "cannot be shared by the instances of several sessions: use `\"sharing\": \"shared\"`");
        }
        if is_sandboxed && launch.cwd.take().is_some() {
            let way_out = match wanted {
                Some(_) => "",
                None => "; or write `\"sandbox\": false`",
            };
            let why = "does not support `cwd`: mount a host folder with `mounts`, and use its path inside the sandbox in `args`";
            reader.wrong("sandbox", format!("{why}{way_out}"));
        }
    }

    /// Reports sandbox keys in an entry with a `url`, where they have no effect. Keys that are not in this list may be
    /// meant for another program.
    fn refuse(&mut self, own: &OwnKeys<'_, '_>) {
        for key in ["sandbox", "image", "volumes", "mounts"] {
            if let Some(prop) = own.get(key) {
                let what = format!(
                    "`{key}` of server `{}` is only for servers that Toolwharf launches",
                    self.server
                );
                let help = "remove the key: Toolwharf does not launch a server with a `url`";
                self.wrong(span(&prop.name), what, help);
            }
        }
    }

    fn misread(&mut self, server: &Found<'_, '_>, own: &OwnKeys<'_, '_>, wrong: &Wrong) {
        let mut parts = wrong.pointer.trim_start_matches('/').split('/');
        let key = parts.next().unwrap_or_default();
        let one = own.get("port").filter(|_| key == "ports");
        let mut path = key.to_owned();
        if let Some(prop) = one.or_else(|| own.get(key)) {
            path = prop.name.as_str().to_owned();
        }
        if one.is_none() {
            path.extend(parts.flat_map(|part| [".", part]));
        }
        let what = format!("`{path}` of server `{}` is invalid", self.server);
        // If two keys conflict, `wrong` may name the key that the entry does not have. If the entry conflicts with a
        // default from the settings, the entry may have neither key.
        let of_sandbox = || own.0.iter().copied().find(is_of_sandbox);
        let problem = match one.or_else(|| own.get(key)).or_else(of_sandbox) {
            Some(prop) => Problem::showing(self.source, span(&prop.value), what),
            None => Problem::at(self.source, server.at.clone(), what),
        };
        self.report(problem.help(format!("`{path}` {}", wrong.detail)));
    }

    /// A value as JSON, with texts filled in and keys in snake case.
    pub(super) fn json(&mut self, value: &Value<'_>) -> serde_json::Value {
        match value {
            Value::StringLit(text) => self.fill(&text.value, span(value), Unknown::Keep).into(),
            Value::NumberLit(number) => serde_json::from_str(number.value).unwrap_or_default(),
            Value::BooleanLit(boolean) => boolean.value.into(),
            Value::Array(array) => array.elements.iter().map(|one| self.json(one)).collect(),
            Value::Object(object) => {
                let members = object.properties.iter();
                members
                    .map(|prop| (snake(prop.name.as_str()), self.json(&prop.value)))
                    .collect()
            }
            Value::NullKeyword(_) => serde_json::Value::Null,
        }
    }
}

fn is_of_sandbox(prop: &&ObjectProp<'_>) -> bool {
    let key = prop.name.as_str();
    SANDBOX_KEYS.contains(&key) || key == PORT_MAPPING
}

/// Moves a program into the sandbox that its entry describes.
fn sandboxed(reader: &mut Reader<'_>, launch: &mut Launch) {
    let mut sandbox = Sandbox::new("");
    let is_image = matches!(launch.program, Program::Image { .. });
    sandbox::sandbox(reader, "sandbox", is_image, &mut sandbox);
    launch.reach = match sandbox.ports.is_empty() {
        true => Reach::Streams,
        false => Reach::Port {
            path: sandbox::path(reader),
        },
    };
    if sandbox
        .provider
        .is_some_and(|provider| is_image == (provider == Provider::Process))
    {
        reader.wrong(
            "sandbox",
            "names a provider that cannot run this server: `process` runs commands, all others run images",
        );
    }
    launch.place = Place::Sandbox(sandbox);
}
