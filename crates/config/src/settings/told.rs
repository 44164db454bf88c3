//! Lists all settings with their value, source and description: the sample, overlaid with the settings file.
//!
//! Invariant: a value that may be a secret is shown only if it consists of a single variable.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::sample::SAMPLE;
use crate::{interpolate::is_variable, source::Source};

/// The last component of keys whose values are or contain secrets.
const SECRET_KEYS: [&str; 6] = [
    "client_secret",
    "private_key",
    "api_key",
    "e2b_api_key",
    "database_url",
    "webhook",
];

/// Variables for all servers, any of which may be a secret.
const DEFAULT_ENV: &str = "defaults.env";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// With the names of its tables, such as `limits.queue_len`.
    pub key: String,
    /// The value in the file, as TOML with variables not filled in. `None`: the file does not set it.
    pub value: Option<String>,
    /// The line in the file, from 1.
    pub line: Option<usize>,
    /// The default as TOML. `None`: there is none.
    pub default: Option<String>,
    pub about: String,
}

/// Returns all settings, with the values from this file. If the file is not valid TOML, no values are returned.
#[must_use]
pub(crate) fn told(source: Option<&Source>) -> Vec<Setting> {
    let mut all = sample();
    let Some(source) = source else {
        return all;
    };
    let (table, errors) = DeTable::parse_recoverable(&source.text);
    if !errors.is_empty() {
        return all;
    }
    let mut found = Vec::new();
    leaves(table.get_ref(), "", &mut found);
    for (key, span) in found {
        let at = all.iter().position(|setting| setting.key == key);
        let at = at.unwrap_or_else(|| {
            let setting = Setting {
                key,
                ..Setting::default()
            };
            all.push(setting);
            all.len() - 1
        });
        let setting = &mut all[at];
        let text = source.text.get(span.clone()).unwrap_or_default();
        let variable = text
            .strip_prefix("\"${")
            .and_then(|text| text.strip_suffix("}\""));
        let may_be_shown = !is_secret(&setting.key) || variable.is_some_and(is_variable);
        let text = if may_be_shown { text } else { "(hidden)" };
        setting.value = Some(text.to_owned());
        setting.line = Some(source.position(span.start).line);
    }
    all
}

pub(super) fn is_secret(key: &str) -> bool {
    let last = key.rsplit('.').next().unwrap_or(key);
    SECRET_KEYS.contains(&last) || key == DEFAULT_ENV || key.starts_with("defaults.env.")
}

/// The values in a table and its subtables, with their places.
fn leaves(table: &DeTable<'_>, prefix: &str, found: &mut Vec<(String, Range<usize>)>) {
    for (key, value) in table {
        let key = format!("{prefix}{}", key.get_ref());
        match value.get_ref() {
            // An inline table is a value, unless a member may be a secret.
            DeValue::Table(inner)
                if !inner.is_empty()
                    && (is_open(inner, &value.span()) || has_secret(inner, &key)) =>
            {
                leaves(inner, &format!("{key}."), found);
            }
            _ => found.push((key, value.span())),
        }
    }
}

/// Returns whether a table has a key whose value may be a secret.
fn has_secret(table: &DeTable<'_>, name: &str) -> bool {
    table.iter().any(|(key, value)| {
        let key = format!("{name}.{}", key.get_ref());
        let inner = value.get_ref().as_table();
        is_secret(&key) || inner.is_some_and(|inner| has_secret(inner, &key))
    })
}

/// Returns whether a table has a header line. Then its span does not enclose its members.
fn is_open(table: &DeTable<'_>, span: &Range<usize>) -> bool {
    let first = table.values().next();
    first.is_some_and(|value| !(span.start <= value.span().start && value.span().end <= span.end))
}

/// The settings in the sample, which contains each of them with its default, or as an example in a comment.
fn sample() -> Vec<Setting> {
    let mut all = Vec::new();
    let mut table = String::new();
    let mut about: Vec<&str> = Vec::new();
    for line in SAMPLE.lines() {
        let (text, is_comment) = match line.strip_prefix("# ") {
            Some(text) => (text, true),
            None => (line, false),
        };
        if text.is_empty() {
            about.clear();
        } else if let Some(name) = text.strip_prefix('[') {
            let name = name.split(']').next().unwrap_or_default();
            name.clone_into(&mut table);
            about.clear();
        } else if let Some((key, rest)) = text.split_once(" = ").filter(|(key, _)| is_key(key)) {
            // A table with a name chosen by the user exists only if the file has it. The sample shows an example.
            let is_example = table.contains('.') || table == "projects";
            let (value, beside) = rest.split_once("  #").unwrap_or((rest, ""));
            about.push(beside.trim());
            if !is_example {
                let dot = if table.is_empty() { "" } else { "." };
                all.push(Setting {
                    key: format!("{table}{dot}{}", key.trim_matches('"')),
                    default: (!is_comment).then(|| value.trim().to_owned()),
                    about: about.join(" ").trim().to_owned(),
                    ..Setting::default()
                });
            }
            about.clear();
        } else if is_comment {
            about.push(text);
        }
    }
    all
}

