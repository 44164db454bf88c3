//! Loads a configuration, or reports the problems of all files.
//!
//! Invariants: the result depends only on the files and the variables, so that hot reload and start use the same code. A
//! problem of one entry makes only its server unusable, unless the settings say otherwise. Any other problem makes the
//! whole configuration invalid.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use model::{ServerName, ServerSpec, Settings};

use super::interpolate::{Lookup, Variables, workspace_of};
use super::locate::Sources;
use super::names::long_name;
use super::problem::{ConfigError, Problem, reason};
use super::sandbox;
use super::servers::{self, Parsed};
use super::settings;
use super::shape::{MAX_PROBLEMS, printable};
use super::source::{Source, Syntax};

/// Maximum size of a configuration file, in bytes.
const MAX_FILE_BYTES: u64 = 8 * 1024 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// In the order of the files. Names are unique.
    pub servers: Vec<ServerSpec>,
    pub settings: Settings,
    /// The files that existed.
    pub sources: Vec<PathBuf>,
    /// The file of each server.
    pub origins: HashMap<ServerName, PathBuf>,
    /// Problems of single entries. Their servers are unusable.
    pub problems: Vec<Problem>,
    /// Warnings, which do not prevent the use of the configuration.
    pub warnings: Vec<Problem>,
}

impl Config {
    /// Reads all sources. `env` looks up environment variables. In server files, `sources.sealed` supplies variables that
    /// `env` does not set.
    ///
    /// # Errors
    /// All problems in all files, if one of them is not only about one entry, or if the settings require valid entries.
    pub fn load(
        sources: &Sources,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let mut problems = Vec::new();
        let mut config = Self {
            servers: Vec::new(),
            settings: settings::without_file(env),
            sources: Vec::new(),
            origins: HashMap::new(),
            problems: Vec::new(),
            warnings: Vec::new(),
        };
        let mut settings_file = None;
        // The settings are read first, because they contain the defaults for servers.
        if let Some(path) = &sources.settings
            && let Some(source) = open(path, Syntax::Toml, sources.optional, &mut problems)
        {
            let variables = Variables {
                env,
                workspace: workspace_of(path),
                sealed: Lookup::default(),
            };
            config.settings = settings::parse(&source, &variables, &mut problems);
            settings_file = Some(path.clone());
        }
        let mut seen: Vec<(Source, Vec<Parsed>)> = Vec::new();
        let sealed = sources.sealed.get();
        for path in &sources.servers {
            let Some(source) = open(path, Syntax::Json, sources.optional, &mut problems) else {
                continue;
            };
            let variables = Variables {
                env,
                workspace: workspace_of(path),
                sealed: Lookup::new(sealed.clone()),
            };
            let mut outcome = servers::parse(&source, &variables, Some(&config.settings));
            problems.append(&mut outcome.problems);
            config.problems.append(&mut outcome.entry_problems);
            config.warnings.append(&mut outcome.warnings);
            duplicates(&source, &outcome.servers, &seen, &mut problems);
            config.sources.push(path.clone());
            seen.push((source, outcome.servers));
        }
        config.sources.extend(settings_file);
        same_names(&mut seen, &mut config.problems);
        let is_refused = !problems.is_empty() || config.settings.require_valid_entries;
        if is_refused {
            problems.append(&mut config.problems);
        }
        // Sorted by file, in the order in which the files were given, then by line.
        let order: Vec<&Path> = sources.files().collect();
        let file = |p: &Problem| order.iter().position(|path| *path == p.file);
        problems.sort_by_key(|problem| (file(problem), problem.at));
        config
            .problems
            .sort_by_key(|problem| (file(problem), problem.at));
        if !problems.is_empty() {
            return Err(problems.into());
        }
        for (source, parsed) in &seen {
            let names = parsed.iter().map(|parsed| parsed.spec.name.clone());
            config
                .origins
                .extend(names.map(|name| (name, source.path.clone())));
        }
        config.servers = seen
            .into_iter()
            .flat_map(|(_, parsed)| parsed)
            .map(|parsed| parsed.spec)
            .collect();
        config.unknown_servers(sources);
        Ok(config)
    }

    /// Warns about unknown servers in projects. They may be added later.
    fn unknown_servers(&mut self, sources: &Sources) {
        let Some(file) = &sources.settings else {
            return;
        };
        for (project, view) in &self.settings.projects {
            let named = view.servers.iter().flatten();
            let tools = view.disabled_tools.iter().chain(&view.listed_tools);
            let tools = tools.map(|tool| &tool.server);
            for server in named.chain(tools) {
                if !self.servers.iter().any(|spec| spec.name == *server) {
                    let what = format!(
                        "project `{project}` names the server `{server}`, which is not configured"
                    );
                    let help = "correct the name, or add the server with `toolwharf add`";
                    self.warnings.push(Problem::of_file(file, what).help(help));
                }
            }
        }
    }
}

