//! `cargo xtask setup`: installs what the tests and the demo need in addition to a Rust toolchain.
//!
//! There are five kinds of parts: system packages ([`TOOLS`], through `apt-get`, as root only), npm and Python packages
//! (pinned in `xtask/deps`, installed into `.work`; one of them a second time where `uvx` looks for it), cargo's
//! helpers, and the API server of Kubernetes, which is built from Debian's source package. Parts that are present are
//! left alone: a second run takes well under a second. If a part cannot be installed, the command fails at the end and
//! prints how to install it.
//!
//! Concurrent runs wait for each other. The next run repairs an interrupted one: the stamp of a part is written after
//! its installation, and without the stamp, the part counts as missing.

use std::{
    fs::{self, File},
    path::Path,
    thread,
};

use anyhow::{Context, Result, bail};

use crate::{
    docker, kubernetes, postgres, python,
    shell::{Cmd, heading, is_executable, is_root, which},
    web,
    workspace::{Stamp, Workspace},
};

const PACKAGE: &str = include_str!("../deps/package.json");
const PACKAGE_LOCK: &str = include_str!("../deps/package-lock.json");

/// Cargo helpers that are built if missing: name, version, description, arguments.
const BUILT_HELPERS: [(&str, &str, &str, &[&str]); 2] = [
    ("cargo-nextest", "0.9.143", "the test runner", &[]),
    (
        "cargo-deny",
        "0.20.2",
        "which checks licences, banned crates and sources",
        // A debug build suffices, because an optimized build takes four times as long, and saves only three seconds per
        // check.
        &["--debug"],
    ),
];

/// All system packages needed by tests or the demo, one line for each tool: its name, why it is needed, how it is found
/// (see [`Tool::is_found`]), and its Debian packages. A line with `#` explains the next one.
const TOOLS: &str = "
git | mcp-server-git works on a repository | path: git | git
node | servers from npm run on it | path: node | nodejs
npm | installs servers from npm | path: npm | npm
python3 (3.10 or later, with venv) | servers from PyPI run on it | python | python3 python3-venv
postgres (with initdb and pg_isready) | the store is tested on it | postgres | postgresql
dockerd (with docker, containerd and runc) | servers are hosted in its containers \
    | debian: dockerd docker containerd runc docker-init | docker.io
runsc | gVisor, which containers run in | debian: runsc | runsc
bwrap | servers are hosted in its sandboxes | debian: bwrap | bubblewrap
busybox | the tests' containers are made of it | debian: busybox | busybox-static
mkfs.ext4 (with e2fsck, resize2fs and debugfs) | volumes of limited size are made with it \
    | debian: mkfs.ext4 e2fsck resize2fs debugfs | e2fsprogs
c++ | libFuzzer is built with it, for the fuzz targets | path: c++ | g++
faketime | replicas are tested with clocks that differ | path: faketime | faketime
etcd | Kubernetes' API server keeps its objects there | debian: etcd | etcd-server
openssl | certificates for gateways, the API server and daemons are made with it | path: openssl | openssl
go 1.19 | Kubernetes' API server is built with it, once | go | golang-1.19-go
bridge, a network plugin | pods of a Kubernetes node are connected by it \
    | plugin: bridge | containernetworking-plugins
nginx | replicas and the example in deploy/nginx are tested with it | debian: nginx | nginx-light
socat | daemons are reached with certificates in tests | path: socat | socat
systemd-analyze | the unit files in deploy/systemd are checked with it | path: systemd-analyze | systemd
debootstrap | packages are tested on its root file systems, and images are made of them \
    | debian: debootstrap | debootstrap
rpmbuild | packages for Red Hat's family are made with it | path: rpmbuild | rpm
docker-compose | deploy/compose is checked with it | path: docker-compose | docker-compose
# The browser cannot draw text without a font.
chromium | pages are tested in it | path: chromium-headless-shell | chromium-headless-shell fonts-dejavu-core
";

/// A program that the system must have: a line of [`TOOLS`].
#[derive(Clone, Copy)]
struct Tool {
    name: &'static str,
    why: &'static str,
    found: &'static str,
    /// Its Debian packages.
    apt: &'static str,
}

