//! Toolwharf's own files in its data directory, read and written for its user alone.
//!
//! Invariant: as root, nothing is read or written through a link or a folder of another user.

use std::io;
use std::path::Path;

use rustix::fs::Mode;

use crate::place::{Place, Trust};

const HELP: &str = "run this as that user, or choose another folder with `--data-dir`";

/// The text of a file; `None` if it is not there.
///
/// # Errors
/// `PermissionDenied` with the part of the path that is another user's and its owner; else why it cannot be read.
pub fn read_own(path: &Path) -> io::Result<Option<String>> {
    match placed(path, None)?.reader() {
        Ok(file) => io::read_to_string(file).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a file in one step. It and the folders that are made for it are for this user alone.
///
/// # Errors
/// As [`read_own`].
pub fn write_own(path: &Path, text: &str) -> io::Result<()> {
    placed(path, Some(Mode::RWXU))?.replace(text)
}

/// Removes a file; one that is not there is no error.
///
/// # Errors
/// As [`read_own`].
pub fn remove_own(path: &Path) -> io::Result<()> {
    match placed(path, None)?.remove() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn placed(path: &Path, make: Option<Mode>) -> io::Result<Place> {
    Place::open(path, Trust::Own, make).map_err(|error| error.into_io(HELP))
}
