//! Storage of the versions of a package.
//!
//! # Invariants
//!
//! - A version was complete, and written to the disk, before it got its final name.
//! - A version with a [`Lease`] is not removed.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::request::{Registry, Request, is_file_name};

/// Name prefix of folders that hold a version in preparation.
pub(super) const STAGE_PREFIX: &str = ".new-";
/// The link to the interpreter of a virtual environment. The link inside `venv` is not used, because packages can
/// change it.
pub(super) const PYTHON_LINK: &str = "python";
const CURRENT_LINK: &str = "current";

/// All installed versions of the packages that one [`Request`] (a command line of `npx` or `uvx`) names.
#[derive(Clone)]
pub(super) struct Cache {
    folder: PathBuf,
    /// The entry in a version's folder without which the version counts as incomplete.
    part: &'static str,
}

/// Keeps a version from being removed, until it is dropped or the process ends.
pub(crate) struct Lease(File);

/// A version in preparation, with a home directory for its installers.
#[derive(Clone)]
pub(super) struct Stage(PathBuf);

impl Stage {
    /// The folder that contains everything else.
    pub(super) fn root(&self) -> PathBuf {
        self.0.clone()
    }

    /// Folder for interpreters that are being downloaded.
    pub(super) fn python(&self) -> PathBuf {
        self.0.join("python")
    }

    pub(super) fn package(&self) -> PathBuf {
        self.0.join("package")
    }

    pub(super) fn home(&self) -> PathBuf {
        self.0.join("home")
    }

    pub(super) fn remove(&self) {
        let _ = fs::remove_dir_all(&self.0);
        // Succeeds only if the folder is empty, so no version of the package is installed.
        if let Some(cache) = self.0.parent() {
            let _ = fs::remove_dir(cache);
        }
    }
}

impl Cache {
    pub(super) fn new(packages: &Path, request: &Request) -> Self {
        Self {
            folder: packages.join(request.registry.name()).join(request.key()),
            part: match request.registry {
                Registry::Npm => "node_modules",
                Registry::Pypi => PYTHON_LINK,
            },
        }
    }

    /// The pinned version, if it is complete.
    pub(super) fn current(&self) -> Option<PathBuf> {
        self.last().filter(|version| self.is_whole(version))
    }

    /// An installed version, if complete.
    pub(super) fn version(&self, version: &str) -> Option<PathBuf> {
        let folder = is_version(version).then(|| self.folder.join(version))?;
        self.is_whole(&folder).then_some(folder)
    }

    /// Keeps a version from being removed by any process. `None`: it no longer exists.
    pub(super) fn lease(&self, version: &Path) -> io::Result<Option<Lease>> {
        let lease = match File::open(version) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            folder => Lease(folder?),
        };
        flock(&lease.0, FlockOperation::LockShared)?;
        Ok(self.is_whole(version).then_some(lease))
    }

    /// The pinned version, complete or not.
    pub(super) fn last(&self) -> Option<PathBuf> {
        let version = fs::read_link(self.folder.join(CURRENT_LINK)).ok()?;
        let version = version.to_str().filter(|version| is_file_name(version))?;
        Some(self.folder.join(version))
    }

    /// Creates a stage for a new version. Removes abandoned ones.
    pub(super) fn stage(&self, name: &str) -> io::Result<Stage> {
        remove_stages(&self.folder, |_| true);
        let stage = Stage(self.folder.join(name));
        fs::create_dir_all(stage.package())?;
        fs::create_dir(stage.home())?;
        Ok(stage)
    }

    /// Moves the version on the stage to its place, and pins it.
    pub(super) fn publish(&self, stage: &Stage, version: &str) -> io::Result<PathBuf> {
        let place = self.shelve(stage, version)?;
        self.switch(version, &stage.0.join(CURRENT_LINK))?;
        Ok(place)
    }

    /// Moves the version on the stage to its place, without pinning it.
    pub(super) fn shelve(&self, stage: &Stage, version: &str) -> io::Result<PathBuf> {
        if !is_version(version) {
            let why = format!(
                "the package version `{}` cannot be a folder name",
                version.escape_debug()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let place = self.folder.join(version);
        if !self.is_whole(&place) {
            if place.exists() {
                fs::remove_dir_all(&place)?;
            }
            make_readable(&stage.package())?;
            rustix::fs::syncfs(File::open(stage.package())?)?;
            fs::rename(stage.package(), &place)?;
        }
        Ok(place)
    }

    /// Pins an installed version. `link` is a temporary name.
    fn switch(&self, version: &str, link: &Path) -> io::Result<()> {
        symlink(version, link)?;
        fs::rename(link, self.folder.join(CURRENT_LINK))
    }

    /// Like [`Cache::switch`], but uses the name of a stage as the temporary name.
    pub(super) fn switch_to(&self, version: &str, stage: &str) -> io::Result<()> {
        remove_stages(&self.folder, |_| true);
        self.switch(version, &self.folder.join(stage))
    }

    /// Removes unused versions, except the pinned one and `kept`. Returns their number.
    pub(super) fn prune(&self, kept: &str, stage: &str) -> usize {
        let last = self.last();
        let mut removed = 0;
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let (folder, name) = (entry.path(), entry.file_name());
            let is_kept = Some(&folder) == last.as_ref() || name == kept;
            if is_kept || !name.to_str().is_some_and(is_version) {
                continue;
            }
            let Ok(lease) = File::open(&folder) else {
                continue;
            };
            if flock(&lease, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            // Renamed first: a partly removed version then has the name of a stage, which is never started.
            let gone = Stage(self.folder.join(stage));
            if fs::rename(&folder, &gone.0).is_ok() {
                gone.remove();
                removed += 1;
            }
        }
        removed
    }

    /// Removes all versions if none is in use. Returns whether it did.
    pub(super) fn forget(&self, stage: &str) -> bool {
        let last = self.last();
        // Without this link, no server can start from a version that is being removed.
        let _ = fs::remove_file(self.folder.join(CURRENT_LINK));
        self.prune("", stage);
        match (last, fs::remove_dir(&self.folder)) {
            (Some(last), Err(_)) if self.is_whole(&last) => {
                let name = last.file_name().and_then(|name| name.to_str());
                let _ = name.map(|name| self.switch_to(name, stage));
                false
            }
            _ => true,
        }
    }

    fn is_whole(&self, version: &Path) -> bool {
        version.join(self.part).exists()
    }
}

fn is_version(name: &str) -> bool {
    is_file_name(name) && name != CURRENT_LINK
}

/// Removes incomplete versions of earlier runs. Folders whose names begin with `own` are kept: this run prepares its
/// versions in them.
pub(super) fn sweep(packages: &Path, own: &str) {
    for registry in [Registry::Npm, Registry::Pypi] {
        let shelves = fs::read_dir(packages.join(registry.name()));
        for cache in shelves.into_iter().flatten().flatten() {
            remove_stages(&cache.path(), |name| !name.starts_with(own));
        }
    }
}

fn remove_stages(cache: &Path, which: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let stage = name.to_str().filter(|name| name.starts_with(STAGE_PREFIX));
        if stage.is_some_and(&which) {
            Stage(entry.path()).remove();
        }
    }
}

