//! Records of connected clients, in a folder of the data directory for its user alone: of each the change (`NAME.json`),
//! the text of its file before (`NAME.before`), and its key (`NAME.key`).
//!
//! Invariant: all of it is there before the client's file is changed.

use std::{
    fs,
    io::{ErrorKind, Write as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use config::{CLIENTS, Client};
use model::ProjectId;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::Error;

const FOLDER: &str = "clients";

/// The change that was made to a client's file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) file: PathBuf,
    /// Whether there was a file before.
    pub(super) existed: bool,
    /// The digest of the text that was left.
    pub(super) left: String,
    /// The id of its key.
    pub(super) key: String,
    pub(super) project: Option<ProjectId>,
    /// The servers that were taken out.
    #[serde(default)]
    pub(super) moved: Vec<Moved>,
}

/// A server that was moved into Toolwharf.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Moved {
    pub(super) name: String,
    /// As it was added to a file of Toolwharf; `None`: it was there already.
    pub(super) added: Option<Value>,
}

/// The folder.
#[derive(Clone)]
pub(super) struct Shelf {
    dir: PathBuf,
}

/// The file with a client's key.
pub(crate) fn token_file(data_dir: &Path, client: &Client) -> PathBuf {
    Shelf::new(data_dir).path(client, "key")
}

/// The digest of a text.
pub(super) fn digest(text: &str) -> String {
    hex::encode(Sha256::digest(text))
}

impl Shelf {
    pub(super) fn new(data_dir: &Path) -> Self {
        Self {
            dir: data_dir.join(FOLDER),
        }
    }

    fn path(&self, client: &Client, kind: &str) -> PathBuf {
        self.dir.join(format!("{}.{kind}", client.name))
    }

    /// The record of this client, if it is connected.
    pub(super) fn record(&self, client: &Client) -> Result<Option<Record>, Error> {
        let path = self.path(client, "json");
        let Some(text) = read(&path)? else {
            return Ok(None);
        };
        // It says which file is written, and with what.
        config::check_own_folder(&path).map_err(failed("trust", &path))?;
        let record = serde_json::from_str(&text);
        record
            .map(Some)
            .map_err(|error| failed("understand", &path)(error.into()))
    }

    /// The text of its file before.
    pub(super) fn before(&self, client: &Client) -> Result<String, Error> {
        let path = self.path(client, "before");
        read(&path)?.ok_or_else(|| failed("read", &path)(ErrorKind::NotFound.into()))
    }

    pub(super) fn key(&self, client: &Client) -> Result<Option<String>, Error> {
        let token = read(&self.path(client, "key"))?;
        Ok(token.map(|token| token.trim().to_owned()))
    }

    /// Keeps all of it; without a token the key that is there stays.
    pub(super) fn put(
        &self,
        client: &Client,
        record: &Record,
        before: &str,
        token: Option<&str>,
    ) -> Result<(), Error> {
        config::check_own_folder(&self.dir).map_err(failed("write to", &self.dir))?;
        let mut folder = fs::DirBuilder::new();
        let made = folder.recursive(true).mode(0o700).create(&self.dir);
        made.map_err(failed("make", &self.dir))?;
        config::check_own_folder(&self.dir).map_err(failed("write to", &self.dir))?;
        let record = serde_json::to_string_pretty(record).unwrap_or_default();
        self.write(client, "before", before)?;
        if let Some(token) = token {
            self.write(client, "key", token)?;
        }
        self.write(client, "json", &record)
    }

    pub(super) fn remove(&self, client: &Client) -> Result<(), Error> {
        for kind in ["json", "key", "before"] {
            let path = self.path(client, kind);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(failed("remove", &path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether another client has moved a server of that name, too.
    pub(super) fn moved_elsewhere(&self, client: &Client, name: &str) -> bool {
        let others = CLIENTS.iter().filter(|other| other.name != client.name);
        let mut records = others.filter_map(|other| self.record(other).ok().flatten());
        records.any(|record| record.moved.iter().any(|moved| moved.name == name))
    }

    /// In one step, for its user alone.
    fn write(&self, client: &Client, kind: &str, text: &str) -> Result<(), Error> {
        let path = self.path(client, kind);
        let written = || {
            // Made with mode 0600.
            let mut file = tempfile::NamedTempFile::new_in(&self.dir)?;
            file.write_all(text.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(&path)?;
            fs::File::open(&self.dir)?.sync_all()
        };
        written().map_err(failed("write", &path))
    }
}

fn read(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path)(error)),
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Data { what, path, source }
}
