//! Members of a JSON object, by their kind; whatever is wrong is noted with its place.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Of each list: ports, volumes, mounts, hosts, variables, arguments.
pub(crate) const MOST: usize = 256;

/// Longest text, in bytes.
pub(crate) const TEXT: usize = 32 << 10;
const TIMES: std::ops::RangeInclusive<u64> = 1..=86_400_000;

/// One thing that is wrong.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Wrong {
    /// A JSON pointer into the body.
    pub(crate) pointer: String,
    pub(crate) detail: String,
}

impl Wrong {
    pub(crate) fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            pointer: pointer.into(),
            detail: detail.into(),
        }
    }
}

/// Reads members of an object, and notes what is wrong.
pub(crate) struct Reader<'a> {
    pub(crate) at: String,
    pub(crate) members: &'a Map<String, Value>,
    pub(crate) errors: &'a mut Vec<Wrong>,
}

impl<'a> Reader<'a> {
    pub(crate) fn wrong(&mut self, key: &str, detail: impl Into<String>) {
        self.errors
            .push(Wrong::new(format!("{}/{key}", self.at), detail));
    }

    pub(crate) fn known(&mut self, keys: &[&str]) {
        let unknown: Vec<&String> = self
            .members
            .keys()
            .filter(|key| !keys.contains(&key.as_str()))
            .collect();
        for key in unknown {
            self.wrong(
                &key.replace('~', "~0").replace('/', "~1"),
                format!("is not known here; there are {}", keys.join(", ")),
            );
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.members.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&mut self, key: &str) -> Option<String> {
        match self.get(key)? {
            Value::String(text) if fits(text) => Some(text.clone()),
            _ => {
                self.wrong(key, "is a text that is not empty and has no NUL");
                None
            }
        }
    }

    pub(crate) fn flag(&mut self, key: &str) -> Option<bool> {
        let value = self.get(key)?;
        if !value.is_boolean() {
            self.wrong(key, "is true or false");
        }
        value.as_bool()
    }

    pub(crate) fn number(
        &mut self,
        key: &str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Option<u64> {
        let value = self.get(key)?;
        let number = value.as_u64().filter(|number| range.contains(number));
        if number.is_none() {
            let (least, most) = (range.start(), range.end());
            self.wrong(key, format!("is a whole number from {least} to {most}"));
        }
        number
    }

    pub(crate) fn time(&mut self, key: &str) -> Option<Duration> {
        self.number(key, TIMES).map(Duration::from_millis)
    }

    pub(crate) fn word<T: std::str::FromStr<Err = model::UnknownWord>>(
        &mut self,
        key: &str,
    ) -> Option<T> {
        let value = self.get(key)?;
        let parsed = value.as_str().unwrap_or_default().parse();
        match parsed {
            Ok(word) => Some(word),
            Err(error) => {
                self.wrong(key, error.to_string());
                None
            }
        }
    }

    /// A list, each item read by `item`, which says what it must be.
    pub(crate) fn list<T>(
        &mut self,
        key: &str,
        must: &str,
        item: impl Fn(&Value) -> Option<T>,
    ) -> Option<Vec<T>> {
        let value = self.get(key)?;
        let Some(values) = value.as_array().filter(|values| values.len() <= MOST) else {
            self.wrong(key, format!("is a list of at most {MOST}"));
            return None;
        };
        let mut items = Vec::with_capacity(values.len());
        for (at, value) in values.iter().enumerate() {
            match item(value) {
                Some(item) => items.push(item),
                None => self.wrong(&format!("{key}/{at}"), must),
            }
        }
        Some(items)
    }

    pub(crate) fn inner(&mut self, key: &str) -> Option<Reader<'_>> {
        match self.get(key)? {
            Value::Object(members) => Some(Reader {
                at: format!("{}/{key}", self.at),
                members,
                errors: self.errors,
            }),
            _ => {
                self.wrong(key, "is an object");
                None
            }
        }
    }
}

pub(crate) fn fits(text: &str) -> bool {
    !text.is_empty() && text.len() <= TEXT && !text.contains('\0')
}

pub(crate) fn texts(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    (text.len() <= TEXT && !text.contains('\0')).then(|| text.to_owned())
}
