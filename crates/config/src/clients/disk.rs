//! Reads and replaces a client's file on behalf of its owner only.
//!
//! Invariants: a symbolic link is kept and its target replaced; a file that was replaced by another one since it was
//! read is not written; nothing that belongs to another user is written, whatever privileges this process has. A link
//! that another user has made or could replace is not followed.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode};

use crate::{
    edit::{EditError, text_at},
    place::{Lock, Place, Trust, Unplaced},
    problem::Problem,
};

/// A file, or the location of a new one.
#[derive(Clone, Debug)]
pub struct OnDisk {
    pub path: PathBuf,
    /// The path with all links resolved.
    target: PathBuf,
    /// `None`: the file is missing.
    pub text: Option<String>,
}

impl OnDisk {
    /// # Errors
    /// If the path is not a regular file, not UTF-8, larger than 8 MiB, owned by another user, or cannot be read.
    pub fn read(path: &Path) -> Result<Self, EditError> {
        Self::at(path, &placed(path, None)?)
    }

    fn at(path: &Path, place: &Place) -> Result<Self, EditError> {
        owned(path, place)?;
        let kind = place.kind().map_err(|source| write_error(path, source))?;
        let what = match kind {
            None | Some(FileType::RegularFile) => None,
            Some(FileType::Directory) => Some("the path is a directory"),
            Some(_) => Some("the path is not a regular file"),
        };
        if let Some(what) = what {
            let problem = Problem::of_file(path, what);
            return Err(unreadable(problem.help("move it out of the way")));
        }
        Ok(Self {
            path: path.to_owned(),
            target: place.target.clone(),
            text: text_at(place, path)?,
        })
    }

    /// Returns whether other users may access the file.
    #[must_use]
    pub fn is_open_to_others(&self) -> bool {
        fs::metadata(&self.target).is_ok_and(|there| there.permissions().mode() & 0o077 != 0)
    }

    /// Replaces or removes the file. Blocks for up to ten seconds while another Toolwharf process edits it.
    ///
    /// # Errors
    /// If it has changed since it was read, or cannot be written. It is then unchanged.
    pub fn replace(&self, text: Option<&str>) -> Result<(), EditError> {
        let failed = |source| write_error(&self.path, source);
        if text == self.text.as_deref() {
            return Ok(());
        }
        let folders = Mode::RWXU | Mode::RWXG | Mode::RWXO;
        let place = placed(&self.path, Some(folders))?;
        let _lock = Lock::take(&place).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => EditError::Locked(self.path.clone()),
            _ => failed(error),
        })?;
        let now = Self::at(&self.path, &place)?;
        if now.target != self.target || now.text != self.text {
            return Err(EditError::Contended(self.path.clone()));
        }
        match text {
            Some(text) => place.replace(text),
            None => place.remove(),
        }
        .map_err(failed)
    }
}

fn placed(path: &Path, make: Option<Mode>) -> Result<Place, EditError> {
    let help = match Place::open(path, Trust::Own, make) {
        Ok(place) => return Ok(place),
        Err(Unplaced::Io(source)) => return Err(write_error(path, source)),
        Err(why @ Unplaced::Loop) => (why, "remove the links"),
        Err(why) => (
            why,
            "run the command as the owner of the file, or replace the file with a regular one in folders of your own",
        ),
    };
    let (why, help) = help;
    Err(unreadable(
        Problem::of_file(path, why.to_string()).help(help),
    ))
}

fn write_error(path: &Path, source: io::Error) -> EditError {
    EditError::Write {
        path: path.to_owned(),
        source,
    }
}

/// Checks that the file, or the folder in which it would be created, belongs to this user.
fn owned(path: &Path, place: &Place) -> Result<(), EditError> {
    let me = rustix::process::geteuid().as_raw();
    let owner = place.owner().map_err(|source| write_error(path, source))?;
    if owner == me {
        return Ok(());
    }
    let what = format!(
        "the file or its folder belongs to the user with id {owner}, but this process runs as the user with id {me}"
    );
    let problem = Problem::of_file(path, what);
    Err(unreadable(problem.help("run the command as that user")))
}

