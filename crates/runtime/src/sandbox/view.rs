//! What a server sees of the host's files, as arguments for bubblewrap.
//!
//! # What there is inside
//!
//! - Read-only: `/usr`, `/bin`, `/sbin`, `/lib*`, and of `/etc` what programs need to run, to
//!   check certificates and to tell the time.
//! - Read-only, what the command names: its program, through links and `#!` lines, and those of its
//!   arguments that are absolute paths of something that exists. Of each the nearest thing that is
//!   whole: the project around `node_modules`, the virtual environment, the installation prefix of a
//!   version manager, else the directory it is in, or the file alone where that directory is
//!   somebody's home, hidden, or the system's.
//! - Read-only, of a package that is pinned: all of its folder, and the interpreter that runs it in the place of the
//!   program. Links and `#!` lines in the package lead to nothing.
//! - Mounts and volumes of its own.
//! - Its own `/proc`, a `/dev` with the harmless few, and scratch that ends with the instance: `/tmp`
//!   (also as `/var/tmp`; `HOME` is `/tmp/home`), `/run` and `/dev/shm`.
//!
//! # Invariants
//!
//! - Nothing else of the host is there, and the data of this installation least of all.
//! - Whatever is writable has a size.
//! - Values of variables are not on the command line.

mod program;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs,
    path::{Component, Path, PathBuf},
};

use model::{Network, Sandbox};

pub(super) use self::program::resolve;
use self::program::{chain, whole};
use crate::packages::Files;
pub(super) use crate::search::PATH;
use crate::unit::{Confined, Error};

/// The server's home.
pub(super) const HOME: &str = "/tmp/home";

const SYSTEM: [&str; 8] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
];

const ETC: [&str; 26] = [
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/crypto-policies",
    "/etc/debian_version",
    "/etc/fonts",
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/lsb-release",
    "/etc/magic",
    "/etc/magic.mime",
    "/etc/mime.types",
    "/etc/networks",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
];

/// What a server's own paths may not hide or be in.
const RESERVED: [&str; 12] = [
    "/proc", "/dev", "/sys", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
    "/etc", "/run",
];

/// What they may not be, though they may be in it.
const TAKEN: [&str; 8] = [
    "/",
    "/tmp",
    "/var",
    "/var/tmp",
    "/home",
    "/opt",
    "/nix",
    "/tmp/home",
];

/// Where the parts of a server's scratch and volumes are, and how large they may become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scratch {
    /// Bytes of `/run` and `/dev/shm`, each in memory.
    pub(super) run: u64,
    pub(super) shm: u64,
    pub(super) tmp: Tmp,
}

/// Where `/tmp` is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tmp {
    /// In memory, that many bytes.
    Memory(u64),
    /// An empty directory of the host, which has an end of its own.
    Disk(PathBuf),
}

/// Everything that [`arguments`] needs.
pub(super) struct View<'a> {
    pub(super) unit: Confined<'a>,
    pub(super) program: &'a Path,
    /// Of the package that the program is in.
    pub(super) package: Option<&'a Files>,
    pub(super) search: &'a OsStr,
    pub(super) scratch: &'a Scratch,
    /// Path inside → directory of the host.
    pub(super) volumes: &'a BTreeMap<String, PathBuf>,
    /// The data of this installation.
    pub(super) data: &'a Path,
    /// Numbers of descriptors: the shim's binary, and the contents of these files.
    pub(super) shim: i32,
    pub(super) files: &'a [(&'static str, i32)],
}

