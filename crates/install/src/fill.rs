//! Fills values into a plan. The result is an entry for `mcp.json` and the secrets that it refers to.
//!
//! Invariants: a value is one argument, or a part of one, whatever its contents. No text from a registry or a value is
//! expanded as a variable (`${…}`): only references to secrets, whose names this module chooses, are expanded.
//! Only inputs that ask for a path can expose host paths to the sandbox.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path},
};

use api::Wrong;
use model::ServerName;
use serde_json::{Value, json};
use url::{Host, Url};

use super::{
    document::is_odd,
    fetch::is_local,
    plan::{Field, Format, Kind, Part, Plan, Template},
};

/// Maximum bytes of a value. A secret may be a key with several lines.
const MAX_VALUE_BYTES: usize = 16 << 10;
/// Maximum values of one input.
const MAX_VALUES: usize = 32;
/// The folder of a bundle in its sandbox.
pub(super) const BUNDLE: &str = "/bundle";

/// The target of the installation, which decides where secrets are stored.
pub enum Place<'p> {
    /// In `mcp.json`: secrets of the configuration file. The function returns the value of a variable that is set, in the
    /// environment of the gateway or as a secret.
    File(&'p (dyn Fn(&str) -> Option<String> + Sync)),
    /// In a project, which stores secrets.
    Project,
}

/// An entry with its secrets, network access and mounts.
#[derive(Debug)]
pub struct Filled {
    pub entry: Value,
    /// Secrets to store, of the project or of the configuration file, by name.
    pub secrets: BTreeMap<String, String>,
    pub network: Value,
    pub mounts: Vec<String>,
}

/// The values of each field as used in texts of the entry: `${` escaped, secrets by name.
struct Values {
    texts: Vec<Vec<String>>,
    secrets: BTreeMap<String, String>,
}

impl Plan {
    /// # Errors
    /// All errors. Errors in values have a place below `/values`; errors in the entry have a place in the entry.
    pub fn fill(
        &self,
        server: &ServerName,
        given: &BTreeMap<String, Value>,
        writable: &[String],
        place: &Place<'_>,
    ) -> Result<Filled, Vec<Wrong>> {
        if !self.refused.is_empty() {
            return Err(self.refused.clone());
        }
        let mut wrong = Vec::new();
        for name in given
            .keys()
            .filter(|name| !self.fields.iter().any(|it| it.name == **name))
        {
            wrong.push(Wrong::new(pointer(name), "is not an input of this server"));
        }
        let paths = |name: &String| {
            self.fields
                .iter()
                .any(|it| it.name == *name && it.format == Format::Path)
        };
        for name in writable.iter().filter(|name| !paths(name)) {
            wrong.push(Wrong::new(
                "/writable",
                format!("`{name}` is not an input for a path"),
            ));
        }
        let values = self.values(server, given, place, &mut wrong);
        let filled = match self.kind {
            Kind::Remote => self.remote(&values, &mut wrong),
            _ => self.launched(&values, writable, &mut wrong),
        };
        match filled {
            Some((entry, mounts)) if wrong.is_empty() => Ok(Filled {
                entry,
                secrets: values.secrets,
                network: self.reaches(),
                mounts,
            }),
            _ => Err(wrong),
        }
    }

    /// The secret inputs whose variables are set. An installation into `mcp.json` uses these values unless others are
    /// given.
    pub fn already_set(&self, is_set: &dyn Fn(&str) -> bool) -> Vec<String> {
        let secrets = self.fields.iter().filter(|field| field.is_secret);
        let set = secrets.filter(|field| is_set(&variable(&field.name)));
        set.map(|field| field.name.clone()).collect()
    }

    fn values(
        &self,
        server: &ServerName,
        given: &BTreeMap<String, Value>,
        place: &Place<'_>,
        wrong: &mut Vec<Wrong>,
    ) -> Values {
        let mut values = Values {
            texts: Vec::new(),
            secrets: BTreeMap::new(),
        };
        for field in &self.fields {
            let at = pointer(&field.name);
            let texts = match field.texts(given.get(&field.name)) {
                Ok(texts) => texts,
                Err(why) => {
                    wrong.push(Wrong::new(at, why));
                    values.texts.push(Vec::new());
                    continue;
                }
            };
            let texts: Vec<String> = match (field.is_secret, place) {
                (false, _) => texts.iter().map(|text| escaped(text)).collect(),
                (true, Place::Project) => {
                    let name = variable(&format!("{server}_{}", field.name));
                    let set = texts.first().cloned();
                    set.into_iter()
                        .map(|value| named(&mut values.secrets, &name, value))
                        .collect()
                }
                (true, Place::File(current)) => match texts.first() {
                    Some(value) => {
                        let names = [
                            variable(&field.name),
                            variable(&format!("{server}_{}", field.name)),
                        ];
                        vec![shared(&mut values.secrets, names, value, current)]
                    }
                    None => {
                        let name = variable(&field.name);
                        let set = current(&name).map(|_| format!("${{{name}}}"));
                        set.into_iter().collect()
                    }
                },
            };
            if field.is_required && texts.is_empty() && !wrong.iter().any(|it| it.pointer == at) {
                let way_out = match (field.is_secret, place) {
                    (true, Place::File(_)) => format!(
                        ": give its value, or run `toolwharf secret set {}` first",
                        variable(&field.name)
                    ),
                    _ => String::new(),
                };
                wrong.push(Wrong::new(at, format!("is required{way_out}")));
            }
            values.texts.push(texts);
        }
        values
    }

