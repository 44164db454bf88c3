//! Installs packages with npm and uv. Each step runs in a sandbox and runs no package code.
//!
//! An installation resolves versions first, checks the result ([`super::lock`]), and then installs exactly that.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use model::HostEnv;
use rustix::fs::OFlags;
use serde_json::Value;
use tokio::time::Instant;

use super::cache::{Cache, PYTHON_LINK, Stage, make_readable};
use super::lock::{check_npm, check_pypi};
use super::request::{Registry, Request, without_secrets};
use super::sources::{Sources, addresses, environment};
use super::tools::{Tools, known_flags};
use super::{Packages, blocking, refused, tool};
use crate::egress::Allowed;
use crate::sandbox::confine::{Done, Step, is_system, take};
use crate::unit::Error;

/// Timeout for installing one package with its dependencies.
pub(super) const INSTALL_TIMEOUT: Duration = Duration::from_secs(300);
/// Limits for quoted npm and uv output. The cause comes first.
const MAX_LINES: usize = 6;
const MAX_LINE_CHARS: usize = 300;
/// Parts of npm and uv output that show that a retry cannot help.
const LASTING_ERRORS: [&str; 4] = [
    "code E404",
    "code ETARGET",
    "code EALLOW",
    "No solution found",
];

/// uv options: the target environment, and no builds.
const UV_OPTIONS: [&str; 4] = ["--python", "venv/bin/python", "--no-build", "--quiet"];

/// The versions and hashes of PyPI packages.
const REQUIREMENTS_FILE: &str = "requirements.txt";
/// The versions and hashes of npm packages.
const LOCK_FILE: &str = "package-lock.json";
/// A larger lock file is rejected.
const MAX_LOCK_BYTES: u64 = 64 << 20;
/// The name of the allow-list in errors of the egress proxy.
const ALLOW_LIST_NAME: &str = "the registries that Toolwharf's npm and uv are configured for";
/// npm options that keep the lock file complete and disable scripts, whatever npm's settings say.
const NPM_OPTIONS: [&str; 14] = [
    "--ignore-scripts",
    "--no-audit",
    "--no-fund",
    "--no-update-notifier",
    "--no-global",
    "--no-dry-run",
    "--loglevel=error",
    "--logs-max=0",
    "--save-exact",
    "--package-lock",
    "--lockfile-version=3",
    "--install-strategy=hoisted",
    "--no-omit-lockfile-registry-resolved",
    "--replace-registry-host=npmjs",
];

/// A version in preparation, and everything needed to make it.
struct Making<'a> {
    packages: &'a Packages,
    label: &'a str,
    request: &'a Request,
    stage: &'a Stage,
    deadline: Instant,
    program: PathBuf,
    tools: Tools,
    sources: Sources,
    /// Folders of `find-links` that only the user of this process can read → their copies on the stage.
    links: BTreeMap<PathBuf, PathBuf>,
}

impl Packages {
    /// Installs a package, unless another request has just done so. Returns its folder.
    pub(super) async fn installed(
        &self,
        label: &str,
        request: &Arc<Request>,
        cache: &Cache,
        host_env: &HostEnv,
    ) -> Result<PathBuf, Error> {
        self.may_change()?;
        let _turn = self.keyed_lock.turn(&self.turn(request)).await?;
        let stage = {
            let (cache, name) = (cache.clone(), self.stage());
            let stage = move || match cache.current() {
                Some(folder) => Ok(Err(folder)),
                None => cache.stage(&name).map(Ok).map_err(disk),
            };
            match blocking(stage).await? {
                Ok(stage) => stage,
                Err(folder) => return Ok(folder),
            }
        };
        let made = async {
            let making = Making::begin(self, label, request, &stage, host_env).await?;
            // An installation that lost its interpreter is repeated with the same versions.
            making.prepare(cache.last()).await?;
            making.resolve().await?;
            making.install().await
        };
        let made = made.await;
        let (cache, request) = (cache.clone(), Arc::clone(request));
        let label = label.to_owned();
        blocking(move || {
            let folder = made.and_then(|()| {
                take(&stage.package()).map_err(disk)?;
                let version = version(&request, &stage.package())?;
                let folder = cache.publish(&stage, &version).map_err(disk)?;
                let package = &request.package;
                tracing::info!(server = label, package, version, "installed a package");
                Ok(folder)
            });
            stage.remove();
            folder
        })
        .await
    }

