//! Decides which host files a server sees. The plan is made before the sandbox is created, shown in the server's
//! status, and compared with the finished sandbox.
//!
//! # Invariants
//!
//! - Toolwharf's own files ([`Own`]) are in no plan, whatever is shown around them. Exception: the server's package and
//!   its volumes.
//! - A folder that contains something hidden is assembled from its other entries. A hidden file stays hidden even when
//!   a host program replaces the file. A file created in such a folder later is not visible until the next start.
//! - Explicit `mounts` and `show` paths are not searched for secrets.
//! - A file that a variable such as `SSL_CERT_FILE` names is visible only if it holds certificates and no private key.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use model::{CA_FILES, Launch, Sandbox};

use super::hidden::{MAX_SEARCHED, holds_certificates, search};
use super::needs::{Kind, Needs, mentioned, needs};
use super::{ETC, GENERATED, SYSTEM};
use crate::sandbox::Files;
use crate::unit::{Access, Error, Visible, VisibleFiles};

/// Limit for the bind mounts of one sandbox. Bubblewrap's run time grows with the square of their number.
const MAX_BINDS: usize = 1_500;

/// Toolwharf's own files: data directory, configuration directory, and files named on the command line.
#[derive(Clone, Debug, Default)]
pub struct Own {
    paths: Vec<PathBuf>,
    /// A folder inside one of `paths`, whose entries are packages. Each entry may be mounted read-only.
    packages: Option<PathBuf>,
}

/// A step in building the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A link and its target.
    Link { at: PathBuf, to: PathBuf },
    /// A folder that is assembled from its entries.
    Folder { at: PathBuf },
    Bind {
        from: PathBuf,
        at: PathBuf,
        access: Access,
        /// True if the file may be gone by now.
        optional: bool,
    },
    /// An empty folder that covers one of Toolwharf's own folders below a mount.
    Mask { at: PathBuf },
}

/// A file or folder of the host, by device and inode.
pub(in crate::sandbox) type Identity = (u64, u64);

/// The host files that a server sees.
#[derive(Clone, Debug, Default)]
pub(in crate::sandbox) struct Plan {
    pub(super) steps: Vec<Step>,
    /// Also lists what the server's entry mentions but is not shown.
    pub(in crate::sandbox) files: VisibleFiles,
    /// Bound files, by their path inside.
    pub(in crate::sandbox) bound: BTreeMap<PathBuf, Identity>,
}

pub(in crate::sandbox) struct Wanted<'a> {
    pub(in crate::sandbox) launch: &'a Launch,
    pub(in crate::sandbox) sandbox: &'a Sandbox,
    pub(in crate::sandbox) program: &'a Path,
    pub(in crate::sandbox) package: Option<&'a Files>,
    pub(in crate::sandbox) search: &'a std::ffi::OsStr,
    /// Path inside → host directory.
    pub(in crate::sandbox) volumes: &'a BTreeMap<String, PathBuf>,
    pub(in crate::sandbox) own: &'a Own,
}

impl Own {
    /// Paths need not exist. Relative ones are ignored.
    #[must_use]
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let real = |path: PathBuf| path.is_absolute().then(|| follow(&path));
        Self {
            paths: paths.into_iter().filter_map(real).collect(),
            packages: None,
        }
    }

    /// Allows read-only mounts of entries of `folder`, which contains installed packages.
    #[must_use]
    pub fn with_packages(self, folder: &Path) -> Self {
        Self {
            packages: Some(follow(folder)),
            ..self
        }
    }

    /// Returns whether `path`, with all links followed, is or is inside a package that may be mounted.
    pub(in crate::sandbox) fn is_package(&self, path: &Path) -> bool {
        let real = follow(path);
        let is_below = |packages: &PathBuf| real.starts_with(packages) && real != *packages;
        self.packages.as_ref().is_some_and(is_below)
    }

    /// Returns whether `path`, with all links followed, is one of these files or inside one of them.
    #[must_use]
    pub fn holds(&self, path: &Path) -> bool {
        let real = follow(path);
        self.paths.iter().any(|own| real.starts_with(own))
    }

    pub(in crate::sandbox) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Returns Toolwharf's own files below `folder`, as paths that begin with `folder` as given.
    fn below(&self, folder: &Path) -> Vec<PathBuf> {
        let real = follow(folder);
        let below = self
            .paths
            .iter()
            .filter_map(|own| own.strip_prefix(&real).ok());
        below.map(|rest| folder.join(rest)).collect()
    }
}

