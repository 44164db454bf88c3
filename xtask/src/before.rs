//! The version before this one, built from its commit: gateways of both run on one database while they are upgraded one after the
//! other, and the tests of that need its binary.
//!
//! Its sources are taken out of git into `target/before`. What both versions need of other crates is built once where it is the same.

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

/// Where tests find its binary.
pub(crate) const VARIABLE: &str = "TOOLWHARF_TEST_BEFORE";

/// The last commit of the version before. A release moves it.
const COMMIT: &str = "de2fd6d450eb6998e62c698cc2e147254782f97c";

/// Builds it, unless it is there; its binary.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf> {
    let target = workspace.target()?;
    let place = target.join("before");
    let (sources, stamp) = (place.join("sources"), place.join("commit"));
    let binary = place.join("target/debug/toolwharf");
    if fs::read_to_string(&stamp).is_ok_and(|built| built == COMMIT) && binary.exists() {
        return Ok(binary);
    }
    heading("the version before");
    let _ = fs::remove_dir_all(&sources);
    fs::create_dir_all(&sources)?;
    unpack(workspace, &sources)?;
    // Of the whole workspace, so that other crates have the features that they have here, and are not built again.
    workspace
        .cargo(&[
            "build",
            "--workspace",
            crate::checks::FEATURES,
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

/// Writes the files of the commit into a folder.
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
            "this clone has no commit {COMMIT}, the version before this one: `git fetch --unshallow` gets it"
        );
    }
    ensure!(unpacked.success(), "tar ended with {unpacked}");
    Ok(())
}

/// Runs a command with the binary.
pub(crate) fn run(workspace: &Workspace, cmd: Cmd) -> Result<()> {
    let binary = build(workspace)?;
    cmd.env(VARIABLE, binary).become_it()
}
