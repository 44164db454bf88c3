//! `toolwharf.toml`: Toolwharf's own settings.
//!
//! Unknown keys are errors, because no other program uses this file. Durations are written `500ms`, `30s`, `5m`, `2h`;
//! sizes as a number of bytes or `64KiB`, `16MiB`.

mod agent;
mod auth;
mod edit;
mod logins;
mod sample;
mod told;
mod values;
mod walk;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use model::{
    AuditBodies, BackupSettings, EmbeddingSettings, HostEnv, HostingSettings, KubernetesSettings,
    Limits, LogFormat, NamingPolicy, Packages, Pinning, ProjectId, ProjectView, Provider,
    ResultSettings, RunBy, ServerName, Settings, StartPolicy, SwarmSettings, TlsSettings, ToolMode,
    ToolRef, naming,
};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

pub use self::edit::with_default_sandbox;
use self::{
    values::{
        base_url, integer, is_address, is_host, is_private_address, is_service_url, is_web_url,
        origin, own_words, size,
    },
    walk::{Table, Walk, set},
};
use super::{extensions, interpolate::Variables, problem::Problem, shape, source::Source};

#[cfg(test)]
pub(crate) use self::sample::SAMPLE;
pub use self::told::Setting;
pub(crate) use self::told::told;
pub use self::values::setting_text;

/// The settings of a host without a settings file.
pub(crate) fn without_file(env: &dyn Fn(&str) -> Option<String>) -> Settings {
    let host_env = HostEnv::resolve(BTreeMap::new(), &BTreeSet::new(), env);
    Settings {
        host_env: Arc::new(host_env),
        ..Settings::default()
    }
}

/// Reads the settings. Problems go to `problems`, and the default is used instead of an invalid value. `variables` are
/// filled in where a value may be a secret.
pub(crate) fn parse(
    source: &Source,
    variables: &Variables<'_>,
    problems: &mut Vec<Problem>,
) -> Settings {
    let (table, errors) = DeTable::parse_recoverable(&source.text);
    for error in &errors {
        let span = error.span().unwrap_or(0..0);
        let what = format!("invalid TOML: {}", own_words(error.message()));
        let help = match error.message().contains("duplicate key") {
            true => "remove one of the two, or merge them",
            false => "write one `key = value` per line",
        };
        problems.push(Problem::at(source, span, what).help(help));
    }
    let mut settings = without_file(variables.env);
    if !errors.is_empty() {
        return settings;
    }
    let walk = Walk {
        source,
        variables,
        problems: RefCell::default(),
    };
    root(Table::new(&walk, table.get_ref(), ""), &mut settings);
    problems.append(&mut walk.problems.into_inner());
    settings
}

