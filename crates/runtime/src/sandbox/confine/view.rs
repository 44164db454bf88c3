//! The host files that an installation step sees, as arguments for bubblewrap.

use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use super::super::view::SYSTEM;
use super::Step;
use crate::search::PATH;

/// Paths in `/etc` that npm, uv and Python need.
const ETC: [&str; 14] = [
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/debian_version",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
];
/// Folders with the programs that git starts for its subcommands.
const GIT_FOLDERS: [&str; 4] = [
    "/usr/lib/git-core",
    "/usr/libexec/git-core",
    "/usr/local/lib/git-core",
    "/usr/local/libexec/git-core",
];
/// Size of `/tmp` in bytes. npm and uv keep their temporary files on the stage.
const TMP_BYTES: u64 = 64 << 20;
const SHM_BYTES: u64 = 16 << 20;

/// Returns whether every step sees this path.
pub(crate) fn is_system(path: &Path) -> bool {
    SYSTEM
        .iter()
        .chain(&ETC)
        .any(|system| path.starts_with(system))
}

/// `files`: path inside and descriptor of each file's content. `shim`: the arguments that show this program.
pub(super) fn arguments(step: &Step, files: &[(&Path, i32)], shim: &[OsString]) -> Vec<OsString> {
    let mut arguments = Arguments::default();
    for path in SYSTEM.iter().chain(&ETC).map(Path::new) {
        match fs::read_link(path) {
            Ok(target) => arguments.push("--symlink", [target.as_os_str(), path.as_os_str()]),
            Err(_) if path.exists() => arguments.show(path),
            Err(_) => {}
        }
    }
    arguments.push("--proc", [OsStr::new("/proc")]);
    arguments.push("--dev", [OsStr::new("/dev")]);
    arguments.memory("/dev/shm", SHM_BYTES);
    arguments.memory("/tmp", TMP_BYTES);
    arguments
        .made
        .extend(["/tmp", "/dev", "/proc"].map(PathBuf::from));
    let mut shown: Vec<_> = step.shown.iter().filter(|path| path.exists()).collect();
    // Outer paths first, so that mounting them does not cover the inner ones.
    shown.sort();
    for path in shown {
        arguments.show(path);
    }
    for program in gits(&step.path) {
        if arguments.is_shown(&program) {
            // `/dev/null` is not a regular file, so it cannot be executed, whatever its mode.
            arguments.push("--ro-bind", [OsStr::new("/dev/null"), program.as_os_str()]);
        }
    }
    let cores: BTreeSet<_> = GIT_FOLDERS
        .iter()
        .filter_map(|path| Path::new(path).canonicalize().ok())
        .collect();
    for core in cores {
        if arguments.is_shown(&core) {
            arguments.memory(&core.display().to_string(), 4096);
            arguments.push("--remount-ro", [core.as_os_str()]);
        }
    }
    for (path, number) in files {
        if arguments.is_shown(path) {
            continue;
        }
        arguments.parents(path);
        arguments.push("--perms", [OsStr::new("0444")]);
        let number = number.to_string();
        arguments.push("--ro-bind-data", [OsStr::new(&number), path.as_os_str()]);
    }
    let stage = (&step.stage, &step.stage);
    for (inside, host) in step.writable.iter().chain([stage]) {
        arguments.parents(inside);
        arguments.push("--bind", [host.as_os_str(), inside.as_os_str()]);
    }
    arguments.parents(Path::new(super::shim::PATH_INSIDE));
    arguments.list.extend(shim.iter().cloned());
    arguments.push("--remount-ro", [OsStr::new("/dev")]);
    arguments.push("--remount-ro", [OsStr::new("/")]);
    arguments.list
}

/// Returns the git programs that a step could find.
fn gits(path: &OsStr) -> BTreeSet<PathBuf> {
    let folders = env::split_paths(path).chain(env::split_paths(OsStr::new(PATH)));
    let mut found = BTreeSet::new();
    for folder in folders {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name == "git" || name.starts_with("git-") {
                // A mount on a link would be a mount on the link's target.
                found.extend(entry.path().canonicalize());
            }
        }
    }
    found.retain(|path| path.is_file());
    found
}

#[derive(Default)]
struct Arguments {
    list: Vec<OsString>,
    made: BTreeSet<PathBuf>,
    shown: Vec<PathBuf>,
}

impl Arguments {
    fn push<const N: usize>(&mut self, flag: &str, words: [&OsStr; N]) {
        self.list.push(flag.into());
        self.list.extend(words.map(OsStr::to_owned));
    }

    fn is_shown(&self, path: &Path) -> bool {
        self.shown.iter().any(|shown| path.starts_with(shown))
    }

    fn show(&mut self, path: &Path) {
        if !self.is_shown(path) {
            self.parents(path);
            self.push("--ro-bind", [path.as_os_str(), path.as_os_str()]);
            self.shown.push(path.to_owned());
        }
    }

    /// Creates the folders above `path`. Bubblewrap would create them accessible to root only.
    fn parents(&mut self, path: &Path) {
        let parents: Vec<_> = path.ancestors().skip(1).collect();
        for parent in parents.into_iter().rev() {
            let needed = parent.parent().is_some() && !self.is_shown(parent);
            if needed && self.made.insert(parent.to_owned()) {
                self.push("--dir", [parent.as_os_str()]);
            }
        }
    }

    fn memory(&mut self, path: &str, size: u64) {
        self.push("--perms", [OsStr::new("1777")]);
        self.push("--size", [OsStr::new(&size.to_string())]);
        self.push("--tmpfs", [OsStr::new(path)]);
    }
}
