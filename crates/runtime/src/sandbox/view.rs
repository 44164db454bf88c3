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
//! - Mounts and volumes of the hosting.
//! - Its own `/proc`, a `/dev` with the harmless few, and scratch that ends with the instance: `/tmp`
//!   (also as `/var/tmp`; `HOME` is `/tmp/home`), `/run` and `/dev/shm`.
//!
//! # Invariants
//!
//! - Nothing else of the host is there, and the data of this installation least of all.
//! - Whatever is writable has a size.
//! - Values of variables are not on the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use model::{Hosting, Network};

use crate::unit::Error;

/// The server's home.
pub(super) const HOME: &str = "/tmp/home";
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

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
/// What no argument makes visible.
const HIDDEN: [&str; 7] = ["/proc", "/dev", "/sys", "/etc", "/run", "/boot", "/var/run"];
/// Links and `#!` lines that lead on.
const HOPS: usize = 16;

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
    pub(super) hosting: &'a Hosting,
    pub(super) program: &'a Path,
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
    if view.hosting.network == Network::Open {
        let path = Path::new("/etc/resolv.conf");
        if let Ok(real) = path.canonicalize() {
            arguments.bind("--ro-bind", &real, path);
        }
    }
    let mut named: BTreeSet<PathBuf> = chain(view.program, view.search);
    named.extend(view.hosting.source.args().iter().filter_map(|arg| {
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
    for mount in &view.hosting.mounts {
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
pub(super) fn check(hosting: &Hosting) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    let volumes = hosting.volumes.iter().map(|path| ("volumes", path));
    let mounts = hosting.mounts.iter().map(|mount| ("mounts", &mount.inside));
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
    for mount in &hosting.mounts {
        if !mount.host.exists() {
            return Err(Error::Refused {
                field: "mounts",
                why: format!("`{}` does not exist on this host", mount.host.display()),
            });
        }
    }
    Ok(())
}

/// The program's path on this host.
pub(super) fn resolve(program: &str, search: &OsStr) -> Result<PathBuf, Error> {
    let refused = |why: String| Error::Refused {
        field: "command",
        why,
    };
    let found = if program.contains('/') {
        let path = PathBuf::from(program);
        if !path.is_absolute() {
            return Err(refused(format!(
                "`{program}` is neither a name nor an absolute path"
            )));
        }
        path.exists().then_some(path)
    } else {
        find(program, search)
    };
    let found = found.ok_or_else(|| match program.split_once(char::is_whitespace) {
        Some((command, _)) => refused(format!(
            "`{program}` not found; give `{command}` as the command and the rest as arguments"
        )),
        None => refused(format!(
            "`{program}` not found; install it or give its full path"
        )),
    })?;
    if executable(&found) {
        Ok(found)
    } else {
        Err(refused(format!(
            "`{}` is not executable; `chmod +x` it",
            found.display()
        )))
    }
}

fn find(program: &str, search: &OsStr) -> Option<PathBuf> {
    env::split_paths(search)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(program))
        .find(|path| executable(path))
}

fn executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// The program and what it leads to: targets of links, interpreters of scripts.
fn chain(program: &Path, search: &OsStr) -> BTreeSet<PathBuf> {
    let mut chain = BTreeSet::new();
    let mut next = Some(program.to_owned());
    for _ in 0..HOPS {
        let Some(path) = next.take() else { break };
        next = match fs::read_link(&path) {
            Ok(target) => path.parent().map(|parent| normal(&parent.join(target))),
            Err(_) => interpreter(&path, search),
        };
        chain.extend(path.canonicalize());
        chain.insert(path);
    }
    chain
}

/// Takes `..` out by the letter, as a link's text needs it.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
}

fn interpreter(path: &Path, search: &OsStr) -> Option<PathBuf> {
    let mut start = Vec::new();
    File::open(path)
        .ok()?
        .take(256)
        .read_to_end(&mut start)
        .ok()?;
    let line = start
        .strip_prefix(b"#!")?
        .split(|&byte| byte == b'\n')
        .next()?;
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_ascii_whitespace();
    let first = words.next()?;
    if !first.ends_with("/env") {
        return Some(first.into());
    }
    let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    find(name, search)
}

/// What to show so that the file at `path` works; nothing where it is shown already or may not be.
fn whole(path: &Path) -> Option<PathBuf> {
    let hidden = |path: &Path| HIDDEN.iter().any(|hidden| path.starts_with(hidden));
    let system = |path: &Path| SYSTEM.iter().any(|system| path.starts_with(system));
    if !path.is_absolute() || hidden(path) || system(path) || path.parent().is_none() {
        return None;
    }
    let outermost = path
        .ancestors()
        .filter(|ancestor| ancestor.file_name() == Some(OsStr::new("node_modules")))
        .last();
    // What is beside of it (package.json, the server's own code) is as much a part of it.
    if let Some(project) = outermost.and_then(Path::parent) {
        return Some(if narrow(project) {
            outermost?.to_owned()
        } else {
            project.to_owned()
        });
    }
    let mut ancestors = path.ancestors().filter(|ancestor| ancestor.is_dir());
    if let Some(venv) = ancestors.find(|ancestor| ancestor.join("pyvenv.cfg").exists()) {
        return Some(venv.to_owned());
    }
    if path.is_dir() {
        return (!narrow(path)).then(|| path.to_owned());
    }
    let directory = path.parent()?;
    if let Some(prefix) = prefix(directory) {
        return Some(prefix);
    }
    let secretive = directory
        .file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    Some(if narrow(directory) || secretive {
        path.to_owned()
    } else {
        directory.to_owned()
    })
}

/// Directories that hold too much to be shown for the sake of one file.
fn narrow(directory: &Path) -> bool {
    let own = env::var_os("HOME").is_some_and(|home| directory == Path::new(&home));
    let depth = directory.components().count();
    own || depth <= 2
        || depth == 3 && (directory.starts_with("/home") || directory.starts_with("/var"))
}

/// Where a version manager or an unpacked distribution has its `bin` beside its `lib`.
fn prefix(directory: &Path) -> Option<PathBuf> {
    let name = directory.file_name()?.to_str()?;
    let prefix = directory.parent()?;
    let whole = ["lib", "libexec"]
        .iter()
        .any(|beside| prefix.join(beside).is_dir());
    // `~/.local` is a prefix too, and has the user's data.
    let local = prefix.file_name() == Some(OsStr::new(".local"));
    (["bin", "sbin", "shims", "libexec"].contains(&name) && whole && !local && !narrow(prefix))
        .then(|| prefix.to_owned())
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
    use model::{Mount, Source};

    use super::*;

    fn hosting(volumes: &[&str]) -> Hosting {
        let source = Source::Command {
            program: "sh".into(),
            args: Vec::new(),
        };
        let mut hosting = Hosting::new("x", source);
        hosting.volumes = volumes.iter().map(|&path| path.into()).collect();
        hosting
    }

    #[test]
    fn a_volume_has_a_path_of_its_own() {
        for good in [
            &["/data"][..],
            &["/home/me/x", "/tmp/cache"],
            &["/data", "/data2"],
        ] {
            check(&hosting(good)).unwrap();
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
            let error = check(&hosting(bad)).unwrap_err();
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
        let mut mounted = hosting(&["/data"]);
        mounted.mounts.push(Mount {
            host: "/usr".into(),
            inside: "/data".into(),
            read_only: true,
        });
        let error = check(&mounted).unwrap_err().to_string();
        assert!(error.starts_with("mounts: `/data`"), "{error}");
    }

    #[test]
    fn of_a_path_the_nearest_whole_is_shown() {
        let directory = tempfile::tempdir().unwrap();
        // Deep enough to be nobody's home.
        let base = directory.path().canonicalize().unwrap().join("a/b");
        let make = |path: &str| {
            let path = base.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        };
        let check = |path: &Path, expected: Option<&str>| {
            assert_eq!(
                whole(path),
                expected.map(|path| base.join(path)),
                "{}",
                path.display()
            );
        };
        check(&make("app/node_modules/x/node_modules/y/z.js"), Some("app"));
        make("venv/pyvenv.cfg");
        check(&make("venv/bin/server"), Some("venv"));
        make("node-20/lib/x");
        check(&make("node-20/bin/node"), Some("node-20"));
        make("home/.local/lib/x");
        check(&make("home/.local/bin/tool"), Some("home/.local/bin"));
        check(&make("plain/server.py"), Some("plain"));
        check(&make("home/.ssh/id"), Some("home/.ssh/id"));
        check(&base.join("plain"), Some("plain"));
        for hidden in [
            "/etc/shadow",
            "/proc/1/environ",
            "/usr/bin/env",
            "/",
            "/root",
        ] {
            assert_eq!(whole(Path::new(hidden)), None, "{hidden}");
        }
        assert_eq!(whole(Path::new("/root/x.py")), Some("/root/x.py".into()));
        // What is installed beside the system is there if it is named.
        assert_eq!(whole(Path::new("/opt/server")), Some("/opt/server".into()));
        assert_eq!(whole(Path::new("/opt/app/server")), Some("/opt/app".into()));
    }

    #[test]
    fn a_script_leads_to_its_interpreter() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        fs::write(&script, "#!/usr/bin/env -S A=b sh\n").unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("script", &link).unwrap();
        let chain = chain(&link, OsStr::new("/usr/bin:/bin"));
        for expected in [&link, &script, Path::new("/usr/bin/sh")] {
            assert!(
                chain.contains(expected),
                "{}: {chain:?}",
                expected.display()
            );
        }
    }

    #[test]
    fn what_is_not_there_is_refused_with_a_way_out() {
        let refused = |program| resolve(program, OsStr::new(PATH)).unwrap_err().to_string();
        assert!(refused("no-such-program").contains("install it"));
        assert!(refused("sh -c").contains("give `sh` as the command"));
        assert!(refused("./sh").contains("absolute"));
        assert!(refused("/etc/passwd").contains("chmod"));
    }
}
