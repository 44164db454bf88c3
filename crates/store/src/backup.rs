//! The outcomes of scheduled backups: the last one that succeeded, and the last one that failed. All replicas see them.

use sqlx::FromRow;

use crate::{
    Store, Time,
    error::Result,
    id::now,
    sql::{Text, execute, rows},
};

/// The outcome of a scheduled backup.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub struct BackupRow {
    /// When it ended.
    pub at: Time,
    /// The name of the host whose gateway made it.
    pub host: String,
    /// The file, or after a failure its folder.
    pub place: String,
    /// The size of the file in bytes. `None` after a failure.
    pub bytes: Option<i64>,
    /// Why it failed. `None`: it succeeded.
    pub reason: Option<String>,
}

/// The last outcomes of scheduled backups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Backups {
    pub succeeded: Option<BackupRow>,
    pub failed: Option<BackupRow>,
}

impl Backups {
    /// When the last backup ended, whatever its outcome.
    #[must_use]
    pub fn last_attempt(&self) -> Option<Time> {
        let ends = [&self.succeeded, &self.failed];
        ends.into_iter().flatten().map(|row| row.at).max()
    }

    /// The last failure, unless a backup has succeeded since.
    #[must_use]
    pub fn failing(&self) -> Option<&BackupRow> {
        let failed = self.failed.as_ref()?;
        let succeeded = self.succeeded.as_ref();
        succeeded
            .is_none_or(|it| it.at < failed.at)
            .then_some(failed)
    }
}

impl Store {
    /// The last outcomes.
    ///
    /// # Errors
    /// Database errors.
    pub async fn backups_get(&self) -> Result<Backups> {
        let all = rows!(
            self.pool.read().await?,
            BackupRow,
            "SELECT at, host, place, bytes, reason FROM kb.toolwharf_backups",
        )?;
        let (failed, succeeded): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|row| row.reason.is_some());
        Ok(Backups {
            succeeded: succeeded.into_iter().next(),
            failed: failed.into_iter().next(),
        })
    }

    /// Records that a backup succeeded. `bytes`: the size of its file.
    ///
    /// # Errors
    /// Database errors.
    pub async fn backup_succeeded(&self, host: &str, file: &str, bytes: u64) -> Result<()> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.backup_note("ok", host, file, Some(bytes), None).await
    }

    /// Records that a backup into this folder failed.
    ///
    /// # Errors
    /// Database errors.
    pub async fn backup_failed(&self, host: &str, folder: &str, reason: &str) -> Result<()> {
        // A NUL, which no text may contain, could come from a path.
        let reason = reason.replace('\0', "");
        self.backup_note("failed", host, folder, None, Some(&reason))
            .await
    }

    async fn backup_note(
        &self,
        outcome: &'static str,
        host: &str,
        place: &str,
        bytes: Option<i64>,
        reason: Option<&str>,
    ) -> Result<()> {
        execute!(
            self.pool.write().await?,
            "INSERT INTO kb.toolwharf_backups (outcome, at, host, place, bytes, reason)
             VALUES ($1, $2, $3, $4, $5, $6)
             ON CONFLICT (outcome) DO UPDATE SET at = excluded.at, host = excluded.host, place = excluded.place,
                 bytes = excluded.bytes, reason = excluded.reason",
            outcome,
            now(),
            Text(host),
            Text(place),
            bytes,
            reason.map(Text),
        )?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(at: i64, reason: Option<&str>) -> Option<BackupRow> {
        Some(BackupRow {
            at: Time::from_timestamp(at, 0).unwrap(),
            host: "h".to_owned(),
            place: "p".to_owned(),
            bytes: None,
            reason: reason.map(str::to_owned),
        })
    }

    #[test]
    fn a_failure_counts_until_the_next_success() {
        let failing = |succeeded, failed| Backups { succeeded, failed }.failing().is_some();
        assert!(!failing(None, None));
        assert!(!failing(row(1, None), None));
        assert!(failing(None, row(1, Some("full"))));
        assert!(failing(row(1, None), row(2, Some("full"))));
        assert!(!failing(row(2, None), row(1, Some("full"))));
    }
}