    fn remote(&self, values: &Values, wrong: &mut Vec<Wrong>) -> Option<(Value, Vec<String>)> {
        let Some(url) = self.url.as_ref().and_then(|url| values.one(url)) else {
            wrong.push(Wrong::new(
                "/remotes",
                "has a URL with inputs, and one of them has no value",
            ));
            return None;
        };
        if !self.may_reach(&url) {
            let must = "must be a public https address";
            wrong.push(Wrong::new(
                "/remotes/url",
                format!("`{}` {must}", model::url_for_display(&url)),
            ));
        }
        let headers: BTreeMap<&String, String> = self
            .headers
            .iter()
            .filter_map(|(name, value)| Some((name, values.one(value)?)))
            .collect();
        let kind = if self.is_sse { "sse" } else { "http" };
        let mut entry = json!({"type": kind, "url": url});
        if !headers.is_empty() {
            entry["headers"] = json!(headers);
        }
        Some((entry, Vec::new()))
    }

    fn may_reach(&self, url: &str) -> bool {
        let Ok(url) = Url::parse(url) else {
            return false;
        };
        let has_user = !url.username().is_empty() || url.password().is_some();
        let is_public = match url.host() {
            Some(Host::Domain(name)) => name != "localhost" && !name.ends_with(".localhost"),
            Some(Host::Ipv4(ip)) => model::is_public(ip.into()),
            Some(Host::Ipv6(ip)) => model::is_public(ip.into()),
            None => false,
        };
        let is_here = self.may_be_local && is_local(&url) && url.scheme() == "http";
        !has_user && (is_here || is_public && url.scheme() == "https")
    }

    fn launched(
        &self,
        values: &Values,
        writable: &[String],
        wrong: &mut Vec<Wrong>,
    ) -> Option<(Value, Vec<String>)> {
        let mut args = self.program();
        for word in &self.words {
            match values.words(word.flag.as_deref(), word.value.as_ref(), word.switch) {
                Ok(words) => {
                    for text in &words {
                        if let Err(why) = self.fits(text, word.value.as_ref()) {
                            wrong.push(Wrong::new(self.place(&word.at, word.value.as_ref()), why));
                        }
                    }
                    args.extend(words);
                }
                Err(why) => wrong.push(Wrong::new(self.place(&word.at, word.value.as_ref()), why)),
            }
        }
        let env: BTreeMap<&String, String> = self
            .env
            .iter()
            .filter_map(|(name, value)| Some((name, values.one(value)?)))
            .collect();
        let mut ours = json!({"sandbox": true});
        if self.is_open {
            ours["network"] = "open".into();
        } else if !self.network.is_empty() {
            let hosts = self.network.iter().map(|host| escaped(host));
            ours["network"] = hosts.collect();
        }
        if !self.volumes.is_empty() {
            ours["volumes"] = self.volumes.iter().map(|path| escaped(path)).collect();
        }
        let mounts = self.mounts(values, writable);
        if !mounts.is_empty() {
            ours["mounts"] = json!(mounts);
        }
        if let Some(url) = &self.url {
            match values.one(url).as_deref().map(listening) {
                Some(Some((port, path))) => {
                    ours["port"] = port.into();
                    ours["path"] = escaped(&path).into();
                }
                _ => wrong.push(Wrong::new("/packages/transport/url", "must be an http URL of this host with a port, such as `http://127.0.0.1:8080/mcp`")),
            }
        }
        let mut entry = match self.kind {
            Kind::Oci => json!({"image": escaped(&self.target)}),
            _ => json!({"command": args.remove(0)}),
        };
        if !args.is_empty() {
            entry["args"] = args.into();
        }
        if !env.is_empty() {
            entry["env"] = json!(env);
        }
        entry["toolwharf"] = ours;
        Some((entry, mounts))
    }