fn root(mut root: Table<'_, '_>, settings: &mut Settings) {
    let must = r#"an address and a port, such as "127.0.0.1:6280""#;
    set(&mut settings.listen, root.text("listen", must, is_address));
    set(
        &mut settings.naming,
        root.word("naming", NamingPolicy::WORDS),
    );
    let max_name_len = root.count("max_name_len", naming::BOUNDS);
    set(&mut settings.max_name_len, max_name_len);
    set(&mut settings.start, root.word("start", StartPolicy::WORDS));
    set(&mut settings.tools, root.word("tools", ToolMode::WORDS));
    settings.listed_tools = tools(&mut root, "listed_tools");
    let search_above = root.count("search_above", 1..=10_000_000);
    set(&mut settings.search_above, search_above);
    let must = r#"an absolute path, such as "/usr/share/toolwharf/minilm.model""#;
    let model = root.text("search_model", must, |text| Path::new(text).is_absolute());
    settings.search_model = model.map(Into::into);
    if let Some(table) = root.table("embeddings") {
        let span = table.items.keys().next().map_or(0..0, Spanned::span);
        settings.embeddings = embeddings(table);
        if settings.search_model.is_some() {
            let what = "`search_model` and `[embeddings]` exclude each other";
            root.walk.wrong(span, what, "one of the two");
        }
    }
    root.flag("search_past_calls", &mut settings.search_past_calls);
    root.flag("code", &mut settings.code);
    let max_result_tokens = result_tokens(&mut root);
    set(&mut settings.max_result_tokens, max_result_tokens);
    root.flag("compact_results", &mut settings.compact_results);
    if let Some(table) = root.table("results") {
        results(table, &mut settings.results);
    }
    let pinning = root.word("tool_pinning", Pinning::WORDS);
    set(&mut settings.pinning, pinning);
    root.flag("require_key", &mut settings.require_key);
    let into = &mut settings.require_valid_entries;
    root.flag("require_valid_entries", into);
    root.flag("upgrade_overlap", &mut settings.upgrade_overlap);
    let must = r#"a URL such as "postgres://user@host/database""#;
    settings.database_url = root.text("database_url", must, |url| {
        url.starts_with("postgres://") || url.starts_with("postgresql://")
    });
    let must = r#"a URL such as "https://tools.example.com" or "https://example.com/tools"; a path cannot begin with one of the gateway, such as /mcp"#;
    let public = root.text("public_url", must, |url| base_url(url).is_some());
    settings.public_url = public.and_then(|url| base_url(&url));
    let must = r#"a URL such as "https://example.com/toolwharf.json""#;
    let is_https = |url: &str| url.starts_with("https://");
    settings.client_metadata_url = root.text("client_metadata_url", must, is_https);
    let must = r#"addresses or networks such as "127.0.0.1" and "10.0.0.0/8""#;
    settings.trusted_proxies = root.each("trusted_proxies", must, |text| text.parse().ok());
    if let Some(table) = root.items("tls") {
        settings.tls = tls(root.walk, table);
    }
    if let Some(table) = root.table("auth") {
        settings.oidc = auth::auth(table);
    }
    if let Some(all) = root.items("logins") {
        settings.logins = logins::logins(root.walk, all);
    }
    let must = r#"an origin such as "https://app.example.com", without a path or `*`"#;
    let origins = root.each("allowed_origins", must, origin);
    settings.allowed_origins.extend(origins);
    let must = r#"a host such as "tools.example.com" or "tools.example.com:8080""#;
    let hosts = root.each("allowed_hosts", must, |text| {
        is_host(text).then(|| text.to_ascii_lowercase())
    });
    settings.allowed_hosts.extend(hosts);
    let must = r#"an absolute path, such as "/var/lib/toolwharf""#;
    let dir = root.text("data_dir", must, |text| Path::new(text).is_absolute());
    settings.data_dir = dir.map(Into::into);
    if let Some(table) = root.table("limits") {
        limits(table, &mut settings.limits);
    }
    if let Some(mut breaker) = root.table("breaker") {
        let into = &mut settings.breaker;
        set(&mut into.failures, breaker.count("failures", 1..=1000));
        breaker.time("cooldown", &mut into.cooldown);
    }
    if let Some(mut defaults) = root.table("defaults") {
        let into = &mut settings.defaults;
        defaults.flag("sandbox", &mut into.sandbox);
        set(
            &mut into.packages,
            defaults.word("packages", Packages::WORDS),
        );
        let must = r#"names of variables such as "HTTPS_PROXY"; those that begin with TOOLWHARF_ stay with Toolwharf"#;
        let pass_env: BTreeSet<String> = defaults
            .each("pass_env", must, |name| {
                let fits = is_variable_name(name) && !name.starts_with("TOOLWHARF_");
                fits.then(|| name.to_owned())
            })
            .into_iter()
            .collect();
        let env = defaults.items("env");
        let env = env.map(|all| default_env(root.walk, all));
        let host_env =
            HostEnv::resolve(env.unwrap_or_default(), &pass_env, root.walk.variables.env);
        settings.host_env = Arc::new(host_env);
    }
    if let Some(table) = root.table("hosting") {
        hosting(table, &mut settings.hosting);
    }
    if let Some(table) = root.table("kubernetes") {
        kubernetes(table, &mut settings.hosting.kubernetes);
    }
    if let Some(table) = root.table("swarm") {
        swarm(table, &mut settings.hosting.swarm);
    }
    if let Some(table) = root.table("agent") {
        settings.agent = agent::read(table);
    }
    if let Some(mut audit) = root.table("audit") {
        let into = &mut settings.audit;
        audit.flag("enabled", &mut into.enabled);
        set(&mut into.bodies, audit.word("bodies", AuditBodies::WORDS));
        audit.flag("errors", &mut into.errors);
        let must = "a whole number of days from 1 to 36500, or 0 to keep records permanently";
        let days = audit.value("retention_days", must, |value| {
            integer(value).filter(|days| *days <= 36_500)
        });
        if let Some(days) = days {
            let age = Duration::from_secs(days as u64 * 24 * 60 * 60);
            into.retention = (days > 0).then_some(age);
        }
    }
    if let Some(table) = root.table("backup") {
        backup(table, &mut settings.backup);
    }
    if let Some(table) = root.items("extensions") {
        settings.extensions.clear();
        for (name, value) in table {
            match extensions::to_json(value.get_ref()) {
                Some(json) if json.starts_with('{') => {
                    settings.extensions.insert(name.get_ref().to_string(), json);
                }
                _ => root.walk.wrong(
                    value.span(),
                    &format!("invalid settings of extension `{}`", name.get_ref()),
                    r#"a table, such as `"com.example/extension" = {}`"#,
                ),
            }
        }
    }
    if let Some(registries) = root.items("registries") {
        for (key, value) in registries {
            registry(root.walk, key, value, settings);
        }
    }
    if let Some(mut replicas) = root.table("replicas") {
        // A shorter lease could expire while waiting for a slow response of the database.
        let bounds = Duration::from_secs(3)..=Duration::from_mins(5);
        let lease = replicas.value("lease", r#"a time from "3s" to "5m""#, |value| {
            let lease = value.as_str().and_then(values::duration)?;
            bounds.contains(&lease).then_some(lease)
        });
        set(&mut settings.replicas.lease, lease);
        let must = r#"an address and a port, such as "10.0.0.5:6281""#;
        settings.replicas.listen = replicas
            .text("listen", must, |text| text.parse::<SocketAddr>().is_ok())
            .and_then(|text| text.parse().ok());
        let words = [("each", RunBy::Each), ("one", RunBy::One)];
        let run_by = replicas.either("project_servers", words);
        set(&mut settings.replicas.project_servers, run_by);
    }
    if let Some(mut log) = root.table("log") {
        let level = log.string("level").map(|(level, _)| level);
        set(&mut settings.log.level, level);
        let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
        set(&mut settings.log.format, log.either("format", formats));
    }
    if let Some(mut console) = root.table("console") {
        let must = r#"an address and a port, such as "127.0.0.1:6281""#;
        settings.console.apps_listen = console.text("apps_listen", must, is_address);
        let must = r#"an origin such as "https://apps.example.com", without a path"#;
        let url = console.text("apps_url", must, |url| origin(url).is_some());
        settings.console.apps_url = url.and_then(|url| origin(&url));
    }
    if let Some(projects) = root.items("projects") {
        for (key, value) in projects {
            project(root.walk, key, value, settings);
        }
    }
}