impl Tool {
    fn all() -> Vec<Self> {
        let lines = TOOLS.lines().filter(|line| !line.starts_with('#'));
        let tool = |line: &'static str| {
            let mut parts = line.split('|').map(str::trim);
            Some(Self {
                name: parts.next()?,
                why: parts.next()?,
                found: parts.next()?,
                apt: parts.next()?,
            })
        };
        lines.filter_map(tool).collect()
    }

    fn is_found(&self) -> bool {
        let (how, names) = self.found.split_once(": ").unwrap_or((self.found, ""));
        let mut names = names.split_whitespace();
        match how {
            "python" => python::find().is_some(),
            "postgres" => postgres::programs().is_some(),
            "go" => Path::new(kubernetes::GO).exists(),
            "plugin" => names.all(|name| Path::new(kubernetes::PLUGINS).join(name).exists()),
            // Searches only the directories of Debian's packages.
            "debian" => names.all(|name| docker::program(name).is_some()),
            _ => names.all(|name| which(name).is_some()),
        }
    }
}

/// Installs everything.
///
/// # Errors
///
/// If anything is missing afterwards. The error says how to get it.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let work = workspace.work();
    fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
    let lock = work.join("setup.lock");
    let lock = File::create(&lock).with_context(|| format!("cannot write {}", lock.display()))?;
    lock.lock().context("cannot lock .work/setup.lock")?;

    let downloads: [(&str, Part); 4] = [
        ("npm packages", npm_packages),
        ("the console's packages", web::install),
        ("Python packages", python_packages),
        ("the recipe vault's fetch server", python::install_for_tests),
    ];
    let builds: [(&str, Part); 2] = [
        ("cargo's helpers", cargo_helpers),
        ("Kubernetes' API server", kubernetes::build_api_server),
    ];
    let mut missing = Vec::from_iter(system_tools(Tool::all())?);
    // Downloads wait for the network while the builds use the processor.
    thread::scope(|scope| {
        let builds = scope.spawn(|| install(workspace, &builds));
        missing.extend(install(workspace, &downloads));
        missing.extend(builds.join().expect("no part panics"));
    });
    if missing.is_empty() {
        eprintln!("set-up is complete");
        return Ok(());
    }
    bail!(
        "set-up is not complete:\n\n{}\n\nThen run this command again.",
        missing.join("\n\n")
    )
}

/// Installs parts one after the other. Returns what failed, as texts for the user.
fn install(workspace: &Workspace, parts: &[(&str, Part)]) -> Vec<String> {
    let failure = |(name, part): &(&str, Part)| {
        let error = part(workspace).err()?;
        Some(format!("{name}: {error:#}"))
    };
    parts.iter().filter_map(failure).collect()
}

/// Returns a Python that can create environments. It is installed if missing and if possible.
///
/// # Errors
///
/// If none is found. The error says how to get it.
pub(crate) fn python() -> Result<std::path::PathBuf> {
    let mut tools = Tool::all();
    tools.retain(|tool| tool.found == "python");
    let missing = system_tools(tools)?;
    python::find().with_context(|| missing.unwrap_or_default())
}

/// The pinned version of an npm package: `name@version`.
pub(crate) fn pinned_npm(package: &str) -> Option<String> {
    let pins: serde_json::Value = serde_json::from_str(PACKAGE).ok()?;
    Some(format!(
        "{package}@{}",
        pins["dependencies"][package].as_str()?
    ))
}

/// A part of the set-up. Does nothing if it is complete.
type Part = fn(&Workspace) -> Result<()>;

/// Installs missing system packages, if possible.
///
/// Returns what is still missing, as a text for the user.
fn system_tools(mut absent: Vec<Tool>) -> Result<Option<String>> {
    absent.retain(|tool| !tool.is_found());
    if absent.is_empty() {
        return Ok(None);
    }
    let (root, apt) = (is_root()?, which("apt-get").is_some());
    if root && apt {
        heading("installing system packages");
        // If this fails, the missing programs are reported below.
        if let Err(error) = install_packages(&absent) {
            eprintln!("    {error:#}");
        }
    }
    absent.retain(|tool| !tool.is_found());
    Ok(how_to_install(&absent, apt))
}

fn install_packages(tools: &[Tool]) -> Result<()> {
    let apt = |args: &[&str]| {
        Cmd::new("apt-get")
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive")
    };
    // If the update fails, the old package lists may still contain the package.
    if let Err(error) = apt(&["-q", "update"]).run() {
        eprintln!("    {error:#}");
    }
    apt(&["-q", "install", "-y", "--no-install-recommends"])
        .args(packages(tools))
        .run()
}

fn packages(tools: &[Tool]) -> Vec<&'static str> {
    let packages = tools.iter().flat_map(|tool| tool.apt.split_whitespace());
    packages.collect()
}

fn how_to_install(tools: &[Tool], apt: bool) -> Option<String> {
    if tools.is_empty() {
        return None;
    }
    let list: String = tools
        .iter()
        .map(|tool| format!("\n  {}: {}", tool.name, tool.why))
        .collect();
    let remedy = if apt {
        format!(
            "Run this as root:\n  sudo apt-get install -y {}",
            packages(tools).join(" ")
        )
    } else {
        "Install them with this system's package manager.".to_owned()
    };
    Some(format!(
        "these programs are not on the PATH:{list}\n{remedy}"
    ))
}

