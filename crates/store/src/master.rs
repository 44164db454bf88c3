//! The name of the master key in use, and the data keys that it wraps.
//!
//! A data key is written only while the row of its master key is locked, so that a rotation never misses one.

use std::fmt;

use model::ProjectId;
use sqlx::FromRow;

use crate::{
    Store, Time,
    error::{Error, Result},
    id::now,
    sql::{Key, execute, row, rows},
};

/// The name of the master key, and a value sealed with it, by which the key is recognised.
#[derive(Clone, PartialEq, FromRow)]
pub struct MasterRow {
    pub key_id: String,
    pub sealed_check: Vec<u8>,
    pub rotated_at: Time,
}

const ROTATED_ERROR: &str = "it is no longer in use: it was rotated";

impl Store {
    /// The master key in use. `None` if no master key was ever used.
    pub async fn master_get(&self) -> Result<Option<MasterRow>> {
        row!(
            self.pool.read().await?,
            MasterRow,
            "SELECT key_id, sealed_check, rotated_at FROM kb.master_key WHERE id = 1",
        )
    }

    /// Begins to use a master key if none is in use. Returns the one in use.
    pub async fn master_set_if_none(&self, key_id: &str, sealed_check: &[u8]) -> Result<MasterRow> {
        execute!(
            self.pool.write().await?,
            "INSERT INTO kb.master_key (id, key_id, sealed_check, rotated_at) VALUES (1, $1, $2, $3)
             ON CONFLICT (id) DO NOTHING",
            Key(key_id),
            sealed_check,
            now(),
        )?;
        let row = self.master_get().await?;
        row.ok_or_else(|| Error::not_found("master key", key_id))
    }

    /// All wrapped data keys, by project. Not paged, because a rotation needs them all.
    pub async fn master_data_keys(&self) -> Result<Vec<(ProjectId, Vec<u8>)>> {
        let rows = rows!(
            self.pool.read().await?,
            DataKey,
            "SELECT id, data_key FROM kb.projects WHERE data_key IS NOT NULL ORDER BY id",
        )?;
        Ok(rows.into_iter().map(|row| (row.id, row.data_key)).collect())
    }

    /// Switches to another master key. `rewrapped` contains the keys from [`Store::master_data_keys`] and `login_key`
    /// the key from [`Store::login_key`], unwrapped with the old master key and wrapped with the new one.
    ///
    /// # Errors
    /// [`Error::Conflict`] if `old` is not the master key in use, or if a data key was added or removed after the keys
    /// were read: start again.
    pub async fn master_rotate(
        &self,
        old: &str,
        new: &str,
        sealed_check: &[u8],
        rewrapped: &[(ProjectId, Vec<u8>)],
        login_key: Option<&[u8]>,
    ) -> Result<()> {
        let mut tx = self.pool.begin().await?;
        let changed = execute!(
            tx,
            "UPDATE kb.master_key SET key_id = $2, sealed_check = $3, rotated_at = $4, login_key = $5
             WHERE id = 1 AND key_id = $1 AND (login_key IS NULL) = $6",
            Key(old),
            Key(new),
            sealed_check,
            now(),
            login_key,
            login_key.is_none(),
        )?;
        if changed == 0 {
            return Err(Error::conflict("master key", old, ROTATED_ERROR));
        }
        for (project, wrapped) in rewrapped {
            let changed = execute!(
                tx,
                "UPDATE kb.projects SET data_key = $2 WHERE id = $1 AND data_key IS NOT NULL",
                Key(project.as_str()),
                &wrapped[..],
            )?;
            if changed == 0 {
                let why = "its data key is gone: start the rotation again";
                return Err(Error::conflict("project", project, why));
            }
        }
        let count = row!(
            tx,
            (i64,),
            "SELECT COUNT(*) FROM kb.projects WHERE data_key IS NOT NULL"
        )?;
        if count != i64::try_from(rewrapped.len()).ok().map(|count| (count,)) {
            let why =
                "a data key was added or removed during the rotation: start the rotation again";
            return Err(Error::conflict("master key", old, why));
        }
        tx.commit().await
    }

    /// A project's wrapped data key, if it has one.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the project does not exist.
    pub async fn project_data_key(&self, project: &ProjectId) -> Result<Option<Vec<u8>>> {
        let row = row!(
            self.pool.read().await?,
            (Option<Vec<u8>>,),
            "SELECT data_key FROM kb.projects WHERE id = $1",
            Key(project.as_str()),
        )?;
        let (key,) = row.ok_or_else(|| Error::not_found("project", project))?;
        Ok(key)
    }

    /// Stores a data key that was wrapped with this master key, unless the project has one. Returns the stored key.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the project does not exist, [`Error::Conflict`] if this is not the master key in use.
    pub async fn project_data_key_set_if_none(
        &self,
        project: &ProjectId,
        master: &str,
        wrapped: &[u8],
    ) -> Result<Vec<u8>> {
        let mut tx = self.pool.begin().await?;
        let locked = execute!(
            tx,
            "UPDATE kb.master_key SET key_id = key_id WHERE id = 1 AND key_id = $1",
            Key(master),
        )?;
        if locked == 0 {
            return Err(Error::conflict("master key", master, ROTATED_ERROR));
        }
        let row = row!(
            tx,
            (Vec<u8>,),
            "UPDATE kb.projects SET data_key = COALESCE(data_key, $2) WHERE id = $1 RETURNING data_key",
            Key(project.as_str()),
            wrapped,
        )?;
        let (key,) = row.ok_or_else(|| Error::not_found("project", project))?;
        tx.commit().await?;
        Ok(key)
    }
}

#[derive(FromRow)]
struct DataKey {
    #[sqlx(try_from = "String")]
    id: ProjectId,
    data_key: Vec<u8>,
}

impl fmt::Debug for MasterRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MasterRow")
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}
