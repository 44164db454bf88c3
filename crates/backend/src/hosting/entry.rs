//! The registration of a hosted server: JSON, as in the body of `POST /api/v1/mcp/servers` and as stored. Entries in
//! the format of `mcp.json` are accepted, too; their names are translated ([`in_our_words`]).
//!
//! Invariant: all errors are reported, each with its place. A stored registration remains readable. Deliberately
//! absent: checking what this host supports.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::{Arc, LazyLock},
};

use api::Wrong;
use config::{
    self, Lookup, MAX_ITEMS, MAX_TEXT_BYTES, Reader, Unfilled, Unknown, Variables, fits,
    is_variable, texts,
};
use model::{
    Declared, Launch, LoginVariables, NativeName, Origin, Place, Program, ProjectId, Reach,
    RestartPolicy, Sandbox, Secrets, ServerName, ServerSpec,
};
use serde_json::{Map, Value, json};
use store::RegistrationRow;

#[cfg(feature = "kubernetes")]
use super::Resource;
use super::resource::{self, RESOURCE};
use crate::entries::{hosted_by, restored};

/// A parsed registration.
#[derive(Debug)]
pub struct Entry {
    pub name: ServerName,
    pub project: Option<ProjectId>,
    /// All fields as submitted, except name and project.
    pub config: Value,
    spec: ServerSpec,
}

impl Entry {
    /// Parses a registration. Masked values in it are replaced by those of `before`.
    ///
    /// # Errors
    /// All errors in it.
    pub fn read(body: Value, before: Option<&Value>) -> Result<Self, Vec<Wrong>> {
        let Value::Object(mut members) = restored(body, before)? else {
            return Err(vec![Wrong::new("", "a registration must be an object")]);
        };
        let mut errors = Vec::new();
        let name = match members.remove("name") {
            Some(Value::String(name)) => ServerName::parse(&name)
                .map_err(|error| errors.push(Wrong::new("/name", error.to_string())))
                .ok(),
            _ => {
                errors.push(Wrong::new("/name", "is required, and must be a string"));
                None
            }
        };
        let project = match members.remove("project") {
            None | Some(Value::Null) => None,
            Some(Value::String(id)) => id
                .parse()
                .map_err(|_| errors.push(Wrong::new("/project", "must be the id of a project")))
                .ok(),
            Some(_) => {
                errors.push(Wrong::new("/project", "must be the id of a project"));
                None
            }
        };
        let placeholder = || ServerName::parse("server").expect("it is a name");
        let known = name.clone().unwrap_or_else(placeholder);
        let spec = spec("new", &known, project.as_ref(), &members, &mut errors);
        match (name, spec, errors.is_empty()) {
            (Some(name), Some(spec), true) => Ok(Self {
                name,
                project,
                config: Value::Object(members),
                spec,
            }),
            _ => Err(errors),
        }
    }

    /// Parses a stored registration, fills in `secrets`, and adds the variables that were encrypted in its row.
    ///
    /// # Errors
    /// All errors in it.
    pub(crate) fn kept(
        row: &RegistrationRow,
        secrets: &HashMap<String, String>,
        sealed: BTreeMap<String, String>,
    ) -> Result<ServerSpec, Vec<Wrong>> {
        let mut errors = Vec::new();
        let Value::Object(members) = resource::given(row) else {
            return Err(vec![Wrong::new("", "a registration must be an object")]);
        };
        let project = hosted_by(row);
        match spec(&row.id, &row.name, project.as_ref(), &members, &mut errors) {
            Some(spec) if errors.is_empty() => Ok(with_sealed(filled(spec, secrets), sealed)),
            _ => Err(errors),
        }
    }

    /// Marks it as declared by a resource.
    #[cfg(feature = "kubernetes")]
    pub fn of_resource(mut self, resource: &Resource) -> Self {
        self.config[RESOURCE] = resource.to_value();
        self
    }

    /// Returns true if a resource declares it.
    pub(super) fn is_of_resource(&self) -> bool {
        self.config.get(RESOURCE).is_some()
    }

    pub(crate) fn launch(&self) -> &Launch {
        self.spec
            .launch()
            .expect("a registration always launches a server")
    }

    pub(crate) fn sandbox(&self) -> &Sandbox {
        self.launch()
            .sandbox()
            .expect("a registered server is always in a sandbox")
    }
}

