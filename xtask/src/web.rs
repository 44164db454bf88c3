//! `cargo xtask web`: builds the console (`web/`) into `web/dist`, which is committed, so that `cargo build` does not
//! need Node.
//!
//! The build is reproducible: versions are pinned in `package-lock.json`, and Node is the one of `xtask/deps`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use crate::{
    shell::{Cmd, heading},
    workspace::Workspace,
};

/// Builds `web/dist`.
pub(crate) fn build(workspace: &Workspace) -> Result<()> {
    install(workspace)?;
    heading("console");
    built(workspace, &folder(workspace).join("dist"))
}

/// Builds the console elsewhere and compares the results.
///
/// # Errors
///
/// If `web/dist` does not match its sources.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    install(workspace)?;
    heading("console: web/dist matches web/");
    let fresh = workspace.target()?.join("console");
    built(workspace, &fresh)?;
    let (committed, fresh) = (files(&folder(workspace).join("dist"))?, files(&fresh)?);
    let mut different: Vec<&String> = committed
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
    let stamp = web.join("node_modules/.installed");
    let wanted = fs::read_to_string(web.join("package-lock.json"))?;
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    heading("installing the console's packages from npm");
    let quiet = ["--no-audit", "--no-fund", "--loglevel=error"];
    Cmd::new("npm")
        .args(["ci", "--ignore-scripts"])
        .args(quiet)
        .dir(&web)
        .run()?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))
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

/// All files below a folder, by relative path.
fn files(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        let entries =
            fs::read_dir(&next).with_context(|| format!("cannot read {}", next.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder)?.display().to_string();
            found.insert(name, fs::read(&path)?);
        }
    }
    Ok(found)
}
