//! API keys with their project and role. Only hashes are stored.

use model::ProjectId;
use serde::{Deserialize, Serialize};
use sqlx::FromRow;

use crate::{
    Page, Store, Time,
    error::{Error, Result},
    id::{micros, new_id, now},
    project,
    quota::Quota,
    sql::{Filter, Key, Text, execute, page, row, rows, table, words},
};

table!($, "kb.api_keys", "id, project_id, name, role, hint, created_at, last_used_at, expires_at, revoked_at");

/// The permissions of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Permits everything in every project. Such a key has no project.
    Admin,
    /// Permits everything in the key's project, or in all projects if it has none.
    Manage,
    /// Permits the use of tools in the key's project, or in all projects if it has none.
    Call,
    /// Permits reading the key's project, or all projects if it has none.
    Read,
}

/// A key without its hash.
#[derive(Clone, Debug, PartialEq, FromRow, Serialize)]
pub struct KeyRow {
    pub id: String,
    /// `None`: for all projects.
    pub project_id: Option<String>,
    pub name: String,
    #[sqlx(try_from = "String")]
    pub role: Role,
    /// A part of the key by which a user can recognise it.
    pub hint: String,
    pub created_at: Time,
    pub last_used_at: Option<Time>,
    pub expires_at: Option<Time>,
    pub revoked_at: Option<Time>,
}

/// A key that is not revoked, with its hash. Used to authenticate callers.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub struct HashedKey {
    #[sqlx(flatten)]
    pub key: KeyRow,
    pub hash: String,
}

#[derive(Clone, Copy, Debug)]
pub struct NewKey<'a> {
    /// `None`: for all projects. Required for [`Role::Admin`].
    pub project: Option<&'a ProjectId>,
    pub name: &'a str,
    pub role: Role,
    pub hash: &'a str,
    pub hint: &'a str,
    pub expires_at: Option<Time>,
}

impl KeyRow {
    /// True if the key is valid at this time.
    pub fn is_living(&self, now: Time) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| end > now)
    }
}

impl Store {
    /// Stores a new key.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the project does not exist, [`Error::Conflict`] if the hash is already stored.
    pub async fn key_put(&self, key: NewKey<'_>) -> Result<KeyRow> {
        if key.role == Role::Admin && key.project.is_some() {
            let why = "an administrator's key has no project";
            return Err(Error::Invalid(why.to_owned()));
        }
        let mut tx = self.locked(key.project).await?;
        let row = row!(
            tx,
            KeyRow,
            query!(returning "INSERT INTO kb.api_keys (id, project_id, name, role, hash, hint, created_at, expires_at)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
                 ON CONFLICT (hash) DO NOTHING"),
            Key(&new_id()),
            key.project.map(|project| Key(project.as_str())),
            Key(key.name),
            key.role.as_str(),
            Key(key.hash),
            Text(key.hint),
            now(),
            key.expires_at.map(micros),
        )?;
        let row = row.ok_or_else(|| Error::conflict("key", key.name, "it is already stored"))?;
        if let Some(project) = key.project {
            Quota::Keys.check(&mut tx, project, key.name).await?;
        }
        tx.commit().await?;
        Ok(row)
    }

    /// Keys by age, including revoked ones, optionally only those of one project. `page.after` is an id.
    pub async fn key_list(&self, project: Option<&ProjectId>, page: &Page) -> Result<Vec<KeyRow>> {
        page!(
            self.pool.read().await?,
            KeyRow,
            query!(select ""),
            Filter::default()
                .and("project_id =", project.map(ProjectId::as_str))
                .and("id >", page.after.as_deref()),
            "id",
            page
        )
    }

    /// The key with this id, including a revoked or expired one.
    pub async fn key_get(&self, id: &str) -> Result<Option<KeyRow>> {
        row!(
            self.pool.read().await?,
            KeyRow,
            query!(select "WHERE id = $1"),
            Key(id),
        )
    }

    /// The key with this hash, including a revoked or expired one.
    pub async fn key_by_hash(&self, hash: &str) -> Result<Option<KeyRow>> {
        row!(
            self.pool.read().await?,
            KeyRow,
            query!(select "WHERE hash = $1"),
            Key(hash),
        )
    }

    /// All keys that are not revoked, including expired ones. Not paged, because the caller caches them all.
    pub async fn keys_hashed(&self) -> Result<Vec<HashedKey>> {
        rows!(
            self.pool.read().await?,
            HashedKey,
            query!(select "hash", "WHERE revoked_at IS NULL ORDER BY id"),
        )
    }

    /// A value that changes whenever the result of [`Store::keys_hashed`] changes.
    pub async fn keys_revision(&self) -> Result<String> {
        // Keys can only be added, be revoked, or be deleted with their project. The value also changes after a database
        // failover, which may lose such changes.
        let row = row!(
            self.pool.read().await?,
            (i64, i64, String, i64),
            "SELECT COUNT(*), COUNT(revoked_at), COALESCE(MAX(id), ''), (SELECT COUNT(*) FROM kb.toolwharf_timelines)
             FROM kb.api_keys",
        )?;
        let (keys, revoked, newest, timelines) = row.unwrap_or_default();
        Ok(format!("{keys} {revoked} {newest} {timelines}"))
    }

    /// Revokes a key. `project` restricts the lookup to one project. Revoking a revoked key succeeds.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the key does not exist, [`Error::Conflict`] if it is the last valid administrator key,
    /// because without it no key could be created.
    pub async fn key_revoke(&self, project: Option<&ProjectId>, id: &str) -> Result<KeyRow> {
        let mut tx = self.pool.begin().await?;
        // Concurrent revocations of the last two keys must take turns, so lock all of these rows.
        execute!(
            tx,
            "UPDATE kb.api_keys SET name = name WHERE role = 'admin' AND revoked_at IS NULL"
        )?;
        let row = row!(
            tx,
            KeyRow,
            query!(returning "UPDATE kb.api_keys SET revoked_at = COALESCE(revoked_at, $3)
                 WHERE id = $1 AND ($2 = '' OR project_id = $2)"),
            Key(id),
            project::scope(project),
            now(),
        )?;
        let row = row.ok_or_else(|| Error::not_found("key", id))?;
        if row.role == Role::Admin {
            let others = row!(
                tx,
                (i64,),
                "SELECT COUNT(*) FROM kb.api_keys
                 WHERE role = 'admin' AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $1)",
                now(),
            )?;
            if others == Some((0,)) {
                let why = "it is the last administrator key: create another one first";
                return Err(Error::conflict("key", row.name, why));
            }
        }
        tx.commit().await?;
        Ok(row)
    }

    /// Records when keys were last used. Ignores a time earlier than the stored one.
    pub async fn keys_touch(&self, used: &[(String, Time)]) -> Result<()> {
        let mut tx = self.pool.begin().await?;
        for (id, at) in used {
            execute!(
                tx,
                "UPDATE kb.api_keys SET last_used_at = $2
                 WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < $2)",
                Key(id),
                micros(*at),
            )?;
        }
        tx.commit().await
    }
}

words!(Role, "role", {
    Admin => "admin",
    Manage => "manage",
    Call => "call",
    Read => "read",
});
