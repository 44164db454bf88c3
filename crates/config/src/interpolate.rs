//! `${…}` in commands, arguments, environments, URLs and headers.
//!
//! Known forms: `${VAR}`, `${VAR:-default}` (the default also replaces an empty value, as in a shell), `${env:VAR}`,
//! and VS Code's `${workspaceFolder}`, `${workspaceFolderBasename}`, `${userHome}`, `${pathSeparator}` and `${/}`.
//! `$${` is a literal `${`. The value of a variable is not expanded again. `${login:NAME}` is only valid as the whole
//! value of an environment variable, `${header:NAME}` only in the `headers` of a server with a `url`. In commands and arguments an unknown form is left unchanged, because it may be
//! meant for a shell; elsewhere it is an error.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::{HeaderPart, HeaderTemplate, never_passed};

use super::sealed::SealedValues;

/// The sources for the values of `${…}`.
pub struct Variables<'a> {
    pub env: &'a dyn Fn(&str) -> Option<String>,
    pub workspace: PathBuf,
    /// Used for variables that are not set in `env`, or empty there.
    pub sealed: Lookup,
}

/// Stored secrets, and a record of those that were used.
#[derive(Default)]
pub struct Lookup {
    values: Arc<SealedValues>,
    used: RefCell<BTreeSet<String>>,
}

impl Lookup {
    pub(crate) fn new(values: Arc<SealedValues>) -> Self {
        Self {
            values,
            used: RefCell::default(),
        }
    }

    /// Returns the values that were used since the last call.
    pub(crate) fn take_used(&self) -> BTreeSet<String> {
        self.used.take()
    }
}

/// The treatment of an unknown form of `${…}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    Keep,
    Refuse,
}

/// Why a text could not be filled in. Contains names of variables, never values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the variable `{0}` is not set")]
    Unset(String),
    #[error("the stored secret `{0}` cannot be decrypted: {1}")]
    Closed(String, String),
    #[error("`${{input:{0}}}` prompts the user, which a server in the background cannot do")]
    Input(String),
    #[error("`${{login:{0}}}` can only be the whole value of a variable in `env`")]
    Login(String),
    #[error("`${{header:{0}}}` can only be in `headers`, next to a `url`")]
    Header(String),
    #[error("`${{header:{0}}}` does not name a header")]
    HeaderName(String),
    #[error(
        "`${{header:{0}}}` is not allowed: this header of a caller is never passed on, because {1}"
    )]
    NeverPassed(String, &'static str),
    #[error("a `${{…}}` has an unknown form")]
    Form,
    #[error("a `${{` has no closing `}}`")]
    Open,
}

impl Error {
    /// Returns whether the text is wrong about headers of callers, whatever values there are.
    pub(crate) fn is_of_callers(&self) -> bool {
        matches!(
            self,
            Self::Header(_) | Self::HeaderName(_) | Self::NeverPassed(..)
        )
    }

    pub fn help(&self) -> String {
        match self {
            Self::Unset(name) => format!(
                "run `toolwharf secret set {name}`, set {name} in the environment of `toolwharf serve` and restart that, or write `${{{name}:-default}}`"
            ),
            Self::Closed(name, _) => {
                format!("run `toolwharf secret set {name}` to set it again")
            }
            Self::Input(id) => {
                let name = variable_for(id);
                format!("write `${{{name}}}` instead, and run `toolwharf secret set {name}`")
            }
            Self::Login(name) => format!(
                "write `\"TOKEN\": \"${{login:{name}}}\"` in the `env` of a server with a `command`; a server with a `url` uses the key `login` instead"
            ),
            Self::Header(name) => format!(
                "write `\"headers\": {{\"{name}\": \"${{header:{name}}}\"}}` in the entry of a server with a `url`; a server that Toolwharf launches gets no headers"
            ),
            Self::HeaderName(_) => {
                "write `${header:X-Tenant}`, or `${header:X-Tenant:-default}`".to_owned()
            }
            Self::NeverPassed(name, _) => format!(
                "have callers send the value in another header, and write `${{header:X-Upstream-{name}}}`"
            ),
            Self::Form | Self::Open => "write `${VAR}`, `${VAR:-default}` or `${env:VAR}`; \
                           `$${` stands for a plain `${`"
                .to_owned(),
        }
    }
}