    /// Installs the newest version next to the one that is started, if missing. Returns the version.
    pub(super) async fn updated(
        &self,
        label: &str,
        request: &Arc<Request>,
        cache: &Cache,
        host_env: &HostEnv,
    ) -> Result<String, Error> {
        let _turn = self.keyed_lock.turn(&self.turn(request)).await?;
        let stage = {
            let (cache, name) = (cache.clone(), self.stage());
            blocking(move || cache.stage(&name).map_err(disk)).await?
        };
        let made = async {
            let making = Making::begin(self, label, request, &stage, host_env).await?;
            making.prepare(None).await?;
            let version = making.resolve().await?;
            let found = {
                let (cache, version) = (cache.clone(), version.clone());
                blocking(move || Ok(cache.version(&version))).await?
            };
            if found.is_none() {
                making.install().await?;
            }
            Ok((version, found.is_some()))
        };
        let made = made.await;
        let (cache, request) = (cache.clone(), Arc::clone(request));
        blocking(move || {
            let newest = made.and_then(|(found, is_here)| {
                if is_here {
                    return Ok(found);
                }
                take(&stage.package()).map_err(disk)?;
                let version = version(&request, &stage.package())?;
                cache.shelve(&stage, &version).map_err(disk)?;
                Ok(version)
            });
            stage.remove();
            newest
        })
        .await
    }
}

impl<'a> Making<'a> {
    /// Finds npm or uv, and the registries that it is configured for.
    async fn begin(
        packages: &'a Packages,
        label: &'a str,
        request: &'a Request,
        stage: &'a Stage,
        host_env: &HostEnv,
    ) -> Result<Self, Error> {
        let name = match request.registry {
            Registry::Npm => "npm",
            Registry::Pypi => "uv",
        };
        let program = tool(name, request.registry)?;
        let mut making = Self {
            packages,
            label,
            request,
            stage,
            deadline: Instant::now() + INSTALL_TIMEOUT,
            // npm looks for its own files relative to its real path, not to a link.
            program: program.canonicalize().map_err(disk)?,
            tools: Tools::default(),
            sources: Sources::default(),
            links: BTreeMap::new(),
        };
        making.tools = {
            let program = making.program.clone();
            blocking(move || Ok(Tools::find(&program))).await?
        };
        let (host, home, pythons) = (environment(host_env), stage.home(), making.pythons());
        let unusable = |why: String| Error::Lasting(format!("packages cannot be installed: {why}"));
        match request.registry {
            Registry::Npm => {
                making.sources = {
                    let host = host.clone();
                    blocking(move || Ok(Sources::npm(&host, &home))).await?
                };
                let mut config = making.npm_config().await?;
                if let Some(global) = config["globalconfig"].as_str().map(PathBuf::from)
                    && !is_system(&global)
                    && making.sources.copy(&global, &global).is_some()
                {
                    config = making.npm_config().await?;
                }
                making.sources.add_npm(&host, &config).map_err(unusable)?;
            }
            Registry::Pypi => {
                making.sources = blocking(move || Ok(Sources::uv(&host, &home, &pythons)))
                    .await?
                    .map_err(unusable)?;
                let (links, stage) = (making.sources.links.clone(), stage.clone());
                let links = blocking(move || copy_links(&links, &stage).map_err(disk)).await?;
                making.sources.shown.extend(links.0);
                making.links = links.1;
            }
        }
        Ok(making)
    }

    /// Reads npm's settings with npm itself.
    async fn npm_config(&self) -> Result<Value, Error> {
        let args = ["config", "list", "--json", "--long"];
        let step = self.step(&self.program, args.into_iter(), None);
        let done = self.done("npm", self.run(step).await?, None)?;
        serde_json::from_slice(&done.stdout)
            .map_err(|_| Error::Failed("`npm config list --json` printed no JSON".to_owned()))
    }

