//! Parses command lines of `npx` and `uvx`.
//!
//! # Invariants
//!
//! - Only names and versions of registry packages are accepted. For a path, a URL or a repository, npm or uv would run
//!   the package's build code outside the server's sandbox.
//! - Errors contain no option value, and no part of a URL that may be secret.

use std::path::Path;

use model::url_for_display;

/// File systems reject longer folder names.
const MAX_KEY_BYTES: usize = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Registry {
    Npm,
    Pypi,
}

/// Packages of a registry, and a program in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) registry: Registry,
    /// The name of the first package.
    pub(super) package: String,
    /// All packages, in the syntax of npm or uv, beginning with the first one.
    pub(super) specs: Vec<String>,
    /// The Python version, in the syntax of uv.
    pub(super) python: Option<String>,
    /// `None`: the default program of the package.
    pub(super) program: Option<String>,
    pub(super) args: Vec<String>,
}

/// The meaning of an option of `npx` or `uvx`.
#[derive(Clone, Copy)]
enum Meaning {
    /// The option is accepted, and has no effect on a pinned package.
    Ignored,
    /// A package; the first word is then a program.
    From,
    /// An additional package.
    With,
    Python,
}

impl Registry {
    /// The command that runs packages of the registry.
    pub(super) fn command(self) -> &'static str {
        match self {
            Self::Npm => "npx",
            Self::Pypi => "uvx",
        }
    }

    /// The registry's name, which is also the name of its folder.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Npm => "npm",
            Self::Pypi => "pypi",
        }
    }

    fn meaning(self, option: &str) -> Option<Meaning> {
        match (self, option) {
            (
                Self::Npm,
                "-y" | "--yes" | "-q" | "--quiet" | "--prefer-online" | "--prefer-offline",
            )
            | (Self::Pypi, "-q" | "--quiet" | "--isolated") => Some(Meaning::Ignored),
            (Self::Npm, "-p" | "--package") | (Self::Pypi, "--from") => Some(Meaning::From),
            (Self::Pypi, "-w" | "--with") => Some(Meaning::With),
            (Self::Pypi, "-p" | "--python") => Some(Meaning::Python),
            _ => None,
        }
    }

    /// Returns the package name in a specification, and the specification in the syntax of npm or uv.
    fn parse(self, spec: &str) -> Option<(String, String)> {
        match self {
            Self::Npm => npm(spec),
            Self::Pypi => pypi(spec),
        }
    }
}

impl Request {
    /// `None` for other commands. A path to `npx` or `uvx` means the same as its name.
    ///
    /// # Errors
    /// The text says which part of the command line is not supported.
    pub(super) fn parse(command: &str, args: &[String]) -> Result<Option<Self>, String> {
        let name = Path::new(command)
            .file_name()
            .and_then(|name| name.to_str());
        let registry = match name {
            Some("npx") => Registry::Npm,
            Some("uvx") => Registry::Pypi,
            _ => return Ok(None),
        };
        let by = registry.command();
        let (mut from, mut with, mut python) = (Vec::new(), Vec::new(), None);
        let mut words = args.iter();
        let first = loop {
            let Some(word) = words.next() else { break None };
            if word == "--" {
                break words.next();
            }
            if !word.starts_with('-') {
                break Some(word);
            }
            let (option, value) = match word.split_once('=') {
                Some((option, value)) if option.starts_with("--") => (option, Some(value)),
                _ => (word.as_str(), None),
            };
            let meaning = registry.meaning(option).ok_or_else(|| {
                let shown = option.escape_debug();
                format!(
                    "`{shown}` is not an option of `{by}` that a pinned package can have; leave it out, or install the \
                     package and give its program by its full path"
                )
            })?;
            let mut value = || {
                let value = value.or_else(|| words.next().map(String::as_str));
                value
                    .map(str::to_owned)
                    .ok_or_else(|| format!("`{by} {option}` needs a value"))
            };
            match meaning {
                Meaning::Ignored => {}
                Meaning::From => from.push(value()?),
                Meaning::With => with.push(value()?),
                Meaning::Python => python = Some(python_version(value()?)?),
            }
        };
        if registry == Registry::Pypi && from.len() > 1 {
            return Err(
                "`uvx --from` is given twice; name further packages with `--with`".to_owned(),
            );
        }
        let first = first.cloned();
        let program = if from.is_empty() {
            from.extend(first);
            None
        } else {
            let missing =
                || format!("`{by}` names a package but no program; add the program's name");
            Some(first.ok_or_else(missing)?)
        };
        if from.is_empty() {
            return Err(format!("`{by}` names no package; give one as its argument"));
        }
        if let Some(program) = program.as_deref().filter(|program| !is_file_name(program)) {
            let shown = program.escape_debug();
            return Err(format!(
                "`{shown}` is not the name of a program; `{by}` needs a name without `/`, not a path"
            ));
        }
        let mut parsed = Vec::new();
        for spec in from.iter().chain(&with) {
            parsed.push(registry.parse(spec).ok_or_else(|| {
                let shown = without_secrets(spec);
                format!(
                    "`{}` is not a package of {} (`name` or `name@version`), and Toolwharf installs nothing else with `{by}`; \
                     install it yourself and give its program by its full path",
                    shown.escape_debug(),
                    registry.name()
                )
            })?);
        }
        let (names, specs): (Vec<_>, Vec<_>) = parsed.into_iter().unzip();
        let request = Self {
            registry,
            package: names.into_iter().next().unwrap_or_default(),
            specs,
            python,
            program,
            args: words.cloned().collect(),
        };
        if request.key().len() > MAX_KEY_BYTES {
            return Err(format!(
                "the package names of `{by}` are too long for a folder name of {MAX_KEY_BYTES} bytes"
            ));
        }
        Ok(Some(request))
    }