impl Error {
    /// The remedy in the settings, which are read before the stored secrets.
    pub(crate) fn help_in_settings(&self) -> String {
        match self {
            Self::Unset(name) => format!(
                "set {name} in the environment of toolwharf, or write `${{{name}:-default}}`"
            ),
            Self::Input(id) => {
                let name = variable_for(id);
                format!("write `${{{name}}}` instead, and set {name} in the environment")
            }
            other => other.help(),
        }
    }
}

impl Variables<'_> {
    /// # Errors
    /// All problems of the text, not only the first.
    pub fn fill(&self, text: &str, unknown: Unknown) -> Result<String, Vec<Error>> {
        let mut filled = String::new();
        let mut errors = Vec::new();
        for part in self.parts(text, unknown)? {
            match part {
                HeaderPart::Text(text) => filled.push_str(&text),
                HeaderPart::Caller { name, .. } => errors.push(Error::Header(name)),
            }
        }
        match errors.is_empty() {
            true => Ok(filled),
            false => Err(errors),
        }
    }

    /// A header value that may contain `${header:NAME}`.
    ///
    /// # Errors
    /// All problems of the text, not only the first.
    pub fn template(&self, text: &str) -> Result<HeaderTemplate, Vec<Error>> {
        let mut errors = Vec::new();
        let mut parts = self.parts(text, Unknown::Refuse)?;
        for part in &mut parts {
            let HeaderPart::Caller { name, .. } = part else {
                continue;
            };
            let lower = name.to_ascii_lowercase();
            if !is_header(name) {
                errors.push(Error::HeaderName(name.clone()));
            } else if let Some(why) = never_passed(&lower) {
                errors.push(Error::NeverPassed(name.clone(), why));
            }
            *name = lower;
        }
        match errors.is_empty() {
            true => Ok(HeaderTemplate(parts)),
            false => Err(errors),
        }
    }

    fn parts(&self, text: &str, unknown: Unknown) -> Result<Vec<HeaderPart>, Vec<Error>> {
        let mut parts = Vec::new();
        let mut out = String::with_capacity(text.len());
        let mut errors = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let (before, form) = rest.split_at(at);
            if let Some(plain) = before.strip_suffix('$') {
                out.push_str(plain);
                out.push_str("${");
                rest = &form[2..];
                continue;
            }
            out.push_str(before);
            let parsed = form[2..].split_once('}').map(|(f, tail)| {
                (
                    caller_header(f).map_or_else(|| self.value(f).map(HeaderPart::Text), Ok),
                    tail,
                )
            });
            match (parsed, unknown) {
                (Some((Ok(HeaderPart::Text(value)), tail)), _) => {
                    out.push_str(&value);
                    rest = tail;
                }
                (Some((Ok(caller), tail)), _) => {
                    parts.push(HeaderPart::Text(std::mem::take(&mut out)));
                    parts.push(caller);
                    rest = tail;
                }
                (Some((Err(Error::Form), _)) | None, Unknown::Keep) => {
                    out.push_str("${");
                    rest = &form[2..];
                }
                (Some((Err(error), tail)), _) => {
                    errors.push(error);
                    rest = tail;
                }
                (None, Unknown::Refuse) => {
                    errors.push(Error::Open);
                    rest = "";
                }
            }
        }
        out.push_str(rest);
        parts.push(HeaderPart::Text(out));
        match errors.is_empty() {
            true => Ok(parts),
            false => Err(errors),
        }
    }

    /// Expands `~` and `~/…` in a path that no shell will see.
    pub fn expand_home(&self, path: &str) -> String {
        match path.strip_prefix('~') {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => match self.home() {
                Some(home) => format!("{home}{rest}"),
                None => path.to_owned(),
            },
            _ => path.to_owned(),
        }
    }

    fn home(&self) -> Option<String> {
        (self.env)("HOME").filter(|home| !home.is_empty())
    }

    fn value(&self, form: &str) -> Result<String, Error> {
        if let Some(id) = form.strip_prefix("input:") {
            return Err(Error::Input(id.to_owned()));
        }
        if let Some(name) = form.strip_prefix("login:") {
            return Err(Error::Login(name.to_owned()));
        }
        if let Some(name) = form.strip_prefix("env:") {
            return if is_variable(name) {
                let value = self.look_up(name)?;
                value.ok_or_else(|| Error::Unset(name.to_owned()))
            } else {
                Err(Error::Form)
            };
        }
        match form {
            "workspaceFolder" => return Ok(self.workspace.display().to_string()),
            "workspaceFolderBasename" => {
                let name = self.workspace.file_name().unwrap_or_default();
                return Ok(name.to_string_lossy().into_owned());
            }
            "userHome" => return self.home().ok_or_else(|| Error::Unset("HOME".to_owned())),
            "pathSeparator" | "/" => return Ok("/".to_owned()),
            _ => {}
        }
        let (name, default) = match form.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (form, None),
        };
        if !is_variable(name) {
            return Err(Error::Form);
        }
        match (self.look_up(name)?, default) {
            (Some(value), None) => Ok(value),
            (Some(value), Some(_)) if !value.is_empty() => Ok(value),
            (_, Some(default)) => Ok(default.to_owned()),
            (None, None) => Err(Error::Unset(name.to_owned())),
        }
    }

    /// The value in the environment, otherwise the stored secret. A secret that cannot be decrypted is an error, because
    /// the default of the variable must not replace it.
    fn look_up(&self, name: &str) -> Result<Option<String>, Error> {
        let value = (self.env)(name);
        if value.as_ref().is_some_and(|value| !value.is_empty()) {
            return Ok(value);
        }
        match self.sealed.values.get(name) {
            None => Ok(value),
            Some(Ok(secret)) => {
                self.sealed.used.borrow_mut().insert(secret.to_owned());
                Ok(Some(secret.to_owned()))
            }
            Some(Err(why)) => Err(Error::Closed(name.to_owned(), why.to_owned())),
        }
    }
}

