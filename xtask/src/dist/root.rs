//! Root file systems of Debian, made by debootstrap: the base of the images, and where the tests install packages.
//!
//! They are made once, in `.work/roots`, as root. A root that is not complete has no stamp, and is made again.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

use super::{Arch, copy};
use crate::{
    docker,
    shell::{Cmd, heading, is_root},
    workspace::{Stamp, Workspace},
};

/// The environment variable with the root file system of this machine's architecture, for tests.
pub(crate) const VARIABLE: &str = "TOOLWHARF_TEST_ROOT";
const SUITE: &str = "bookworm";
/// What debootstrap adds to Debian's required packages.
const PACKAGES: &str = "bubblewrap,ca-certificates,python3,python3-venv";
const NPM: &str = "11.19.1";

/// A root with what `npx` and `uvx` servers need: Node.js, npm, Python, uv and bubblewrap. Toolwharf and Rust are not
/// installed.
pub(crate) fn full(workspace: &Workspace) -> Result<PathBuf> {
    let node = workspace.node_modules().join("node/bin/node");
    let uv = workspace.venv().join("bin");
    let versions = [
        format!("{SUITE} {PACKAGES} npm {NPM}\n"),
        Cmd::new(&node)
            .arg("--version")
            .output()
            .context("run `cargo xtask setup`")?,
        Cmd::new(uv.join("uv"))
            .arg("--version")
            .output()
            .context("run `cargo xtask setup`")?,
    ];
    make(workspace, "full", &versions.concat(), |root| {
        let include = format!("--include={PACKAGES}");
        debootstrap(root, &["--variant=minbase", &include])?;
        let bin = root.join("usr/bin");
        copy(&node, &bin.join("node"), 0o755)?;
        for name in ["uv", "uvx"] {
            copy(&uv.join(name), &bin.join(name), 0o755)?;
        }
        npm(root)?;
        for folder in ["var/cache/apt", "var/lib/apt/lists"] {
            empty(&root.join(folder))?;
        }
        Ok(fs::remove_file(root.join("var/log/bootstrap.log"))?)
    })
}

/// The required packages of another architecture, unpacked and not configured: its programs cannot run here.
pub(crate) fn foreign(workspace: &Workspace, arch: Arch) -> Result<PathBuf> {
    let name = arch.debian();
    make(workspace, name, &format!("{SUITE} {name}\n"), |root| {
        let arch = format!("--arch={name}");
        debootstrap(root, &["--variant=minbase", "--foreign", &arch])
    })
}

/// Makes a root, unless it was made with these inputs.
fn make(
    workspace: &Workspace,
    name: &str,
    inputs: &str,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let folder = workspace.work().join("roots");
    let root = folder.join(name);
    let stamp = Stamp::new(folder.join(format!("{name}.stamp")), inputs.to_owned());
    if stamp.holds() && root.is_dir() {
        return Ok(root);
    }
    heading(&format!("a root file system of Debian ({name})"));
    ensure!(
        docker::program("debootstrap").is_some(),
        "debootstrap is missing: run `apt-get install debootstrap`"
    );
    ensure!(
        is_root()?,
        "debootstrap needs root, to make a root file system: run this as root"
    );
    stamp.remove()?;
    if root.exists() {
        // An interrupted debootstrap leaves this one mounted.
        Cmd::new("umount").arg(root.join("proc")).succeeds();
        fs::remove_dir_all(&root).with_context(|| format!("cannot remove {}", root.display()))?;
    }
    fs::create_dir_all(&root)?;
    fill(&root)?;
    stamp.write()?;
    Ok(root)
}

/// Runs debootstrap with the mirror that this system uses, otherwise with its default.
fn debootstrap(root: &Path, options: &[&str]) -> Result<()> {
    let program = docker::program("debootstrap").context("debootstrap is missing")?;
    let cmd = Cmd::new(program).args(options).arg(SUITE).arg(root);
    let made = cmd.args(mirror()).run_for_effect();
    let log = root.join("debootstrap/debootstrap.log");
    match (made, fs::read_to_string(log)) {
        (Err(error), Ok(log)) => {
            let last: Vec<&str> = log.lines().rev().take(5).collect();
            bail!(
                "{error:#}: {}",
                last.into_iter().rev().collect::<Vec<_>>().join("\n")
            )
        }
        (made, _) => made,
    }
}

/// The first mirror in apt's configuration, if this is Debian.
fn mirror() -> Option<String> {
    let sources = fs::read_to_string("/etc/apt/sources.list.d/debian.sources").ok()?;
    let uris = sources
        .lines()
        .find_map(|line| line.strip_prefix("URIs:"))?;
    Some(uris.split_whitespace().next()?.to_owned())
}

/// Installs npm. Its package contains its dependencies.
fn npm(root: &Path) -> Result<()> {
    let modules = root.join("usr/lib/node_modules");
    let npm = modules.join("npm");
    fs::create_dir_all(&npm)?;
    let pack = ["pack", "--silent", "--pack-destination"];
    Cmd::new("npm")
        .args(pack)
        .arg(&modules)
        .arg(format!("npm@{NPM}"))
        .run_for_effect()?;
    let file = modules.join(format!("npm-{NPM}.tgz"));
    let unpack = Cmd::new("tar").args([
        "--extract",
        "--no-same-owner",
        "--strip-components=1",
        "--file",
    ]);
    unpack.arg(&file).arg("-C").arg(&npm).run()?;
    fs::remove_file(file)?;
    for name in ["npm", "npx"] {
        let script = format!("node_modules/npm/bin/{name}-cli.js");
        let file = root.join("usr/lib").join(&script);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("npm has no {}", file.display()))?;
        symlink(format!("../lib/{script}"), root.join("usr/bin").join(name))?;
    }
    Ok(())
}

/// Removes everything in a folder.
fn empty(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}
