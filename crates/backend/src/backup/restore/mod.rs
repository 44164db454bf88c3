//! Restores a backup, without a running gateway.
//!
//! A restore checks the whole file, looks for existing data, unpacks into a temporary folder in the data directory, and
//! checks the result. Only then it changes something. On Postgres, the database comes first, in one transaction. Then
//! files are renamed into place. Replaced files are kept in another folder.
//!
//! If the process is killed between two renames, a file in the data directory says so, and `toolwharf serve` does not
//! start until the restore has been repeated.

mod place;
mod unpack;

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail};
use config::Sources;
use store::{ImportError, Location, Store};
use tokio::{sync::mpsc, task};

use self::{
    place::{Move, conflicts, put_in_place},
    unpack::Scanned,
};
use super::{Passphrase, Progress, Step, archive::Manifest, tree};
use crate::{
    lock::{self, Lock},
    master::{self, Master},
    startup::{self, CliOverrides},
};

/// The file in the data directory that exists while a restore changes files.
const UNFINISHED_FILE: &str = "restore-unfinished";
/// The beginning of the names of folders for what was unpacked.
const STAGING_PREFIX: &str = ".restore-";
/// Parts of tables that wait for the database.
const MAX_QUEUED_CHUNKS: usize = 4;

/// A backup to restore.
pub struct Job {
    pub file: PathBuf,
    /// Replaces existing data. It is kept beside the restored data, except for that of Postgres.
    pub replace: bool,
    /// The places of the configuration files.
    pub sources: Sources,
    /// Restores the configuration files.
    pub with_config: bool,
    /// Restores the keys, if the backup has them.
    pub with_keys: bool,
    pub overrides: CliOverrides,
    pub progress: Arc<Progress>,
}

/// A backup that was restored.
#[derive(Debug)]
pub struct Restored {
    pub data_dir: PathBuf,
    /// When the backup was made.
    pub made_at: store::Time,
    /// The folder with the files that were replaced.
    pub replaced: Option<PathBuf>,
    /// Next steps and notes for the user, one sentence each.
    pub notes: Vec<String>,
}

/// Refuses a data directory in which a restore was interrupted.
///
/// # Errors
/// If one was. The error says what to do.
pub fn check_finished(data_dir: &Path) -> anyhow::Result<()> {
    match data_dir.join(UNFINISHED_FILE).exists() {
        true => bail!(
            "a restore into {} was interrupted, and only a part of it is in place: run `toolwharf restore FILE --force` again",
            data_dir.display()
        ),
        false => Ok(()),
    }
}

