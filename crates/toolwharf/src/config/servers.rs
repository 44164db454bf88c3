//! From one file's text to server specifications, reporting everything that is wrong.
//!
//! Keys of an entry: `command`, `args`, `env`, `cwd`, `type` or `transport`, `url` (also
//! `serverUrl`, `httpUrl`), `headers`, `disabled` or `enabled`, `timeout`, `disabledTools`
//! (also `excludeTools`), and ours under `toolwharf`. Other keys belong to other clients and
//! are left alone; a warning follows if one looks like a slip of the pen.
//!
//! `timeout` is in milliseconds, as in Claude Code and Gemini CLI. Below 1000 it is in
//! seconds, as in Cline: nobody means half a second, and Claude Code ignores such values.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use jsonc_parser::ast::{Object, ObjectProp, Value};
use jsonc_parser::common::Ranged;
use model::{EraPolicy, NativeName, ProjectId, ServerName, ServerSpec, Sharing, Transport};

use super::interpolate::{self, Unknown, Variables};
use super::problem::{Problem, nearest};
use super::shape::{self, duplicates, kind, printable, span};
use super::source::Source;

/// A server and where its name stands.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) spec: ServerSpec,
    pub(crate) offset: usize,
}

/// What one file says.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) servers: Vec<Parsed>,
    pub(crate) problems: Vec<Problem>,
    pub(crate) warnings: Vec<Problem>,
}

const KNOWN: &[&str] = &[
    "command",
    "args",
    "env",
    "cwd",
    "type",
    "transport",
    "url",
    "serverUrl",
    "httpUrl",
    "headers",
    "disabled",
    "enabled",
    "timeout",
    "disabledTools",
    "excludeTools",
    "toolwharf",
];
/// Keys of other clients that are close to one of ours, or not read and worth a word.
const FOREIGN: &[&str] = &[
    "name",
    "trust",
    "tools",
    "alwaysAllow",
    "autoApprove",
    "source",
];
const OURS: &[&str] = &[
    "maxConcurrency",
    "sharing",
    "era",
    "callTimeoutMs",
    "startTimeoutMs",
    "projects",
    "disabledTools",
];
const COMMAND_SLIPS: &[&str] = &[
    "cmd",
    "exec",
    "executable",
    "program",
    "run",
    "path",
    "commands",
];
const URL_SLIPS: &[&str] = &[
    "uri", "endpoint", "href", "baseUrl", "server", "address", "link",
];
const TRANSPORTS: &str = "`stdio`, `http` (also `streamable-http`) or `sse`";
/// A day: more is a slip of the unit.
const MAX_TIMEOUT_MS: f64 = 86_400_000.0;

pub(crate) fn parse(source: &Source, variables: &Variables<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    let mut warnings = Vec::new();
    let mut servers = Vec::new();
    shape::servers(source, &mut outcome.problems, |prop, problems| {
        let mut entry = Entry {
            source,
            variables,
            server: printable(prop.name.as_str()),
            active: true,
            problems: Vec::new(),
            warnings: Vec::new(),
        };
        let spec = entry.read(prop);
        if entry.problems.is_empty()
            && let Some(spec) = spec
        {
            servers.push(Parsed {
                spec,
                offset: prop.name.start(),
            });
        }
        problems.append(&mut entry.problems);
        warnings.append(&mut entry.warnings);
    });
    outcome.servers = servers;
    outcome.warnings = warnings;
    outcome
}

