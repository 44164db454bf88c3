//! Packages that servers name by `npx` and `uvx`, installed once and started from there (U03).
//!
//! A confined server has neither the home directory nor, as a rule, a network, so `npx` and `uvx` cannot work inside.
//! [`Packages::pin`] installs what such a command line names, outside of the sandbox, and says what to run instead. Servers
//! of the host itself get theirs from here where that is wanted ([`Host`](crate::Host)).
//!
//! # On the disk
//!
//! - `npm/KEY/VERSION/`: `package-lock.json`, with the hash of each package, and `node_modules`.
//! - `pypi/KEY/VERSION/`: `requirements.txt`, with the hashes of each package, `venv`, and `python`, a link to the
//!   interpreter.
//! - `…/KEY/current`: a link to the version that is started. `KEY` is what was asked for, `VERSION` what was found.
//! - `python/`: interpreters that uv had to download.
//!
//! # Invariants
//!
//! - Nothing of a package runs while it is installed: npm runs no scripts, uv builds nothing, and no Python is started that
//!   knows of the package.
//! - Should that fail, it runs in a sandbox ([`confine`](crate::sandbox::confine)): npm and uv see the system's programs, their
//!   stage and copies of their settings, find no git, and reach the configured registries only. Without a sandbox nothing is
//!   installed.
//! - A version is published only after its lock file was checked: every package comes from a configured registry and has a hash.
//! - npm and uv are those of this process's own `PATH`, and get its settings of registries and proxies (`sources`). No variable and
//!   no path of a server reaches them; of its arguments, names and versions that [`Request::parse`] let through.
//! - A version is complete or not there. What a crash left half made is never started, and [`Packages::sweep`] removes it.
//! - What of the host a sandbox sees because of a package does not depend on what is in the package.
//! - What was found first is started until [`Packages::switch`] says otherwise. A version that something runs from is not
//!   removed.

mod install;
mod lock;
mod program;
mod request;
mod shelf;
mod sources;
mod tools;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::{Launch, Place, Program};
use tokio_util::task::TaskTracker;

use self::install::INSTALL;
use self::request::{Registry, Request};
use self::shelf::{Lease, Shelf};
use self::sources::Place as Source;
use crate::handle::Handle;
use crate::process::{SentinelCommand, Spawner};
use crate::sandbox::Bounds;
use crate::sandbox::confine::Confine;
use crate::search::{PATH, find, own_path};
use crate::turns::Turns;
use crate::unit::{Enforced, Error, Unit};

/// How often it is looked whether an instance that was ended still holds a version, and the time between.
const FORGETTING: u32 = 40;
const LOOK: Duration = Duration::from_millis(50);

/// How packages are installed.
#[derive(Clone, Debug)]
pub struct PackageOptions {
    /// What tells this installation from others on the same host, as for [`sandbox::Options`](crate::sandbox::Options).
    pub install: String,
    /// Leads to [`shim_main`](crate::sandbox::shim_main).
    pub shim: SentinelCommand,
    pub bounds: Bounds,
    /// Hosts, as `host` or `host:port`, that registries keep their files on beside the configured ones.
    pub hosts: Vec<String>,
}

/// The packages of this installation.
pub struct Packages {
    dir: PathBuf,
    spawner: Spawner,
    confine: Arc<Confine>,
    bounds: Bounds,
    hosts: Vec<Source>,
    /// Whether this process may change what is here: one at a time does.
    owns: bool,
    turns: Turns,
    serial: AtomicU64,
    /// Each holds a lease until its instance has ended.
    holding: TaskTracker,
}

/// The package that a server names, and how it stands here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    pub name: String,
    /// `npm` or `pypi`.
    pub registry: &'static str,
    /// The same for all servers that get the same of the same registry: they share one pin.
    pub key: String,
    /// The version that is started; `None`: none is installed.
    pub pinned: Option<String>,
}

/// What runs instead of `npx` or `uvx`.
pub(crate) struct Pinned {
    pub(crate) launch: Arc<Launch>,
    pub(crate) files: Files,
    pub(crate) row: Enforced,
    pub(crate) lease: Lease,
}

/// What of the host's files a package needs.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// All of the package.
    pub(crate) folder: PathBuf,
    /// The program that runs it, with whatever that leads to.
    pub(crate) interpreter: PathBuf,
}

impl Packages {
    /// Packages in the folder `dir`. `owns`: no other process changes it.
    #[must_use]
    pub fn new(dir: PathBuf, spawner: Spawner, owns: bool, options: PackageOptions) -> Self {
        let turns = Turns::new("an earlier installation of the same package", INSTALL);
        let PackageOptions {
            install,
            shim,
            bounds,
            hosts,
        } = options;
        let hosts = hosts.iter().map(|host| format!("https://{host}/"));
        Self {
            dir,
            confine: Arc::new(Confine::new(spawner.clone(), install, shim)),
            bounds,
            hosts: hosts.filter_map(|host| Source::parse(&host)).collect(),
            spawner,
            owns,
            turns,
            serial: AtomicU64::new(0),
            holding: TaskTracker::new(),
        }
    }