    /// Encodes everything that affects what is installed as one name.
    pub(super) fn key(&self) -> String {
        let python = self.python.iter().map(|python| format!("python={python}"));
        let all: Vec<_> = self.specs.iter().cloned().chain(python).collect();
        let mut key = String::new();
        for character in all.join(",").chars() {
            match character {
                'a'..='z'
                | 'A'..='Z'
                | '0'..='9'
                | '.'
                | '_'
                | '-'
                | '+'
                | '@'
                | ','
                | '='
                | '~' => {
                    key.push(character);
                }
                // Specifications consist of ASCII only.
                _ => key.push_str(&format!("%{:02X}", u32::from(character))),
            }
        }
        key
    }
}

/// Removes parts that may be secret if the word is a URL.
pub(super) fn without_secrets(word: &str) -> String {
    match word.contains("://") {
        true => url_for_display(word),
        false => word.to_owned(),
    }
}

/// Returns whether `name` is a plain file name, not a path, an option or a hidden file.
pub(super) fn is_file_name(name: &str) -> bool {
    let plain = |character: char| !character.is_control() && character != '/';
    !name.is_empty() && !name.starts_with(['-', '.']) && name.chars().all(plain)
}

fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    name.starts_with(|first: char| first.is_ascii_alphanumeric()) && name.bytes().all(plain)
}

/// Accepts versions, ranges and tags.
fn is_version(version: &str, more: &[u8]) -> bool {
    let plain = |byte: u8| {
        byte.is_ascii_alphanumeric() || b".-+*<>= ".contains(&byte) || more.contains(&byte)
    };
    !version.is_empty() && version.bytes().all(plain)
}

/// Parses `name`, `@scope/name` and `name@version`.
fn npm(spec: &str) -> Option<(String, String)> {
    let at = spec
        .char_indices()
        .skip(1)
        .find(|(_, character)| *character == '@');
    let (name, version) = match at {
        Some((at, _)) => (&spec[..at], Some(&spec[at + 1..])),
        None => (spec, None),
    };
    let is_known = match name.strip_prefix('@') {
        Some(scoped) => scoped
            .split_once('/')
            .is_some_and(|(scope, name)| is_name(scope) && is_name(name)),
        // npm treats these as files.
        None => {
            is_name(name)
                && ![".tgz", ".tar.gz", ".tar"]
                    .iter()
                    .any(|file| name.ends_with(file))
        }
    };
    let is_pinned = version.is_none_or(|version| is_version(version, b"^~|_"));
    (is_known && is_pinned).then(|| (name.to_owned(), spec.to_owned()))
}

/// Parses `name` and `name[extra]`, each with `@version` or a version as in requirements: `==1.2`, `>=1,<2`.
fn pypi(spec: &str) -> Option<(String, String)> {
    let end = spec.find(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c)));
    let (name, rest) = spec.split_at(end.unwrap_or(spec.len()));
    let (extras, rest) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((extras, rest)) if extras.split(',').all(|extra| is_name(extra.trim())) => {
            (format!("[{extras}]"), rest)
        }
        Some(_) => return None,
        None => (String::new(), rest),
    };
    let version = match (rest, rest.strip_prefix('@')) {
        ("" | "@latest", _) => String::new(),
        (_, Some(version))
            if is_version(version, b"!") && !version.contains(['<', '>', '=', ' ']) =>
        {
            format!("=={version}")
        }
        (_, None)
            if rest.starts_with(['=', '<', '>', '!', '~', ' ']) && is_version(rest, b"!~,") =>
        {
            rest.to_owned()
        }
        _ => return None,
    };
    is_name(name).then(|| (name.to_owned(), format!("{name}{extras}{version}")))
}

