//! `toolwharf.toml`: Toolwharf's own settings.
//!
//! Unknown keys are errors, because nobody else keeps anything in this file. Durations are
//! written `500ms`, `30s`, `5m`, `2h`; sizes as a number of bytes or `64KiB`, `16MiB`.

mod agent;
mod sample;
mod values;
mod walk;

use std::{collections::BTreeSet, path::Path, time::Duration};

use model::{
    AuditBodies, LogFormat, NamingPolicy, Packages, Pinning, ProjectId, ProjectView, Provider,
    ServerName, Settings, StartPolicy, ToolRef,
};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use self::{
    values::{duration, integer, is_address, is_host, is_private_address, origin, own_words, size},
    walk::Walk,
};
use super::{extensions, interpolate::Variables, problem::Problem, source::Source};

#[cfg(test)]
pub(crate) use self::sample::SAMPLE;

const TIME: &str = r#"a time such as "500ms", "30s", "5m" or "2h", at most a week"#;

/// Reads the settings; what is wrong goes to `problems`, and the default stands in for it.
/// `variables` fill in what may be a secret.
pub(crate) fn parse(
    source: &Source,
    variables: &Variables<'_>,
    problems: &mut Vec<Problem>,
) -> Settings {
    let (table, errors) = DeTable::parse_recoverable(&source.text);
    for error in &errors {
        let span = error.span().unwrap_or(0..0);
        let what = format!("invalid TOML: {}", own_words(error.message()));
        problems.push(Problem::at(source, span, what).help("write `key = value`, one to a line"));
    }
    let mut settings = Settings::default();
    if !errors.is_empty() {
        return settings;
    }
    let mut walk = Walk {
        source,
        variables,
        problems,
    };
    walk.root(table.get_ref(), &mut settings);
    settings
}

type Item<'v, 'i> = &'v Spanned<DeValue<'i>>;

