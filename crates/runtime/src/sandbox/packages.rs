//! Packages that servers name with `npx` and `uvx`: installed once, pinned, and started from that installation.
//!
//! A sandboxed server has no home directory and usually no network, so `npx` and `uvx` cannot work inside.
//! [`Packages::pin`] installs the package of such a command line outside the server's sandbox and returns what to run
//! instead. Servers on the host itself can use pinned packages too ([`Host`](crate::Host)).
//!
//! # On the disk
//!
//! - `npm/KEY/VERSION/`: `package-lock.json` with the hash of each package, and `node_modules`.
//! - `pypi/KEY/VERSION/`: `requirements.txt` with the hashes of each package, `venv`, and `python`, a link to the
//!   interpreter.
//! - `…/KEY/current`: a link to the version that is started. `KEY` encodes the requested packages, and `VERSION` is the
//!   resolved version.
//! - `python/`: interpreters that uv had to download.
//!
//! # Invariants
//!
//! - No package code runs during the installation: npm runs no scripts, uv builds nothing, and no Python with access to
//!   the package is started.
//! - As a second line of defence, each step runs in a sandbox ([`confine`](crate::sandbox::confine)). npm and uv see
//!   the system's programs, their stage and copies of their configuration, find no git, and reach only the configured
//!   registries. Without a sandbox nothing is installed.
//! - A version is published only if its lock file shows that every package comes from a configured registry and has a
//!   hash.
//! - npm and uv come from the `PATH` of this process, and get this process's registry and proxy settings (`sources`).
//!   Variables in the settings, which are for all servers, count as this process's. From a server, they get only the
//!   package names and versions that [`Request::parse`] accepts, and no variables or paths.
//! - A version is either complete or absent. An incomplete version left by a crash is never started;
//!   [`Packages::sweep`] removes it.
//! - The content of a package does not influence which host files its sandbox sees.
//! - The first version found is started until [`Packages::switch`] selects another one. A version in use is not
//!   removed.

mod cache;
mod install;
mod lock;
mod program;
mod request;
mod sources;
mod tools;

use crate::sandbox::Files;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::{Launch, Place, Program};
use tokio_util::task::TaskTracker;

use self::cache::{Cache, Lease};
use self::install::INSTALL_TIMEOUT;
use self::request::{Registry, Request};
use self::sources::Place as Source;
use crate::handle::Handle;
use crate::keyed_lock::KeyedLock;
use crate::process::{SentinelCommand, Spawner};
use crate::sandbox::Bounds;
use crate::sandbox::confine::Confine;
use crate::search::{PATH, find, own_path};
use crate::unit::{Enforced, Error, Unit};

/// How often, and at which interval, to check whether a stopped instance still uses a version.
const MAX_FORGET_ATTEMPTS: u32 = 40;
const FORGET_INTERVAL: Duration = Duration::from_millis(50);

/// How packages are installed.
#[derive(Clone, Debug)]
pub struct PackageOptions {
    /// Distinguishes the installations of one host, as in [`sandbox::Options`](crate::sandbox::Options).
    pub install: String,
    /// Runs [`shim_main`](crate::sandbox::shim_main).
    pub shim: SentinelCommand,
    pub bounds: Bounds,
    /// File hosts of registries in addition to the configured ones, as `host` or `host:port`.
    pub hosts: Vec<String>,
}

/// The packages of this installation.
pub struct Packages {
    dir: PathBuf,
    spawner: Spawner,
    confine: Arc<Confine>,
    bounds: Bounds,
    hosts: Vec<Source>,
    /// True if this process may change the packages. Only one process at a time may.
    owns: bool,
    keyed_lock: KeyedLock,
    serial: AtomicU64,
    /// Tasks that each hold a lease until their instance has ended.
    holding: TaskTracker,
}

/// The package that a server names, and its installed version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    pub name: String,
    /// `npm` or `pypi`.
    pub registry: &'static str,
    /// Identifies the pin. Servers that request the same packages from the same registry share a pin.
    pub key: String,
    /// The version that is started. `None`: not installed.
    pub pinned: Option<String>,
}

/// Replaces a command line of `npx` or `uvx`.
pub(crate) struct Pinned {
    pub(crate) launch: Arc<Launch>,
    pub(crate) files: Files,
    pub(crate) row: Enforced,
    pub(crate) lease: Lease,
}