/// The folder for `${workspaceFolder}` in a file: the file's parent folder, or the folder above it if the parent is a
/// client's folder such as `.vscode`.
pub(crate) fn workspace_of(file: &Path) -> PathBuf {
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let folder = absolute.parent().unwrap_or(Path::new("/"));
    let is_clients = folder.file_name().is_some_and(|name| {
        [".vscode", ".cursor", ".zed", ".gemini"]
            .iter()
            .any(|c| name == *c)
    });
    match folder.parent() {
        Some(above) if is_clients => above.to_owned(),
        _ => folder.to_owned(),
    }
}

/// The part for `header:NAME` or `header:NAME:-default`.
fn caller_header(form: &str) -> Option<HeaderPart> {
    let form = form.strip_prefix("header:")?;
    let (name, default) = match form.split_once(":-") {
        Some((name, default)) => (name, Some(default.to_owned())),
        None => (form, None),
    };
    let name = name.to_owned();
    Some(HeaderPart::Caller { name, default })
}

/// Returns whether a header can have this name.
pub(crate) fn is_header(name: &str) -> bool {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !name.is_empty() && name.bytes().all(token)
}

/// The name in `${login:NAME}`, if this is the whole text.
pub fn login_name(text: &str) -> Option<&str> {
    let name = text.strip_prefix("${login:")?.strip_suffix('}')?;
    is_login(name).then_some(name)
}

/// Returns whether a table `[logins.NAME]` can have this name.
pub(crate) fn is_login(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(plain)
}

