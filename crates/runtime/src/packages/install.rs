//! How packages get here: npm and uv, with nothing of the package run.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use model::{Launch, Place, Program};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::request::{Registry, Request, without_secrets};
use super::shelf::{PYTHON, Shelf, Stage, make_readable};
use super::{Packages, blocking, refused, tool};
use crate::unit::{Error, Unit};

/// For one package, with all that it needs.
pub(super) const INSTALL: Duration = Duration::from_secs(300);
/// Of what npm and uv say. The cause comes first.
const MAX_LINES: usize = 6;
const MAX_LINE_CHARS: usize = 300;
/// What npm and uv say when trying again will not help.
const LASTING: [&str; 3] = ["code E404", "code ETARGET", "No solution found"];

/// Variables of this process that npm and uv get: how registries are reached. `PATH` and the like are given to every
/// process.
const PASSED_ON: [&str; 5] = [
    "NETRC",
    "NODE_EXTRA_CA_CERTS",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "XDG_CONFIG_HOME",
];
/// In capitals or not.
const PASSED_ON_ALIKE: [&str; 4] = ["all_proxy", "http_proxy", "https_proxy", "no_proxy"];
const PREFIXES: [&str; 3] = ["npm_config_", "pip_", "uv_"];

/// What uv works on, and that it builds nothing.
const INTO: [&str; 4] = ["--python", "venv/bin/python", "--no-build", "--quiet"];

/// The versions and hashes of packages of PyPI.
const PINS: &str = "requirements.txt";

/// A version in the making, and what makes it.
struct Making<'a> {
    packages: &'a Packages,
    label: &'a str,
    request: &'a Request,
    stage: &'a Stage,
    deadline: Instant,
}

impl Packages {
    /// Installs a package if nobody else did meanwhile; its folder.
    pub(super) async fn installed(
        &self,
        label: &str,
        request: &Arc<Request>,
        shelf: &Shelf,
    ) -> Result<PathBuf, Error> {
        self.may_change()?;
        let _turn = self.turns.turn(&self.turn(request)).await?;
        let stage = {
            let (shelf, name) = (shelf.clone(), self.stage());
            let stage = move || match shelf.current() {
                Some(folder) => Ok(Err(folder)),
                None => shelf.stage(&name).map(Ok).map_err(disk),
            };
            match blocking(stage).await? {
                Ok(stage) => stage,
                Err(folder) => return Ok(folder),
            }
        };
        let making = Making {
            packages: self,
            label,
            request,
            stage: &stage,
            deadline: Instant::now() + INSTALL,
        };
        let made = async {
            // An installation that lost its interpreter keeps its versions.
            making.prepare(shelf.last()).await?;
            making.install().await
        };
        let made = made.await;
        let (shelf, request) = (shelf.clone(), Arc::clone(request));
        let label = label.to_owned();
        blocking(move || {
            let folder = made.and_then(|()| {
                let version = version(&request, &stage.package())?;
                let folder = shelf.publish(&stage, &version).map_err(disk)?;
                let package = &request.package;
                tracing::info!(server = label, package, version, "installed a package");
                Ok(folder)
            });
            stage.remove();
            folder
        })
        .await
    }
}

impl Packages {
    /// Installs the newest version if it is not here yet, beside the one that is started; which one that is.
    pub(super) async fn updated(
        &self,
        label: &str,
        request: &Arc<Request>,
        shelf: &Shelf,
    ) -> Result<String, Error> {
        let _turn = self.turns.turn(&self.turn(request)).await?;
        let stage = {
            let (shelf, name) = (shelf.clone(), self.stage());
            blocking(move || shelf.stage(&name).map_err(disk)).await?
        };
        let making = Making {
            packages: self,
            label,
            request,
            stage: &stage,
            deadline: Instant::now() + INSTALL,
        };
        let made = async {
            making.prepare(None).await?;
            let version = making.resolve().await?;
            let found = {
                let (shelf, version) = (shelf.clone(), version.clone());
                blocking(move || Ok(shelf.version(&version))).await?
            };
            if found.is_none() {
                making.install().await?;
            }
            Ok((version, found.is_some()))
        };
        let made = made.await;
        let (shelf, request) = (shelf.clone(), Arc::clone(request));
        blocking(move || {
            let newest = made.and_then(|(found, is_here)| {
                if is_here {
                    return Ok(found);
                }
                let version = version(&request, &stage.package())?;
                shelf.shelve(&stage, &version).map_err(disk)?;
                Ok(version)
            });
            stage.remove();
            newest
        })
        .await
    }
}

