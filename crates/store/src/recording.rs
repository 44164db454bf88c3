//! Servers whose call arguments and results are recorded for a while, regardless of the settings.

use std::collections::HashMap;

use model::{ProjectId, ServerKey, ServerName};

use crate::{
    Store, Time,
    error::Result,
    id::{micros, now},
    project::scope,
    sql::{Key, execute, rows},
};

impl Store {
    /// Records the bodies of a server's calls until this time. Replaces the previous end.
    pub async fn recording_put(&self, server: &ServerKey, ends_at: Time) -> Result<()> {
        execute!(
            self.pool.write().await?,
            "INSERT INTO kb.toolwharf_recordings (project_id, server, ends_at) VALUES ($1, $2, $3)
             ON CONFLICT (project_id, server) DO UPDATE SET ends_at = excluded.ends_at",
            scope(server.owner.as_ref()),
            Key(server.name.as_str()),
            micros(ends_at),
        )?;
        Ok(())
    }

    /// Ends a recording, if the server has one.
    pub async fn recording_delete(&self, server: &ServerKey) -> Result<()> {
        execute!(
            self.pool.write().await?,
            "DELETE FROM kb.toolwharf_recordings WHERE project_id = $1 AND server = $2",
            scope(server.owner.as_ref()),
            Key(server.name.as_str()),
        )?;
        Ok(())
    }

    /// All recordings that have not ended, with their ends. Not paged: a server has one at most.
    pub async fn recording_list(&self) -> Result<HashMap<ServerKey, Time>> {
        let rows: Vec<(String, String, Time)> = rows!(
            self.pool.read().await?,
            (String, String, Time),
            "SELECT project_id, server, ends_at FROM kb.toolwharf_recordings WHERE ends_at > $1",
            now(),
        )?;
        let keyed = rows.into_iter().filter_map(|(project, name, ends_at)| {
            let owner = match project.as_str() {
                "" => None,
                id => Some(ProjectId::parse(id).ok()?),
            };
            let name = ServerName::parse(&name).ok()?;
            Some((ServerKey { owner, name }, ends_at))
        });
        Ok(keyed.collect())
    }

    /// Deletes recordings that have ended.
    pub async fn recording_prune(&self) -> Result<()> {
        execute!(
            self.pool.write().await?,
            "DELETE FROM kb.toolwharf_recordings WHERE ends_at <= $1",
            now(),
        )?;
        Ok(())
    }
}