    /// What to run instead of a command line of `npx` or `uvx`; `None` for all others. The package is installed if that
    /// was not done before: at most [`INSTALL`], and as long again for another installation of the same.
    ///
    /// # Cancel safety
    ///
    /// npm and uv are killed if this is dropped. The next installation begins anew.
    pub(crate) async fn pin(&self, unit: &Unit) -> Result<Option<Pinned>, Error> {
        let Some(request) = request(&unit.launch)? else {
            return Ok(None);
        };
        let request = Arc::new(request);
        let shelf = Shelf::new(&self.dir, &request);
        let known = {
            let (shelf, launch) = (shelf.clone(), Arc::clone(&unit.launch));
            blocking(move || match &launch.version {
                Some(version) => shelf.version(version).map(Some).ok_or_else(|| {
                    refused(format!("version {version} of its package is not installed"))
                }),
                None => Ok(shelf.current()),
            })
            .await?
        };
        let folder = match known {
            Some(folder) => folder,
            None => self.installed(&unit.label, &request, &shelf).await?,
        };
        let launch = Arc::clone(&unit.launch);
        blocking(move || {
            let lease = shelf.lease(&folder).map_err(install::disk)?;
            let gone = || Error::Failed("its package was removed just now".to_owned());
            pinned(&launch, &request, folder, lease.ok_or_else(gone)?)
        })
        .await
        .map(Some)
    }

    /// Keeps the version that an instance runs from until it has ended.
    pub(crate) fn hold(&self, lease: Lease, handle: &Handle) {
        let exited = handle.exited();
        self.holding.spawn(async move {
            exited.await;
            drop(lease);
        });
    }

    /// Whether a command line is that of a package.
    ///
    /// # Errors
    /// The text says why it can be none.
    pub fn refusal(launch: &Launch) -> Result<bool, String> {
        match &launch.program {
            Program::Command { program, args } => {
                Request::parse(program, args).map(|request| request.is_some())
            }
            Program::Image { .. } => Ok(false),
        }
    }

    /// The package that a server is started from; `None`: it is started from none, or not from here.
    ///
    /// # Errors
    /// [`Error::Refused`] where its command line cannot be that of a package.
    pub async fn package(&self, launch: &Launch) -> Result<Option<Package>, Error> {
        let is_pinned = launch.sandbox().is_some() || launch.packages == model::Packages::Pinned;
        let Some(request) = request(launch)?.filter(|_| is_pinned) else {
            return Ok(None);
        };
        let shelf = Shelf::new(&self.dir, &request);
        let current = blocking(move || Ok(shelf.current())).await?;
        Ok(Some(Package {
            key: self.turn(&request),
            name: request.package,
            registry: request.registry.name(),
            pinned: current.as_deref().map(version),
        }))
    }

    /// Installs the newest version that a server's command line allows, if it is not here yet; which one that is. The pinned
    /// one stays pinned.
    ///
    /// # Errors
    /// [`Error::Refused`] where trying again does not help, such as an unknown package; others name what npm or uv says.
    ///
    /// # Cancel safety
    /// As [`Packages::pin`].
    pub async fn newest(&self, label: &str, launch: &Launch) -> Result<String, Error> {
        let request = Arc::new(self.asked(launch)?);
        let shelf = Shelf::new(&self.dir, &request);
        self.updated(label, &request, &shelf).await
    }

    /// Pins a version that is installed. Servers get it at their next start.
    ///
    /// # Errors
    /// It is not installed, or the disk refuses.
    pub async fn switch(&self, launch: &Launch, version: &str) -> Result<(), Error> {
        let request = self.asked(launch)?;
        let _turn = self.turns.turn(&self.turn(&request)).await?;
        let (shelf, stage) = (Shelf::new(&self.dir, &request), self.stage());
        let version = version.to_owned();
        blocking(move || match shelf.version(&version) {
            Some(_) => shelf.switch_to(&version, &stage).map_err(install::disk),
            None => Err(refused(format!(
                "version {version} of its package is not installed"
            ))),
        })
        .await
    }

    /// Removes the versions of a server's package that are neither pinned nor `kept`, and that nothing runs from; how many.
    ///
    /// # Errors
    /// As [`Packages::package`].
    pub async fn prune(&self, launch: &Launch, kept: &str) -> Result<usize, Error> {
        let request = self.asked(launch)?;
        let _turn = self.turns.turn(&self.turn(&request)).await?;
        let (shelf, stage) = (Shelf::new(&self.dir, &request), self.stage());
        let kept = kept.to_owned();
        blocking(move || Ok(shelf.prune(&kept, &stage))).await
    }

