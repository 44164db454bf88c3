//! Hosted servers: the rows of `kb.agent_workspaces` whose `container_type` is `mcp_server` (H01).
//!
//! Rows of other kinds belong to other programs and are neither read nor changed here. The events of a hosted server
//! are in `event`, under the server's id.

use std::collections::HashMap;

use model::{ProjectId, ServerName};
use serde::Serialize;
use serde_json::Value;
use sqlx::FromRow;

use crate::{
    Store, Time,
    error::{Error, Result},
    id::{new_id, now},
    project, server,
    sql::{Doc, Key, Text, execute, row, rows, table},
};

table!($, "kb.agent_workspaces", "id, project_id, name, status, image, config, created_at, updated_at");

/// A hosted server.
#[derive(Clone, Debug, PartialEq, FromRow, Serialize)]
pub struct RegistrationRow {
    /// Contains only `[0-9a-f-]`. Never reused.
    pub id: String,
    /// `None`: the server belongs to no project.
    pub project_id: Option<String>,
    #[sqlx(try_from = "String")]
    pub name: ServerName,
    /// The last recorded status.
    pub status: String,
    /// The image, or the command without its arguments.
    pub image: String,
    pub config: Value,
    pub created_at: Time,
    pub updated_at: Time,
}

#[derive(Clone, Copy, Debug)]
pub struct NewRegistration<'a> {
    pub project: Option<&'a ProjectId>,
    pub name: &'a ServerName,
    pub status: &'a str,
    pub image: &'a str,
    pub config: &'a Value,
}

/// The location of a server's volumes.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Home {
    /// The id of a data directory.
    pub installation: String,
    /// The name of the directory's host.
    pub host: String,
}

const KIND: &str = "hosted server";

