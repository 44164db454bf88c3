//! One key of a table, by its kind; whatever is wrong with it becomes a problem with what to write instead.

use std::{ops::Range, str::FromStr};

use model::Hidden;
use toml::de::DeTable;

use crate::{
    interpolate::{Unknown, Variables},
    problem::{Problem, nearest},
    shape::printable,
    source::Source,
};

/// What reads a file: the file, what fills in its variables, and where its problems go.
pub(super) struct Walk<'w> {
    pub(super) source: &'w Source,
    pub(super) variables: &'w Variables<'w>,
    pub(super) problems: &'w mut Vec<Problem>,
}

impl Walk<'_> {
    pub(super) fn unknown_keys(&mut self, table: &DeTable<'_>, prefix: &str, known: &[&str]) {
        let mut unknown: Vec<_> = table
            .keys()
            .filter(|key| !known.contains(&key.get_ref().as_ref()))
            .collect();
        unknown.sort_by_key(|key| key.span().start);
        for key in unknown {
            let what = format!(
                "`{prefix}{}` is not a known setting",
                printable(key.get_ref())
            );
            let help = match nearest(key.get_ref(), known) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("known are {}", known.join(", ")),
            };
            self.problems
                .push(Problem::at(self.source, key.span(), what).help(help));
        }
    }

    /// Whether the key was there and valid.
    pub(super) fn word<P: FromStr>(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
        words: &[&str],
        slot: &mut P,
    ) -> bool {
        let Some((word, span)) = self.string(table, key) else {
            return false;
        };
        match word.parse() {
            Ok(value) => {
                *slot = value;
                true
            }
            Err(_) => {
                self.wrong(
                    span,
                    &format!("bad `{key}`"),
                    &format!("one of `{}`", words.join("`, `")),
                );
                false
            }
        }
    }

    pub(super) fn flag(&mut self, table: &DeTable<'_>, key: &str, slot: &mut bool) {
        let Some(item) = table.get(key) else { return };
        match item.get_ref().as_bool() {
            Some(value) => *slot = value,
            None => self.wrong(item.span(), &format!("bad `{key}`"), "`true` or `false`"),
        }
    }

    pub(super) fn string(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
    ) -> Option<(String, Range<usize>)> {
        let item = table.get(key)?;
        match item.get_ref().as_str() {
            Some(text) => Some((text.to_owned(), item.span())),
            None => {
                self.wrong(
                    item.span(),
                    &format!("`{key}` is not a string"),
                    "it in double quotes",
                );
                None
            }
        }
    }

    /// A text that no problem shows, variables filled in.
    pub(super) fn secret(&mut self, table: &DeTable<'_>, key: &str) -> Option<Hidden> {
        let item = table.get(key)?;
        let Some(text) = item.get_ref().as_str() else {
            let problem = Problem::at(self.source, item.span(), format!("`{key}` is not a string"));
            self.problems
                .push(problem.help("write it in double quotes, or better a variable: \"${…}\""));
            return None;
        };
        match self.variables.fill(text, Unknown::Refuse) {
            Ok(text) if text.is_empty() => {
                let problem = Problem::at(self.source, item.span(), format!("`{key}` is empty"));
                self.problems
                    .push(problem.help("leave it out, or set the variable"));
                None
            }
            Ok(text) => Some(Hidden::new(text)),
            Err(errors) => {
                for error in errors {
                    let what = format!("{error} (`{key}`)");
                    let problem = Problem::at(self.source, item.span(), what);
                    self.problems.push(problem.help(error.help()));
                }
                None
            }
        }
    }

    pub(super) fn strings(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
    ) -> Vec<(String, Range<usize>)> {
        let Some(item) = table.get(key) else {
            return Vec::new();
        };
        let Some(array) = item.get_ref().as_array() else {
            self.wrong(
                item.span(),
                &format!("`{key}` is not a list"),
                &format!(r#"{key} = ["one", "two"]"#),
            );
            return Vec::new();
        };
        let mut out = Vec::new();
        for item in array {
            match item.get_ref().as_str() {
                Some(text) => out.push((text.to_owned(), item.span())),
                None => self.wrong(
                    item.span(),
                    &format!("`{key}` holds something that is not a string"),
                    "it in double quotes",
                ),
            }
        }
        out
    }

    pub(super) fn table<'t, 'i>(
        &mut self,
        table: &'t DeTable<'i>,
        key: &str,
    ) -> Option<&'t DeTable<'i>> {
        let item = table.get(key)?;
        let found = item.get_ref().as_table();
        if found.is_none() {
            self.wrong(
                item.span(),
                &format!("`{key}` is not a table"),
                &format!("[{key}] above its settings"),
            );
        }
        found
    }

    pub(super) fn wrong(&mut self, span: Range<usize>, what: &str, write: &str) {
        let problem = Problem::showing(self.source, span, what);
        self.problems.push(problem.help(format!("write {write}")));
    }
}
