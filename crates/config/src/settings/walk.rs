//! Reads a table of the settings file key by key. Problems are recorded together with what to write instead.

use std::{
    cell::RefCell,
    fmt::Display,
    ops::{Range, RangeInclusive},
    str::FromStr,
    time::Duration,
};

use model::Hidden;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    told::is_secret,
    values::{duration, integer},
};
use crate::{
    interpolate::{Unknown, Variables},
    problem::{Problem, nearest},
    shape::printable,
    source::Source,
};

/// The context of reading a file: the file, its variables and the problems so far.
pub(super) struct Walk<'w> {
    pub(super) source: &'w Source,
    pub(super) variables: &'w Variables<'w>,
    pub(super) problems: RefCell<Vec<Problem>>,
}

impl Walk<'_> {
    pub(super) fn wrong(&self, span: Range<usize>, what: &str, write: &str) {
        let problem = Problem::showing(self.source, span, what);
        self.note(problem.help(format!("write {write}")));
    }

    /// A text with its variables filled in. Messages name `key` and never show the value. Numbers and booleans count as
    /// text.
    pub(super) fn filled(&self, key: &str, value: &Spanned<DeValue<'_>>) -> Option<String> {
        let key = printable(key);
        let text = match value.get_ref() {
            DeValue::String(text) => text,
            DeValue::Integer(number) => return Some(number.as_str().to_owned()),
            DeValue::Boolean(flag) => return Some(flag.to_string()),
            _ => {
                let problem = Problem::at(
                    self.source,
                    value.span(),
                    format!("`{key}` is not a string"),
                );
                self.note(problem.help("write the value in double quotes"));
                return None;
            }
        };
        if text.contains('\0') {
            let problem = Problem::at(
                self.source,
                value.span(),
                format!("`{key}` contains a NUL character"),
            );
            self.note(problem.help("remove it"));
            return None;
        }
        match self.variables.fill(text, Unknown::Refuse) {
            Ok(text) => Some(text),
            Err(errors) => {
                for error in errors {
                    let problem =
                        Problem::at(self.source, value.span(), format!("{error} (`{key}`)"));
                    self.note(problem.help(error.help()));
                }
                None
            }
        }
    }

    fn note(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }
}

/// A table. When dropped, it reports the keys that were not read as unknown.
pub(super) struct Table<'t, 'i> {
    pub(super) walk: &'t Walk<'t>,
    pub(super) items: &'t DeTable<'i>,
    /// The prefix of its keys in messages.
    prefix: String,
    known: Vec<&'static str>,
}

impl<'t, 'i> Table<'t, 'i> {
    pub(super) fn new(
        walk: &'t Walk<'t>,
        items: &'t DeTable<'i>,
        prefix: impl Into<String>,
    ) -> Self {
        Self {
            walk,
            items,
            prefix: prefix.into(),
            known: Vec::new(),
        }
    }

    pub(super) fn item(&mut self, key: &'static str) -> Option<&'t Spanned<DeValue<'i>>> {
        self.known.push(key);
        self.items.get(key)
    }

