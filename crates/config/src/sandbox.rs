//! Sandbox settings of entries: sizes, volumes, mounts, the network. Used for entries from all sources.

use std::{
    collections::BTreeSet,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use model::{Mount, Network, Origin, Place, Port, Provider, ResourceLimits, Sandbox, ServerSpec};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    members::{Reader, fits},
    units::{Prefix, bytes, decimal},
};

/// Maximum number of letters of the server name in the name of its sandbox.
const MAX_NAME_LETTERS: usize = 40;

/// Names the sandbox of a server that is not registered. The name is unique, and the same at each start.
pub(crate) fn name(spec: &mut ServerSpec) {
    let key = spec.key();
    let Origin::Launch(launch) = &mut spec.origin else {
        return;
    };
    if let Place::Sandbox(sandbox) = &mut Arc::make_mut(launch).place {
        let digest = Sha256::digest(key.to_string());
        let letters = key.name.as_str().to_ascii_lowercase();
        let letters = letters
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || *c == '-');
        let name: String = letters.take(MAX_NAME_LETTERS).collect();
        sandbox.id = format!("{}-{}", name.trim_matches('-'), hex::encode(&digest[..6]));
        sandbox.id = sandbox.id.trim_start_matches('-').to_owned();
    }
}

/// Reads the settings of a sandbox. `limits_key` names the object with its limits. In an entry, that object also
/// contains `provider`, `show` and `hide`; in a registration, these three keys are next to the object.
pub fn sandbox(reader: &mut Reader<'_>, limits_key: &str, is_image: bool, sandbox: &mut Sandbox) {
    ports(reader, sandbox);
    volumes(reader, sandbox);
    sandbox.network = network(reader);
    if let Some(mut reader) = reader.inner(limits_key) {
        reader.known_at("/SandboxLimits/properties");
        limits(&mut reader, sandbox);
        provider_and_shown(&mut reader, is_image, sandbox);
    }
    provider_and_shown(reader, is_image, sandbox);
}

/// Reads `provider`, `show` and `hide`: the sandbox provider, the host paths that a command sees in addition to the
/// ones it needs, and the host paths that it does not see.
fn provider_and_shown(reader: &mut Reader<'_>, is_image: bool, sandbox: &mut Sandbox) {
    const PATH_RULE: &str = "must be an absolute path of this host without `..`";
    const ONLY_FOR_COMMANDS: &str =
        "is only for commands: an image sees no host files except its `mounts`";
    if let Some(provider) = reader.word::<Provider>("provider") {
        sandbox.provider = Some(provider);
    }
    for (key, paths) in [("show", &mut sandbox.show), ("hide", &mut sandbox.hide)] {
        let path = |value: &Value| host_path(value.as_str()?);
        let Some(given) = reader.list(key, PATH_RULE, path) else {
            continue;
        };
        if is_image && !given.is_empty() {
            reader.wrong(key, ONLY_FOR_COMMANDS);
        }
        *paths = given;
    }
}

/// The ports on which the server listens in its sandbox: a list of `9000`, `"9000"`, `"8080:9000"` or `{"host": 8080,
/// "container": 9000}`, or an object as in Docker's interfaces, `{"9000/tcp": 8080}`.
fn ports(reader: &mut Reader<'_>, sandbox: &mut Sandbox) {
    let must = "must be a port from 1 to 65535, such as 9000, \"HOST:9000\" or {\"host\": HOST, \"container\": 9000}";
    sandbox.ports = match reader.get("ports") {
        Some(Value::Object(mapping)) => {
            let ports: Option<Vec<Port>> = mapping.iter().map(mapped).collect();
            if ports.is_none() {
                let must = "must name ports from 1 to 65535, such as {\"9000/tcp\": 8080}: the port inside, and the port of the host or null";
                reader.wrong("ports", must);
            }
            ports.unwrap_or_default()
        }
        _ => reader.list("ports", must, port).unwrap_or_default(),
    };
    let (mut insides, mut hosts) = (BTreeSet::new(), BTreeSet::new());
    let mut is_new = |port: &Port| {
        let inside = insides.insert(port.inside);
        port.host.is_none_or(|host| hosts.insert(host)) && inside
    };
    if !sandbox.ports.iter().all(&mut is_new) {
        reader.wrong("ports", "must not contain a port twice");
    }
}

