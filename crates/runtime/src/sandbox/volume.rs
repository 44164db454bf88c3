//! Server volumes: directories that outlive instances, limited in size where possible.
//!
//! # Storage
//!
//! `DIR/volumes/ID/disk.ext4` is a sparse file with a file system as large as the server's disk limit. It holds all
//! volumes of the server and, while an instance runs, its `/tmp`; their total size cannot exceed the limit. It is
//! mounted at `DIR/mounts/ID`, which only root can access, while an instance runs. This needs root, loop devices and
//! e2fsprogs. Without them, volumes are unlimited directories in `DIR/volumes/ID/data`. A server keeps the kind of
//! storage it started with.
//!
//! # Invariants
//!
//! - A file system that cannot be mounted is an error. It is never replaced by an empty volume.
//! - Only [`Volumes::remove`] removes data, and only while no instance uses the data.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{major, minor};
use rustix::mount::{UnmountFlags, unmount};
use tokio::time::Instant;

use crate::image::takes_direct_io;
use crate::unit::Error;

/// Timeout of one run of `mkfs`, `mount`, `e2fsck` or `resize2fs`.
const TOOL_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Minimum size of a file system. Smaller ones have no room for data.
const MIN_IMAGE_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Volumes {
    directory: PathBuf,
    /// True if file systems can be mounted.
    privileged: bool,
    /// Number of instances that use each mounted file system.
    mounted: Mutex<HashMap<String, usize>>,
}

/// The volumes of one instance. Dropping it unmounts them if no other instance uses them.
#[derive(Debug)]
pub(super) struct Opened {
    /// Path inside → host directory.
    pub(super) directories: BTreeMap<String, PathBuf>,
    /// The directory for `/tmp`, if it is on the same file system.
    pub(super) scratch: Option<PathBuf>,
    /// `Ok`: how their size is limited. `Err`: why it is not.
    pub(super) limit: Result<String, String>,
    release: Option<(Arc<Volumes>, String)>,
}

impl Volumes {
    pub(super) fn new(directory: PathBuf, privileged: bool) -> Arc<Self> {
        Arc::new(Self {
            directory,
            privileged,
            mounted: Mutex::default(),
        })
    }

