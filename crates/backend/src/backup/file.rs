//! The file of a backup as a whole: header, contents, seal.
//!
//! The contents are a tar archive compressed with Zstandard. Before and after it is a skippable frame (RFC 8878, section
//! 3.1.2), which other programs ignore, so `tar --zstd -tf FILE` lists the contents. The first frame names the format
//! and its version. The last one has the SHA-256 of everything before it: without it the file was cut off, and with
//! another one a byte has changed.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use sha2::{Digest, Sha256};

use super::Progress;

/// The version of the format. A version that cannot be read by earlier ones gets the next number.
pub(super) const FORMAT: u8 = 1;
const MAGIC: &[u8; 17] = b"toolwharf backup\n";
const COMPLETE: &[u8; 8] = b"complete";
/// The first bytes of a skippable frame are 0x184D2A50 to 0x184D2A5F, little-endian.
const HEADER_FRAME: u32 = 0x184D_2A50;
const SEAL_FRAME: u32 = 0x184D_2A5F;
const HEADER_BYTES: u64 = 8 + 17 + 1;
const SEAL_BYTES: u64 = 8 + 8 + 32;
/// Follows the name of a file while it is written.
pub(super) const PARTIAL: &str = ".partial";
/// Attempts at locking the unfinished file, which another process may rename or remove at the same time.
const MAX_ATTEMPTS: usize = 10;
const READ_BYTES: usize = 1 << 20;

/// A file that is being written. It has another name until it is complete, and dropping it removes it.
///
/// Only the process that holds the lock on the unfinished file writes it. An unfinished file of a killed process is
/// overwritten.
pub(super) struct Pending {
    path: PathBuf,
    partial: PathBuf,
    replace: bool,
    out: Hashing,
    is_done: bool,
}

/// Writes to a file, and computes the digest of what was written.
struct Hashing {
    file: File,
    hash: Sha256,
    bytes: u64,
}

impl Pending {
    /// Begins a file at this path. `replace`: replaces an existing file at the end.
    ///
    /// # Errors
    /// If the folder does not exist or cannot be written to, if the file exists and `replace` is false, or if another
    /// process is writing it.
    pub(super) fn create(path: &Path, replace: bool) -> anyhow::Result<Self> {
        let path = std::path::absolute(path)
            .with_context(|| format!("cannot use the path {}", path.display()))?;
        let shown = path.display();
        if path.file_name().is_none() {
            bail!("{shown} is not the name of a file");
        }
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => {
                bail!("{shown} is a folder: name a file in it, such as {shown}/toolwharf.tar.zst")
            }
            Ok(_) if !replace => bail!("{shown} exists already: name another file, or use --force"),
            _ => {}
        }
        let partial = partial_of(&path);
        let file = locked(&partial)?;
        let mut pending = Self {
            path,
            partial,
            replace,
            out: Hashing {
                file,
                hash: Sha256::new(),
                bytes: 0,
            },
            is_done: false,
        };
        let begun = pending.out.file.set_len(0).and_then(|()| {
            let mode = fs::Permissions::from_mode(0o600);
            pending.out.file.set_permissions(mode)?;
            frame(&mut pending.out, HEADER_FRAME, &[MAGIC, &[FORMAT]])
        });
        begun.with_context(|| format!("cannot write {}", pending.path.display()))?;
        Ok(pending)
    }

    /// The path that the file will have.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A path beside the file for a temporary file. Only the holder of this file uses it.
    pub(super) fn beside(&self) -> PathBuf {
        beside(&self.partial)
    }

    /// Completes the file and writes it to the disk. It has its other name until it is published.
    pub(super) fn seal(&mut self) -> io::Result<()> {
        let digest = self.out.hash.clone().finalize();
        frame(&mut self.out, SEAL_FRAME, &[COMPLETE, &digest])?;
        self.out.file.sync_all()
    }

    /// Gives a sealed file its name.
    pub(super) fn publish(mut self) -> io::Result<Published> {
        match self.replace {
            true => fs::rename(&self.partial, &self.path)?,
            false => rename_new(&self.partial, &self.path)?,
        }
        self.is_done = true;
        Ok(Published {
            path: self.path.clone(),
            bytes: self.out.bytes,
            is_kept: false,
        })
    }
}

/// A complete file under its name. Dropping it removes the file, unless it is kept.
pub(super) struct Published {
    path: PathBuf,
    bytes: u64,
    is_kept: bool,
}

impl Published {
    /// The folder, which must be written to the disk before the file is kept.
    pub(super) fn folder(&self) -> PathBuf {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        folder.to_owned()
    }

