//! Plans for disconnecting a client, and their execution.

use config::{Client, ClientFile, OnDisk, Sources};
use model::ServerName;

use super::{
    Clients, ENTRY_NAME, Error, blocking, diff, keys::Keyring, of, parsed, record::Record,
};
use crate::server_files;

/// The result of restoring the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restored {
    /// The file is restored byte for byte.
    Whole,
    /// The file was changed in the meantime: Toolwharf's entry is removed, and moved servers are put back.
    Entry,
    /// Nothing to restore: the file is gone, or already as it was before.
    Nothing,
}

pub struct Undo {
    client: &'static Client,
    pub(super) disk: OnDisk,
    record: Record,
    /// The new text of the file. `None`: the file does not exist afterwards.
    pub(super) text: Option<String>,
    restored: Restored,
    /// Servers that are put back into the client's file.
    put_back: Vec<String>,
}

impl Clients {
    /// Plans to disconnect a client.
    ///
    /// # Errors
    /// [`Error`]
    pub fn undo(&self, client: &'static Client) -> Result<Undo, Error> {
        let record = self.records.record(client)?;
        let record = record.ok_or(Error::NotConnected(client.title))?;
        let disk = OnDisk::read(&record.file).map_err(|source| of(client, source))?;
        let before = self.records.before(client)?;
        let before = record.existed.then_some(before);
        let mut put_back = Vec::new();
        let (text, restored) = match &disk.text {
            None => (None, Restored::Nothing),
            text if *text == before => (before, Restored::Nothing),
            Some(text) if model::sha256_hex(text) == record.left => {
                put_back = record.moved.iter().map(|it| it.name.clone()).collect();
                (before, Restored::Whole)
            }
            Some(_) => {
                let text = without_entry(client, &disk, &record, before.as_deref(), &mut put_back);
                let text = text.map_err(|source| of(client, source))?;
                (Some(text), Restored::Entry)
            }
        };
        Ok(Undo {
            client,
            disk,
            record,
            text,
            restored,
            put_back,
        })
    }

    /// The change to the client's file, without secrets; empty if nothing changes.
    pub fn undo_diff(&self, undo: &Undo) -> String {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (old, new) = (text(&undo.disk.text), text(&undo.text));
        let file = |text: &str| ClientFile::parse(undo.client, &undo.disk.path, text);
        let files = [file(&old), file(&new)];
        let values: Vec<_> = files.iter().flatten().map(ClientFile::root).collect();
        diff::unified(&undo.disk.path.display().to_string(), &old, &new, &values)
    }

    /// Restores the file and revokes the client's key.
    ///
    /// # Errors
    /// [`Error`], or an error of `keys`. The client is then still connected.
    pub async fn disconnect<K: Keyring>(&self, undo: &Undo, keys: &K) -> Result<(), K::Error> {
        let (disk, text, client) = (undo.disk.clone(), undo.text.clone(), undo.client);
        blocking(move || {
            disk.replace(text.as_deref())
                .map_err(|source| of(client, source))
        })
        .await?;
        keys.revoke(&undo.record.key).await?;
        Ok(self.records.remove(undo.client)?)
    }

    /// Removes the servers from Toolwharf that were moved for this client alone and are unchanged since. Returns their
    /// names.
    ///
    /// # Errors
    /// Those of [`registry`].
    pub fn take_out(&self, undo: &Undo, sources: &Sources) -> Result<Vec<String>, Error> {
        let elsewhere = self.records.moved_elsewhere(undo.client);
        let moved = undo.record.moved.iter();
        let moved = moved.filter(|it| ServerName::parse(&it.name).is_ok());
        let ours = moved.filter_map(|it| Some((it.name.as_str(), it.added.as_ref()?)));
        let ours: Vec<_> = ours
            .filter(|(name, _)| !elsewhere.contains(*name))
            .collect();
        Ok(server_files::remove_unchanged(sources, &ours)?)
    }
}

impl Undo {
    /// The plan as returned by the API, with the servers that were removed from Toolwharf.
    pub fn to_api(&self, removed: Vec<String>) -> api::Disconnected {
        let restored = match self.restored {
            Restored::Whole => "whole",
            Restored::Entry => "entry",
            Restored::Nothing => "nothing",
        };
        api::Disconnected {
            name: self.client.name.to_owned(),
            file: self.disk.path.display().to_string(),
            restored: restored.to_owned(),
            put_back: self.put_back.clone(),
            removed,
        }
    }
}

/// A changed file without Toolwharf's entry. An original entry with that name and the moved servers are put back.
fn without_entry(
    client: &'static Client,
    disk: &OnDisk,
    record: &Record,
    before: Option<&str>,
    put_back: &mut Vec<String>,
) -> Result<String, config::EditError> {
    let mut file = parsed(client, disk)?;
    let old = ClientFile::parse(client, &disk.path, before.unwrap_or_default())?;
    file.remove(ENTRY_NAME)?;
    let moved = record.moved.iter().map(|moved| moved.name.as_str());
    let mut back = Vec::new();
    for name in moved.chain([ENTRY_NAME]) {
        if let Some(entry) = old.get(name)
            && file.get(name).is_none()
        {
            back.push((name.to_owned(), entry));
            put_back.push(name.to_owned());
        }
    }
    file.put_all(&back)?;
    Ok(file.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::{
        super::{Wish, keys::Made, plan::Plan, record::Records},
        *,
    };

    /// Texts of each format, with comments, line endings and blanks in many places.
    fn texts() -> impl Strategy<Value = (&'static str, String)> {
        let json = "\u{feff}?[ \t\r\n]{0,3}\\{[ \t\n]{0,3}(// [a-z]{0,5}\r?\n)?(\"[a-c]\" ?: ?[0-9]{1,2},?[ \r\n]{0,2}){0,2}\\}[ \n]{0,3}(/\\* x \\*/)?";
        let toml = "(# [a-z]{0,5}\n|[a-f] = 1 {0,2}\n|\n|\\[[g-k]\\] # x\n){0,6}";
        let yaml = "(# [a-z ]{0,5}\r?\n|[a-f]: 1 {0,2}\r?\n|\r?\n|extensions:\n  x:\n    type: builtin\n){0,6}";
        prop_oneof![
            json.prop_map(|text| ("cursor", text)),
            toml.prop_map(|text| ("codex", text)),
            yaml.prop_map(|text| ("goose", text)),
        ]
    }

    proptest! {
        #[test]
        fn a_file_that_nobody_changed_comes_back_to_the_byte((name, text) in texts()) {
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("file");
            fs::write(&file, &text).expect("written");
            let client = Client::find(name).expect("a client");
            let clients = Clients {
                records: Records::new(folder.path()),
                program: "toolwharf".to_owned(),
                options: Vec::new(),
                url: None,
            };
            let disk = OnDisk::read(&file).expect("read");
            let Ok(plan) = Plan::new(client, disk, &Wish::default()) else {
                return Ok(());
            };
            let made = Made { id: "id".to_owned(), token: "twh_1".to_owned() };
            if clients.write(&plan, Some(&made)).is_err() {
                prop_assert_eq!(fs::read_to_string(&file).expect("read"), text);
                return Ok(());
            }
            prop_assert!(fs::read_to_string(&file).expect("read").contains("--client"));
            let undo = clients.undo(client).expect("it is connected");
            prop_assert_eq!(undo.restored, Restored::Whole);
            undo.disk.replace(undo.text.as_deref()).expect("written");
            prop_assert_eq!(fs::read_to_string(&file).expect("read"), text);
        }
    }
}