    /// Creates and mounts missing volumes. `name` is the instance's name. Blocks.
    pub(super) fn open(
        self: &Arc<Self>,
        id: &str,
        name: &str,
        paths: &[String],
        size: u64,
        owner: Option<u32>,
    ) -> Result<Opened, Error> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Error::Failed(format!("{what} for volumes of `{id}`: {error}"))
        };
        let home = self.home(id);
        private(&home).map_err(|error| failed("cannot create the directory", &error))?;
        let data = home.join("data");
        let image = home.join("disk.ext4");
        let mut opened = Opened {
            directories: BTreeMap::new(),
            scratch: None,
            limit: Err(String::new()),
            release: None,
        };
        let base = match self.usable(&data, &image, size) {
            Ok(()) => {
                let at = self.mount_point(id);
                opened.limit = self.acquire(id, &image, &at, size)?;
                opened.release = Some((Arc::clone(self), id.to_owned()));
                let scratch = at.join("scratch").join(name);
                directory(&scratch, None)
                    .and_then(|()| fs::set_permissions(&scratch, Permissions::from_mode(0o1777)))
                    .map_err(|error| failed("cannot create the scratch space", &error))?;
                opened.scratch = Some(scratch);
                at.join("volumes")
            }
            Err(why) => {
                opened.limit = Err(why);
                data
            }
        };
        for path in paths {
            let place = base.join(escape(path));
            directory(&place, owner)
                .map_err(|error| failed("cannot create the directory", &error))?;
            opened.directories.insert(path.clone(), place);
        }
        Ok(opened)
    }

    /// Checks that the server has, or can get, its own file system.
    fn usable(&self, data: &Path, image: &Path, size: u64) -> Result<(), String> {
        if image.exists() {
            return Ok(());
        }
        if data.exists() {
            return Err(
                "its volumes are plain directories, whose size cannot be limited; to get volumes with a limit, stop \
                 the server and remove its volumes, which removes their data"
                    .to_owned(),
            );
        }
        if !self.privileged {
            return Err("only root can mount a file system of a fixed size".to_owned());
        }
        if !Path::new("/dev/loop-control").exists() {
            return Err("this host has no loop devices; run `modprobe loop`".to_owned());
        }
        make(image, size)
    }

    fn acquire(
        &self,
        id: &str,
        image: &Path,
        at: &Path,
        size: u64,
    ) -> Result<Result<String, String>, Error> {
        let mut mounted = self.mounted.lock();
        let fits = if mounted.get(id).is_none_or(|&count| count == 0) {
            self.mount(id, image, at, size)?
        } else {
            fits(image, size)
        };
        *mounted.entry(id.to_owned()).or_default() += 1;
        Ok(fits)
    }

    fn mount(
        &self,
        id: &str,
        image: &Path,
        at: &Path,
        size: u64,
    ) -> Result<Result<String, String>, Error> {
        // Unmounts a file system that an earlier run may have left mounted.
        let _ = unmount(at, UnmountFlags::DETACH);
        let resized = resize(image, size);
        private(&self.directory.join("mounts"))
            .and_then(|()| directory(at, None))
            .map_err(|error| Error::Failed(format!("cannot create `{}`: {error}", at.display())))?;
        let arguments = [
            "-o".as_ref(),
            "loop,nosuid,nodev,discard".as_ref(),
            image.as_os_str(),
            at.as_os_str(),
        ];
        run("mount", &arguments).map_err(|why| {
            Error::Failed(format!(
                "the volumes of `{id}` cannot be mounted: {why}; `fsck.ext4 {}` may help",
                image.display()
            ))
        })?;
        if takes_direct_io(image)
            && let Err(why) = past_the_cache(at)
        {
            tracing::debug!(id, %why, "cannot enable direct I/O, so data written to volumes is cached twice");
        }
        let _ = fs::remove_dir_all(at.join("scratch"));
        let fits = match resized {
            Ok(()) => fits(image, size),
            Err(why) => Err(why),
        };
        directory(&at.join("volumes"), None)
            .and_then(|()| directory(&at.join("scratch"), None))
            .map_err(|error| {
                let _ = unmount(at, UnmountFlags::DETACH);
                Error::Failed(format!(
                    "the volumes of `{id}` cannot be written to: {error}"
                ))
            })?;
        Ok(fits)
    }

    fn release(&self, id: &str) {
        let mut mounted = self.mounted.lock();
        if let Some(count) = mounted.get_mut(id) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                mounted.remove(id);
                let at = self.mount_point(id);
                if let Err(error) = unmount(&at, UnmountFlags::DETACH) {
                    tracing::warn!(id, %error, "volumes cannot be unmounted");
                }
                let _ = fs::remove_dir(at);
            }
        }
    }

    /// Unmounts file systems that no instance of this run uses. Returns their number.
    pub(super) fn sweep(&self) -> usize {
        let mounted = self.mounted.lock();
        let entries = fs::read_dir(self.directory.join("mounts"));
        let mut count = 0;
        for entry in entries.into_iter().flatten().flatten() {
            let used = entry
                .file_name()
                .to_str()
                .is_some_and(|id| mounted.contains_key(id));
            if !used && unmount(entry.path(), UnmountFlags::DETACH).is_ok() {
                count += 1;
            }
            if !used {
                // Removes empty directories only.
                let _ = fs::remove_dir(entry.path());
            }
        }
        count
    }

    /// Removes all volumes of a server. Blocks.
    pub(super) fn remove(&self, id: &str) -> Result<(), Error> {
        let mounted = self.mounted.lock();
        if mounted.contains_key(id) {
            return Err(Error::Refused {
                field: "volumes",
                why: format!("its server (id `{id}`) is still running; stop it first"),
            });
        }
        let at = self.mount_point(id);
        let _ = unmount(&at, UnmountFlags::DETACH);
        let _ = fs::remove_dir(at);
        match fs::remove_dir_all(self.home(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::Failed(format!(
                "the volumes of `{id}` cannot be removed: {error}"
            ))),
            _ => Ok(()),
        }
    }

    fn home(&self, id: &str) -> PathBuf {
        self.directory.join("volumes").join(id)
    }

    fn mount_point(&self, id: &str) -> PathBuf {
        self.directory.join("mounts").join(id)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(scratch) = &self.scratch {
            let _ = fs::remove_dir_all(scratch);
        }
        if let Some((volumes, id)) = self.release.take() {
            volumes.release(&id);
        }
    }
}

fn make(image: &Path, size: u64) -> Result<(), String> {
    // The image has a temporary name until it is complete.
    let new = image.with_extension("new");
    let size = size.max(MIN_IMAGE_BYTES);
    let made = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .and_then(|file| file.set_len(size))
        .map_err(|error| format!("cannot create `{}`: {error}", new.display()));
    let arguments = ["-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=1"];
    let mut arguments: Vec<_> = arguments.iter().map(AsRef::as_ref).collect();
    arguments.push(new.as_os_str());
    let made = made
        .and_then(|()| run("mkfs.ext4", &arguments))
        .and_then(|_| fs::rename(&new, image).map_err(|error| error.to_string()));
    if made.is_err() {
        let _ = fs::remove_file(&new);
    }
    made
}

