//! Encrypts the secrets of entries in the rows of the database, in place.
//!
//! A secret in an entry is replaced by [`SEALED`] and the ciphertext. The key is the installation's key for sign-ins,
//! which the master key wraps, so a rotation of the master key covers it. The ciphertext is bound to its owner and its
//! place in the entry and cannot be decrypted anywhere else. References (`${NAME}`) are not encrypted.
//!
//! Earlier versions of Toolwharf do not know [`SEALED`]. While a replica of such a version runs, nothing is encrypted;
//! [`migrate`] encrypts existing rows once the last such replica is gone.

use std::time::Duration;

use api::Wrong;
use model::{ProjectId, ServerName};
use serde_json::Value;
use store::{ProductRow, RegistrationRow, ServerRow, Store, encryption::DataKey};

use super::literal::{self, SEALED, escaped};
use auth::sealed::{opened_text, sealed_text};

/// Interval between attempts to encrypt existing rows.
const MIGRATE_INTERVAL: Duration = Duration::from_secs(5);

/// The owner of an entry.
#[derive(Clone, Copy, Debug)]
pub enum Owner<'a> {
    Server(&'a ProjectId, &'a ServerName),
    /// A registration, with its project if it has one.
    Hosted(Option<&'a ProjectId>, &'a ServerName),
    /// The manifest of a product.
    Product(&'a ProjectId, &'a str),
}

impl<'a> Owner<'a> {
    fn parts(self) -> [&'a str; 3] {
        match self {
            Self::Server(project, name) => ["server", project.as_str(), name.as_str()],
            Self::Hosted(project, name) => {
                let project = project.map_or("", ProjectId::as_str);
                ["hosted", project, name.as_str()]
            }
            Self::Product(project, name) => ["product", project.as_str(), name],
        }
    }
}

/// A sealed value that cannot be decrypted: it was sealed with another key, or for another place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value at `{0}` cannot be decrypted: set it again")]
pub(crate) struct Closed(String);

#[derive(Clone, Copy)]
pub struct Sealing<'k> {
    key: &'k DataKey,
    /// Set if every gateway on the database understands sealed values.
    is_known: bool,
}

impl<'k> Sealing<'k> {
    pub(crate) fn new(key: &'k DataKey, is_known: bool) -> Self {
        Self { key, is_known }
    }

    /// Returns true if an entry contains sealed values.
    pub(crate) fn is_in(entry: &Value) -> bool {
        refuse_sealed(entry).is_err()
    }

    /// The entry as stored in a row. Secrets that are sealed in `before` keep their ciphertext, so that saving an
    /// unchanged entry changes nothing.
    pub fn seal(&self, owner: Owner<'_>, entry: &Value, before: Option<&Value>) -> Value {
        if !self.is_known {
            return entry.clone();
        }
        let [kind, project, name] = owner.parts();
        literal::map(entry, &mut |secret| {
            if secret.text.starts_with(SEALED) {
                return None;
            }
            let place = ["entry", kind, project, name, secret.pointer];
            let old = before.and_then(|before| before.pointer(secret.pointer)?.as_str());
            let same = old
                .into_iter()
                .flat_map(marks)
                .find(|mark| self.open_mark(&place, mark).as_deref() == Some(secret.text));
            Some(match same {
                Some(mark) => mark.to_owned(),
                None => format!("{SEALED}{}", sealed_text(self.key, &place, secret.text)),
            })
        })
    }

    /// The entry with its sealed values decrypted.
    ///
    /// # Errors
    /// [`Closed`]
    pub(crate) fn open(&self, owner: Owner<'_>, entry: &Value) -> Result<Value, Closed> {
        self.opened(owner, entry, &mut String::new())
    }

    fn opened(
        &self,
        owner: Owner<'_>,
        value: &Value,
        pointer: &mut String,
    ) -> Result<Value, Closed> {
        let length = pointer.len();
        Ok(match value {
            Value::Object(members) => {
                let mut opened = serde_json::Map::new();
                for (key, value) in members {
                    pointer.push('/');
                    pointer.push_str(&escaped(key));
                    opened.insert(key.clone(), self.opened(owner, value, pointer)?);
                    pointer.truncate(length);
                }
                Value::Object(opened)
            }
            Value::Array(items) => {
                let mut opened = Vec::with_capacity(items.len());
                for (at, value) in items.iter().enumerate() {
                    pointer.push_str(&format!("/{at}"));
                    opened.push(self.opened(owner, value, pointer)?);
                    pointer.truncate(length);
                }
                Value::Array(opened)
            }
            Value::String(text) if text.contains(SEALED) => {
                let [kind, project, name] = owner.parts();
                let place = ["entry", kind, project, name, pointer.as_str()];
                let mut opened = String::new();
                let mut rest = text.as_str();
                for mark in marks(text) {
                    let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
                    let value = self
                        .open_mark(&place, mark)
                        .ok_or_else(|| Closed(pointer.clone()))?;
                    opened.push_str(before);
                    opened.push_str(&value);
                    rest = after;
                }
                opened.push_str(rest);
                opened.into()
            }
            value => value.clone(),
        })
    }

    fn open_mark(&self, place: &[&str], mark: &str) -> Option<String> {
        let text = mark.strip_prefix(SEALED)?;
        let (opened, _) = opened_text(self.key, place, text.as_bytes())?;
        Some(opened.as_str().to_owned())
    }
}