/// Fills in the secrets of its project.
fn filled(mut spec: ServerSpec, secrets: &HashMap<String, String>) -> ServerSpec {
    let Origin::Launch(launch) = &mut spec.origin else {
        return spec;
    };
    let launch = Arc::make_mut(launch);
    let used = RefCell::new(BTreeSet::new());
    let mut missing = BTreeSet::new();
    let secret = |name: &str| {
        let value = secrets.get(name).cloned()?;
        used.borrow_mut().insert(value.clone());
        Some(value)
    };
    let variables = Variables {
        env: &secret,
        workspace: PathBuf::new(),
        sealed: Lookup::default(),
    };
    let mut fill = |text: &mut String| match variables.fill(text, Unknown::Keep) {
        Ok(filled) => *text = filled,
        Err(errors) => missing.extend(errors.iter().filter_map(|error| match error {
            Unfilled::Unset(name) => Some(name.clone()),
            _ => None,
        })),
    };
    launch.env.values_mut().for_each(&mut fill);
    match &mut launch.program {
        Program::Image { command: args, .. } | Program::Command { args, .. } => {
            args.iter_mut().for_each(&mut fill);
        }
    }
    spec.secrets = Secrets(used.into_inner());
    if let Some(first) = missing.first() {
        let names: Vec<String> = missing.iter().map(|name| format!("`{name}`")).collect();
        let names = names.join(", ");
        spec.unusable = Some(match &spec.owner {
            Some(project) => format!(
                "secret {names} of project `{project}` is not set: `toolwharf secret set {first} --project {project}`"
            ),
            None => format!(
                "{names} must be a secret of a project, but the server belongs to no project: register it with `project`"
            ),
        });
    }
    spec
}

/// Adds variables literally, without expanding them.
fn with_sealed(mut spec: ServerSpec, sealed: BTreeMap<String, String>) -> ServerSpec {
    if let Origin::Launch(launch) = &mut spec.origin {
        spec.secrets.0.extend(sealed.values().cloned());
        Arc::make_mut(launch).env.extend(sealed);
    }
    spec
}

/// The key of the tools that are offered.
pub(super) const ENABLED_TOOLS: &str = "enabled_tools";
/// The key of the disabled tools.
pub(super) const DISABLED_TOOLS: &str = "disabled_tools";

/// The fields of a registration, apart from `name` and `project`.
pub static KEYS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let others = ["name", "project", "toolwharf"];
    let is_other = |key: &&str| {
        let mut names = ENTRY_NAMES.iter();
        others.contains(key) || names.any(|(theirs, _)| theirs == key)
    };
    let keys = config::keys_at("/Registration/properties");
    keys.filter(|key| !is_other(key)).collect()
});

/// Fields with another name in entries: the name in an entry, and the name in a registration.
const ENTRY_NAMES: [(&str, &str); 5] = [
    ("env", "environment"),
    ("port", "ports"),
    ("port_mapping", "ports"),
    ("restart", "restart_policy"),
    ("sandbox", "resource_limits"),
];

/// Translates an entry to the names of a registration. Also returns each field's place in the entry.
fn in_our_words(entry: &Map<String, Value>) -> (Map<String, Value>, Vec<(String, String)>) {
    let mut ours = Map::new();
    let mut places = Vec::new();
    let nested = entry.get("toolwharf").and_then(Value::as_object);
    let nested = nested.into_iter().flatten();
    let flat = entry
        .iter()
        .filter(|(key, value)| *key != "toolwharf" || !value.is_object());
    let all = nested
        .map(|one| ("/toolwharf", one))
        .chain(flat.map(|one| ("", one)));
    for (at, (key, value)) in all {
        let word = config::snake(key);
        let other = ENTRY_NAMES.iter().find(|(theirs, _)| *theirs == word);
        let word = other.map_or(word.as_str(), |(_, ours)| ours).to_owned();
        let value = match (key.as_str(), value) {
            ("sandbox", Value::Bool(true)) => json!({}),
            ("port", port) => {
                ours.entry("stdio_bridge").or_insert(false.into());
                json!([port])
            }
            ("type" | "transport", word) if is_stdio(word) => continue,
            ("heartbeat" | "mounts", value) => in_snake_case(value),
            (_, value) => value.clone(),
        };
        let place = format!("{at}/{key}");
        if key == "port" {
            places.push(("/ports/0".to_owned(), place.clone()));
        }
        places.push((format!("/{word}"), place));
        ours.entry(word).or_insert(value);
    }
    (ours, places)
}

fn is_stdio(word: &Value) -> bool {
    word.is_null() || word.as_str().and_then(config::transport) == Some("stdio")
}

