//! Parses server specifications from the text of a file, and reports all problems. A server whose entry has a problem is
//! described as far as possible, and cannot be used.
//!
//! Keys of an entry: `command`, `args`, `env`, `cwd`, `type` or `transport`, `url` (also `serverUrl`, `httpUrl`),
//! `headers`, `disabled` or `enabled`, `timeout`, `enabledTools`, `disabledTools` (also `excludeTools`), and Toolwharf's
//! own options under `toolwharf`. The sandbox options can also be at the top level. Other keys belong to other clients
//! and are ignored, with a warning if one looks like a typo, or has another name here ([`foreign`]).
//!
//! `timeout` is in milliseconds, as in Claude Code and Gemini CLI. Below 1000 it is in seconds, as in Cline: half a
//! second would be too short to be meant, and Claude Code ignores such values.

mod confined;
mod foreign;
mod login;
mod misplaced;
mod origin;
mod values;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use api::Wrong;
use jsonc_parser::CollectOptions;
use jsonc_parser::ast::{Object, Value};
use model::{
    Declared, Defaults, HeaderTemplate, Launch, Login, Origin, Place, Program, ProjectId, Remote,
    Secrets, ServerName, ServerSpec, Settings,
};

use super::interpolate::{Lookup, Variables, workspace_of};
use super::keys::{ENTRY_KEYS, SANDBOX_KEYS, SWITCHES, TOOLWHARF_KEYS};
use super::names::server_name;
use super::problem::{self, Problem, nearest};
use super::sandbox;
use super::sealed::SealedValues;
use super::shape::{self, Found, PARSE_OPTIONS, duplicates, kind, printable, span};
use super::source::{Source, Syntax};
use confined::OwnKeys;
pub use login::login_variables;
pub use misplaced::misplaced;
pub use origin::transport;

/// A server, with its key in the file and the place of the key.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub spec: ServerSpec,
    pub key: String,
    pub at: Range<usize>,
}

/// The content of a file.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub servers: Vec<Parsed>,
    /// Problems of the file as a whole.
    pub problems: Vec<Problem>,
    /// Problems of entries, whose servers are unusable. Of very many, only the first.
    pub entry_problems: Vec<Problem>,
    pub warnings: Vec<Problem>,
    /// Required variables that are not set. Each one is also among the problems of entries.
    unset: BTreeSet<String>,
    /// The number of problems about texts whose variables could not be filled in.
    unfilled: usize,
    /// The number of problems about variables that are not set.
    unset_problems: usize,
}

/// Why an entry is invalid.
#[derive(Debug)]
pub struct Unfit {
    pub problems: Vec<String>,
    /// The same problems, each with a JSON pointer into the entry.
    pub wrong: Vec<Wrong>,
    /// Required variables that are not set.
    pub unset: BTreeSet<String>,
    /// True if all problems are about texts whose variables could not be filled in.
    pub is_only_unfilled: bool,
    /// True if all problems are about variables that are not set.
    pub is_only_unset: bool,
}

/// Keys of other clients that are ignored without a warning, although they resemble Toolwharf's keys.
const IGNORED_KEYS: &[&str] = &[
    "name",
    "trust",
    "tools",
    "alwaysAllow",
    "autoApprove",
    "source",
    "state",
    "status",
];

/// Parses the servers of a file. `settings` contain the defaults and the logins. `None`: they are not known.
pub(crate) fn parse(
    source: &Source,
    variables: &Variables<'_>,
    settings: Option<&Settings>,
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut file_problems = Vec::new();
    shape::servers(source, &mut file_problems, |found| {
        let mut entry = Entry::new(source, variables, settings, &found.key);
        let mut spec = entry.read(found);
        let mut unset = entry.unset.clone();
        if !entry.problems.is_empty() {
            let form = Entry {
                is_form: true,
                ..Entry::new(source, variables, settings, &found.key)
            };
            spec = Some(form.unusable(found, &entry.problems));
        }
        let used = variables.sealed.take_used();
        if let Some(mut spec) = spec {
            unset.append(&mut entry.lacks);
            spec.unset = unset;
            spec.secrets.0.extend(used);
            outcome.servers.push(Parsed {
                spec,
                key: found.key.to_string(),
                at: found.at.clone(),
            });
        }
        outcome.unset.append(&mut entry.unset);
        outcome.unfilled += entry.unfilled;
        outcome.unset_problems += entry.unset_problems;
        for (all, new) in [
            (&mut outcome.entry_problems, &mut entry.problems),
            (&mut outcome.warnings, &mut entry.warnings),
        ] {
            if all.len() < shape::MAX_PROBLEMS {
                all.append(new);
            }
        }
    });
    outcome.problems = file_problems;
    outcome
}