    /// Returns the size of the file in bytes.
    pub(super) fn keep(mut self) -> u64 {
        self.is_kept = true;
        self.bytes
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Writes the entries of a folder to the disk.
pub(super) fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

impl Write for Pending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// Writes a skippable frame.
fn frame(to: &mut impl Write, magic: u32, parts: &[&[u8]]) -> io::Result<()> {
    let content = parts.concat();
    let length = u32::try_from(content.len()).map_err(io::Error::other)?;
    to.write_all(&magic.to_le_bytes())?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(&content)
}

/// The name of a file while it is written.
fn partial_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(PARTIAL);
    PathBuf::from(name)
}

/// Returns whether unfinished files exist for this path.
#[must_use]
pub fn is_unfinished(path: &Path) -> bool {
    let partial = partial_of(path);
    partial.exists() || beside(&partial).exists()
}

/// Removes the unfinished file of a killed process, unless another process is writing it.
pub(super) fn remove_stale(path: &Path) {
    let partial = partial_of(path);
    let Ok(file) = File::open(&partial) else {
        return;
    };
    if file.try_lock().is_ok() {
        remove_copy(&beside(&partial));
        let _ = fs::remove_file(&partial);
    }
}

/// Removes the copy of a SQLite file, and the journal that SQLite keeps next to it while it is written.
pub(super) fn remove_copy(path: &Path) {
    let mut journal = path.as_os_str().to_owned();
    journal.push("-journal");
    let _ = fs::remove_file(path);
    let _ = fs::remove_file(journal);
}

/// A path for a temporary file that only the writer of the unfinished file uses.
fn beside(partial: &Path) -> PathBuf {
    let mut name = partial.as_os_str().to_owned();
    name.push("-db");
    PathBuf::from(name)
}

/// Opens and locks the unfinished file.
fn locked(partial: &Path) -> anyhow::Result<File> {
    let shown = partial.display();
    for _ in 0..MAX_ATTEMPTS {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(partial);
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = partial.parent().unwrap_or(partial).display();
                bail!("there is no folder {folder}: create it, or name another file");
            }
            Err(error) => return Err(error).with_context(|| format!("cannot write {shown}")),
        };
        let meta = file.metadata()?;
        // In a folder that others can write to, another user may have prepared the file to read it.
        if !meta.is_file() || meta.uid() != rustix::process::geteuid().as_raw() {
            bail!(
                "{shown} belongs to another user, or is not a file: remove it, or name another file"
            );
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!(
                    "another backup writes {shown} at the moment: wait for it, or name another file"
                )
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {shown}"));
            }
        }
        // Before the lock was taken, its holder may have renamed or removed the file.
        let is_same = |now: fs::Metadata| (now.dev(), now.ino()) == (meta.dev(), meta.ino());
        if fs::symlink_metadata(partial).is_ok_and(is_same) {
            return Ok(file);
        }
    }
    bail!("other backups write {shown} at the moment: wait for them, or name another file")
}

/// Renames a file unless the new name exists.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system knows the flag.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        done => Ok(done?),
    }
}

/// A complete backup file, whose every byte was checked.
pub(super) struct Checked {
    file: File,
    /// Where its contents end.
    end: u64,
}

impl Checked {
    /// Opens a file and checks all of it. Blocks for as long as it takes to read it.
    ///
    /// # Errors
    /// If it cannot be read, or is not a backup, is of a newer version, was cut off, or was changed.
    pub(super) fn open(path: &Path, progress: &Progress) -> anyhow::Result<Self> {
        let shown = path.display();
        let mut file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
        let reading = || format!("cannot read {shown}");
        let meta = file.metadata().with_context(reading)?;
        if !meta.is_file() {
            bail!("{shown} is not a file");
        }
        let mut header = Vec::new();
        let head = (&mut file).take(HEADER_BYTES).read_to_end(&mut header);
        head.with_context(reading)?;
        let mut expect = Vec::new();
        frame(&mut expect, HEADER_FRAME, &[MAGIC, &[FORMAT]])?;
        let (version, before) = expect.split_last().expect("it is not empty");
        if header.len() < expect.len() || !header.starts_with(before) {
            if !header.is_empty() && expect.starts_with(&header) {
                bail!("{shown} is incomplete: it was cut off");
            }
            bail!("{shown} is not a backup of Toolwharf");
        }
        let found = header[expect.len() - 1];
        if found > *version {
            bail!(
                "{shown} was made by a newer Toolwharf (format {found}, and this version knows {version}): restore it with that version"
            );
        }
        if found != *version {
            bail!("{shown} is damaged: its header was changed");
        }
        let Some(end) = meta
            .len()
            .checked_sub(SEAL_BYTES)
            .filter(|end| *end >= HEADER_BYTES)
        else {
            bail!("{shown} is incomplete: it was cut off");
        };
        let digest = digest(&mut file, end, progress).with_context(reading)?;
        let mut seal = Vec::new();
        file.read_to_end(&mut seal).with_context(reading)?;
        let mut expect = Vec::new();
        frame(&mut expect, SEAL_FRAME, &[COMPLETE, &digest])?;
        if seal != expect {
            let marked = 8 + COMPLETE.len();
            match seal.get(..marked) == expect.get(..marked) {
                true => bail!("{shown} is damaged: its contents were changed after it was written"),
                false => bail!("{shown} is incomplete or damaged: its end is missing"),
            }
        }
        Ok(Self { file, end })
    }

