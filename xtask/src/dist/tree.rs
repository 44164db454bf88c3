//! The files of an installation, as `.deb` and `.rpm` contain them, and the archive for all other systems.

use std::{
    fs::File,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};

use super::{Release, build::Built, copy, link, model, write};
use crate::workspace::files;

/// Shells with completion scripts, and where distributions keep them, below `/usr/share`.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/toolwharf"),
    ("zsh", "zsh/vendor-completions/_toolwharf"),
    ("fish", "fish/vendor_completions.d/toolwharf.fish"),
];
/// Defaults of the configuration: name and content.
const CONFIGURATION: [(&str, &str); 2] = [
    (
        "mcp.json",
        include_str!("../../../deploy/packages/etc/mcp.json"),
    ),
    (
        "toolwharf.toml",
        include_str!("../../../deploy/packages/etc/toolwharf.toml"),
    ),
];
const UNITS: [&str; 2] = ["toolwharf.service", "toolwharf.socket"];

/// Puts all files into a folder, at the paths where they are installed.
pub(super) fn stage(release: &Release, built: &Built) -> Result<PathBuf> {
    let root = release.workspace.root();
    let tree = release.work.join(format!("tree-{}", built.arch.name()));
    let at = |path: &str| tree.join(path);
    link(&built.program, &at("usr/bin/toolwharf"))?;
    for name in UNITS {
        let unit = root.join("deploy/systemd").join(name);
        copy(&unit, &at("usr/lib/systemd/system").join(name), 0o644)?;
    }
    for (name, content) in CONFIGURATION {
        write(&at("etc/toolwharf").join(name), content, 0o644)?;
    }
    for (shell, path) in SHELLS {
        let script = built
            .cmd(&release.workspace)?
            .args(["completions", shell])
            .output()?;
        write(&at("usr/share").join(path), script, 0o644)?;
    }
    let manual = at("usr/share/man/man1");
    built
        .cmd(&release.workspace)?
        .arg("man")
        .arg(&manual)
        .run()?;
    for page in files(&manual)? {
        release.gzip(&page)?;
    }
    let doc = at("usr/share/doc/toolwharf");
    copy(&root.join("LICENSE"), &doc.join("copyright"), 0o644)?;
    copy(&root.join("CHANGELOG.md"), &doc.join("changelog"), 0o644)?;
    release.gzip(&doc.join("changelog"))?;
    model::add(&release.workspace, &tree)?;
    give_time(release, &tree)?;
    Ok(tree)
}

/// Packs the program with its license, manual pages, completion scripts and units.
pub(super) fn archive(release: &Release, built: &Built, tree: &Path) -> Result<()> {
    let name = format!("toolwharf-{}-{}-linux", release.version, built.arch.name());
    let folder = release.work.join(format!("archive-{}", built.arch.name()));
    let top = folder.join(&name);
    link(&built.program, &top.join("toolwharf"))?;
    copy(
        &release.workspace.root().join("LICENSE"),
        &top.join("LICENSE"),
        0o644,
    )?;
    copy(
        &release.workspace.root().join("deploy/packages/README.md"),
        &top.join("README.md"),
        0o644,
    )?;
    for (shell, path) in SHELLS {
        let script = tree.join("usr/share").join(path);
        copy(&script, &top.join("completions").join(shell), 0o644)?;
    }
    for (from, to) in [
        ("usr/share/man/man1", "man"),
        ("usr/lib/systemd/system", "systemd"),
    ] {
        for file in files(&tree.join(from))? {
            let name = file.file_name().context("a file has a name")?;
            copy(&file, &top.join(to).join(name), 0o644)?;
        }
    }
    release.pack(&folder, &release.out.join(format!("{name}.tar.gz")), false)
}

/// Sets the time of all files in a folder to that of the commit.
pub(super) fn give_time(release: &Release, folder: &Path) -> Result<()> {
    let seconds = release.epoch.parse::<u64>().context("git prints seconds")?;
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    for file in files(folder)? {
        for path in file.ancestors().take_while(|path| path.starts_with(folder)) {
            let opened = File::open(path).and_then(|file| file.set_modified(time));
            opened.with_context(|| format!("cannot set the time of {}", path.display()))?;
        }
    }
    Ok(())
}
