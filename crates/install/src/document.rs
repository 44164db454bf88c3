//! A registry entry: `server.json`, schema 2025-12-11.
//!
//! Invariant: a [`Document`] contains no control characters, no characters that reorder or hide text, and is within the
//! limits below. Unknown keys are ignored.

use std::collections::BTreeMap;

use api::Wrong;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Maximum bytes of a text.
const MAX_TEXT_BYTES: usize = 4096;
/// Maximum bytes of a name or a key.
const MAX_NAME_BYTES: usize = 200;
/// Maximum packages, remotes, arguments, variables or choices of one list.
const MAX_LIST_ITEMS: usize = 64;
const MAX_DEPTH: usize = 24;
/// Maximum bytes of an entry.
pub(super) const MAX_ENTRY_BYTES: usize = 256 << 10;
/// Maximum number of faults that are reported.
const MAX_WRONG: usize = 20;

/// The field for publishers' data that has no place in the schema.
pub(super) const PUBLISHER: &str = "io.modelcontextprotocol.registry/publisher-provided";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Document {
    pub name: String,
    pub(crate) title: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub description: String,
    pub(crate) version: String,
    pub(crate) website_url: Option<String>,
    pub(crate) repository: Option<Repository>,
    #[serde(deserialize_with = "nullable")]
    pub(super) packages: Vec<Package>,
    #[serde(deserialize_with = "nullable")]
    pub(super) remotes: Vec<Transport>,
    #[serde(rename = "_meta")]
    pub(super) meta: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Repository {
    pub(crate) url: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Package {
    pub(super) registry_type: String,
    pub(super) registry_base_url: Option<String>,
    pub(super) identifier: String,
    pub(super) version: Option<String>,
    pub(super) file_sha256: Option<String>,
    pub(super) runtime_hint: Option<String>,
    pub(super) transport: Transport,
    #[serde(deserialize_with = "nullable")]
    pub(super) runtime_arguments: Vec<Argument>,
    #[serde(deserialize_with = "nullable")]
    pub(super) package_arguments: Vec<Argument>,
    #[serde(deserialize_with = "nullable")]
    pub(super) environment_variables: Vec<Named>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Transport {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) url: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub(super) headers: Vec<Named>,
    #[serde(deserialize_with = "nullable")]
    pub(super) variables: BTreeMap<String, Input>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Argument {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) name: Option<String>,
    pub(super) value_hint: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub(super) is_repeated: bool,
    #[serde(flatten)]
    pub(super) input: Input,
}

/// An environment variable or a header.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Named {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) input: Input,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Input {
    pub(super) description: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub(super) is_required: bool,
    #[serde(deserialize_with = "nullable")]
    pub(super) is_secret: bool,
    pub(super) format: Option<String>,
    pub(super) value: Option<String>,
    #[serde(rename = "default")]
    pub(super) preset: Option<String>,
    pub(super) placeholder: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub(super) choices: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub(super) variables: BTreeMap<String, Input>,
}

/// Some registries write `null` for missing values.
fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Document {
    /// # Errors
    /// The errors of the entry, each with its place.
    pub fn read(entry: &Value) -> Result<Self, Vec<Wrong>> {
        let mut wrong = Vec::new();
        look(entry, &mut String::new(), 0, false, &mut wrong);
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let document: Self = serde_path_to_error::deserialize(entry).map_err(|error| {
            let path = error.path().to_string().replace(['.', '['], "/");
            let pointer = format!("/{}", path.replace(']', ""));
            vec![Wrong::new(pointer, error.into_inner().to_string())]
        })?;
        if !is_name(&document.name) {
            let must = "must be a namespace and a name, such as `com.example/weather`";
            wrong.push(Wrong::new("/name", must));
        }
        if !is_version(&document.version) {
            let must = "must be a single version such as `1.0.2`, not a range";
            wrong.push(Wrong::new("/version", must));
        }
        for (key, text) in [
            ("title", document.title.as_deref()),
            ("description", Some(&*document.description)),
        ] {
            if text.is_some_and(|text| text.len() > MAX_TEXT_BYTES) {
                wrong.push(Wrong::new(format!("/{key}"), "is longer than 4096 bytes"));
            }
        }
        if wrong.is_empty() {
            Ok(document)
        } else {
            Err(wrong)
        }
    }
}

/// Checks for deceptive texts and exceeded limits. Skips `_meta`: publishers' data in it is never displayed, and the
/// used parts are checked where they are used.
fn look(value: &Value, at: &mut String, depth: usize, is_prose: bool, wrong: &mut Vec<Wrong>) {
    if wrong.len() >= MAX_WRONG {
        return;
    }
    let mut say = |what: &str| wrong.push(Wrong::new(at.clone(), what));
    if depth > MAX_DEPTH {
        return say("is nested more than 24 levels deep");
    }
    match value {
        Value::String(text) if text.len() > MAX_TEXT_BYTES => say("is longer than 4096 bytes"),
        Value::String(text) => {
            if let Some(odd) = text.chars().find(|c| is_odd(*c, is_prose)) {
                let code = u32::from(odd);
                say(&format!("contains the invisible character U+{code:04X}"));
            }
        }
        Value::Array(items) if items.len() > MAX_LIST_ITEMS => say("has more than 64 items"),
        Value::Object(keys) if keys.len() > MAX_LIST_ITEMS => say("has more than 64 members"),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                below(&index.to_string(), item, at, depth, false, wrong);
            }
        }
        Value::Object(members) => {
            for (key, item) in members {
                if key.len() > MAX_NAME_BYTES {
                    let why = "has a key of more than 200 bytes";
                    wrong.push(Wrong::new(at.clone(), why));
                } else if key.chars().any(|c| is_odd(c, false)) {
                    let why = "has a key with invisible characters";
                    wrong.push(Wrong::new(at.clone(), why));
                } else if key != "_meta" {
                    below(key, item, at, depth, key == "description", wrong);
                }
            }
        }
        _ => {}
    }
}

