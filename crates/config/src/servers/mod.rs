//! Parses server specifications from the text of a file, and reports all problems.
//!
//! Keys of an entry: `command`, `args`, `env`, `cwd`, `type` or `transport`, `url` (also `serverUrl`, `httpUrl`),
//! `headers`, `disabled` or `enabled`, `timeout`, `disabledTools` (also `excludeTools`), and Toolwharf's own options
//! under `toolwharf`. The sandbox options can also be at the top level. Other keys belong to other clients and are
//! ignored, with a warning if one looks like a typo.
//!
//! `timeout` is in milliseconds, as in Claude Code and Gemini CLI. Below 1000 it is in seconds, as in Cline: half a
//! second would be too short to be meant, and Claude Code ignores such values.

mod confined;
mod login;
mod misplaced;
mod origin;
mod values;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;

use api::Wrong;
use jsonc_parser::CollectOptions;
use jsonc_parser::ast::{Object, ObjectProp, Value};
use jsonc_parser::common::Ranged;
use model::{Declared, Defaults, Login, ProjectId, Secrets, ServerName, ServerSpec, Settings};

use super::interpolate::{Variables, workspace_of};
use super::keys::{ENTRY_KEYS, SANDBOX_KEYS, TOOLWHARF_KEYS};
use super::problem::{Problem, nearest};
use super::sandbox;
use super::shape::{self, PARSE_OPTIONS, duplicates, kind, printable, span};
use super::source::{Source, Syntax};
use confined::OwnKeys;
pub use login::login_variables;
pub use misplaced::misplaced;

/// A server, and the place of its name.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub spec: ServerSpec,
    pub offset: usize,
}

/// The content of a file.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub servers: Vec<Parsed>,
    pub problems: Vec<Problem>,
    pub warnings: Vec<Problem>,
    /// Required variables that are not set. Each one is also among the problems.
    unset: BTreeSet<String>,
    /// The number of problems about texts whose variables could not be filled in.
    unfilled: usize,
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
}

/// Keys of other clients that resemble Toolwharf's keys, but must not cause a warning about a typo.
const FOREIGN_KEYS: &[&str] = &[
    "name",
    "trust",
    "tools",
    "alwaysAllow",
    "autoApprove",
    "source",
];

