//! Toolwharf's own files in its data directory, accessible to its user alone.
//!
//! Invariant: as root, nothing is read or written through a link or folder of another user.

use std::io;
use std::path::Path;

use rustix::fs::Mode;

use crate::place::{Place, Trust};

const OWNER_HELP: &str = "run Toolwharf as that user, or choose another folder with `--data-dir`";

/// Reads a file. `None` if it is missing.
///
/// # Errors
/// `PermissionDenied` with the component of the path that belongs to another user, and its owner; otherwise why it
/// cannot be read.
pub fn read_own(path: &Path) -> io::Result<Option<String>> {
    match placed(path, None)?.reader() {
        Ok(file) => io::read_to_string(file).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a file atomically. The file and new folders are accessible to this user alone.
///
/// # Errors
/// Like [`read_own`].
pub fn write_own(path: &Path, text: &str) -> io::Result<()> {
    placed(path, Some(Mode::RWXU))?.replace(text)
}

/// Removes a file. A missing file is not an error.
///
/// # Errors
/// Like [`read_own`].
pub fn remove_own(path: &Path) -> io::Result<()> {
    match placed(path, None)?.remove() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn placed(path: &Path, make: Option<Mode>) -> io::Result<Place> {
    Place::open(path, Trust::Own, make).map_err(|error| error.into_io(OWNER_HELP))
}
