//! Replacing a file whole, one writer at a time.
//!
//! Invariants: a reader sees the old file or the new one, never a half; after a crash too
//! (the data is on disk before the rename). A symbolic link stays one: its target is
//! replaced. A new file is readable by its owner alone, an existing one keeps its mode and,
//! as far as we may, its owner. The lock file is gone when nobody edits.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// 200 × 50 ms: how long another editor is waited for.
const LOCK_ATTEMPTS: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// The only writer of a file, among processes of ours.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    /// Holds the lock until it is dropped.
    _file: File,
}

impl Lock {
    /// Blocks for up to ten seconds.
    ///
    /// # Errors
    /// `TimedOut` when somebody else keeps it; else why the lock file cannot be made.
    pub(crate) fn take(target: &Path) -> io::Result<Self> {
        let mut name = std::ffi::OsString::from(".");
        name.push(target.file_name().unwrap_or_default());
        name.push(".lock");
        let path = target.with_file_name(name);
        for _ in 0..LOCK_ATTEMPTS {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)?;
            match file.try_lock() {
                // Whoever held it before has removed it: we locked a file that no longer is
                // the one that others will open.
                Ok(()) if is_same(&file, &path)? => return Ok(Self { path, _file: file }),
                Ok(()) => {}
                Err(std::fs::TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
                Err(std::fs::TryLockError::Error(error)) => return Err(error),
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Before the lock is released, so that nobody can hold the one that is removed.
        // A failure leaves a file that the next one takes over.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn is_same(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(there) => Ok(ours.ino() == there.ino() && ours.dev() == there.dev()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The file that a path leads to, through symbolic links; the path itself if there is none.
pub(crate) fn target(path: &Path) -> io::Result<PathBuf> {
    let mut path = std::path::absolute(path)?;
    // As many as the kernel follows. `canonicalize` would fail on a link to nothing.
    for _ in 0..40 {
        match std::fs::read_link(&path) {
            Ok(link) => path = path.parent().unwrap_or(Path::new("/")).join(link),
            Err(_) => return Ok(path),
        }
    }
    Err(io::ErrorKind::InvalidInput.into())
}

/// Replaces what `target` holds. `target` is no symbolic link.
pub(crate) fn replace(target: &Path, text: &str) -> io::Result<()> {
    let folder = target.parent().unwrap_or(Path::new("/"));
    // Made with mode 0600, in the same file system, and removed if anything fails.
    let mut temp = tempfile::Builder::new()
        .prefix(".toolwharf-")
        .tempfile_in(folder)?;
    temp.write_all(text.as_bytes())?;
    match std::fs::metadata(target) {
        Ok(old) => {
            // Editing as root would otherwise take a user's file away from them.
            let _ = std::os::unix::fs::fchown(temp.as_file(), Some(old.uid()), Some(old.gid()));
            let mode = old.permissions().mode() & 0o777;
            temp.as_file()
                .set_permissions(std::fs::Permissions::from_mode(mode))?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    temp.as_file().sync_all()?;
    temp.persist(target).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}