    /// Prepares the stage. Versions in `last` are preferred to newer ones.
    async fn prepare(&self, last: Option<PathBuf>) -> Result<(), Error> {
        match self.request.registry {
            Registry::Npm => {
                let package = self.stage.package();
                // Without this file, npm would look for a project in the parent folders.
                self.blocking(move || {
                    fs::write(package.join("package.json"), r#"{"private":true}"#)
                })
                .await
            }
            Registry::Pypi => self.prepare_pypi(last).await,
        }
    }

    /// Resolves versions and checks their sources. Returns the version of the package itself.
    async fn resolve(&self) -> Result<String, Error> {
        match self.request.registry {
            Registry::Npm => self.npm_resolve().await?,
            Registry::Pypi => self.compile().await?,
        }
        let (request, package) = (self.request.clone(), self.stage.package());
        let mut registries = self.sources.registries.clone();
        registries.extend(self.packages.hosts.iter().cloned());
        let specs = self.specs();
        blocking(move || {
            let unfit = |why| refused(format!("`{specs}` cannot be installed: {why}"));
            match request.registry {
                Registry::Npm => {
                    let lock = read(&package.join(LOCK_FILE)).map_err(disk)?;
                    let lock: Value = serde_json::from_slice(&lock).unwrap_or_default();
                    check_npm(&lock, &registries).map_err(unfit)?;
                    let place = format!("node_modules/{}", request.package);
                    let found = lock["packages"][place]["version"].as_str();
                    found.map(str::to_owned).ok_or_else(|| unknown(&request))
                }
                Registry::Pypi => {
                    let pins = read(&package.join(REQUIREMENTS_FILE)).map_err(disk)?;
                    check_pypi(&String::from_utf8_lossy(&pins)).map_err(unfit)?;
                    version(&request, &package)
                }
            }
        })
        .await
    }

    /// Installs the resolved versions.
    async fn install(&self) -> Result<(), Error> {
        match self.request.registry {
            Registry::Npm => self.npm_install().await,
            Registry::Pypi => self.pypi().await,
        }
    }

    async fn npm_resolve(&self) -> Result<(), Error> {
        let prefix = format!("--prefix={}", self.stage.package().display());
        let flags = {
            let npm = self.program.clone();
            blocking(move || Ok(known_flags(&npm))).await?
        };
        let command = ["install", "--package-lock-only", prefix.as_str()];
        let specs = self.request.specs.iter().map(String::as_str);
        let args = command.into_iter().chain(NPM_OPTIONS).chain(flags);
        let allowed = self.allowed_registries();
        let step = self.step(
            &self.program,
            args.chain(["--"]).chain(specs),
            Some(&allowed),
        );
        self.done("npm", self.run(step).await?, Some(&allowed))?;
        Ok(())
    }

    async fn npm_install(&self) -> Result<(), Error> {
        let lock = self.stage.package().join(LOCK_FILE);
        let before = read(&lock).map_err(disk)?;
        let prefix = format!("--prefix={}", self.stage.package().display());
        let allowed = self.allowed_registries();
        let args = ["ci", prefix.as_str()].into_iter().chain(NPM_OPTIONS);
        let step = self.step(&self.program, args, Some(&allowed));
        self.done("npm", self.run(step).await?, Some(&allowed))?;
        if read(&lock).map_err(disk)? == before {
            return Ok(());
        }
        Err(Error::Failed(format!(
            "`{}` was not installed: npm changed the lock file after it was checked",
            self.specs()
        )))
    }

    async fn prepare_pypi(&self, last: Option<PathBuf>) -> Result<(), Error> {
        self.venv().await?;
        let (package, pythons) = (self.stage.package(), self.pythons());
        let specs = self.request.specs.join("\n");
        self.blocking(move || {
            let interpreter = fs::read_link(package.join("venv/bin/python"))?;
            symlink(interpreter, package.join(PYTHON_LINK))?;
            fs::write(package.join("requirements.in"), specs)?;
            // uv prefers versions that its output file already contains.
            if let Some(last) = last {
                let _ = fs::copy(
                    last.join(REQUIREMENTS_FILE),
                    package.join(REQUIREMENTS_FILE),
                );
            }
            match pythons.exists() {
                true => make_readable(&pythons),
                false => Ok(()),
            }
        })
        .await
    }

    /// Creates the virtual environment, with an installed Python or with one that uv downloads.
    async fn venv(&self) -> Result<(), Error> {
        let python = self.request.python.iter();
        let python = python.flat_map(|python| ["--python", python.as_str()]);
        let args: Vec<_> = ["venv", "--relocatable", "--no-project", "--quiet"]
            .into_iter()
            .chain(python)
            .chain(["venv"])
            .collect();
        let own = self.pythons();
        let theirs = self
            .sources
            .env
            .get("UV_PYTHON_INSTALL_DIR")
            .map(PathBuf::from);
        let mut folders = vec![theirs.unwrap_or_else(|| own.clone())];
        if folders[0] != own {
            folders.push(own.clone());
        }
        let mut missing = None;
        for folder in folders {
            let mut step = self.step(&self.program, args.iter().copied(), None);
            step.env
                .insert("UV_PYTHON_DOWNLOADS".to_owned(), "never".to_owned());
            step.env.insert(
                "UV_PYTHON_INSTALL_DIR".to_owned(),
                folder.display().to_string(),
            );
            step.shown.push(folder);
            match self.done("uv", self.run(step).await?, None) {
                Ok(_) => return Ok(()),
                Err(error) => missing = Some(error),
            }
        }
        let never = self.sources.env.get("UV_PYTHON_DOWNLOADS");
        if let Some(error) = missing.filter(|_| never.is_some_and(|never| never == "never")) {
            return Err(error);
        }
        let new = self.stage.python();
        let mut step = self.step(&self.program, args.iter().copied(), None);
        let mut places = addresses(&self.sources.pythons);
        places.extend(addresses(&self.packages.hosts));
        let parents = self.sources.parents.clone();
        let allowed = Arc::new(Allowed::configured(
            places,
            "the sources of uv's Python versions",
            parents,
        ));
        step.allowed = Some(Arc::clone(&allowed));
        step.env.insert(
            "UV_PYTHON_INSTALL_DIR".to_owned(),
            own.display().to_string(),
        );
        step.shown.retain(|shown| *shown != own);
        // Downloaded interpreters are moved to their final folder once complete. Until then, a folder on the stage is
        // mounted in its place.
        step.writable.insert(own.clone(), new.clone());
        self.blocking({
            let (new, own) = (new.clone(), own.clone());
            move || fs::create_dir_all(&own).and_then(|()| fs::create_dir_all(new))
        })
        .await?;
        self.done("uv", self.run(step).await?, Some(&allowed))?;
        self.blocking(move || adopt(&new, &own)).await
    }

    async fn compile(&self) -> Result<(), Error> {
        let pins = [
            "--generate-hashes",
            "--no-header",
            "--no-annotate",
            "--output-file",
            REQUIREMENTS_FILE,
        ];
        let compile = ["pip", "compile"].into_iter().chain(UV_OPTIONS).chain(pins);
        let allowed = self.allowed_registries();
        let step = self.step(
            &self.program,
            compile.chain(["requirements.in"]),
            Some(&allowed),
        );
        self.done("uv", self.run(step).await?, Some(&allowed))?;
        Ok(())
    }

    async fn pypi(&self) -> Result<(), Error> {
        let install = ["pip", "install"].into_iter().chain(UV_OPTIONS);
        let pins = [
            "--no-compile-bytecode",
            "--require-hashes",
            "--requirements",
            REQUIREMENTS_FILE,
        ];
        let allowed = self.allowed_registries();
        let step = self.step(&self.program, install.chain(pins), Some(&allowed));
        self.done("uv", self.run(step).await?, Some(&allowed))?;
        // The packages are compiled for faster starts; errors are ignored. Neither uv nor the environment's own Python
        // may compile them, because both would run code from the packages' `.pth` files.
        let compile = ["-I", "-S", "-m", "compileall", "-q", "venv/lib"];
        let python = self.stage.package().join(PYTHON_LINK);
        if let Ok(python) = python.canonicalize() {
            let mut step = self.step(&python, compile.into_iter(), None);
            step.shown.extend(Tools::find(&python).shown);
            let done = self.run(step).await?;
            if done.exceeded.is_some() {
                self.done("python", done, None)?;
            }
        }
        Ok(())
    }

    fn allowed_registries(&self) -> Arc<Allowed> {
        let mut places = match self.request.registry {
            Registry::Npm => self.sources.npm_addresses(),
            Registry::Pypi => addresses(&self.sources.registries),
        };
        places.extend(addresses(&self.packages.hosts));
        let parents = self.sources.parents.clone();
        Arc::new(Allowed::configured(places, ALLOW_LIST_NAME, parents))
    }

    fn step<'s>(
        &self,
        program: &Path,
        args: impl Iterator<Item = &'s str>,
        allowed: Option<&Arc<Allowed>>,
    ) -> Step {
        let mut shown = self.sources.shown.clone();
        shown.extend(self.tools.shown.iter().cloned());
        // No shown folder may contain the data directory.
        shown.retain(|shown| !self.stage.root().starts_with(shown));
        Step {
            label: self.label.to_owned(),
            program: program.to_owned(),
            args: args.map(str::to_owned).collect(),
            env: self.sources.env.clone(),
            cwd: self.stage.package(),
            stage: self.stage.root(),
            writable: self.links.clone(),
            shown,
            files: self.sources.files.clone(),
            path: self.tools.path.clone(),
            allowed: allowed.map(Arc::clone),
            bounds: self.packages.bounds,
            deadline: self.deadline,
        }
    }