fn marks(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices(SEALED).map(|(at, _)| {
        let sealed = &text[at + SEALED.len()..];
        let end = sealed
            .find(|letter: char| !letter.is_ascii_alphanumeric() && !"-_".contains(letter))
            .unwrap_or(sealed.len());
        &text[at..at + SEALED.len() + end]
    })
}

/// Refuses a submitted entry with sealed values. Otherwise a user could copy a secret that they must not read into a
/// field whose value is sent to them.
///
/// # Errors
/// The places.
pub(super) fn refuse_sealed(entry: &Value) -> Result<(), Vec<Wrong>> {
    fn walk(value: &Value, at: &str, wrong: &mut Vec<Wrong>) {
        match value {
            Value::Object(members) => {
                for (key, value) in members {
                    walk(value, &format!("{at}/{}", escaped(key)), wrong);
                }
            }
            Value::Array(items) => {
                for (index, value) in items.iter().enumerate() {
                    walk(value, &format!("{at}/{index}"), wrong);
                }
            }
            Value::String(text) if text.contains(SEALED) => {
                let why = format!("must not contain `{SEALED}`, which marks encrypted values");
                wrong.push(Wrong::new(at, why));
            }
            _ => {}
        }
    }
    let mut wrong = Vec::new();
    walk(entry, "", &mut wrong);
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// Seals the secrets that earlier versions stored as plain text, once no replica of such a version is left. Returns
/// when that is done.
pub async fn migrate<'k>(store: &Store, key: impl AsyncFn() -> anyhow::Result<&'k DataKey>) {
    let mut tick = tokio::time::interval(MIGRATE_INTERVAL);
    loop {
        tick.tick().await;
        match sealed_all(store, &key).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => tracing::warn!("cannot encrypt stored secrets yet: {error:#}"),
        }
    }
}

/// Returns true once everything is sealed.
async fn sealed_all<'k>(
    store: &Store,
    key: &impl AsyncFn() -> anyhow::Result<&'k DataKey>,
) -> anyhow::Result<bool> {
    if !store.sealing_begin().await? {
        return Ok(false);
    }
    let sealing = Sealing::new(key().await?, true);
    let mut count = 0_u32;
    let mut is_done = true;
    let mut note = |changed: bool| match changed {
        true => count += 1,
        // The row changed after it was read.
        false => is_done = false,
    };
    for ServerRow {
        id,
        project_id,
        name,
        config,
        updated_at,
        ..
    } in store.server_list_all().await?
    {
        let sealed = sealing.seal(Owner::Server(&project_id, &name), &config, None);
        if sealed != config {
            note(store.server_seal(&id, updated_at, &sealed).await?);
        }
    }
    for row in store.registration_list_all().await? {
        let RegistrationRow {
            id,
            name,
            config,
            updated_at,
            ..
        } = &row;
        let project = hosted_by(&row);
        let sealed = sealing.seal(Owner::Hosted(project.as_ref(), name), config, None);
        if sealed != *config {
            note(store.registration_seal(id, *updated_at, &sealed).await?);
        }
    }
    for ProductRow {
        id,
        project_id,
        name,
        manifest,
        updated_at,
        ..
    } in store.product_list_all().await?
    {
        let sealed = sealing.seal(Owner::Product(&project_id, &name), &manifest, None);
        if sealed != manifest {
            note(store.product_seal(&id, updated_at, &sealed).await?);
        }
    }
    if count > 0 {
        tracing::info!(entries = count, "encrypted the secrets in stored entries");
    }
    Ok(is_done)
}

/// The project that a hosted server belongs to.
pub fn hosted_by(row: &RegistrationRow) -> Option<ProjectId> {
    let id = row.project_id.as_ref()?;
    Some(ProjectId::parse(id).expect("the table refers to a project"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_entry_is_sealed_in_place_and_opens_only_there() {
        let key = DataKey::random();
        let sealing = Sealing::new(&key, true);
        let (one, other) = (
            ProjectId::parse("one").expect("an id"),
            ProjectId::parse("other").expect("an id"),
        );
        let name = ServerName::parse("s").expect("a name");
        let owner = Owner::Server(&one, &name);
        let entry = json!({
            "url": "https://me:hidden-1@h.example/mcp?key=hidden-2&n=1",
            "headers": { "X": "hidden-3", "Y": "${Y}" },
            "args": ["--token", "hidden-4", "--key=hidden-5"],
        });
        let sealed = sealing.seal(owner, &entry, None);
        assert!(!sealed.to_string().contains("hidden"), "{sealed}");
        assert_eq!(sealed["headers"]["Y"], "${Y}");
        let opened = sealing.open(owner, &sealed).expect("it opens");
        assert_eq!(opened, entry);
        // A sealed value is masked like any secret, and is not sealed twice.
        assert_eq!(super::super::masked(&sealed), super::super::masked(&entry));
        assert_eq!(sealing.seal(owner, &sealed, None), sealed);
        assert_eq!(sealing.seal(owner, &entry, Some(&sealed)), sealed);
        let elsewhere = Owner::Server(&other, &name);
        assert!(sealing.open(elsewhere, &sealed).is_err());
        let mut moved = sealed.clone();
        moved["headers"]["Z"] = moved["headers"]["X"].take();
        assert!(sealing.open(owner, &moved).is_err());
        assert!(refuse_sealed(&sealed).is_err());
        assert!(refuse_sealed(&entry).is_ok());
        assert_eq!(Sealing::new(&key, false).seal(owner, &entry, None), entry);
    }
}
