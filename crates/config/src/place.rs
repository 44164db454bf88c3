//! A file as an opened folder and a name. The file is checked, locked and replaced in that folder, even if its path
//! leads elsewhere in the meantime.
//!
//! Invariants:
//! - The path is walked one component at a time and each one is looked up only once, so that another user cannot
//!   redirect it between a check and a write. The last component is never a link.
//! - A reader sees the old file or the new one, never a partial one, even after a crash (the data is on disk before the
//!   rename).
//! - A symbolic link is kept, and its target is replaced.
//! - A new file is readable by its owner alone. An existing one keeps its mode and, as far as permitted, its owner.
//! - The lock file is removed after each edit.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Maximum number of links followed in a path, the same as the kernel's.
const MAX_LINKS: u32 = 40;
/// 200 × 50 ms: the maximum wait for another editor.
const LOCK_ATTEMPTS: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Which components of a path may belong to other users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// If this process runs as root, no component of the path may belong to another user.
    Own,
    /// Folders may belong to another user, because root edits files on behalf of their owners. Links may not.
    Folders,
}

/// Why a path is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unplaced {
    #[error("the symbolic link {} belongs to the user with id {uid}", .path.display())]
    Link { path: PathBuf, uid: u32 },
    #[error("the folder {} belongs to the user with id {uid}, and this process runs as root", .path.display())]
    Folder { path: PathBuf, uid: u32 },
    #[error("the symbolic link {} is in a folder that every user may write to", .path.display())]
    Open { path: PathBuf },
    #[error("the path has more than {} symbolic links", MAX_LINKS)]
    Loop,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for Unplaced {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

impl Unplaced {
    /// Converts to an I/O error, with a hint on how to fix it.
    pub(crate) fn into_io(self, help: &str) -> io::Error {
        match self {
            Self::Io(error) => error,
            Self::Loop => io::Error::new(io::ErrorKind::InvalidInput, self.to_string()),
            part => io::Error::new(io::ErrorKind::PermissionDenied, format!("{part}: {help}")),
        }
    }
}

/// A file, or the location of a new one.
#[derive(Debug)]
pub(crate) struct Place {
    /// The nearest existing folder: the parent folder, or one above it.
    folder: OwnedFd,
    /// True if `folder` is the parent folder.
    has_folder: bool,
    name: OsString,
    /// The path with all links resolved.
    pub(crate) target: PathBuf,
}

/// A folder on the path to a file.
struct Step {
    folder: OwnedFd,
    /// True if any user may replace its entries.
    is_open: bool,
}

impl Place {
    /// Walks a path through all its links. Refuses a link of another user, a link in a folder that every user may write
    /// to, and, depending on `trust`, a folder of another user. Components that belong to root are always allowed. With
    /// `make`, missing folders are created with this mode.
    ///
    /// # Errors
    /// The component that is refused, or why the path cannot be walked.
    pub(crate) fn open(path: &Path, trust: Trust, make: Option<Mode>) -> Result<Self, Unplaced> {
        let me = rustix::process::geteuid().as_raw();
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, "/", flags, Mode::empty())?;
        // In a user namespace, the files of the machine's root may have another id.
        let machine = rustix::fs::fstat(&root)?.st_uid;
        let is_ours = |uid| [me, 0, machine].contains(&uid);
        let mut links = 0;
        let mut done = PathBuf::from("/");
        // Never empty, because the root stays.
        let mut steps = vec![Step {
            folder: root,
            is_open: false,
        }];
        let mut left = parts(&std::path::absolute(path)?);
        while let Some(part) = left.pop() {
            if part == ".." {
                if steps.len() > 1 {
                    steps.pop();
                    done.pop();
                }
                continue;
            }
            let Some(Step { folder, is_open }) = steps.last() else {
                break;
            };
            let at = done.join(&part);
            let there = match rustix::fs::openat(folder, &part, flags, Mode::empty()) {
                Ok(there) => there,
                Err(Errno::NOENT) if left.is_empty() => return Self::at(steps, true, at),
                Err(Errno::NOENT) => {
                    let Some(mode) = make else {
                        let at = left.iter().rev().fold(at, |at, part| at.join(part));
                        return Self::at(steps, false, at);
                    };
                    match rustix::fs::mkdirat(folder, &part, mode) {
                        // The next round opens the new folder like an existing one.
                        Ok(()) | Err(Errno::EXIST) => left.push(part),
                        Err(error) => return Err(error.into()),
                    }
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let stat = rustix::fs::fstat(&there)?;
            let uid = stat.st_uid;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Symlink => {
                    if !is_ours(uid) {
                        return Err(Unplaced::Link { path: at, uid });
                    }
                    if *is_open {
                        return Err(Unplaced::Open { path: at });
                    }
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Unplaced::Loop);
                    }
                    let link = rustix::fs::readlinkat(&there, "", Vec::new())?;
                    let link = PathBuf::from(OsString::from_vec(link.into_bytes()));
                    if link.is_absolute() {
                        steps.truncate(1);
                        done = PathBuf::from("/");
                    }
                    left.append(&mut parts(&link));
                }
                _ if left.is_empty() => return Self::at(steps, true, at),
                FileType::Directory => {
                    if trust == Trust::Own && me == 0 && !is_ours(uid) {
                        return Err(Unplaced::Folder { path: at, uid });
                    }
                    steps.push(Step {
                        folder: there,
                        // With the sticky bit, others cannot replace entries that they do not own.
                        is_open: stat.st_mode & 0o1002 == 0o002,
                    });
                    done = at;
                }
                _ => return Err(Errno::NOTDIR.into()),
            }
        }
        // The path has no file name, or ends in `..`.
        Err(Errno::ISDIR.into())
    }

    fn at(mut steps: Vec<Step>, has_folder: bool, target: PathBuf) -> Result<Self, Unplaced> {
        let name = target.file_name().map(OsStr::to_owned);
        let (Some(name), Some(Step { folder, .. })) = (name, steps.pop()) else {
            return Err(Errno::ISDIR.into());
        };
        Ok(Self {
            folder,
            has_folder,
            name,
            target,
        })
    }

    /// The same file with a suffix.
    pub(crate) fn beside(&self, suffix: &str) -> io::Result<Self> {
        let mut name = self.name.clone();
        name.push(suffix);
        Ok(Self {
            folder: self.folder.try_clone()?,
            has_folder: self.has_folder,
            target: self.target.with_file_name(&name),
            name,
        })
    }

    /// The owner of the file, or of the folder in which it would be created.
    pub(crate) fn owner(&self) -> io::Result<u32> {
        let stat = match self.stat(&self.name)? {
            Some(stat) => stat,
            None => rustix::fs::fstat(&self.folder)?,
        };
        Ok(stat.st_uid)
    }

    /// The file type, if it exists.
    pub(crate) fn kind(&self) -> io::Result<Option<FileType>> {
        let stat = self.stat(&self.name)?;
        Ok(stat.map(|stat| FileType::from_raw_mode(stat.st_mode)))
    }

    /// Opens the file for reading.
    ///
    /// # Errors
    /// `NotFound` if it is missing, `InvalidInput` if it is not a regular file.
    pub(crate) fn reader(&self) -> io::Result<File> {
        // Opening a device may have side effects.
        match self.kind()? {
            Some(FileType::RegularFile) => {}
            Some(_) => return Err(io::ErrorKind::InvalidInput.into()),
            None => return Err(io::ErrorKind::NotFound.into()),
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(
            &self.folder,
            &self.name,
            flags,
            Mode::empty(),
        )?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// `InvalidInput` if it is not a regular file; otherwise why it cannot be written. The file is then unchanged.
    pub(crate) fn replace(&self, text: &str) -> io::Result<()> {
        let mut temp = Temp::new(self)?;
        temp.file.write_all(text.as_bytes())?;
        if let Some(old) = self.stat(&self.name)? {
            if FileType::from_raw_mode(old.st_mode) != FileType::RegularFile {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            // Otherwise editing as root would change the owner of a user's file.
            let _ = std::os::unix::fs::fchown(&temp.file, Some(old.st_uid), Some(old.st_gid));
            let mode = Permissions::from_mode(old.st_mode & 0o777);
            temp.file.set_permissions(mode)?;
        }
        temp.file.sync_all()?;
        rustix::fs::renameat(&self.folder, &temp.name, &self.folder, &self.name)?;
        temp.is_done = true;
        self.sync()
    }

    /// # Errors
    /// If the file is missing or cannot be removed.
    pub(crate) fn remove(&self) -> io::Result<()> {
        if !self.has_folder {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(rustix::fs::unlinkat(
            &self.folder,
            &self.name,
            AtFlags::empty(),
        )?)
    }

    fn stat(&self, name: &OsStr) -> io::Result<Option<Stat>> {
        if !self.has_folder {
            return Ok(None);
        }
        match rustix::fs::statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a file in the folder for writing.
    fn create(&self, name: &OsStr, more: OFlags) -> io::Result<File> {
        if !self.has_folder {
            return Err(io::ErrorKind::NotFound.into());
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | more;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::openat(&self.folder, name, flags, mode)?.into())
    }

    fn sync(&self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(&self.folder, ".", flags, Mode::empty())?;
        File::from(folder).sync_all()
    }
}

/// A temporary file with the new content. Dropping it deletes the file, unless it was renamed over the old one.
struct Temp<'p> {
    place: &'p Place,
    name: OsString,
    file: File,
    is_done: bool,
}

impl<'p> Temp<'p> {
    fn new(place: &'p Place) -> io::Result<Self> {
        let mut random = [0; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = OsString::from(format!(".toolwharf-{}", hex::encode(random)));
        let file = place.create(&name, OFlags::EXCL)?;
        Ok(Self {
            place,
            name,
            file,
            is_done: false,
        })
    }
}

impl Drop for Temp<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = rustix::fs::unlinkat(&self.place.folder, &self.name, AtFlags::empty());
        }
    }
}

/// Exclusive write access to a file among Toolwharf processes.
#[derive(Debug)]
pub(crate) struct Lock<'p> {
    place: &'p Place,
    name: OsString,
    /// Holds the lock until it is dropped.
    _file: File,
}