fn is_key(text: &str) -> bool {
    let quoted = text.starts_with('"') && text.ends_with('"');
    quoted
        || text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::source::Syntax;

    fn of<'a>(all: &'a [Setting], key: &str) -> &'a Setting {
        all.iter()
            .find(|setting| setting.key == key)
            .unwrap_or_else(|| panic!("{key}"))
    }

    #[test]
    fn the_sample_lists_each_setting_once() {
        let all = told(None);
        let listen = of(&all, "listen");
        assert_eq!(listen.default.as_deref(), Some(r#""127.0.0.1:6280""#));
        assert!(listen.about.starts_with("Address and port"), "{listen:?}");
        assert_eq!(
            of(&all, "limits.queue_len").about,
            "calls that wait for one server"
        );
        assert_eq!(of(&all, "limits.queue_len").default.as_deref(), Some("256"));
        assert_eq!(of(&all, "agent.model").default, None);
        assert_eq!(
            of(&all, "extensions.io.modelcontextprotocol/ui").value,
            None
        );
        let mut keys: Vec<&str> = all.iter().map(|setting| setting.key.as_str()).collect();
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), count);
        assert!(all.iter().all(|setting| setting.value.is_none()));
    }

    #[test]
    fn values_of_the_file_are_added_to_the_sample() {
        let text = "naming = \"preserve\"\n[limits]\nqueue_len = 7\n[agent]\napi_key = \"sk-1\"\nmodel = \"m\"\n\
                    [auth.oidc.corp]\nclient_secret = \"${S}\"\naccess = [{ role = \"read\" }]\n\
                    [logins.git]\nprivate_key = \"PEM\"\n[defaults.env]\nA = \"a\"\nB = \"${B}\"\n[projects.a]\nservers = [\"x\"]\n[extensions]\n\"a/b\" = { c = 1 }\n";
        let source = Source::new(Path::new("t.toml"), text.to_owned(), Syntax::Toml);
        let all = told(Some(&source));
        let value = |key: &str| {
            (
                of(&all, key).value.clone().unwrap(),
                of(&all, key).line.unwrap(),
            )
        };
        assert_eq!(value("naming"), (r#""preserve""#.to_owned(), 1));
        assert_eq!(value("limits.queue_len"), ("7".to_owned(), 3));
        assert_eq!(value("agent.api_key").0, "(hidden)");
        assert_eq!(value("auth.oidc.corp.client_secret").0, r#""${S}""#);
        assert_eq!(value("auth.oidc.corp.access").0, r#"[{ role = "read" }]"#);
        assert_eq!(value("logins.git.private_key").0, "(hidden)");
        assert_eq!(value("defaults.env.A").0, "(hidden)");
        assert_eq!(value("defaults.env.B").0, r#""${B}""#);
        assert_eq!(value("projects.a.servers").0, r#"["x"]"#);
        assert_eq!(value("extensions.a/b").0, "{ c = 1 }");
        assert_eq!(of(&all, "limits.drain").value, None);
    }

    #[test]
    fn secrets_in_inline_tables_are_hidden() {
        let text = "embeddings = { url = \"u\", api_key = \"sk-1\" }\nlogins = { git = { client_secret = \"sk-2\" } }\n\
                    defaults = { env = { A = \"sk-3\" } }\n";
        let source = Source::new(Path::new("t.toml"), text.to_owned(), Syntax::Toml);
        let all = told(Some(&source));
        let shown = all.iter().filter_map(|setting| setting.value.as_deref());
        assert!(shown.clone().all(|value| !value.contains("sk-")));
        assert_eq!(shown.filter(|value| *value == "(hidden)").count(), 3);
        let url = of(&all, "embeddings.url");
        assert_eq!((url.value.as_deref(), url.line), (Some("\"u\""), Some(1)));
    }

    #[test]
    fn an_invalid_file_adds_no_values() {
        let source = Source::new(Path::new("t.toml"), "a = = 1".to_owned(), Syntax::Toml);
        assert_eq!(told(Some(&source)), told(None));
    }
}