impl Walk<'_> {
    fn root(&mut self, root: &DeTable<'_>, settings: &mut Settings) {
        let known = [
            "listen",
            "naming",
            "start",
            "allowed_origins",
            "allowed_hosts",
            "data_dir",
            "database_url",
            "require_key",
            "tool_pinning",
            "extensions",
            "limits",
            "breaker",
            "defaults",
            "audit",
            "hosting",
            "agent",
            "log",
            "projects",
        ];
        self.unknown_keys(root, "", &known);
        if let Some((text, span)) = self.string(root, "listen") {
            if is_address(&text) {
                settings.listen = text;
            } else {
                self.wrong(
                    span,
                    "bad `listen`",
                    r#"an address and a port, such as "127.0.0.1:6280""#,
                );
            }
        }
        self.word(root, "naming", NamingPolicy::WORDS, &mut settings.naming);
        self.word(root, "start", StartPolicy::WORDS, &mut settings.start);
        self.word(root, "tool_pinning", Pinning::WORDS, &mut settings.pinning);
        self.flag(root, "require_key", &mut settings.require_key);
        if let Some((url, span)) = self.string(root, "database_url") {
            if url.starts_with("postgres://") || url.starts_with("postgresql://") {
                settings.database_url = Some(url);
            } else {
                self.wrong(
                    span,
                    "bad `database_url`",
                    r#"one such as "postgres://user@host/database""#,
                );
            }
        }
        for (text, span) in self.strings(root, "allowed_origins") {
            match origin(&text) {
                Some(origin) => {
                    settings.allowed_origins.insert(origin);
                }
                None => self.wrong(
                    span,
                    "bad origin in `allowed_origins`",
                    r#"one such as "https://app.example.com", without a path or `*`"#,
                ),
            }
        }
        for (text, span) in self.strings(root, "allowed_hosts") {
            if is_host(&text) {
                settings.allowed_hosts.insert(text.to_ascii_lowercase());
            } else {
                self.wrong(
                    span,
                    "bad name in `allowed_hosts`",
                    r#"one such as "tools.example.com" or "tools.example.com:8080""#,
                );
            }
        }
        if let Some((text, span)) = self.string(root, "data_dir") {
            let path = Path::new(&text);
            if path.is_absolute() {
                settings.data_dir = Some(path.to_owned());
            } else {
                self.wrong(
                    span,
                    "`data_dir` is not an absolute path",
                    r#"one such as "/var/lib/toolwharf""#,
                );
            }
        }
        if let Some(limits) = self.table(root, "limits") {
            self.limits(limits, settings);
        }
        if let Some(breaker) = self.table(root, "breaker") {
            self.unknown_keys(breaker, "breaker.", &["failures", "cooldown"]);
            let into = &mut settings.breaker;
            if let Some(item) = breaker.get("failures") {
                match integer(item.get_ref()).and_then(|count| u32::try_from(count).ok()) {
                    Some(count @ 1..=1000) => into.failures = count,
                    _ => self.wrong(
                        item.span(),
                        "bad `failures`",
                        "a whole number from 1 to 1000",
                    ),
                }
            }
            if let Some(item) = breaker.get("cooldown") {
                match item.get_ref().as_str().and_then(duration) {
                    Some(time) => into.cooldown = time,
                    None => self.wrong(item.span(), "bad `cooldown`", TIME),
                }
            }
        }
        if let Some(defaults) = self.table(root, "defaults") {
            self.unknown_keys(defaults, "defaults.", &["sandbox", "packages"]);
            let into = &mut settings.defaults;
            self.flag(defaults, "sandbox", &mut into.sandbox);
            self.word(defaults, "packages", Packages::WORDS, &mut into.packages);
        }
        if let Some(hosting) = self.table(root, "hosting") {
            self.hosting(hosting, settings);
        }
        if let Some(agent) = self.table(root, "agent") {
            settings.agent = self.agent(agent);
        }
        if let Some(audit) = self.table(root, "audit") {
            self.unknown_keys(audit, "audit.", &["enabled", "bodies", "retention_days"]);
            let into = &mut settings.audit;
            self.flag(audit, "enabled", &mut into.enabled);
            self.word(audit, "bodies", AuditBodies::WORDS, &mut into.bodies);
            if let Some(item) = audit.get("retention_days") {
                match integer(item.get_ref()) {
                    Some(0) => into.retention = None,
                    Some(days @ 1..=36_500) => {
                        into.retention = Some(Duration::from_secs(days as u64 * 24 * 60 * 60));
                    }
                    _ => self.wrong(
                        item.span(),
                        "bad `retention_days`",
                        "a whole number of days, or 0 to keep records for ever",
                    ),
                }
            }
        }
        if let Some(table) = self.table(root, "extensions") {
            settings.extensions.clear();
            for (name, value) in table {
                match extensions::to_json(value.get_ref()) {
                    Some(json) if json.starts_with('{') => {
                        settings.extensions.insert(name.get_ref().to_string(), json);
                    }
                    _ => self.wrong(
                        value.span(),
                        "bad settings of an extension",
                        r#"a table, such as `"com.example/extension" = {}`"#,
                    ),
                }
            }
        }
        if let Some(log) = self.table(root, "log") {
            self.unknown_keys(log, "log.", &["level", "format"]);
            if let Some((level, _)) = self.string(log, "level") {
                settings.log.level = level;
            }
            if let Some((word, span)) = self.string(log, "format") {
                match word.as_str() {
                    "text" => settings.log.format = LogFormat::Text,
                    "json" => settings.log.format = LogFormat::Json,
                    _ => self.wrong(span, "bad `format`", "`text` or `json`"),
                }
            }
        }
        if let Some(projects) = self.table(root, "projects") {
            for (key, value) in projects {
                self.project(key, value, settings);
            }
        }
    }

    fn limits(&mut self, table: &DeTable<'_>, settings: &mut Settings) {
        let limits = &mut settings.limits;
        let sizes = [
            ("max_body_bytes", &mut limits.max_body_bytes, 1024),
            ("max_bodies_bytes", &mut limits.max_bodies_bytes, 1 << 20),
            ("max_unread_bytes", &mut limits.max_unread_bytes, 1 << 20),
            ("max_line_bytes", &mut limits.max_line_bytes, 1024),
        ];
        let counts = [
            ("max_depth", &mut limits.max_depth, 8, 1024),
            ("max_connections", &mut limits.max_connections, 1, 1_000_000),
            ("max_sessions", &mut limits.max_sessions, 1, 1_000_000),
            (
                "max_subscriptions",
                &mut limits.max_subscriptions,
                1,
                1_000_000,
            ),
            (
                "max_session_instances",
                &mut limits.max_session_instances,
                1,
                10_000,
            ),
            ("queue_len", &mut limits.queue_len, 1, 1_000_000),
            (
                "client_queue_len",
                &mut limits.client_queue_len,
                1,
                1_000_000,
            ),
            ("max_held_calls", &mut limits.max_held_calls, 1, 1_000_000),
        ];
        let durations = [
            ("session_idle", &mut limits.session_idle),
            ("server_idle", &mut limits.server_idle),
            ("held_call_ttl", &mut limits.held_call_ttl),
            ("stop_grace", &mut limits.stop_grace),
            ("drain", &mut limits.drain),
        ];
        let known: Vec<&str> = (sizes.iter().map(|s| s.0))
            .chain(counts.iter().map(|c| c.0))
            .chain(durations.iter().map(|d| d.0))
            .collect();
        self.unknown_keys(table, "limits.", &known);
        for (key, slot, least) in sizes {
            let Some(item) = table.get(key) else { continue };
            match size(item.get_ref()) {
                Some(bytes) if (least..=1 << 32).contains(&bytes) => *slot = bytes,
                _ => self.wrong(
                    item.span(),
                    &format!("bad `{key}`"),
                    r#"a number of bytes, or a size such as "16MiB""#,
                ),
            }
        }
        for (key, slot, least, most) in counts {
            let Some(item) = table.get(key) else { continue };
            match integer(item.get_ref()) {
                Some(count) if (least..=most).contains(&count) => *slot = count,
                _ => self.wrong(
                    item.span(),
                    &format!("bad `{key}`"),
                    &format!("a whole number from {least} to {most}"),
                ),
            }
        }
        for (key, slot) in durations {
            let Some(item) = table.get(key) else { continue };
            match item.get_ref().as_str().and_then(duration) {
                Some(time) => *slot = time,
                None => self.wrong(item.span(), &format!("bad `{key}`"), TIME),
            }
        }
    }

    fn hosting(&mut self, table: &DeTable<'_>, settings: &mut Settings) {
        let into = &mut settings.hosting;
        let runtimes = [
            (Provider::Gvisor, "gvisor_runtime"),
            (Provider::Firecracker, "firecracker_runtime"),
            (Provider::Runc, "runc_runtime"),
        ];
        let mut known = vec![
            "providers",
            "docker_host",
            "docker_network",
            "e2b_api_key",
            "e2b_url",
            "e2b_sandbox_url",
            "mounts",
            "webhook",
        ];
        known.extend(runtimes.map(|(_, key)| key));
        self.unknown_keys(table, "hosting.", &known);
        if table.contains_key("providers") {
            into.providers.clear();
            for (word, span) in self.strings(table, "providers") {
                match word.parse() {
                    Ok(provider) => {
                        into.providers.insert(provider);
                    }
                    Err(_) => self.wrong(
                        span,
                        "bad `providers`",
                        &format!("some of `{}`", Provider::WORDS.join("`, `")),
                    ),
                }
            }
        }
        if let Some((host, span)) = self.string(table, "docker_host") {
            if host.starts_with("unix:///") || host.starts_with("tcp://127.0.0.1:") {
                into.docker_host = Some(host);
            } else {
                self.wrong(
                    span,
                    "bad `docker_host`",
                    r#""unix:///path/of/docker.sock""#,
                );
            }
        }
        for (provider, key) in runtimes {
            if let Some((name, span)) = self.string(table, key) {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
                if !name.is_empty() && name.bytes().all(plain) {
                    into.docker_runtimes.insert(provider, name);
                } else {
                    let must = "the name of a runtime, as `docker info` lists it";
                    self.wrong(span, &format!("bad `{key}`"), must);
                }
            }
        }
        if let Some((name, span)) = self.string(table, "docker_network") {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            // These would share namespaces with the host or with another container.
            if !name.is_empty() && name != "host" && name.bytes().all(plain) {
                into.docker_network = name;
            } else {
                let must = "the name of a network, as `docker network ls` lists it; not `host`";
                self.wrong(span, "bad `docker_network`", must);
            }
        }
        into.e2b_api_key = self.secret(table, "e2b_api_key");
        for (key, slot) in [
            ("e2b_url", &mut into.e2b_url),
            (
                "e2b_sandbox_url",
                into.e2b_sandbox_url.get_or_insert_default(),
            ),
        ] {
            if let Some((url, span)) = self.string(table, key) {
                match is_private_address(&url) {
                    true => *slot = url,
                    false => {
                        let must =
                            r#""https://…"; a key and what servers say do not go over plain http"#;
                        self.wrong(span, &format!("bad `{key}`"), must);
                    }
                }
            }
        }
        into.e2b_sandbox_url = into.e2b_sandbox_url.take().filter(|url| !url.is_empty());
        for (path, span) in self.strings(table, "mounts") {
            if path.starts_with('/') {
                into.mounts.push(path.into());
            } else {
                self.wrong(span, "bad `mounts`", "absolute paths of this host");
            }
        }
        if let Some((url, span)) = self.string(table, "webhook") {
            if url.starts_with("http://") || url.starts_with("https://") {
                into.webhook = Some(url);
            } else {
                self.wrong(span, "bad `webhook`", r#""https://…""#);
            }
        }
    }

    fn project(
        &mut self,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        value: Item<'_, '_>,
        settings: &mut Settings,
    ) {
        let id = match ProjectId::parse(key.get_ref()) {
            Ok(id) => id,
            Err(error) => {
                return self.wrong(
                    key.span(),
                    &error.to_string(),
                    "another name for the project",
                );
            }
        };
        let Some(table) = value.get_ref().as_table() else {
            return self.wrong(
                value.span(),
                &format!("project `{id}` is not a table"),
                &format!("[projects.{id}] above its settings"),
            );
        };
        self.unknown_keys(
            table,
            "projects.*.",
            &["servers", "naming", "start", "disabled_tools"],
        );
        let mut view = ProjectView::default();
        if table.contains_key("servers") {
            let mut servers = BTreeSet::new();
            for (text, span) in self.strings(table, "servers") {
                match ServerName::parse(&text) {
                    Ok(name) => {
                        servers.insert(name);
                    }
                    Err(error) => self.wrong(span, &error.to_string(), "the name of a server"),
                }
            }
            view.servers = Some(servers);
        }
        let mut naming = NamingPolicy::default();
        if self.word(table, "naming", NamingPolicy::WORDS, &mut naming) {
            view.naming = Some(naming);
        }
        view.start = self.agent_start(table);
        for (text, span) in self.strings(table, "disabled_tools") {
            match ToolRef::parse(&text) {
                Ok(tool) => {
                    view.disabled_tools.insert(tool);
                }
                Err(error) => self.wrong(span, &error.to_string(), r#""server/tool""#),
            }
        }
        settings.projects.insert(id, view);
    }
}