/// Arguments that build the view. What they bind exists.
pub(super) fn arguments(view: &View<'_>) -> Vec<OsString> {
    let mut arguments = Arguments::default();
    for path in SYSTEM {
        arguments.system(Path::new(path));
    }
    for path in ETC {
        let path = Path::new(path);
        if path.exists() {
            arguments.read_only(path, path);
        }
    }
    arguments.words(["--proc", "/proc", "--dev", "/dev"]);
    arguments.memory("/dev/shm", "1777", view.scratch.shm);
    arguments.memory("/run", "1777", view.scratch.run);
    match &view.scratch.tmp {
        Tmp::Memory(size) => arguments.memory("/tmp", "1777", *size),
        Tmp::Disk(path) => arguments.bind("--bind", path, Path::new("/tmp")),
    }
    arguments.words(["--perms", "1777", "--dir", HOME]);
    arguments.words(["--dir", "/var", "--symlink", "/tmp", "/var/tmp"]);
    arguments.made.insert("/var".into());
    for (path, number) in view.files {
        arguments.parents(Path::new(path));
        arguments.words([
            "--perms",
            "0444",
            "--ro-bind-data",
            &number.to_string(),
            path,
        ]);
    }
    let (launch, sandbox) = (view.unit.launch, view.unit.sandbox);
    if sandbox.network == Network::Open {
        let path = Path::new("/etc/resolv.conf");
        if let Ok(real) = path.canonicalize() {
            arguments.bind("--ro-bind", &real, path);
        }
    }
    let interpreter = view.package.map(|package| package.interpreter.as_path());
    let mut named = chain(interpreter.unwrap_or(view.program), view.search);
    if let Some(Files { folder, .. }) = view.package {
        arguments.read_only(folder, folder);
        named.retain(|path| !path.starts_with(folder));
    }
    named.extend(launch.program.args().iter().filter_map(|arg| {
        let path = Path::new(arg);
        (path.is_absolute() && path.exists()).then(|| path.to_owned())
    }));
    named.retain(|path| path.exists());
    let shown: BTreeSet<PathBuf> = named.iter().flat_map(|path| whole(path)).collect();
    for path in shown {
        arguments.read_only(&path, &path);
    }
    // It could be below of what is shown as a whole.
    if arguments
        .shown
        .iter()
        .any(|shown| view.data.starts_with(shown))
    {
        arguments.words(["--perms", "0700", "--size", "4096", "--tmpfs"]);
        arguments.list.push(view.data.into());
        arguments.words(["--remount-ro"]);
        arguments.list.push(view.data.into());
    }
    for mount in &sandbox.mounts {
        let flag = if mount.read_only {
            "--ro-bind"
        } else {
            "--bind"
        };
        arguments.bind(flag, &mount.host, Path::new(&mount.inside));
    }
    for (inside, host) in view.volumes {
        arguments.bind("--bind", host, Path::new(inside));
    }
    arguments.words([
        "--dir",
        "/run/toolwharf",
        "--ro-bind-fd",
        &view.shim.to_string(),
    ]);
    arguments.words([
        super::shim::INSIDE,
        "--remount-ro",
        "/dev",
        "--remount-ro",
        "/",
    ]);
    arguments.list
}

/// Refuses paths inside that are not paths, or are somebody else's.
pub(super) fn check(sandbox: &Sandbox) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    let volumes = sandbox.volumes.iter().map(|path| ("volumes", path));
    let mounts = sandbox.mounts.iter().map(|mount| ("mounts", &mount.inside));
    for (field, inside) in volumes.chain(mounts) {
        let refused = |why: &str| {
            Err(Error::Refused {
                field,
                why: format!("`{}` {why}", inside.escape_debug()),
            })
        };
        let path = Path::new(inside);
        let plain = path
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        if !path.is_absolute() || !plain {
            return refused("has to be an absolute path without `..`");
        }
        if inside.len() > 180 || inside.chars().any(char::is_control) {
            return refused("is longer than 180 bytes, or has control characters");
        }
        if RESERVED.iter().any(|reserved| path.starts_with(reserved))
            || TAKEN.iter().any(|taken| path == Path::new(taken))
        {
            return refused("is the system's; choose one like `/data`");
        }
        let path: PathBuf = path.components().collect();
        if seen.contains(&path) {
            return refused("is there twice");
        }
        // A server could put a link where the inner one belongs, for bubblewrap to follow.
        if seen
            .iter()
            .any(|other: &PathBuf| other.starts_with(&path) || path.starts_with(other))
        {
            return refused("is inside of another, or around it");
        }
        seen.insert(path);
    }
    for mount in &sandbox.mounts {
        if !mount.host.exists() {
            return Err(Error::Refused {
                field: "mounts",
                why: format!("`{}` does not exist on this host", mount.host.display()),
            });
        }
    }
    Ok(())
}