struct Entry<'e> {
    source: &'e Source,
    variables: &'e Variables<'e>,
    server: String,
    /// Variables of a disabled server need not be set.
    active: bool,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl Entry<'_> {
    fn read(&mut self, prop: &ObjectProp<'_>) -> Option<ServerSpec> {
        let name = match ServerName::parse(prop.name.as_str()) {
            Ok(name) => Some(name),
            Err(error) => {
                let at = span(&prop.name);
                self.report(
                    Problem::at(self.source, at, error.to_string()).help("rename the server"),
                );
                None
            }
        };
        let Value::Object(entry) = &prop.value else {
            let what = format!(
                "server `{}` is {}, not an object",
                self.server,
                kind(&prop.value)
            );
            let help = r#"write {"command": "…", "args": […]} or {"url": "…"}"#;
            self.report(Problem::at(self.source, span(&prop.value), what).help(help));
            return None;
        };
        duplicates(self.source, entry, &mut self.problems);
        if is_extension(entry) {
            let what = format!(
                "server `{}` comes from an editor extension and is left out",
                self.server
            );
            let warning = Problem::at(self.source, span(&prop.name), what)
                .help("give it a `command` or a `url` to have it here too");
            self.warnings.push(warning);
            return None;
        }
        self.unknown_keys(entry);

        let enabled = self.enabled(entry);
        self.active = enabled;
        let transport = self.transport(prop, entry);
        let mut spec = ServerSpec::new(name?, transport?);
        spec.enabled = enabled;
        for key in ["disabledTools", "excludeTools"] {
            spec.disabled_tools.extend(self.tools(entry, key));
        }
        if let Some(timeout) = self.timeout(entry, "timeout", true) {
            spec.call_timeout = timeout;
        }
        self.ours(entry, &mut spec);
        Some(spec)
    }

    fn report(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    fn unknown_keys(&mut self, entry: &Object<'_>) {
        for prop in &entry.properties {
            let key = prop.name.as_str();
            if KNOWN.contains(&key) || FOREIGN.contains(&key) {
                continue;
            }
            let server = &self.server;
            let warning = |what: String, help: String| {
                Problem::at(self.source, span(&prop.name), what).help(help)
            };
            if key == "envFile" {
                self.warnings.push(warning(
                    format!("`envFile` of server `{server}` is not read"),
                    "list the variables in `env`, as `\"NAME\": \"${NAME}\"`".to_owned(),
                ));
            } else if let Some(known) = nearest(key, KNOWN) {
                self.warnings.push(warning(
                    format!(
                        "`{}` of server `{server}` is not a known key",
                        printable(key)
                    ),
                    format!("did you mean `{known}`?"),
                ));
            }
        }
    }

    fn enabled(&mut self, entry: &Object<'_>) -> bool {
        let enabled = self.boolean(entry, "enabled");
        let disabled = self.boolean(entry, "disabled");
        if let (Some(enabled), Some(disabled)) = (enabled, disabled)
            && enabled == disabled
            && let Some(prop) = entry.get("disabled")
        {
            let what = format!(
                "`enabled` and `disabled` of server `{}` contradict each other",
                self.server
            );
            self.report(
                Problem::showing(self.source, span(&prop.value), what).help("keep one of the two"),
            );
        }
        enabled.unwrap_or(true) && !disabled.unwrap_or(false)
    }

    fn transport(&mut self, prop: &ObjectProp<'_>, entry: &Object<'_>) -> Option<Transport> {
        let url = ["url", "serverUrl", "httpUrl"]
            .iter()
            .find_map(|key| entry.get(key));
        let command = entry.get("command");
        let word = entry.get("type").or_else(|| entry.get("transport"));
        let named = match word {
            Some(word) => Some(self.transport_word(word)?),
            None => None,
        };
        match (named, command, url) {
            (Some("stdio"), Some(command), _) | (None, Some(command), None) => {
                self.stdio(entry, command)
            }
            (Some("sse"), _, Some(url)) => self
                .remote(entry, url)
                .map(|(url, headers)| Transport::Sse { url, headers }),
            (Some(_), _, Some(url)) | (None, None, Some(url)) => self
                .remote(entry, url)
                .map(|(url, headers)| Transport::Http { url, headers }),
            (None, Some(command), Some(_)) => {
                let what = format!("server `{}` has both a `command` and a `url`", self.server);
                let help =
                    "remove one, or say which with `\"type\": \"stdio\"` or `\"type\": \"http\"`";
                self.report(Problem::at(self.source, span(&command.name), what).help(help));
                None
            }
            (Some("stdio"), None, _) => self.missing(
                prop,
                entry,
                "command",
                COMMAND_SLIPS,
                r#""command": "npx", "args": ["-y", "…"]"#,
            ),
            (Some(_), _, None) => {
                self.missing(prop, entry, "url", URL_SLIPS, r#""url": "https://…""#)
            }
            (None, None, None) => self.neither(prop, entry),
        }
    }

    /// `stdio`, `http` or `sse`.
    fn transport_word(&mut self, prop: &ObjectProp<'_>) -> Option<&'static str> {
        let Value::StringLit(text) = &prop.value else {
            self.wrong_type(prop, "a string", &format!("write {TRANSPORTS}"));
            return None;
        };
        let folded = text.value.to_lowercase().replace(['-', '_', ' '], "");
        let meant = match folded.as_str() {
            "stdio" => return Some("stdio"),
            "http" | "streamablehttp" => return Some("http"),
            "sse" => return Some("sse"),
            "local" | "command" | "process" | "pipe" => Some("stdio"),
            "remote" | "https" | "url" | "streamable" => Some("http"),
            "httpsse" | "ssehttp" | "eventstream" => Some("sse"),
            _ => nearest(&text.value, &["stdio", "http", "streamable-http", "sse"]),
        };
        let what = format!(
            "unknown transport `{}` of server `{}`",
            printable(&text.value),
            self.server
        );
        let help = match meant {
            Some(meant) => format!("did you mean `{meant}`? Known are {TRANSPORTS}"),
            None => format!("write {TRANSPORTS}"),
        };
        self.report(Problem::showing(self.source, span(&prop.value), what).help(help));
        None
    }

    fn missing(
        &mut self,
        prop: &ObjectProp<'_>,
        entry: &Object<'_>,
        key: &str,
        slips: &[&str],
        example: &str,
    ) -> Option<Transport> {
        let what = format!("server `{}` has no `{key}`", self.server);
        let problem = match slip(entry, key, slips) {
            Some(slip) => Problem::at(self.source, span(&slip.name), what).help(format!(
                "write `{key}` instead of `{}`",
                printable(slip.name.as_str())
            )),
            None => Problem::at(self.source, span(&prop.name), what).help(format!("add {example}")),
        };
        self.report(problem);
        None
    }

    fn neither(&mut self, prop: &ObjectProp<'_>, entry: &Object<'_>) -> Option<Transport> {
        for (key, slips) in [("command", COMMAND_SLIPS), ("url", URL_SLIPS)] {
            if slip(entry, key, slips).is_some() {
                return self.missing(prop, entry, key, slips, "");
            }
        }
        let what = format!(
            "server `{}` has neither a `command` nor a `url`",
            self.server
        );
        let help = r#"add "command": "npx", "args": ["-y", "…"], or "url": "https://…""#;
        self.report(Problem::at(self.source, span(&prop.name), what).help(help));
        None
    }

    fn stdio(&mut self, entry: &Object<'_>, command: &ObjectProp<'_>) -> Option<Transport> {
        // Zed's older files nest: {"command": {"path": …, "args": …, "env": …}}.
        let (holder, command) = match &command.value {
            Value::Object(nested) => {
                duplicates(self.source, nested, &mut self.problems);
                match nested.get("path") {
                    Some(path) => (nested, path),
                    None => {
                        let what = format!("`command` of server `{}` has no `path`", self.server);
                        let help = r#"write "command": "npx""#;
                        self.report(Problem::at(self.source, span(&command.name), what).help(help));
                        return None;
                    }
                }
            }
            _ => (entry, command),
        };
        let text = self.string(
            command,
            r#"write "command": "npx", and the rest into "args""#,
        );
        let text = text.and_then(|text| self.fill(text, span(&command.value), Unknown::Keep));
        let args = self.args(holder);
        let mut env = self.texts(entry, "env");
        if !std::ptr::eq(holder, entry) {
            env.extend(self.texts(holder, "env"));
        }
        let cwd = self.cwd(entry);
        let program = self.variables.expand_home(text?.trim());
        if program.is_empty() {
            let what = format!("`command` of server `{}` is empty", self.server);
            self.report(
                Problem::at(self.source, span(&command.value), what)
                    .help("name the program to run"),
            );
            return None;
        }
        if program.contains('\0') || args.iter().any(|arg| arg.contains('\0')) {
            let what = format!(
                "`command` or `args` of server `{}` hold a NUL character",
                self.server
            );
            self.report(Problem::at(self.source, span(&command.name), what).help("remove it"));
            return None;
        }
        Some(Transport::Stdio {
            command: program,
            args,
            env,
            cwd,
        })
    }

    fn args(&mut self, entry: &Object<'_>) -> Vec<String> {
        let Some(prop) = entry.get("args") else {
            return Vec::new();
        };
        let Value::Array(array) = &prop.value else {
            if !matches!(prop.value, Value::NullKeyword(_)) {
                self.wrong_type(
                    prop,
                    "an array of strings",
                    r#"write "args": ["one", "two"]"#,
                );
            }
            return Vec::new();
        };
        let mut args = Vec::new();
        for element in &array.elements {
            match element {
                Value::StringLit(text) => {
                    args.extend(self.fill(&text.value, span(element), Unknown::Keep));
                }
                other => {
                    let what = format!(
                        "an argument of server `{}` is {}, not a string",
                        self.server,
                        kind(other)
                    );
                    self.report(
                        Problem::at(self.source, span(other), what).help("put it in double quotes"),
                    );
                }
            }
        }
        args
    }

    fn cwd(&mut self, entry: &Object<'_>) -> Option<PathBuf> {
        let prop = entry
            .get("cwd")
            .filter(|prop| !matches!(prop.value, Value::NullKeyword(_)))?;
        let text = self.string(prop, "write the folder as a string")?;
        let text = self.fill(text, span(&prop.value), Unknown::Refuse)?;
        let path = self.variables.expand_home(&text);
        Some(self.variables.workspace.join(path))
    }

    fn remote(
        &mut self,
        entry: &Object<'_>,
        prop: &ObjectProp<'_>,
    ) -> Option<(String, BTreeMap<String, String>)> {
        let headers = self.texts(entry, "headers");
        self.check_headers(entry, &headers);
        let text = self.string(prop, r#"write "url": "https://…""#)?;
        let text = self.fill(text, span(&prop.value), Unknown::Refuse)?;
        if !self.active {
            return Some((text, headers));
        }
        let server = &self.server;
        let (what, help) = match url::Url::parse(text.trim()) {
            Ok(url) if matches!(url.scheme(), "http" | "https") => {
                return Some((text.trim().to_owned(), headers));
            }
            Ok(url) if matches!(url.scheme(), "ws" | "wss") => (
                format!("the `url` of server `{server}` is a WebSocket, which is no MCP transport"),
                "use the server's http or https address",
            ),
            Ok(_) => (
                format!("the `url` of server `{server}` is neither http nor https"),
                "begin it with `https://` or `http://`",
            ),
            Err(url::ParseError::RelativeUrlWithoutBase) => (
                format!("the `url` of server `{server}` has no scheme"),
                "begin it with `https://` or `http://`",
            ),
            Err(error) => (
                format!("the `url` of server `{server}` is not valid: {error}"),
                "write it as `https://host/path`",
            ),
        };
        self.report(Problem::at(self.source, span(&prop.value), what).help(help));
        None
    }

    fn check_headers(&mut self, entry: &Object<'_>, headers: &BTreeMap<String, String>) {
        let Some(object) = entry.get_object("headers") else {
            return;
        };
        for prop in &object.properties {
            let name = prop.name.as_str();
            let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
            if name.is_empty() || !name.bytes().all(token) {
                let what = format!(
                    "a header name of server `{}` is not allowed in HTTP",
                    self.server
                );
                let help = "use letters, digits and `-`";
                self.report(Problem::at(self.source, span(&prop.name), what).help(help));
            } else if headers
                .get(name)
                .is_some_and(|v| v.chars().any(char::is_control))
            {
                let what = format!(
                    "header `{name}` of server `{}` holds a control character",
                    self.server
                );
                let help = "a line break at the end of the variable is the usual cause";
                self.report(Problem::at(self.source, span(&prop.value), what).help(help));
            }
        }
    }

    /// An object of names and texts; numbers and booleans count as their text, null as absent.
    fn texts(&mut self, entry: &Object<'_>, key: &str) -> BTreeMap<String, String> {
        let mut out = BTreeMap::new();
        let Some(prop) = entry.get(key) else {
            return out;
        };
        let Value::Object(object) = &prop.value else {
            if !matches!(prop.value, Value::NullKeyword(_)) {
                self.wrong_type(
                    prop,
                    "an object",
                    &format!(r#"write "{key}": {{"NAME": "value"}}"#),
                );
            }
            return out;
        };
        duplicates(self.source, object, &mut self.problems);
        for prop in &object.properties {
            let name = prop.name.as_str();
            if key == "env" && (name.is_empty() || name.contains(['=', '\0'])) {
                let what = format!(
                    "a variable name in `env` of server `{}` is not allowed",
                    self.server
                );
                self.report(
                    Problem::at(self.source, span(&prop.name), what)
                        .help("it cannot be empty or hold `=`"),
                );
                continue;
            }
            let text = match &prop.value {
                Value::StringLit(text) => {
                    self.fill(&text.value, span(&prop.value), Unknown::Refuse)
                }
                Value::NumberLit(number) => Some(number.value.to_owned()),
                Value::BooleanLit(boolean) => Some(boolean.value.to_string()),
                Value::NullKeyword(_) => None,
                Value::Object(_) | Value::Array(_) => {
                    let what = format!(
                        "`{key}.{}` of server `{}` is {}, not a string",
                        printable(name),
                        self.server,
                        kind(&prop.value)
                    );
                    self.report(
                        Problem::at(self.source, span(&prop.value), what).help("write a string"),
                    );
                    None
                }
            };
            if let Some(text) = text {
                out.insert(name.to_owned(), text);
            }
        }
        out
    }

    fn tools(&mut self, entry: &Object<'_>, key: &str) -> BTreeSet<NativeName> {
        let words = self.words(entry, key, r#"["tool_one", "tool_two"]"#);
        words
            .into_iter()
            .map(|(word, _)| NativeName::new(word))
            .collect()
    }

    fn words<'a>(
        &mut self,
        entry: &'a Object<'_>,
        key: &str,
        example: &str,
    ) -> Vec<(&'a str, std::ops::Range<usize>)> {
        let Some(prop) = entry.get(key) else {
            return Vec::new();
        };
        let help = format!(r#"write "{key}": {example}"#);
        let Value::Array(array) = &prop.value else {
            self.wrong_type(prop, "an array of strings", &help);
            return Vec::new();
        };
        let mut words = Vec::new();
        for element in &array.elements {
            if let Value::StringLit(text) = element {
                words.push((text.value.as_ref(), span(element)));
            } else {
                let what = format!(
                    "`{key}` of server `{}` holds {}, not only strings",
                    self.server,
                    kind(element)
                );
                self.report(Problem::at(self.source, span(element), what).help(help.clone()));
            }
        }
        words
    }

    fn ours(&mut self, entry: &Object<'_>, spec: &mut ServerSpec) {
        let Some(prop) = entry.get("toolwharf") else {
            return;
        };
        let Value::Object(ours) = &prop.value else {
            self.wrong_type(
                prop,
                "an object",
                r#"write "toolwharf": {"maxConcurrency": 8}"#,
            );
            return;
        };
        duplicates(self.source, ours, &mut self.problems);
        for prop in &ours.properties {
            let key = prop.name.as_str();
            if !OURS.contains(&key) {
                let what = format!(
                    "`toolwharf.{}` of server `{}` is not a known option",
                    printable(key),
                    self.server
                );
                let help = match nearest(key, OURS) {
                    Some(known) => format!("did you mean `{known}`?"),
                    None => format!("known are {}", OURS.join(", ")),
                };
                self.report(Problem::at(self.source, span(&prop.name), what).help(help));
            }
        }
        if let Some(prop) = ours.get("maxConcurrency") {
            let number = prop
                .value
                .as_number_lit()
                .and_then(|n| n.value.parse::<NonZeroU32>().ok());
            match number {
                Some(number) if number.get() <= 10_000 => spec.max_concurrency = Some(number),
                _ => self.wrong_value(prop, "a whole number from 1 to 10000"),
            }
        }
        if let Some(era) = self.policy::<EraPolicy>(ours, "era", EraPolicy::WORDS) {
            spec.era = era;
        }
        if let Some(sharing) = self.policy::<Sharing>(ours, "sharing", Sharing::WORDS) {
            spec.sharing = sharing;
        }
        if let Some(timeout) = self.timeout(ours, "callTimeoutMs", false) {
            spec.call_timeout = timeout;
        }
        if let Some(timeout) = self.timeout(ours, "startTimeoutMs", false) {
            spec.start_timeout = timeout;
        }
        for (word, at) in self.words(ours, "projects", r#"["my-project"]"#) {
            match ProjectId::parse(word) {
                Ok(project) => {
                    spec.projects.insert(project);
                }
                Err(error) => self.report(
                    Problem::showing(self.source, at, error.to_string()).help("rename the project"),
                ),
            }
        }
        spec.disabled_tools
            .extend(self.tools(ours, "disabledTools"));
    }

    fn policy<P: std::str::FromStr>(
        &mut self,
        object: &Object<'_>,
        key: &str,
        words: &[&str],
    ) -> Option<P> {
        let prop = object.get(key)?;
        let parsed = prop
            .value
            .as_string_lit()
            .and_then(|text| text.value.parse().ok());
        if parsed.is_none() {
            self.wrong_value(prop, &format!("one of `{}`", words.join("`, `")));
        }
        parsed
    }

    fn timeout(&mut self, object: &Object<'_>, key: &str, cline: bool) -> Option<Duration> {
        let prop = object
            .get(key)
            .filter(|prop| !matches!(prop.value, Value::NullKeyword(_)))?;
        let number = prop
            .value
            .as_number_lit()
            .and_then(|n| n.value.parse::<f64>().ok());
        let ms = match number {
            Some(number) if cline && number < 1000.0 => number * 1000.0,
            Some(number) => number,
            None => f64::NAN,
        };
        if (1.0..=MAX_TIMEOUT_MS).contains(&ms) {
            return Some(Duration::from_secs_f64(ms / 1000.0));
        }
        self.wrong_value(
            prop,
            "a number of milliseconds, above 0 and at most 86400000 (a day)",
        );
        None
    }

    fn boolean(&mut self, object: &Object<'_>, key: &str) -> Option<bool> {
        let prop = object.get(key)?;
        if let Value::BooleanLit(boolean) = &prop.value {
            return Some(boolean.value);
        }
        self.wrong_value(prop, "`true` or `false`, without quotes");
        None
    }

    fn string<'a>(&mut self, prop: &'a ObjectProp<'_>, help: &str) -> Option<&'a str> {
        if let Value::StringLit(text) = &prop.value {
            return Some(&text.value);
        }
        self.wrong_type(prop, "a string", help);
        None
    }

    fn wrong_type(&mut self, prop: &ObjectProp<'_>, expected: &str, help: &str) {
        let key = printable(prop.name.as_str());
        let what = format!(
            "`{key}` of server `{}` is {}, not {expected}",
            self.server,
            kind(&prop.value)
        );
        self.report(Problem::at(self.source, span(&prop.value), what).help(help));
    }

    /// For keys of ours whose value is no secret.
    fn wrong_value(&mut self, prop: &ObjectProp<'_>, expected: &str) {
        let key = printable(prop.name.as_str());
        let what = format!("bad `{key}` of server `{}`", self.server);
        let help = format!("write {expected}");
        self.report(Problem::showing(self.source, span(&prop.value), what).help(help));
    }

    fn fill(&mut self, text: &str, at: std::ops::Range<usize>, unknown: Unknown) -> Option<String> {
        match self.variables.fill(text, unknown) {
            Ok(text) => Some(text),
            Err(_) if !self.active => Some(text.to_owned()),
            Err(errors) => {
                for error in errors {
                    let problem = self.unfilled(&error, at.clone());
                    self.report(problem);
                }
                None
            }
        }
    }

    fn unfilled(&self, error: &interpolate::Error, at: std::ops::Range<usize>) -> Problem {
        let what = format!("{error} (server `{}`)", self.server);
        Problem::at(self.source, at, what).help(error.help())
    }
}

/// The key that was probably meant to be `key`.
fn slip<'o, 'a>(entry: &'o Object<'a>, key: &str, slips: &[&str]) -> Option<&'o ObjectProp<'a>> {
    entry.properties.iter().find(|prop| {
        let name = prop.name.as_str();
        slips.iter().any(|slip| slip.eq_ignore_ascii_case(name))
            || (!KNOWN.contains(&name) && nearest(name, &[key]).is_some())
    })
}

/// Zed lists servers that extensions bring, with their settings only.
fn is_extension(entry: &Object<'_>) -> bool {
    let says_so = entry
        .get_string("source")
        .is_some_and(|source| source.value == "extension");
    let settings_only = entry.get("settings").is_some() && entry.get("source").is_none();
    (says_so || settings_only)
        && shape::ENTRY_MARKS
            .iter()
            .all(|mark| entry.get(mark).is_none())
}
