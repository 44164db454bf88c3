//! The sandbox settings of an entry, and how its server is kept running. The keys are at the top level of the entry or
//! under `toolwharf`, in camel case or snake case, and mean the same as in a registration.

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

/// Keys for launched servers only.
pub const SANDBOX_KEYS: &[&str] = &[
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
/// Keys that imply a sandbox.
const SANDBOX_MARKS: [&str; 6] = ["image", "volumes", "mounts", "network", "port", "ports"];

/// The sandbox keys that an entry has.
pub(super) struct Confining<'o, 'a>(Vec<&'o ObjectProp<'a>>);

impl<'o, 'a> Confining<'o, 'a> {
    /// Keys under `toolwharf` come first, because they are only for Toolwharf.
    pub(super) fn of(entry: &'o Object<'a>, ours: Option<&'o Object<'a>>) -> Self {
        let is_one = |prop: &&ObjectProp<'_>| SANDBOX_KEYS.contains(&prop.name.as_str());
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
    /// Applies the sandbox settings to a launched server.
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
                "cannot be combined with `port`: list all ports in `ports`",
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
        let asks = || SANDBOX_MARKS.iter().any(|key| confining.get(key).is_some());
        let is_sandboxed = wanted.unwrap_or_else(|| self.defaults.sandbox || asks());
        if is_sandboxed {
            sandboxed(&mut reader, launch);
        } else if let Some(key) = SANDBOX_MARKS
            .iter()
            .find(|key| confining.get(key).is_some())
        {
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
        // A program on the host may respond slowly, so it is pinged only if the entry says so.
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
            let why = "has no `cwd`: mount a host folder with `mounts`, and use its path inside the sandbox in `args`";
            reader.wrong("sandbox", format!("{why}{way_out}"));
        }
        for wrong in errors {
            self.misread(server, confining, &wrong);
        }
    }

    /// Refuses the keys that have no effect beside a `url`. The others may be meant for another program.
    fn refuse(&mut self, confining: &Confining<'_, '_>) {
        for key in ["sandbox", "image", "volumes", "mounts"] {
            if let Some(prop) = confining.get(key) {
                let what = format!(
                    "`{key}` of server `{}` is only for servers that are launched here",
                    self.server
                );
                let help = "remove it: Toolwharf does not run the server behind a `url`";
                self.wrong(span(&prop.name), what, help);
            }
        }
    }

    fn misread(&mut self, server: &ObjectProp<'_>, confining: &Confining<'_, '_>, wrong: &Wrong) {
        let path = wrong.pointer.trim_start_matches('/').replace('/', ".");
        let key = path.split('.').next().unwrap_or_default();
        let is_one = key == "ports" && confining.get("port").is_some();
        let key = if is_one { "port" } else { key };
        // If two keys conflict, `wrong` may name one that the entry does not have. The conflict may also be with the
        // settings.
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

/// Moves a program into the sandbox that its entry describes.
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
        reader.wrong("sandbox", sandbox::SHOWN_ONLY_TO_COMMANDS);
    }
    launch.place = Place::Sandbox(sandbox);
}
