//! Records of connected clients, in a folder of the data directory readable only by its user. A record consists of the
//! change (`NAME.json`), the previous text of the client's file (`NAME.before`), and the client's key (`NAME.key`).
//!
//! Invariants: the record is complete before the client's file is changed. If run as root, nothing here is read or
//! written through a link or a folder of another user ([`config::read_own`]).

use std::{
    collections::HashSet,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use config::{CLIENTS, Client};
use model::ProjectId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Error;

const CLIENTS_FOLDER: &str = "clients";

/// The change that was made to a client's file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) file: PathBuf,
    /// The file existed before.
    pub(super) existed: bool,
    /// The digest of the new text.
    pub(super) left: String,
    /// The id of the client's key.
    pub(super) key: String,
    pub(super) project: Option<ProjectId>,
    /// The servers that were moved to Toolwharf.
    #[serde(default)]
    pub(super) moved: Vec<Moved>,
}

/// A server that was moved to Toolwharf.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Moved {
    pub(super) name: String,
    /// The entry that was added to a file of Toolwharf. `None`: Toolwharf had the server already.
    pub(super) added: Option<Value>,
}

/// The folder.
#[derive(Clone)]
pub(super) struct Records {
    dir: PathBuf,
}

/// The file with a client's key.
pub fn token_file(data_dir: &Path, client: &Client) -> PathBuf {
    Records::new(data_dir).path(client, "key")
}

impl Records {
    pub(super) fn new(data_dir: &Path) -> Self {
        Self {
            dir: data_dir.join(CLIENTS_FOLDER),
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
        let record = serde_json::from_str(&text);
        record
            .map(Some)
            .map_err(|error| failed("understand", &path)(error.into()))
    }

    /// The text of its file before the change.
    pub(super) fn before(&self, client: &Client) -> Result<String, Error> {
        let path = self.path(client, "before");
        read(&path)?.ok_or_else(|| failed("read", &path)(ErrorKind::NotFound.into()))
    }

    pub(super) fn key(&self, client: &Client) -> Result<Option<String>, Error> {
        let token = read(&self.path(client, "key"))?;
        Ok(token.map(|token| token.trim().to_owned()))
    }

    /// Saves the record. Without a token, an existing key is kept.
    pub(super) fn put(
        &self,
        client: &Client,
        record: &Record,
        before: &str,
        token: Option<&str>,
    ) -> Result<(), Error> {
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
            config::remove_own(&path).map_err(failed("remove", &path))?;
        }
        Ok(())
    }

    /// The names of all servers that other clients have moved.
    pub(super) fn moved_elsewhere(&self, client: &Client) -> HashSet<String> {
        let others = CLIENTS.iter().filter(|other| other.name != client.name);
        let records = others.filter_map(|other| self.record(other).ok().flatten());
        let moved = records.flat_map(|record| record.moved);
        moved.map(|moved| moved.name).collect()
    }

    /// Writes atomically, readable for its user alone.
    fn write(&self, client: &Client, kind: &str, text: &str) -> Result<(), Error> {
        let path = self.path(client, kind);
        config::write_own(&path, text).map_err(failed("write", &path))
    }
}

fn read(path: &Path) -> Result<Option<String>, Error> {
    config::read_own(path).map_err(failed("read", path))
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Data { what, path, source }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, lchown, symlink},
    };

    use super::*;

    #[test]
    fn root_keeps_records_through_no_link_of_another_user() {
        const THEIRS: u32 = 65_533;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["data", "etc"] {
            fs::create_dir(at(name)).unwrap();
        }
        let client = Client::find("cursor").unwrap();
        let record = Record {
            file: at("mcp.json"),
            existed: true,
            left: String::new(),
            key: "id".to_owned(),
            project: None,
            moved: Vec::new(),
        };
        let records = Records::new(&at("data"));
        // First the folder is a link, then a file in it.
        symlink(at("etc"), at("data/clients")).unwrap();
        lchown(at("data/clients"), Some(THEIRS), None).expect("run this as root");
        let refused = |error: Error| {
            let said = error.to_string();
            for part in ["symbolic link", "user with id 65533", "--data-dir"] {
                assert!(said.contains(part), "{part}: {said}");
            }
        };
        refused(records.put(client, &record, "", Some("twh_1")).unwrap_err());
        refused(records.record(client).unwrap_err());
        refused(records.remove(client).unwrap_err());
        assert_eq!(fs::read_dir(at("etc")).unwrap().count(), 0);
        fs::remove_file(at("data/clients")).unwrap();

        records
            .put(client, &record, "before", Some("twh_1"))
            .unwrap();
        assert_eq!(records.record(client).unwrap().unwrap().key, "id");
        assert_eq!(records.before(client).unwrap(), "before");
        let mode = |name: &str| at(name).metadata().unwrap().permissions().mode() & 0o777;
        let modes = (mode("data/clients"), mode("data/clients/cursor.key"));
        assert_eq!(modes, (0o700, 0o600));
        fs::write(at("etc/shadow"), "theirs").unwrap();
        fs::remove_file(at("data/clients/cursor.json")).unwrap();
        symlink(at("etc/shadow"), at("data/clients/cursor.json")).unwrap();
        lchown(at("data/clients/cursor.json"), Some(THEIRS), None).unwrap();
        refused(records.record(client).unwrap_err());
        refused(records.put(client, &record, "", None).unwrap_err());
        assert_eq!(fs::read_to_string(at("etc/shadow")).unwrap(), "theirs");
    }
}
