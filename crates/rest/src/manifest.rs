//! Product manifests: the servers that a product adds to a project, as JSON or YAML.
//!
//! Servers are listed under `mcp.servers`, as an object of entries by name or as a list of objects with `name`,
//! `transport` and `config`. A literal key `mcp.servers`, or `mcp_servers`, means the same. Unknown keys are kept, because other programs may use them. Invariant: a manifest with an
//! error changes nothing, and all errors are reported.

use std::collections::BTreeSet;

use api::Wrong;
use model::{ProjectId, ServerName};
use serde_json::{Map, Value};
use store::NewServer;

use super::{
    Problem, input,
    servers::{Entry, unfit},
};
use backend::entries::manifest_restored;

/// Maximum number of servers in a product.
const MAX_SERVERS: usize = 200;
/// Maximum length of a version, in characters.
const MAX_VERSION_CHARS: usize = 100;

/// The version of a manifest that has none.
const NO_VERSION: &str = "0";

/// A valid manifest.
pub(super) struct Manifest {
    pub(super) version: String,
    pub(super) value: Value,
    pub(super) servers: Vec<NewServer>,
}

/// The format of a manifest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Yaml,
}

impl Format {
    /// Returns the format for a content type. JSON is also valid YAML.
    pub(super) fn of(content_type: Option<&str>) -> Result<Self, Problem> {
        let Some(content_type) = content_type else {
            return Ok(Self::Json);
        };
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        match essence.to_ascii_lowercase().as_str() {
            "application/json" => Ok(Self::Json),
            "application/yaml" | "application/x-yaml" | "text/yaml" | "text/x-yaml" => {
                Ok(Self::Yaml)
            }
            _ => Err(Problem::new(
                415,
                "the content type must be `application/json` or `application/yaml`",
            )),
        }
    }
}

impl Manifest {
    /// Parses the manifest of product `name`. Masked values are replaced by the values of the previous manifest,
    /// `before`.
    pub(super) fn read(
        project: &ProjectId,
        name: &str,
        body: &[u8],
        format: Format,
        before: Option<&Value>,
    ) -> Result<Self, Problem> {
        const UNUSABLE: &str = "the manifest is invalid, and nothing was changed";
        let value = nested(parse(body, format)?);
        let value = manifest_restored(value, before).map_err(|errors| unfit(UNUSABLE, errors))?;
        let mut reading = Reading {
            project,
            errors: Vec::new(),
        };
        let version = reading.head(name, &value);
        let servers = reading.servers(&value);
        if !reading.errors.is_empty() {
            return Err(unfit(UNUSABLE, reading.errors));
        }
        Ok(Self {
            version,
            value,
            servers,
        })
    }
}

/// Moves the servers to `/mcp/servers`.
fn nested(mut value: Value) -> Value {
    if value.pointer("/mcp/servers").is_some() {
        return value;
    }
    if let Value::Object(members) = &mut value {
        let keys = ["mcp.servers", "mcp_servers"];
        let servers = keys.iter().find_map(|key| members.shift_remove(*key));
        if let Some(servers) = servers {
            let mcp = members.entry("mcp").or_insert_with(|| Map::new().into());
            if let Value::Object(mcp) = mcp {
                mcp.insert("servers".to_owned(), servers);
            }
        }
    }
    value
}

fn parse(body: &[u8], format: Format) -> Result<Value, Problem> {
    match format {
        Format::Json => input::json(Ok(body.to_vec().into()))
            .map_err(|problem| Problem::new(422, problem.detail.clone())),
        Format::Yaml => {
            let text = std::str::from_utf8(body)
                .map_err(|_| Problem::new(422, "the manifest is not UTF-8"))?;
            serde_saphyr::from_str(text)
                .map_err(|error| Problem::new(422, format!("the manifest is not YAML: {error}")))
        }
    }
}

struct Reading<'r> {
    project: &'r ProjectId,
    errors: Vec<Wrong>,
}

