//! Builds the previous version from its commit. During a rolling upgrade, gateways of both versions run on one
//! database. The tests for this need the binary of the previous version.
//!
//! The sources are extracted from git into `target/before`. Dependencies that are the same in both versions are built
//! once.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    shell::{Cmd, heading},
    workspace::{COMPILER, FEATURES, SMALL_TEST, Stamp, Workspace},
};

/// The environment variable with the path of the binary, for tests.
pub(crate) const VARIABLE: &str = "TOOLWHARF_TEST_BEFORE";

/// The last commit of the previous version. Update it with each release. Older versions report a call as cut if they
/// learn of a replica's departure before its answer arrives, so an upgrade from them can cut calls.
const COMMIT: &str = "1360140b0b26a9b30916c2508b5c3133e4f1d52c";

/// Cargo's settings of this version. Dependencies are built once only if their profile is the same.
const CONFIG: &str = ".cargo/config.toml";

/// Builds the binary unless it exists, and returns its path.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf> {
    let target = workspace.target()?;
    let place = target.join("before");
    let sources = place.join("sources");
    let stamp = Stamp::new(place.join("commit"), COMMIT.to_owned());
    let binary = place.join("target/debug/toolwharf");
    if stamp.holds() && binary.exists() {
        return Ok(binary);
    }
    heading("the previous version");
    let _ = fs::remove_dir_all(&sources);
    fs::create_dir_all(&sources)?;
    unpack(workspace, &sources)?;
    // Selects the whole workspace, so that dependencies have the same features as in this version and are not built
    // again. The code of the previous version is not linted.
    workspace
        .cargo(&["build", "--workspace", FEATURES, "--locked"])
        .args(["--bin=toolwharf", SMALL_TEST])
        .arg("--config")
        .arg(workspace.root().join(CONFIG))
        .dir(&sources)
        .env(COMPILER, "")
        .env("CARGO_TARGET_DIR", place.join("target"))
        .env("CARGO_BUILD_BUILD_DIR", &target)
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("CARGO_INCREMENTAL", "0")
        .run()?;
    stamp.write()?;
    Ok(binary)
}

/// Extracts the files of the commit into a folder.
fn unpack(workspace: &Workspace, to: &Path) -> Result<()> {
    let archive = Cmd::new("git").args(["archive", COMMIT]);
    let unpack = Cmd::new("tar").arg("-x").dir(to);
    archive.dir(workspace.root()).pipe_into(unpack).context(
        "the commit of the previous version cannot be extracted; if this clone lacks it, run `git fetch --unshallow`",
    )
}

/// Runs a command with the path of the binary in its environment.
pub(crate) fn run(workspace: &Workspace, cmd: Cmd) -> Result<()> {
    let binary = build(workspace)?;
    cmd.env(VARIABLE, binary).become_it()
}
