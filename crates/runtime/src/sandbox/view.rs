//! The host files that a server sees, as arguments for bubblewrap.
//!
//! # What is visible inside
//!
//! - Read-only: `/usr`, `/bin`, `/sbin`, `/lib*`, and the parts of `/etc` that programs need to run, to check
//!   certificates and to tell the time.
//! - Read-only: what the command line needs ([`needs`]), without the secrets in it ([`hidden`]).
//! - Read-only, for a pinned package: its whole folder, and the interpreter that runs it. Links and `#!` lines in the
//!   package make nothing else visible.
//! - Read-only: files of CA certificates that the server's variables name.
//! - The server's `mounts`, `show` paths and volumes.
//! - Read-only: the instance's own control group below `/sys/fs/cgroup`, where Java and .NET read their memory limit.
//! - A separate `/proc`, a minimal `/dev`, and scratch space that ends with the instance: `/tmp` (also as `/var/tmp`;
//!   `HOME` is `/tmp/home`), `/run` and `/dev/shm`.
//!
//! [`plan`] decides this, and [`arguments`] turns it into arguments for bubblewrap.
//!
//! # Invariants
//!
//! - No other host files are visible.
//! - Everything writable has a size limit.
//! - Values of variables are not on the command line.

mod hidden;
mod needs;
mod plan;
mod program;

use std::{
    collections::BTreeSet,
    ffi::OsString,
    path::{Component, Path, PathBuf},
};

use model::{Network, Sandbox};

pub use self::plan::Own;
use self::plan::Step;
pub(super) use self::plan::{Identity, Plan, Wanted};
pub(super) use self::program::resolve;
pub(super) use crate::search::PATH;
use crate::unit::{Access, Confined, Error};

/// Shown to servers with the host's network.
const RESOLV_CONF: &str = "/etc/resolv.conf";

pub(super) const HOME: &str = "/tmp/home";

/// System folders of the host that every sandbox shows.
pub(super) const SYSTEM: [&str; 8] = [
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

/// Files generated for the sandbox, without content from the host.
const GENERATED: [&str; 3] = ["/etc/group", "/etc/hosts", "/etc/passwd"];

/// Paths that a server's mounts and volumes may neither cover nor be inside of.
const RESERVED: [&str; 12] = [
    "/proc", "/dev", "/sys", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
    "/etc", "/run",
];

/// Paths that cannot themselves be a mount or volume, but may contain one.
const RESERVED_EXACT: [&str; 8] = [
    "/",
    "/tmp",
    "/var",
    "/var/tmp",
    "/home",
    "/opt",
    "/nix",
    "/tmp/home",
];

/// The locations and size limits of a server's scratch space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scratch {
    /// Size limits of `/run` and `/dev/shm` in bytes, both in memory.
    pub(super) run: u64,
    pub(super) shm: u64,
    pub(super) tmp: Tmp,
}

/// Where `/tmp` is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tmp {
    /// In memory, with this size in bytes.
    Memory(u64),
    /// An empty directory of the host, which is removed separately.
    Disk(PathBuf),
}

pub(super) struct View<'a> {
    pub(super) unit: Confined<'a>,
    pub(super) plan: &'a Plan,
    pub(super) scratch: &'a Scratch,
    /// Descriptor number of the shim binary.
    pub(super) shim: i32,
    pub(super) files: &'a [(&'static str, i32)],
}

/// Returns the arguments that build the view.
pub(super) fn arguments(view: &View<'_>) -> Vec<OsString> {
    let mut arguments = Arguments::default();
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
    if view.unit.sandbox.network == Network::Open {
        let path = Path::new(RESOLV_CONF);
        if let Ok(real) = path.canonicalize() {
            arguments.bind("--ro-bind", &real, path);
        }
    }
    for step in &view.plan.steps {
        arguments.step(step);
    }
    arguments.words([
        "--dir",
        "/run/toolwharf",
        "--ro-bind-fd",
        &view.shim.to_string(),
    ]);
    arguments.words([
        super::shim::PATH_INSIDE,
        "--remount-ro",
        "/dev",
        "--remount-ro",
        "/",
    ]);
    arguments.list
}

/// Rejects invalid and reserved paths inside.
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
        if inside.len() > 180 {
            return refused("is longer than 180 bytes");
        }
        if inside.chars().any(char::is_control) {
            return refused("contains control characters");
        }
        if RESERVED.iter().any(|reserved| path.starts_with(reserved))
            || RESERVED_EXACT.iter().any(|taken| path == Path::new(taken))
        {
            return refused("is a system path; choose one like `/data`");
        }
        let path: PathBuf = path.components().collect();
        if seen.contains(&path) {
            return refused("is listed twice");
        }
        // With nested paths, the server could put a link where the inner path belongs, and bubblewrap would follow it.
        if seen
            .iter()
            .any(|other: &PathBuf| other.starts_with(&path) || path.starts_with(other))
        {
            return refused("is inside another listed path, or contains one");
        }
        seen.insert(path);
    }
    Ok(())
}

#[derive(Default)]
struct Arguments {
    list: Vec<OsString>,
    /// Directories that exist already. Bubblewrap would create the missing ones accessible to root only.
    made: BTreeSet<PathBuf>,
    /// Bound host paths.
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

    fn step(&mut self, step: &Step) {
        match step {
            Step::Link { at, to } => {
                self.parents(at);
                self.words(["--symlink"]);
                self.list.extend([to.into(), at.into()]);
            }
            Step::Folder { at } => {
                self.parents(at);
                if self.made.insert(at.clone()) {
                    self.words(["--dir"]);
                    self.list.push(at.into());
                }
            }
            Step::Bind {
                from,
                at,
                access,
                optional,
            } => {
                let flag = match (access, optional) {
                    (Access::Write, _) => "--bind",
                    (Access::Read, false) => "--ro-bind",
                    (Access::Read, true) => "--ro-bind-try",
                };
                self.bind(flag, from, at);
                self.shown.push(at.clone());
            }
            Step::Mask { at } => {
                self.words(["--perms", "0700", "--size", "4096", "--tmpfs"]);
                self.list.push(at.into());
                self.words(["--remount-ro"]);
                self.list.push(at.into());
            }
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