/// Parses a single entry as if it were in the file `path`. Returns its specification and warnings. `sealed` supplies
/// variables that `env` does not set.
///
/// # Errors
/// The problems, without places in a text, because the user has not seen the text.
pub fn check(
    path: &Path,
    name: &ServerName,
    entry: &serde_json::Value,
    env: &dyn Fn(&str) -> Option<String>,
    sealed: &Arc<SealedValues>,
) -> Result<(ServerSpec, Vec<String>), Unfit> {
    let text = serde_json::json!({"mcpServers": {name.as_str(): entry}}).to_string();
    let source = Source::new(path, text, Syntax::Json);
    let variables = Variables {
        env,
        workspace: workspace_of(path),
        sealed: Lookup::new(sealed.clone()),
    };
    let mut outcome = parse(&source, &variables, None);
    let mut problems = std::mem::take(&mut outcome.problems);
    problems.append(&mut outcome.entry_problems);
    let word = |problem: &Problem| match &problem.help {
        Some(help) => format!("{} ({help})", problem.what),
        None => problem.what.clone(),
    };
    let words = |problems: &[Problem]| -> Vec<String> { problems.iter().map(word).collect() };
    let warnings = words(&outcome.warnings);
    let unset = outcome.unset;
    let is_only = |count: usize| !problems.is_empty() && problems.len() == count;
    let is_only_unfilled = is_only(outcome.unfilled);
    let is_only_unset = is_only(outcome.unset_problems);
    match outcome.servers.into_iter().next() {
        Some(parsed) if problems.is_empty() => Ok((parsed.spec, warnings)),
        _ => {
            if problems.is_empty() {
                problems = outcome.warnings;
            }
            let wrong = |problem: &Problem| Wrong::new(place(&source, problem), word(problem));
            Err(Unfit {
                problems: words(&problems),
                wrong: problems.iter().map(wrong).collect(),
                unset,
                is_only_unfilled,
                is_only_unset,
            })
        }
    }
}

/// The place of a problem within an entry, as a JSON pointer. The source has only this entry, on one line.
fn place(source: &Source, problem: &Problem) -> String {
    let Some(at) = problem.at else {
        return String::new();
    };
    let mut chars = source.text.char_indices();
    let offset = chars.nth(at.column - 1).map_or(0, |(offset, _)| offset);
    let parsed =
        jsonc_parser::parse_to_ast(&source.text, &CollectOptions::default(), &PARSE_OPTIONS);
    let mut path = Vec::new();
    if let Some(root) = parsed.ok().and_then(|parsed| parsed.value) {
        walk(&root, offset, &mut path);
    }
    // Skips `mcpServers` and the name of the entry.
    path.iter().skip(2).map(|part| format!("/{part}")).collect()
}

fn walk(value: &Value<'_>, offset: usize, path: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            let found = object
                .properties
                .iter()
                .find(|prop| span(*prop).contains(&offset));
            if let Some(prop) = found {
                path.push(prop.name.as_str().replace('~', "~0").replace('/', "~1"));
                walk(&prop.value, offset, path);
            }
        }
        Value::Array(array) => {
            let mut elements = array.elements.iter();
            if let Some(at) = elements.position(|element| span(element).contains(&offset)) {
                path.push(at.to_string());
                walk(&array.elements[at], offset, path);
            }
        }
        _ => {}
    }
}

/// Placeholders for variables if only the form of an entry is checked: a word, or the beginning of a URL.
const PLACEHOLDER_VALUES: [&str; 2] = ["x", "https://x.invalid"];

/// Like [`check`], but the variables in `unset` will be set later. Checks everything that does not depend
/// on their values.
///
/// # Errors
/// The problems, whatever the values are.
pub fn check_form(
    path: &Path,
    name: &ServerName,
    entry: &serde_json::Value,
    env: &dyn Fn(&str) -> Option<String>,
    sealed: &Arc<SealedValues>,
    unset: &BTreeSet<String>,
) -> Result<(ServerSpec, Vec<String>), Unfit> {
    let with = |placeholder: &dyn Fn(&str) -> String| {
        let env = |name: &str| match unset.contains(name) {
            true => Some(placeholder(name)),
            false => env(name),
        };
        check(path, name, entry, &env, sealed)
    };
    let mut form = with(&|name| format!("${{{name}}}"));
    for any in PLACEHOLDER_VALUES {
        form = form.or_else(|_| with(&|_| any.to_owned()));
    }
    form
}

