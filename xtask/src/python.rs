//! The Python environment in `.work/venv`.
//!
//! Only pip accesses the registry, with this machine's settings.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::{
    shell::{Cmd, is_executable},
    workspace::{Stamp, Workspace},
};

pub(crate) const REQUIREMENTS: &str = include_str!("../deps/requirements.txt");
pub(crate) const CONSTRAINTS: &str = include_str!("../deps/constraints.txt");

/// A Python that can create environments. Debian's Python can create them only if `python3-venv` is installed. The
/// first Python on the `PATH` may be another installation.
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
    let uv = pinned("uv").context("xtask/deps/requirements.txt does not pin uv")?;
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
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

/// Part of the set-up: installs the fetch server in `.work`, for the tests.
///
/// # Errors
///
/// If it cannot be installed.
pub(crate) fn install_for_tests(workspace: &Workspace) -> Result<()> {
    // The canonical path is used, since the installed files contain the path: `.work` may be a link, and the target of
    // the link may outlive the link.
    let work = workspace.work().canonicalize()?;
    let (bin, tools) = (work.join("venv/bin"), work.join("tools"));
    install_fetch(&bin.join("uvx"), &tools, Some(&bin.join("python")))?;
    for environment in [work.join("venv"), tools.join("mcp-server-fetch")] {
        give_readability(&environment, &work.join("node_modules"))?;
    }
    Ok(())
}

/// Links the npm packages that the fetch server extracts articles with. Without the link, its library `readabilipy` runs
/// `npm install` at the first page of every process, and a test waits for the registry.
fn give_readability(environment: &Path, node_modules: &Path) -> Result<()> {
    let lib = environment.join("lib");
    for python in fs::read_dir(&lib).with_context(|| format!("no {}", lib.display()))? {
        let scripts = python?.path().join("site-packages/readabilipy/javascript");
        let link = scripts.join("node_modules");
        if scripts.exists() && !link.exists() {
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(node_modules, &link)
                .with_context(|| format!("cannot create {}", link.display()))?;
        }
    }
    Ok(())
}

/// Installs the fetch server where `mcp.json` makes `uvx` look for it. It then starts without accessing a registry, for
/// which it would need this environment's proxies and certificates.
pub(crate) fn install_fetch(uvx: &Path, tools: &Path, python: Option<&Path>) -> Result<()> {
    let package = pinned("mcp-server-fetch").context("mcp-server-fetch is not pinned")?;
    // Records the installed version.
    let stamp = Stamp::new(tools.join("installed"), package.to_owned());
    if is_executable(&tools.join("mcp-server-fetch/bin/mcp-server-fetch")) && stamp.holds() {
        return Ok(());
    }
    let uv = folder(uvx).join("uv");
    let mut install = Cmd::new(uv).shown_as("uv");
    install = install.args(["tool", "install", "--quiet", "--force", package]);
    if let Some(python) = python {
        install = install.arg("--python").arg(python);
    }
    install
        .env("UV_PYTHON_DOWNLOADS", "never")
        .env("UV_TOOL_DIR", tools)
        .env("UV_TOOL_BIN_DIR", tools.join("bin"))
        .run()?;
    stamp.write()
}

pub(crate) fn folder(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new("/"))
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