/// Converts the keys of an object, or of each object of a list, to snake case.
fn in_snake_case(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(in_snake_case).collect(),
        Value::Object(members) => {
            let members = members.iter();
            members
                .map(|(key, value)| (config::snake(key), value.clone()))
                .collect::<Map<_, _>>()
                .into()
        }
        other => other.clone(),
    }
}

fn spec(
    id: &str,
    name: &ServerName,
    project: Option<&ProjectId>,
    members: &Map<String, Value>,
    errors: &mut Vec<Wrong>,
) -> Option<ServerSpec> {
    let (members, places) = in_our_words(members);
    let mut found = Vec::new();
    let reader = Reader {
        at: String::new(),
        members: &members,
        errors: &mut found,
    };
    let spec = read(id, name, project, reader);
    for mut wrong in found {
        let is_at = |pointer: &str| {
            let rest = wrong.pointer.strip_prefix(pointer);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if let Some((pointer, place)) = places.iter().find(|(pointer, _)| is_at(pointer)) {
            wrong.pointer.replace_range(..pointer.len(), place);
        }
        errors.push(wrong);
    }
    spec
}

fn read(
    id: &str,
    name: &ServerName,
    project: Option<&ProjectId>,
    mut reader: Reader<'_>,
) -> Option<ServerSpec> {
    reader.known(&KEYS);
    if let Some(Value::String(text)) = reader.get("description")
        && text.len() > MAX_TEXT_BYTES
    {
        reader.wrong(
            "description",
            format!("must have at most {MAX_TEXT_BYTES} bytes"),
        );
    }
    let program = program(&mut reader)?;
    let mut sandbox = Sandbox::new(id);
    let has_streams = reader.flag("stdio_bridge").unwrap_or(true);
    let is_image = matches!(program, Program::Image { .. });
    config::sandbox(&mut reader, "resource_limits", is_image, &mut sandbox);
    if !has_streams && sandbox.ports.is_empty() && reader.get("ports").is_none_or(Value::is_array) {
        reader.wrong(
            "ports",
            "must contain the port that the server listens on, because `stdio_bridge` is false",
        );
    }
    let path = config::path(&mut reader);
    let env = environment(&mut reader);
    let login = login(&mut reader, &program, &env);
    let restart = reader.word::<RestartPolicy>("restart_policy");
    let heartbeat = config::heartbeat(&mut reader);
    let launch = Launch {
        env,
        login,
        reach: match has_streams {
            true => Reach::Streams,
            false => Reach::Port { path },
        },
        ..Launch::new(program, Place::Sandbox(sandbox))
    };
    let mut spec = ServerSpec::new(name.clone(), Origin::Launch(Arc::new(launch)));
    (spec.declared, spec.owner) = (Declared::Registered, project.cloned());
    (spec.restart, spec.heartbeat) = (Some(restart.unwrap_or_default()), heartbeat);
    config::options(&mut reader, &mut spec);
    let tool = |value: &Value| Some(NativeName::new(value.as_str()?));
    let on = reader.list(ENABLED_TOOLS, "must be the name of a tool", tool);
    spec.tools.enabled = on.map(|on| on.into_iter().collect());
    let off = reader.list(DISABLED_TOOLS, "must be the name of a tool", tool);
    spec.tools.disabled = off.into_iter().flatten().collect();
    if let Some(enabled) = reader.flag("enabled") {
        spec.enabled = enabled;
    }
    Some(spec)
}

fn program(reader: &mut Reader<'_>) -> Option<Program> {
    let args = reader.list("args", "must be a string", texts);
    let command = match reader.get("command") {
        Some(Value::Array(_)) => reader.list("command", "must be a string", texts),
        Some(_) => reader.text("command").map(|program| vec![program]),
        None => None,
    };
    let given = reader.get("command").is_some();
    match (reader.get("image").is_some(), given) {
        (true, _) => Some(Program::Image {
            image: reader.text("image")?,
            command: command.into_iter().chain(args).flatten().collect(),
        }),
        (false, true) => {
            let mut words = command?.into_iter();
            match words.next().filter(|program| fits(program)) {
                Some(program) => Some(Program::Command {
                    program,
                    args: words.chain(args.into_iter().flatten()).collect(),
                }),
                None => {
                    reader.wrong("command", "must begin with the name of a program");
                    None
                }
            }
        }
        (false, false) => {
            reader.wrong("image", "either `image` or `command` is required");
            None
        }
    }
}

fn environment(reader: &mut Reader<'_>) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    let Some(mut reader) = reader.inner("environment") else {
        return env;
    };
    if reader.members.len() > MAX_ITEMS {
        reader.wrong("", format!("must have at most {MAX_ITEMS} variables"));
    }
    let members = reader.members;
    for (name, value) in members {
        match value {
            _ if !is_variable(name) => {
                reader.wrong(
                    name,
                    "must be the name of a variable: letters, digits and `_`",
                );
            }
            Value::String(text) if text.len() <= MAX_TEXT_BYTES && !text.contains('\0') => {
                env.insert(name.clone(), text.clone());
            }
            _ => reader.wrong(name, "must be a string"),
        }
    }
    env
}