fn unreadable(problem: Problem) -> EditError {
    EditError::Unreadable(problem.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_and_permissions_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real.json"), folder.path().join("link"));
        fs::write(&real, "a").unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&real, &link).unwrap();
        OnDisk::read(&link).unwrap().replace(Some("b")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&real).unwrap(), "b");
        let mode = fs::metadata(&real).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        // A new file is accessible to its owner only.
        let new = folder.path().join("a/b/new.json");
        OnDisk::read(&new).unwrap().replace(Some("c")).unwrap();
        assert!(!OnDisk::read(&new).unwrap().is_open_to_others());
        OnDisk::read(&new).unwrap().replace(None).unwrap();
        assert!(!new.exists());
        let left: Vec<_> = fs::read_dir(folder.path().join("a/b")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn a_file_that_changed_meanwhile_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        fs::write(&path, "a").unwrap();
        let read = OnDisk::read(&path).unwrap();
        fs::write(&path, "theirs").unwrap();
        let error = read.replace(Some("ours")).unwrap_err();
        assert!(matches!(error, EditError::Contended(_)), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
    }

    #[test]
    fn a_link_to_a_file_of_another_user_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (link, mut theirs) = (folder.path().join("f"), folder.path().join("theirs"));
        if rustix::process::geteuid().is_root() {
            fs::write(&theirs, "").unwrap();
            std::os::unix::fs::chown(&theirs, Some(65_534), None).unwrap();
        } else {
            theirs = "/etc/passwd".into();
        }
        symlink(&theirs, &link).unwrap();
        let said = OnDisk::read(&link).unwrap_err().to_string();
        assert!(said.contains("belongs to the user with id"), "{said}");
    }

    #[test]
    fn files_without_text_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let said = |path: &Path| OnDisk::read(path).unwrap_err().to_string();
        assert!(said(folder.path()).contains("is a directory"));
        fs::write(&path, b"a\n\xff").unwrap();
        assert!(said(&path).contains("line 2 is not UTF-8"));
        fs::remove_file(&path).unwrap();
        symlink(&path, &path).unwrap();
        assert!(said(&path).contains("links"));
        fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR).unwrap();
        assert!(said(&path).contains("not a regular file"));
    }

    #[test]
    fn root_follows_no_link_of_another_user() {
        assert!(
            rustix::process::geteuid().is_root(),
            "run this test as root: it makes files of another user"
        );
        const OTHER_UID: u32 = 65_533;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // This file belongs to root. The links of the other user lead to it.
        fs::create_dir(at("etc")).unwrap();
        fs::write(at("etc/mcp.json"), "{}").unwrap();
        let give = |path: &Path| std::os::unix::fs::lchown(path, Some(OTHER_UID), None).unwrap();
        // The links lead to the file, to its folder, and to a file that does not exist yet.
        for name in ["home", "other"] {
            fs::create_dir(at(name)).unwrap();
        }
        symlink(at("etc/mcp.json"), at("home/mcp.json")).unwrap();
        symlink(at("etc"), at("home/.cursor")).unwrap();
        symlink(at("etc/new.json"), at("home/new.json")).unwrap();
        for name in ["mcp.json", ".cursor", "new.json"] {
            give(&at("home").join(name));
        }
        for name in ["mcp.json", ".cursor/mcp.json", "new.json"] {
            let said = OnDisk::read(&at("home").join(name))
                .unwrap_err()
                .to_string();
            assert!(said.contains("symbolic link"), "{name}: {said}");
            assert!(said.contains("user with id 65533"), "{name}: {said}");
            let edited = crate::edit::edit(&at("home").join(name), |_| Ok(()));
            let said = edited.unwrap_err();
            let said = format!("{said}: {:?}", std::error::Error::source(&said));
            assert!(said.contains("user with id 65533"), "{name}: {said}");
        }
        // This file belongs to root, but the other user owns its folder and can therefore replace it.
        fs::write(at("other/mcp.json"), "{}").unwrap();
        give(&at("other"));
        let said = OnDisk::read(&at("other/mcp.json")).unwrap_err().to_string();
        assert!(
            said.contains("other belongs to the user with id 65533"),
            "{said}"
        );
        let said = crate::write_own(&at("other/a/x"), "x").unwrap_err();
        assert!(said.to_string().contains("--data-dir"), "{said}");
        assert!(!at("other/a").exists());
        // The link appears after the file was read.
        let read = OnDisk::read(&at("etc/late.json")).unwrap();
        symlink(at("etc/mcp.json"), at("etc/late.json")).unwrap();
        give(&at("etc/late.json"));
        read.replace(Some("theirs")).unwrap_err();
        // Every user may replace entries of this folder.
        fs::create_dir(at("open")).unwrap();
        fs::set_permissions(at("open"), fs::Permissions::from_mode(0o777)).unwrap();
        symlink(at("etc"), at("open/link")).unwrap();
        let said = OnDisk::read(&at("open/link/mcp.json"))
            .unwrap_err()
            .to_string();
        assert!(said.contains("every user may write"), "{said}");
        assert_eq!(fs::read_to_string(at("etc/mcp.json")).unwrap(), "{}");
        assert!(!at("etc/new.json").exists());
        // The lock is not written through a link either.
        symlink(at("etc/mcp.json"), at("etc/.x.lock")).unwrap();
        Lock::take(&placed(&at("etc/x"), None).unwrap()).unwrap_err();
        // The user's own links, to files and to folders, are followed and remain.
        symlink(at("etc"), at("mine")).unwrap();
        OnDisk::read(&at("mine/mcp.json"))
            .unwrap()
            .replace(Some("{ }"))
            .unwrap();
        assert_eq!(fs::read_to_string(at("etc/mcp.json")).unwrap(), "{ }");
        assert!(fs::symlink_metadata(at("mine")).unwrap().is_symlink());
    }

    #[test]
    fn a_path_that_is_redirected_after_its_check_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["etc", "home"] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("f"), name).unwrap();
        }
        let place = placed(&at("home/f"), None).unwrap();
        fs::rename(at("home"), at("old")).unwrap();
        symlink(at("etc"), at("home")).unwrap();
        {
            let _lock = Lock::take(&place).unwrap();
            assert!(at("old/.f.lock").exists());
            place.beside(".bak").unwrap().replace("copy").unwrap();
            place.replace("new").unwrap();
        }
        let all = |name: &str| {
            let files = fs::read_dir(at(name)).unwrap();
            let mut files: Vec<_> = files.map(|it| it.unwrap().file_name()).collect();
            files.sort();
            files
        };
        assert_eq!(fs::read_to_string(at("old/f")).unwrap(), "new");
        assert_eq!(fs::read_to_string(at("etc/f")).unwrap(), "etc");
        assert_eq!(
            (all("old"), all("etc")),
            (vec!["f".into(), "f.bak".into()], vec!["f".into()])
        );
        // Now the file itself is replaced by a link.
        fs::remove_file(at("old/f")).unwrap();
        symlink(at("etc/f"), at("old/f")).unwrap();
        place.reader().unwrap_err();
        place.replace("new").unwrap_err();
        place.remove().unwrap();
        assert_eq!(fs::read_to_string(at("etc/f")).unwrap(), "etc");
        assert_eq!(
            (all("old"), all("etc")),
            (vec!["f.bak".into()], vec!["f".into()])
        );
    }
}