impl Making<'_> {
    /// Makes the stage ready; versions that `last` has are preferred to newer ones.
    async fn prepare(&self, last: Option<PathBuf>) -> Result<(), Error> {
        match self.request.registry {
            Registry::Npm => {
                let package = self.stage.package();
                // Without it npm would look for a project in the folders above.
                self.blocking(move || {
                    fs::write(package.join("package.json"), r#"{"private":true}"#)
                })
                .await
            }
            Registry::Pypi => self.prepare_pypi(last).await,
        }
    }

    /// Finds out which versions there are to be; the one of the package itself.
    async fn resolve(&self) -> Result<String, Error> {
        match self.request.registry {
            Registry::Npm => self.npm(&["--package-lock-only"]).await?,
            Registry::Pypi => self.compile().await?,
        }
        let (request, package) = (self.request.clone(), self.stage.package());
        blocking(move || match request.registry {
            Registry::Npm => {
                let lock = fs::read(package.join("package-lock.json")).unwrap_or_default();
                let lock: Value = serde_json::from_slice(&lock).unwrap_or_default();
                let place = format!("node_modules/{}", request.package);
                let found = lock["packages"][place]["version"].as_str();
                found.map(str::to_owned).ok_or_else(|| unknown(&request))
            }
            Registry::Pypi => version(&request, &package),
        })
        .await
    }

    async fn install(&self) -> Result<(), Error> {
        match self.request.registry {
            Registry::Npm => self.npm(&[]).await,
            Registry::Pypi => self.pypi().await,
        }
    }

    async fn npm(&self, more: &[&str]) -> Result<(), Error> {
        let npm = tool("npm", Registry::Npm)?;
        let prefix = format!("--prefix={}", self.stage.package().display());
        let options = [
            "install",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--no-update-notifier",
            "--no-global",
            "--loglevel=error",
            "--logs-max=0",
            "--save-exact",
            "--package-lock",
            &prefix,
            "--",
        ];
        let specs = self.request.specs.iter().map(String::as_str);
        let (command, options) = options.split_at(1);
        let options = command.iter().chain(more).chain(options).copied();
        self.step(&npm, options.chain(specs)).await
    }

    async fn prepare_pypi(&self, last: Option<PathBuf>) -> Result<(), Error> {
        let uv = tool("uv", Registry::Pypi)?;
        let venv = ["venv", "--relocatable", "--no-project", "--quiet"];
        let python = self
            .request
            .python
            .iter()
            .flat_map(|python| ["--python", python.as_str()]);
        self.step(&uv, venv.into_iter().chain(python).chain(["venv"]))
            .await?;
        let (package, pythons) = (self.stage.package(), self.pythons());
        let specs = self.request.specs.join("\n");
        self.blocking(move || {
            symlink(
                fs::read_link(package.join("venv/bin/python"))?,
                package.join(PYTHON),
            )?;
            fs::write(package.join("requirements.in"), specs)?;
            // uv prefers those that it finds in its output.
            if let Some(last) = last {
                let _ = fs::copy(last.join(PINS), package.join(PINS));
            }
            match pythons.exists() {
                true => make_readable(&pythons),
                false => Ok(()),
            }
        })
        .await
    }

    async fn compile(&self) -> Result<(), Error> {
        let uv = tool("uv", Registry::Pypi)?;
        let pins = [
            "--generate-hashes",
            "--no-header",
            "--no-annotate",
            "--output-file",
            PINS,
        ];
        let compile = ["pip", "compile"].into_iter().chain(INTO).chain(pins);
        self.step(&uv, compile.chain(["requirements.in"])).await
    }

    async fn pypi(&self) -> Result<(), Error> {
        let uv = tool("uv", Registry::Pypi)?;
        self.compile().await?;
        let install = ["pip", "install"].into_iter().chain(INTO);
        self.step(
            &uv,
            install.chain(["--no-compile-bytecode", "--requirements", PINS]),
        )
        .await?;
        // For faster starts, and as well as it goes. Neither uv nor the environment's own Python may do that: they run
        // what packages put into `.pth` files.
        let compile = ["-I", "-S", "-m", "compileall", "-q", "venv/lib"];
        let python = self.stage.package().join(PYTHON);
        let _ = self.step(&python, compile.into_iter()).await;
        Ok(())
    }

    /// Runs a program of the host to its end.
    async fn step<'a>(
        &self,
        program: &Path,
        args: impl Iterator<Item = &'a str>,
    ) -> Result<(), Error> {
        let home = self.stage.home();
        let python = self.pythons();
        let launch = Launch {
            env: environment(std::env::vars_os(), &home, &python),
            cwd: Some(self.stage.package()),
            ..Launch::new(
                Program::Command {
                    program: program.display().to_string(),
                    args: args.map(str::to_owned).collect(),
                },
                Place::Host,
            )
        };
        let unit = Unit::new(self.label, launch);
        let spawned = self.packages.spawner.spawn(unit).await;
        let mut child = spawned.map_err(|error| Error::Failed(model::with_causes(&error)))?;
        drop(child.stdin);
        let ended = async {
            let _ = tokio::io::copy(&mut child.stdout, &mut tokio::io::sink()).await;
            child.handle.exited().await
        };
        let ended = timeout_at(self.deadline, ended).await;
        let said = said(&child.handle.stderr_tail());
        let by = program.file_name().unwrap_or_default().display();
        let specs = self.request.specs.join("`, `");
        match ended {
            Ok(exit) if exit.success() => Ok(()),
            Ok(_) if LASTING.iter().any(|lasting| said.contains(lasting)) => Err(refused(format!(
                "`{specs}` cannot be installed; {by} says: {said}"
            ))),
            Ok(exit) => Err(Error::Failed(format!(
                "`{specs}` was not installed ({exit}); {by} says: {said}; what it needs to reach its registry has to be \
                 in the environment of Toolwharf itself"
            ))),
            Err(_) => Err(Error::Failed(format!(
                "`{specs}` was not installed within {} s; {by} says: {said}",
                INSTALL.as_secs()
            ))),
        }
    }

    /// Interpreters that uv downloads.
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