/// Accepts versions only. uv would execute a name or a path to find its version.
fn python_version(version: String) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_digit() || b".<>=,*".contains(&byte);
    if !version.is_empty() && version.bytes().all(plain) {
        return Ok(version);
    }
    Err(format!(
        "`uvx --python` takes a version such as `3.12`, and not `{}`",
        version.escape_debug()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Request>, String> {
        let mut words = line.split(' ').map(str::to_owned);
        let command = words.next().unwrap();
        Request::parse(&command, &words.collect::<Vec<_>>())
    }

    #[test]
    fn u03_a_command_line_names_packages_a_program_and_its_arguments() {
        // Columns: line, key, first package, program, arguments.
        let table = "
            npx one                                     | one                 | one    |     |
            npx -y one@1.2.3 -y --flag                  | one@1.2.3           | one    |     | -y --flag
            npx --yes @a/one@latest x                   | @a%2Fone@latest     | @a/one |     | x
            /opt/node/bin/npx -q @a/one@^1              | @a%2Fone@%5E1       | @a/one |     |
            npx -y -- one -- x                          | one                 | one    |     | -- x
            npx -p one@1 run x                          | one@1               | one    | run | x
            npx --package=one --package two -- run -p x | one,two             | one    | run | -p x
            uvx one                                     | one                 | one    |     |
            uvx one@1.2 --from x                        | one==1.2            | one    |     | --from x
            uvx one@latest                              | one                 | one    |     |
            uvx one[a,b]==1.*                           | one%5Ba,b%5D==1.%2A | one    |     |
            uvx --from one>=1,<2 run x                  | one%3E=1,%3C2       | one    | run | x
            uvx --from=one@3 run                        | one==3              | one    | run |
            uvx -p 3.12 -q --with two one x             | one,two,python=3.12 | one    |     | x
        ";
        for row in table.trim().lines() {
            let columns: Vec<&str> = row.split('|').map(str::trim).collect();
            let [line, key, package, program, args] = columns[..] else {
                panic!("{row}");
            };
            let request = parse(line).unwrap().unwrap();
            let found = (
                request.key(),
                request.package,
                request.program,
                request.args.join(" "),
            );
            let program = (!program.is_empty()).then(|| program.to_owned());
            let [key, package, args] = [key, package, args].map(str::to_owned);
            assert_eq!(found, (key, package, program, args), "{line}");
        }
        for other in [
            "node x",
            "npm exec one",
            "/usr/bin/python3 -m one",
            "uv tool run one",
        ] {
            assert_eq!(parse(other), Ok(None), "{other}");
        }
    }

    #[test]
    fn u03_what_cannot_be_is_named() {
        let table = "
            npx                                                   | `npx` names no package
            npx -y                                                | `npx` names no package
            npx -c one                                            | `-c` is not an option of `npx`
            npx --registry=https://me:hunter2@example.com one     | `--registry` is not an option of `npx`
            npx -p                                                | `npx -p` needs a value
            npx -p one                                            | `npx` names a package but no program
            npx -p one ../run                                     | `../run` is not the name of a program
            npx ./one                                             | `./one` is not a package of npm
            npx one@npm:two                                       | `one@npm:two` is not a package of npm
            npx one@                                              | `one@` is not a package of npm
            npx one.tgz                                           | `one.tgz` is not a package of npm
            npx @one                                              | `@one` is not a package of npm
            npx @a/../b                                           | `@a/../b` is not a package of npm
            npx github:me/one                                     | `github:me/one` is not a package of npm
            npx https://me:hunter2@example.com/one?k=hunter2      | `https://example.com/one?…` is not a package
            npx -- --prefix=/                                     | `--prefix=/` is not a package of npm
            uvx                                                   | `uvx` names no package
            uvx --index-url=https://me:hunter2@example.com one    | `--index-url` is not an option of `uvx`
            uvx --from git+https://me:hunter2@example.com/one run | `git+https://example.com/one` is not a
            uvx --from one --from two run                         | `uvx --from` is given twice
            uvx one@git+https://example.com                       | `one@git+https://example.com` is not a package of pypi
            uvx one;x                                             | `one;x` is not a package of pypi
            uvx -- -r/etc/passwd                                  | `-r/etc/passwd` is not a package of pypi
            uvx --python /bin/sh one                              | and not `/bin/sh`
        ";
        for row in table.trim().lines() {
            let (line, expected) = row.trim().split_once(" | ").unwrap();
            let line = line.trim();
            let error = parse(line).unwrap_err();
            assert!(
                error.contains(expected) && !error.contains("hunter2"),
                "{line}: {error}"
            );
        }
        let long = format!("npx {}", "x".repeat(300));
        assert!(parse(&long).unwrap_err().contains("too long"));
    }
}