    /// The contents, from the beginning.
    pub(super) fn contents(&self) -> io::Result<impl Read + use<>> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(HEADER_BYTES))?;
        Ok(file.take(self.end - HEADER_BYTES))
    }
}

/// The digest of the first `end` bytes. Leaves the file at that position.
fn digest(file: &mut File, end: u64, progress: &Progress) -> io::Result<[u8; 32]> {
    file.rewind()?;
    let mut hash = Sha256::new();
    let mut left = end;
    let mut buffer = vec![0; READ_BYTES];
    while left > 0 {
        let room = usize::try_from(left).map_or(READ_BYTES, |left| left.min(READ_BYTES));
        let read = file.read(&mut buffer[..room])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        hash.update(&buffer[..read]);
        progress.add(read);
        left -= read as u64;
    }
    Ok(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, content: &[u8]) -> anyhow::Result<u64> {
        let mut pending = Pending::create(path, false)?;
        pending.write_all(content)?;
        pending.seal()?;
        Ok(pending.publish()?.keep())
    }

    fn check(path: &Path) -> Result<Vec<u8>, String> {
        let checked = Checked::open(path, &Progress::default());
        let checked = checked.map_err(|error| format!("{error:#}"))?;
        let mut content = Vec::new();
        checked
            .contents()
            .unwrap()
            .read_to_end(&mut content)
            .unwrap();
        Ok(content)
    }

    #[test]
    fn o07_every_changed_byte_and_every_cut_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b");
        write(&path, b"contents").unwrap();
        assert_eq!(check(&path).unwrap(), b"contents");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            for change in [1, 0x80] {
                let mut changed = whole.clone();
                changed[at] ^= change;
                fs::write(&path, changed).unwrap();
                assert!(check(&path).is_err(), "byte {at}");
            }
            fs::write(&path, &whole[..at]).unwrap();
            let error = check(&path).unwrap_err();
            let expect = if at == 0 {
                "is not a backup"
            } else {
                "incomplete"
            };
            assert!(error.contains(expect), "{at} bytes: {error}");
        }
        fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        assert!(check(&path).is_err());
    }

    #[test]
    fn o07_a_newer_format_and_other_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b");
        write(&path, b"contents").unwrap();
        let mut newer = fs::read(&path).unwrap();
        newer[usize::try_from(HEADER_BYTES).unwrap() - 1] = FORMAT + 1;
        for (content, expect) in [
            (newer, "newer Toolwharf"),
            (
                b"SQLite format 3\0 and so on, long enough".to_vec(),
                "is not a backup",
            ),
        ] {
            fs::write(&path, content).unwrap();
            let error = check(&path).unwrap_err();
            assert!(error.contains(expect), "{error}");
        }
        let error = check(&dir.path().join("none")).unwrap_err();
        assert!(error.contains("cannot open"), "{error}");
        let error = check(dir.path()).unwrap_err();
        assert!(error.contains("is not a file"), "{error}");
    }

    #[test]
    fn o07_an_unfinished_file_has_another_name_and_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b");
        let mut pending = Pending::create(&path, false).unwrap();
        pending.write_all(b"half").unwrap();
        assert!(!path.exists());
        let error = Pending::create(&path, false).err().unwrap().to_string();
        assert!(error.contains("another backup"), "{error}");
        drop(pending);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

        // The unfinished file of a killed process is replaced.
        fs::write(dir.path().join("b.partial"), "rest of a killed process").unwrap();
        write(&path, b"whole").unwrap();
        assert_eq!(check(&path).unwrap(), b"whole");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn o07_an_existing_file_is_replaced_only_if_asked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b");
        fs::write(&path, "precious").unwrap();
        let error = write(&path, b"x").unwrap_err().to_string();
        assert!(error.contains("--force"), "{error}");
        // It appears only while the backup is written.
        fs::remove_file(&path).unwrap();
        let pending = Pending::create(&path, false).unwrap();
        fs::write(&path, "precious").unwrap();
        assert!(pending.publish().is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        let mut pending = Pending::create(&path, true).unwrap();
        pending.seal().unwrap();
        pending.publish().unwrap().keep();
        assert_eq!(check(&path).unwrap(), b"");
        for wrong in [dir.path().to_owned(), dir.path().join("none/b")] {
            let error = Pending::create(&wrong, false).err().unwrap().to_string();
            assert!(error.contains("folder"), "{error}");
        }
    }
}
