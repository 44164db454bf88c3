//! A journal that this process writes.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::record::{self, After, Hash, Head, Position, Record};
use crate::{CallWrite, id};

/// The space that a journal reserves at a time. It is written with zeros, because the disk then need not write the
/// length of the file with each record.
const RESERVED_BYTES: usize = 256 << 10;
/// A journal of this size is followed by another one.
const FULL_BYTES: u64 = 16 << 20;

/// A journal that this process writes. Its lock tells other processes that it is not finished.
#[derive(Debug)]
pub(super) struct Segment {
    file: File,
    pub(super) name: Arc<str>,
    position: Position,
    /// The end of the file.
    reserved: u64,
}

/// The folder of the journals of a database.
pub(crate) fn folder(database: &str) -> PathBuf {
    format!("{database}-calls").into()
}

impl Segment {
    /// Creates a journal without a line.
    pub(super) fn create(folder: &Path) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(folder) {
            Ok(()) => sync_folder(folder.parent())?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let name = format!("{}.jsonl", id::new_id());
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(folder.join(&name))?;
        // On a file system without locks, another process could mistake this journal for one of a dead process, but it
        // would only enter the records that this process enters, too.
        let _ = file.try_lock();
        sync_folder(Some(folder))?;
        Ok(Self {
            file,
            name: name.into(),
            position: Position::START,
            reserved: 0,
        })
    }

    /// Writes the first line. `after`: the newest journal, and the hash of its last line.
    pub(super) fn begin(&mut self, after: Option<(&str, &str)>) -> io::Result<()> {
        let mut lines = Vec::new();
        let head = Record::Journal(Head {
            version: record::VERSION,
            started_at: record::text(id::now()),
            after: after.map(|(file, hash)| After {
                file: file.into(),
                hash: hash.into(),
            }),
        });
        let hash = record::push(&mut lines, self.position.hash, &head);
        self.write(&lines, hash)
    }

    /// Appends records. They are durable when this method returns. After an error, they do not count: the next ones
    /// are written to the same place.
    pub(super) fn append(&mut self, writes: &[CallWrite]) -> io::Result<Vec<u8>> {
        let mut lines = Vec::with_capacity(writes.len() * 512);
        let mut hash = self.position.hash;
        for write in writes {
            hash = record::push(&mut lines, hash, &write.into());
        }
        self.write(&lines, hash)?;
        Ok(lines)
    }

    fn write(&mut self, lines: &[u8], hash: Hash) -> io::Result<()> {
        let end = self.position.end + lines.len() as u64;
        while self.reserved < end {
            self.file
                .write_all_at(&vec![0; RESERVED_BYTES], self.reserved)?;
            self.reserved += RESERVED_BYTES as u64;
        }
        self.file.write_all_at(lines, self.position.end)?;
        self.file.sync_data()?;
        self.position = Position { end, hash };
        Ok(())
    }

    pub(super) fn is_full(&self) -> bool {
        self.position.end >= FULL_BYTES
    }

    /// The position after the last line.
    pub(super) fn position(&self) -> Position {
        self.position
    }

    #[cfg(test)]
    pub(super) fn replace_file(&mut self, file: File) -> File {
        self.reserved = self.position.end;
        std::mem::replace(&mut self.file, file)
    }

    /// Removes the space that was reserved. Nothing else can be done about an error, and the zeros do no harm.
    pub(super) fn end(self) {
        let _ = self.file.set_len(self.position.end);
    }
}

/// Makes a new entry of a folder durable.
fn sync_folder(folder: Option<&Path>) -> io::Result<()> {
    folder.map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
