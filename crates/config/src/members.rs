//! Typed access to the members of a JSON object. Problems are recorded with their place.

use std::time::Duration;

use api::Wrong;
use serde_json::{Map, Value};

use super::keys::{keys_at, snake};

/// Maximum number of items in a list: ports, volumes, mounts, hosts, variables, arguments.
pub const MAX_ITEMS: usize = 256;

/// Maximum length of a text, in bytes.
pub const MAX_TEXT_BYTES: usize = 32 << 10;
/// From a millisecond to a day. A greater value is probably in the wrong unit.
pub(crate) const TIME_RANGE_MS: std::ops::RangeInclusive<f64> = 1.0..=86_400_000.0;
pub(crate) const TIME_RULE: &str = "must be a number of milliseconds from 1 to 86400000 (a day)";

pub struct Reader<'a> {
    pub at: String,
    pub members: &'a Map<String, Value>,
    pub errors: &'a mut Vec<Wrong>,
}

impl<'a> Reader<'a> {
    pub fn wrong(&mut self, key: &str, detail: impl Into<String>) {
        self.errors
            .push(Wrong::new(format!("{}/{key}", self.at), detail));
    }

    /// Reports the members that are not among the `properties` at this JSON pointer into `schemas.json`.
    pub fn known_at(&mut self, pointer: &str) {
        let mut keys: Vec<String> = Vec::new();
        for key in keys_at(pointer).map(snake) {
            // A schema may have both spellings of a key.
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        self.known(&keys);
    }

    pub fn known(&mut self, keys: &[&str]) {
        let unknown: Vec<&String> = self
            .members
            .keys()
            .filter(|key| !keys.contains(&key.as_str()))
            .collect();
        for key in unknown {
            self.wrong(
                &key.replace('~', "~0").replace('/', "~1"),
                format!("is not a known key; the known keys are {}", keys.join(", ")),
            );
        }
    }

    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.members.get(key).filter(|value| !value.is_null())
    }

    pub fn text(&mut self, key: &str) -> Option<String> {
        match self.get(key)? {
            Value::String(text) if fits(text) => Some(text.clone()),
            _ => {
                self.wrong(
                    key,
                    "must be a string of 1 to 32768 bytes without NUL characters",
                );
                None
            }
        }
    }

    pub fn flag(&mut self, key: &str) -> Option<bool> {
        let value = self.get(key)?;
        if !value.is_boolean() {
            self.wrong(key, "must be true or false");
        }
        value.as_bool()
    }

    /// `range` is called only if there is a value.
    pub fn number(
        &mut self,
        key: &str,
        range: impl FnOnce() -> std::ops::RangeInclusive<u64>,
    ) -> Option<u64> {
        let value = self.get(key)?;
        let range = range();
        let number = value.as_u64().filter(|number| range.contains(number));
        if number.is_none() {
            let (least, most) = (range.start(), range.end());
            self.wrong(
                key,
                format!("must be a whole number from {least} to {most}"),
            );
        }
        number
    }

    pub fn time(&mut self, key: &str) -> Option<Duration> {
        let value = self.get(key)?;
        let is_time = |ms: &f64| TIME_RANGE_MS.contains(ms) && ms.fract() == 0.0;
        let ms = value.as_f64().filter(is_time);
        if ms.is_none() {
            self.wrong(key, TIME_RULE);
        }
        ms.map(|ms| Duration::from_secs_f64(ms / 1000.0))
    }

    pub fn word<T: std::str::FromStr<Err = model::UnknownWord>>(&mut self, key: &str) -> Option<T> {
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

    /// A list whose items are read by `item`. `must` describes a valid item.
    pub fn list<T>(
        &mut self,
        key: &str,
        must: &str,
        item: impl Fn(&Value) -> Option<T>,
    ) -> Option<Vec<T>> {
        let value = self.get(key)?;
        let Some(values) = value.as_array().filter(|values| values.len() <= MAX_ITEMS) else {
            self.wrong(key, format!("must be a list of at most {MAX_ITEMS} items"));
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

    pub fn inner(&mut self, key: &str) -> Option<Reader<'_>> {
        match self.get(key)? {
            Value::Object(members) => Some(Reader {
                at: format!("{}/{key}", self.at),
                members,
                errors: self.errors,
            }),
            _ => {
                self.wrong(key, "must be an object");
                None
            }
        }
    }
}

pub fn fits(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_TEXT_BYTES && !text.contains('\0')
}

pub fn texts(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    (text.len() <= MAX_TEXT_BYTES && !text.contains('\0')).then(|| text.to_owned())
}
