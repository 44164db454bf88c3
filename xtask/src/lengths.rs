//! `cargo xtask graph`, second part: checks that no Rust file is longer than [`MAX_LINES`], including tests.
//!
//! A longer file covers several topics, and readers do not find the one that they need.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::workspace::{Workspace, files};

/// Maximum number of lines per file.
const MAX_LINES: usize = 800;
const FOLDERS: [&str; 3] = ["crates", "xtask", "examples"];

/// Checks this workspace.
///
/// # Errors
///
/// Lists every file that is too long, with its length.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut lengths = Vec::new();
    for folder in FOLDERS {
        for file in files(&workspace.root().join(folder))? {
            if file.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&file);
                let text = text.with_context(|| format!("cannot read {}", file.display()))?;
                let name = file.strip_prefix(workspace.root()).unwrap_or(&file);
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
    eprintln!("    {} files, none over {MAX_LINES} lines", lengths.len());
    Ok(())
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
