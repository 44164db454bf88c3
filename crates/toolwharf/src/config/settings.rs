//! `toolwharf.toml`: Toolwharf's own settings.
//!
//! Unknown keys are errors, because nobody else keeps anything in this file. Durations are
//! written `500ms`, `30s`, `5m`, `2h`; sizes as a number of bytes or `64KiB`, `16MiB`.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use model::{
    AgentSettings, AuditBodies, Hidden, LogFormat, ModelApi, NamingPolicy, Pinning, ProjectId,
    ProjectView, Provider, ServerName, Settings, StartPolicy, ToolRef,
};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::extensions;
use super::interpolate::{Unknown, Variables};
use super::problem::{Problem, nearest};
use super::shape::printable;
use super::source::Source;
use crate::agents;

/// Every setting with its default: for the documentation and for `toolwharf.toml` itself.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the documentation and a test read it")
)]
pub(crate) const SAMPLE: &str = r#"# Settings of Toolwharf. All are optional; what stands here is the default.

# Address and port of the one listener. Loopback unless you mean to serve others.
listen = "127.0.0.1:6280"

# How tools of several servers are named: "prefix-on-conflict", "always-prefix",
# "last-wins" or "preserve" (then two tools of one name are an error).
naming = "prefix-on-conflict"

# How servers are started: "parallel", "sequential" (the first failure fails the start) or
# "lazy" (each at its first use).
start = "parallel"

# Origins, besides those of loopback, whose web pages may call.
# Written as "https://app.example.com".
allowed_origins = []

# Names, besides loopback and `listen`, under which clients may call, such as
# "tools.example.com"; without a port every port.
allowed_hosts = []

# Where state is kept; by default $XDG_DATA_HOME/toolwharf or ~/.local/share/toolwharf.
# data_dir = "/var/lib/toolwharf"

# The database; by default a SQLite file in the data directory. A URL with a password is better
# given as the variable TOOLWHARF_DATABASE_URL.
# database_url = "postgres://toolwharf@db.example.com/toolwharf"

# Whether MCP needs a key on loopback, too. Elsewhere it always does.
require_key = false

# What happens to a tool whose definition its server changes after it was first seen:
# "quarantine" (not offered until approved), "warn" or "off".
tool_pinning = "quarantine"

[extensions]
# Servers that all clients share are told that their client has these extensions, with these settings.
"io.modelcontextprotocol/ui" = { mimeTypes = ["text/html;profile=mcp-app"] }

[limits]
max_body_bytes = "16MiB"      # largest request body; more is answered with 413
max_bodies_bytes = "256MiB"   # request bodies of all connections; more is answered with 503
max_unread_bytes = "256MiB"   # what waits for clients to read it; then the slowest are cut off
max_connections = 16384       # client connections at a time; fewer if files are limited to fewer
max_line_bytes = "20MiB"      # longest line or event of a server
max_depth = 128               # deepest nesting of JSON in a message
max_sessions = 16384          # client sessions at a time
max_subscriptions = 16384     # resources that clients watch at a time
max_session_instances = 16    # instances of one server with sharing "session"
queue_len = 256               # calls that wait for one server
client_queue_len = 256        # messages that wait for one slow client
session_idle = "30m"          # an unused client session ends after this
server_idle = "30m"           # a server started at its first use is stopped when unused for this
held_call_ttl = "5m"          # how long a call waits for the client's input
max_held_calls = 1024         # calls that wait like that at a time
stop_grace = "10s"            # from the request to stop until the kill
drain = "30s"                 # how long calls in flight may finish at the end

[audit]
enabled = true                # tool calls are recorded before and after they are made
bodies = "digests"            # of arguments and results, or "full" texts without secrets
retention_days = 90           # 0 keeps records for ever

[hosting]
# What hosted servers may run on; each gets the strongest that works and suits it. "runc" is
# weaker than "gvisor", and only used where it stands here.
providers = ["gvisor", "firecracker", "e2b", "process"]
# docker_host = "unix:///var/run/docker.sock"
docker_network = "bridge"     # of servers that may reach everything
gvisor_runtime = "runsc"      # as Docker knows it
firecracker_runtime = "kata-fc"
runc_runtime = "runc"
# e2b_api_key = "${E2B_API_KEY}"   # without one there is no "e2b"; better not in plain text
e2b_url = "https://api.e2b.app"
# e2b_sandbox_url = "https://sandbox.example.com"   # where one address serves all sandboxes
mounts = []                   # paths of this host below which servers may mount something
# webhook = "https://alerts.example.com/toolwharf"   # health warnings are posted there