/// Installs servers, clients, the SDK, the conformance suite, Redocly, an authorization server and a suitable Node.js from
/// npm.
fn npm_packages(workspace: &Workspace) -> Result<()> {
    let node_modules = workspace.node_modules();
    let node = node_modules.join("node/bin/node");
    let work = workspace.work();
    let stamp = Stamp::new(work.join("npm.stamp"), PACKAGE.to_owned() + PACKAGE_LOCK);
    if stamp.holds() && is_executable(&node) {
        return Ok(());
    }
    heading(
        "installing MCP servers and clients, the SDK, the conformance suite, Redocly, oidc-provider and Node.js from npm",
    );
    stamp.remove()?;
    fs::write(work.join("package.json"), PACKAGE)?;
    fs::write(work.join("package-lock.json"), PACKAGE_LOCK)?;
    web::npm_ci(&work)?;
    // The package `node` fetches the binary for this platform in its install script. Whether npm runs such scripts
    // depends on its version, so this script is run explicitly.
    Cmd::new("node")
        .arg("installArchSpecificPackage.js")
        .dir(&node_modules.join("node"))
        .run()?;
    let version = Cmd::new(&node).arg("--version").output()?;
    eprintln!("    node {}", version.trim());
    stamp.write()
}

/// Installs the servers from PyPI, and uv.
fn python_packages(workspace: &Workspace) -> Result<()> {
    let inputs = python::REQUIREMENTS.to_owned() + python::CONSTRAINTS;
    let stamp = Stamp::new(workspace.work().join("venv.stamp"), inputs);
    // `bin/python` links to the Python that the environment was created from, which may be gone.
    if stamp.holds() && is_executable(&workspace.venv().join("bin/python")) {
        return Ok(());
    }
    heading("installing MCP servers, uv and the tools that check deploy/ from PyPI");
    stamp.remove()?;
    let python = python::find().context("no usable python3")?;
    python::install_servers(workspace, &python)?;
    stamp.write()
}

/// Finds or installs the cargo helpers for the checks and tests.
fn cargo_helpers(workspace: &Workspace) -> Result<()> {
    for (program, component) in [("cargo-fmt", "rustfmt"), ("cargo-clippy", "clippy")] {
        if !has_subcommand(program) {
            heading("installing a part of the Rust toolchain");
            Cmd::new("rustup")
                .args(["component", "add", component])
                .run()?;
        }
    }
    for (name, version, what, options) in BUILT_HELPERS {
        if !has_subcommand(name) {
            heading(&format!(
                "building {name}, {what}: this takes several minutes"
            ));
            workspace
                .cargo(&["install", "--locked", name, "--version", version])
                .args(options)
                .env("CARGO_PROFILE_DEV_DEBUG", "0")
                .run()?;
        }
    }
    Ok(())
}

/// Returns whether cargo would find this subcommand. It looks next to itself and on the `PATH`.
pub(crate) fn has_subcommand(program: &str) -> bool {
    let home = std::env::var_os("CARGO_HOME")
        .map(std::path::PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    which(program).is_some()
        || home.is_some_and(|home| is_executable(&home.join("bin").join(program)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_missing_says_nothing() {
        assert_eq!(how_to_install(&[], true), None);
    }

    #[test]
    fn what_is_missing_comes_with_one_command() {
        let mut tools = Tool::all();
        tools.retain(|tool| tool.name != "git");
        let text = how_to_install(&tools, true).unwrap();
        assert!(
            text.ends_with("sudo apt-get install -y nodejs npm python3 python3-venv postgresql docker.io runsc bubblewrap busybox-static e2fsprogs g++ faketime etcd-server openssl golang-1.19-go containernetworking-plugins nginx-light socat systemd debootstrap rpm docker-compose chromium-headless-shell fonts-dejavu-core"),
            "{text}"
        );
        assert!(
            how_to_install(&tools, false)
                .unwrap()
                .contains("package manager")
        );
    }

    #[test]
    fn the_lock_file_is_for_the_package_file() {
        let package: serde_json::Value = serde_json::from_str(PACKAGE).unwrap();
        let lock: serde_json::Value = serde_json::from_str(PACKAGE_LOCK).unwrap();
        assert_eq!(
            package["dependencies"],
            lock["packages"][""]["dependencies"]
        );
        assert!(
            !PACKAGE_LOCK.contains("\"resolved\""),
            "a lock file names no registry"
        );
    }
}
