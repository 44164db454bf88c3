//! Secrets, sealed by the caller. Lists contain no values, and `Debug` shows none.

use std::fmt;

use model::ProjectId;
use serde::Serialize;
use sqlx::FromRow;

use crate::{
    Page, Store, Time,
    error::{Error, Result},
    id::now,
    quota::Quota,
    sql::{Key, execute, row, rows},
};

/// A secret without its value.
#[derive(Clone, Debug, PartialEq, FromRow, Serialize)]
pub struct SecretRow {
    pub name: String,
    pub version: i32,
    pub created_at: Time,
    pub updated_at: Time,
}

/// A secret with its sealed value.
#[derive(Clone, PartialEq, FromRow)]
pub struct SealedSecret {
    pub name: String,
    pub version: i32,
    pub nonce: Vec<u8>,
    pub sealed: Vec<u8>,
}

impl Store {
    /// Stores a version of a secret: 1 for a new one, otherwise the stored version plus 1.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the project does not exist, [`Error::Conflict`] if the stored version is not the one
    /// before this, because another writer came first.
    pub async fn secret_put(
        &self,
        project: &ProjectId,
        secret: &SealedSecret,
    ) -> Result<SecretRow> {
        let mut tx = self.locked(Some(project)).await?;
        let row = row!(
            tx,
            SecretRow,
            "INSERT INTO kb.secrets AS s (project_id, name, version, nonce, sealed, created_at, updated_at)
             SELECT $1, $2, $3, $4, $5, $6, $6
             WHERE $3 = 1 OR EXISTS (SELECT 1 FROM kb.secrets WHERE project_id = $1 AND name = $2)
             ON CONFLICT (project_id, name) DO UPDATE SET
                 version = excluded.version, nonce = excluded.nonce, sealed = excluded.sealed,
                 updated_at = excluded.updated_at
             WHERE s.version = excluded.version - 1
             RETURNING name, version, created_at, updated_at",
            Key(project.as_str()),
            Key(&secret.name),
            secret.version,
            &secret.nonce[..],
            &secret.sealed[..],
            now(),
        )?;
        let why = "it has changed since it was read: try again";
        let row = row.ok_or_else(|| Error::conflict("secret", &secret.name, why))?;
        if row.version == 1 {
            Quota::Secrets.check(&mut tx, project, &secret.name).await?;
        }
        tx.commit().await?;
        Ok(row)
    }

    /// A project's secrets by name, without values.
    pub async fn secret_list(&self, project: &ProjectId, page: &Page) -> Result<Vec<SecretRow>> {
        rows!(
            self.pool.read().await?,
            SecretRow,
            "SELECT name, version, created_at, updated_at FROM kb.secrets
             WHERE project_id = $1 AND name > $2 ORDER BY name LIMIT $3",
            Key(project.as_str()),
            Key(page.after.as_deref().unwrap_or_default()),
            page.limit(),
        )
    }

    /// # Errors
    /// [`Error::NotFound`] if the project has no such secret.
    pub async fn secret_get(&self, project: &ProjectId, name: &str) -> Result<SealedSecret> {
        let row = row!(
            self.pool.read().await?,
            SealedSecret,
            "SELECT name, version, nonce, sealed FROM kb.secrets WHERE project_id = $1 AND name = $2",
            Key(project.as_str()),
            Key(name),
        )?;
        row.ok_or_else(|| Error::not_found("secret", name))
    }

    /// All secrets of a project by name. Not paged, because a server may use any of them.
    pub async fn secret_all(&self, project: &ProjectId) -> Result<Vec<SealedSecret>> {
        rows!(
            self.pool.read().await?,
            SealedSecret,
            "SELECT name, version, nonce, sealed FROM kb.secrets WHERE project_id = $1 ORDER BY name",
            Key(project.as_str()),
        )
    }

    /// # Errors
    /// [`Error::NotFound`] if the project has no such secret.
    pub async fn secret_delete(&self, project: &ProjectId, name: &str) -> Result<()> {
        let removed = execute!(
            self.pool.write().await?,
            "DELETE FROM kb.secrets WHERE project_id = $1 AND name = $2",
            Key(project.as_str()),
            Key(name),
        )?;
        Error::unless_found(removed, "secret", name)
    }
}

impl fmt::Debug for SealedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedSecret")
            .field("name", &self.name)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}