/// Follows links as far as the path exists.
fn follow(path: &Path) -> PathBuf {
    for ancestor in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (ancestor.canonicalize(), path.strip_prefix(ancestor)) {
            return real.join(rest);
        }
    }
    path.to_owned()
}

impl Plan {
    /// # Errors
    /// The entry requests something that is never shown, or a folder could not be searched for secrets.
    pub(in crate::sandbox) fn new(wanted: &Wanted<'_>) -> Result<Self, Error> {
        let own = wanted.own;
        let mut making = Making {
            own,
            plan: Self {
                files: VisibleFiles {
                    visible: own_files(),
                    missing: Vec::new(),
                },
                ..Self::default()
            },
            hidden: wanted.sandbox.hide.iter().cloned().collect(),
            binds: 0,
        };
        for path in SYSTEM.map(Path::new) {
            making.system(path)?;
        }
        for path in ETC.map(Path::new) {
            if path.exists() {
                making.root(path, false)?;
            }
        }
        let interpreter = wanted.package.map(|package| package.interpreter.as_path());
        let Needs { roots, named } =
            needs(wanted.launch, wanted.program, interpreter, wanted.search);
        // Files named in the entry are visible, secrets next to them are not.
        let mut left = MAX_SEARCHED;
        for (root, kind) in &roots {
            if matches!(kind, Kind::Folder | Kind::Project) && !making.is_hidden(root) {
                let found = search(root, &making.hidden, &mut left).map_err(refused("command"))?;
                making
                    .hidden
                    .extend(found.into_iter().filter(|path| !named.contains(path)));
            }
        }
        for (root, kind) in &roots {
            let is_removed = wanted
                .sandbox
                .hide
                .iter()
                .any(|hide| root.starts_with(hide));
            let of_package = wanted.package.is_some_and(|package| {
                // The interpreter was downloaded by uv.
                let packages = package.folder.ancestors().nth(3);
                packages.is_some_and(|packages| root.starts_with(packages.join("python")))
            });
            if of_package {
                making.of_package(root)?;
            } else if is_removed {
                continue;
            } else if !making.hides(root) || *kind == Kind::File && named.contains(root) {
                making.root(root, *kind == Kind::Project)?;
            }
        }
        if let Some(package) = wanted.package {
            making.of_package(&package.folder)?;
        }
        for name in CA_FILES {
            if let Some(file) = wanted.launch.env.get(name).map(Path::new)
                && !making.is_hidden(file)
                && holds_certificates(file)
            {
                making.root(file, false)?;
            }
        }
        for show in &wanted.sandbox.show {
            making.explicit("show", show, show, Access::Read)?;
        }
        for mount in &wanted.sandbox.mounts {
            let access = match mount.read_only {
                true => Access::Read,
                false => Access::Write,
            };
            making.explicit("mounts", &mount.host, Path::new(&mount.inside), access)?;
        }
        for (inside, host) in wanted.volumes {
            let inside = Path::new(inside);
            making.cover(inside);
            making.bind(host, inside, Access::Write, false)?;
            making
                .plan
                .files
                .visible
                .push(not_of_host(inside, Access::Write));
        }
        let mut plan = making.plan;
        let mentioned = mentioned(wanted.launch).into_iter();
        plan.files.missing = mentioned
            .filter(|path| plan.files.is_missing(path))
            .collect();
        Ok(plan)
    }