/// Resizes an unmounted file system.
fn resize(image: &Path, size: u64) -> Result<(), String> {
    let size = size.max(MIN_IMAGE_BYTES);
    let now = image.metadata().map_err(|error| error.to_string())?.len();
    if now == size {
        return Ok(());
    }
    let set_len = || {
        let file = OpenOptions::new().write(true).open(image);
        file.and_then(|file| file.set_len(size))
            .map_err(|error| error.to_string())
    };
    if now < size {
        set_len()?;
    }
    let blocks = format!("{}K", size / 1024);
    let resized = run("e2fsck", &["-f".as_ref(), "-p".as_ref(), image.as_os_str()])
        .and_then(|_| run("resize2fs", &[image.as_os_str(), blocks.as_ref()]));
    resized.map_err(|why| {
        format!("cannot resize the server's volumes from {now} to {size} bytes: {why}")
    })?;
    if now > size { set_len() } else { Ok(()) }
}

/// Turns on direct I/O for a mounted image.
fn past_the_cache(at: &Path) -> Result<(), String> {
    let device = fs::metadata(at).map_err(|error| error.to_string())?.dev();
    let device = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let device = fs::read_link(&device).map_err(|error| format!("`{device}`: {error}"))?;
    let name = device.file_name().ok_or("a device without a name")?;
    let device = Path::new("/dev").join(name);
    run("losetup", &["--direct-io=on".as_ref(), device.as_os_str()]).map(drop)
}

fn fits(image: &Path, size: u64) -> Result<String, String> {
    let found = image.metadata().map_err(|error| error.to_string())?.len();
    if found <= size.max(MIN_IMAGE_BYTES) {
        Ok(format!(
            "volumes and /tmp on a file system of {found} bytes"
        ))
    } else {
        Err(format!(
            "the file system of its volumes has {found} bytes, more than the limit of {size}: stop the server and start \
             it again to resize it"
        ))
    }
}

/// Creates a directory that only this user can access.
pub(super) fn private(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

fn directory(path: &Path, owner: Option<u32>) -> io::Result<()> {
    fs::create_dir_all(path)?;
    match owner {
        Some(owner) => chown(path, Some(owner), Some(owner)),
        None => Ok(()),
    }
}

/// Encodes a path reversibly as a single file name.
fn escape(path: &str) -> String {
    path.replace('%', "%25").replace('/', "%2F")
}

/// Runs a system tool and returns its output.
pub(super) fn run(program: &str, arguments: &[&std::ffi::OsStr]) -> Result<String, String> {
    run_with(Path::new(program), arguments, Stdio::null())
}

/// Runs a program with this standard input and returns its output.
pub(super) fn run_with(
    program: &Path,
    arguments: &[&std::ffi::OsStr],
    input: Stdio,
) -> Result<String, String> {
    run_within(program, arguments, input, TOOL_TIMEOUT)
}

/// Like [`run_with`], with another timeout.
pub(super) fn run_within(
    program: &Path,
    arguments: &[&std::ffi::OsStr],
    input: Stdio,
    timeout: Duration,
) -> Result<String, String> {
    let command = program;
    let program = program.display();
    let mut child = Command::new(command)
        .args(arguments)
        .env_clear()
        .env("PATH", super::view::PATH)
        .env("LC_ALL", "C")
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => format!("`{program}` is not installed"),
            _ => format!("cannot run `{program}`: {error}"),
        })?;
    let deadline = Instant::now() + timeout;
    // The output of these tools fits into a pipe.
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => thread::sleep(POLL_INTERVAL),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!(
                    "`{program}` took more than {} s",
                    timeout.as_secs()
                ));
            }
            Err(error) => return Err(format!("`{program}`: {error}")),
        }
    };
    let mut text = String::new();
    if status.success() {
        let _ = child
            .stdout
            .take()
            .map(|mut out| out.read_to_string(&mut text));
        Ok(text)
    } else {
        let _ = child
            .stderr
            .take()
            .map(|mut err| err.read_to_string(&mut text));
        let text = text.trim().replace('\n', "; ");
        Err(format!("`{program}`: {status}: {text}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_do_not_meet_in_one_name() {
        let names: std::collections::BTreeSet<_> = ["/a/b", "/a%2Fb", "/a_b", "/a%252Fb"]
            .iter()
            .map(|path| escape(path))
            .collect();
        assert_eq!(names.len(), 4);
        assert!(names.iter().all(|name| !name.contains('/')));
    }

    #[test]
    fn without_root_volumes_are_directories_and_say_so() {
        let directory = tempfile::tempdir().unwrap();
        let volumes = Volumes::new(directory.path().into(), false);
        let paths = ["/data".to_owned()];
        let opened = volumes.open("x", "x.1", &paths, 1 << 20, None).unwrap();
        let why = opened.limit.clone().unwrap_err();
        assert!(why.contains("root"), "{why}");
        fs::write(opened.directories["/data"].join("kept"), "x").unwrap();
        drop(opened);
        let again = volumes.open("x", "x.2", &paths, 1 << 20, None).unwrap();
        assert!(again.directories["/data"].join("kept").exists());
        volumes.remove("x").unwrap();
        assert!(!directory.path().join("volumes/x").exists());
        volumes.remove("x").unwrap();
    }
}