pub fn is_variable(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// The name of the variable that takes the place of `${input:ID}`.
pub(crate) fn variable_for(id: &str) -> String {
    let name: String = id
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect();
    if is_variable(&name) {
        name
    } else {
        "VAR".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: &str) {
        let variables = Variables {
            env: &|name| match name {
                "A" => Some("one".to_owned()),
                "EMPTY" => Some(String::new()),
                "NESTED" => Some("${A}".to_owned()),
                "HOME" => Some("/home/me".to_owned()),
                _ => None,
            },
            workspace: PathBuf::from("/work/app"),
            sealed: Lookup::default(),
        };
        let shown = match variables.fill(text, Unknown::Refuse) {
            Ok(text) => text,
            Err(errors) => {
                let all: Vec<_> = errors.iter().map(ToString::to_string).collect();
                format!("error: {}", all.join("; "))
            }
        };
        assert_eq!(shown, expect, "{text}");
    }

    #[test]
    fn forms() {
        check("plain $A $ {A}", "plain $A $ {A}");
        check("x${A}y${env:A}z", "xoneyonez");
        check("${A:-d}${EMPTY:-d}${NONE:-d:-e}", "onedd:-e");
        check("[${EMPTY}]", "[]");
        check("${NESTED}", "${A}");
        check(
            "${workspaceFolder}/${workspaceFolderBasename}",
            "/work/app/app",
        );
        check("${userHome}${/}${pathSeparator}", "/home/me//");
        check("$${A} ${A}", "${A} one");
    }

    #[test]
    fn headers_of_callers() {
        let variables = Variables {
            env: &|name| (name == "A").then(|| "one".to_owned()),
            workspace: PathBuf::new(),
            sealed: Lookup::default(),
        };
        let check = |text: &str, expect: &str| {
            let shown = match variables.template(text) {
                Ok(template) => template.source(),
                Err(errors) => {
                    let all: Vec<_> = errors.iter().map(ToString::to_string).collect();
                    format!("error: {}", all.join("; "))
                }
            };
            assert!(shown.contains(expect), "{text}: {shown}");
        };
        check("${header:X-Tenant}", "${header:x-tenant}");
        check("${A} ${header:X:-a b}!", "one ${header:x:-a b}!");
        check("plain", "plain");
        check("${header:}", "error: `${header:}` does not name a header");
        check("${header:a b}", "does not name a header");
        check(
            "${header:X}${NONE}",
            "error: the variable `NONE` is not set",
        );
        for name in [
            "Authorization",
            "cookie",
            "Host",
            "Mcp-Session-Id",
            "TE",
            "Content-Length",
        ] {
            let expect = format!(
                "error: `${{header:{name}}}` is not allowed: this header of a caller is never"
            );
            check(&format!("x ${{header:{name}}}"), &expect);
        }
        let refused = variables.fill("${header:X}", Unknown::Keep);
        assert_eq!(refused, Err(vec![Error::Header("X".to_owned())]));
    }

    #[test]
    fn all_errors_are_reported_at_once() {
        check(
            "${X}${env:Y}",
            "error: the variable `X` is not set; the variable `Y` is not set",
        );
        check(
            "${input:my-key}",
            "error: `${input:my-key}` prompts the user, which a server in the background cannot do",
        );
        check(
            "Bearer ${login:hub}",
            "error: `${login:hub}` can only be the whole value of a variable in `env`",
        );
        for text in ["${", "${A"] {
            check(text, "error: a `${` has no closing `}`");
        }
        for text in ["${}", "${A%b}", "${1}", "${env:}"] {
            check(text, "error: a `${…}` has an unknown form");
        }
        assert!(Error::Input("my-key".into()).help().contains("${MY_KEY}"));
    }

    #[test]
    fn shell_text_is_kept() {
        let variables = Variables {
            env: &|_| None,
            workspace: PathBuf::new(),
            sealed: Lookup::default(),
        };
        for text in ["${x%.*}", "${", "a ${#list[@]} b", "${1}"] {
            assert_eq!(variables.fill(text, Unknown::Keep).unwrap(), text);
        }
        assert!(variables.fill("${X}", Unknown::Keep).is_err());
        assert!(variables.fill("${login:hub}", Unknown::Keep).is_err());
    }

    #[test]
    fn workspace_of_clients_files() {
        for (file, expect) in [
            ("/a/b/.vscode/mcp.json", "/a/b"),
            ("/a/b/mcp.json", "/a/b"),
            ("/.cursor/mcp.json", "/"),
        ] {
            assert_eq!(workspace_of(Path::new(file)), Path::new(expect));
        }
    }
}
