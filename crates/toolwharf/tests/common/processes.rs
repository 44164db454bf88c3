//! Processes on this machine.

use std::{fs, path::Path};

/// Returns whether this entry of /proc is the scripted server of this name.
pub(crate) fn is_scripted(process: &Path, name: &str) -> bool {
    let line = fs::read_to_string(process.join("cmdline")).unwrap_or_default();
    let words: Vec<&str> = line.split('\0').collect();
    words[0].ends_with("/testkit-scripted") && words[1..].starts_with(&["--name", name])
}

/// Returns the process ids of the scripted servers of this name.
pub(crate) fn scripted(name: &str) -> Vec<String> {
    let mut all: Vec<_> = fs::read_dir("/proc").unwrap().flatten().collect();
    all.retain(|process| is_scripted(&process.path(), name));
    let ids = all.iter().map(fs::DirEntry::file_name);
    ids.map(|id| id.to_string_lossy().into_owned()).collect()
}
