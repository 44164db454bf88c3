//! Scheduled backups: `[backup]` in the settings.
//!
//! The outcomes are in the database, so the schedule continues after a restart and on another replica. Of several
//! replicas, the one that gets the lease makes the backup. After a failure, the next attempt follows within ten minutes.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use config::Sources;
use engine::Gateway;
use model::BackupSettings;
use parking_lot::Mutex;
use store::{Backups, Store, Time};
use tokio::time::MissedTickBehavior;

use super::{
    Progress,
    create::{Job, Made, create},
    file::remove_stale,
    tree,
};
use crate::replica::{self, BACKUP, Replica};

/// Interval between checks whether a backup is due.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum time from a failure to the next attempt.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(600);
/// The beginning and the end of the names of files, with the time in UTC between them.
const NAME: (&str, &str) = ("toolwharf-", ".tar.zst");
const TIME_FORMAT: &str = "%Y%m%dT%H%M%SZ";

/// The last outcomes, also those of other replicas, for surfaces that do not wait for the database. They are read at
/// most half a minute after a change.
#[derive(Debug, Default)]
pub struct Latest(Mutex<Option<Backups>>);

impl Latest {
    /// The last outcomes. `None` if no backups are scheduled.
    #[must_use]
    pub fn get(&self) -> Option<Backups> {
        self.0.lock().clone()
    }
}

/// Makes backups according to the current settings, in a loop. `latest`: is kept up to date.
pub async fn run(
    gateway: &Gateway,
    store: &Store,
    sources: &Sources,
    data_dir: &Path,
    replica: Option<&Replica>,
    latest: &Latest,
) {
    let mut tick = tokio::time::interval(CHECK_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let settings = gateway.settings().backup.clone();
        let Some(folder) = settings.folder.clone() else {
            *latest.0.lock() = None;
            continue;
        };
        if !due(store, &settings, latest).await {
            continue;
        }
        if let Some(replica) = replica
            && replica.take(BACKUP).await.is_err()
        {
            continue;
        }
        // Another replica may have made one before this one got the lease.
        if due(store, &settings, latest).await {
            once(store, sources, data_dir, &folder, &settings).await;
            due(store, &settings, latest).await;
        }
        if let Some(replica) = replica {
            replica.give_back(BACKUP).await;
        }
    }
}

/// Reads the last outcomes, and returns whether a backup is due.
async fn due(store: &Store, settings: &BackupSettings, latest: &Latest) -> bool {
    match store.backups_get().await {
        Ok(last) => {
            let is_due = is_due(&last, settings.every, store::now());
            *latest.0.lock() = Some(last);
            is_due
        }
        Err(error) => {
            tracing::debug!("cannot read when the last backup was made: {error}");
            false
        }
    }
}

/// Returns whether a backup is due at `now`. `every`: the time from one to the next.
fn is_due(last: &Backups, every: Duration, now: Time) -> bool {
    let wait = match last.failing() {
        Some(_) => every.min(MAX_RETRY_DELAY),
        None => every,
    };
    // A time in the future comes from a clock that was wrong.
    last.last_attempt()
        .is_none_or(|at| at + wait <= now || at > now)
}

/// Makes a backup, removes old ones, and records the outcome.
async fn once(
    store: &Store,
    sources: &Sources,
    data_dir: &Path,
    folder: &Path,
    settings: &BackupSettings,
) {
    let host = replica::host();
    let made = make(store, sources, data_dir, folder, settings.volumes).await;
    let noted = match made {
        Ok(made) => {
            let file = made.file.display().to_string();
            tracing::info!(file, bytes = made.bytes, "made a backup");
            remove_old(folder, settings.keep);
            store.backup_succeeded(&host, &file, made.bytes).await
        }
        Err(error) => {
            let reason = format!("{error:#}");
            tracing::error!("the scheduled backup failed: {reason}");
            let folder = folder.display().to_string();
            store.backup_failed(&host, &folder, &reason).await
        }
    };
    if let Err(error) = noted {
        tracing::warn!("cannot record the outcome of the backup: {error}");
    }
}

