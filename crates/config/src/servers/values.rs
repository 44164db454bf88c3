//! Readers for the values of an entry. Each one reports problems and returns the valid part.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use jsonc_parser::ast::{Object, ObjectProp, Value};
use model::NativeName;

use super::super::interpolate::{self, Unknown};
use super::super::problem::Problem;
use super::super::shape::{duplicates, kind, printable, span};
use super::Entry;

/// A day. A greater value is probably in the wrong unit.
const MAX_TIMEOUT_MS: f64 = 86_400_000.0;

impl Entry<'_> {
    /// An object of names and texts. Numbers and booleans are converted to text, and null counts as absent.
    pub(super) fn texts(&mut self, entry: &Object<'_>, key: &str) -> BTreeMap<String, String> {
        let mut out = BTreeMap::new();
        let Some(prop) = entry.get(key) else {
            return out;
        };
        let Value::Object(object) = &prop.value else {
            if !matches!(prop.value, Value::NullKeyword(_)) {
                self.wrong_type(
                    prop,
                    "an object",
                    &format!(r#"write "{key}": {{"NAME": "value"}}"#),
                );
            }
            return out;
        };
        duplicates(self.source, object, &mut self.problems);
        for prop in &object.properties {
            let name = prop.name.as_str();
            if key == "env" && (name.is_empty() || name.contains(['=', '\0'])) {
                let what = format!(
                    "a variable name in `env` of server `{}` is not allowed",
                    self.server
                );
                self.wrong(span(&prop.name), what, "it cannot be empty or hold `=`");
                continue;
            }
            let text = match &prop.value {
                Value::StringLit(text)
                    if key == "env" && interpolate::login_name(&text.value).is_some() =>
                {
                    self.tokens.push((name.to_owned(), span(&prop.value)));
                    Some(text.value.to_string())
                }
                Value::StringLit(text) => {
                    self.fill(&text.value, span(&prop.value), Unknown::Refuse)
                }
                Value::NumberLit(number) => Some(number.value.to_owned()),
                Value::BooleanLit(boolean) => Some(boolean.value.to_string()),
                Value::NullKeyword(_) => None,
                Value::Object(_) | Value::Array(_) => {
                    let what = format!(
                        "`{key}.{}` of server `{}` is {}, not a string",
                        printable(name),
                        self.server,
                        kind(&prop.value)
                    );
                    self.wrong(span(&prop.value), what, "write a string");
                    None
                }
            };
            if let Some(text) = text {
                out.insert(name.to_owned(), text);
            }
        }
        out
    }

    pub(super) fn tools(&mut self, entry: &Object<'_>, key: &str) -> BTreeSet<NativeName> {
        let words = self.words(entry, key, r#"["tool_one", "tool_two"]"#);
        words
            .into_iter()
            .map(|(word, _)| NativeName::new(word))
            .collect()
    }

    pub(super) fn words<'a>(
        &mut self,
        entry: &'a Object<'_>,
        key: &str,
        example: &str,
    ) -> Vec<(&'a str, Range<usize>)> {
        let Some(prop) = entry.get(key) else {
            return Vec::new();
        };
        let help = format!(r#"write "{key}": {example}"#);
        let Value::Array(array) = &prop.value else {
            self.wrong_type(prop, "an array of strings", &help);
            return Vec::new();
        };
        let mut words = Vec::new();
        for element in &array.elements {
            if let Value::StringLit(text) = element {
                words.push((text.value.as_ref(), span(element)));
            } else {
                let what = format!(
                    "`{key}` of server `{}` holds {}, not only strings",
                    self.server,
                    kind(element)
                );
                self.wrong(span(element), what, help.clone());
            }
        }
        words
    }

    pub(super) fn policy<P: std::str::FromStr>(
        &mut self,
        object: &Object<'_>,
        key: &str,
        words: &[&str],
    ) -> Option<P> {
        let prop = object.get(key)?;
        let parsed = prop
            .value
            .as_string_lit()
            .and_then(|text| text.value.parse().ok());
        if parsed.is_none() {
            self.wrong_value(prop, &format!("one of `{}`", words.join("`, `")));
        }
        parsed
    }

    pub(super) fn timeout(
        &mut self,
        object: &Object<'_>,
        key: &str,
        cline: bool,
    ) -> Option<Duration> {
        let prop = object
            .get(key)
            .filter(|prop| !matches!(prop.value, Value::NullKeyword(_)))?;
        let number = prop
            .value
            .as_number_lit()
            .and_then(|n| n.value.parse::<f64>().ok());
        let ms = match number {
            Some(number) if cline && number < 1000.0 => number * 1000.0,
            Some(number) => number,
            None => f64::NAN,
        };
        if (1.0..=MAX_TIMEOUT_MS).contains(&ms) {
            return Some(Duration::from_secs_f64(ms / 1000.0));
        }
        self.wrong_value(
            prop,
            "a number of milliseconds, above 0 and at most 86400000 (a day)",
        );
        None
    }

    pub(super) fn boolean(&mut self, object: &Object<'_>, key: &str) -> Option<bool> {
        let prop = object.get(key)?;
        if let Value::BooleanLit(boolean) = &prop.value {
            return Some(boolean.value);
        }
        self.wrong_value(prop, "`true` or `false`, without quotes");
        None
    }

    pub(super) fn string<'a>(&mut self, prop: &'a ObjectProp<'_>, help: &str) -> Option<&'a str> {
        if let Value::StringLit(text) = &prop.value {
            return Some(&text.value);
        }
        self.wrong_type(prop, "a string", help);
        None
    }

    pub(super) fn wrong_type(&mut self, prop: &ObjectProp<'_>, expected: &str, help: &str) {
        let key = printable(prop.name.as_str());
        let what = format!(
            "`{key}` of server `{}` is {}, not {expected}",
            self.server,
            kind(&prop.value)
        );
        self.wrong(span(&prop.value), what, help);
    }

    /// For Toolwharf's keys whose value is not a secret.
    pub(super) fn wrong_value(&mut self, prop: &ObjectProp<'_>, expected: &str) {
        let key = printable(prop.name.as_str());
        let what = format!("bad `{key}` of server `{}`", self.server);
        let help = format!("write {expected}");
        self.report(Problem::showing(self.source, span(&prop.value), what).help(help));
    }

    pub(super) fn fill(
        &mut self,
        text: &str,
        at: Range<usize>,
        unknown: Unknown,
    ) -> Option<String> {
        match self.variables.fill(text, unknown) {
            Ok(text) => Some(text),
            Err(_) if !self.active => Some(text.to_owned()),
            Err(errors) => {
                for error in errors {
                    if let interpolate::Error::Unset(name) = &error {
                        self.unset.insert(name.clone());
                    }
                    let problem = self.unfilled_text(&error, at.clone());
                    self.unfilled += 1;
                    self.report(problem);
                }
                None
            }
        }
    }

    pub(super) fn unfilled_text(&self, error: &interpolate::Error, at: Range<usize>) -> Problem {
        let what = format!("{error} (server `{}`)", self.server);
        Problem::at(self.source, at, what).help(error.help())
    }
}
