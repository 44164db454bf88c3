//! The module through its public interface: files in a folder, `Config::load`, `edit`.

mod auth;
mod clients;
mod confined;
mod edits;
mod entries;
mod errors;
mod logins;
mod robust;
mod shapes;
mod toml;

use std::path::{Path, PathBuf};

use super::{Config, ConfigError, Sources};

/// A temporary folder with files.
pub(super) struct Folder(tempfile::TempDir);

impl Folder {
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        for (name, text) in files {
            let path = folder.path(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }

    pub(super) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub(super) fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub(super) fn load(&self, names: &[&str]) -> Result<Config, ConfigError> {
        let named: Vec<_> = names.iter().map(|name| self.path(name)).collect();
        let sources = Sources::locate(&named, &env).unwrap();
        Config::load(&sources, &env)
    }

    /// Removes this folder's path from the text.
    pub(super) fn redact(&self, text: &impl ToString) -> String {
        let root = format!("{}/", self.root().display());
        text.to_string().replace(&root, "")
    }
}

pub(super) fn env(name: &str) -> Option<String> {
    let value = match name {
        "TOKEN" => "hunter2",
        "HOME" => "/home/me",
        _ => return None,
    };
    Some(value.to_owned())
}

/// A configuration without problems in entries.
fn valid(mut config: Config) -> Result<Config, ConfigError> {
    match std::mem::take(&mut config.problems) {
        problems if problems.is_empty() => Ok(config),
        problems => Err(problems.into()),
    }
}

/// Loads one valid file.
pub(super) fn load(text: &str) -> Config {
    let folder = Folder::new(&[("mcp.json", text)]);
    match folder.load(&["mcp.json"]).and_then(valid) {
        Ok(config) => config,
        Err(error) => panic!("{error}"),
    }
}

/// Loads `toolwharf.toml` and `mcp.json` with these texts. The errors are as shown to the user.
pub(super) fn load_both(settings: &str, servers: &str) -> Result<Config, String> {
    let folder = Folder::new(&[("t.toml", settings), ("mcp.json", servers)]);
    let config = folder.load(&["t.toml", "mcp.json"]).and_then(valid);
    config.map_err(|error| folder.redact(&error))
}

/// The rows of a table with `N` columns, which are separated by ` | `. `\n` stands for a line break.
pub(super) fn table<const N: usize>(text: &str) -> Vec<[String; N]> {
    let rows = text.lines().map(str::trim).filter(|row| !row.is_empty());
    let row = |row: &str| {
        let cells = row.split(" | ").map(|cell| cell.replace("\\n", "\n"));
        let cells: Vec<_> = cells.collect();
        <[String; N]>::try_from(cells).unwrap_or_else(|cells| panic!("{cells:?}"))
    };
    rows.map(row).collect()
}

/// All errors of a file and its entries, as shown to the user.
pub(super) fn errors(name: &str, text: &str) -> String {
    let folder = Folder::new(&[(name, text)]);
    match folder.load(&[name]).and_then(valid) {
        Ok(config) => panic!("no error: {config:?}"),
        Err(error) => folder.redact(&error),
    }
}
