//! What an entry says of its sandbox, and of how its server is kept running. These keys stand flat in the entry or under
//! `toolwharf`, in camel case or in snake case, and mean what they mean in a registration.

use std::sync::Arc;

use jsonc_parser::ast::{Object, ObjectProp, Value};
use model::{
    Launch, Origin, Packages, Place, Program, Provider, Reach, RestartPolicy, Sandbox, ServerSpec,
    Sharing,
};
use serde_json::Map;

use super::super::interpolate::Unknown;
use super::super::members::{Reader, snake};
use super::super::sandbox;
use super::super::shape::span;
use super::Entry;
use api::Wrong;

/// What only a server has that we launch.
pub const CONFINING: &[&str] = &[
    "image",
    "sandbox",
    "volumes",
    "mounts",
    "network",
    "port",
    "ports",
    "path",
    "packages",
    "start",
    "restart",
    "heartbeat",
];
/// An entry that has one of these wants a sandbox.
const SANDBOXED: [&str; 6] = ["image", "volumes", "mounts", "network", "port", "ports"];

/// The keys of one entry that it has.
pub(super) struct Confining<'o, 'a>(Vec<&'o ObjectProp<'a>>);

impl<'o, 'a> Confining<'o, 'a> {
    /// Those under `toolwharf` come first: they are meant for us.
    pub(super) fn of(entry: &'o Object<'a>, ours: Option<&'o Object<'a>>) -> Self {
        let is_one = |prop: &&ObjectProp<'_>| CONFINING.contains(&prop.name.as_str());
        let all = ours
            .into_iter()
            .chain([entry])
            .flat_map(|object| &object.properties);
        Self(all.filter(is_one).collect())
    }

    pub(super) fn get(&self, key: &str) -> Option<&'o ObjectProp<'a>> {
        self.0
            .iter()
            .find(|prop| prop.name.as_str() == key)
            .copied()
    }
}

impl Entry<'_> {
    /// Puts a server that is launched where its entry wants it.
    pub(super) fn confine(
        &mut self,
        server: &ObjectProp<'_>,
        confining: &Confining<'_, '_>,
        spec: &mut ServerSpec,
    ) {
        let Origin::Launch(launch) = &mut spec.origin else {
            return self.refuse(confining);
        };
        let launch = Arc::make_mut(launch);
        let mut members = Map::new();
        for prop in &confining.0 {
            let key = prop.name.as_str();
            if !members.contains_key(key) {
                let value = self.json(&prop.value);
                members.insert(key.to_owned(), value);
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
                "stands beside `port`: give all of them in `ports`",
            ));
        }
        let mut reader = Reader {
            at: String::new(),
            members: &members,
            errors: &mut errors,
        };
        let wanted = match reader.get("sandbox") {
            Some(serde_json::Value::Bool(wanted)) => Some(*wanted),
            Some(_) => Some(true),
            None => None,
        };
        let asks = || SANDBOXED.iter().any(|key| confining.get(key).is_some());
        let is_sandboxed = wanted.unwrap_or_else(|| self.defaults.sandbox || asks());
        if is_sandboxed {
            sandboxed(&mut reader, launch);
        } else if let Some(key) = SANDBOXED.iter().find(|key| confining.get(key).is_some()) {
            reader.wrong(
                key,
                "is only for servers in a sandbox: remove it, or `\"sandbox\": false`",
            );
        }
        let packages = reader.word::<Packages>("packages");
        if is_sandboxed && packages == Some(Packages::Newest) {
            reader.wrong("packages", "is \"pinned\" in a sandbox: remove it");
        }
        launch.packages = packages.unwrap_or(self.defaults.packages);
        spec.lazy = sandbox::start(&mut reader);
        spec.restart = reader.word::<RestartPolicy>("restart");
        // A program of this host may take its time: it is asked only where somebody wants that.
        if is_sandboxed || reader.get("heartbeat").is_some() {
            spec.heartbeat = sandbox::heartbeat(&mut reader);
        }
        if is_sandboxed
            && spec.sharing == Sharing::Session
            && launch.sandbox().is_some_and(|own| !own.volumes.is_empty())
        {
            reader.wrong("volumes", "cannot be shared by the instances of several sessions: use `\"sharing\": \"shared\"`");
        }
        if is_sandboxed && launch.cwd.take().is_some() {
            let way_out = match wanted {
                Some(_) => "",
                None => "; or write `\"sandbox\": false`",
            };
            let why = "has no `cwd`: name a folder of the host in `mounts`, and its path inside in `args`";
            reader.wrong("sandbox", format!("{why}{way_out}"));
        }
        for wrong in errors {
            self.misread(server, confining, &wrong);
        }
    }

    /// Refuses the keys that mean nothing beside a `url`. The others may be meant for another program.
    fn refuse(&mut self, confining: &Confining<'_, '_>) {
        for key in ["sandbox", "image", "volumes", "mounts"] {
            if let Some(prop) = confining.get(key) {
                let what = format!(
                    "`{key}` of server `{}` is of servers that are launched here",
                    self.server
                );
                let help = "remove it: what runs at a `url` is somebody else's";
                self.wrong(span(&prop.name), what, help);
            }
        }
    }

    fn misread(&mut self, server: &ObjectProp<'_>, confining: &Confining<'_, '_>, wrong: &Wrong) {
        let path = wrong.pointer.trim_start_matches('/').replace('/', ".");
        let key = path.split('.').next().unwrap_or_default();
        let is_one = key == "ports" && confining.get("port").is_some();
        let key = if is_one { "port" } else { key };
        // Two keys may be at odds, of which it names the other. Or the settings have it so.
        let prop = confining.get(key).or_else(|| confining.0.first().copied());
        let prop = prop.unwrap_or(server);
        let path = if is_one { key } else { &path };
        let what = format!("`{path}` of server `{}` is not usable", self.server);
        let help = format!("it {}", wrong.detail);
        let place = if std::ptr::eq(prop, server) {
            span(&prop.name)
        } else {
            span(&prop.value)
        };
        self.wrong(place, what, help);
    }

    /// A value as JSON: texts are filled in, and keys are in snake case.
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

/// Puts a program into the sandbox that its entry describes.
fn sandboxed(reader: &mut Reader<'_>, launch: &mut Launch) {
    let mut sandbox = Sandbox::new("");
    if reader
        .get("sandbox")
        .is_some_and(|value| !value.is_boolean())
        && let Some(mut reader) = reader.inner("sandbox")
    {
        reader.known(&[
            "provider", "cpu", "memory", "disk", "pids", "strict", "show", "hide",
        ]);
        sandbox.provider = reader.word::<Provider>("provider");
        sandbox::shown(&mut reader, &mut sandbox);
        sandbox::limits(&mut reader, &mut sandbox);
    }
    sandbox::volumes(reader, &mut sandbox);
    sandbox.network = sandbox::network(reader);
    sandbox::ports(reader, &mut sandbox);
    if sandbox.ports.is_empty() {
        launch.reach = Reach::Streams;
    } else {
        launch.reach = Reach::Port {
            path: sandbox::path(reader),
        };
    }
    let is_image = matches!(launch.program, Program::Image { .. });
    if sandbox
        .provider
        .is_some_and(|provider| is_image == (provider == Provider::Process))
    {
        reader.wrong(
            "sandbox",
            "names a provider that cannot run it: `process` runs commands, all others run images",
        );
    }
    if is_image && !(sandbox.show.is_empty() && sandbox.hide.is_empty()) {
        reader.wrong("sandbox", sandbox::ONLY_COMMANDS);
    }
    launch.place = Place::Sandbox(sandbox);
}
