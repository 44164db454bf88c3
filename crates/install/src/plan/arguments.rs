//! Arguments, variables and ports of a package.

use std::collections::BTreeMap;

use super::{Bind, Format, Kind, Part, Plan, Template, Word};
use crate::document::{Argument, Input, Named, Package, Transport};

impl Plan {
    /// Reads the options of `npx`, `uvx` and `docker run`. Few options make sense here, and some would run another
    /// program.
    pub(super) fn runtime_arguments(&mut self, at: &str, package: &Package) {
        for (index, argument) in package.runtime_arguments.iter().enumerate() {
            let at = format!("{at}/runtimeArguments/{index}");
            let name = argument
                .name
                .as_deref()
                .or(argument.input.value.as_deref())
                .unwrap_or_default();
            let value = argument
                .input
                .value
                .as_deref()
                .filter(|_| argument.name.is_some());
            match (self.kind, name) {
                (Kind::Npm, "-y" | "--yes")
                | (Kind::Oci, "-i" | "--interactive" | "--rm" | "--init")
                    if value.is_none_or(|value| value == "true") => {}
                (Kind::Pypi, "--python")
                    if value
                        .is_some_and(|v| v.bytes().all(|b| b.is_ascii_digit() || b == b'.')) =>
                {
                    self.options =
                        vec!["--python".to_owned(), value.unwrap_or_default().to_owned()];
                }
                (Kind::Oci, "-e" | "--env") => self.docker_env(&at, argument),
                (Kind::Oci, "--mount") => self.docker_mount(&at, argument),
                _ => {
                    let shown: String = name.chars().take(60).collect();
                    let why = format!("`{shown}` is not a supported option for starting a server");
                    self.refuse(at, why);
                }
            }
        }
    }

    /// `-e NAME={value}`.
    fn docker_env(&mut self, at: &str, argument: &Argument) {
        let text = argument.input.value.clone().unwrap_or_default();
        let (name, value) = text.split_once('=').unwrap_or((&text, ""));
        let mut input = argument.input.clone();
        input.value = text.contains('=').then(|| value.to_owned());
        let variable = Named {
            name: name.to_owned(),
            input,
        };
        self.variable(at, &variable);
    }

    /// `--mount type=bind,src={source},dst={target}`: a folder that the user chooses at installation.
    fn docker_mount(&mut self, at: &str, argument: &Argument) {
        let mut parts = BTreeMap::new();
        for part in argument
            .input
            .value
            .as_deref()
            .unwrap_or_default()
            .split(',')
        {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let key = match key {
                "src" => "source",
                "dst" | "destination" => "target",
                "ro" => "readonly",
                key => key,
            };
            parts.insert(key, value);
        }
        let known = ["type", "source", "target", "readonly"];
        let source = parts.get("source").copied().unwrap_or_default();
        let name = source
            .strip_prefix('{')
            .and_then(|source| source.strip_suffix('}'));
        let variable = name.and_then(|name| argument.input.variables.get(name));
        let is_given = variable.is_some_and(|variable| variable.value.is_none());
        if parts.get("type") != Some(&"bind")
            || !is_given
            || parts.keys().any(|key| !known.contains(key))
        {
            return self.refuse(
                at.to_owned(),
                "may only mount a folder that the user chooses at installation",
            );
        }
        let of = |value: &str| Input {
            value: Some(value.to_owned()),
            ..argument.input.clone()
        };
        let host = self.template(&of(source), "source");
        if let [Part::Field(field)] = host[..] {
            let field = &mut self.fields[field];
            (field.format, field.preset) = (Format::Path, None);
        }
        let inside = self.template(
            &of(parts.get("target").copied().unwrap_or_default()),
            "target",
        );
        let is_read_only = parts.contains_key("readonly");
        self.binds.push(Bind {
            host,
            inside,
            is_read_only,
        });
    }