    async fn run(&self, step: Step) -> Result<Done, Error> {
        let (confine, stage) = (Arc::clone(&self.packages.confine), self.stage.clone());
        self.blocking(move || {
            fs::create_dir_all(stage.home().join("tmp"))?;
            let mut paths = vec![stage.root(), stage.home(), stage.home().join("tmp")];
            paths.push(stage.package());
            for entry in fs::read_dir(stage.package())? {
                paths.push(entry?.path());
            }
            paths.extend(Some(stage.python()).filter(|python| python.exists()));
            confine.give(&paths)
        })
        .await?;
        self.packages.confine.run(step).await
    }

    /// Returns the result of a step, or an error if it failed.
    fn done(&self, by: &str, done: Done, allowed: Option<&Arc<Allowed>>) -> Result<Done, Error> {
        let specs = self.specs();
        if let Some(exceeded) = &done.exceeded {
            return Err(refused(format!(
                "`{specs}` cannot be installed: with all dependencies it takes {exceeded}"
            )));
        }
        let mut said = said(&done.stderr);
        if let Some(failure) = allowed.and_then(|allowed| allowed.failure()) {
            said.push_str(&format!("; {failure}"));
        }
        let refused_hosts = allowed.map(|allowed| allowed.refused()).unwrap_or_default();
        if !refused_hosts.is_empty() {
            said.push_str(&format!(
                "; {by} tried to reach `{}`, which is not among the configured registries: add it to `package_hosts` in [hosting] of \
                 toolwharf.toml if one of your registries keeps its files there",
                refused_hosts.join("`, `")
            ));
        }
        match done.exit {
            Some(exit) if exit.success() => Ok(done),
            Some(_) if LASTING_ERRORS.iter().any(|lasting| said.contains(lasting)) => Err(refused(
                format!("`{specs}` cannot be installed; {by} says: {said}"),
            )),
            Some(exit) => Err(Error::Failed(format!(
                "`{specs}` was not installed ({exit}); {by} says: {said}; settings for reaching its registry must be \
                 in the environment of Toolwharf itself"
            ))),
            None => Err(Error::Failed(format!(
                "`{specs}` was not installed within {} s; {by} says: {said}",
                INSTALL_TIMEOUT.as_secs()
            ))),
        }
    }