pub(super) fn disk(error: io::Error) -> Error {
    Error::Failed(format!("the folder of a package cannot be made: {error}"))
}

/// The version of the first package that is there.
fn version(request: &Request, package: &Path) -> Result<String, Error> {
    let found = match request.registry {
        Registry::Npm => {
            let manifest = package
                .join("node_modules")
                .join(&request.package)
                .join("package.json");
            let manifest = fs::read(manifest).unwrap_or_default();
            let manifest: Value = serde_json::from_slice(&manifest).unwrap_or_default();
            manifest["version"].as_str().map(str::to_owned)
        }
        Registry::Pypi => {
            let pins = fs::read_to_string(package.join(PINS)).unwrap_or_default();
            pinned_version(&pins, &request.package)
        }
    };
    found.ok_or_else(|| unknown(request))
}

fn unknown(request: &Request) -> Error {
    Error::Failed(format!(
        "the version of `{}` cannot be found out",
        request.package
    ))
}

/// Of a file of requirements.
fn pinned_version(pins: &str, package: &str) -> Option<String> {
    // As PyPI compares names.
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

/// What npm or uv said, without what helps nobody and without what may be a secret.
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

/// What npm and uv get besides what every process of ours gets. `python` is where downloaded interpreters stay.
fn environment(
    host: impl IntoIterator<Item = (OsString, OsString)>,
    home: &Path,
    python: &Path,
) -> BTreeMap<String, String> {
    let text = |path: &Path| path.display().to_string();
    let mut environment = BTreeMap::new();
    // As weak as defaults.
    environment.insert("UV_PYTHON_INSTALL_DIR".to_owned(), text(python));
    for (name, value) in host {
        let (Ok(name), Ok(value)) = (name.into_string(), value.into_string()) else {
            continue;
        };
        let lower = name.to_ascii_lowercase();
        // The user's own files of settings, which a home of its own hides.
        if name == "HOME" {
            let theirs = Path::new(&value);
            let files = [
                ("npm_config_userconfig", ".npmrc"),
                ("XDG_CONFIG_HOME", ".config"),
            ];
            for (name, file) in files {
                environment
                    .entry(name.to_owned())
                    .or_insert_with(|| text(&theirs.join(file)));
            }
        } else if PASSED_ON.contains(&name.as_str())
            || PASSED_ON_ALIKE.contains(&lower.as_str())
            || PREFIXES.iter().any(|prefix| lower.starts_with(prefix))
        {
            environment.insert(name, value);
        }
    }
    environment.insert("HOME".to_owned(), text(home));
    // uv takes it for a contradiction to what it is told on its command line.
    environment.remove("UV_COMPILE_BYTECODE");
    // Files shared with a cache would get the permissions that they get here.
    environment.insert("UV_LINK_MODE".to_owned(), "copy".to_owned());
    environment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u03_npm_and_uv_get_what_leads_to_registries_and_nothing_else() {
        let check = |host: &[(&str, &str)], expected: &[(&str, &str)]| {
            let host = host
                .iter()
                .map(|&(name, value)| (name.into(), value.into()));
            let found = environment(host, Path::new("/stage"), Path::new("/pythons"));
            let own = [("HOME", "/stage"), ("UV_LINK_MODE", "copy")];
            let expected = expected.iter().chain(&own);
            let expected = expected.map(|&(name, value)| (name.to_owned(), value.to_owned()));
            assert_eq!(found, expected.collect());
        };
        check(
            &[("API_KEY", "k")],
            &[("UV_PYTHON_INSTALL_DIR", "/pythons")],
        );
        check(
            &[
                ("XDG_CONFIG_HOME", "/etc/me"),
                ("HOME", "/home/me"),
                ("AWS_SECRET_ACCESS_KEY", "s"),
                ("NPM_CONFIG_REGISTRY", "http://r"),
                ("npm_config_cafile", "/ca"),
                ("UV_PYTHON_INSTALL_DIR", "/theirs"),
                ("UV_LINK_MODE", "symlink"),
                ("UV_COMPILE_BYTECODE", "1"),
                ("https_proxy", "http://p"),
                ("NO_PROXY", "x"),
                ("SSL_CERT_FILE", "/ca"),
                ("TOOLWHARF_DATABASE_URL", "s"),
            ],
            &[
                ("XDG_CONFIG_HOME", "/etc/me"),
                ("npm_config_userconfig", "/home/me/.npmrc"),
                ("NPM_CONFIG_REGISTRY", "http://r"),
                ("npm_config_cafile", "/ca"),
                ("UV_PYTHON_INSTALL_DIR", "/theirs"),
                ("https_proxy", "http://p"),
                ("NO_PROXY", "x"),
                ("SSL_CERT_FILE", "/ca"),
            ],
        );
    }

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
