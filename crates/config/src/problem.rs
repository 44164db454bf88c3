//! Problems of a configuration, with what to write instead.
//!
//! Invariant: no text contains a value of `env`, `headers` or a variable.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::source::{Excerpt, Position, Show, Source};

/// Maximum number of problems in the reason for a server that is not started.
const MAX_REASONS: usize = 5;

/// A problem (or a warning), and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub file: PathBuf,
    /// `None`: the problem is about the whole file, or there are very many.
    pub at: Option<Position>,
    pub what: String,
    pub help: Option<String>,
    /// A related place, such as a first definition.
    pub see: Option<See>,
    excerpt: Option<Excerpt>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct See {
    pub file: PathBuf,
    pub at: Position,
    pub why: &'static str,
}

/// All problems of a configuration, in the order of files and lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub problems: Vec<Problem>,
}

impl Problem {
    pub fn of_file(file: &Path, what: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            at: None,
            what: what.into(),
            help: None,
            see: None,
            excerpt: None,
        }
    }

    /// A problem at a place whose text may be a secret.
    pub fn at(source: &Source, span: Range<usize>, what: impl Into<String>) -> Self {
        Self::located(source, span, what, Show::Keys)
    }

    fn located(source: &Source, span: Range<usize>, what: impl Into<String>, show: Show) -> Self {
        let mut problem = Self::of_file(&source.path, what);
        if source.may_locate() {
            problem.at = Some(source.position(span.start));
            problem.excerpt = Some(source.excerpt(&span, show));
        }
        problem
    }

    /// A problem at a place whose text is not a secret and helps to understand it.
    pub fn showing(source: &Source, span: Range<usize>, what: impl Into<String>) -> Self {
        Self::located(source, span, what, Show::Place)
    }

    /// A problem in a file that does not parse.
    pub fn broken(source: &Source, span: Range<usize>, what: impl Into<String>) -> Self {
        Self::located(source, span, what, Show::Words)
    }

    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    pub fn see(mut self, source: &Source, offset: usize, why: &'static str) -> Self {
        self.see = self.at.map(|_| See {
            file: source.path.clone(),
            at: source.position(offset),
            why,
        });
        self
    }

    /// The problem in one line, without an excerpt.
    fn line(&self) -> String {
        let mut line = self.what.clone();
        if let Some(help) = &self.help {
            line = format!("{line}: {help}");
        }
        let file = self.file.display();
        match self.at {
            Some(Position { line: at, column }) => format!("{line} ({file}:{at}:{column})"),
            None => format!("{line} ({file})"),
        }
    }
}

/// Why a server with these problems in its entry is not started.
pub(crate) fn reason(problems: &[Problem]) -> String {
    let lines = problems.iter().take(MAX_REASONS).map(Problem::line);
    let mut lines: Vec<String> = lines.collect();
    if problems.len() > MAX_REASONS {
        lines.push(format!("and {} more", problems.len() - MAX_REASONS));
    }
    lines.join("; ")
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        write!(f, "\n  --> {}", self.file.display())?;
        if let Some(at) = self.at {
            write!(f, ":{}:{}", at.line, at.column)?;
            if let Some(excerpt) = &self.excerpt {
                let number = at.line.to_string();
                let gutter = " ".repeat(number.len());
                let space = " ".repeat(excerpt.carets.start);
                let carets = "^".repeat(excerpt.carets.len().max(1));
                write!(f, "\n {gutter} |\n {number} | {}", excerpt.line)?;
                write!(f, "\n {gutter} | {space}{carets}")?;
            }
        }
        if let Some(see) = &self.see {
            let Position { line, column } = see.at;
            write!(f, "\n  {}: {}:{line}:{column}", see.why, see.file.display())?;
        }
        if let Some(help) = &self.help {
            write!(f, "\n  help: {help}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            let gap = if i == 0 { "" } else { "\n\n" };
            write!(f, "{gap}error: {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl From<Vec<Problem>> for ConfigError {
    fn from(problems: Vec<Problem>) -> Self {
        Self { problems }
    }
}

impl From<Problem> for ConfigError {
    fn from(problem: Problem) -> Self {
        vec![problem].into()
    }
}

/// The word in `known` that was probably meant by `word`.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let fold = |s: &str| s.to_lowercase().replace(['-', '_'], "");
    let folded = fold(word);
    let (distance, best) = known
        .iter()
        .map(|k| (strsim::osa_distance(&folded, &fold(k)), *k))
        .min_by_key(|(distance, _)| *distance)?;
    let allowed = match best.len() {
        0..=3 => 1,
        4..=7 => 2,
        _ => 3,
    };
    (distance <= allowed && distance < folded.chars().count()).then_some(best)
}
