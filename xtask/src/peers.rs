//! `cargo xtask bench peers`: installs other MCP proxies and gateways from their registries, and measures them beside
//! Toolwharf.
//!
//! Each peer is in a separate folder in `.work/peers`. Its version is pinned here. Its dependencies are the newest that
//! were published before a date, which npm and uv look up themselves, so a later run installs the same ones. The date of
//! a peer is [`DATE`], unless later dependencies break it.
//!
//! A peer that cannot be installed is left out, and the benchmark names it with the reason.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::{Parser, builder::PossibleValuesParser};
use serde_json::{Value, json};

use crate::{
    checks, python, setup,
    shell::{Cmd, heading, is_executable},
    workspace::{COMPILER, Stamp, Workspace},
};

/// Dependencies are not newer than this.
const DATE: &str = "2026-11-28";

/// The command line after `cargo xtask bench peers`. The bench gets the same options.
#[derive(Parser)]
#[command(
    name = "cargo xtask bench peers",
    bin_name = "cargo xtask bench peers",
    about = "Installs other MCP proxies and gateways, and measures them beside Toolwharf"
)]
struct Options {
    /// Measures only this peer, beside Toolwharf and the baseline; may be repeated
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(PEERS.map(|it| it.name)))]
    only: Vec<String>,
    /// Shorter rounds: five minutes instead of twenty, with less precise figures
    #[arg(long)]
    quick: bool,
    /// Also writes the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also writes the tables into this Markdown file, between `<!-- bench peers: NAME -->` and `<!-- end -->`
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
}

/// A program that others publish.
struct Peer {
    /// The name for `--only`, and in `bench peers`.
    name: &'static str,
    registry: Registry,
    package: &'static str,
    version: &'static str,
    /// The name of its executable.
    program: &'static str,
    date: &'static str,
}

#[derive(Clone, Copy)]
enum Registry {
    Npm,
    PyPi,
    Crates,
}

const PEERS: [Peer; 8] = [
    peer("crates-mcp-proxy", Registry::Crates, "mcp-proxy", "0.6.0"),
    peer("npm-mcp-proxy", Registry::Npm, "mcp-proxy", "6.7.19"),
    peer("supergateway", Registry::Npm, "supergateway", "4.0.0"),
    peer("mcp-hub", Registry::Npm, "mcp-hub", "4.2.1"),
    peer("pypi-mcp-proxy", Registry::PyPi, "mcp-proxy", "0.13.0"),
    // Versions of `mcp` and `fastapi` that came after this version of mcpo break it.
    peer("mcpo", Registry::PyPi, "mcpo", "0.0.20").before("2026-02-28"),
    peer("fastmcp", Registry::PyPi, "fastmcp", "4.2.3"),
    peer(
        "contextforge",
        Registry::PyPi,
        "mcp-contextforge-gateway",
        "1.0.7.post20260921",
    )
    .run_by("mcpgateway"),
];

/// A peer whose executable has the name of its package.
const fn peer(
    name: &'static str,
    registry: Registry,
    package: &'static str,
    version: &'static str,
) -> Peer {
    Peer {
        name,
        registry,
        package,
        version,
        program: package,
        date: DATE,
    }
}

impl Peer {
    const fn before(mut self, date: &'static str) -> Self {
        self.date = date;
        self
    }

    const fn run_by(mut self, program: &'static str) -> Self {
        self.program = program;
        self
    }

    /// The executable, below the peer's folder.
    fn executable(&self, folder: &Path) -> PathBuf {
        let bin = match self.registry {
            Registry::Npm => "node_modules/.bin",
            Registry::PyPi | Registry::Crates => "bin",
        };
        folder.join(bin).join(self.program)
    }

    /// Installs the peer unless it is there, and returns its executable.
    fn install(&self, place: &Place) -> Result<PathBuf> {
        let folder = place.folder.join(self.name);
        let Self {
            package,
            version,
            date,
            ..
        } = self;
        let stamp = Stamp::new(
            folder.join("installed"),
            format!("{package} {version} {date}"),
        );
        let executable = self.executable(&folder);
        if stamp.holds() && is_executable(&executable) {
            return Ok(executable);
        }
        heading(&format!("installing {} {version}", self.name));
        empty(&folder)?;
        match self.registry {
            Registry::Npm => npm(&folder, &format!("{package}@{version}"), date, place)?,
            Registry::PyPi => place.pypi(&folder, &format!("{package}=={version}"), date)?,
            Registry::Crates => place
                .workspace
                .cargo(&["install", "--locked", package, "--version", version])
                .arg("--root")
                .arg(&folder)
                // Code of others is not linted.
                .env(COMPILER, "")
                .run()?,
        }
        if !is_executable(&executable) {
            bail!("{package} {version} has no executable {}", self.program);
        }
        stamp.write()?;
        Ok(executable)
    }
}

/// The folders for peers and for Node.js.
struct Place<'a> {
    workspace: &'a Workspace,
    folder: PathBuf,
    /// The folder of `node`.
    node: PathBuf,
}

impl<'a> Place<'a> {
    fn new(workspace: &'a Workspace) -> Result<Self> {
        let folder = workspace.work().join("peers");
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        // Python environments contain their path, and `.work` may be a link.
        let folder = folder.canonicalize()?;
        Ok(Self {
            workspace,
            node: folder.join("node/node_modules/node/bin"),
            folder,
        })
    }

