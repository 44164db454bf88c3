//! Makes a backup.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail};
use config::Sources;
use runtime::sandbox::saved::{NOT_DATA, Use, image_use};
use store::{Export, Store};
use tokio::{sync::mpsc, task};
use zeroize::Zeroizing;

use super::{
    CLIENTS, CONFIG, DATA, DATA_ITEMS, DATABASE_ENTRY, FILES_SUFFIX, HOSTING, KEYS_ENTRY,
    Passphrase, Progress, Step, TABLES, VOLUMES,
    archive::{ConfigFile, MAX_SMALL_BYTES, Manifest, Writer},
    file::{Pending, remove_copy, sync},
    tree::{self, Skipped},
};
use crate::{
    master::{self, MASTER_KEY, Master},
    startup,
};

/// Pieces that wait for the thread that compresses and writes.
const MAX_QUEUED_PIECES: usize = 8;
/// Folders below `hosting` with a folder for each server.
const VOLUME_FOLDERS: [&str; 2] = ["process/volumes", "docker"];

/// A backup to make.
pub struct Job {
    /// The file to write.
    pub file: PathBuf,
    /// Replaces an existing file.
    pub replace: bool,
    pub sources: Sources,
    pub data_dir: PathBuf,
    /// The database, which need not be of this version.
    pub store: Store,
    /// Adds the keys, encrypted with this passphrase.
    pub passphrase: Option<Passphrase>,
    /// Includes the volumes of hosted servers.
    pub volumes: bool,
    pub progress: Arc<Progress>,
}

/// A backup that was made.
#[derive(Debug)]
pub struct Made {
    /// The absolute path of the file.
    pub file: PathBuf,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// Notes for the user, one sentence each.
    pub notes: Vec<String>,
}

/// The next part of the archive, for the writing thread.
enum Piece {
    /// A file with this content.
    Bytes(String, Vec<u8>),
    /// A file or a directory.
    Tree(String, PathBuf),
    Volume(Volume),
    /// The backup is complete.
    End,
}

/// A volume, or all volumes of a server.
struct Volume {
    /// Its path below `hosting`.
    name: String,
    /// The directory or the image.
    path: PathBuf,
    /// How the image is used; `None`: it is a directory.
    image: Option<Use>,
}

/// The copy of a SQLite file, which is removed when this is dropped.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        remove_copy(&self.0);
    }
}