impl Reading<'_> {
    fn wrong(&mut self, pointer: impl Into<String>, detail: impl Into<String>) {
        self.errors.push(Wrong {
            pointer: pointer.into(),
            detail: detail.into(),
        });
    }

    /// Checks the members other than the servers. Returns the version.
    fn head(&mut self, name: &str, value: &Value) -> String {
        if !value.is_object() {
            self.wrong("", "a manifest must be an object");
            return String::new();
        }
        match value.get("name") {
            Some(Value::String(said)) if said == name => {}
            Some(Value::String(_)) => {
                self.wrong("/name", format!("must be `{name}`, the name in the path"))
            }
            Some(_) => self.wrong("/name", "must be a string"),
            None => self.wrong("/name", "is required"),
        }
        if let Some(description) = value.get("description") {
            match description.as_str() {
                Some(text) => {
                    if let Err(problem) = input::description("/description", text) {
                        self.errors.extend(problem.into_errors());
                    }
                }
                None => self.wrong("/description", "must be a string"),
            }
        }
        match value.get("version") {
            Some(Value::String(version)) if version.trim().is_empty() => {
                self.wrong("/version", "must not be empty");
            }
            Some(Value::String(version)) => {
                match input::text("/version", version, MAX_VERSION_CHARS) {
                    Ok(()) => return version.clone(),
                    Err(problem) => self.errors.extend(problem.into_errors()),
                }
            }
            Some(_) => self.wrong(
                "/version",
                r#"must be a string: put it in quotes, as "1.0""#,
            ),
            None => return NO_VERSION.to_owned(),
        }
        String::new()
    }

    fn servers(&mut self, value: &Value) -> Vec<NewServer> {
        let place = "/mcp/servers";
        let entries: Vec<(String, &str, &Value)> = match value.pointer(place) {
            Some(Value::Object(entries)) => entries
                .iter()
                .map(|(name, entry)| {
                    let key = name.replace('~', "~0").replace('/', "~1");
                    (format!("{place}/{key}"), name.as_str(), entry)
                })
                .collect(),
            Some(Value::Array(items)) => items
                .iter()
                .enumerate()
                .filter_map(|(at, item)| self.item(format!("{place}/{at}"), item))
                .collect(),
            Some(_) => {
                let must = "must be an object of servers by their names, or a list of servers";
                self.wrong(place, must);
                return Vec::new();
            }
            None => {
                if value.is_object() {
                    self.wrong(place, "is required");
                }
                return Vec::new();
            }
        };
        if entries.len() > MAX_SERVERS {
            self.wrong(place, format!("must have at most {MAX_SERVERS} servers"));
            return Vec::new();
        }
        let mut names = BTreeSet::new();
        let mut servers = Vec::new();
        for (place, name, entry) in entries {
            let Some(server) = self.entry(&place, name, entry.clone()) else {
                continue;
            };
            if names.insert(server.name.clone()) {
                servers.push(server);
            } else {
                let why = "is already the name of another server in the list";
                self.wrong(format!("{place}/name"), why);
            }
        }
        servers
    }

    /// `{"name": …, "transport": …, "config": {…}}`
    fn item<'v>(&mut self, place: String, item: &'v Value) -> Option<(String, &'v str, &'v Value)> {
        let name = item.get("name").and_then(Value::as_str);
        match (item.is_object(), name) {
            (true, Some(name)) => return Some((place, name, item)),
            (true, None) => self.wrong(place + "/name", "is required, and must be a string"),
            (false, _) => {
                let must = r#"must be an object with "name", "transport" and "config""#;
                self.wrong(place, must);
            }
        }
        None
    }

    fn entry(&mut self, place: &str, name: &str, entry: Value) -> Option<NewServer> {
        let name = match ServerName::parse(name) {
            Ok(name) => name,
            Err(error) => {
                self.wrong(place, error.to_string());
                return None;
            }
        };
        match Entry::read(self.project, &name, entry, None) {
            Ok(entry) => Some(entry.server),
            Err(errors) => {
                for wrong in errors {
                    self.wrong(format!("{place}{}", wrong.pointer), wrong.detail);
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, format: Format) -> Result<Manifest, Problem> {
        let project = ProjectId::parse("p").expect("an id");
        Manifest::read(&project, "search", text.as_bytes(), format, None)
    }

    #[test]
    fn both_forms_and_both_formats_say_the_same() {
        let yaml = r#"
name: search
version: "1.2.0"
mcp:
  servers:
    web: {url: "https://search.example.com/mcp", description: "the web", headers: {X-Key: "${SEARCH_KEY}"}}
    files: {command: mcp-files, args: [--root, "${ROOT}"], enabled: false}
"#;
        let list = r#"{"name": "search", "version": "1.2.0", "mcp": {"servers": [
            {"name": "web", "transport": "http", "description": "the web",
             "config": {"url": "https://search.example.com/mcp", "headers": {"X-Key": "${SEARCH_KEY}"}}},
            {"name": "files", "transport": "stdio", "enabled": false,
             "config": {"command": "mcp-files", "args": ["--root", "${ROOT}"]}}]}}"#;
        let [one, other] = [(yaml, Format::Yaml), (list, Format::Json)].map(|(text, format)| {
            let read = read(text, format).map_err(|problem| problem.detail.clone());
            read.expect("a manifest")
        });
        assert_eq!((&*one.version, &*other.version), ("1.2.0", "1.2.0"));
        for (one, other) in one.servers.iter().zip(&other.servers) {
            let mut config = other.config.clone();
            config.as_object_mut().expect("an object").remove("type");
            assert_eq!(one.config, config);
            assert_eq!((&one.name, one.transport), (&other.name, other.transport));
            assert_eq!(one.description, other.description);
            assert_eq!(one.enabled, other.enabled);
        }
        assert_eq!(one.servers.len(), 2);
        assert!(!one.servers[1].enabled);
    }

    #[test]
    fn other_keys_for_the_servers() {
        for (text, version) in [
            (
                r#"{"name": "search", "mcp": {"servers": {"a": {"command": "x"}}}}"#,
                "0",
            ),
            (
                r#"{"name": "search", "version": "1", "mcp.servers": {"a": {"command": "x"}}}"#,
                "1",
            ),
            (
                r#"{"name": "search", "mcp": {"other": 1}, "mcp_servers": [{"name": "a", "command": "x", "args": [], "env": {}}]}"#,
                "0",
            ),
        ] {
            let read = read(text, Format::Json).map_err(|problem| problem.detail.clone());
            let read = read.expect("a manifest");
            assert_eq!((&*read.version, read.servers.len()), (version, 1), "{text}");
            assert!(read.value.pointer("/mcp/servers").is_some(), "{text}");
        }
    }

    #[test]
    fn everything_that_is_wrong_is_told_with_its_place() {
        let text = r#"{"name": "other", "version": 1.2, "mcp": {"servers": {
            "a/b": {"command": "x"},
            "none": {},
            "pigeon": {"type": "pigeon", "url": "https://x"},
            "mine": {"command": "x", "registeredBy": "admin"},
            "good": {"command": "x"}}}}"#;
        let problem = read(text, Format::Json).err().expect("refused");
        assert_eq!(problem.status, 422);
        let places = problem.errors.iter().map(|wrong| wrong.pointer.as_str());
        let expected = [
            "/name",
            "/version",
            "/mcp/servers/a~1b",
            "/mcp/servers/none",
            "/mcp/servers/pigeon/type",
            "/mcp/servers/mine/registeredBy",
        ];
        assert_eq!(places.collect::<Vec<_>>(), expected);
        for (text, format, part) in [
            ("{", Format::Json, "JSON"),
            ("a: [", Format::Yaml, "YAML"),
            ("[]", Format::Json, "object"),
            (
                r#"{"name":"search","version":"1"}"#,
                Format::Json,
                "is required",
            ),
            (
                r#"{"name":"search","version":"1","mcp":{"servers":3}}"#,
                Format::Json,
                "list of servers",
            ),
            (
                r#"{"name":"search","version":"1","mcp":{"servers":[{"name":"a","config":{"command":"x"}},{"name":"a","command":"y"}]}}"#,
                Format::Json,
                "another server",
            ),
        ] {
            let problem = read(text, format).err().expect(text);
            assert_eq!(problem.status, 422);
            assert!(problem.detail.contains(part), "{text}: {}", problem.detail);
        }
    }

    #[test]
    fn a_bomb_of_aliases_is_refused() {
        let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for n in 1..9 {
            let before = format!("*a{}", n - 1);
            let items = [before.as_str(); 9].join(", ");
            text.push_str(&format!("a{n}: &a{n} [{items}]\n"));
        }
        assert_eq!(read(&text, Format::Yaml).err().map(|p| p.status), Some(422));
    }
}
