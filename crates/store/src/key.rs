//! API keys with their projects and role. Only hashes are stored.
//!
//! Invariant: no two keys that are not revoked have the same name, with one exception. If the name is taken by a key that
//! the creator of another one may not see, both have it: a refusal would tell the creator about a key of a foreign
//! project. `name_scope` then has the projects of the second key, and is part of the unique index.

use std::collections::{BTreeSet, HashMap};

use model::{ProjectId, ToolMode};
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, FromRow};

use crate::{
    Page, Store, Time,
    error::{Error, Result},
    id::{micros, new_id, now},
    names::words,
    project,
    quota::Quota,
    sql::{Conn, Filter, Key, Text, Tx, execute, on, page, row, rows, table},
};

table!(
    $, "kb.api_keys",
    "id, project_id, name, name_scope, role, hint, created_at, last_used_at, expires_at, revoked_at, tools"
);

/// The number that the last of many keys with one name gets, at most.
const MAX_NUMBER: u32 = 1_000;

/// The permissions of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Permits everything in every project. Such a key has no project.
    Admin,
    /// Permits everything in the key's projects, or in all projects if it has none.
    Manage,
    /// Permits the use of tools in the key's projects, or in all projects if it has none.
    Call,
    /// Permits reading the key's projects, or all projects if it has none.
    Read,
}

/// A key without its hash.
#[derive(Clone, Debug, PartialEq, FromRow, Serialize)]
pub struct KeyRow {
    pub id: String,
    /// The first project. `None`: for all projects.
    pub project_id: Option<String>,
    /// The other projects, sorted.
    #[sqlx(skip)]
    pub more_projects: Vec<String>,
    pub name: String,
    /// Empty, or the key's projects if another key has its name.
    pub name_scope: String,
    #[sqlx(try_from = "String")]
    pub role: Role,
    /// A part of the key by which a user can recognise it.
    pub hint: String,
    pub created_at: Time,
    pub last_used_at: Option<Time>,
    pub expires_at: Option<Time>,
    pub revoked_at: Option<Time>,
    /// A [`ToolMode`], perhaps of a later version. `None`: clients get the tools of the project or of the gateway.
    pub tools: Option<String>,
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
    /// Empty: for all projects. Required for [`Role::Admin`].
    pub projects: &'a [ProjectId],
    pub name: &'a str,
    /// The projects whose keys the creator may see. `None`: all keys. Keys that the creator may not see do not affect
    /// the outcome.
    pub visible: Option<&'a [ProjectId]>,
    pub role: Role,
    pub hash: &'a str,
    pub hint: &'a str,
    pub expires_at: Option<Time>,
    pub tools: Option<ToolMode>,
}

impl KeyRow {
    /// True if the key is valid at this time.
    pub fn is_living(&self, now: Time) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| end > now)
    }

    /// The key's projects. Empty: the key is for all projects.
    pub fn projects(&self) -> impl Iterator<Item = &str> {
        let first = self.project_id.iter();
        first.chain(&self.more_projects).map(String::as_str)
    }
}

/// The name of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyName {
    pub name: String,
    /// Empty, or the key's projects if another key has its name.
    pub scope: String,
}

impl KeyName {
    /// The name among all keys. May name projects, so it is only for those who see all projects.
    #[must_use]
    pub fn full(&self) -> String {
        match self.scope.as_str() {
            "" => self.name.clone(),
            scope => format!("{} ({scope})", self.name),
        }
    }
}

/// The outcome of an attempt to store a key.
enum Put {
    Stored(Box<KeyRow>),
    /// Another key has the name.
    NameTaken,
    /// The same key is already stored.
    HashTaken,
}

impl Store {
    /// Stores a new key.
    ///
    /// # Errors
    /// [`Error::NotFound`] if a project does not exist, [`Error::Conflict`] if the hash is already stored, or if a key
    /// that is visible to the creator has the name and is not revoked.
    pub async fn key_put(&self, key: NewKey<'_>) -> Result<KeyRow> {
        match self.key_try_put(key).await? {
            Put::Stored(row) => Ok(*row),
            Put::HashTaken => Err(Error::conflict("key", key.name, "it is already stored")),
            Put::NameTaken => {
                let why = "the name is taken: choose another one, or revoke the key that has it";
                Err(Error::conflict("key", key.name, why))
            }
        }
    }

    /// Stores a new key. If the name is taken, the key gets the next free number: `name (2)`.
    ///
    /// # Errors
    /// As [`Store::key_put`].
    pub async fn key_put_numbered(&self, key: NewKey<'_>) -> Result<KeyRow> {
        for number in 1..=MAX_NUMBER {
            let numbered = match number {
                1 => key.name.to_owned(),
                number => format!("{} ({number})", key.name),
            };
            let name = numbered.as_str();
            match self.key_try_put(NewKey { name, ..key }).await? {
                Put::Stored(row) => return Ok(*row),
                Put::NameTaken => {}
                Put::HashTaken => break,
            }
        }
        self.key_put(key).await
    }

