//! The Python environment in `.work/venv`.
//!
//! Only pip accesses the registry, with this machine's settings.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::{shell::Cmd, workspace::Workspace};

pub(crate) const REQUIREMENTS: &str = include_str!("../deps/requirements.txt");
pub(crate) const CONSTRAINTS: &str = include_str!("../deps/constraints.txt");

/// A Python that can create environments. Debian's cannot unless `python3-venv` is installed, and the first one on the
/// `PATH` may be another one.
pub(crate) fn find() -> Option<PathBuf> {
    const PROBE: &str = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))";
    ["python3", "/usr/bin/python3", "/usr/local/bin/python3"]
        .into_iter()
        .find(|python| Cmd::new(python).args(["-c", PROBE]).succeeds())
        .map(PathBuf::from)
}

/// Recreates the environment and installs the servers used by tests.
pub(crate) fn install_servers(workspace: &Workspace, python: &Path) -> Result<()> {
    let requirements = write(workspace, "requirements.txt", REQUIREMENTS)?;
    make(workspace, python)?;
    pip(workspace)?.arg("-r").arg(requirements).run()
}

/// Recreates the environment and installs only `uv`, which is enough for the demo.
pub(crate) fn install_uv(workspace: &Workspace, python: &Path) -> Result<()> {
    let uv = pinned("uv").context("deps/requirements.txt does not pin uv")?;
    make(workspace, python)?;
    pip(workspace)?.arg(uv).run()
}

/// The line of `requirements.txt` for a package: `name==version`.
pub(crate) fn pinned(package: &str) -> Option<&'static str> {
    REQUIREMENTS.lines().find(|line| {
        line.split_once("==")
            .is_some_and(|(name, _)| name == package)
    })
}

fn make(workspace: &Workspace, python: &Path) -> Result<()> {
    Cmd::new(python)
        .args(["-m", "venv", "--clear"])
        .arg(workspace.venv())
        .run()
}

fn pip(workspace: &Workspace) -> Result<Cmd> {
    let constraints = write(workspace, "constraints.txt", CONSTRAINTS)?;
    let install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ];
    let pip = Cmd::new(workspace.venv().join("bin/python")).args(install);
    Ok(pip.args(["--no-input", "--constraint"]).arg(constraints))
}

fn write(workspace: &Workspace, name: &str, text: &str) -> Result<PathBuf> {
    let file = workspace.work().join(name);
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_requirement_is_pinned_once_and_the_same_in_both_files() {
        let pins = REQUIREMENTS.lines().filter(|line| !line.starts_with('#'));
        for pin in pins {
            let (name, _) = pin.split_once("==").expect("name==version");
            assert_eq!(pinned(name), Some(pin));
            assert!(CONSTRAINTS.lines().any(|line| line == pin), "{pin}");
        }
    }
}