/// Checks the syntax of a port on the command line, which the gateway parses later.
///
/// # Errors
/// A description of a valid port.
pub fn is_port(text: &str) -> Result<String, &'static str> {
    let read = port(&Value::from(text)).map(|_| text.to_owned());
    read.ok_or("a port is a number from 1 to 65535, such as 9000, or 8080:9000 with a port of this host first")
}

/// A member of an object of ports. Docker itself writes the port of the host as `[{"HostPort": "8080"}]`.
fn mapped((inside, host): (&String, &Value)) -> Option<Port> {
    let inside = inside.strip_suffix("/tcp").unwrap_or(inside);
    let host = match host {
        Value::Array(hosts) => match hosts.as_slice() {
            [host] => host.get("HostPort").unwrap_or(host),
            _ => return None,
        },
        host => host,
    };
    let plain = |value: &Value| port(value).filter(|port| port.host.is_none());
    let host = match host {
        Value::Null => None,
        Value::Object(_) => return None,
        host => Some(plain(host)?.inside),
    };
    let inside = plain(&inside.into())?.inside;
    Some(Port { inside, host })
}

fn port(value: &Value) -> Option<Port> {
    let number = |number: u64| u16::try_from(number).ok().filter(|number| *number > 0);
    // Only digits, because `parse` also accepts a sign.
    let digits = |text: &str| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        number(is_number.then(|| text.parse().ok())??)
    };
    match value {
        Value::String(text) => {
            let (host, inside) = match text.split_once(':') {
                Some((host, inside)) => (Some(digits(host)?), inside),
                None => (None, text.as_str()),
            };
            let inside = digits(inside)?;
            Some(Port { inside, host })
        }
        Value::Object(members) => {
            let known = ["host", "container"];
            if members.keys().any(|key| !known.contains(&key.as_str())) {
                return None;
            }
            let inside = number(members.get("container")?.as_u64()?)?;
            let host = match members.get("host") {
                None | Some(Value::Null) => None,
                Some(host) => Some(number(host.as_u64()?)?),
            };
            Some(Port { inside, host })
        }
        value => {
            let inside = number(value.as_u64()?)?;
            Some(Port { inside, host: None })
        }
    }
}

/// The path of the MCP endpoint for a server with a port.
pub fn path(reader: &mut Reader<'_>) -> String {
    let path = reader.text("path").unwrap_or_else(|| "/mcp".to_owned());
    if !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        reader.wrong("path", "must be a URL path such as `/mcp`");
    }
    path
}

/// `volumes` and `mounts`. A mount is `{"host": PATH, "path": PATH, "read_only": true}` or `"HOST:PATH:rw"`.
fn volumes(reader: &mut Reader<'_>, sandbox: &mut Sandbox) {
    const PATH_RULE: &str = "must be an absolute path without `..`, and not in a system folder";
    let path = |value: &Value| inside(value.as_str()?);
    sandbox.volumes = reader.list("volumes", PATH_RULE, path).unwrap_or_default();
    let must = "must be \"HOST:PATH\", \"HOST:PATH:rw\" or {\"host\": HOST, \"path\": PATH, \"read_only\": true}, where HOST \
                and PATH are absolute paths without `..`";
    sandbox.mounts = reader.list("mounts", must, mount).unwrap_or_default();
    let mut seen = BTreeSet::new();
    let insides = sandbox.mounts.iter().map(|mount| &mount.inside);
    let mut all = sandbox.volumes.iter().chain(insides);
    if let Some(path) = all.find(|path| !seen.insert(path.as_str())) {
        let why = format!("must not contain `{path}` twice, including the paths of `mounts`");
        reader.wrong("volumes", why);
    }
}

fn host_path(text: &str) -> Option<PathBuf> {
    let path: PathBuf = PathBuf::from(text).components().collect();
    let plain = path.is_absolute() && path.components().all(|part| part != Component::ParentDir);
    let is_whole = path.parent().is_some() && !text.contains('\0');
    (plain && is_whole).then_some(path)
}