/// The variables that contain access tokens. A token is allowed nowhere else.
fn login(
    reader: &mut Reader<'_>,
    program: &Program,
    env: &BTreeMap<String, String>,
) -> Option<LoginVariables> {
    const ONLY: &str =
        "`${login:NAME}` can only be the whole value of a variable in the environment";
    let has_token = |text: &String| text.contains("${login:");
    if program
        .args()
        .iter()
        .chain([&program.target().to_owned()])
        .any(has_token)
    {
        reader.wrong("args", ONLY);
    }
    let is_whole = |text: &str| config::login_name(text).is_some();
    if env.values().any(|text| has_token(text) && !is_whole(text)) {
        reader.wrong("environment", ONLY);
    }
    let found = config::login_variables(env, |_| true);
    found.unwrap_or_else(|why| {
        reader.wrong("environment", why);
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_and_the_registration_with_the_same_meaning_are_equal() {
        let registration = json!({
            "name": "s", "command": "x", "args": ["-v"], "environment": {"K": "v"}, "volumes": ["/v"],
            "resource_limits": {"memory": "64M"}, "provider": "process", "restart_policy": "no",
            "stdio_bridge": false, "ports": [9000], "max_concurrency": 2, "heartbeat": {"interval_ms": 1000},
            "mounts": [{"host": "/a", "path": "/b", "read_only": false}],
        });
        let entry = json!({
            "name": "s", "type": "local", "command": "x", "args": ["-v"], "env": {"K": "v"},
            "toolwharf": {
                "sandbox": {"memory": "64M", "provider": "process"}, "volumes": ["/v"], "restart": "no",
                "port": 9000, "maxConcurrency": 2, "heartbeat": {"intervalMs": 1000},
                "mounts": [{"host": "/a", "path": "/b", "readOnly": false}],
            },
        });
        let spec = |body| Entry::read(body, None).expect("it is right").spec;
        assert_eq!(spec(entry), spec(registration));
    }

    #[test]
    fn ports_may_be_an_object() {
        let spec = |ports: Value| {
            let mut body = json!({"name": "s", "command": "x", "stdio_bridge": false});
            let members = body.as_object_mut().expect("an object");
            members.extend(ports.as_object().expect("an object").clone());
            Entry::read(body, None).map(|entry| entry.spec)
        };
        let usual = spec(json!({"ports": [9000, "8081:9001"]})).expect("it is right");
        for ports in [
            json!({"ports": {"9000": null, "9001/tcp": 8081}}),
            json!({"ports": {"9000/tcp": null, "9001/tcp": [{"HostPort": "8081"}]}}),
            json!({"port_mapping": {"9000": null, "9001": "8081"}}),
            json!({"port_mapping": [9000, "8081:9001"]}),
        ] {
            assert_eq!(spec(ports.clone()).expect("it is right"), usual, "{ports}");
        }
        for ports in [
            json!({"ports": {"9000/udp": 8081}}),
            json!({"ports": {"9000": {}}}),
            json!({"port_mapping": {"x": 1}}),
        ] {
            spec(ports.clone()).expect_err("it is wrong");
        }
    }

    #[test]
    fn each_error_has_the_place_of_its_field() {
        let body = json!({
            "name": "s", "command": "x", "env": {"A-B": "v"}, "port": 0,
            "toolwharf": {"sandbox": {"memory": "lots", "provider": "docker"}, "restart": "maybe"},
        });
        let mut places: Vec<String> = Entry::read(body, None)
            .expect_err("it is wrong")
            .into_iter()
            .map(|wrong| wrong.pointer)
            .collect();
        places.sort();
        places.dedup();
        let expect = [
            "/env/A-B",
            "/port",
            "/toolwharf/restart",
            "/toolwharf/sandbox/memory",
            "/toolwharf/sandbox/provider",
        ];
        assert_eq!(places, expect);
    }
}
