//! A hosted server as it is registered: JSON, as the body of `POST /api/v1/mcp/servers` and as it is kept.
//!
//! Invariant: everything that is wrong is told, each with its place. A registration that was kept is readable
//! for as long as there are servers of its kind. Deliberately absent: whether this host can do it.

mod reader;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    num::NonZeroU32,
    path::PathBuf,
    sync::Arc,
};

use model::{
    Declared, Heartbeat, Launch, Mount, Network, Origin, Place, Program, ProjectId, Provider,
    Reach, ResourceLimits, RestartPolicy, Sandbox, Secrets, ServerName, ServerSpec,
};
use serde_json::{Map, Value};
use store::WorkspaceRow;

use self::reader::{MOST, Reader, TEXT, fits, texts};
use crate::{
    config::{Unfilled, Unknown, Variables, is_variable},
    rest::Wrong,
};

/// A registration that was read.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: ServerName,
    pub(crate) project: Option<ProjectId>,
    /// All of it, as it was given, but for the name and the project.
    pub(crate) config: Value,
    spec: ServerSpec,
}

impl Entry {
    /// # Errors
    /// Everything that is wrong with it.
    pub(crate) fn read(body: Value) -> Result<Self, Vec<Wrong>> {
        let Value::Object(mut members) = body else {
            return Err(vec![Wrong::new("", "a registration is an object")]);
        };
        let mut errors = Vec::new();
        let name = match members.remove("name") {
            Some(Value::String(name)) => ServerName::parse(&name)
                .map_err(|error| errors.push(Wrong::new("/name", error.to_string())))
                .ok(),
            _ => {
                errors.push(Wrong::new("/name", "is required, a text"));
                None
            }
        };
        let project = match members.remove("project") {
            None | Some(Value::Null) => None,
            Some(Value::String(id)) => id
                .parse()
                .map_err(|_| errors.push(Wrong::new("/project", "is no project's id")))
                .ok(),
            Some(_) => {
                errors.push(Wrong::new("/project", "is the id of a project"));
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

    /// A registration that was kept, with what `secrets` know filled in.
    ///
    /// # Errors
    /// It is not readable.
    pub(crate) fn kept(
        row: &WorkspaceRow,
        secrets: &HashMap<String, String>,
    ) -> Result<ServerSpec, Vec<Wrong>> {
        let mut errors = Vec::new();
        let Value::Object(members) = &row.config else {
            return Err(vec![Wrong::new("", "a registration is an object")]);
        };
        let project = owner(row);
        match spec(&row.id, &row.name, project.as_ref(), members, &mut errors) {
            Some(spec) if errors.is_empty() => Ok(filled(spec, secrets)),
            _ => Err(errors),
        }
    }

    /// What is told of it before it has run.
    pub(crate) fn parts(&self) -> (&Launch, &Sandbox) {
        let parts = self.spec.launch().zip(self.spec.sandbox());
        parts.expect("an entry is of a server in a sandbox")
    }
}

/// The project that a hosted server belongs to.
pub(super) fn owner(row: &WorkspaceRow) -> Option<ProjectId> {
    let id = row.project_id.as_ref()?;
    Some(ProjectId::parse(id).expect("the table refers to a project"))
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
                "{names} would be a secret of a project, and the server belongs to none: register it with `project`"
            ),
        });
    }
    spec
}

const KEYS: &[&str] = &[
    "description",
    "image",
    "command",
    "args",
    "stdio_bridge",
    "restart_policy",
    "ports",
    "path",
    "environment",
    "volumes",
    "mounts",
    "resource_limits",
    "provider",
    "network",
    "heartbeat",
    "call_timeout_ms",
    "start_timeout_ms",
    "max_concurrency",
    "enabled",
];