fn mount(value: &Value) -> Option<Mount> {
    let (host, path, read_only) = match value {
        Value::String(text) => {
            let (text, read_only) = match text.rsplit_once(':') {
                Some((text, "ro")) => (text, true),
                Some((text, "rw")) => (text, false),
                _ => (text.as_str(), true),
            };
            let (host, path) = text.rsplit_once(':')?;
            (host, path, read_only)
        }
        value => {
            let members = value.as_object()?;
            let known = ["host", "path", "read_only"];
            if members.keys().any(|key| !known.contains(&key.as_str())) {
                return None;
            }
            let read_only = members
                .get("read_only")
                .map_or(Some(true), Value::as_bool)?;
            let text = |key: &str| members.get(key)?.as_str();
            (text("host")?, text("path")?, read_only)
        }
    };
    Some(Mount {
        host: host_path(host)?,
        inside: inside(path)?,
        read_only,
    })
}

/// The first host path in `mounts` or `show` that, after resolving links, is not under one of `allowed`.
pub fn not_allowed<'a>(allowed: &[PathBuf], sandbox: &'a Sandbox) -> Option<&'a PathBuf> {
    sandbox.host_paths().find(|path| !is_allowed(allowed, path))
}

/// Returns whether a host path, after resolving links, is under one that an administrator allowed.
fn is_allowed(allowed: &[PathBuf], path: &Path) -> bool {
    let Ok(real) = path.canonicalize() else {
        return false;
    };
    let within = |allowed: &PathBuf| {
        let allowed = allowed.canonicalize();
        allowed.is_ok_and(|allowed| real.starts_with(allowed))
    };
    allowed.iter().any(within)
}

/// The error for a host path that [`not_allowed`] returned.
pub fn why_not_allowed(path: &Path) -> String {
    format!(
        "`{}` of the host may not be mounted or shown: it is not in a folder that `[hosting] mounts` lists",
        path.display()
    )
}

/// A path inside a sandbox that can be a volume.
fn inside(path: &str) -> Option<String> {
    const SYSTEM_FOLDERS: [&str; 11] = [
        "proc", "sys", "dev", "bin", "sbin", "lib", "lib64", "usr", "etc", "run", "boot",
    ];
    let trimmed = path.trim_end_matches('/');
    let mut parts = trimmed.strip_prefix('/')?.split('/');
    let first = parts.clone().next()?;
    let plain = parts.all(|part| !matches!(part, "" | "." | ".."));
    let writable = fits(trimmed) && trimmed.len() <= 4096 && !trimmed.contains([':', ',']);
    let control = trimmed.chars().any(char::is_control);
    (plain && writable && !control && !SYSTEM_FOLDERS.contains(&first)).then(|| trimmed.to_owned())
}

/// Resource limits: the members of `resource_limits`, or of `sandbox`.
fn limits(reader: &mut Reader<'_>, sandbox: &mut Sandbox) {
    let limits = &mut sandbox.limits;
    if let Some(value) = reader.get("cpu") {
        match cores(value) {
            Some(millis) => limits.cpu_millis = millis,
            None => reader.wrong(
                "cpu",
                "must be a number of cores from 0.01 to 512, such as \"0.5\" or \"500m\"",
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
                let must =
                    format!("must be a size from {least}MiB to {most}GiB, such as \"512MiB\"");
                reader.wrong(key, must);
            }
        }
    }
    let (least, most) = (*ResourceLimits::PIDS.start(), *ResourceLimits::PIDS.end());
    if let Some(pids) = reader.number("pids", || least.into()..=most.into()) {
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

fn size(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => bytes(text, Prefix::Binary),
        number => number.as_u64(),
    }
}

/// `"none"`, `"open"`, a list of hosts, or `{"allow": […]}`.
fn network(reader: &mut Reader<'_>) -> Network {
    const HOST_RULE: &str = "must be `host`, `host:port` or `*.domain`";
    let host = |value: &Value| allowed_host(value.as_str()?);
    match reader.get("network") {
        None => Network::None,
        Some(Value::String(word)) if word == "none" => Network::None,
        Some(Value::String(word)) if word == "open" => Network::Open,
        Some(Value::Array(_)) => {
            let hosts = reader.list("network", HOST_RULE, host);
            Network::Allow(hosts.unwrap_or_default())
        }
        Some(Value::Object(_)) => {
            let Some(mut reader) = reader.inner("network") else {
                return Network::None;
            };
            reader.known_at("/Network/anyOf/2/properties");
            let hosts = reader.list("allow", HOST_RULE, host);
            Network::Allow(hosts.unwrap_or_default())
        }
        Some(_) => {
            let must = "must be \"none\", \"open\", or a list of the hosts that the server may reach: [\"host\", \"host:port\", \"*.domain\"]";
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
