//! Builds the previous version from its commit. During a rolling upgrade, gateways of both versions run on one
//! database, and the tests of that need its binary.
//!
//! The sources are extracted from git into `target/before`. Dependencies that are the same in both versions are built
//! once.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    shell::{Cmd, heading},
    workspace::Workspace,
};

/// Tells tests where the binary is.
pub(crate) const VARIABLE: &str = "TOOLWHARF_TEST_BEFORE";

/// The last commit of the previous version. Update it with each release.
const COMMIT: &str = "de2fd6d450eb6998e62c698cc2e147254782f97c";

/// Builds the binary unless it exists, and returns its path.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf> {
    let target = workspace.target()?;
    let place = target.join("before");
    let (sources, stamp) = (place.join("sources"), place.join("commit"));
    let binary = place.join("target/debug/toolwharf");
    if fs::read_to_string(&stamp).is_ok_and(|built| built == COMMIT) && binary.exists() {
        return Ok(binary);
    }
    heading("the previous version");
    let _ = fs::remove_dir_all(&sources);
    fs::create_dir_all(&sources)?;
    unpack(workspace, &sources)?;
    // Builds in the whole workspace, so that dependencies have the same features as here and are not built again.
    workspace
        .cargo(&[
            "build",
            "--workspace",
            crate::workspace::FEATURES,
            "--bin=toolwharf",
            "--locked",
        ])
        .dir(&sources)
        .env("CARGO_TARGET_DIR", place.join("target"))
        .env("CARGO_BUILD_BUILD_DIR", &target)
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("CARGO_INCREMENTAL", "0")
        .run()?;
    fs::write(&stamp, COMMIT)?;
    Ok(binary)
}

/// Extracts the files of the commit into a folder.
fn unpack(workspace: &Workspace, to: &Path) -> Result<()> {
    let mut archive = Command::new("git")
        .args(["archive", COMMIT])
        .current_dir(workspace.root())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run git: install it with `apt-get install git`")?;
    let files = archive.stdout.take().context("git has no output")?;
    let unpacked = Command::new("tar")
        .arg("-x")
        .current_dir(to)
        .stdin(files)
        .status()
        .context("cannot run tar")?;
    if !archive.wait()?.success() {
        bail!(
            "commit {COMMIT} (the previous version) is missing from this clone: run `git fetch --unshallow`"
        );
    }
    ensure!(unpacked.success(), "tar ended with {unpacked}");
    Ok(())
}

/// Runs a command with the path of the binary in its environment.
pub(crate) fn run(workspace: &Workspace, cmd: Cmd) -> Result<()> {
    let binary = build(workspace)?;
    cmd.env(VARIABLE, binary).become_it()
}
