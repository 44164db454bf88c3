//! Projects, which isolate servers, secrets and settings from each other.

use model::{ProjectId, ServerName};
use serde::Serialize;
use serde_json::Value;
use sqlx::FromRow;

use crate::{
    Page, Put, Store, Time,
    error::{Error, Result},
    id::now,
    sql::{Doc, Key, Text, Tx, execute, row, rows, table},
};

table!($, "kb.projects", "id, name, description, enabled, settings, created_at, updated_at");

#[derive(Clone, Debug, PartialEq, FromRow, Serialize)]
pub struct ProjectRow {
    #[sqlx(try_from = "String")]
    pub id: ProjectId,
    pub name: String,
    pub description: String,
    pub enabled: bool,
    pub settings: Value,
    pub created_at: Time,
    pub updated_at: Time,
}

/// A project to create or replace.
#[derive(Clone, Debug, PartialEq)]
pub struct NewProject {
    pub id: ProjectId,
    pub name: String,
    pub description: String,
    pub enabled: bool,
    pub settings: Value,
}

impl NewProject {
    /// An enabled project whose name is its id.
    pub fn new(id: ProjectId) -> Self {
        Self {
            name: id.to_string(),
            id,
            description: String::new(),
            enabled: true,
            settings: Value::Object(serde_json::Map::new()),
        }
    }
}

impl Store {
    /// Creates or replaces a project.
    pub async fn project_put(&self, project: &NewProject) -> Result<Put<ProjectRow>> {
        let row = row!(
            self.pool.write().await?,
            ProjectRow,
            query!(returning "INSERT INTO kb.projects (id, name, description, enabled, settings, created_at, updated_at)
                 VALUES ($1, $2, $3, $4, $5, $6, $6)
                 ON CONFLICT (id) DO UPDATE SET
                     name = excluded.name, description = excluded.description, enabled = excluded.enabled,
                     settings = excluded.settings, updated_at = excluded.updated_at"),
            Key(project.id.as_str()),
            Key(&project.name),
            Text(&project.description),
            project.enabled,
            Doc(&project.settings),
            now(),
        )?;
        let row = row.ok_or_else(|| Error::not_found("project", &project.id))?;
        let created = row.created_at == row.updated_at;
        Ok(Put { row, created })
    }

    /// Creates those of the projects that do not exist.
    pub async fn project_ensure(&self, ids: &[ProjectId]) -> Result<()> {
        let mut tx = self.pool.begin().await?;
        for id in ids {
            execute!(
                tx,
                "INSERT INTO kb.projects (id, name, description, enabled, settings, created_at, updated_at)
                 VALUES ($1, $1, '', $2, $3, $4, $4)
                 ON CONFLICT (id) DO NOTHING",
                Key(id.as_str()),
                true,
                Doc(&Value::Object(serde_json::Map::new())),
                now(),
            )?;
        }
        tx.commit().await
    }

    /// # Errors
    /// [`Error::NotFound`] if the project does not exist.
    pub async fn project_get(&self, id: &ProjectId) -> Result<ProjectRow> {
        let row = row!(
            self.pool.read().await?,
            ProjectRow,
            query!(select "WHERE id = $1"),
            Key(id.as_str()),
        )?;
        row.ok_or_else(|| Error::not_found("project", id))
    }

    /// Projects by id.
    pub async fn project_list(&self, page: &Page) -> Result<Vec<ProjectRow>> {
        rows!(
            self.pool.read().await?,
            ProjectRow,
            query!(select "WHERE id > $1 ORDER BY id LIMIT $2"),
            Key(page.after.as_deref().unwrap_or_default()),
            page.limit(),
        )
    }

    /// Deletes a project with everything that belongs to it. Audit records of its calls remain.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the project does not exist.
    pub async fn project_delete(&self, id: &ProjectId) -> Result<()> {
        let mut tx = self.pool.begin().await?;
        lock(&mut tx, id).await?;
        let key = Key(id.as_str());
        // These tables also hold rows of the configuration file's servers, which have no project. So they have no
        // foreign key, and nothing cascades to them.
        execute!(tx, "DELETE FROM kb.tool_pins WHERE project_id = $1", key)?;
        execute!(tx, "DELETE FROM kb.tool_changes WHERE project_id = $1", key)?;
        execute!(tx, "DELETE FROM kb.logins WHERE project_id = $1", key)?;
        execute!(
            tx,
            "DELETE FROM kb.login_issuers WHERE project_id = $1",
            key
        )?;
        execute!(
            tx,
            "DELETE FROM kb.catalog_snapshots WHERE project_id = $1",
            key
        )?;
        delete_all(&mut tx, key).await?;
        execute!(tx, "DELETE FROM kb.projects WHERE id = $1", key)?;
        tx.commit().await
    }
}

/// Serialises transactions that change several rows of a project. Writing the row without changing it locks it on both
/// engines.
pub(crate) async fn lock(tx: &mut Tx, id: &ProjectId) -> Result<()> {
    let text = "UPDATE kb.projects SET updated_at = updated_at WHERE id = $1";
    match execute!(tx, text, Key(id.as_str()))? {
        0 => Err(Error::not_found("project", id)),
        _ => Ok(()),
    }
}

/// The value of `project_id` in tables that also hold rows of the configuration file's servers.
pub(crate) fn scope(project: Option<&ProjectId>) -> Key<'_> {
    Key(project.map_or("", ProjectId::as_str))
}

/// Removes a project's hosted servers. Rows of other kinds remain, without the project.
pub(crate) async fn delete_all(tx: &mut Tx, project: Key<'_>) -> Result<()> {
    execute!(
        tx,
        "DELETE FROM kb.agent_workspaces WHERE project_id = $1 AND container_type = 'mcp_server'",
        project
    )?;
    Ok(())
}

/// Checks that no hosted server of the project has this name. The project must be locked.
pub(crate) async fn name_is_not_hosted(
    tx: &mut Tx,
    project: &ProjectId,
    name: &ServerName,
) -> Result<()> {
    let found = row!(
        tx,
        (String,),
        "SELECT id FROM kb.agent_workspaces
         WHERE container_type = 'mcp_server' AND COALESCE(project_id, '') = $1 AND name = $2",
        Key(project.as_str()),
        Key(name.as_str()),
    )?;
    match found {
        None => Ok(()),
        Some(_) => {
            let why = "a hosted server of the project has this name";
            Err(Error::conflict("server", name, why))
        }
    }
}