    /// Installs the Node.js of the tests. The programs of the system may be too old for a peer.
    fn node(&self) -> Result<()> {
        let package = setup::pinned_npm("node").context("xtask/deps/package.json has no node")?;
        let folder = self.folder.join("node");
        let stamp = Stamp::new(folder.join("installed"), package.clone());
        if stamp.holds() && is_executable(&self.node.join("node")) {
            return Ok(());
        }
        heading("installing Node.js");
        empty(&folder)?;
        npm(&folder, &package, DATE, self)?;
        Cmd::new("node")
            .arg("installArchSpecificPackage.js")
            .dir(&folder.join("node_modules/node"))
            .run()?;
        stamp.write()
    }

    /// Installs a package into a new Python environment.
    fn pypi(&self, folder: &Path, package: &str, date: &str) -> Result<()> {
        let python = setup::python()?;
        let uv = self.folder.join("uv");
        let program = uv.join("bin/uv");
        if !is_executable(&program) {
            let wanted = python::pinned("uv").context("uv is not pinned")?;
            Cmd::new(&python)
                .args(["-m", "venv", "--clear"])
                .arg(&uv)
                .run()?;
            let pip = Cmd::new(uv.join("bin/python")).shown_as("python");
            pip.args(["-m", "pip", "install", "--quiet", wanted])
                .run()?;
        }
        let uv = || Cmd::new(&program).shown_as("uv");
        uv().args(["venv", "--quiet", "--clear", "--python"])
            .arg(&python)
            .arg(folder)
            .run()?;
        uv().args(["pip", "install", "--quiet", "--exclude-newer", date])
            .arg("--python")
            .arg(folder.join("bin/python"))
            .arg(package)
            .run()
    }
}

/// Installs an npm package. Install scripts are not run.
fn npm(folder: &Path, package: &str, date: &str, place: &Place) -> Result<()> {
    fs::write(folder.join("package.json"), r#"{"private":true}"#)?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::iter::once(place.node.clone()).chain(std::env::split_paths(&path));
    let options = ["--ignore-scripts", "--no-audit", "--no-fund"];
    Cmd::new("npm")
        .args(["install", package, "--before", date])
        .args(options)
        .arg("--loglevel=error")
        .dir(folder)
        .env("PATH", std::env::join_paths(path)?)
        .run()
}

fn empty(folder: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}

/// Builds Toolwharf, installs the peers and runs the benchmark. `args` follow `bench peers`.
///
/// # Errors
///
/// If the build fails. Peers that cannot be installed are no errors here.
pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<()> {
    let name = "cargo xtask bench peers".to_owned();
    let options = Options::parse_from(std::iter::once(&name).chain(args));
    checks::release(workspace)?;
    let place = Place::new(workspace)?;
    let mut list = serde_json::Map::new();
    let is_wanted =
        |peer: &&Peer| options.only.is_empty() || options.only.iter().any(|name| name == peer.name);
    for peer in PEERS.iter().filter(is_wanted) {
        let installed = match peer.registry {
            Registry::Npm => place.node().and_then(|()| peer.install(&place)),
            Registry::PyPi | Registry::Crates => peer.install(&place),
        };
        list.insert(peer.name.to_owned(), entry(peer, &place, installed));
    }
    let file = place.folder.join("installed.json");
    fs::write(&file, format!("{:#}\n", Value::Object(list)))?;
    heading("benchmarks");
    let bench = Cmd::new(workspace.target()?.join("release/bench"));
    let mut bench = bench.args(["peers", "--installed"]).arg(file);
    for name in options.only {
        bench = bench.args(["--only".to_owned(), name]);
    }
    if options.quick {
        bench = bench.arg("--quick");
    }
    for (option, file) in [("--json", options.json), ("--into", options.into)] {
        if let Some(file) = file {
            bench = bench.arg(option).arg(file);
        }
    }
    bench.dir(workspace.root()).become_it()
}

/// The entry of a peer in the list for the benchmark.
fn entry(peer: &Peer, place: &Place, installed: Result<PathBuf>) -> Value {
    let version = peer.version;
    match (installed, peer.registry) {
        (Ok(program), Registry::Npm) => {
            json!({ "version": version, "program": program, "path": place.node })
        }
        (Ok(program), _) => json!({ "version": version, "program": program }),
        (Err(error), _) => {
            eprintln!("    {}: {error:#}", peer.name);
            json!({ "version": version, "error": format!("{error:#}") })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_is_one_that_the_bench_knows() {
        let programs = include_str!("../../crates/bench/src/peers/programs.rs");
        for peer in &PEERS {
            let name = format!("name: {:?},", peer.name);
            assert_eq!(programs.matches(&name).count(), 1, "{name}");
        }
        assert_eq!(programs.matches("kind: Kind::Peer,").count(), PEERS.len());
    }

    #[test]
    fn the_list_has_the_program_or_the_reason() {
        let workspace = Workspace::locate().expect("a workspace");
        let place = Place {
            workspace: &workspace,
            folder: "/peers".into(),
            node: "/peers/node".into(),
        };
        for (peer, installed, want) in [
            (
                &PEERS[1],
                Ok("/p".into()),
                json!({ "version": "6.7.19", "program": "/p", "path": "/peers/node" }),
            ),
            (
                &PEERS[0],
                Ok("/p".into()),
                json!({ "version": "0.6.0", "program": "/p" }),
            ),
            (
                &PEERS[0],
                Err(anyhow::anyhow!("no network")),
                json!({ "version": "0.6.0", "error": "no network" }),
            ),
        ] {
            assert_eq!(entry(peer, &place, installed), want);
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }
}