    /// The program and its options before the entry's arguments.
    fn program(&self) -> Vec<String> {
        let spec = |sign: &str| match &self.version {
            Some(version) => format!("{}{sign}{version}", self.target),
            None => self.target.clone(),
        };
        match self.kind {
            Kind::Npm => vec!["npx".to_owned(), "-y".to_owned(), spec("@")],
            Kind::Pypi => {
                let options = self.options.iter().cloned();
                ["uvx".to_owned()]
                    .into_iter()
                    .chain(options)
                    .chain([spec("==")])
                    .collect()
            }
            Kind::Mcpb => vec![self.program.clone().unwrap_or_default()],
            Kind::Oci | Kind::Nuget | Kind::Remote => Vec::new(),
        }
    }

    /// Host folders: from path inputs, image mounts and the bundle.
    fn mounts(&self, values: &Values, writable: &[String]) -> Vec<String> {
        let mode = |field: &Field| {
            if writable.contains(&field.name) {
                "rw"
            } else {
                "ro"
            }
        };
        let mut mounts = BTreeSet::new();
        let mut bound = BTreeSet::new();
        for bind in &self.binds {
            let (Some(host), Some(inside)) = (values.one(&bind.host), values.one(&bind.inside))
            else {
                continue;
            };
            if let [Part::Field(field)] = bind.host[..] {
                bound.insert(field);
                let mode = if bind.is_read_only {
                    "ro"
                } else {
                    mode(&self.fields[field])
                };
                mounts.insert(format!("{host}:{inside}:{mode}"));
            }
        }
        for (at, field) in self.fields.iter().enumerate() {
            if field.format == Format::Path && !bound.contains(&at) {
                let paths = values.texts[at].iter();
                mounts.extend(paths.map(|path| format!("{path}:{path}:{}", mode(field))));
            }
        }
        if let Some(folder) = &self.folder {
            mounts.insert(format!(
                "{}:{BUNDLE}:ro",
                escaped(&folder.display().to_string())
            ));
        }
        mounts.into_iter().collect()
    }

    /// Refuses host paths that no input asked for, since the sandbox would expose them to its program.
    fn fits(&self, word: &str, value: Option<&Template>) -> Result<(), &'static str> {
        let is_below = |folder: &str| Path::new(word).starts_with(folder) && !word.contains("..");
        let is_path = value.is_some_and(|value| matches!(value[..], [Part::Field(at)] if self.fields[at].format == Format::Path));
        if !word.starts_with('/')
            || self.kind == Kind::Oci
            || is_path
            || is_below(BUNDLE)
            || self.volumes.iter().any(|volume| is_below(volume))
        {
            return Ok(());
        }
        Err("is a path of this host; only inputs with the format `filepath` may be paths")
    }

    /// The place to report for a wrong argument: its first input, or the entry.
    fn place(&self, at: &str, value: Option<&Template>) -> String {
        match value.map(Vec::as_slice) {
            Some([Part::Field(field), ..]) => pointer(&self.fields[*field].name),
            _ => at.to_owned(),
        }
    }
}

impl Values {
    /// A text with its fields filled in; `None` if one of them has no value.
    fn one(&self, template: &Template) -> Option<String> {
        self.at(template, 0)
    }

    fn at(&self, template: &Template, index: usize) -> Option<String> {
        let mut text = String::new();
        for part in template {
            match part {
                Part::Text(part) => text.push_str(&escaped(part)),
                // A field with too few values repeats its first value.
                Part::Field(field) => {
                    let values = &self.texts[*field];
                    text.push_str(values.get(index).or(values.first())?);
                }
            }
        }
        Some(text)
    }

    /// The words of an argument. There are none if one of its fields has no value, and several if a field has several
    /// values.
    fn words(
        &self,
        flag: Option<&str>,
        value: Option<&Template>,
        switch: Option<usize>,
    ) -> Result<Vec<String>, &'static str> {
        let flag = flag.map(escaped);
        if let Some(switch) = switch {
            let is_on = self.texts[switch]
                .first()
                .is_some_and(|value| value == "true");
            return Ok(flag.filter(|_| is_on).into_iter().collect());
        }
        let Some(value) = value else {
            return Ok(flag.into_iter().collect());
        };
        let fields = value.iter().filter_map(|part| match part {
            Part::Field(field) => Some(self.texts[*field].len()),
            Part::Text(_) => None,
        });
        let mut words = Vec::new();
        for index in 0..fields.max().unwrap_or(1) {
            let Some(text) = self.at(value, index) else {
                continue;
            };
            let is_given = matches!(value.first(), Some(Part::Field(_)));
            match &flag {
                Some(flag) if flag.starts_with("--") => words.push(format!("{flag}={text}")),
                _ if is_given && text.starts_with('-') => {
                    return Err("begins with `-`, so the program would read it as an option");
                }
                Some(flag) => words.extend([flag.clone(), text]),
                None => words.push(text),
            }
        }
        Ok(words)
    }
}

