//! The inputs in `corpus`: valid ones, invalid ones, and every input that once showed a fault.

use std::{fs, path::PathBuf};

use crate::Target;

/// The folder of a target's inputs.
#[must_use]
pub fn folder(target: &Target) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target.name)
}

/// A target's inputs, sorted by the names of their files.
///
/// # Panics
/// If the folder cannot be read.
#[must_use]
pub fn inputs(target: &Target) -> Vec<Vec<u8>> {
    let folder = folder(target);
    let read = fs::read_dir(&folder);
    let read = read.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = read.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let inputs = paths.iter().map(|path| fs::read(path).expect("an input"));
    inputs.collect()
}