/// Parses an entry of a project, with the project's secrets as variables. If a secret is missing, the entry is still
/// described, as unusable.
///
/// # Errors
/// The problems that do not depend on the values of secrets.
pub fn check_project(
    project: &ProjectId,
    name: &ServerName,
    entry: &serde_json::Value,
    secrets: &HashMap<String, String>,
) -> Result<ServerSpec, Unfit> {
    let path = Path::new("/");
    // First, the value of each variable `NAME` is `${NAME}`, because this form is displayed.
    let none = Arc::default();
    let mut form = check(
        path,
        name,
        entry,
        &|name| Some(format!("${{{name}}}")),
        &none,
    );
    for any in PLACEHOLDER_VALUES {
        form = form.or_else(|_| check(path, name, entry, &|_| Some(any.to_owned()), &none));
    }
    let (mut form, _) = form?;
    let filled = RefCell::new(BTreeSet::new());
    let secret = |name: &str| {
        let value = secrets.get(name).cloned()?;
        filled.borrow_mut().insert(value.clone());
        Some(value)
    };
    let mut spec = match check(path, name, entry, &secret, &none) {
        Ok((spec, _)) => spec,
        Err(unfit) => {
            let unset: Vec<String> = unfit.unset.iter().map(|name| format!("`{name}`")).collect();
            form.unusable = Some(match unfit.unset.first() {
                Some(first) => format!(
                    "secret {} of project `{project}` is not set: run `toolwharf secret set {first} --project {project}`",
                    unset.join(", ")
                ),
                None => unfit.problems.join("; "),
            });
            form.unset = unfit.unset;
            form
        }
    };
    spec.secrets = Secrets(filled.into_inner());
    (spec.declared, spec.owner) = (Declared::Project, Some(project.clone()));
    sandbox::name(&mut spec);
    Ok(spec)
}

/// The reason without the name of its server, next to which it is shown.
fn unnamed(reason: &str, server: &str) -> String {
    let reason = reason.replace(&format!(" (server `{server}`)"), "");
    reason.replace(&format!(" of server `{server}`"), "")
}

struct Entry<'e> {
    source: &'e Source,
    variables: &'e Variables<'e>,
    defaults: Defaults,
    logins: Option<&'e BTreeMap<String, Login>>,
    server: String,
    /// The variables of a disabled server need not be set.
    active: bool,
    /// True: the entry has problems, and is only read to describe its server.
    is_form: bool,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    unset: BTreeSet<String>,
    /// Variables that are not set and that a disabled server needs when it is enabled.
    lacks: BTreeSet<String>,
    unfilled: usize,
    unset_problems: usize,
    /// Variables that are access tokens, with their places.
    tokens: Vec<(String, Range<usize>)>,
    /// Headers with values of callers.
    caller_headers: BTreeMap<String, HeaderTemplate>,
}

impl<'e> Entry<'e> {
    fn new(
        source: &'e Source,
        variables: &'e Variables<'e>,
        settings: Option<&'e Settings>,
        key: &str,
    ) -> Self {
        Self {
            source,
            variables,
            defaults: settings.map_or_else(Defaults::default, |settings| settings.defaults),
            logins: settings.map(|settings| &settings.logins),
            server: printable(key),
            active: true,
            is_form: false,
            problems: Vec::new(),
            warnings: Vec::new(),
            unset: BTreeSet::new(),
            lacks: BTreeSet::new(),
            unfilled: 0,
            unset_problems: 0,
            tokens: Vec::new(),
            caller_headers: BTreeMap::new(),
        }
    }

