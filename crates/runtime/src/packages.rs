//! Packages that servers name by `npx` and `uvx`, installed once and started from there (U03).
//!
//! A confined server has neither the home directory nor, as a rule, a network, so `npx` and `uvx` cannot work inside.
//! [`Packages::pin`] installs what such a command line names, outside of the sandbox, and says what to run instead.
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
//! - Nothing of a package runs outside of the sandbox: npm runs no scripts, uv builds nothing, and no Python is started that
//!   knows of the package.
//! - npm and uv are those of this process's own `PATH`, and get its settings of registries and proxies. No variable and
//!   no path of a server reaches them; of its arguments, names and versions that [`Request::parse`] let through.
//! - A version is complete or not there. What a crash left half made is never started, and [`Packages::sweep`] removes it.
//! - What of the host a sandbox sees because of a package does not depend on what is in the package.
//!
//! # Deliberately absent
//!
//! Newer versions: what was found first stays.

mod install;
mod program;
mod request;
mod shelf;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::{Launch, Program};

use self::install::INSTALL;
use self::request::{Registry, Request};
use self::shelf::Shelf;
use crate::process::Spawner;
use crate::search::{PATH, find, own_path};
use crate::turns::Turns;
use crate::unit::{Enforced, Error, Unit};

/// The packages of this installation.
pub(crate) struct Packages {
    dir: PathBuf,
    spawner: Spawner,
    turns: Turns,
    serial: AtomicU64,
}

/// What runs instead of `npx` or `uvx`.
pub(crate) struct Pinned {
    pub(crate) launch: Arc<Launch>,
    pub(crate) files: Files,
    pub(crate) row: Enforced,
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
    pub(crate) fn new(dir: PathBuf, spawner: Spawner) -> Self {
        let turns = Turns::new("an earlier installation of the same package", INSTALL);
        Self {
            dir,
            spawner,
            turns,
            serial: AtomicU64::new(0),
        }
    }

    /// What to run instead of a command line of `npx` or `uvx`; `None` for all others. The package is installed if that
    /// was not done before: at most [`INSTALL`], and as long again for another installation of the same.
    ///
    /// # Cancel safety
    ///
    /// npm and uv are killed if this is dropped. The next installation begins anew.
    pub(crate) async fn pin(&self, unit: &Unit) -> Result<Option<Pinned>, Error> {
        let Program::Command { program, args } = &unit.launch.program else {
            return Ok(None);
        };
        let Some(request) = Request::parse(program, args).map_err(refused)? else {
            return Ok(None);
        };
        let request = Arc::new(request);
        let shelf = Shelf::new(&self.dir, &request);
        let known = {
            let shelf = shelf.clone();
            blocking(move || Ok(shelf.current())).await?
        };
        let folder = match known {
            Some(folder) => folder,
            None => self.installed(&unit.label, &request, &shelf).await?,
        };
        let launch = Arc::clone(&unit.launch);
        blocking(move || pinned(&launch, &request, folder))
            .await
            .map(Some)
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

/// What runs a program of `folder`.
fn pinned(launch: &Launch, request: &Request, folder: PathBuf) -> Result<Pinned, Error> {
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
    let rest = launch.env.get("PATH").map_or(PATH, String::as_str);
    let path: Vec<_> = path.iter().map(|path| path.display().to_string()).collect();
    let path = format!("{}:{rest}", path.join(":"));
    let mut env: BTreeMap<_, _> = launch.env.clone();
    env.insert("PATH".to_owned(), path);
    let version = folder.file_name().unwrap_or_default().to_string_lossy();
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
            "`{}` of a confined server needs `{name}`, which is not in the PATH of Toolwharf itself; {way_out}",
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
