//! The last good catalog of each server, so that a list is answered before the server is up.

use model::{ProjectId, ServerName};
use sqlx::FromRow;

use crate::{
    Store, Time,
    error::Result,
    id::now,
    project::scope,
    sql::{Key, Text, execute, rows},
};

/// A catalog as it was last seen.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub struct SnapshotRow {
    /// `None`: the server is one of the configuration file.
    pub project_id: Option<String>,
    #[sqlx(try_from = "String")]
    pub server: ServerName,
    /// Of the configuration that the server had: another one makes the snapshot worthless.
    pub config_digest: String,
    /// The engine's own text, to the byte.
    pub catalog: String,
    pub taken_at: Time,
}

/// A catalog to be remembered.
#[derive(Clone, Copy, Debug)]
pub struct NewSnapshot<'a> {
    pub server: &'a ServerName,
    pub config_digest: &'a str,
    pub catalog: &'a str,
}

impl Store {
    /// Remembers a server's catalog in place of the one before.
    pub async fn snapshot_put(
        &self,
        project: Option<&ProjectId>,
        snapshot: NewSnapshot<'_>,
    ) -> Result<()> {
        execute!(
            self.pool.write().await?,
            "INSERT INTO kb.catalog_snapshots (project_id, server, config_digest, catalog, taken_at)
             VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (project_id, server) DO UPDATE SET
                 config_digest = excluded.config_digest, catalog = excluded.catalog,
                 taken_at = excluded.taken_at",
            scope(project),
            Key(snapshot.server.as_str()),
            Key(snapshot.config_digest),
            Text(snapshot.catalog),
            now(),
        )?;
        Ok(())
    }

    /// All snapshots of a project by server; not paged, for a view needs them all.
    pub async fn snapshot_list(&self, project: Option<&ProjectId>) -> Result<Vec<SnapshotRow>> {
        rows!(
            self.pool.read().await?,
            SnapshotRow,
            "SELECT NULLIF(project_id, '') AS project_id, server, config_digest, catalog, taken_at
             FROM kb.catalog_snapshots WHERE project_id = $1 ORDER BY server",
            scope(project),
        )
    }
}