impl Store {
    /// Adds a hosted server.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the project does not exist, [`Error::Conflict`] if another server of the project or,
    /// without a project, another hosted server without a project has the name.
    pub async fn registration_put(&self, new: NewRegistration<'_>) -> Result<RegistrationRow> {
        let mut tx = self.locked(new.project).await?;
        if let Some(project) = new.project {
            server::name_is_free(&mut tx, server::NOT_HOSTED, project, new.name).await?;
        }
        let row = row!(
            tx,
            RegistrationRow,
            query!(returning "INSERT INTO kb.agent_workspaces
                 (id, project_id, name, container_type, status, image, config, created_at, updated_at)
             VALUES ($1, $2, $3, 'mcp_server', $4, $5, $6, $7, $7)
             ON CONFLICT (COALESCE(project_id, ''), name) WHERE container_type = 'mcp_server' DO NOTHING"),
            Key(&new_id()),
            new.project.map(|project| Key(project.as_str())),
            Key(new.name.as_str()),
            Text(new.status),
            Text(new.image),
            Doc(new.config),
            now(),
        )?;
        let row =
            row.ok_or_else(|| Error::conflict(KIND, new.name, "the name is already taken"))?;
        tx.commit().await?;
        Ok(row)
    }

    /// A hosted server. `project` restricts the lookup to one project.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the server does not exist.
    pub async fn registration_get(
        &self,
        project: Option<&ProjectId>,
        id: &str,
    ) -> Result<RegistrationRow> {
        let row = row!(
            self.pool.read().await?,
            RegistrationRow,
            query!(select "WHERE id = $1 AND container_type = 'mcp_server' AND ($2 = '' OR project_id = $2)"),
            Key(id),
            project::scope(project),
        )?;
        row.ok_or_else(|| Error::not_found(KIND, id))
    }

    /// All hosted servers by age. Not paged, because it is read at start-up (H08).
    pub async fn registration_list_all(&self) -> Result<Vec<RegistrationRow>> {
        rows!(
            self.pool.read().await?,
            RegistrationRow,
            query!(select "WHERE container_type = 'mcp_server' ORDER BY id"),
        )
    }

    /// Replaces the configuration of a hosted server. `project` restricts the lookup to one project.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the server does not exist.
    pub async fn registration_set_config(
        &self,
        project: Option<&ProjectId>,
        id: &str,
        image: &str,
        config: &Value,
    ) -> Result<RegistrationRow> {
        let row = row!(
            self.pool.write().await?,
            RegistrationRow,
            query!(returning "UPDATE kb.agent_workspaces SET image = $3, config = $4, updated_at = $5
                 WHERE id = $1 AND container_type = 'mcp_server' AND ($2 = '' OR project_id = $2)"),
            Key(id),
            project::scope(project),
            Text(image),
            Doc(config),
            now(),
        )?;
        row.ok_or_else(|| Error::not_found(KIND, id))
    }

    /// Records the status of a hosted server, and the state `left` for the next start of the gateway. This does not
    /// count as a change: `updated_at` stays.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the server does not exist.
    pub async fn registration_set_status(&self, id: &str, status: &str, left: &str) -> Result<()> {
        let mut tx = self.pool.begin().await?;
        let changed = execute!(
            tx,
            "UPDATE kb.agent_workspaces SET status = $2 WHERE id = $1 AND container_type = 'mcp_server'",
            Key(id),
            Text(status),
        )?;
        Error::unless_found(changed, KIND, id)?;
        execute!(
            tx,
            "INSERT INTO kb.toolwharf_left (server, status, state) VALUES ($1, $2, $3)
             ON CONFLICT (server) DO UPDATE SET status = excluded.status, state = excluded.state",
            Key(id),
            Text(status),
            Text(left),
        )?;
        tx.commit().await
    }

    /// The states in which hosted servers were left, by id.
    pub async fn registration_left_all(&self) -> Result<HashMap<String, String>> {
        let left = rows!(
            self.pool.read().await?,
            (String, String),
            "SELECT w.id, COALESCE(l.state, w.status)
             FROM kb.agent_workspaces AS w
             LEFT JOIN kb.toolwharf_left AS l ON l.server = w.id AND l.status = w.status
             WHERE w.container_type = 'mcp_server'",
        )?;
        Ok(left.into_iter().collect())
    }

    /// The state in which a hosted server was left, and the location of its volumes if they are tied to a host (`None`:
    /// not set).
    ///
    /// # Errors
    /// [`Error::NotFound`] if the server does not exist.
    pub async fn registration_left(&self, id: &str) -> Result<(String, Option<Home>)> {
        let mut conn = self.pool.read().await?;
        let row = row!(
            conn,
            (String, Option<String>, Option<String>),
            "SELECT COALESCE(l.state, w.status), h.installation, h.host
             FROM kb.agent_workspaces AS w
             LEFT JOIN kb.toolwharf_left AS l ON l.server = w.id AND l.status = w.status
             LEFT JOIN kb.toolwharf_homes AS h ON h.server = w.id
             WHERE w.id = $1 AND w.container_type = 'mcp_server'",
            Key(id),
        )?;
        let (left, installation, host) = row.ok_or_else(|| Error::not_found(KIND, id))?;
        let home = installation.map(|installation| Home {
            installation,
            host: host.unwrap_or_default(),
        });
        Ok((left, home))
    }

    /// Sets the location of a hosted server's volumes unless it is already set. Returns the stored location.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the server does not exist.
    pub async fn registration_settle(&self, id: &str, home: &Home) -> Result<Home> {
        let row = row!(
            self.pool.write().await?,
            Home,
            "INSERT INTO kb.toolwharf_homes AS h (server, installation, host)
             SELECT id, $2, $3 FROM kb.agent_workspaces WHERE id = $1 AND container_type = 'mcp_server'
             ON CONFLICT (server) DO UPDATE SET installation = h.installation
             RETURNING installation, host",
            Key(id),
            Key(&home.installation),
            Text(&home.host),
        )?;
        row.ok_or_else(|| Error::not_found(KIND, id))
    }

    /// Removes a hosted server with its tool settings and its snapshot. `project` restricts the lookup to one project.
    /// Its events remain.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the server does not exist.
    pub async fn registration_delete(
        &self,
        project: Option<&ProjectId>,
        id: &str,
    ) -> Result<RegistrationRow> {
        let mut tx = self.pool.begin().await?;
        let row = row!(
            tx,
            RegistrationRow,
            query!(returning "DELETE FROM kb.agent_workspaces
                 WHERE id = $1 AND container_type = 'mcp_server' AND ($2 = '' OR project_id = $2)"),
            Key(id),
            project::scope(project),
        )?;
        let row = row.ok_or_else(|| Error::not_found(KIND, id))?;
        let project = Key(row.project_id.as_deref().unwrap_or_default());
        server::forget(&mut tx, project, &row.name).await?;
        tx.commit().await?;
        Ok(row)
    }
}