fn embeddings(mut table: Table<'_, '_>) -> Option<EmbeddingSettings> {
    let api_key = table.secret("api_key");
    let must = r#"a URL such as "https://api.openai.com/v1", without a user"#;
    let url = table.text("url", must, is_service_url);
    let model = table.text("model", "the name of a model", |model| {
        !model.trim().is_empty()
    });
    for (key, example) in [
        ("url", "https://api.openai.com/v1"),
        ("model", "text-embedding-3-small"),
    ] {
        if table.items.get(key).is_none() {
            let span = table.items.keys().next().map_or(0..0, Spanned::span);
            let what = format!("`[embeddings]` has no `{key}`");
            let write = format!(r#"`{key} = "{example}"`, for instance"#);
            table.walk.wrong(span, &what, &write);
        }
    }
    Some(EmbeddingSettings {
        url: url?,
        model: model?,
        api_key,
    })
}

/// Returns whether a process can get a variable with this name.
fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// Variables for all servers. As in entries of servers, `${…}` is filled in, and numbers and booleans count as text.
fn default_env(walk: &Walk<'_>, all: &DeTable<'_>) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    for (key, value) in all {
        let name: &str = key.get_ref();
        if !is_variable_name(name) {
            let what = format!(
                "invalid variable name `{}` in `defaults.env`",
                shape::printable(name)
            );
            walk.wrong(key.span(), &what, "a name without `=` and NUL");
            continue;
        }
        if let Some(text) = walk.filled(name, value) {
            env.insert(name.to_owned(), text);
        }
    }
    env
}

