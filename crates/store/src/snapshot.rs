//! The last good catalog of each server, so that lists can be served before the server is running.

use model::{ProjectId, ServerName};
use sqlx::FromRow;

use crate::{
    Store, Time,
    error::Result,
    id::now,
    project::scope,
    sql::{Key, Text, execute, rows},
};

/// The last known catalog of a server.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub struct SnapshotRow {
    /// `None`: the server comes from the configuration file.
    pub project_id: Option<String>,
    #[sqlx(try_from = "String")]
    pub server: ServerName,
    /// The digest of the server's configuration. A snapshot with a different digest cannot be used.
    pub config_digest: String,
    /// The text as the engine stored it, byte for byte.
    pub catalog: String,
    pub taken_at: Time,
}

#[derive(Clone, Copy, Debug)]
pub struct NewSnapshot<'a> {
    pub server: &'a ServerName,
    pub config_digest: &'a str,
    pub catalog: &'a str,
}

impl Store {
    /// Stores a server's catalog, replacing the previous one.
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

    /// All snapshots of a project by server. Not paged, because the project's lists are built from all of them.
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
