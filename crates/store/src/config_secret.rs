//! Secrets of the servers in the configuration file, sealed by the caller. They belong to no project.

use crate::{
    Page, SealedSecret, SecretRow, Store,
    error::{Error, Result},
    id::now,
    sql::{Key, execute, row, rows},
};

/// Maximum number of secrets. All of them are kept in memory.
pub const MAX_CONFIG_SECRETS: i64 = 500;

impl Store {
    /// Stores a secret. A secret of this name is replaced, and its version increases by one. The version in `secret` is
    /// ignored.
    ///
    /// # Errors
    /// [`Error::Conflict`] if there are too many secrets.
    pub async fn config_secret_put(&self, secret: &SealedSecret) -> Result<SecretRow> {
        let mut tx = self.pool.begin().await?;
        let row = row!(
            tx,
            SecretRow,
            "INSERT INTO kb.toolwharf_secrets AS s (name, version, nonce, sealed, created_at, updated_at)
             VALUES ($1, 1, $2, $3, $4, $4)
             ON CONFLICT (name) DO UPDATE SET
                 version = s.version + 1, nonce = excluded.nonce, sealed = excluded.sealed,
                 updated_at = excluded.updated_at
             RETURNING name, version, created_at, updated_at",
            Key(&secret.name),
            &secret.nonce[..],
            &secret.sealed[..],
            now(),
        )?;
        let row = row.ok_or_else(|| Error::not_found("secret", &secret.name))?;
        let counted = row!(tx, (i64,), "SELECT COUNT(*) FROM kb.toolwharf_secrets")?;
        if counted.is_some_and(|(count,)| count > MAX_CONFIG_SECRETS) {
            let why = "there are 500 secrets, which is the limit: remove one first";
            return Err(Error::conflict("secret", &secret.name, why));
        }
        tx.commit().await?;
        Ok(row)
    }

    /// The secrets by name, without values.
    pub async fn config_secret_list(&self, page: &Page) -> Result<Vec<SecretRow>> {
        rows!(
            self.pool.read().await?,
            SecretRow,
            "SELECT name, version, created_at, updated_at FROM kb.toolwharf_secrets
             WHERE name > $1 ORDER BY name LIMIT $2",
            Key(page.after.as_deref().unwrap_or_default()),
            page.limit(),
        )
    }

    /// All secrets by name. Not paged, because a server may use any of them.
    pub async fn config_secret_all(&self) -> Result<Vec<SealedSecret>> {
        rows!(
            self.pool.read().await?,
            SealedSecret,
            "SELECT name, version, nonce, sealed FROM kb.toolwharf_secrets ORDER BY name",
        )
    }

    /// # Errors
    /// [`Error::NotFound`] if the secret does not exist.
    pub async fn config_secret_delete(&self, name: &str) -> Result<()> {
        let removed = execute!(
            self.pool.write().await?,
            "DELETE FROM kb.toolwharf_secrets WHERE name = $1",
            Key(name),
        )?;
        Error::unless_found(removed, "secret", name)
    }
}