    async fn key_try_put(&self, key: NewKey<'_>) -> Result<Put> {
        if key.role == Role::Admin && !key.projects.is_empty() {
            let why = "an administrator's key has no project";
            return Err(Error::Invalid(why.to_owned()));
        }
        // Sorted, so that two transactions lock common projects in the same order.
        let projects: BTreeSet<&ProjectId> = key.projects.iter().collect();
        let mut tx = self.pool.begin().await?;
        for project in &projects {
            project::lock(&mut tx, project).await?;
        }
        if name_is_taken(&mut tx, &key).await? {
            return Ok(Put::NameTaken);
        }
        let ids: Vec<&str> = projects.iter().map(|id| id.as_str()).collect();
        let mut stored = insert(&mut tx, &key, ids.first().copied(), "").await?;
        if stored.is_none() {
            let hash = "SELECT id FROM kb.api_keys WHERE hash = $1";
            if row!(tx, (String,), hash, Key(key.hash))?.is_some() {
                return Ok(Put::HashTaken);
            }
            // Either another transaction has just stored a key with this name, or the creator may not see the key that
            // has it.
            if key.visible.is_none() || name_is_taken(&mut tx, &key).await? {
                return Ok(Put::NameTaken);
            }
            stored = insert(&mut tx, &key, ids.first().copied(), &ids.join(", ")).await?;
        }
        let Some(mut row) = stored else {
            return Ok(Put::NameTaken);
        };
        for more in ids.iter().skip(1) {
            execute!(
                tx,
                "INSERT INTO kb.toolwharf_key_projects (key_id, project_id) VALUES ($1, $2)",
                Key(&row.id),
                Key(more),
            )?;
            row.more_projects.push((*more).to_owned());
        }
        for project in projects {
            Quota::Keys.check(&mut tx, project, key.name).await?;
        }
        tx.commit().await?;
        Ok(Put::Stored(Box::new(row)))
    }

    /// Keys by age, including revoked ones, optionally only those of one project. `page.after` is an id.
    pub async fn key_list(&self, project: Option<&ProjectId>, page: &Page) -> Result<Vec<KeyRow>> {
        let mut conn = self.pool.read().await?;
        let mut keys = match project {
            Some(project) => rows!(
                conn,
                KeyRow,
                query!(select "WHERE (project_id = $1
                         OR id IN (SELECT key_id FROM kb.toolwharf_key_projects WHERE project_id = $1))
                     AND id > $2 ORDER BY id LIMIT $3"),
                Key(project.as_str()),
                Key(page.after.as_deref().unwrap_or_default()),
                page.limit(),
            )?,
            None => page!(
                conn,
                KeyRow,
                query!(select ""),
                Filter::default().and("id >", page.after.as_deref()),
                "id",
                page
            )?,
        };
        add_projects(&mut conn, keys.iter_mut()).await?;
        Ok(keys)
    }