/// Parses the servers of a file. `settings` contain the defaults and the logins. `None`: they are not known.
pub(crate) fn parse(
    source: &Source,
    variables: &Variables<'_>,
    settings: Option<&Settings>,
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut warnings = Vec::new();
    let mut servers = Vec::new();
    let mut unset = BTreeSet::new();
    let mut unfilled = 0;
    shape::servers(source, &mut outcome.problems, |prop, problems| {
        let mut entry = Entry {
            source,
            variables,
            defaults: settings.map_or_else(Defaults::default, |settings| settings.defaults),
            logins: settings.map(|settings| &settings.logins),
            server: printable(prop.name.as_str()),
            active: true,
            problems: Vec::new(),
            warnings: Vec::new(),
            unset: BTreeSet::new(),
            unfilled: 0,
            tokens: Vec::new(),
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
        unset.append(&mut entry.unset);
        unfilled += entry.unfilled;
        if warnings.len() < shape::MAX_PROBLEMS {
            warnings.append(&mut entry.warnings);
        }
    });
    outcome.servers = servers;
    outcome.unset = unset;
    outcome.unfilled = unfilled;
    outcome.warnings = warnings;
    outcome
}

/// Parses a single entry as if it were in the file `path`. Returns its specification and warnings.
///
/// # Errors
/// The problems, without places in a text, because the user has not seen the text.
pub fn check(
    path: &Path,
    name: &ServerName,
    entry: &serde_json::Value,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(ServerSpec, Vec<String>), Unfit> {
    let text = serde_json::json!({"mcpServers": {name.as_str(): entry}}).to_string();
    let source = Source::new(path, text, Syntax::Json);
    let variables = Variables {
        env,
        workspace: workspace_of(path),
    };
    let outcome = parse(&source, &variables, None);
    let word = |problem: &Problem| match &problem.help {
        Some(help) => format!("{} ({help})", problem.what),
        None => problem.what.clone(),
    };
    let words = |problems: &[Problem]| -> Vec<String> { problems.iter().map(word).collect() };
    let warnings = words(&outcome.warnings);
    let unset = outcome.unset;
    let is_only_unfilled =
        !outcome.problems.is_empty() && outcome.problems.len() == outcome.unfilled;
    match outcome.servers.into_iter().next() {
        Some(parsed) if outcome.problems.is_empty() => Ok((parsed.spec, warnings)),
        _ => {
            let problems = match outcome.problems.is_empty() {
                true => outcome.warnings,
                false => outcome.problems,
            };
            let wrong = |problem: &Problem| Wrong::new(place(&source, problem), word(problem));
            Err(Unfit {
                problems: words(&problems),
                wrong: problems.iter().map(wrong).collect(),
                unset,
                is_only_unfilled,
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
    let mut form = check(path, name, entry, &|name| Some(format!("${{{name}}}")));
    for any in PLACEHOLDER_VALUES {
        form = form.or_else(|_| check(path, name, entry, &|_| Some(any.to_owned())));
    }
    let (mut form, _) = form?;
    let filled = RefCell::new(BTreeSet::new());
    let secret = |name: &str| {
        let value = secrets.get(name).cloned()?;
        filled.borrow_mut().insert(value.clone());
        Some(value)
    };
    let mut spec = match check(path, name, entry, &secret) {
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
            form
        }
    };
    spec.secrets = Secrets(filled.into_inner());
    (spec.declared, spec.owner) = (Declared::Project, Some(project.clone()));
    sandbox::name(&mut spec);
    Ok(spec)
}

struct Entry<'e> {
    source: &'e Source,
    variables: &'e Variables<'e>,
    defaults: Defaults,
    logins: Option<&'e BTreeMap<String, Login>>,
    server: String,
    /// The variables of a disabled server need not be set.
    active: bool,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    unset: BTreeSet<String>,
    unfilled: usize,
    /// Variables that are access tokens, with their places.
    tokens: Vec<(String, Range<usize>)>,
}

impl Entry<'_> {
    fn read(&mut self, prop: &ObjectProp<'_>) -> Option<ServerSpec> {
        let name = match ServerName::parse(prop.name.as_str()) {
            Ok(name) => Some(name),
            Err(error) => {
                let at = span(&prop.name);
                self.wrong(at, error.to_string(), "rename the server");
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
            self.wrong(span(&prop.value), what, help);
            return None;
        };
        duplicates(self.source, entry, &mut self.problems);
        if is_extension(entry) {
            let what = format!(
                "server `{}` comes from an editor extension and is ignored",
                self.server
            );
            let warning = Problem::at(self.source, span(&prop.name), what)
                .help("to use it in Toolwharf too, give it a `command` or a `url`");
            self.warnings.push(warning);
            return None;
        }
        self.unknown_keys(entry);

        let enabled = self.enabled(entry);
        self.active = enabled;
        let own = OwnKeys::of(entry, entry.get_object("toolwharf"));
        let origin = self.origin(prop, entry, &own);
        let (name, origin) = (name?, origin?);
        self.warn_of_misplaced(entry, &origin);
        let mut spec = ServerSpec::new(name, origin);
        spec.enabled = enabled;
        for key in ["disabledTools", "excludeTools"] {
            spec.disabled_tools.extend(self.tools(entry, key));
        }
        if let Some(timeout) = self.timeout(entry) {
            spec.call_timeout = timeout;
        }
        self.ours(entry, &mut spec);
        self.options(prop, &own, &mut spec);
        self.login(entry, &mut spec);
        self.tokens(&mut spec);
        sandbox::name(&mut spec);
        Some(spec)
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
            let lists: [&[&str]; 3] = [&ENTRY_KEYS, FOREIGN_KEYS, &SANDBOX_KEYS];
            if lists.iter().any(|known| known.contains(&key)) {
                continue;
            }
            let server = &self.server;
            let warning = |what: String, help: String| {
                Problem::at(self.source, span(&prop.name), what).help(help)
            };
            if key == "includeTools" {
                self.warnings.push(warning(
                    format!(
                        "`includeTools` of server `{server}` is ignored: all tools are offered"
                    ),
                    "list the tools to hide in `disabledTools`".to_owned(),
                ));
            } else if key == "envFile" {
                self.warnings.push(warning(
                    format!("`envFile` of server `{server}` is ignored"),
                    "list the variables in `env`, as `\"NAME\": \"${NAME}\"`".to_owned(),
                ));
            } else if let Some(known) = nearest(key, &ENTRY_KEYS) {
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
        spec.disabled_tools
            .extend(self.tools(ours, "disabledTools"));
    }
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