/// All settings, with the values from the settings file. If it cannot be read, no values are returned, and
/// [`Config::load`] reports the reason.
#[must_use]
pub fn all_settings(sources: &Sources) -> Vec<settings::Setting> {
    let file = sources.settings.as_ref();
    let source = file.and_then(|path| open(path, Syntax::Toml, true, &mut Vec::new()));
    settings::told(source.as_ref())
}

/// Reports keys that another container of the same file, or another file, already has.
fn duplicates(
    source: &Source,
    parsed: &[Parsed],
    seen: &[(Source, Vec<Parsed>)],
    problems: &mut Vec<Problem>,
) {
    let mut first: HashMap<&str, (&Source, usize)> = HashMap::new();
    for (source, parsed) in seen {
        for server in parsed {
            first
                .entry(&server.key)
                .or_insert((source, server.at.start));
        }
    }
    for server in parsed {
        let Some((there, offset)) = first.get(server.key.as_str()) else {
            first.insert(&server.key, (source, server.at.start));
            continue;
        };
        if problems.len() >= MAX_PROBLEMS {
            return;
        }
        let what = format!("server `{}` is defined twice", printable(&server.key));
        problems.push(
            Problem::at(source, server.at.clone(), what)
                .see(there, *offset, "first defined here")
                .help("rename or remove one of the two"),
        );
    }
}

/// Makes a server unusable if the name that its key gives belongs to another one. A key that is itself the name has
/// precedence, then the first key.
fn same_names(seen: &mut [(Source, Vec<Parsed>)], problems: &mut Vec<Problem>) {
    let all = seen.iter().flat_map(|(_, parsed)| parsed);
    let literal = all.filter(|server| server.key == server.spec.name.as_str());
    let mut taken: HashMap<ServerName, String> = literal
        .map(|server| (server.spec.name.clone(), server.key.clone()))
        .collect();
    for (source, parsed) in seen {
        let derived = |server: &&mut Parsed| server.key != server.spec.name.as_str();
        for server in parsed.iter_mut().filter(derived) {
            let spec = &mut server.spec;
            let Some(other) = taken.get(&spec.name) else {
                taken.insert(spec.name.clone(), server.key.clone());
                continue;
            };
            let what = format!(
                "server `{}` would get the name `{}`, which `{}` has",
                printable(&server.key),
                spec.name,
                printable(other)
            );
            let problem =
                Problem::at(source, server.at.clone(), what).help("rename one of the two");
            spec.unusable
                .get_or_insert(reason(std::slice::from_ref(&problem)));
            if problems.len() < MAX_PROBLEMS {
                problems.push(problem);
            }
            let long = long_name(&server.key);
            let numbered = (2..).map(|n| long_name(&format!("{n}-{}", server.key)));
            let mut free = std::iter::once(long).chain(numbered);
            if let Some(name) = free.find(|name| !taken.contains_key(name)) {
                taken.insert(name.clone(), server.key.clone());
                spec.name = name;
            }
            sandbox::name(spec);
        }
    }
}

fn open(
    path: &Path,
    syntax: Syntax,
    optional: bool,
    problems: &mut Vec<Problem>,
) -> Option<Source> {
    match read(path) {
        Ok(text) => Some(Source::new(path, text, syntax)),
        Err(Unreadable::Missing) if optional => None,
        Err(error) => {
            problems.push(error.problem(path));
            None
        }
    }
}

/// Why the text of a file could not be read.
#[derive(Debug)]
pub(crate) enum Unreadable {
    Missing,
    TooLarge,
    NotUtf8 { line: usize },
    Io(std::io::Error),
}

impl Unreadable {
    pub(crate) fn problem(&self, path: &Path) -> Problem {
        match self {
            Self::Missing => Problem::of_file(path, "the file does not exist")
                .help("check the path, or create the file with `toolwharf add`"),
            Self::TooLarge => Problem::of_file(path, "the file is larger than 8 MiB")
                .help("give the path of the file that contains the servers"),
            Self::NotUtf8 { line } => {
                Problem::of_file(path, format!("line {line} is not UTF-8 text"))
                    .help("save the file as UTF-8")
            }
            Self::Io(error) => {
                Problem::of_file(path, format!("the file cannot be read: {}", error.kind()))
                    .help("check the path and its permissions")
            }
        }
    }
}

/// The text of a regular file of limited size.
pub(crate) fn read(path: &Path) -> Result<String, Unreadable> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Unreadable::Missing);
        }
        Err(error) => return Err(Unreadable::Io(error)),
    };
    read_from(file)
}

/// The text of an open file of limited size.
pub(crate) fn read_from(file: std::fs::File) -> Result<String, Unreadable> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(Unreadable::Io)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(Unreadable::TooLarge);
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|b| **b == b'\n').count() + 1;
        Unreadable::NotUtf8 { line }
    })
}
