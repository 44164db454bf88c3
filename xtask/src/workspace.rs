//! Locations of files and folders.
//!
//! Everything that `setup` installs is in `.work` in the checkout. Delete that folder to undo it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::shell::Cmd;

/// Used for all builds, so that nothing is built twice. Lints also run without it.
pub(crate) const FEATURES: &str = "--features=toolwharf/kubernetes";

/// The checkout that this binary was built from.
#[derive(Clone, Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// # Errors
    ///
    /// If the checkout has been moved since this binary was built.
    pub(crate) fn locate() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let root = root
            .canonicalize()
            .with_context(|| format!("{} is gone: build xtask again", root.display()))?;
        Ok(Self { root })
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

    /// The cargo that started this binary.
    pub(crate) fn cargo(&self, args: &[&str]) -> Cmd {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        Cmd::new(cargo).shown_as("cargo").args(args).dir(&self.root)
    }
}