impl Field {
    /// The values as texts: the given ones, or the publisher's default.
    fn texts(&self, given: Option<&Value>) -> Result<Vec<String>, String> {
        let items: Vec<&Value> = match given {
            None | Some(Value::Null) => return self.checked(self.preset.iter().cloned().collect()),
            Some(Value::Array(items)) if self.is_repeated => items.iter().collect(),
            Some(Value::Array(_)) => return Err("must be a single value, not a list".to_owned()),
            Some(item) => vec![item],
        };
        let text = |item: &Value| match item {
            Value::String(text) => Ok(text.clone()),
            Value::Number(number) => Ok(number.to_string()),
            Value::Bool(boolean) => Ok(boolean.to_string()),
            _ => Err("must be a string, a number or a boolean".to_owned()),
        };
        let texts: Result<Vec<String>, String> = items.into_iter().map(text).collect();
        let mut texts = texts?;
        // Forms send empty texts for inputs that were not filled in.
        texts.retain(|text| !text.is_empty());
        self.checked(texts)
    }

    fn checked(&self, texts: Vec<String>) -> Result<Vec<String>, String> {
        if texts.len() > MAX_VALUES {
            return Err(format!("has more than {MAX_VALUES} values"));
        }
        for text in &texts {
            let is_fine = |c: char| {
                if self.is_secret {
                    c == '\0'
                } else {
                    is_odd(c, false)
                }
            };
            if text.len() > MAX_VALUE_BYTES {
                return Err("is longer than 16 KiB".to_owned());
            }
            if text.chars().any(is_fine) {
                return Err("contains invisible characters".to_owned());
            }
            if !self.choices.is_empty() && !self.choices.contains(text) {
                return Err(format!("must be one of: {}", self.choices.join(", ")));
            }
            let must = match self.format {
                Format::Number => text.parse::<f64>().is_err().then_some("must be a number"),
                Format::Boolean => {
                    (text != "true" && text != "false").then_some("must be `true` or `false`")
                }
                Format::Path => (!is_path(text))
                    .then_some("must be an absolute path of this host, without `..` and `:`"),
                Format::Text if self.is_of_url => (!text
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"._~-".contains(&b)))
                .then_some(
                    "is part of a URL: it may only contain letters, digits, `.`, `_`, `~` and `-`",
                ),
                Format::Text => None,
            };
            if let Some(must) = must {
                return Err(must.to_owned());
            }
        }
        Ok(texts)
    }
}

fn is_path(text: &str) -> bool {
    let path = Path::new(text);
    let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    path.is_absolute()
        && path.parent().is_some()
        && path.components().all(is_plain)
        && !text.contains(':')
}

/// The port and path of a URL at which a locally launched server listens.
fn listening(text: &str) -> Option<(u16, String)> {
    let url = Url::parse(text).ok().filter(|url| url.scheme() == "http")?;
    let is_here = match url.host()? {
        Host::Domain(name) => name == "localhost",
        Host::Ipv4(ip) => ip.is_loopback() || ip.is_unspecified(),
        Host::Ipv6(ip) => ip.is_loopback() || ip.is_unspecified(),
    };
    let port = url.port_or_known_default().filter(|_| is_here)?;
    Some((port, url.path().to_owned()))
}

/// Escapes `${`, so that an entry takes the text literally.
pub(super) fn escaped(text: &str) -> String {
    text.replace("${", "$${")
}

/// Stores a secret and returns a reference to it.
fn named(secrets: &mut BTreeMap<String, String>, name: &str, value: String) -> String {
    secrets.insert(name.to_owned(), value);
    format!("${{{name}}}")
}

/// Stores a secret under the first name that no other value has, and returns a reference to it. The names after these two
/// are numbered.
fn shared(
    secrets: &mut BTreeMap<String, String>,
    names: [String; 2],
    value: &str,
    current: &dyn Fn(&str) -> Option<String>,
) -> String {
    let last = names[1].clone();
    let numbered = (2..).map(|number| format!("{last}_{number}"));
    for name in names.into_iter().chain(numbered) {
        match secrets.get(&name).cloned().or_else(|| current(&name)) {
            None => return named(secrets, &name, value.to_owned()),
            Some(there) if there == value => return format!("${{{name}}}"),
            Some(_) => {}
        }
    }
    unreachable!("the numbered names have no end")
}

/// Converts a text to a valid variable name.
fn variable(text: &str) -> String {
    let letter = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    let name: String = text.chars().map(letter).take(120).collect();
    match name.starts_with(|c: char| c.is_ascii_digit()) {
        true => format!("_{name}"),
        false => name,
    }
}

fn pointer(name: &str) -> String {
    format!("/values/{}", name.replace('~', "~0").replace('/', "~1"))
}
