//! Packages for npm and PyPI. They contain the program, so nothing is downloaded or run when they are installed.
//!
//! npm has a package for each platform. The package `toolwharf` lists all of them as optional dependencies, of which npm
//! installs the one that fits, and starts the program in it. PyPI has a wheel for each platform.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Arch, Release, build, build::Built, copy, link, write};
use crate::{python, shell::Cmd};

const LAUNCHER: &str = include_str!("../../../deploy/packages/npm/toolwharf.js");
const WHEEL: &str = include_str!("wheel.py");
const DESCRIPTION: &str = "One endpoint for many MCP servers";
/// The oldest Node.js that the launcher is written for.
const NODE: &str = ">=18";

/// The npm package with the program for a platform.
fn of_platform(arch: Arch) -> String {
    format!("@toolwharf/linux-{}", arch.node())
}

/// The npm package that people install.
pub(super) fn main_package(release: &Release) -> Result<()> {
    let folder = release.work.join("npm-main");
    let version = &release.version;
    let platforms = Arch::ALL.map(|arch| (of_platform(arch), json!(version)));
    let mut about = about(release, "toolwharf");
    about["bin"] = json!({ "toolwharf": "toolwharf.js" });
    about["engines"] = json!({ "node": NODE });
    about["optionalDependencies"] = Value::Object(platforms.into_iter().collect());
    write(&folder.join("package/toolwharf.js"), LAUNCHER, 0o755)?;
    package(
        release,
        "npm-main",
        &about,
        &format!("toolwharf-{version}.tgz"),
    )
}

/// The npm package with the program for one platform.
pub(super) fn platform_package(release: &Release, built: &Built) -> Result<()> {
    let (arch, version) = (built.arch, &release.version);
    let folder = format!("npm-{}", arch.node());
    let mut about = about(release, &of_platform(arch));
    about["os"] = json!(["linux"]);
    about["cpu"] = json!([arch.node()]);
    about["libc"] = json!(["glibc"]);
    about["preferUnplugged"] = json!(true);
    let program = release.work.join(&folder).join("package/bin/toolwharf");
    link(&built.program, &program)?;
    let file = format!("toolwharf-linux-{}-{version}.tgz", arch.node());
    package(release, &folder, &about, &file)
}

/// What `package.json` contains in both kinds of packages.
fn about(release: &Release, name: &str) -> Value {
    json!({
        "name": name,
        "version": release.version,
        "description": DESCRIPTION,
        "keywords": ["mcp", "model-context-protocol", "gateway"],
        "license": "Apache-2.0",
    })
}

/// Packs a package, as `npm pack` does: all files are in the folder `package`.
fn package(release: &Release, folder: &str, about: &Value, file: &str) -> Result<()> {
    let folder = release.work.join(folder);
    let package = folder.join("package");
    let root = release.workspace.root();
    let text = serde_json::to_string_pretty(about)? + "\n";
    write(&package.join("package.json"), text, 0o644)?;
    copy(&root.join("LICENSE"), &package.join("LICENSE"), 0o644)?;
    copy(
        &root.join("deploy/packages/README.md"),
        &package.join("README.md"),
        0o644,
    )?;
    release.pack(&folder, &release.out.join(file), false)
}

/// The package for PyPI.
pub(super) fn wheel(release: &Release, built: &Built) -> Result<()> {
    let python = python::find().context("python3 is missing: run `cargo xtask setup`")?;
    let (major, minor) = build::GLIBC;
    let tag = format!("manylinux_{major}_{minor}_{}", built.arch.name());
    let root = release.workspace.root();
    let script = release.work.join("wheel.py");
    write(&script, WHEEL, 0o644)?;
    Cmd::new(python)
        .arg(script)
        .arg(&release.out)
        .args([&release.version, &tag])
        .args([
            &built.program,
            &root.join("deploy/packages/README.md"),
            &root.join("LICENSE"),
        ])
        .args([release.epoch.as_str(), release.level()])
        .run()
}