    /// Removes all versions of a server's package, the pinned one included, once nothing runs from them. Waits a moment for
    /// that, and leaves them if something still does.
    ///
    /// # Errors
    /// As [`Packages::package`].
    pub async fn forget(&self, launch: &Launch) -> Result<(), Error> {
        let request = self.asked(launch)?;
        let _turn = self.turns.turn(&self.turn(&request)).await?;
        for _ in 0..FORGETTING {
            let (shelf, stage) = (Shelf::new(&self.dir, &request), self.stage());
            if blocking(move || Ok(shelf.forget(&stage))).await? {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
        Err(Error::Failed("something is started from it".to_owned()))
    }

    fn asked(&self, launch: &Launch) -> Result<Request, Error> {
        self.may_change()?;
        request(launch)?.ok_or_else(|| refused("it names no package".to_owned()))
    }

    fn may_change(&self) -> Result<(), Error> {
        let why = "its package is not installed yet, and only `toolwharf serve` installs packages: start that once";
        match self.owns {
            true => Ok(()),
            false => Err(Error::Lasting(why.to_owned())),
        }
    }

    /// Packages are worked on one at a time, by this key.
    fn turn(&self, request: &Request) -> String {
        format!("{}/{}", request.registry.name(), request.key())
    }

    /// Removes what earlier runs left half made.
    pub(crate) fn sweep(&self) {
        shelf::sweep(&self.dir, &self.stages());
    }

    /// What the names of this run's stages begin with.
    fn stages(&self) -> String {
        format!("{}{}-", shelf::STAGE, self.spawner.run_id())
    }

    fn stage(&self) -> String {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        format!("{}{serial}", self.stages())
    }
}

/// What a command line of `npx` or `uvx` asks for; `None` for all others.
fn request(launch: &Launch) -> Result<Option<Request>, Error> {
    match &launch.program {
        Program::Command { program, args } => Request::parse(program, args).map_err(refused),
        Program::Image { .. } => Ok(None),
    }
}

/// The version that a folder is named by.
fn version(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// What runs a program of `folder`.
fn pinned(
    launch: &Launch,
    request: &Request,
    folder: PathBuf,
    lease: Lease,
) -> Result<Pinned, Error> {
    let program = program::find(request, &folder).map_err(refused)?;
    let (interpreter, mut path) = match request.registry {
        Registry::Npm => (
            tool("node", request.registry)?,
            vec![folder.join("node_modules/.bin")],
        ),
        Registry::Pypi => (folder.join(shelf::PYTHON), vec![folder.join("venv/bin")]),
    };
    // As with npx and uvx, programs of the package are found by their names, and so is Node.js.
    if request.registry == Registry::Npm {
        path.extend(interpreter.parent().map(Path::to_owned));
    }
    let rest = launch.env.get("PATH").cloned();
    let rest = rest.unwrap_or_else(|| match launch.place {
        Place::Host => own_path().to_string_lossy().into_owned(),
        Place::Sandbox(_) => PATH.to_owned(),
    });
    let path: Vec<_> = path.iter().map(|path| path.display().to_string()).collect();
    let path = format!("{}:{rest}", path.join(":"));
    let mut env: BTreeMap<_, _> = launch.env.clone();
    env.insert("PATH".to_owned(), path);
    let version = version(&folder);
    let row = Enforced {
        what: "package",
        holds: true,
        how: format!(
            "{} {version} of {}, pinned with its hashes, installed without running any of it",
            request.package,
            request.registry.name()
        ),
    };
    let program = Program::Command {
        program: program.display().to_string(),
        args: request.args.clone(),
    };
    Ok(Pinned {
        launch: Arc::new(Launch {
            program,
            env,
            ..launch.clone()
        }),
        files: Files {
            folder,
            interpreter,
        },
        row,
        lease,
    })
}

/// A program that `npx` or `uvx` cannot be replaced without.
fn tool(name: &str, registry: Registry) -> Result<PathBuf, Error> {
    find(name, &own_path()).ok_or_else(|| {
        let way_out = match registry {
            Registry::Npm => "install Node.js with npm",
            Registry::Pypi => "install uv",
        };
        refused(format!(
            "`{}` of a server that is started from a pinned package needs `{name}`, which is not in the PATH of Toolwharf itself; {way_out}",
            registry.command()
        ))
    })
}

fn refused(why: String) -> Error {
    Error::Refused {
        field: "command",
        why,
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| {
        Err(Error::Failed(
            "work on a package was interrupted".to_owned(),
        ))
    })
}
