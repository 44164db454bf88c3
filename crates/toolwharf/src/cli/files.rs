//! Reads files that the user names. Errors say what to name instead.

use std::{
    fs::File,
    io::{ErrorKind, Read as _},
    path::Path,
};

use anyhow::bail;

use super::prompt::stdin;

/// Returns the text of a file. `what` says in errors what the file should be, such as `a manifest`.
///
/// # Errors
/// The file cannot be read, is not UTF-8, or is larger than `max` bytes.
pub(super) fn text(path: &Path, what: &str, max: u64) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(max + 1).read_to_string(&mut text));
    let shown = path.display();
    match read {
        Ok(read) if read as u64 > max => {
            bail!("{shown} is larger than {}; name {what}", size(max))
        }
        Ok(_) => Ok(text),
        Err(error) => match error.kind() {
            ErrorKind::NotFound => bail!("there is no file {shown}; name {what}"),
            ErrorKind::IsADirectory => bail!("{shown} is a directory; name {what} in it"),
            ErrorKind::InvalidData => bail!("{shown} is not a UTF-8 text file; name {what}"),
            ErrorKind::PermissionDenied => {
                bail!("cannot read {shown}: {error}; make the file readable, or name {what}")
            }
            _ => bail!("cannot read {shown}: {error}; name {what}"),
        },
    }
}

/// Like [`text`], for a path or `-`, which is standard input. Also returns a name for errors.
///
/// # Errors
/// As for [`text`].
pub(super) fn text_or_stdin(path: &Path, what: &str, max: u64) -> anyhow::Result<(String, String)> {
    match path.as_os_str() == "-" {
        true => Ok(("standard input".to_owned(), stdin()?)),
        false => Ok((path.display().to_string(), text(path, what, max)?)),
    }
}

fn size(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        mebibytes => format!("{mebibytes} MiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_file_and_what_it_should_be() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        std::fs::write(&file, b"\xff\xfe").expect("a file");
        let large = folder.path().join("large");
        std::fs::write(&large, "long text").expect("a file");
        for (path, expect) in [
            (folder.path().join("none"), "there is no file"),
            (folder.path().to_owned(), "is a directory"),
            (file.join("below"), "cannot read"),
            (file, "not a UTF-8 text file"),
            (large, "larger than"),
        ] {
            let error = text(&path, "a manifest", 4)
                .expect_err("not readable")
                .to_string();
            for part in [expect, "a manifest", &path.display().to_string()] {
                assert!(error.contains(part), "{part:?} is not in {error:?}");
            }
        }
    }
}