    /// Shows a control group of the instance at the path `at`, read-only.
    pub(in crate::sandbox) fn show_group(&mut self, from: PathBuf, at: &Path) {
        self.files.visible.push(not_of_host(at, Access::Read));
        self.steps.push(Step::Bind {
            from,
            at: at.to_owned(),
            access: Access::Read,
            optional: false,
        });
    }
}

/// Paths that exist in each sandbox without content from the host.
fn own_files() -> Vec<Visible> {
    let read = ["/dev", "/proc", "/run/toolwharf/shim"].map(|path| (path, Access::Read));
    let generated = GENERATED.map(|path| (path, Access::Read));
    let write = ["/dev/shm", "/run", "/tmp"].map(|path| (path, Access::Write));
    let all = read.into_iter().chain(generated).chain(write);
    all.map(|(path, access)| not_of_host(Path::new(path), access))
        .collect()
}

fn not_of_host(path: &Path, access: Access) -> Visible {
    Visible {
        path: path.to_owned(),
        access,
        host: None,
        hidden: Vec::new(),
    }
}

struct Making<'a> {
    own: &'a Own,
    plan: Plan,
    /// Secrets, and paths hidden by the entry.
    hidden: BTreeSet<PathBuf>,
    binds: usize,
}

impl Making<'_> {
    fn system(&mut self, path: &Path) -> Result<(), Error> {
        if let Ok(to) = fs::read_link(path) {
            let at = path.to_owned();
            self.plan.steps.push(Step::Link { at, to });
            Ok(())
        } else if path.is_dir() {
            self.root(path, false)
        } else {
            Ok(())
        }
    }

    fn is_hidden(&self, path: &Path) -> bool {
        path.ancestors().any(|at| self.hidden.contains(at))
    }

    /// Returns whether `path` stays hidden even if the command line needs it.
    fn hides(&self, path: &Path) -> bool {
        self.is_hidden(path) || self.own.holds(path)
    }

    /// Shows a file or folder under its own path, without its hidden parts.
    fn root(&mut self, path: &Path, apart: bool) -> Result<(), Error> {
        if self.own.holds(path) || self.plan.files.shows(path) {
            return Ok(());
        }
        let mut hidden: BTreeSet<PathBuf> = self.own.below(path).into_iter().collect();
        let secrets = self.hidden.iter().filter(|hidden| *hidden != path);
        hidden.extend(secrets.filter(|hidden| hidden.starts_with(path)).cloned());
        self.assemble(path, path, &hidden, apart)?;
        let there = |hidden: &PathBuf| hidden.symlink_metadata().is_ok();
        self.see(
            path,
            path,
            Access::Read,
            hidden.into_iter().filter(there).collect(),
        );
        Ok(())
    }

    /// Shows `from` at `at`: as a whole if nothing below it is hidden, otherwise entry by entry.
    fn assemble(
        &mut self,
        from: &Path,
        at: &Path,
        hidden: &BTreeSet<PathBuf>,
        apart: bool,
    ) -> Result<(), Error> {
        let first = hidden.range(from.to_owned()..).next();
        let has_hidden = first.is_some_and(|hidden| hidden.starts_with(from));
        if !(apart || has_hidden) || !from.is_dir() {
            return self.bind(from, at, Access::Read, true);
        }
        self.plan.steps.push(Step::Folder { at: at.to_owned() });
        let entries = fs::read_dir(from).map_err(|error| {
            Error::Failed(format!("`{}` cannot be read: {error}", from.display()))
        })?;
        let mut entries: Vec<_> = entries.flatten().collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let (path, inside) = (entry.path(), at.join(entry.file_name()));
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if hidden.contains(&path) {
                continue;
            }
            if kind.is_symlink() {
                if let Ok(to) = fs::read_link(&path) {
                    self.plan.steps.push(Step::Link { at: inside, to });
                }
            } else if kind.is_dir() || kind.is_file() {
                self.assemble(&path, &inside, hidden, false)?;
            }
        }
        Ok(())
    }

    /// Shows a path that the entry requests. Only Toolwharf's own files in it are hidden.
    fn explicit(
        &mut self,
        field: &'static str,
        from: &Path,
        at: &Path,
        access: Access,
    ) -> Result<(), Error> {
        let is_package = access == Access::Read && self.own.is_package(from);
        if self.own.holds(from) && !is_package {
            let why = format!(
                "`{}` is one of Toolwharf's own files, which no server sees",
                from.display()
            );
            return Err(refused(field)(why));
        }
        if !from.exists() {
            let why = format!("`{}` does not exist on this host", from.display());
            return Err(refused(field)(why));
        }
        self.cover(at);
        let own: BTreeSet<PathBuf> = self.own.below(from).into_iter().collect();
        let inside = |own: &PathBuf| own.strip_prefix(from).map(|rest| at.join(rest)).ok();
        let there: Vec<PathBuf> = own.iter().filter(|own| own.exists()).cloned().collect();
        match access {
            Access::Read => self.assemble(from, at, &own, false)?,
            Access::Write => {
                // With write access, a server could replace a single file, or create one that does not exist yet.
                if let Some(file) = own.iter().find(|own| !own.is_dir()) {
                    let why = format!(
                        "`{}` cannot be mounted writable, because it contains Toolwharf's own `{}`; mount another folder",
                        from.display(),
                        file.display()
                    );
                    return Err(refused(field)(why));
                }
                self.bind(from, at, access, false)?;
                let masks = there.iter().filter_map(inside).map(|at| Step::Mask { at });
                self.plan.steps.extend(masks);
            }
        }
        let hidden = there.iter().filter_map(inside).collect();
        self.see(from, at, access, hidden);
        Ok(())
    }

    /// Records that a mount at `at` covers what was visible below it.
    fn cover(&mut self, at: &Path) {
        self.plan
            .files
            .visible
            .retain(|one| !one.path.starts_with(at));
        self.plan.bound.retain(|one, _| !one.starts_with(at));
        for one in &mut self.plan.files.visible {
            if at.starts_with(&one.path) {
                one.hidden.retain(|hidden| !hidden.starts_with(at));
            }
        }
    }

    fn see(&mut self, from: &Path, at: &Path, access: Access, hidden: Vec<PathBuf>) {
        self.plan.files.visible.push(Visible {
            path: at.to_owned(),
            access,
            host: Some(from.to_owned()),
            hidden,
        });
    }

    /// Shows a part of the package under its own path.
    fn of_package(&mut self, path: &Path) -> Result<(), Error> {
        self.bind(path, path, Access::Read, false)?;
        self.see(path, path, Access::Read, Vec::new());
        Ok(())
    }

    fn bind(
        &mut self,
        from: &Path,
        at: &Path,
        access: Access,
        optional: bool,
    ) -> Result<(), Error> {
        self.binds += 1;
        if self.binds > MAX_BINDS {
            let why = format!(
                "hiding the secrets in the server's folders takes more than {MAX_BINDS} mounts, one for each file that \
                 stays visible, such as `{}`; give the server a folder without secrets, or show it unchanged with \
                 `\"sandbox\": {{\"show\": […]}}`",
                from.display()
            );
            return Err(refused("command")(why));
        }
        if let Ok(about) = fs::metadata(from) {
            self.plan
                .bound
                .insert(at.to_owned(), (about.dev(), about.ino()));
        }
        self.plan.steps.push(Step::Bind {
            from: from.to_owned(),
            at: at.to_owned(),
            access,
            optional,
        });
        Ok(())
    }
}

fn refused(field: &'static str) -> impl Fn(String) -> Error {
    move |why| Error::Refused { field, why }
}