fn limits(mut table: Table<'_, '_>, limits: &mut Limits) {
    const MAX_COUNT: usize = 1_000_000;
    for (key, slot, least) in [
        ("max_body_bytes", &mut limits.max_body_bytes, 1024),
        ("max_bodies_bytes", &mut limits.max_bodies_bytes, 1 << 20),
        ("max_unread_bytes", &mut limits.max_unread_bytes, 1 << 20),
        ("max_line_bytes", &mut limits.max_line_bytes, 1024),
    ] {
        let kib = least >> 10;
        let must = format!(r#"a number of bytes or a size from {kib}KiB to 4GiB, such as "16MiB""#);
        let bytes = table.value(key, &must, |value| {
            size(value).filter(|bytes| (least..=1 << 32).contains(bytes))
        });
        set(slot, bytes);
    }
    set(&mut limits.max_depth, table.count("max_depth", 8..=1024));
    let instances = table.count("max_session_instances", 1..=10_000);
    set(&mut limits.max_session_instances, instances);
    for (key, slot) in [
        ("max_connections", &mut limits.max_connections),
        ("max_sessions", &mut limits.max_sessions),
        ("max_subscriptions", &mut limits.max_subscriptions),
        ("queue_len", &mut limits.queue_len),
        ("client_queue_len", &mut limits.client_queue_len),
        ("max_held_calls", &mut limits.max_held_calls),
    ] {
        set(slot, table.count(key, 1..=MAX_COUNT));
    }
    table.time("session_idle", &mut limits.session_idle);
    table.time("server_idle", &mut limits.server_idle);
    table.time("held_call_ttl", &mut limits.held_call_ttl);
    table.time("stop_grace", &mut limits.stop_grace);
    table.time("drain", &mut limits.drain);
}

/// Without its keys, the table has no effect.
fn tls(walk: &Walk<'_>, items: &DeTable<'_>) -> Option<TlsSettings> {
    let mut table = Table::new(walk, items, "tls.");
    let must = r#"the absolute path of a PEM file, such as "/etc/toolwharf/cert.pem""#;
    let mut file = |key| {
        let path = table.text(key, must, |text| Path::new(text).is_absolute());
        path.map(PathBuf::from)
    };
    if let (Some(cert), Some(key)) = (file("cert"), file("key")) {
        return Some(TlsSettings { cert, key });
    }
    for (key, other) in [("cert", "key"), ("key", "cert")] {
        if let (None, Some((name, _))) = (items.get(key), items.get_key_value(other)) {
            let what = format!("`[tls]` has `{other}`, but no `{key}`");
            walk.wrong(name.span(), &what, must);
        }
    }
    None
}

fn backup(mut table: Table<'_, '_>, into: &mut BackupSettings) {
    let must = r#"an absolute path, such as "/var/backups/toolwharf""#;
    let folder = table.text("folder", must, |text| Path::new(text).is_absolute());
    into.folder = folder.map(Into::into);
    let bounds = Duration::from_mins(1)..=Duration::from_hours(7 * 24);
    let every = table.value(
        "every",
        r#"a time from "1m" to "7d", such as "24h""#,
        |value| {
            let every = value.as_str().and_then(values::duration)?;
            bounds.contains(&every).then_some(every)
        },
    );
    set(&mut into.every, every);
    set(&mut into.keep, table.count("keep", 1..=10_000));
    table.flag("volumes", &mut into.volumes);
}

fn hosting(mut table: Table<'_, '_>, into: &mut HostingSettings) {
    if table.item("providers").is_some() {
        let must = format!("one or more of `{}`", Provider::WORDS.join("`, `"));
        let providers = table.each("providers", &must, |word| word.parse().ok());
        into.providers = providers.into_iter().collect();
    }
    let must = r#""unix:///path/of/docker.sock" or "tcp://127.0.0.1:PORT""#;
    into.docker_host = table.text("docker_host", must, |host| {
        host.starts_with("unix:///") || host.starts_with("tcp://127.0.0.1:")
    });
    for (provider, key) in [
        (Provider::Gvisor, "gvisor_runtime"),
        (Provider::Firecracker, "firecracker_runtime"),
        (Provider::Runc, "runc_runtime"),
    ] {
        let must = "the name of a runtime, as `docker info` lists it";
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        let fits = |name: &str| !name.is_empty() && name.bytes().all(plain);
        if let Some(name) = table.text(key, must, fits) {
            into.docker_runtimes.insert(provider, name);
        }
    }
    let must = "the name of a network, as `docker network ls` lists it; not `host`";
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let network = table.text("docker_network", must, |name| {
        // `host` and `container:NAME` would share namespaces with the host or with another container.
        !name.is_empty() && name != "host" && name.bytes().all(plain)
    });
    set(&mut into.docker_network, network);
    into.e2b_api_key = table.secret("e2b_api_key");
    let must = r#""https://…" without a query; plain http, which would expose the key and the traffic, only on loopback"#;
    let url = table.text("e2b_url", must, is_private_address);
    set(&mut into.e2b_url, url);
    into.e2b_sandbox_url = table.text("e2b_sandbox_url", must, is_private_address);
    let must = r#"a number of bytes or a size from 1MiB to 1TiB, such as "2GiB""#;
    let bytes = table.value("package_bytes", must, |value| {
        let bytes = size(value).filter(|bytes| (1 << 20..=1 << 40).contains(bytes))?;
        u64::try_from(bytes).ok()
    });
    set(&mut into.package_bytes, bytes);
    let files = table.count("package_files", 100..=100_000_000);
    set(&mut into.package_files, files);
    let must = r#"hosts such as "files.example.com" or "files.example.com:8443""#;
    into.package_hosts = table.each("package_hosts", must, |text| {
        let (host, port) = text.split_once(':').unwrap_or((text, "443"));
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let fits = !host.is_empty() && host.bytes().all(plain) && port.parse::<u16>().is_ok();
        fits.then(|| text.to_owned())
    });
    into.mounts = table.each("mounts", r#"absolute paths such as "/srv/data""#, |path| {
        path.starts_with('/').then(|| path.into())
    });
    into.webhook = table.text("webhook", r#"a URL ("https://…")"#, is_web_url);
}

fn kubernetes(mut table: Table<'_, '_>, into: &mut KubernetesSettings) {
    let must = r#"an absolute path, such as "/etc/toolwharf/kubeconfig""#;
    let path = table.text("kubeconfig", must, |text| Path::new(text).is_absolute());
    into.kubeconfig = path.map(Into::into);
    let must = "the name of a context, as `kubectl config get-contexts` lists it";
    into.context = table.text("context", must, |name| !name.is_empty());
    let plain = |name: &str| {
        let sound =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
        name.len() <= 253 && name.bytes().all(sound)
    };
    let named = |name: &str| !name.is_empty() && plain(name);
    let must = "the name of a namespace, in lower-case letters, digits and `-`";
    into.namespace = table.text("namespace", must, named);
    let must = r#"the name of a RuntimeClass, or "" for the cluster's default runtime"#;
    if let Some(class) = table.text("runtime_class", must, plain) {
        into.runtime_class = Some(class).filter(|class| !class.is_empty());
    }
    let must = "the name of a StorageClass, as `kubectl get storageclass` lists it";
    into.storage_class = table.text("storage_class", must, named);
    let must = r#"the name of an image with a shell, such as "busybox""#;
    into.probe_image = table.text("probe_image", must, |name| !name.is_empty());
    let must = r#"the id of a user that is not root, from 1 to 2000000000, or "image" for the user of each image"#;
    let user = table.value("user", must, |value| match value.as_str() {
        Some(word) => (word == "image").then_some(None),
        None => {
            let number = integer(value).and_then(|number| u32::try_from(number).ok());
            number
                .filter(|number| (1..KubernetesSettings::LOOKER).contains(number))
                .map(Some)
        }
    });
    set(&mut into.user, user);
    let must = "the name of a namespace, in lower-case letters, digits and `-`";
    into.watch_namespace = table.text("watch_namespace", must, named);
}

fn swarm(mut table: Table<'_, '_>, into: &mut SwarmSettings) {
    let must = r#"addresses of Docker daemons, such as "unix:///var/run/docker.sock" and "tcp://10.0.0.2:2376""#;
    into.daemons = table.each("daemons", must, |host| {
        let address = host.strip_prefix("tcp://");
        let has_port = |address: &str| {
            address
                .rsplit_once(':')
                .is_some_and(|(_, port)| port.parse::<u16>().is_ok())
        };
        (host.starts_with("unix:///") || address.is_some_and(has_port)).then(|| host.to_owned())
    });
    let must = r#"the absolute path of a directory with ca.pem, cert.pem and key.pem"#;
    let path = table.text("tls", must, |text| Path::new(text).is_absolute());
    into.tls = path.map(Into::into);
    let must = r#"placement constraints, such as "node.labels.zone == a""#;
    into.constraints = table.each("constraints", must, |text| {
        (text.contains("==") || text.contains("!=")).then(|| text.to_owned())
    });
    table.flag("gvisor", &mut into.gvisor);
    let must = "the name of a network, as `docker network ls` lists it; not `host` or `none`";
    let network = table.text("network", must, |name| {
        !["", "host", "none"].contains(&name)
    });
    set(&mut into.network, network);
    let must = "the name of a volume driver, as `docker info` lists it";
    into.volume_driver = table.text("volume_driver", must, |name| !name.is_empty());
    let must = r#"options of the driver, such as "type=nfs"; a "device" must contain `{name}`, such as "device=:/volumes/{name}""#;
    let options = table.each("volume_options", must, |text| {
        let (name, value) = text.split_once('=')?;
        // Without `{name}`, all volumes of all servers would be on the same device.
        let is_one_for_all = name == "device" && !value.contains("{name}");
        (!is_one_for_all).then(|| (name.to_owned(), value.to_owned()))
    });
    into.volume_options = options.into_iter().collect();
}

fn registry(
    walk: &Walk<'_>,
    key: &Spanned<std::borrow::Cow<'_, str>>,
    value: &Spanned<DeValue<'_>>,
    settings: &mut Settings,
) {
    let name: &str = key.get_ref();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if name.is_empty() || name.len() > 64 || !name.bytes().all(plain) || name == "built-in" {
        let must = "at most 64 letters, digits, `-`, `_`; not `built-in`: [registries.official]";
        let what = format!("invalid registry name `{}`", shape::printable(name));
        return walk.wrong(key.span(), &what, must);
    }
    let Some(items) = value.get_ref().as_table() else {
        let what = format!("`registries.{name}` is not a table");
        let must = format!("the header [registries.{name}] above its `url`");
        return walk.wrong(value.span(), &what, &must);
    };
    let mut table = Table::new(walk, items, "registries.*.");
    let must = r#""https://…", or "http://127.0.0.1:…" on this machine"#;
    match table.text("url", must, is_private_address) {
        Some(url) => drop(settings.registries.insert(name.to_owned(), url)),
        None if items.get("url").is_none() => {
            let what = format!("registry `{name}` has no `url`");
            walk.wrong(key.span(), &what, r#"url = "https://registry.example.com""#);
        }
        None => {}
    }
}

fn project(
    walk: &Walk<'_>,
    key: &Spanned<std::borrow::Cow<'_, str>>,
    value: &Spanned<DeValue<'_>>,
    settings: &mut Settings,
) {
    let id = match ProjectId::parse(key.get_ref()) {
        Ok(id) => id,
        Err(error) => {
            let write = "another name for the project";
            return walk.wrong(key.span(), &error.to_string(), write);
        }
    };
    let Some(items) = value.get_ref().as_table() else {
        return walk.wrong(
            value.span(),
            &format!("project `{id}` is not a table"),
            &format!("the header [projects.{id}] above its settings"),
        );
    };
    let mut table = Table::new(walk, items, "projects.*.");
    let mut view = ProjectView::default();
    if table.item("servers").is_some() {
        let servers = table.each_or("servers", "the name of a server", ServerName::parse);
        view.servers = Some(servers.into_iter().collect());
    }
    view.naming = table.word("naming", NamingPolicy::WORDS);
    view.start = agent::start(&mut table);
    view.disabled_tools = tools(&mut table, "disabled_tools");
    view.tools = table.word("tools", ToolMode::WORDS);
    view.listed_tools = tools(&mut table, "listed_tools");
    view.code = table.value("code", "`true` or `false`", |value| value.as_bool());
    view.max_result_tokens = result_tokens(&mut table);
    view.compact_results = table.value("compact_results", "`true` or `false`", |value| {
        value.as_bool()
    });
    settings.projects.insert(id, view);
}

fn result_tokens(table: &mut Table<'_, '_>) -> Option<usize> {
    table.value("max_result_tokens", Settings::RESULT_BOUNDS, |value| {
        integer(value).filter(|tokens| Settings::is_result_bound(*tokens))
    })
}

fn results(mut table: Table<'_, '_>, results: &mut ResultSettings) {
    table.time("keep", &mut results.keep);
    for (key, slot) in [
        ("max_bytes", &mut results.max_bytes),
        ("max_total_bytes", &mut results.max_total_bytes),
    ] {
        let must = r#"a number of bytes or a size from 1KiB to 1TiB, such as "64MiB""#;
        let bytes = table.value(key, must, |value| {
            size(value).filter(|bytes| (1 << 10..=1 << 40).contains(bytes))
        });
        set(slot, bytes);
    }
}

fn tools(table: &mut Table<'_, '_>, key: &'static str) -> BTreeSet<ToolRef> {
    let tools = table.each_or(key, r#""server/tool""#, ToolRef::parse);
    tools.into_iter().collect()
}