fn below(
    key: &str,
    item: &Value,
    at: &mut String,
    depth: usize,
    is_prose: bool,
    wrong: &mut Vec<Wrong>,
) {
    let length = at.len();
    at.push('/');
    at.push_str(&key.replace('~', "~0").replace('/', "~1"));
    look(item, at, depth + 1, is_prose, wrong);
    at.truncate(length);
}

/// Returns true for control characters, and for characters that reorder, hide or join text (Unicode's `Bidi_Control`,
/// and other invisible ones).
pub(super) fn is_odd(c: char, is_prose: bool) -> bool {
    let is_hidden = matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
    );
    // Emoji are joined by U+200D.
    let is_fine = is_prose && matches!(c, '\n' | '\r' | '\t' | '\u{200d}');
    (c.is_control() || is_hidden) && !is_fine
}

/// Returns true for a namespace, a slash and a name.
pub(crate) fn is_name(name: &str) -> bool {
    let plain = |text: &str, more: &[u8]| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || more.contains(&byte);
        let ends = [text.bytes().next(), text.bytes().last()];
        let ends = ends
            .iter()
            .all(|end| end.is_some_and(|end| end.is_ascii_alphanumeric()));
        ends && text.bytes().all(is_plain) && !text.contains("..")
    };
    let parts = name.split_once('/');
    name.len() <= MAX_NAME_BYTES
        && parts.is_some_and(|(space, name)| plain(space, b".-") && plain(name, b"._-"))
}

/// Returns true for one version of a package: not a range, not a tag that may move.
pub(super) fn is_version(version: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-+_!".contains(&byte);
    let is_any = |part: &str| matches!(part, "x" | "X" | "");
    (1..=100).contains(&version.len())
        && version.bytes().all(plain)
        && version.starts_with(|c: char| c.is_ascii_digit() || c == 'v')
        && !version.split('.').any(is_any)
}
