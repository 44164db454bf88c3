//! `cargo xtask graph`, second part: checks that no Rust file is longer than [`MAX_LINES`], including tests.
//!
//! A longer file covers several topics, and readers do not find the one that they need.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;

/// Lines per file.
const MAX_LINES: usize = 800;
const FOLDERS: [&str; 3] = ["crates", "xtask", "examples"];

/// Checks this workspace.
///
/// # Errors
///
/// Lists every file that is too long, with its length.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        rust_files(&workspace.root().join(folder), &mut files)?;
    }
    files.sort();
    let mut lengths = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file);
        let text = text.with_context(|| format!("cannot read {}", file.display()))?;
        let name = file.strip_prefix(workspace.root()).unwrap_or(file);
        lengths.push((name.to_string_lossy().into_owned(), text.lines().count()));
    }
    let wrong = check(&lengths);
    if wrong.is_empty() {
        eprintln!("    {} files, none over {MAX_LINES} lines", files.len());
        return Ok(());
    }
    bail!(
        "no Rust file may have more than {MAX_LINES} lines:\n  {}",
        wrong.join("\n  ")
    )
}

pub(crate) fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder);
    for entry in entries.with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            rust_files(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
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

    #[test]
    fn folders_are_searched_to_the_bottom() {
        let folder = tempfile::tempdir().expect("a folder");
        let deep = folder.path().join("a/b");
        fs::create_dir_all(&deep).expect("folders");
        for file in ["x.rs", "a/y.txt", "a/b/z.rs"] {
            fs::write(folder.path().join(file), "").expect("a file");
        }
        let mut files = Vec::new();
        rust_files(folder.path(), &mut files).expect("a folder");
        files.sort();
        assert_eq!(files, [deep.join("z.rs"), folder.path().join("x.rs")]);
    }
}