/// Stops the writing thread when the backup is dropped.
struct CancelOnDrop(Arc<Progress>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Makes a backup of everything that was acknowledged before the call. The gateway may run.
///
/// # Cancel safety
/// A backup that is dropped leaves no file. Removing the unfinished file may take a moment.
///
/// # Errors
/// If the backup fails. The error is one sentence that names the file, and contains no secrets.
pub async fn create(job: Job) -> anyhow::Result<Made> {
    let pending = Pending::create(&job.file, job.replace)?;
    let file = pending.path().to_owned();
    let temporary = Temporary(pending.beside());
    let key = Master::in_use(&job.store, &job.data_dir, &startup::env).await?;
    let keys = match &job.passphrase {
        Some(passphrase) => {
            let text = key
                .as_ref()
                .map(|(id, text)| text.as_ref().with_context(|| no_key(id, &job.data_dir)));
            let keys = keys(&job.data_dir, text.transpose()?.map(|text| text.as_str()))?;
            Some(passphrase.seal(&keys)?)
        }
        None => None,
    };
    let export = copied(&job, &temporary.0).await?;
    let dump = match &export {
        Export::File(dump) => dump.clone(),
        Export::Tables(tables) => tables.dump().clone(),
    };
    // If the key was replaced during the copy, the copy might need either key.
    let now = Master::in_use(&job.store, &job.data_dir, &startup::env).await?;
    let id = key.map(|(id, _)| id);
    if now.map(|(id, _)| id) != id {
        bail!("the master key was replaced during the backup: make the backup again");
    }
    let (servers, settings, files) = configuration(&job.sources)?;
    let volumes = match job.volumes {
        true => volumes(&job.data_dir.join(HOSTING))?,
        false => Vec::new(),
    };
    let manifest = Manifest {
        toolwharf: env!("CARGO_PKG_VERSION").to_owned(),
        made_at: store::now(),
        database: dump,
        master_key: id,
        has_keys: keys.is_some(),
        servers,
        settings,
        has_volumes: job.volumes,
        images: images(&volumes)?,
    };
    let notes = notes(&job, &manifest);
    job.progress.begin(Step::Writing);
    let (sender, pieces) = mpsc::channel(MAX_QUEUED_PIECES);
    let progress = job.progress.clone();
    let _cancel = CancelOnDrop(job.progress.clone());
    let writing = task::spawn_blocking(move || write(pending, &manifest, pieces, progress));
    let files = files
        .into_iter()
        .chain(keys.map(|keys| (KEYS_ENTRY.to_owned(), keys)));
    let sent = send(&job, sender, export, &temporary.0, files, volumes).await;
    let written = writing.await.context("the backup was interrupted")?;
    // If the writing thread has failed, that is the cause.
    let (pending, skipped) = match written? {
        Some(done) => done,
        None => {
            sent?;
            bail!("the backup was interrupted");
        }
    };
    let failed = || format!("cannot write {}", file.display());
    // From here on, this function owns the file: the writing thread could not know that the backup was dropped.
    let published = pending.publish().with_context(failed)?;
    let folder = published.folder();
    let synced = task::spawn_blocking(move || sync(&folder)).await;
    synced
        .context("the backup was interrupted")?
        .with_context(failed)?;
    let bytes = published.keep();
    let notes = notes.into_iter().chain(left_out(skipped)).collect();
    Ok(Made { file, bytes, notes })
}

fn no_key(id: &str, data_dir: &Path) -> String {
    format!(
        "cannot include the master key {id}: it is neither in {} nor in the variable {MASTER_KEY}; set the variable as for `toolwharf serve`",
        data_dir.join(master::KEY_FILE).display()
    )
}

/// Copies the database as it is now.
async fn copied(job: &Job, into: &Path) -> anyhow::Result<Export> {
    job.progress.begin(Step::Database);
    let shown = into.display();
    // A killed process may have left one.
    remove_copy(into);
    if job.store.kind() == "sqlite" {
        tree::private_file(into).with_context(|| format!("cannot write {shown}"))?;
    }
    let export = job.store.export(into, &job.progress.bytes).await;
    match job.store.kind() {
        "sqlite" => export.with_context(|| format!("cannot copy the database to {shown}")),
        _ => export.context("cannot copy the database"),
    }
}

/// Passes everything to the writing thread. Stops early if that has failed.
async fn send(
    job: &Job,
    to: mpsc::Sender<Piece>,
    export: Export,
    copy: &Path,
    files: impl Iterator<Item = (String, Vec<u8>)>,
    volumes: Vec<Volume>,
) -> anyhow::Result<()> {
    let put = async |piece| to.send(piece).await.is_ok();
    for (entry, content) in files {
        put(Piece::Bytes(entry, content)).await;
    }
    match export {
        Export::File(_) => {
            put(Piece::Tree(DATABASE_ENTRY.to_owned(), copy.to_owned())).await;
        }
        Export::Tables(tables) => {
            let mut number = 0_u64;
            let sent = tables.send(async |chunk| {
                number += 1;
                let entry = format!("{TABLES}/{}/{number:09}", chunk.table);
                put(Piece::Bytes(entry, chunk.rows)).await
            });
            sent.await.context("cannot copy the database")?;
        }
    }
    for item in DATA_ITEMS {
        let path = job.data_dir.join(item);
        if path.exists() {
            put(Piece::Tree(format!("{DATA}/{item}"), path)).await;
        }
    }
    for volume in volumes {
        put(Piece::Volume(volume)).await;
    }
    put(Piece::End).await;
    Ok(())
}

/// Writes the file. Returns `None` if the sender stopped before the end.
fn write(
    pending: Pending,
    manifest: &Manifest,
    mut pieces: mpsc::Receiver<Piece>,
    progress: Arc<Progress>,
) -> anyhow::Result<Option<(Pending, Skipped)>> {
    let file = pending.path().display().to_string();
    let failed = || format!("cannot write {file}");
    let mut writer = Writer::new(pending, manifest, progress).with_context(failed)?;
    while let Some(piece) = pieces.blocking_recv() {
        match piece {
            Piece::Bytes(entry, content) => {
                writer.bytes(&entry, &content).with_context(failed)?;
            }
            Piece::Tree(entry, path) => writer
                .tree(&entry, &path, &[])
                .with_context(|| format!("cannot copy {} to {file}", path.display()))?,
            Piece::Volume(volume) => write_volume(&mut writer, &volume)
                .with_context(|| format!("cannot copy {} to {file}", volume.path.display()))?,
            Piece::End => {
                let skipped = writer.skipped;
                return Ok(Some((writer.finish().with_context(failed)?, skipped)));
            }
        }
    }
    Ok(None)
}

fn write_volume(writer: &mut Writer, volume: &Volume) -> anyhow::Result<()> {
    let entry = format!("{VOLUMES}/{}", volume.name);
    let unchanged = || -> anyhow::Result<()> {
        match &volume.image {
            Some(seen) if image_use(&volume.path)? != *seen => {
                bail!("its server was started or stopped during the backup: make the backup again")
            }
            _ => Ok(()),
        }
    };
    unchanged()?;
    match &volume.image {
        Some(Use::Mounted(at)) => {
            writer.tree(&format!("{entry}{FILES_SUFFIX}"), at, &NOT_DATA)?;
        }
        _ => writer.tree(&entry, &volume.path, &[])?,
    }
    unchanged()
}

/// The keys: the content of files by their path in the data directory, as JSON.
fn keys(data_dir: &Path, master: Option<&str>) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let mut all: BTreeMap<String, Zeroizing<String>> = BTreeMap::new();
    if let Some(text) = master {
        all.insert(master::KEY_FILE.to_owned(), Zeroizing::new(text.to_owned()));
    }
    let token = auth::admin_token::TOKEN_FILE;
    if let Some(text) = text_of(&data_dir.join(token))? {
        all.insert(token.to_owned(), text);
    }
    let clients = data_dir.join(CLIENTS);
    let entries = match fs::read_dir(&clients) {
        Ok(entries) => entries.collect::<io::Result<Vec<_>>>(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    };
    let entries = entries.with_context(|| format!("cannot read {}", clients.display()))?;
    for entry in entries {
        let name = entry.file_name();
        if let (Some(name), Some(text)) = (name.to_str(), text_of(&entry.path())?) {
            all.insert(format!("{CLIENTS}/{name}"), text);
        }
    }
    let plain: BTreeMap<&str, &str> = all
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    Ok(Zeroizing::new(serde_json::to_vec(&plain)?))
}

fn text_of(path: &Path) -> anyhow::Result<Option<Zeroizing<String>>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(Zeroizing::new(text))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

type Contents = Vec<(String, Vec<u8>)>;

/// The configuration files that exist: those with servers, the settings, and the content of all.
fn configuration(
    sources: &Sources,
) -> anyhow::Result<(Vec<ConfigFile>, Option<ConfigFile>, Contents)> {
    let mut contents = Vec::new();
    let mut add = |path: &Path, folder: &str| -> anyhow::Result<Option<ConfigFile>> {
        let shown = path.display();
        let content = match fs::read(path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
        };
        if content.len() as u64 > MAX_SMALL_BYTES {
            bail!("{shown} is larger than {} MiB", MAX_SMALL_BYTES >> 20);
        }
        let name = path.file_name().and_then(|name| name.to_str());
        let entry = format!("{CONFIG}/{folder}/{}", name.unwrap_or("file"));
        contents.push((entry.clone(), content));
        let path = std::path::absolute(path)?;
        Ok(Some(ConfigFile { entry, path }))
    };
    let mut servers = Vec::new();
    for (number, path) in sources.servers.iter().enumerate() {
        servers.extend(add(path, &number.to_string())?);
    }
    let settings = match &sources.settings {
        Some(path) => add(path, "settings")?,
        None => None,
    };
    Ok((servers, settings, contents))
}

/// The volumes on this machine.
fn volumes(hosting: &Path) -> anyhow::Result<Vec<Volume>> {
    let mut found = Vec::new();
    for folder in VOLUME_FOLDERS {
        for server in listed(&hosting.join(folder))? {
            for item in listed(&hosting.join(folder).join(&server))? {
                let name = format!("{folder}/{server}/{item}");
                let path = hosting.join(&name);
                let image = match path.extension().is_some_and(|end| end == "ext4") {
                    true => Some(image_use(&path).with_context(|| {
                        format!("cannot find out whether {} is in use", path.display())
                    })?),
                    false if path.is_dir() => None,
                    // An unfinished file of an earlier start.
                    false => continue,
                };
                if image == Some(Use::Hidden) {
                    bail!(
                        "the volume {} is in use, but not mounted where this command sees it: run the command like the \
                         gateway, or stop the server `{server}`",
                        path.display()
                    );
                }
                found.push(Volume { name, path, image });
            }
        }
    }
    Ok(found)
}

/// The names in a folder, sorted. None if it does not exist.
fn listed(folder: &Path) -> anyhow::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries.collect::<io::Result<Vec<_>>>(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        // A file next to the folders of servers.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(Vec::new()),
        Err(error) => Err(error),
    };
    let entries = entries.with_context(|| format!("cannot read {}", folder.display()))?;
    let mut names: Vec<String> = entries
        .iter()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    Ok(names)
}

/// The sizes of the images whose files are copied.
fn images(volumes: &[Volume]) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut sizes = BTreeMap::new();
    for volume in volumes {
        if let Some(Use::Mounted(_)) = volume.image {
            let meta = fs::metadata(&volume.path);
            let meta = meta.with_context(|| format!("cannot read {}", volume.path.display()))?;
            sizes.insert(volume.name.clone(), meta.len());
        }
    }
    Ok(sizes)
}

fn notes(job: &Job, manifest: &Manifest) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(id) = manifest.master_key.as_ref().filter(|_| !manifest.has_keys) {
        notes.push(format!(
            "the master key {id} is not in the backup: without a copy of it, the restored secrets cannot be decrypted"
        ));
    }
    if !job.volumes && job.data_dir.join(HOSTING).join(VOLUME_FOLDERS[0]).exists() {
        notes.push("the volumes of hosted servers are not in the backup".to_owned());
    }
    notes
}

fn left_out(skipped: Skipped) -> Option<String> {
    let Skipped { special, mounted } = skipped;
    (special + mounted > 0).then(|| {
        format!("left out of the volumes: {special} sockets, pipes and devices, and {mounted} mounted folders")
    })
}