fn spec(
    id: &str,
    name: &ServerName,
    project: Option<&ProjectId>,
    members: &Map<String, Value>,
    errors: &mut Vec<Wrong>,
) -> Option<ServerSpec> {
    let mut reader = Reader {
        at: String::new(),
        members,
        errors,
    };
    reader.known(KEYS);
    if let Some(Value::String(text)) = reader.get("description")
        && text.len() > TEXT
    {
        reader.wrong("description", "is too long");
    }
    let program = program(&mut reader)?;
    let mut sandbox = Sandbox::new(id);
    let has_streams = reader.flag("stdio_bridge").unwrap_or(true);
    let port = |value: &Value| u16::try_from(value.as_u64()?).ok().filter(|port| *port > 0);
    sandbox.ports = reader
        .list("ports", "is a port, 1 to 65535", port)
        .unwrap_or_default();
    if !has_streams && sandbox.ports.is_empty() && reader.get("ports").is_none_or(Value::is_array) {
        reader.wrong(
            "ports",
            "a server without `stdio_bridge` needs the port that it listens on",
        );
    }
    let mut seen = BTreeSet::new();
    if !sandbox.ports.iter().all(|port| seen.insert(*port)) {
        reader.wrong("ports", "names a port twice");
    }
    let path = reader.text("path").unwrap_or_else(|| "/mcp".to_owned());
    if !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        reader.wrong("path", "is the path of a URL and begins with `/`");
    }
    let env = environment(&mut reader);
    volumes(&mut reader, &mut sandbox);
    limits(&mut reader, &mut sandbox);
    sandbox.network = network(&mut reader);
    sandbox.provider = reader.word::<Provider>("provider");
    let restart = reader.word::<RestartPolicy>("restart_policy");
    let heartbeat = heartbeat(&mut reader);
    let launch = Launch {
        program,
        env,
        cwd: None,
        reach: match has_streams {
            true => Reach::Streams,
            false => Reach::Port { path },
        },
        place: Place::Sandbox(sandbox),
    };
    let mut spec = ServerSpec::new(name.clone(), Origin::Launch(Arc::new(launch)));
    (spec.declared, spec.owner) = (Declared::Registered, project.cloned());
    (spec.restart, spec.heartbeat) = (Some(restart.unwrap_or_default()), heartbeat);
    if let Some(time) = reader.time("call_timeout_ms") {
        spec.call_timeout = time;
    }
    if let Some(time) = reader.time("start_timeout_ms") {
        spec.start_timeout = time;
    }
    spec.max_concurrency = reader
        .number("max_concurrency", 1..=10_000)
        .and_then(|number| NonZeroU32::new(u32::try_from(number).ok()?));
    if let Some(enabled) = reader.flag("enabled") {
        spec.enabled = enabled;
    }
    Some(spec)
}

fn program(reader: &mut Reader<'_>) -> Option<Program> {
    let args = reader.list("args", "is a text", texts);
    let command = match reader.get("command") {
        Some(Value::Array(_)) => reader.list("command", "is a text", texts),
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
                    reader.wrong("command", "names no program");
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
    if reader.members.len() > MOST {
        reader.wrong("", format!("has at most {MOST} variables"));
    }
    let members = reader.members;
    for (name, value) in members {
        match value {
            _ if !is_variable(name) => {
                reader.wrong(name, "is no variable's name: letters, digits and `_`");
            }
            Value::String(text) if text.len() <= TEXT && !text.contains('\0') => {
                env.insert(name.clone(), text.clone());
            }
            _ => reader.wrong(name, "is a text"),
        }
    }
    env
}

fn volumes(reader: &mut Reader<'_>, sandbox: &mut Sandbox) {
    const MUST: &str = "is an absolute path without `..`, and not one that the system has";
    let path = |value: &Value| inside(value.as_str()?);
    sandbox.volumes = reader.list("volumes", MUST, path).unwrap_or_default();
    let mount = |value: &Value| {
        let members = value.as_object()?;
        let known = ["host", "path", "read_only"];
        if members.keys().any(|key| !known.contains(&key.as_str())) {
            return None;
        }
        let host = PathBuf::from(members.get("host")?.as_str()?);
        let plain = host.is_absolute()
            && host
                .components()
                .all(|part| part != std::path::Component::ParentDir);
        Some(Mount {
            host: plain.then_some(host)?,
            inside: inside(members.get("path")?.as_str()?)?,
            read_only: match members.get("read_only") {
                None => true,
                Some(value) => value.as_bool()?,
            },
        })
    };
    let must =
        "is {\"host\": PATH, \"path\": PATH, \"read_only\": true}, both absolute and without `..`";
    sandbox.mounts = reader.list("mounts", must, mount).unwrap_or_default();
    let mut seen = BTreeSet::new();
    let insides = sandbox.mounts.iter().map(|mount| &mount.inside);
    let twice = sandbox
        .volumes
        .iter()
        .chain(insides)
        .find(|path| !seen.insert(path.as_str()))
        .cloned();
    if let Some(path) = twice {
        reader.wrong("volumes", format!("`{path}` stands there twice"));
    }
}

/// A path inside of a sandbox that can be a volume.
fn inside(path: &str) -> Option<String> {
    const SYSTEM: [&str; 11] = [
        "proc", "sys", "dev", "bin", "sbin", "lib", "lib64", "usr", "etc", "run", "boot",
    ];
    let trimmed = path.trim_end_matches('/');
    let mut parts = trimmed.strip_prefix('/')?.split('/');
    let first = parts.clone().next()?;
    let plain = parts.all(|part| !matches!(part, "" | "." | ".."));
    let writable = fits(trimmed) && trimmed.len() <= 4096 && !trimmed.contains([':', ',']);
    let control = trimmed.chars().any(char::is_control);
    (plain && writable && !control && !SYSTEM.contains(&first)).then(|| trimmed.to_owned())
}

fn limits(reader: &mut Reader<'_>, sandbox: &mut Sandbox) {
    let Some(mut reader) = reader.inner("resource_limits") else {
        return;
    };
    reader.known(&["cpu", "memory", "disk", "pids", "strict"]);
    let limits = &mut sandbox.limits;
    if let Some(value) = reader.get("cpu") {
        match cores(value) {
            Some(millis) => limits.cpu_millis = millis,
            None => reader.wrong(
                "cpu",
                "is a number of cores from 0.01 to 512, as \"0.5\" or \"500m\"",
            ),
        }
    }
    for (key, place, range) in [
        ("memory", &mut limits.memory, ResourceLimits::MEMORY),
        ("disk", &mut limits.disk, ResourceLimits::DISK),
    ] {
        let Some(value) = reader.get(key) else {
            continue;
        };
        match size(value).filter(|size| range.contains(size)) {
            Some(size) => *place = size,
            None => {
                let (least, most) = (range.start() >> 20, range.end() >> 30);
                let must = format!("is a size from {least}M to {most}G, as \"512M\" or \"1Gi\"");
                reader.wrong(key, must);
            }
        }
    }
    let (least, most) = (*ResourceLimits::PIDS.start(), *ResourceLimits::PIDS.end());
    if let Some(pids) = reader.number("pids", least.into()..=most.into()) {
        limits.pids = u32::try_from(pids).unwrap_or(most);
    }
    sandbox.strict = reader.flag("strict").unwrap_or_default();
}

/// Thousandths of a core: `"0.5"`, `"500m"`, `2`.
fn cores(value: &Value) -> Option<u32> {
    let millis = match value {
        Value::String(text) => match text.strip_suffix('m') {
            Some(millis) => millis.parse::<u32>().ok()?.into(),
            None => decimal(text)? * 1000.0,
        },
        number => number.as_f64()? * 1000.0,
    };
    let (least, most) = (
        f64::from(*ResourceLimits::CPU_MILLIS.start()),
        f64::from(*ResourceLimits::CPU_MILLIS.end()),
    );
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is within the range"
    )]
    (least..=most)
        .contains(&millis)
        .then(|| millis.round() as u32)
}