impl Packages {
    /// Packages in the folder `dir`. `owns`: no other process changes the folder.
    #[must_use]
    pub fn new(dir: PathBuf, spawner: Spawner, owns: bool, options: PackageOptions) -> Self {
        let keyed_lock = KeyedLock::new(
            "wait for an earlier installation of the same package",
            INSTALL_TIMEOUT,
        );
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
            keyed_lock,
            serial: AtomicU64::new(0),
            holding: TaskTracker::new(),
        }
    }

    /// Returns what to run instead of a command line of `npx` or `uvx`, and `None` for other commands. Installs the
    /// package if missing, which takes at most [`INSTALL_TIMEOUT`], plus the same again to wait for another
    /// installation of the package.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future kills npm and uv. The next installation starts from the beginning.
    pub(crate) async fn pin(&self, unit: &Unit) -> Result<Option<Pinned>, Error> {
        let Some(request) = request(&unit.launch)? else {
            return Ok(None);
        };
        let request = Arc::new(request);
        let cache = Cache::new(&self.dir, &request);
        let known = {
            let (cache, launch) = (cache.clone(), Arc::clone(&unit.launch));
            let package = request.package.clone();
            blocking(move || match &launch.version {
                Some(version) => cache.version(version).map(Some).ok_or_else(|| {
                    refused(format!("version {version} of `{package}` is not installed"))
                }),
                None => Ok(cache.current()),
            })
            .await?
        };
        let folder = match known {
            Some(folder) => folder,
            None => {
                let env = &unit.launch.host_env;
                self.installed(&unit.label, &request, &cache, env).await?
            }
        };
        let launch = Arc::clone(&unit.launch);
        blocking(move || {
            let lease = cache.lease(&folder).map_err(install::disk)?;
            let gone = || {
                Error::Failed(format!(
                    "`{}` was removed during the launch; start the server again",
                    request.package
                ))
            };
            pinned(&launch, &request, folder, lease.ok_or_else(gone)?)
        })
        .await
        .map(Some)
    }

    /// Keeps the version of an instance until the instance has ended.
    pub(crate) fn hold(&self, lease: Lease, handle: &Handle) {
        let exited = handle.exited();
        self.holding.spawn(async move {
            exited.await;
            drop(lease);
        });
    }

    /// Returns whether a command line names a package.
    ///
    /// # Errors
    /// The text says why the command line is invalid.
    pub fn refusal(launch: &Launch) -> Result<bool, String> {
        match &launch.program {
            Program::Command { program, args } => {
                Request::parse(program, args).map(|request| request.is_some())
            }
            Program::Image { .. } => Ok(false),
        }
    }

    /// Returns the package that a server is started from. `None`: it names no package, or does not use pinned packages.
    ///
    /// # Errors
    /// [`Error::Refused`] if the command line is invalid.
    pub async fn package(&self, launch: &Launch) -> Result<Option<Package>, Error> {
        let is_pinned = launch.sandbox().is_some() || launch.packages == model::Packages::Pinned;
        let Some(request) = request(launch)?.filter(|_| is_pinned) else {
            return Ok(None);
        };
        let cache = Cache::new(&self.dir, &request);
        let current = blocking(move || Ok(cache.current())).await?;
        Ok(Some(Package {
            key: self.turn(&request),
            name: request.package,
            registry: request.registry.name(),
            pinned: current.as_deref().map(version),
        }))
    }

    /// Installs the newest version that a server's command line allows, if missing, and returns the version. The pin
    /// does not change.
    ///
    /// # Errors
    /// [`Error::Refused`] if a retry cannot help, such as for an unknown package. Other errors contain the output of
    /// npm or uv.
    ///
    /// # Cancel safety
    /// As [`Packages::pin`].
    pub async fn newest(&self, label: &str, launch: &Launch) -> Result<String, Error> {
        let request = Arc::new(self.asked(launch)?);
        let cache = Cache::new(&self.dir, &request);
        self.updated(label, &request, &cache, &launch.host_env)
            .await
    }

    /// Pins an installed version. Servers use it from their next start.
    ///
    /// # Errors
    /// The version is not installed, or the disk reported an error.
    pub async fn switch(&self, launch: &Launch, version: &str) -> Result<(), Error> {
        let request = self.asked(launch)?;
        let _turn = self.keyed_lock.turn(&self.turn(&request)).await?;
        let (cache, stage) = (Cache::new(&self.dir, &request), self.stage());
        let version = version.to_owned();
        blocking(move || match cache.version(&version) {
            Some(_) => cache.switch_to(&version, &stage).map_err(install::disk),
            None => Err(refused(format!(
                "version {version} of `{}` is not installed",
                request.package
            ))),
        })
        .await
    }

    /// Removes unused versions of a server's package, except the pinned one and `kept`. Returns their number.
    ///
    /// # Errors
    /// As [`Packages::package`].
    pub async fn prune(&self, launch: &Launch, kept: &str) -> Result<usize, Error> {
        let request = self.asked(launch)?;
        let _turn = self.keyed_lock.turn(&self.turn(&request)).await?;
        let (cache, stage) = (Cache::new(&self.dir, &request), self.stage());
        let kept = kept.to_owned();
        blocking(move || Ok(cache.prune(&kept, &stage))).await
    }

    /// Removes all versions of a server's package, including the pinned one. Waits up to 2 seconds until none is in
    /// use, and otherwise keeps them.
    ///
    /// # Errors
    /// As [`Packages::package`].
    pub async fn forget(&self, launch: &Launch) -> Result<(), Error> {
        let request = self.asked(launch)?;
        let _turn = self.keyed_lock.turn(&self.turn(&request)).await?;
        for _ in 0..MAX_FORGET_ATTEMPTS {
            let (cache, stage) = (Cache::new(&self.dir, &request), self.stage());
            if blocking(move || Ok(cache.forget(&stage))).await? {
                return Ok(());
            }
            tokio::time::sleep(FORGET_INTERVAL).await;
        }
        Err(Error::Failed(format!(
            "`{}` is still in use; stop the servers that use it",
            request.package
        )))
    }

    fn asked(&self, launch: &Launch) -> Result<Request, Error> {
        self.may_change()?;
        request(launch)?.ok_or_else(|| {
            refused("the server has no package: its command is neither `npx` nor `uvx`".to_owned())
        })
    }

    fn may_change(&self) -> Result<(), Error> {
        let why = "the server's package is not installed yet, and only `toolwharf serve` installs packages: run it once";
        match self.owns {
            true => Ok(()),
            false => Err(Error::Lasting(why.to_owned())),
        }
    }

    /// The key of the lock: operations on packages with the same key run one at a time.
    fn turn(&self, request: &Request) -> String {
        format!("{}/{}", request.registry.name(), request.key())
    }

    /// Removes incomplete versions of earlier runs.
    pub(crate) fn sweep(&self) {
        cache::sweep(&self.dir, &self.stages());
    }

    /// Prefix of the names of this run's stages.
    fn stages(&self) -> String {
        format!("{}{}-", cache::STAGE_PREFIX, self.spawner.run_id())
    }

    fn stage(&self) -> String {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        format!("{}{serial}", self.stages())
    }
}

/// Parses a command line of `npx` or `uvx`. `None` for other commands.
fn request(launch: &Launch) -> Result<Option<Request>, Error> {
    match &launch.program {
        Program::Command { program, args } => Request::parse(program, args).map_err(refused),
        Program::Image { .. } => Ok(None),
    }
}

/// The version in the name of a folder.
fn version(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Returns what to run for a program in `folder`.
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
        Registry::Pypi => (
            folder.join(cache::PYTHON_LINK),
            vec![folder.join("venv/bin")],
        ),
    };
    // As with npx and uvx, the programs of the package and Node.js are on the `PATH`.
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
            "{} {version} of {}, pinned with its hashes, installed without running any of its code",
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

/// Finds the program `name`, such as npm or uv, on the `PATH` of this process.
fn tool(name: &str, registry: Registry) -> Result<PathBuf, Error> {
    find(name, &own_path()).ok_or_else(|| {
        let way_out = match registry {
            Registry::Npm => "install Node.js with npm",
            Registry::Pypi => "install uv",
        };
        refused(format!(
            "`{}` with a pinned package needs `{name}`, which is not in Toolwharf's own PATH; {way_out}",
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
            "the operation on a package was interrupted".to_owned(),
        ))
    })
}
