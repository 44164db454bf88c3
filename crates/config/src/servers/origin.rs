//! The origin of a server's instances: `command` and related keys, or `url` and `headers`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use jsonc_parser::ast::{Object, ObjectProp, Value};
use model::{HeaderTemplate, Launch, Origin, Place, Program, Remote};

use super::super::interpolate::{Unknown, is_header};
use super::super::keys::ENTRY_KEYS;
use super::super::problem::{Problem, nearest};
use super::super::shape::{Found, duplicates, kind, printable, span};
use super::{Entry, confined::OwnKeys, values::given};

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
const TRANSPORT_WORDS: &str = "`stdio`, `http` (also `streamable-http`) or `sse`";

/// The transport that a `type` names: `stdio`, `http` or `sse`.
pub fn transport(word: &str) -> Option<&'static str> {
    let mut word = word.to_lowercase();
    word.retain(char::is_alphanumeric);
    match word.as_str() {
        "stdio" | "local" | "command" | "process" | "pipe" => Some("stdio"),
        "http" | "https" | "remote" | "url" | "streamable" | "streamablehttp"
        | "streamablehttps" | "httpstream" | "httpstreamable" => Some("http"),
        "sse" | "httpsse" | "ssehttp" | "eventstream" => Some("sse"),
        _ => None,
    }
}

