//! Puts what was unpacked into its place, and keeps what was there.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};

use super::{
    super::{CLIENTS, CONFIG, DATA, DATABASE_ENTRY, HOSTING, VOLUMES, archive::ConfigFile, tree},
    Job,
    unpack::{KEYS, Scanned},
};
use crate::{master, startup};

/// Suffixes of what lies next to a SQLite database, and must not be used with another one: SQLite's log, and the folder
/// with the journals of calls.
const LOGS: [&str; 3] = ["-wal", "-shm", "-calls"];

/// A file or folder to put into place.
pub(super) struct Move {
    /// Its path in the temporary folder. `None`: the target only has to go.
    from: Option<PathBuf>,
    to: PathBuf,
    /// The content of a configuration file. An existing file with the same content is not a conflict.
    content: Option<Vec<u8>>,
}

impl Move {
    fn item(from: impl Into<PathBuf>, to: PathBuf) -> Self {
        Self {
            from: Some(from.into()),
            to,
            content: None,
        }
    }
}

/// All files and folders of a backup with their targets.
///
/// # Errors
/// If a configuration file has no place.
pub(super) fn moves(job: &Job, scanned: &Scanned, data_dir: &Path) -> anyhow::Result<Vec<Move>> {
    let mut all = Vec::new();
    for item in &*scanned.items {
        if let Ok(rest) = item.strip_prefix(DATA) {
            all.push(Move::item(item, data_dir.join(rest)));
        } else if let Ok(rest) = item.strip_prefix(VOLUMES) {
            all.push(Move::item(item, data_dir.join(HOSTING).join(rest)));
        }
    }
    if scanned.keys.is_some() && job.with_keys {
        for name in [master::KEY_FILE, auth::admin_token::TOKEN_FILE, CLIENTS] {
            all.push(Move::item(Path::new(KEYS).join(name), data_dir.join(name)));
        }
    }
    if job.with_config {
        configuration(job, scanned, &mut all)?;
    }
    if scanned.manifest.database.engine == "sqlite" {
        let file = data_dir.join(startup::DATABASE_FILE);
        for log in LOGS {
            let mut to = file.clone().into_os_string();
            to.push(log);
            all.push(Move {
                from: None,
                to: to.into(),
                content: None,
            });
        }
        // The database comes last: until it is there, the rest is of no use.
        all.push(Move::item(DATABASE_ENTRY, file));
    }
    Ok(all)
}

fn configuration(job: &Job, scanned: &Scanned, all: &mut Vec<Move>) -> anyhow::Result<()> {
    let manifest = &scanned.manifest;
    let mut add = |file: &ConfigFile, to: Option<&PathBuf>| -> anyhow::Result<()> {
        let Some(to) = to else {
            bail!(
                "the configuration named no place for {} of the backup: name one with --config, or leave the configuration \
                 out with --without-config",
                file.path.display()
            );
        };
        all.push(Move {
            from: Some(PathBuf::from(&file.entry)),
            to: std::path::absolute(to)?,
            content: scanned.content(file).map(<[u8]>::to_vec),
        });
        Ok(())
    };
    for file in &manifest.servers {
        // The folder of an entry is the number of the file in the configuration.
        let number = Path::new(&file.entry)
            .iter()
            .nth(1)
            .and_then(|it| it.to_str());
        let number = number.and_then(|it| it.parse::<usize>().ok());
        let to = number.and_then(|number| job.sources.servers.get(number));
        add(file, to)?;
    }
    if let Some(file) = &manifest.settings {
        add(file, job.sources.settings.as_ref())?;
    }
    Ok(())
}

/// The targets that exist, and would be replaced by something else.
pub(super) fn conflicts(moves: &[Move]) -> Vec<String> {
    let exists = |one: &&Move| match (&one.content, fs::symlink_metadata(&one.to)) {
        (Some(content), Ok(_)) => fs::read(&one.to).ok().as_ref() != Some(content),
        (None, Ok(meta)) if meta.is_dir() => !is_empty(&one.to),
        (_, found) => found.is_ok(),
    };
    let found = moves.iter().filter(exists);
    found.map(|one| one.to.display().to_string()).collect()
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

/// Renames everything into place. Existing files are moved to a folder in the data directory, which is returned if
/// there were any. Blocks.
pub(super) fn put_in_place(
    staging: &Path,
    data_dir: &Path,
    moves: &[Move],
) -> anyhow::Result<Option<PathBuf>> {
    let now = store::now().format("%Y%m%dT%H%M%S");
    let old = data_dir.join(format!("replaced-{now}"));
    let mut has_old = false;
    for one in moves {
        let from = one.from.as_ref().map(|from| staging.join(from));
        let shown = one.to.display();
        if from.as_ref().is_some_and(|from| !from.exists()) {
            continue;
        }
        if fs::symlink_metadata(&one.to).is_ok() {
            keep(&one.to, data_dir, &old)
                .with_context(|| format!("cannot move {shown} to {}", old.display()))?;
            has_old = true;
        }
        let Some(from) = from else { continue };
        let folder = one.to.parent().unwrap_or(data_dir);
        tree::private_folder(folder)
            .and_then(|()| move_to(&from, &one.to))
            .and_then(|()| File::open(folder)?.sync_all())
            .with_context(|| format!("cannot write {shown}"))?;
    }
    Ok(has_old.then_some(old))
}

/// Moves an old file away. A configuration file, which may be on another file system, is copied.
fn keep(path: &Path, data_dir: &Path, old: &Path) -> io::Result<()> {
    let to = match path.strip_prefix(data_dir) {
        Ok(inside) => old.join(inside),
        Err(_) => {
            let name = path.file_name().unwrap_or_default();
            let mut to = old.join(CONFIG).join(name);
            // Configuration files of several folders can have the same name.
            let mut number = 1;
            while to.exists() {
                number += 1;
                to = old.join(format!("{CONFIG}-{number}")).join(name);
            }
            to
        }
    };
    if let Some(folder) = to.parent() {
        tree::private_folder(folder)?;
    }
    move_to(path, &to)
}

/// Renames, or copies a file to another file system. The new file is complete as soon as it has its name.
fn move_to(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            let mut name = to.as_os_str().to_owned();
            name.push(".new");
            let new = PathBuf::from(name);
            let _ = fs::remove_file(&new);
            let mut file = tree::private_file(&new)?;
            io::copy(&mut File::open(from)?, &mut file)?;
            file.sync_all()?;
            fs::rename(&new, to)?;
            fs::remove_file(from)
        }
        done => done,
    }
}
