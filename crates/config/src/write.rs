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

use rustix::fs::OFlags;

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
                .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
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
    match std::fs::symlink_metadata(path) {
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

/// Somebody else's part of a path, which they can turn elsewhere at any time.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Foreign {
    #[error("the symbolic link {} belongs to the user with id {uid}", .path.display())]
    Link { path: PathBuf, uid: u32 },
    #[error("the folder {} belongs to the user with id {uid}, and this process runs as root", .path.display())]
    Folder { path: PathBuf, uid: u32 },
    #[error("the symbolic link {} is in a folder that every user may write to", .path.display())]
    Open { path: PathBuf },
}

/// Links of a path that are followed, as many as the kernel follows.
const MAX_LINKS: u32 = 40;

/// Looks for a part of a path, through all its links, that another user controls: a link of theirs, or one in a folder that
/// every user may write to. For root also a folder of theirs, if `is_strict`. Parts of root are everybody's.
pub(crate) fn foreign(path: &Path, is_strict: bool) -> io::Result<Option<Foreign>> {
    let me = rustix::process::geteuid().as_raw();
    // In a user namespace the files of the machine's root may have another id.
    let root = std::fs::metadata("/")?.uid();
    let is_ours = |uid| [me, 0, root].contains(&uid);
    let mut links = 0;
    let mut is_open = false;
    let mut done = PathBuf::from("/");
    let mut left: Vec<PathBuf> = parts(&std::path::absolute(path)?);
    while let Some(part) = left.pop() {
        if part.as_os_str() == ".." {
            done.pop();
            continue;
        }
        let at = done.join(&part);
        let there = match std::fs::symlink_metadata(&at) {
            Ok(there) => there,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let uid = there.uid();
        if there.is_symlink() {
            if !is_ours(uid) {
                return Ok(Some(Foreign::Link { path: at, uid }));
            }
            if is_open {
                return Ok(Some(Foreign::Open { path: at }));
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let link = std::fs::read_link(&at)?;
            if link.is_absolute() {
                done = PathBuf::from("/");
            }
            left.append(&mut parts(&link));
            continue;
        }
        if there.is_dir() {
            if is_strict && me == 0 && !is_ours(uid) {
                return Ok(Some(Foreign::Folder { path: at, uid }));
            }
            // With the sticky bit, others cannot replace what is not theirs.
            is_open = there.permissions().mode() & 0o1002 == 0o002;
        }
        done = at;
    }
    Ok(None)
}

/// The parts of a path, last one first.
fn parts(path: &Path) -> Vec<PathBuf> {
    use std::path::Component::{Normal, ParentDir};
    let parts = path.components().rev();
    let parts = parts.filter(|part| matches!(part, Normal(_) | ParentDir));
    parts.map(|part| PathBuf::from(part.as_os_str())).collect()
}

/// Refuses a folder of Toolwharf's own that another user can turn elsewhere.
///
/// # Errors
/// `PermissionDenied` with the part of the path and its owner; else why it cannot be checked.
pub fn check_own_folder(path: &Path) -> io::Result<()> {
    match foreign(path, true)? {
        None => Ok(()),
        Some(part) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{part}: run this as that user, or choose another folder with `--data-dir`"),
        )),
    }
}

/// Replaces what `target` holds. `target` is no symbolic link.
pub(crate) fn replace(target: &Path, text: &str) -> io::Result<()> {
    let folder = target.parent().unwrap_or(Path::new("/"));
    // Made with mode 0600, in the same file system, and removed if anything fails.
    let mut temp = tempfile::Builder::new()
        .prefix(".toolwharf-")
        .tempfile_in(folder)?;
    temp.write_all(text.as_bytes())?;
    match std::fs::symlink_metadata(target) {
        Ok(old) if !old.is_file() => return Err(io::ErrorKind::InvalidInput.into()),
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