/// Makes files readable for servers, which run as separate users, whatever the umask of this process.
pub(super) fn make_readable(path: &Path) -> io::Result<()> {
    let metadata = path.symlink_metadata()?;
    if metadata.is_symlink() {
        return Ok(());
    }
    let mode = metadata.permissions().mode() & 0o7777;
    let is_program = metadata.is_dir() || mode & 0o100 != 0;
    let wanted = mode & 0o777 | if is_program { 0o555 } else { 0o444 };
    if wanted != mode {
        fs::set_permissions(path, Permissions::from_mode(wanted))?;
    }
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            make_readable(&entry?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u03_a_version_is_complete_or_not_there() {
        let packages = tempfile::tempdir().unwrap();
        let packages = packages.path();
        let args = ["one".to_owned()];
        let request = Request::parse("npx", &args).unwrap().unwrap();
        let cache = Cache::new(packages, &request);
        assert_eq!(cache.current(), None);
        cache.stage(".new-a-0").unwrap().remove();
        assert_eq!(fs::read_dir(packages.join("npm")).unwrap().count(), 0);
        let given_up = cache.stage(".new-a-0").unwrap();
        fs::create_dir(given_up.package().join("node_modules")).unwrap();
        let stage = cache.stage(".new-a-1").unwrap();
        assert!(!given_up.home().exists() && cache.current().is_none());
        let secret = stage.package().join("node_modules");
        fs::create_dir(&secret).unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(0o700)).unwrap();
        for bad in ["", "..", "a/b", "current"] {
            assert!(cache.publish(&stage, bad).is_err(), "{bad}");
        }
        let version = cache.publish(&stage, "1.0").unwrap();
        assert_eq!(cache.current(), Some(version.clone()));
        let mode = version
            .join("node_modules")
            .metadata()
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o755);
        // An incomplete version is installed again.
        fs::remove_dir(version.join("node_modules")).unwrap();
        assert_eq!(
            (cache.current(), cache.last()),
            (None, Some(version.clone()))
        );
        let again = cache.stage(".new-b-0").unwrap();
        fs::create_dir(again.package().join("node_modules")).unwrap();
        sweep(packages, ".new-b-");
        assert_eq!(cache.publish(&again, "1.0").unwrap(), version);
        sweep(packages, ".new-c-");
        // Other versions are removed if nothing runs from them.
        for other in ["1.1", "1.2", "2.0"] {
            let stage = cache.stage(".new-d-0").unwrap();
            fs::create_dir(stage.package().join("node_modules")).unwrap();
            cache.shelve(&stage, other).unwrap();
            stage.remove();
        }
        assert_eq!(cache.current(), Some(version.clone()));
        cache.switch_to("2.0", ".new-d-1").unwrap();
        assert_eq!(cache.current(), cache.version("2.0"));
        let lease = cache.lease(&version).unwrap().unwrap();
        assert_eq!(cache.prune("1.2", ".new-d-2"), 1);
        let there = ["1.0", "1.1", "1.2", "2.0"].map(|name| cache.version(name).is_some());
        assert_eq!(there, [true, false, true, true]);
        drop(lease);
        assert_eq!(cache.prune("2.0", ".new-d-3"), 2);
        assert!(!again.home().exists());
        // `forget` removes all versions, but not while one is in use.
        let lease = cache.lease(&cache.current().unwrap()).unwrap();
        assert!(!cache.forget(".new-d-4") && cache.current().is_some());
        drop(lease);
        assert!(cache.forget(".new-d-5") && cache.current().is_none());
        assert!(cache.lease(&version).unwrap().is_none());
    }
}