impl Entry<'_> {
    pub(super) fn origin(
        &mut self,
        found: &Found<'_, '_>,
        entry: &Object<'_>,
        own: &OwnKeys<'_, '_>,
    ) -> Option<Origin> {
        let url = ["url", "serverUrl", "httpUrl"]
            .iter()
            .find_map(|key| given(entry, key));
        let command = given(entry, "command");
        let word = given(entry, "type").or_else(|| given(entry, "transport"));
        let named = match word {
            Some(word) => self.transport_word(word)?,
            None => None,
        };
        if let (Some(image), None) = (own.get("image"), url) {
            return self.image(entry, image, command);
        }
        match (named, command, url) {
            (Some("stdio"), Some(command), _) | (None, Some(command), None) => {
                self.stdio(entry, command)
            }
            (Some(_), _, Some(url)) | (None, None, Some(url)) => self
                .remote(entry, url, named == Some("sse"))
                .map(|remote| Origin::Remote(remote.into())),
            (None, Some(command), Some(_)) => {
                let what = format!("server `{}` has both a `command` and a `url`", self.server);
                let help =
                    "remove one, or choose one with `\"type\": \"stdio\"` or `\"type\": \"http\"`";
                self.wrong(span(&command.name), what, help);
                None
            }
            (Some("stdio"), None, _) => self.missing(
                found,
                entry,
                "command",
                COMMAND_SLIPS,
                r#""command": "npx", "args": ["-y", "…"]"#,
            ),
            (Some(_), _, None) => {
                self.missing(found, entry, "url", URL_SLIPS, r#""url": "https://…""#)
            }
            (None, None, None) => self.neither(found, entry),
        }
    }

    /// The transport: `stdio`, `http` or `sse`. The inner `None`: an empty text, which says nothing.
    fn transport_word(&mut self, prop: &ObjectProp<'_>) -> Option<Option<&'static str>> {
        let Value::StringLit(text) = &prop.value else {
            self.wrong_type(prop, "a string", &format!("use {TRANSPORT_WORDS}"));
            return None;
        };
        if text.value.trim().is_empty() {
            return Some(None);
        }
        if let Some(word) = transport(&text.value) {
            return Some(Some(word));
        }
        let meant = nearest(&text.value, &["stdio", "http", "streamable-http", "sse"]);
        let what = format!(
            "unknown transport `{}` of server `{}`",
            printable(&text.value),
            self.server
        );
        let help = match meant {
            Some(meant) => format!("did you mean `{meant}`? Use {TRANSPORT_WORDS}"),
            None => format!("use {TRANSPORT_WORDS}"),
        };
        self.report(Problem::showing(self.source, span(&prop.value), what).help(help));
        None
    }

    fn missing(
        &mut self,
        found: &Found<'_, '_>,
        entry: &Object<'_>,
        key: &str,
        slips: &[&str],
        example: &str,
    ) -> Option<Origin> {
        let what = format!("server `{}` has no `{key}`", self.server);
        let problem = match slip(entry, key, slips) {
            Some(slip) => Problem::at(self.source, span(&slip.name), what).help(format!(
                "write `{key}` instead of `{}`",
                printable(slip.name.as_str())
            )),
            None => Problem::at(self.source, found.at.clone(), what).help(format!("add {example}")),
        };
        self.report(problem);
        None
    }

    fn neither(&mut self, found: &Found<'_, '_>, entry: &Object<'_>) -> Option<Origin> {
        for (key, slips) in [("command", COMMAND_SLIPS), ("url", URL_SLIPS)] {
            if slip(entry, key, slips).is_some() {
                return self.missing(found, entry, key, slips, "");
            }
        }
        let what = format!(
            "server `{}` has neither a `command` nor a `url`",
            self.server
        );
        let help = r#"add "command": "npx", "args": ["-y", "…"], or "url": "https://…""#;
        self.wrong(found.at.clone(), what, help);
        None
    }

    fn stdio(&mut self, entry: &Object<'_>, command: &ObjectProp<'_>) -> Option<Origin> {
        // Older files of Zed are nested: {"command": {"path": …, "args": …, "env": …}}.
        let (holder, command) = match &command.value {
            Value::Object(nested) => {
                duplicates(self.source, nested, &mut self.problems);
                match nested.get("path") {
                    Some(path) => (nested, path),
                    None => {
                        let what = format!("`command` of server `{}` has no `path`", self.server);
                        let help = r#"write "command": "npx""#;
                        self.wrong(span(&command.name), what, help);
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
            self.wrong(span(&command.value), what, "name the program to run");
            return None;
        }
        if program.contains('\0') || args.iter().any(|arg| arg.contains('\0')) {
            let what = format!(
                "`command` or `args` of server `{}` contain a NUL character",
                self.server
            );
            self.wrong(span(&command.name), what, "remove it");
            return None;
        }
        Some(Origin::Launch(Arc::new(Launch {
            env,
            cwd,
            ..Launch::new(Program::Command { program, args }, Place::Host)
        })))
    }

    /// A container image, and the command that replaces the image's own.
    fn image(
        &mut self,
        entry: &Object<'_>,
        image: &ObjectProp<'_>,
        command: Option<&ObjectProp<'_>>,
    ) -> Option<Origin> {
        let text = self.string(image, r#"write "image": "name:tag""#)?;
        if text.trim().is_empty() || text.trim().contains(char::is_whitespace) {
            self.wrong_value(
                image,
                r#"must name a container image, such as "example/server:1""#,
            );
            return None;
        }
        let text = self.fill(text, span(&image.value), Unknown::Keep);
        let mut words = Vec::new();
        if let Some(command) = command {
            let program = self.string(command, r#"write "command": "program""#)?;
            words.extend(self.fill(program, span(&command.value), Unknown::Keep));
        }
        words.extend(self.args(entry));
        let program = Program::Image {
            image: text?,
            command: words,
        };
        Some(Origin::Launch(Arc::new(Launch {
            env: self.texts(entry, "env"),
            ..Launch::new(program, Place::Host)
        })))
    }

    fn args(&mut self, entry: &Object<'_>) -> Vec<String> {
        let Some(prop) = given(entry, "args") else {
            return Vec::new();
        };
        let Value::Array(array) = &prop.value else {
            let help = r#"write "args": ["one", "two"]"#;
            self.wrong_type(prop, "an array of strings", help);
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
                    self.wrong(span(other), what, "put the argument in double quotes");
                }
            }
        }
        args
    }

    fn cwd(&mut self, entry: &Object<'_>) -> Option<PathBuf> {
        let prop = given(entry, "cwd")?;
        let text = self.string(prop, r#"write "cwd": "/path/of/folder""#)?;
        let text = self.fill(text, span(&prop.value), Unknown::Refuse)?;
        let path = self.variables.expand_home(&text);
        Some(self.variables.workspace.join(path))
    }

    fn remote(&mut self, entry: &Object<'_>, prop: &ObjectProp<'_>, sse: bool) -> Option<Remote> {
        let headers = self.texts(entry, "headers");
        let caller_headers = std::mem::take(&mut self.caller_headers);
        self.check_headers(entry, &headers, &caller_headers);
        let text = self.string(prop, r#"write "url": "https://…""#)?;
        let text = self.fill(text, span(&prop.value), Unknown::Refuse)?;
        let remote = |url: &str| {
            Some(Remote {
                headers,
                caller_headers,
                sse,
                ..Remote::new(url.to_owned())
            })
        };
        if !self.active {
            return remote(&text);
        }
        let server = &self.server;
        let (what, help) = match url::Url::parse(text.trim()) {
            Ok(url) if matches!(url.scheme(), "http" | "https") => {
                return remote(text.trim());
            }
            Ok(url) if matches!(url.scheme(), "ws" | "wss") => (
                format!(
                    "the `url` of server `{server}` is a WebSocket address, which is not an MCP transport"
                ),
                "use the server's http or https address",
            ),
            Ok(_) => (
                format!("the `url` of server `{server}` is neither http nor https"),
                "begin the URL with `https://` or `http://`",
            ),
            Err(url::ParseError::RelativeUrlWithoutBase) => (
                format!("the `url` of server `{server}` has no scheme"),
                "begin the URL with `https://` or `http://`",
            ),
            Err(error) => (
                format!("the `url` of server `{server}` is not valid: {error}"),
                "write the URL as `https://host/path`",
            ),
        };
        self.wrong(span(&prop.value), what, help);
        None
    }

    fn check_headers(
        &mut self,
        entry: &Object<'_>,
        headers: &BTreeMap<String, String>,
        caller_headers: &BTreeMap<String, HeaderTemplate>,
    ) {
        let Some(object) = entry.get_object("headers") else {
            return;
        };
        for prop in &object.properties {
            let name = prop.name.as_str();
            let source = caller_headers.get(name).map(HeaderTemplate::source);
            if !is_header(name) {
                let what = format!(
                    "header name `{}` of server `{}` is not allowed in HTTP",
                    printable(name),
                    self.server
                );
                let help = "use letters, digits and `-`";
                self.wrong(span(&prop.name), what, help);
            } else if let Some(value) = headers.get(name).or(source.as_ref())
                && value.chars().any(char::is_control)
            {
                let what = format!(
                    "header `{name}` of server `{}` contains a control character",
                    self.server
                );
                let help = "the usual cause is a line break at the end of a variable";
                self.wrong(span(&prop.value), what, help);
            }
        }
    }
}

/// The key that was probably meant to be `key`.
fn slip<'o, 'a>(entry: &'o Object<'a>, key: &str, slips: &[&str]) -> Option<&'o ObjectProp<'a>> {
    entry.properties.iter().find(|prop| {
        let name = prop.name.as_str();
        slips.iter().any(|slip| slip.eq_ignore_ascii_case(name))
            || (!ENTRY_KEYS.contains(&name) && nearest(name, &[key]).is_some())
    })
}
