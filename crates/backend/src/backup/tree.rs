//! Directories in an archive.
//!
//! Invariant: a volume's server can change its files at any time. Everything is opened relative to the open directory
//! above it, and no symbolic link is followed, so that nothing outside of the volume gets into the archive.

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::{DirBuilderExt as _, OpenOptionsExt as _},
        },
    },
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat},
    io::Errno,
};
use tar::{Builder, EntryType, Header};

use super::Progress;

/// Maximum depth of directories. Deeper ones would exhaust the stack or the open files.
const MAX_DEPTH: usize = 128;

/// The numbers of files that were left out of the archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Skipped {
    /// Sockets, pipes and devices.
    pub(super) special: usize,
    /// Files of other file systems that are mounted below.
    pub(super) mounted: usize,
}

/// Creates a folder, and the missing ones above it, for this user alone.
pub(super) fn private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates a file for this user alone. It must not exist.
pub(super) fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Writes everything in a folder, its files and the folder itself to the disk.
pub(super) fn sync(path: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(path)?;
    if meta.is_dir() {
        for entry in fs::read_dir(path)? {
            sync(&entry?.path())?;
        }
    }
    match meta.is_dir() || meta.is_file() {
        true => File::open(path)?.sync_all(),
        false => Ok(()),
    }
}

struct Walk<'w, W: Write> {
    tar: &'w mut Builder<W>,
    progress: &'w Progress,
    skipped: &'w mut Skipped,
    /// The file system of the root.
    device: u64,
}

/// Adds a file or directory at `from` as `entry`. A file that changes its size while it is copied is cut or filled with
/// zeros. A file that disappears is left out. `except`: names directly below `from` to leave out.
///
/// # Errors
/// If something cannot be read or written, or is nested more than 128 levels deep.
pub(super) fn append<W: Write>(
    tar: &mut Builder<W>,
    entry: &Path,
    from: &Path,
    except: &[&str],
    progress: &Progress,
    skipped: &mut Skipped,
) -> io::Result<()> {
    // The path itself belongs to this program, so links above the volume are followed.
    let stat = statat(CWD, from, AtFlags::SYMLINK_NOFOLLOW)?;
    let mut walk = Walk {
        tar,
        progress,
        skipped,
        device: stat.st_dev,
    };
    walk.one(CWD.as_fd(), from.as_os_str(), entry, except, 0)
}

impl<W: Write> Walk<'_, W> {
    fn one(
        &mut self,
        above: impl AsFd,
        name: &OsStr,
        entry: &Path,
        except: &[&str],
        depth: usize,
    ) -> io::Result<()> {
        let stat = match statat(&above, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) if depth > 0 => return Ok(()),
            stat => stat?,
        };
        if stat.st_dev != self.device {
            self.skipped.mounted += 1;
            return Ok(());
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                if let Some((file, stat)) = open(&above, name, &stat, OFlags::empty())? {
                    self.file(File::from(file), &stat, entry)?;
                }
            }
            FileType::Directory => {
                if depth >= MAX_DEPTH {
                    return Err(io::Error::other(format!(
                        "{} is nested more than {MAX_DEPTH} levels deep",
                        entry.display()
                    )));
                }
                if let Some((dir, stat)) = open(&above, name, &stat, OFlags::DIRECTORY)? {
                    self.directory(&dir, &stat, entry, except, depth)?;
                }
            }
            FileType::Symlink => {
                let target = match readlinkat(&above, name, Vec::new()) {
                    Err(Errno::NOENT | Errno::INVAL) => return Ok(()),
                    target => target?,
                };
                let mut header = header(&stat, EntryType::Symlink);
                let target = OsStr::from_bytes(target.to_bytes());
                self.tar.append_link(&mut header, entry, target)?;
            }
            _ => self.skipped.special += 1,
        }
        Ok(())
    }

    fn file(&mut self, file: File, stat: &Stat, entry: &Path) -> io::Result<()> {
        let size = u64::try_from(stat.st_size).map_err(io::Error::other)?;
        let mut header = header(stat, EntryType::Regular);
        header.set_size(size);
        let content = Counted {
            inner: file.chain(io::repeat(0)).take(size),
            progress: self.progress,
        };
        self.tar.append_data(&mut header, entry, content)
    }

    fn directory(
        &mut self,
        dir: &OwnedFd,
        stat: &Stat,
        entry: &Path,
        except: &[&str],
        depth: usize,
    ) -> io::Result<()> {
        let mut header = header(stat, EntryType::Directory);
        self.tar.append_data(&mut header, entry, io::empty())?;
        for found in Dir::read_from(dir)? {
            let found = found?;
            let name = OsStr::from_bytes(found.file_name().to_bytes());
            let is_left_out = except.iter().any(|other| name == *other);
            if name == "." || name == ".." || is_left_out {
                continue;
            }
            self.one(dir, name, &entry.join(name), &[], depth + 1)?;
        }
        Ok(())
    }
}

/// Opens a file or directory, unless it was replaced since `seen`.
fn open(
    above: impl AsFd,
    name: &OsStr,
    seen: &Stat,
    flags: OFlags,
) -> io::Result<Option<(OwnedFd, Stat)>> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = match openat(above, name, flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => return Ok(None),
        opened => opened?,
    };
    let now = fstat(&opened)?;
    let is_same = (now.st_dev, now.st_ino, now.st_mode) == (seen.st_dev, seen.st_ino, seen.st_mode);
    Ok(is_same.then_some((opened, now)))
}

fn header(stat: &Stat, kind: EntryType) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(0);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header
}

/// Counts what is read, and fails once the work is cancelled.
struct Counted<'c, R> {
    inner: R,
    progress: &'c Progress,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.progress.is_cancelled() {
            return Err(io::Error::other("the work was cancelled"));
        }
        let read = self.inner.read(buffer)?;
        self.progress.add(read);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::symlink, net::UnixListener};

    use super::*;

    /// A server could place a link to a file of the host in its volume.
    #[test]
    fn o07_links_are_stored_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, secret) = (dir.path().join("volume"), dir.path().join("secret"));
        fs::create_dir_all(volume.join("inner/deep")).unwrap();
        fs::create_dir_all(volume.join("scratch")).unwrap();
        fs::write(&secret, "of the host").unwrap();
        fs::write(volume.join("inner/deep/note"), "of the server").unwrap();
        fs::write(volume.join("scratch/junk"), "junk").unwrap();
        symlink(&secret, volume.join("link")).unwrap();
        symlink(dir.path(), volume.join("inner/up")).unwrap();
        let _socket = UnixListener::bind(volume.join("socket")).unwrap();
        let mut tar = Builder::new(Vec::new());
        let (progress, mut skipped) = (Progress::default(), Skipped::default());
        append(
            &mut tar,
            Path::new("v"),
            &volume,
            &["scratch"],
            &progress,
            &mut skipped,
        )
        .unwrap();
        let bytes = tar.into_inner().unwrap();
        assert!(!bytes.windows(11).any(|part| part == b"of the host"));
        assert_eq!((skipped.special, skipped.mounted), (1, 0));
        let out = dir.path().join("out");
        tar::Archive::new(&bytes[..]).unpack(&out).unwrap();
        let note = fs::read_to_string(out.join("v/inner/deep/note"));
        assert_eq!(note.unwrap(), "of the server");
        assert_eq!(fs::read_link(out.join("v/link")).unwrap(), secret);
        assert!(!out.join("v/scratch").exists());
        assert_eq!(progress.get().1, 13);
    }
}