impl<'p> Lock<'p> {
    /// Blocks for up to ten seconds.
    ///
    /// # Errors
    /// `TimedOut` if another process holds the lock; otherwise why the lock file cannot be created.
    pub(crate) fn take(place: &'p Place) -> io::Result<Self> {
        let name = [b".", place.name.as_bytes(), b".lock"].concat();
        let name = OsString::from_vec(name);
        for _ in 0..LOCK_ATTEMPTS {
            let file = place.create(&name, OFlags::empty())?;
            let is_there = || {
                let ours = file.metadata()?;
                let there = place.stat(&name)?;
                let is_it = |there: Stat| (there.st_ino, there.st_dev) == (ours.ino(), ours.dev());
                Ok::<_, io::Error>(there.is_some_and(is_it))
            };
            match file.try_lock() {
                // The previous holder may have removed the lock file. Then this lock is on a file that others will not
                // open.
                Ok(()) if is_there()? => {
                    return Ok(Self {
                        place,
                        name,
                        _file: file,
                    });
                }
                Ok(()) => {}
                Err(std::fs::TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
                Err(std::fs::TryLockError::Error(error)) => return Err(error),
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        // The file is removed before the lock is released, so that no other process can hold a lock on the removed
        // file. If this fails, the file remains and the next process uses it.
        let _ = rustix::fs::unlinkat(&self.place.folder, &self.name, AtFlags::empty());
    }
}

/// The components of a path, last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev();
    let parts = parts.filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    parts.map(|part| part.as_os_str().to_owned()).collect()
}
