//! Locations of files and folders.
//!
//! Everything that `setup` installs is in `.work` in the checkout. Delete that folder to undo it.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::shell::Cmd;

/// The folder of this user for files that are made once and used by all checkouts.
pub(crate) fn caches() -> Result<PathBuf> {
    let given = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let folder = given.or_else(home).context("HOME is not set")?;
    Ok(folder.join("toolwharf"))
}

/// The features of all builds. They are the same everywhere, so that nothing is built twice. Lints also run without
/// them.
pub(crate) const FEATURES: &str = "--features=toolwharf/kubernetes";

/// A small test that is built along with every single binary. A build with tests enables more features of dependencies
/// than a build of the binary alone. If this test were left out, those dependencies would be built a second time.
pub(crate) const SMALL_TEST: &str = "--test=naming";

/// The environment variable with the program that cargo uses to compile crates of the workspace. Empty: the usual
/// compiler.
pub(crate) const COMPILER: &str = "RUSTC_WORKSPACE_WRAPPER";

/// The checkout that this binary was built from.
#[derive(Clone, Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
    linting: bool,
}

impl Workspace {
    /// # Errors
    ///
    /// If the checkout has been moved since this binary was built.
    pub(crate) fn locate() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let root = root
            .canonicalize()
            .with_context(|| format!("{} was moved: build xtask again", root.display()))?;
        Ok(Self {
            root,
            linting: false,
        })
    }

    /// The same checkout, but its crates are built by Clippy, with warnings as errors. `cargo clippy` would compile
    /// every dependency a second time, since it generates no code.
    pub(crate) fn linting(&self) -> Self {
        Self {
            linting: true,
            ..self.clone()
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The folder for everything that is installed or written here.
    pub(crate) fn work(&self) -> PathBuf {
        self.root.join(".work")
    }

    /// npm packages. Tests find them through `TOOLWHARF_NODE_MODULES`.
    pub(crate) fn node_modules(&self) -> PathBuf {
        self.work().join("node_modules")
    }

    /// A Python environment. Tests find it through `TOOLWHARF_VENV`.
    pub(crate) fn venv(&self) -> PathBuf {
        self.work().join("venv")
    }

    /// The directory of built binaries, as reported by cargo, since `CARGO_TARGET_DIR` or a configuration file may have
    /// moved it.
    pub(crate) fn target(&self) -> Result<PathBuf> {
        let metadata = self.metadata(&["--no-deps"])?;
        let target = metadata["target_directory"].as_str();
        Ok(target
            .context("cargo metadata names no target directory")?
            .into())
    }

    /// The output of `cargo metadata` with these arguments.
    pub(crate) fn metadata(&self, args: &[&str]) -> Result<serde_json::Value> {
        let json = self
            .cargo(&["metadata", "--format-version=1"])
            .args(args)
            .output()?;
        serde_json::from_str(&json).context("cargo metadata printed no JSON")
    }

    /// Returns whether files differ from the commit.
    pub(crate) fn has_changes(&self) -> Result<bool> {
        let status = Cmd::new("git").args(["status", "--porcelain"]);
        Ok(!status.dir(&self.root).output()?.trim().is_empty())
    }

    /// The cargo that started this binary.
    pub(crate) fn cargo(&self, args: &[&str]) -> Cmd {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let cmd = Cmd::new(cargo).shown_as("cargo").args(args).dir(&self.root);
        if !self.linting {
            return cmd;
        }
        // The variables that `cargo clippy` sets. `__CLIPPY_HACKERY__` ends each argument.
        cmd.env(COMPILER, "clippy-driver")
            .env("CLIPPY_ARGS", "--deny=warnings__CLIPPY_HACKERY__")
    }

    /// Builds the binaries of these packages, shows the progress, and returns their folder. The development
    /// build has no debug information and no files for incremental builds: it takes less time and disk space.
    pub(crate) fn build_to_run(&self, packages: &[&str], release: bool) -> Result<PathBuf> {
        eprintln!(
            "    The first build takes 5 to 15 minutes, on a slow machine up to half an hour. Later builds take seconds.\n    \
             cargo shows its progress:"
        );
        let mut build = self.cargo(&["build", "--bins"]);
        for package in packages {
            build = build.arg(format!("--package={package}"));
        }
        build = match release {
            true => build.arg("--release"),
            false => build
                .env("CARGO_PROFILE_DEV_DEBUG", "none")
                .env("CARGO_INCREMENTAL", "0"),
        };
        build.run()?;
        let profile = if release { "release" } else { "debug" };
        Ok(self.target()?.join(profile))
    }

    /// Builds `testkit-scripted`, unless it has been built.
    pub(crate) fn build_scripted(&self) -> Result<()> {
        let build = ["build", "--quiet", "--workspace", FEATURES];
        self.cargo(&build)
            .args(["--bin=testkit-scripted", SMALL_TEST])
            .run()
    }
}

/// Records the inputs of an installed part as text, so that any change is noticed.
pub(crate) struct Stamp {
    file: PathBuf,
    text: String,
}

impl Stamp {
    pub(crate) fn new(file: PathBuf, text: String) -> Self {
        Self { file, text }
    }

    pub(crate) fn holds(&self) -> bool {
        fs::read_to_string(&self.file).is_ok_and(|text| text == self.text)
    }

    pub(crate) fn write(&self) -> Result<()> {
        fs::write(&self.file, &self.text)
            .with_context(|| format!("cannot write {}", self.file.display()))
    }

    pub(crate) fn remove(&self) -> Result<()> {
        match fs::remove_file(&self.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.file.display()))
            }
            _ => Ok(()),
        }
    }
}

/// All files below a folder, sorted.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        let entries = fs::read_dir(&next);
        for entry in entries.with_context(|| format!("cannot read {}", next.display()))? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => folders.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// xtask cannot print anything while it is being built, so cargo has to.
    #[test]
    fn the_alias_shows_progress() {
        let config = include_str!("../../.cargo/config.toml");
        let alias = config.lines().find(|line| line.starts_with("xtask = "));
        let alias = alias.expect("an alias");
        assert!(alias.contains("run --package xtask"), "{alias}");
        assert!(
            !alias.contains("quiet") && !alias.contains(" -q"),
            "{alias}"
        );
    }

    #[test]
    fn folders_are_searched_to_the_bottom() {
        let folder = tempfile::tempdir().expect("a folder");
        let deep = folder.path().join("a/b");
        fs::create_dir_all(&deep).expect("folders");
        let all = ["a/b/z.rs", "a/y.txt", "x.rs"].map(|file| folder.path().join(file));
        for file in &all {
            fs::write(file, "").expect("a file");
        }
        assert_eq!(files(folder.path()).expect("a folder"), all);
    }
}