/// Restores a backup. `ask` returns the passphrase, and is called only if the backup has keys that are restored.
///
/// # Errors
/// Why nothing was restored, in one sentence. Nothing was changed, unless the error says so. The error contains no
/// secrets.
pub async fn restore(
    job: Job,
    ask: impl FnOnce() -> anyhow::Result<Passphrase>,
) -> anyhow::Result<Restored> {
    job.progress.begin(Step::Checking);
    let (file, progress) = (job.file.clone(), job.progress.clone());
    let scanned = blocking(move || unpack::scan(&file, &progress)).await?;
    let manifest = &scanned.manifest;
    let checked = manifest.database.check();
    checked.with_context(|| format!("{} cannot be restored", job.file.display()))?;
    let (data_dir, location) = destination(&job, &scanned)?;
    check_engine(manifest, &location)?;
    if let Some(holder) = lock::holder(&data_dir) {
        bail!(
            "a gateway uses the data directory {}: {holder}; stop it before the restore",
            data_dir.display()
        );
    }
    let database = Store::existing(&location).await?;
    if database.replicas > 0 {
        bail!(
            "{} gateways use the database at {location}: stop them before the restore",
            database.replicas
        );
    }
    let is_new = !data_dir.exists();
    let moves = place::moves(&job, &scanned, &data_dir)?;
    let mut found = conflicts(&moves);
    if database.has_tables {
        found.push(format!("the database at {location}"));
    }
    if !found.is_empty() && !job.replace {
        bail!(
            "there is data already: {}. Nothing was changed; --force replaces it, and keeps the old files in another folder{}",
            found.join(", "),
            if database.has_tables {
                " (but not the old database)"
            } else {
                ""
            }
        );
    }
    let keys = match (&scanned.keys, job.with_keys) {
        (Some(sealed), true) => Some(unpack::keys(sealed, &ask()?)?),
        _ => None,
    };
    if let Some(id) = &manifest.master_key
        && let Some(text) = keys.as_ref().and_then(|keys| keys.get(master::KEY_FILE))
        && Master::id_of(text).as_ref() != Some(id)
    {
        bail!("the backup is inconsistent: its master key is not the one of its database");
    }

    check_owner(&data_dir)?;
    job.progress.begin(Step::Restoring);
    let made = tree::private_folder(&data_dir);
    made.with_context(|| format!("cannot create the data directory {}", data_dir.display()))?;
    let restored = with_data_dir(&job, &scanned, keys, &data_dir, &location, moves).await;
    if restored.is_err() && is_new && check_finished(&data_dir).is_ok() {
        // Nothing was changed, so the machine is left as empty as it was.
        let _ = fs::remove_dir_all(&data_dir);
    }
    let replaced = restored?;
    let notes = notes(&job, &scanned, &data_dir);
    Ok(Restored {
        data_dir,
        made_at: scanned.manifest.made_at,
        replaced,
        notes,
    })
}

/// Unpacks, and changes what has to be changed. Returns the folder with the replaced files.
async fn with_data_dir(
    job: &Job,
    scanned: &Scanned,
    keys: Option<unpack::Keys>,
    data_dir: &Path,
    location: &Location,
    moves: Vec<Move>,
) -> anyhow::Result<Option<PathBuf>> {
    let _lock = Lock::take(data_dir).await?;
    remove_stale(data_dir);
    let staging = tempfile::Builder::new()
        .prefix(STAGING_PREFIX)
        .tempdir_in(data_dir)
        .with_context(|| format!("cannot write to the data directory {}", data_dir.display()))?;
    let (content, into) = (scanned.clone(), staging.path().to_owned());
    let progress = job.progress.clone();
    blocking(move || unpack::unpack(&content, keys, &into, &progress)).await?;
    let unfinished = data_dir.join(UNFINISHED_FILE);
    let begun = File::create(&unfinished)
        .and_then(|file| file.sync_all())
        .and_then(|()| File::open(data_dir)?.sync_all());
    begun.with_context(|| format!("cannot write {}", unfinished.display()))?;
    if let Location::Postgres(_) = location
        && let Err(error) = import(job, scanned, location).await
    {
        let _ = fs::remove_file(&unfinished);
        return Err(error);
    }
    let dir = data_dir.to_owned();
    let from = staging.path().to_owned();
    let placed = blocking(move || put_in_place(&from, &dir, &moves)).await;
    let replaced = placed.with_context(|| {
        format!(
            "only a part of the backup is in place in {}: remove the cause, and run the command again with --force",
            data_dir.display()
        )
    })?;
    fs::remove_file(&unfinished)
        .and_then(|()| File::open(data_dir)?.sync_all())
        .with_context(|| format!("cannot remove {}", unfinished.display()))?;
    Ok(replaced)
}

/// Runs something that blocks.
async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    task::spawn_blocking(run)
        .await
        .context("the restore was interrupted")?
}

/// The data directory and the database, according to the command line and to the settings that are in force afterwards.
fn destination(job: &Job, scanned: &Scanned) -> anyhow::Result<(PathBuf, Location)> {
    let restored = scanned.settings().filter(|_| job.with_config);
    let text = match (restored, &job.sources.settings) {
        (Some(content), _) => String::from_utf8(content.to_vec()).ok(),
        (None, Some(path)) => fs::read_to_string(path).ok(),
        (None, None) => None,
    };
    let settings = startup::state_settings(&text.unwrap_or_default(), &job.overrides);
    let dir = config::data_dir(&settings, &startup::env)?;
    let dir = std::path::absolute(&dir)
        .with_context(|| format!("cannot make the path {} absolute", dir.display()))?;
    let location = startup::location(&settings, &dir);
    Ok((dir, location))
}