# The agent that `POST /api/v1/chat` talks to; there is none without a model.
# [agent]
# api = "anthropic"           # or "openai": chat completions, which local model servers speak too
# model = "claude-sonnet-4-5"
# api_key = "${ANTHROPIC_API_KEY}"   # without it: the secret or the variable of that name
# base_url = "https://api.anthropic.com"
# system = "You keep recipes."       # or system_file = "prompt.md", beside this file
# max_tokens = 8192           # of one answer
# max_turns = 20              # requests to the model for one message
# max_chats = 32              # at a time; one more is answered with 503
# start = "sequential"        # a server that does not start fails the chat; with "parallel" it is left out
# native = ["display_recipe"] # tools of Toolwharf's own
# [agent.prices."claude-sonnet-4-5"]   # of a million tokens
# input = 3.0
# output = 15.0
# cache_read = 0.3
# cache_write = 3.75

[log]
level = "info"                # or a filter such as "info,engine=debug"
format = "text"               # or "json"

# What callers of one project see. Without a section they see every server.
# [projects.my-project]
# servers = ["github", "time"]
# naming = "preserve"
# disabled_tools = ["github/delete_repository"]
"#;

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

/// Longest system prompt, in bytes.
const SYSTEM_BYTES: usize = 256 << 10;

struct Walk<'w> {
    source: &'w Source,
    variables: &'w Variables<'w>,
    problems: &'w mut Vec<Problem>,
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
                None => self.wrong(
                    item.span(),
                    &format!("bad `{key}`"),
                    r#"a time such as "500ms", "30s", "5m" or "2h", at most a week"#,
                ),
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

    /// How the servers that an agent uses are started at its first chat.
    fn agent_start(&mut self, table: &DeTable<'_>) -> Option<StartPolicy> {
        let (word, span) = self.string(table, "start")?;
        match word.as_str() {
            "sequential" => Some(StartPolicy::Sequential),
            "parallel" => Some(StartPolicy::Parallel),
            _ => {
                self.wrong(span, "bad `start`", "`sequential` or `parallel`");
                None
            }
        }
    }

    fn agent(&mut self, table: &DeTable<'_>) -> Option<AgentSettings> {
        let mut into = AgentSettings::default();
        let known = [
            "api",
            "model",
            "api_key",
            "base_url",
            "system",
            "system_file",
            "max_tokens",
            "max_turns",
            "max_chats",
            "start",
            "native",
            "prices",
        ];
        self.unknown_keys(table, "agent.", &known);
        if let Some((word, span)) = self.string(table, "api") {
            match word.as_str() {
                "anthropic" => into.api = ModelApi::Anthropic,
                "openai" => into.api = ModelApi::OpenAi,
                _ => self.wrong(span, "bad `api`", "`anthropic` or `openai`"),
            }
        }
        into.start = self.agent_start(table).unwrap_or(into.start);
        into.api_key = self.secret(table, "api_key");
        if let Some((url, span)) = self.string(table, "base_url") {
            if url.starts_with("http://") || url.starts_with("https://") {
                into.base_url = Some(url);
            } else {
                self.wrong(span, "bad `base_url`", r#""https://…""#);
            }
        }
        into.system = self.string(table, "system").map(|(text, _)| text);
        if let Some((file, span)) = self.string(table, "system_file") {
            let path = self
                .source
                .path
                .parent()
                .unwrap_or(Path::new(""))
                .join(file);
            let short = |text: &String| text.len() <= SYSTEM_BYTES;
            match std::fs::read_to_string(&path).ok().filter(short) {
                Some(text) => into.system = Some(text),
                None => {
                    let what = format!(
                        "{} cannot be read, is no text, or is too long",
                        path.display()
                    );
                    self.wrong(
                        span,
                        &what,
                        "a text file of at most 256 KiB, beside this one",
                    );
                }
            }
        }
        for (key, most) in [
            ("max_tokens", 1_000_000),
            ("max_turns", 1_000),
            ("max_chats", 10_000),
        ] {
            let Some(item) = table.get(key) else { continue };
            let count = integer(item.get_ref()).and_then(|n| u32::try_from(n).ok());
            match count.filter(|count| (1..=most).contains(count)) {
                Some(count) => match key {
                    "max_turns" => into.max_turns = count,
                    "max_chats" => into.max_chats = count as usize,
                    _ => into.max_tokens = Some(count),
                },
                None => self.wrong(
                    item.span(),
                    &format!("bad `{key}`"),
                    &format!("a whole number from 1 to {most}"),
                ),
            }
        }
        for (name, span) in self.strings(table, "native") {
            if agents::NATIVE.contains(&name.as_str()) {
                into.native.insert(name);
            } else {
                let known = agents::NATIVE.join("`, `");
                self.wrong(span, "bad `native`", &format!("some of `{known}`"));
            }
        }
        if let Some(prices) = self.table(table, "prices") {
            for (model, item) in prices {
                let Some(price) = item.get_ref().as_table() else {
                    self.wrong(
                        item.span(),
                        "bad price",
                        "a table with `input` and `output`",
                    );
                    continue;
                };
                let kinds = ["input", "output", "cache_read", "cache_write"];
                self.unknown_keys(price, "agent.prices.*.", &kinds);
                let of = kinds.map(|kind| {
                    price
                        .get(kind)
                        .map(|item| (item.span(), micros(item.get_ref())))
                });
                let mut all = [0; 4];
                for (slot, given) in all.iter_mut().zip(of) {
                    match given {
                        None => {}
                        Some((_, Some(micros))) => *slot = micros,
                        Some((span, None)) => {
                            self.wrong(span, "bad price", "a number, such as 3.0")
                        }
                    }
                }
                into.prices.insert(model.get_ref().to_string(), all);
            }
        }
        match self.string(table, "model") {
            Some((model, _)) if !model.trim().is_empty() => {
                into.model = model;
                Some(into)
            }
            _ => {
                let span = table.values().next().map_or(0..0, Spanned::span);
                self.wrong(
                    span,
                    "`[agent]` has no `model`",
                    r#"`model = "claude-sonnet-4-5"`, for instance"#,
                );
                None
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

    fn unknown_keys(&mut self, table: &DeTable<'_>, prefix: &str, known: &[&str]) {
        let mut unknown: Vec<_> = table
            .keys()
            .filter(|key| !known.contains(&key.get_ref().as_ref()))
            .collect();
        unknown.sort_by_key(|key| key.span().start);
        for key in unknown {
            let what = format!(
                "`{prefix}{}` is not a known setting",
                printable(key.get_ref())
            );
            let help = match nearest(key.get_ref(), known) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("known are {}", known.join(", ")),
            };
            self.problems
                .push(Problem::at(self.source, key.span(), what).help(help));
        }
    }

    /// Whether the key was there and valid.
    fn word<P: FromStr>(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
        words: &[&str],
        slot: &mut P,
    ) -> bool {
        let Some((word, span)) = self.string(table, key) else {
            return false;
        };
        match word.parse() {
            Ok(value) => {
                *slot = value;
                true
            }
            Err(_) => {
                self.wrong(
                    span,
                    &format!("bad `{key}`"),
                    &format!("one of `{}`", words.join("`, `")),
                );
                false
            }
        }
    }

    fn flag(&mut self, table: &DeTable<'_>, key: &str, slot: &mut bool) {
        let Some(item) = table.get(key) else { return };
        match item.get_ref().as_bool() {
            Some(value) => *slot = value,
            None => self.wrong(item.span(), &format!("bad `{key}`"), "`true` or `false`"),
        }
    }

    fn string(&mut self, table: &DeTable<'_>, key: &str) -> Option<(String, Range<usize>)> {
        let item = table.get(key)?;
        match item.get_ref().as_str() {
            Some(text) => Some((text.to_owned(), item.span())),
            None => {
                self.wrong(
                    item.span(),
                    &format!("`{key}` is not a string"),
                    "it in double quotes",
                );
                None
            }
        }
    }

    /// A text that no problem shows, variables filled in.
    fn secret(&mut self, table: &DeTable<'_>, key: &str) -> Option<Hidden> {
        let item = table.get(key)?;
        let Some(text) = item.get_ref().as_str() else {
            let problem = Problem::at(self.source, item.span(), format!("`{key}` is not a string"));
            self.problems
                .push(problem.help("write it in double quotes, or better a variable: \"${…}\""));
            return None;
        };
        match self.variables.fill(text, Unknown::Refuse) {
            Ok(text) if text.is_empty() => {
                let problem = Problem::at(self.source, item.span(), format!("`{key}` is empty"));
                self.problems
                    .push(problem.help("leave it out, or set the variable"));
                None
            }
            Ok(text) => Some(Hidden::new(text)),
            Err(errors) => {
                for error in errors {
                    let what = format!("{error} (`{key}`)");
                    let problem = Problem::at(self.source, item.span(), what);
                    self.problems.push(problem.help(error.help()));
                }
                None
            }
        }
    }

    fn strings(&mut self, table: &DeTable<'_>, key: &str) -> Vec<(String, Range<usize>)> {
        let Some(item) = table.get(key) else {
            return Vec::new();
        };
        let Some(array) = item.get_ref().as_array() else {
            self.wrong(
                item.span(),
                &format!("`{key}` is not a list"),
                &format!(r#"{key} = ["one", "two"]"#),
            );
            return Vec::new();
        };
        let mut out = Vec::new();
        for item in array {
            match item.get_ref().as_str() {
                Some(text) => out.push((text.to_owned(), item.span())),
                None => self.wrong(
                    item.span(),
                    &format!("`{key}` holds something that is not a string"),
                    "it in double quotes",
                ),
            }
        }
        out
    }

    fn table<'t, 'i>(&mut self, table: &'t DeTable<'i>, key: &str) -> Option<&'t DeTable<'i>> {
        let item = table.get(key)?;
        let found = item.get_ref().as_table();
        if found.is_none() {
            self.wrong(
                item.span(),
                &format!("`{key}` is not a table"),
                &format!("[{key}] above its settings"),
            );
        }
        found
    }

    fn wrong(&mut self, span: Range<usize>, what: &str, write: &str) {
        let problem = Problem::showing(self.source, span, what);
        self.problems.push(problem.help(format!("write {write}")));
    }
}

/// The parser's message up to where it quotes the text: only punctuation is quoted on.
fn own_words(message: &str) -> String {
    let mut out = String::new();
    for (i, part) in message
        .lines()
        .next()
        .unwrap_or_default()
        .split('`')
        .enumerate()
    {
        if i % 2 == 0 {
            out.push_str(part);
        } else if part.chars().any(char::is_alphanumeric) {
            break;
        } else {
            out.push_str(&format!("`{part}`"));
        }
    }
    out.trim().to_owned()
}

fn integer(value: &DeValue<'_>) -> Option<usize> {
    let integer = value.as_integer()?;
    usize::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// An amount of money in millionths.
fn micros(value: &DeValue<'_>) -> Option<u64> {
    let amount: f64 = match value {
        DeValue::Integer(_) => integer(value)? as f64,
        DeValue::Float(float) => float.as_str().parse().ok()?,
        _ => return None,
    };
    (0.0..=1e6)
        .contains(&amount)
        .then(|| (amount * 1e6).round() as u64)
}

fn size(value: &DeValue<'_>) -> Option<usize> {
    let Some(text) = value.as_str() else {
        return integer(value);
    };
    let (number, unit) = split_unit(text);
    let factor: usize = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(factor)
}

fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = split_unit(text);
    let factor: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let ms = number.parse::<u64>().ok()?.checked_mul(factor)?;
    // Longer is a slip, and sums of deadlines must not overflow.
    (ms <= 7 * 86_400_000).then(|| Duration::from_millis(ms))
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

fn is_address(text: &str) -> bool {
    if text.parse::<std::net::SocketAddr>().is_ok() {
        return true;
    }
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty()
            && host
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-')
            && port.parse::<u16>().is_ok()
    })
}

/// An address that nobody else listens to: TLS, or this machine.
fn is_private_address(text: &str) -> bool {
    let Ok(url) = url::Url::parse(text) else {
        return false;
    };
    let loopback = match url.host() {
        Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
        Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => return false,
    };
    let bare = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    bare && (url.scheme() == "https" || url.scheme() == "http" && loopback)
}

fn is_host(text: &str) -> bool {
    url::Url::parse(&format!("http://{text}/")).is_ok_and(|url| {
        url.path() == "/"
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
    }) && !text.contains(['*', '/', '@', '#', '?'])
}

fn origin(text: &str) -> Option<String> {
    let url = url::Url::parse(text).ok()?;
    let rest = text.split_once("://")?.1;
    let bare = url.host().is_some()
        && !rest
            .trim_end_matches('/')
            .contains(['/', '?', '#', '@', '*']);
    (bare && url.origin().is_tuple()).then(|| url.origin().ascii_serialization())
}
