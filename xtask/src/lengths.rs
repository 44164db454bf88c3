//! `cargo xtask graph`, second part: checks that no Rust file is longer than [`MAX_LINES`], including tests, and that no
//! crate has more than [`MAX_CRATE_LINES`] lines of code.
//!
//! A longer file covers several topics, and readers do not find the one that they need. A larger crate takes long to
//! build, and has parts that the compiler should keep apart.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::workspace::{Workspace, files};

/// Maximum number of lines per file.
const MAX_LINES: usize = 800;
/// Maximum number of lines per crate, without blank lines, comments and tests.
const MAX_CRATE_LINES: usize = 15_000;
/// Begins the tests of a file, which are at its end.
const TESTS: &str = "\n#[cfg(test)]\nmod tests {\n";
const FOLDERS: [&str; 3] = ["crates", "xtask", "examples"];

/// Checks this workspace.
///
/// # Errors
///
/// Lists every file and every crate that is too long, with its length.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut lengths = Vec::new();
    let mut crates = BTreeMap::new();
    for folder in FOLDERS {
        for file in files(&workspace.root().join(folder))? {
            if file.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&file);
                let text = text.with_context(|| format!("cannot read {}", file.display()))?;
                let name = file.strip_prefix(workspace.root()).unwrap_or(&file);
                if let Some(own) = crate_of(name) {
                    *crates.entry(own.to_owned()).or_default() += code_lines(&text);
                }
                lengths.push((name.to_string_lossy().into_owned(), text.lines().count()));
            }
        }
    }
    let wrong = check(&lengths);
    ensure!(
        wrong.is_empty(),
        "no Rust file may have more than {MAX_LINES} lines:\n  {}",
        wrong.join("\n  ")
    );
    let wrong = check_crates(&crates);
    ensure!(
        wrong.is_empty(),
        "no crate may have more than {MAX_CRATE_LINES} lines without blank lines, comments and tests:\n  {}",
        wrong.join("\n  ")
    );
    eprintln!("    {} files, none over {MAX_LINES} lines", lengths.len());
    let largest = crates.iter().max_by_key(|(_, lines)| **lines);
    if let Some((name, lines)) = largest {
        eprintln!(
            "    {} crates, the largest is {name} with {lines} lines of code",
            crates.len()
        );
    }
    Ok(())
}

/// The crate to whose code a file belongs. `None` for tests, examples and benchmarks.
fn crate_of(file: &Path) -> Option<&str> {
    let inner = file.strip_prefix("crates").ok()?;
    let mut parts = inner.iter().filter_map(|part| part.to_str());
    let own = parts.next()?;
    let is_code =
        parts.next() == Some("src") && parts.all(|part| !matches!(part, "tests" | "tests.rs"));
    is_code.then_some(own)
}

/// The number of lines without blank lines, comments and the tests at the end.
fn code_lines(text: &str) -> usize {
    let code = text.split(TESTS).next().unwrap_or_default();
    let lines = code.lines().map(str::trim_start);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

fn check_crates(crates: &BTreeMap<String, usize>) -> Vec<String> {
    let too_long = crates.iter().filter(|(_, lines)| **lines > MAX_CRATE_LINES);
    let said = too_long.map(|(name, lines)| {
        format!("{name} has {lines} lines: split it where the compiler should forbid a dependency")
    });
    said.collect()
}

/// All violations, as readable lines.
fn check(lengths: &[(String, usize)]) -> Vec<String> {
    let too_long = lengths.iter().filter(|(_, lines)| *lines > MAX_LINES);
    let said = too_long.map(|(name, lines)| format!("{name} has {lines} lines: split it by topic"));
    said.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_code_are_counted_by_crate() {
        let text = "//! About.\n\nuse a;\n\n    // Why.\nfn b() {}\n\n#[cfg(test)]\nmod tests {\n    fn c() {}\n}\n";
        assert_eq!(code_lines(text), 2);
        for (file, own) in [
            ("crates/one/src/a/b.rs", Some("one")),
            ("crates/one/src/a/tests.rs", None),
            ("crates/one/src/a/tests/b.rs", None),
            ("crates/one/tests/a.rs", None),
            ("xtask/src/a.rs", None),
        ] {
            assert_eq!(crate_of(Path::new(file)), own, "{file}");
        }
        let crates = [("one", 15_001), ("two", 15_000)].map(|(name, n)| (name.to_owned(), n));
        let named = "one has 15001 lines: split it where the compiler should forbid a dependency";
        assert_eq!(check_crates(&BTreeMap::from(crates)), [named]);
    }

    #[test]
    fn every_long_file_is_named_with_its_length() {
        let lengths =
            [("a.rs", 801), ("b.rs", 800), ("c.rs", 1200)].map(|(name, n)| (name.to_owned(), n));
        assert_eq!(
            check(&lengths),
            [
                "a.rs has 801 lines: split it by topic",
                "c.rs has 1200 lines: split it by topic"
            ]
        );
    }
}
