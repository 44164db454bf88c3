//! `cargo xtask web`: builds the console (`web/`) into `web/dist`, which is committed, so that `cargo build` does not
//! need Node.
//!
//! The build is reproducible: versions are pinned in `package-lock.json`, and Node.js is the version pinned in
//! `xtask/deps`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};

use crate::{
    shell::{Cmd, heading},
    workspace::{Stamp, Workspace, files},
};

/// Builds `web/dist`.
pub(crate) fn build(workspace: &Workspace) -> Result<()> {
    install(workspace)?;
    heading("console");
    built(workspace, &folder(workspace).join("dist"))
}

/// Builds the console in `target/console` and compares it with `web/dist`.
///
/// # Errors
///
/// If `web/dist` does not match its sources.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    install(workspace)?;
    heading("console: web/dist matches web/");
    let fresh = workspace.target()?.join("console");
    built(workspace, &fresh)?;
    let (committed, fresh) = (
        contents(&folder(workspace).join("dist"))?,
        contents(&fresh)?,
    );
    let mut different: Vec<&PathBuf> = committed
        .iter()
        .filter(|(path, bytes)| fresh.get(*path) != Some(bytes))
        .map(|(path, _)| path)
        .collect();
    different.extend(fresh.keys().filter(|path| !committed.contains_key(*path)));
    ensure!(
        different.is_empty(),
        "web/dist does not match web/: run `cargo xtask web`. Different files: {different:?}"
    );
    Ok(())
}

/// Installs the packages for building and testing the console, unless they are present.
pub(crate) fn install(workspace: &Workspace) -> Result<()> {
    let web = folder(workspace);
    let wanted = fs::read_to_string(web.join("package-lock.json"))?;
    let stamp = Stamp::new(web.join("node_modules/.installed"), wanted);
    if stamp.holds() {
        return Ok(());
    }
    heading("installing the console's packages from npm");
    npm_ci(&web)?;
    stamp.write()
}

/// Installs the packages of a lock file.
pub(crate) fn npm_ci(folder: &Path) -> Result<()> {
    let ci = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"];
    let ci = Cmd::new("npm").args(ci).arg("--loglevel=error");
    ci.dir(folder).run()
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.root().join("web")
}

fn built(workspace: &Workspace, out: &Path) -> Result<()> {
    let web = folder(workspace);
    let run = |script: &str, args: &[&str]| {
        let script = web.join("node_modules").join(script);
        ensure!(script.exists(), "{} is missing", script.display());
        Cmd::new(workspace.node_modules().join("node/bin/node"))
            .shown_as("node")
            .arg(script)
            .args(args)
            .dir(&web)
            .run()
    };
    run(
        "openapi-typescript/bin/cli.js",
        &["../docs/openapi.json", "-o", "src/api/schema.ts"],
    )?;
    run("typescript/bin/tsc", &["--noEmit"])?;
    let out = out.display().to_string();
    run(
        "vite/bin/vite.js",
        &[
            "build",
            "--emptyOutDir",
            "--logLevel=warn",
            "--outDir",
            &out,
        ],
    )
}

/// The contents of all files below a folder, by relative path.
fn contents(folder: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let content = |path: PathBuf| Ok((path.strip_prefix(folder)?.to_owned(), fs::read(&path)?));
    files(folder)?.into_iter().map(content).collect()
}
