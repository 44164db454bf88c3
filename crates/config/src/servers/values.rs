//! Readers for the values of an entry. Each one reports problems and returns the valid part.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use jsonc_parser::ast::{Object, ObjectProp, Value};
use model::{CallerValues, HeaderTemplate, NativeName};

use super::super::interpolate::{self, Unknown};
use super::super::members::{TIME_RANGE_MS, TIME_RULE};
use super::super::problem::Problem;
use super::super::shape::{duplicates, kind, printable, span};
use super::Entry;

/// The property, unless its value is null.
pub(super) fn given<'o, 'a>(entry: &'o Object<'a>, key: &str) -> Option<&'o ObjectProp<'a>> {
    let is_null = |prop: &&ObjectProp<'_>| matches!(prop.value, Value::NullKeyword(_));
    entry.get(key).filter(|prop| !is_null(prop))
}

impl Entry<'_> {
    /// An object of names and texts. Numbers and booleans are converted to text, and null counts as absent.
    pub(super) fn texts(&mut self, entry: &Object<'_>, key: &str) -> BTreeMap<String, String> {
        let mut out = BTreeMap::new();
        let Some(prop) = given(entry, key) else {
            return out;
        };
        let Value::Object(object) = &prop.value else {
            let help = format!(r#"write "{key}": {{"NAME": "value"}}"#);
            self.wrong_type(prop, "an object", &help);
            return out;
        };
        duplicates(self.source, object, &mut self.problems);
        for prop in &object.properties {
            let name = prop.name.as_str();
            if key == "env" && (name.is_empty() || name.contains(['=', '\0'])) {
                let what = format!(
                    "variable name `{}` in `env` of server `{}` is not allowed",
                    printable(name),
                    self.server
                );
                self.wrong(
                    span(&prop.name),
                    what,
                    "a variable name must not be empty or contain `=` or NUL",
                );
                continue;
            }
            let text = match &prop.value {
                Value::StringLit(text)
                    if key == "env" && interpolate::login_name(&text.value).is_some() =>
                {
                    self.tokens.push((name.to_owned(), span(&prop.value)));
                    Some(text.value.to_string())
                }
                Value::StringLit(text) if key == "headers" && text.value.contains("${header:") => {
                    let template = self.template(&text.value, span(&prop.value));
                    match template {
                        Some(template) if template.names().next().is_some() => {
                            self.caller_headers.insert(name.to_owned(), template);
                            None
                        }
                        // It is a literal text, such as `$${header:X}`.
                        plain => plain.and_then(|plain| plain.fill(&CallerValues::default())),
                    }
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

    /// The names of tools in this list, if there is one.
    pub(super) fn tools(&mut self, entry: &Object<'_>, key: &str) -> Option<BTreeSet<NativeName>> {
        given(entry, key)?;
        let words = self.words(entry, key, r#"["tool_one", "tool_two"]"#);
        let names = words.into_iter().map(|(word, _)| NativeName::new(word));
        Some(names.collect())
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
                    "`{key}` of server `{}` contains {}, not only strings",
                    self.server,
                    kind(element)
                );
                self.wrong(span(element), what, help.clone());
            }
        }
        words
    }

    /// The time limit of a call. See the module documentation for the unit.
    pub(super) fn timeout(&mut self, entry: &Object<'_>) -> Option<Duration> {
        let prop = given(entry, "timeout")?;
        let number = prop.value.as_number_lit();
        let number = number.and_then(|number| number.value.parse::<f64>().ok());
        let ms = number.map(|number| {
            if number < 1000.0 {
                number * 1000.0
            } else {
                number
            }
        });
        let ms = ms.filter(|ms| TIME_RANGE_MS.contains(ms));
        if ms.is_none() {
            self.wrong_value(prop, TIME_RULE);
        }
        ms.map(|ms| Duration::from_secs_f64(ms / 1000.0))
    }

    pub(super) fn boolean(&mut self, object: &Object<'_>, key: &str) -> Option<bool> {
        let prop = object.get(key)?;
        if let Value::BooleanLit(boolean) = &prop.value {
            return Some(boolean.value);
        }
        self.wrong_value(prop, "must be `true` or `false`, without quotes");
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

    /// Reports an invalid value, and shows it. Only for Toolwharf's own keys whose value is not a secret.
    pub(super) fn wrong_value(&mut self, prop: &ObjectProp<'_>, must: &str) {
        let key = printable(prop.name.as_str());
        let what = format!("`{key}` of server `{}` is invalid", self.server);
        let help = format!("`{key}` {must}");
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
            Err(errors) if !self.active => {
                self.note_unset(&errors);
                Some(text.to_owned())
            }
            Err(errors) => {
                self.report_unfilled(&errors, &at);
                None
            }
        }
    }

    /// A header value with values of callers.
    fn template(&mut self, text: &str, at: Range<usize>) -> Option<HeaderTemplate> {
        let template = self.variables.template(text);
        let errors = match template {
            Ok(template) => return Some(template),
            Err(errors) if !self.active => {
                self.note_unset(&errors);
                return None;
            }
            Err(errors) => errors,
        };
        self.report_unfilled(&errors, &at);
        None
    }

    fn note_unset(&mut self, errors: &[interpolate::Error]) {
        let unset = errors.iter().filter_map(|error| match error {
            interpolate::Error::Unset(name) => Some(name.clone()),
            _ => None,
        });
        self.lacks.extend(unset);
    }

    fn report_unfilled(&mut self, errors: &[interpolate::Error], at: &Range<usize>) {
        for error in errors {
            if let interpolate::Error::Unset(name) = error {
                self.unset.insert(name.clone());
                self.unset_problems += 1;
            }
            let problem = self.unfilled_text(error, at.clone());
            self.unfilled += usize::from(!error.is_of_callers());
            self.report(problem);
        }
    }

    pub(super) fn unfilled_text(&self, error: &interpolate::Error, at: Range<usize>) -> Problem {
        let what = format!("{error} (server `{}`)", self.server);
        Problem::at(self.source, at, what).help(error.help())
    }
}