    /// A value converted by `read`. `must` describes a valid value.
    pub(super) fn value<T>(
        &mut self,
        key: &'static str,
        must: &str,
        read: impl FnOnce(&DeValue<'_>) -> Option<T>,
    ) -> Option<T> {
        let item = self.item(key)?;
        let value = read(item.get_ref());
        if value.is_none() {
            self.walk.wrong(item.span(), &invalid(key), must);
        }
        value
    }

    pub(super) fn flag(&mut self, key: &'static str, slot: &mut bool) {
        set(
            slot,
            self.value(key, "`true` or `false`", |value| value.as_bool()),
        );
    }

    pub(super) fn count<N: TryFrom<usize>>(
        &mut self,
        key: &'static str,
        range: RangeInclusive<usize>,
    ) -> Option<N> {
        let must = format!("a whole number from {} to {}", range.start(), range.end());
        self.value(key, &must, |value| {
            let count = integer(value).filter(|count| range.contains(count));
            count.and_then(|count| N::try_from(count).ok())
        })
    }

    pub(super) fn time(&mut self, key: &'static str, slot: &mut Duration) {
        let must = r#"a time such as "500ms", "30s", "5m" or "2h", at most a week"#;
        let time = self.value(key, must, |value| value.as_str().and_then(duration));
        set(slot, time);
    }

    pub(super) fn string(&mut self, key: &'static str) -> Option<(String, Range<usize>)> {
        let item = self.item(key)?;
        let text = item.get_ref().as_str();
        if text.is_none() {
            let what = format!("`{key}` is not a string");
            self.walk.wrong(item.span(), &what, "text in double quotes");
        }
        Some((text?.to_owned(), item.span()))
    }

    /// A string that satisfies `fits`. `must` describes a valid string.
    pub(super) fn text(
        &mut self,
        key: &'static str,
        must: &str,
        fits: impl FnOnce(&str) -> bool,
    ) -> Option<String> {
        let (text, span) = self.string(key)?;
        if fits(&text) {
            return Some(text);
        }
        self.walk.wrong(span, &invalid(key), must);
        None
    }

    pub(super) fn word<P: FromStr>(&mut self, key: &'static str, words: &[&str]) -> Option<P> {
        let must = format!("one of `{}`", words.join("`, `"));
        let word = self.text(key, &must, |word| word.parse::<P>().is_ok())?;
        word.parse().ok()
    }

    pub(super) fn either<T: Copy>(
        &mut self,
        key: &'static str,
        words: [(&str, T); 2],
    ) -> Option<T> {
        let must = format!("`{}` or `{}`", words[0].0, words[1].0);
        let word = self.text(key, &must, |text| {
            words.iter().any(|(word, _)| *word == text)
        })?;
        let found = words.iter().find(|(known, _)| *known == word);
        found.map(|(_, value)| *value)
    }

    /// A text with its variables filled in, which messages never show.
    pub(super) fn secret(&mut self, key: &'static str) -> Option<Hidden> {
        debug_assert!(is_secret(key), "`{key}` would be shown in the settings");
        let item = self.item(key)?;
        let wrong = |what: String, help: &str| {
            let problem = Problem::at(self.walk.source, item.span(), what);
            self.walk.note(problem.help(help));
        };
        let Some(text) = item.get_ref().as_str() else {
            let help = "write the value in double quotes, or better a variable: \"${…}\"";
            wrong(format!("`{key}` is not a string"), help);
            return None;
        };
        match self.walk.variables.fill(text, Unknown::Refuse) {
            Ok(text) if text.is_empty() => {
                let help = "remove the key, or set the variable in its value";
                wrong(format!("`{key}` is empty"), help);
                None
            }
            Ok(text) => Some(Hidden::new(text)),
            Err(errors) => {
                for error in errors {
                    wrong(format!("{error} (`{key}`)"), &error.help_in_settings());
                }
                None
            }
        }
    }

    /// A list of strings converted by `parse`.
    pub(super) fn each<T>(
        &mut self,
        key: &'static str,
        must: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Vec<T> {
        self.each_or(key, must, |text| parse(text).ok_or_else(|| invalid(key)))
    }

    /// Like [`Table::each`], but `parse` returns the error.
    pub(super) fn each_or<T, E: Display>(
        &mut self,
        key: &'static str,
        must: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<T> {
        let Some(item) = self.item(key) else {
            return Vec::new();
        };
        let Some(array) = item.get_ref().as_array() else {
            let what = format!("`{key}` is not a list");
            let write = format!(r#"{key} = ["one", "two"]"#);
            self.walk.wrong(item.span(), &what, &write);
            return Vec::new();
        };
        let mut out = Vec::new();
        for item in array {
            match item.get_ref().as_str().map(&parse) {
                Some(Ok(value)) => out.push(value),
                Some(Err(error)) => self.walk.wrong(item.span(), &error.to_string(), must),
                None => {
                    let what = format!("`{key}` contains a value that is not a string");
                    self.walk.wrong(item.span(), &what, "text in double quotes");
                }
            }
        }
        out
    }

    pub(super) fn table(&mut self, key: &'static str) -> Option<Self> {
        let items = self.items(key)?;
        Some(Self::new(
            self.walk,
            items,
            format!("{}{key}.", self.prefix),
        ))
    }

    /// A table whose keys are names chosen by the user.
    pub(super) fn items(&mut self, key: &'static str) -> Option<&'t DeTable<'i>> {
        let item = self.item(key)?;
        let found = item.get_ref().as_table();
        if found.is_none() {
            let what = format!("`{key}` is not a table");
            let write = format!("the header [{}{key}] above its settings", self.prefix);
            self.walk.wrong(item.span(), &what, &write);
        }
        found
    }
}

impl Drop for Table<'_, '_> {
    fn drop(&mut self) {
        let known = &self.known;
        for key in self.items.keys() {
            let name = key.get_ref();
            if known.contains(&name.as_ref()) {
                continue;
            }
            let prefix = &self.prefix;
            let what = format!("`{prefix}{}` is not a known setting", printable(name));
            let help = match nearest(name, known) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("the known settings are {}", known.join(", ")),
            };
            let problem = Problem::at(self.walk.source, key.span(), what);
            self.walk.note(problem.help(help));
        }
    }
}

/// Sets the slot if a value was given.
pub(super) fn set<T>(slot: &mut T, given: Option<T>) {
    if let Some(value) = given {
        *slot = value;
    }
}

fn invalid(key: &str) -> String {
    format!("invalid `{key}`")
}