#[derive(Default)]
struct Arguments {
    list: Vec<OsString>,
    /// Directories that were made or are there: else bubblewrap makes them for root alone.
    made: BTreeSet<PathBuf>,
    /// Read-only views of the host.
    shown: Vec<PathBuf>,
}

impl Arguments {
    fn words<const N: usize>(&mut self, words: [&str; N]) {
        self.list.extend(words.map(OsString::from));
    }

    fn parents(&mut self, path: &Path) {
        let parents: Vec<_> = path.ancestors().skip(1).collect();
        for parent in parents.into_iter().rev().filter(|p| p.parent().is_some()) {
            let there = self.shown.iter().any(|shown| parent.starts_with(shown))
                || ["/tmp", "/proc", "/dev"]
                    .iter()
                    .any(|own| parent == Path::new(own));
            if !there && self.made.insert(parent.to_owned()) {
                self.words(["--dir"]);
                self.list.push(parent.into());
            }
        }
    }

    fn system(&mut self, path: &Path) {
        if let Ok(target) = fs::read_link(path) {
            self.words(["--symlink"]);
            self.list.extend([target.into(), path.into()]);
        } else if path.is_dir() {
            self.read_only(path, path);
        }
    }

    fn read_only(&mut self, from: &Path, to: &Path) {
        if !self.shown.iter().any(|shown| to.starts_with(shown)) {
            self.bind("--ro-bind", from, to);
            self.shown.push(to.to_owned());
        }
    }

    fn bind(&mut self, flag: &str, from: &Path, to: &Path) {
        self.parents(to);
        self.words([flag]);
        self.list.extend([from.into(), to.into()]);
    }

    fn memory(&mut self, path: &str, perms: &str, size: u64) {
        self.words([
            "--perms",
            perms,
            "--size",
            &size.to_string(),
            "--tmpfs",
            path,
        ]);
    }
}

#[cfg(test)]
mod tests {
    use model::Mount;

    use super::*;

    fn sandbox(volumes: &[&str]) -> Sandbox {
        let mut sandbox = Sandbox::new("x");
        sandbox.volumes = volumes.iter().map(|&path| path.into()).collect();
        sandbox
    }

    #[test]
    fn a_volume_has_a_path_of_its_own() {
        for good in [
            &["/data"][..],
            &["/home/me/x", "/tmp/cache"],
            &["/data", "/data2"],
        ] {
            check(&sandbox(good)).unwrap();
        }
        for bad in [
            &["data"][..],
            &["/data/../etc"],
            &["/"],
            &["/usr/share/x"],
            &["/proc"],
            &["/dev/shm"],
            &["/tmp"],
            &["/run/toolwharf"],
            &["/data", "/data/"],
            &["/data", "/data/inner"],
            &["/data/inner", "/data"],
            &["/a\nb"],
            &[""],
        ] {
            let error = check(&sandbox(bad)).unwrap_err();
            assert!(
                matches!(
                    error,
                    Error::Refused {
                        field: "volumes",
                        ..
                    }
                ),
                "{bad:?}"
            );
        }
        let mut mounted = sandbox(&["/data"]);
        mounted.mounts.push(Mount {
            host: "/usr".into(),
            inside: "/data".into(),
            read_only: true,
        });
        let error = check(&mounted).unwrap_err().to_string();
        assert!(error.starts_with("mounts: `/data`"), "{error}");
    }
}
