//! A home directory for the command line, and commands in it.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use testkit::Bin;
use tokio::process::Command;

use crate::common::{
    Gateway,
    cli::{self, Said},
};

/// A user with a separate home directory.
pub(super) struct Home {
    pub(super) dir: TempDir,
}

impl Home {
    pub(super) fn new() -> Self {
        Self {
            dir: TempDir::new().expect("a folder"),
        }
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    /// The server file that is used by default.
    pub(super) fn servers(&self) -> PathBuf {
        self.path(".config/toolwharf/mcp.json")
    }

    pub(super) fn write(&self, file: &str, text: &str) -> PathBuf {
        let path = self.path(file);
        std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a folder");
        std::fs::write(&path, text).expect("a file");
        path
    }

    pub(super) async fn run(&self, arguments: &[&str]) -> Said {
        run(self.dir.path(), arguments, "").await
    }
}

pub(super) fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = cli::toolwharf();
    command.args(arguments).env("HOME", home).current_dir(home);
    command
}

pub(super) async fn run(home: &Path, arguments: &[&str], input: &str) -> Said {
    cli::said(command(home, arguments), input).await
}

/// Runs a command against this gateway.
pub(super) async fn on(gateway: &Gateway, arguments: &[&str]) -> Said {
    run(gateway.folder(), &at(gateway, arguments), "").await
}

pub(super) fn at<'a>(gateway: &Gateway, arguments: &[&'a str]) -> Vec<&'a str> {
    assert!(gateway.folder().join("data/serve.json").exists());
    let (verb, rest) = arguments.split_first().expect("a verb");
    // For nested commands such as `tools ls`, options follow the second word, but must precede the arguments of a
    // server's command.
    let mut all = vec![*verb];
    let nested = usize::from(*verb == "tools");
    all.extend(&rest[..nested]);
    all.extend(["--data-dir", "data"]);
    all.extend(&rest[nested..]);
    all
}

pub(super) fn scripted() -> String {
    Bin::path("testkit-scripted").display().to_string()
}

pub(super) fn read(file: &Path) -> String {
    std::fs::read_to_string(file).expect("a file")
}