/// Bytes: `"512M"`, `"1Gi"`, `1048576`. Powers of 1024, as Docker has it.
fn size(value: &Value) -> Option<u64> {
    let text = match value {
        Value::String(text) => text.as_str(),
        number => return number.as_u64(),
    };
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "ki" | "kib" => 10,
        "m" | "mb" | "mi" | "mib" => 20,
        "g" | "gb" | "gi" | "gib" => 30,
        "t" | "tb" | "ti" | "tib" => 40,
        _ => return None,
    };
    let bytes = decimal(number)?
        * f64::from(1_u32 << shift.min(30))
        * if shift == 40 { 1024.0 } else { 1.0 };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is not negative and far below the largest"
    )]
    (bytes < 1e18).then_some(bytes as u64)
}

/// A number in digits; not `1e3`, `inf` or `-0`.
fn decimal(text: &str) -> Option<f64> {
    let digits = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    digits.then(|| text.parse().ok())?
}

fn network(reader: &mut Reader<'_>) -> Network {
    let must = "is \"none\", \"open\", or {\"allow\": [\"host\", \"host:port\", \"*.domain\"]}";
    match reader.get("network") {
        None => Network::None,
        Some(Value::String(word)) if word == "none" => Network::None,
        Some(Value::String(word)) if word == "open" => Network::Open,
        Some(Value::Object(_)) => {
            let Some(mut reader) = reader.inner("network") else {
                return Network::None;
            };
            reader.known(&["allow"]);
            let hosts = reader.list("allow", "is `host`, `host:port` or `*.domain`", |value| {
                allowed_host(value.as_str()?)
            });
            Network::Allow(hosts.unwrap_or_default())
        }
        Some(_) => {
            reader.wrong("network", must);
            Network::None
        }
    }
}

fn allowed_host(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (text.as_str(), None),
    };
    if let Some(port) = port {
        port.parse::<u16>().ok().filter(|port| *port > 0)?;
    }
    let name = host.strip_prefix("*.").unwrap_or(host);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte);
    let fine = !name.is_empty() && name.len() <= 253 && name.bytes().all(plain);
    fine.then_some(text)
}

fn heartbeat(reader: &mut Reader<'_>) -> Option<Heartbeat> {
    let mut heartbeat = Heartbeat::default();
    match reader.get("heartbeat") {
        None => {}
        Some(Value::Bool(false)) => return None,
        Some(_) => {
            let mut reader = reader.inner("heartbeat")?;
            reader.known(&["interval_ms", "timeout_ms", "misses"]);
            if let Some(time) = reader.time("interval_ms") {
                heartbeat.interval = time;
            }
            if let Some(time) = reader.time("timeout_ms") {
                heartbeat.timeout = time;
            }
            if let Some(misses) = reader.number("misses", 1..=1000) {
                heartbeat.misses = u32::try_from(misses).unwrap_or(1);
            }
        }
    }
    Some(heartbeat)
}