fn check_engine(manifest: &Manifest, location: &Location) -> anyhow::Result<()> {
    match (manifest.database.engine.as_str(), location) {
        ("sqlite", Location::Sqlite(_)) | ("postgres", Location::Postgres(_)) => Ok(()),
        ("sqlite", Location::Postgres(_)) => bail!(
            "the backup is of a SQLite database, but the settings name the Postgres database at {location}: leave out \
             `database_url` and {}",
            startup::DATABASE_URL
        ),
        ("postgres", Location::Sqlite(_)) => bail!(
            "the backup is of a Postgres database: name one with {} or --database-url",
            startup::DATABASE_URL
        ),
        (engine, _) => bail!("the backup is of an unknown database, {engine:?}"),
    }
}

/// Root would restore files that the gateway of another user cannot read.
fn check_owner(data_dir: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let me = rustix::process::geteuid();
    match fs::metadata(data_dir) {
        Ok(meta) if meta.uid() != me.as_raw() => bail!(
            "the data directory {} belongs to the user {}: run the command as that user",
            data_dir.display(),
            meta.uid()
        ),
        _ => Ok(()),
    }
}

/// Removes what an interrupted restore unpacked. The caller holds the lock.
fn remove_stale(data_dir: &Path) {
    for entry in fs::read_dir(data_dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name
            .to_str()
            .is_some_and(|name| name.starts_with(STAGING_PREFIX))
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Restores the database on Postgres.
async fn import(job: &Job, scanned: &Scanned, location: &Location) -> anyhow::Result<()> {
    let (sender, mut chunks) = mpsc::channel(MAX_QUEUED_CHUNKS);
    let (content, progress) = (scanned.clone(), job.progress.clone());
    let reading = task::spawn_blocking(move || {
        let failed = unpack::chunks(&content, &progress, |chunk| {
            sender.blocking_send(Ok(chunk)).is_ok()
        });
        if let Err(error) = failed {
            let _ = sender.blocking_send(Err(io::Error::other(format!("{error:#}"))));
        }
    });
    let next = async || chunks.recv().await.transpose();
    let database = &scanned.manifest.database;
    let imported = Store::import(location, database, job.replace, next).await;
    drop(chunks);
    reading.await.context("the restore was interrupted")?;
    match imported {
        Ok(()) => Ok(()),
        Err(ImportError::Exists) => bail!(
            "the database at {location} has data already; nothing was changed. --force replaces it"
        ),
        Err(error) => Err(error).with_context(|| {
            format!("the database at {location} was not restored; nothing was changed")
        }),
    }
}

fn notes(job: &Job, scanned: &Scanned, data_dir: &Path) -> Vec<String> {
    let manifest = &scanned.manifest;
    let mut notes = Vec::new();
    let file = data_dir.join(master::KEY_FILE);
    let here = fs::read_to_string(&file).ok();
    let here = here.as_deref().and_then(Master::id_of);
    let given = startup::env(master::MASTER_KEY);
    let given = given.as_deref().and_then(Master::id_of);
    if let Some(id) = &manifest.master_key
        && given.or(here).as_ref() != Some(id)
    {
        notes.push(format!(
            "before the first start, put the master key {id} into {} or into the variable {}",
            file.display(),
            master::MASTER_KEY
        ));
    }
    if !data_dir.join(auth::admin_token::TOKEN_FILE).exists() {
        notes.push(
            "the administrator's token was not restored: put it into the data directory, or run `toolwharf key recover`"
                .to_owned(),
        );
    }
    if !job.with_config {
        notes.push("the configuration files were not restored".to_owned());
    }
    notes
}