    fn specs(&self) -> String {
        self.request.specs.join("`, `")
    }

    /// The folder for interpreters that uv downloads.
    fn pythons(&self) -> PathBuf {
        self.packages.dir.join("python")
    }

    async fn blocking(
        &self,
        work: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<(), Error> {
        blocking(move || work().map_err(disk)).await
    }
}

/// Suffixes of files that uv uses from a folder of `find-links`.
const LINKED_SUFFIXES: [&str; 4] = [".whl", ".tar.gz", ".zip", ".html"];

/// The folders of `find-links` that are readable by all users, and copies of the others: installations run as another
/// user.
type Links = (Vec<PathBuf>, BTreeMap<PathBuf, PathBuf>);

fn copy_links(links: &[PathBuf], stage: &Stage) -> io::Result<Links> {
    let (mut readable, mut copies) = (Vec::new(), BTreeMap::new());
    for (number, link) in links.iter().enumerate() {
        let Ok(about) = link.metadata() else {
            continue;
        };
        // Showing a folder around the data directory would reveal the data directory.
        let around = stage.root().starts_with(link);
        let public = about.permissions().mode() & 0o005 == 0o005;
        if !about.is_dir() || public && !around {
            readable.push(link.clone());
            continue;
        }
        let copy = stage.root().join("links").join(number.to_string());
        fs::create_dir_all(&copy)?;
        for entry in fs::read_dir(link)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_package = LINKED_SUFFIXES.iter().any(|end| name.ends_with(end));
            if is_package && entry.path().is_file() {
                let to = copy.join(entry.file_name());
                fs::copy(entry.path(), &to)?;
                make_readable(&to)?;
            }
        }
        make_readable(&copy)?;
        copies.insert(link.clone(), copy);
    }
    Ok((readable, copies))
}

/// Moves downloaded interpreters to their place. Existing ones are kept.
fn adopt(new: &Path, place: &Path) -> io::Result<()> {
    for entry in fs::read_dir(new)? {
        let entry = entry?;
        let name = entry.file_name();
        let to = place.join(&name);
        // Names of locks and temporary files begin with a dot.
        if name.as_encoded_bytes().starts_with(b".") || to.exists() {
            continue;
        }
        take(&entry.path())?;
        make_readable(&entry.path())?;
        fs::rename(entry.path(), to)?;
    }
    Ok(())
}