async fn make(
    store: &Store,
    sources: &Sources,
    data_dir: &Path,
    folder: &Path,
    volumes: bool,
) -> anyhow::Result<Made> {
    tree::private_folder(folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    for file in files(folder, true)? {
        remove_stale(&file);
    }
    let now = store::now().format(TIME_FORMAT);
    create(Job {
        file: folder.join(format!("{}{now}{}", NAME.0, NAME.1)),
        replace: false,
        sources: sources.clone(),
        data_dir: data_dir.to_owned(),
        store: store.clone(),
        passphrase: None,
        volumes,
        progress: Arc::new(Progress::default()),
    })
    .await
}

/// Removes all but the newest files. Failures are logged.
fn remove_old(folder: &Path, keep: usize) {
    let old = match files(folder, false) {
        Ok(files) => files.into_iter().rev().skip(keep),
        Err(error) => {
            tracing::warn!("cannot remove old backups: {error:#}");
            return;
        }
    };
    for file in old {
        match fs::remove_file(&file) {
            Ok(()) => tracing::info!(file = %file.display(), "removed an old backup"),
            Err(error) => {
                tracing::warn!(file = %file.display(), "cannot remove an old backup: {error}");
            }
        }
    }
}

/// The files of this schedule in a folder, oldest first. `unfinished`: instead, the names of those that were not
/// completed.
fn files(folder: &Path, unfinished: bool) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.with_context(|| format!("cannot read {}", folder.display()))?;
    let mut found: Vec<PathBuf> = entries
        .iter()
        .filter_map(|entry| {
            let name = entry.file_name();
            let name = name.to_str()?;
            let name = match unfinished {
                true => name.strip_suffix(super::file::PARTIAL)?,
                false => name,
            };
            let time = name.strip_prefix(NAME.0)?.strip_suffix(NAME.1)?;
            let is_digit = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'T' | b'Z');
            (time.len() == 16 && time.bytes().all(is_digit)).then(|| folder.join(name))
        })
        .collect();
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use store::BackupRow;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn row(at: Time, reason: Option<&str>) -> Option<BackupRow> {
        Some(BackupRow {
            at,
            host: String::new(),
            place: String::new(),
            bytes: None,
            reason: reason.map(str::to_owned),
        })
    }

    #[test]
    fn o07_a_backup_is_due_after_its_time_and_soon_after_a_failure() {
        let now = store::now();
        let ago = |minutes: u64| now - Duration::from_secs(60 * minutes);
        let check = |succeeded: Option<u64>, failed: Option<u64>, expect| {
            let last = Backups {
                succeeded: succeeded.and_then(|at| row(ago(at), None)),
                failed: failed.and_then(|at| row(ago(at), Some("why"))),
            };
            assert_eq!(is_due(&last, DAY, now), expect, "{last:?}");
        };
        check(None, None, true);
        check(Some(1439), None, false);
        check(Some(1440), None, true);
        // The failure was before the success.
        check(Some(100), Some(200), false);
        check(Some(2000), Some(9), false);
        check(Some(2000), Some(10), true);
        check(None, Some(9), false);
        let future = Backups {
            succeeded: row(now + DAY, None),
            failed: None,
        };
        assert!(is_due(&future, DAY, now));
    }

    #[test]
    fn o07_only_the_newest_files_of_the_schedule_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let names = [
            "toolwharf-20260101T000000Z.tar.zst",
            "toolwharf-20260102T000000Z.tar.zst",
            "toolwharf-20260103T000000Z.tar.zst",
            "toolwharf-20260104T000000Z.tar.zst.partial",
            "toolwharf-before-the-upgrade.tar.zst",
            "other.tar.zst",
        ];
        for name in names {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let unfinished = files(dir.path(), true).unwrap();
        assert_eq!(unfinished.len(), 1);
        remove_stale(&unfinished[0]);
        remove_old(dir.path(), 2);
        let mut left: Vec<String> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, [names[5], names[1], names[2], names[4]]);
    }
}