    /// The names of keys by id, including revoked ones.
    pub async fn key_names(&self, ids: &[&str]) -> Result<HashMap<String, KeyName>> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let places: Vec<String> = (1..=ids.len()).map(|number| format!("${number}")).collect();
        let text = format!(
            "SELECT id, name, name_scope FROM kb.api_keys WHERE id IN ({})",
            places.join(", ")
        );
        let mut conn = self.pool.read().await?;
        let named = on!(conn, |conn: Db| {
            let mut query = sqlx::query_as::<Db, (String, String, String)>(AssertSqlSafe(text))
                .persistent(false);
            for id in ids {
                query = query.bind(Key(id));
            }
            query.fetch_all(conn)
        })?;
        let named = named.into_iter();
        Ok(named
            .map(|(id, name, scope)| (id, KeyName { name, scope }))
            .collect())
    }

    /// The id of the key with this name. Of several, it is one of the project, then one that is not revoked, then the
    /// newest.
    pub async fn key_named(
        &self,
        project: Option<&ProjectId>,
        name: &str,
    ) -> Result<Option<String>> {
        let row = row!(
            self.pool.read().await?,
            (String,),
            "SELECT id FROM kb.api_keys AS k WHERE name = $1
             ORDER BY CASE WHEN project_id = $2 OR EXISTS (SELECT 1 FROM kb.toolwharf_key_projects AS p
                     WHERE p.key_id = k.id AND p.project_id = $2) THEN 0 ELSE 1 END,
                 CASE WHEN revoked_at IS NULL THEN 0 ELSE 1 END, name_scope, id DESC
             LIMIT 1",
            Key(name),
            project::scope(project),
        )?;
        Ok(row.map(|(id,)| id))
    }

    /// The key with this id, including a revoked or expired one.
    pub async fn key_get(&self, id: &str) -> Result<Option<KeyRow>> {
        let mut conn = self.pool.read().await?;
        let mut key = row!(conn, KeyRow, query!(select "WHERE id = $1"), Key(id))?;
        add_projects(&mut conn, key.iter_mut()).await?;
        Ok(key)
    }

    /// The key with this hash, including a revoked or expired one.
    pub async fn key_by_hash(&self, hash: &str) -> Result<Option<KeyRow>> {
        let mut conn = self.pool.read().await?;
        let mut key = row!(conn, KeyRow, query!(select "WHERE hash = $1"), Key(hash))?;
        add_projects(&mut conn, key.iter_mut()).await?;
        Ok(key)
    }

    /// All keys that are not revoked, including expired ones. Not paged, because the caller caches them all.
    pub async fn keys_hashed(&self) -> Result<Vec<HashedKey>> {
        let mut conn = self.pool.read().await?;
        let mut keys = rows!(
            conn,
            HashedKey,
            query!(select "hash", "WHERE revoked_at IS NULL ORDER BY id"),
        )?;
        add_projects(&mut conn, keys.iter_mut().map(|hashed| &mut hashed.key)).await?;
        Ok(keys)
    }

    /// A value that changes whenever the result of [`Store::keys_hashed`] changes.
    pub async fn keys_revision(&self) -> Result<String> {
        // Keys can only be added, be revoked, or be deleted or lose a project when a project is deleted. The value also
        // changes after a database failover, which may lose such changes.
        let row = row!(
            self.pool.read().await?,
            (i64, i64, String, i64, i64),
            "SELECT COUNT(*), COUNT(revoked_at), COALESCE(MAX(id), ''), (SELECT COUNT(*) FROM kb.toolwharf_timelines),
                 (SELECT COUNT(*) FROM kb.toolwharf_key_projects)
             FROM kb.api_keys",
        )?;
        let (keys, revoked, newest, timelines, more) = row.unwrap_or_default();
        Ok(format!("{keys} {revoked} {newest} {timelines} {more}"))
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
                 WHERE id = $1 AND ($2 = '' OR project_id = $2
                     OR EXISTS (SELECT 1 FROM kb.toolwharf_key_projects WHERE key_id = $1 AND project_id = $2))"),
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

/// Returns whether a key that is visible to the creator has the name of the new key and is not revoked.
async fn name_is_taken(tx: &mut Tx, key: &NewKey<'_>) -> Result<bool> {
    let mut named = rows!(
        tx,
        KeyRow,
        query!(select "WHERE name = $1 AND revoked_at IS NULL ORDER BY id"),
        Key(key.name),
    )?;
    let Some(visible) = key.visible else {
        return Ok(!named.is_empty());
    };
    for row in &mut named {
        row.more_projects = rows!(
            tx,
            (String,),
            "SELECT project_id FROM kb.toolwharf_key_projects WHERE key_id = $1",
            Key(&row.id),
        )?
        .into_iter()
        .map(|(project,)| project)
        .collect();
    }
    let is_visible = |id: &str| visible.iter().any(|project| project.as_str() == id);
    Ok(named.iter().any(|row| row.projects().any(is_visible)))
}

/// Stores a key with its first project. `None`: its hash or its name is taken.
async fn insert(
    tx: &mut Tx,
    key: &NewKey<'_>,
    project: Option<&str>,
    scope: &str,
) -> Result<Option<KeyRow>> {
    row!(
        tx,
        KeyRow,
        query!(returning "INSERT INTO kb.api_keys (id, project_id, name, name_scope, role, hash, hint, created_at, expires_at, tools)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
             ON CONFLICT DO NOTHING"),
        Key(&new_id()),
        project.map(Key),
        Key(key.name),
        Text(scope),
        key.role.as_str(),
        Key(key.hash),
        Text(key.hint),
        now(),
        key.expires_at.map(micros),
        key.tools.map(ToolMode::as_str),
    )
}

/// Adds the other projects of keys that are sorted by id.
async fn add_projects<'a>(
    conn: &mut Conn,
    keys: impl Iterator<Item = &'a mut KeyRow>,
) -> Result<()> {
    let mut keys: Vec<&mut KeyRow> = keys.collect();
    let (Some(first), Some(last)) = (keys.first(), keys.last()) else {
        return Ok(());
    };
    let links = rows!(
        conn,
        (String, String),
        "SELECT key_id, project_id FROM kb.toolwharf_key_projects WHERE key_id >= $1 AND key_id <= $2
         ORDER BY key_id, project_id",
        Key(&first.id),
        Key(&last.id),
    )?;
    for (key, project) in links {
        if let Ok(at) = keys.binary_search_by(|row| row.id.cmp(&key)) {
            keys[at].more_projects.push(project);
        }
    }
    Ok(())
}

words!(Role, "role", {
    Admin => "admin",
    Manage => "manage",
    Call => "call",
    Read => "read",
});