/// Reads a file made by an installation. Does not follow a link, which could lead anywhere.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags.cast_signed())
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!(
            "`{}` is not a file",
            path.display()
        )));
    }
    let mut content = Vec::new();
    file.take(MAX_LOCK_BYTES + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_LOCK_BYTES {
        return Err(io::Error::other(format!(
            "`{}` has more than {MAX_LOCK_BYTES} bytes",
            path.display()
        )));
    }
    Ok(content)
}

pub(super) fn disk(error: io::Error) -> Error {
    Error::Failed(format!("cannot use the folder of a package: {error}"))
}

/// Reads the version of the first package from its files.
fn version(request: &Request, package: &Path) -> Result<String, Error> {
    let found = match request.registry {
        Registry::Npm => {
            let manifest = package
                .join("node_modules")
                .join(&request.package)
                .join("package.json");
            let manifest = read(&manifest).unwrap_or_default();
            let manifest: Value = serde_json::from_slice(&manifest).unwrap_or_default();
            manifest["version"].as_str().map(str::to_owned)
        }
        Registry::Pypi => {
            let pins = read(&package.join(REQUIREMENTS_FILE)).unwrap_or_default();
            pinned_version(&String::from_utf8_lossy(&pins), &request.package)
        }
    };
    found.ok_or_else(|| unknown(request))
}

fn unknown(request: &Request) -> Error {
    Error::Failed(format!(
        "cannot determine the version of `{}`",
        request.package
    ))
}

/// Finds the version of a package in a requirements file.
fn pinned_version(pins: &str, package: &str) -> Option<String> {
    // PyPI's rule for comparing names.
    let normal = |name: &str| {
        let parts: Vec<_> = name
            .split(['-', '_', '.'])
            .filter(|part| !part.is_empty())
            .collect();
        parts.join("-").to_ascii_lowercase()
    };
    let pin = pins.lines().filter_map(|line| line.split_once("=="));
    let mut versions = pin
        .filter(|(name, _)| normal(name) == normal(package))
        .map(|(_, version)| version);
    let version = versions.next()?.split_whitespace().next()?;
    Some(version.to_owned())
}

/// Reduces npm or uv output to its cause, without parts that may be secret.
fn said(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.strip_prefix("npm error").unwrap_or(line).trim());
    let lines = lines.filter(|line| {
        let noise = [
            "at ",
            "Log files were not written",
            "Note that you can also install from",
        ];
        !line.is_empty() && *line != "404" && !noise.iter().any(|noise| line.starts_with(noise))
    });
    let lines = lines.take(MAX_LINES).map(|line| {
        let words: Vec<_> = line.split_whitespace().map(without_secrets).collect();
        words
            .join(" ")
            .chars()
            .take(MAX_LINE_CHARS)
            .collect::<String>()
    });
    let lines: Vec<_> = lines.collect();
    match lines.is_empty() {
        true => "nothing".to_owned(),
        false => lines.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u03_what_npm_and_uv_say_is_cut_to_its_cause() {
        for (text, expected) in [
            ("", "nothing"),
            (
                "npm error code E404\nnpm error 404\nnpm error 404  No such\nnpm error\n",
                "code E404; 404 No such",
            ),
            (
                "error: Failed\n  cause: at last\n",
                "error: Failed; cause: at last",
            ),
            (
                "get https://me:hunter2@r/x?k=hunter2 failed",
                "get https://r/x?… failed",
            ),
            (
                "npm error     at x (y.js:1)\n1\n2\n3\n4\n5\n6\n7\n",
                "1; 2; 3; 4; 5; 6",
            ),
        ] {
            assert_eq!(said(text), expected);
        }
        assert_eq!(said(&"x".repeat(10_000)).len(), MAX_LINE_CHARS);
    }

    #[test]
    fn u03_the_version_is_that_of_the_package_itself() {
        let pins = "mcp==2.0 \\\n    --hash=sha256:0\nmcp-server-time==2026.10.19 \\\n    --hash=sha256:1\n";
        for (package, expected) in [
            ("mcp", Some("2.0")),
            ("MCP_Server.time", Some("2026.10.19")),
            ("time", None),
        ] {
            assert_eq!(pinned_version(pins, package).as_deref(), expected);
        }
    }
}
