//! Bounds for the size of an installation.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Size of one block in `st_blocks`, in bytes.
const BLOCK_BYTES: u64 = 512;

/// Limits on what one installation may write to the disk, including caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub bytes: u64,
    /// Files, folders and links.
    pub files: u64,
}

impl Bounds {
    /// Returns which bound the content of a folder exceeds.
    pub(super) fn exceeded_by(self, folder: &Path) -> Option<String> {
        let (mut bytes, mut files) = (0, 0);
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            // The folder may be gone by now.
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let Ok(about) = entry.metadata() else {
                    continue;
                };
                files += 1;
                bytes += about.blocks() * BLOCK_BYTES;
                if about.is_dir() {
                    folders.push(entry.path());
                }
            }
            if bytes > self.bytes {
                return Some(format!(
                    "more than {} bytes on the disk; raise `package_bytes` in [hosting] of toolwharf.toml if it is meant to \
                     be that large",
                    self.bytes
                ));
            }
            if files > self.files {
                return Some(format!(
                    "more than {} files; raise `package_files` in [hosting] of toolwharf.toml if it is meant to have that \
                     many",
                    self.files
                ));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u03_what_is_on_a_stage_is_counted_by_bytes_and_by_files() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        fs::create_dir(folder.join("a")).unwrap();
        for name in ["a/b", "c"] {
            fs::write(folder.join(name), vec![1; 100_000]).unwrap();
        }
        std::os::unix::fs::symlink("/", folder.join("d")).unwrap();
        for (bytes, files, expected) in [
            (1 << 20, 4, None),
            (150_000, 4, Some("package_bytes")),
            (1 << 20, 3, Some("package_files")),
        ] {
            let found = Bounds { bytes, files }.exceeded_by(folder);
            let named = |part: &str| found.as_ref().is_some_and(|found| found.contains(part));
            assert!(expected.map_or(found.is_none(), named), "{found:?}");
        }
    }
}
