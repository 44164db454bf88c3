//! MCPB files: nothing is written outside the folder, nor more than allowed, and only files and folders.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use install::{Document, extract, plans};
use serde_json::json;

use super::registry;

pub(crate) const WORDS: &[&str] = &[
    "PK\x01\x02",
    "PK\x03\x04",
    "PK\x05\x06",
    "PK\x06\x06",
    "PK\x06\x07",
    "PK\x07\x08",
    "../",
    "/etc/",
    "a/b",
    "\\",
    "manifest.json",
];

/// Maximum bytes of all files of a bundle.
const MAX_BYTES: u64 = 1 << 20;

pub(crate) fn run(input: &[u8]) {
    let scratch = Scratch::new();
    let folder = scratch.path().join("bundle");
    let extracted = extract(input, &folder, MAX_BYTES);
    let mut total = 0;
    walk(&folder, &mut total);
    assert!(total <= MAX_BYTES + 1, "{total} bytes");
    let beside = fs::read_dir(scratch.path()).expect("the folder").count();
    assert!(beside <= 1, "{beside} files beside the folder");
    let Err(why) = extracted else {
        let entry = json!({
            "name": "com.example/weather", "version": "1.0.0", "packages": [{
                "registryType": "mcpb", "identifier": "https://example.com/a.mcpb", "version": "1.0.0",
                "fileSha256": "0".repeat(64), "transport": {"type": "stdio"},
            }],
        });
        let mut plan = plans(&Document::read(&entry).expect("an entry")).remove(0);
        plan.unpacked(folder);
        return registry::filled(&plan, &BTreeMap::new());
    };
    assert!(
        why.len() < 2000 && !why.contains(char::is_control),
        "{why:?}"
    );
}

fn walk(folder: &Path, total: &mut u64) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        let about = fs::symlink_metadata(&path).expect("a file");
        assert!(about.is_file() || about.is_dir(), "{}", path.display());
        assert_eq!(about.permissions().mode() & 0o7022, 0, "{}", path.display());
        if about.is_dir() {
            walk(&path, total);
        } else {
            *total += about.len();
        }
    }
}

/// A folder that is removed at the end, in memory if possible.
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        let memory = PathBuf::from("/dev/shm");
        let folder = tempfile::tempdir_in(&memory).or_else(|_| tempfile::tempdir());
        Self(folder.expect("a temporary folder"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}