    fn read(&mut self, found: &Found<'_, '_>) -> Option<ServerSpec> {
        let (name, invalid) = server_name(&found.key);
        if let Some(error) = invalid {
            self.wrong(found.at.clone(), error.to_string(), "rename the server");
        }
        let Value::Object(entry) = found.value else {
            let what = format!(
                "server `{}` is {}, not an object",
                self.server,
                kind(found.value)
            );
            let help = r#"write {"command": "…", "args": […]} or {"url": "…"}"#;
            self.wrong(span(found.value), what, help);
            return None;
        };
        if !found.is_named {
            let what = "an item of the list of servers has no `name`".to_owned();
            self.wrong(found.at.clone(), what, r#"add "name": "…""#);
        }
        duplicates(self.source, entry, &mut self.problems);
        if is_extension(entry) {
            let what = format!(
                "server `{}` comes from an editor extension and is ignored",
                self.server
            );
            let warning = Problem::at(self.source, found.at.clone(), what)
                .help("to use it in Toolwharf too, give it a `command` or a `url`");
            self.warnings.push(warning);
            return None;
        }
        self.unknown_keys(entry);

        let enabled = self.enabled(entry);
        if enabled && found.is_off {
            let what = format!("a list of this file switches server `{}` off", self.server);
            let warning = Problem::at(self.source, found.at.clone(), what);
            let help = "to use it, change the list: `mcp.excluded`, `mcp.allowed`, `disabledMcpServers` or the like";
            self.warnings.push(warning.help(help));
        }
        let enabled = enabled && !found.is_off;
        self.active = enabled && !self.is_form;
        let own = OwnKeys::of(entry, entry.get_object("toolwharf"));
        let origin = self.origin(found, entry, &own)?;
        self.warn_of_misplaced(entry, &origin);
        let mut spec = ServerSpec::new(name, origin);
        spec.label = label(found, entry, &spec.name);
        spec.enabled = enabled;
        spec.tools.enabled = self.tools(entry, "enabledTools");
        for key in ["disabledTools", "excludeTools"] {
            let tools = self.tools(entry, key);
            spec.tools.disabled.extend(tools.into_iter().flatten());
        }
        if let Some(timeout) = self.timeout(entry) {
            spec.call_timeout = timeout;
        }
        self.ours(entry, &mut spec);
        self.options(found, &own, &mut spec);
        self.login(entry, &mut spec);
        self.tokens(&mut spec);
        sandbox::name(&mut spec);
        Some(spec)
    }

    /// The description of a server whose entry has problems.
    fn unusable(mut self, found: &Found<'_, '_>, problems: &[Problem]) -> ServerSpec {
        let mut spec = self.read(found).unwrap_or_else(|| {
            let entry = found.value.as_object();
            let text = |key: &str| entry?.get_string(key).map(|text| text.value.to_string());
            let origin = match (text("command"), text("url")) {
                (None, Some(url)) => Origin::Remote(Remote::new(url).into()),
                (command, _) => {
                    let program = Program::Command {
                        program: command.unwrap_or_default(),
                        args: Vec::new(),
                    };
                    Origin::Launch(Launch::new(program, Place::Host).into())
                }
            };
            let (name, _) = server_name(&found.key);
            let mut spec = ServerSpec::new(name, origin);
            spec.enabled = entry.is_none_or(|entry| self.enabled(entry)) && !found.is_off;
            spec
        });
        spec.unusable = Some(unnamed(&problem::reason(problems), &self.server));
        spec
    }

    fn report(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    fn wrong(&mut self, at: Range<usize>, what: impl Into<String>, help: impl Into<String>) {
        self.report(Problem::at(self.source, at, what).help(help));
    }

    fn unknown_keys(&mut self, entry: &Object<'_>) {
        for prop in &entry.properties {
            let key = prop.name.as_str();
            let shown = printable(key);
            let server = &self.server;
            let (what, help) = if let Some(ours) = foreign::renamed(prop) {
                let what = format!("`{shown}` of server `{server}` is ignored");
                (what, format!("write `{ours}` instead"))
            } else if key == "envFile" {
                let what = format!("`envFile` of server `{server}` is ignored");
                let help = "list the variables in `env`, as `\"NAME\": \"${NAME}\"`";
                (what, help.to_owned())
            } else if is_known(key) {
                continue;
            } else if let Some(known) = nearest(key, &ENTRY_KEYS) {
                let what = format!("`{shown}` of server `{server}` is not a known key");
                (what, format!("did you mean `{known}`?"))
            } else {
                continue;
            };
            let warning = Problem::at(self.source, span(&prop.name), what);
            self.warnings.push(warning.help(help));
        }
    }

    /// Returns whether no key of any client switches the server off.
    fn enabled(&mut self, entry: &Object<'_>) -> bool {
        let mut enabled = !foreign::is_off(entry);
        for (key, is_on) in SWITCHES {
            let Some(prop) = entry.get(key) else {
                continue;
            };
            // Other clients may use such a key for something else.
            let is_ours = ENTRY_KEYS.contains(key);
            if is_ours || matches!(prop.value, Value::BooleanLit(_)) {
                enabled &= self.boolean(entry, key).is_none_or(|value| value == *is_on);
            }
        }
        let [on, off] = ["enabled", "disabled"].map(|key| entry.get_boolean(key));
        if let (Some(on), Some(off)) = (on, off)
            && on.value == off.value
        {
            let what = format!(
                "`enabled` and `disabled` of server `{}` contradict each other",
                self.server
            );
            self.report(Problem::showing(self.source, span(off), what).help("keep one of the two"));
        }
        enabled
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
            if !TOOLWHARF_KEYS.contains(&key) && !SANDBOX_KEYS.contains(&key) {
                let what = format!(
                    "`toolwharf.{}` of server `{}` is not a known option",
                    printable(key),
                    self.server
                );
                let known = [TOOLWHARF_KEYS.as_slice(), &SANDBOX_KEYS].concat();
                let help = match nearest(key, &known) {
                    Some(known) => format!("did you mean `{known}`?"),
                    None => format!("the known options are {}", known.join(", ")),
                };
                self.wrong(span(&prop.name), what, help);
            }
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
        if let Some(tools) = self.tools(ours, "enabledTools") {
            spec.tools.enabled.get_or_insert_default().extend(tools);
        }
        let disabled = self.tools(ours, "disabledTools");
        spec.tools.disabled.extend(disabled.into_iter().flatten());
    }
}

fn is_known(key: &str) -> bool {
    let lists: [&[&str]; 3] = [&ENTRY_KEYS, IGNORED_KEYS, &SANDBOX_KEYS];
    lists.iter().any(|known| known.contains(&key))
        || SWITCHES.iter().any(|(known, _)| *known == key)
}

/// The key if it is not the name, otherwise the `name` in the entry, if it differs.
fn label(found: &Found<'_, '_>, entry: &Object<'_>, name: &ServerName) -> Option<String> {
    let own = entry.get_string("name").map(|text| text.value.as_ref());
    let keys = [Some(found.key.as_ref()), own].into_iter().flatten();
    let mut labels = keys.filter(|label| !label.trim().is_empty() && *label != name.as_str());
    labels.next().map(printable)
}

/// Zed also lists servers of extensions, with nothing but their settings.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_with_unset_secrets_is_described_as_unusable() {
        let project = ProjectId::parse("p").expect("an id");
        let name = ServerName::parse("s").expect("a name");
        let check = |entry: serde_json::Value, secrets: &[(&str, &str)]| {
            let secrets = secrets
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            check_project(&project, &name, &entry, &secrets.collect())
        };
        for (entry, target) in [
            (serde_json::json!({"command": "${CMD}"}), "${CMD}"),
            (serde_json::json!({"command": "c", "args": ["${A}"]}), "c"),
            (
                serde_json::json!({"url": "https://h/mcp", "headers": {"X": "${K}"}}),
                "https://h/mcp",
            ),
            (
                serde_json::json!({"url": "${BASE}/mcp"}),
                "https://x.invalid/mcp",
            ),
            (serde_json::json!({"url": "${URL}"}), "https://x.invalid"),
        ] {
            let spec = check(entry.clone(), &[]).expect("its form is right");
            assert_eq!(spec.origin.target(), target, "{entry}");
            let why = spec.unusable.expect("it lacks something");
            assert!(why.contains("toolwharf secret set"), "{why}");
        }
        let entry = serde_json::json!({"url": "${BASE}/mcp"});
        let spec = check(entry.clone(), &[("BASE", "http://real:8")]).expect("usable");
        assert_eq!(
            (spec.origin.target().as_str(), spec.unusable),
            ("http://real:8/mcp", None)
        );
        // An invalid secret is a problem of the project, not of the entry.
        let spec = check(entry, &[("BASE", "real")]).expect("its form is right");
        assert!(spec.unusable.is_some_and(|why| why.contains("scheme")));
        check(serde_json::json!({"url": "real/mcp"}), &[]).expect_err("never usable");
    }
}