    pub(super) fn argument(&mut self, at: String, argument: &Argument) {
        let input = &argument.input;
        let number = self.words.len() + 1;
        match argument.kind.as_str() {
            "positional" => {
                let name = argument
                    .value_hint
                    .clone()
                    .unwrap_or_else(|| format!("argument{number}"));
                let first = self.fields.len();
                let value = Some(self.template(input, &name));
                self.repeats(first, argument);
                self.words.push(Word {
                    at,
                    flag: None,
                    value,
                    switch: None,
                });
            }
            "named" => {
                let flag = argument.name.clone().unwrap_or_default();
                let is_flag = flag.starts_with('-')
                    && !flag.contains(char::is_whitespace)
                    && !flag.trim_start_matches('-').is_empty();
                if !is_flag {
                    return self
                        .refuse(format!("{at}/name"), "must be an option, such as `--port`");
                }
                let name = flag.trim_start_matches('-').to_owned();
                let is_bare = input.value.is_none()
                    && input.preset.is_none()
                    && input.placeholder.is_none()
                    && input.choices.is_empty()
                    && input.format.is_none()
                    && !input.is_secret
                    && argument.value_hint.is_none();
                let first = self.fields.len();
                let (value, switch) = if is_bare && input.is_required {
                    (None, None)
                } else if input.format.as_deref() == Some("boolean") && input.value.is_none()
                    || is_bare && input.description.is_none()
                {
                    let of_switch = Input {
                        format: Some("boolean".to_owned()),
                        ..input.clone()
                    };
                    match self.template(&of_switch, &name)[..] {
                        [Part::Field(field)] => (None, Some(field)),
                        _ => (None, None),
                    }
                } else {
                    (Some(self.template(input, &name)), None)
                };
                self.repeats(first, argument);
                self.words.push(Word {
                    at,
                    flag: Some(flag),
                    value,
                    switch,
                });
            }
            _ => self.refuse(format!("{at}/type"), "must be `positional` or `named`"),
        }
    }

    fn repeats(&mut self, first: usize, argument: &Argument) {
        if let (true, [field]) = (argument.is_repeated, &mut self.fields[first..]) {
            field.is_repeated = true;
        }
    }

    pub(super) fn variable(&mut self, at: &str, variable: &Named) {
        let name = &variable.name;
        if self.may_set(&format!("{at}/name"), name) {
            let template = self.template(&variable.input, name);
            self.env.push((name.clone(), template));
        }
    }

    /// A variable from a bundle's manifest. Variables of the entry take precedence.
    pub(crate) fn manifest_variable(&mut self, at: &str, name: &str, value: Template) {
        if self.may_set(at, name) && !self.env.iter().any(|(known, _)| known == name) {
            self.env.push((name.to_owned(), value));
        }
    }

    /// Returns true if an entry may set this variable, and refuses the plan otherwise.
    fn may_set(&mut self, at: &str, name: &str) -> bool {
        if !config::is_variable(name) {
            let why = format!("`{name}` is not a valid variable name");
            self.refuse(at.to_owned(), why);
            return false;
        }
        // An entry must not change how programs, npm and uv are found and loaded.
        let upper = name.to_ascii_uppercase();
        let is_ours = ["LD_", "DYLD_", "NPM_CONFIG_", "UV_", "PIP_", "TOOLWHARF_"]
            .iter()
            .any(|prefix| upper.starts_with(prefix));
        if is_ours
            || [
                "PATH",
                "HOME",
                "NODE_OPTIONS",
                "PYTHONSTARTUP",
                "BASH_ENV",
                "ENV",
                "IFS",
            ]
            .contains(&upper.as_str())
        {
            let why = format!(
                "`{name}` changes how programs are found or loaded; registry entries may not set it"
            );
            self.refuse(at.to_owned(), why);
            return false;
        }
        true
    }

    pub(super) fn transport(&mut self, at: &str, transport: &Transport) {
        match transport.kind.as_str() {
            "stdio" => {}
            "streamable-http" => {
                let url = transport.url.clone().unwrap_or_default();
                let known: BTreeMap<String, usize> = self
                    .fields
                    .iter()
                    .enumerate()
                    .map(|(at, field)| (field.name.clone(), at))
                    .collect();
                let input = Input {
                    value: Some(url),
                    variables: transport.variables.clone(),
                    ..Input::default()
                };
                self.url = Some(self.template_with(&input, "url", &known));
            }
            "sse" => self.refuse(
                format!("{at}/type"),
                "`sse` is only supported for remote servers",
            ),
            _ => self.refuse(format!("{at}/type"), "must be `stdio` or `streamable-http`"),
        }
    }
}
