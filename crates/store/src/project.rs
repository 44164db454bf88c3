//! Projects, which isolate servers, secrets and settings from each other.

use model::ProjectId;
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

    /// Creates each of these projects that does not exist.
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
        let mut tx = self.locked(Some(id)).await?;
        let key = Key(id.as_str());
        // These tables also hold rows for the configuration file's servers, which have no project. So the tables have
        // no foreign key to projects, and the deletion does not cascade to them.
        for text in [
            // A key with several projects keeps the others. One of them takes the place of the first.
            "UPDATE kb.api_keys AS k SET project_id =
                 (SELECT MIN(p.project_id) FROM kb.toolwharf_key_projects AS p WHERE p.key_id = k.id)
             WHERE k.project_id = $1 AND EXISTS (SELECT 1 FROM kb.toolwharf_key_projects AS p WHERE p.key_id = k.id)",
            "DELETE FROM kb.toolwharf_key_projects AS p WHERE p.project_id = $1
                 OR EXISTS (SELECT 1 FROM kb.api_keys AS k WHERE k.id = p.key_id AND k.project_id = p.project_id)",
            "DELETE FROM kb.tool_pins WHERE project_id = $1",
            "DELETE FROM kb.tool_changes WHERE project_id = $1",
            "DELETE FROM kb.logins WHERE project_id = $1",
            "DELETE FROM kb.login_issuers WHERE project_id = $1",
            "DELETE FROM kb.catalog_snapshots WHERE project_id = $1",
            // Rows of other container types remain, without the project.
            "DELETE FROM kb.agent_workspaces WHERE project_id = $1 AND container_type = 'mcp_server'",
            "DELETE FROM kb.projects WHERE id = $1",
        ] {
            execute!(tx, text, key)?;
        }
        tx.commit().await
    }

    /// Begins a transaction and locks the project, so that transactions that change several of its rows take turns. On
    /// both engines, writing the project's row without changing it locks the row.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the project does not exist.
    pub(crate) async fn locked(&self, project: Option<&ProjectId>) -> Result<Tx> {
        let mut tx = self.pool.begin().await?;
        if let Some(id) = project {
            lock(&mut tx, id).await?;
        }
        Ok(tx)
    }
}

/// Locks a project until the end of the transaction.
///
/// # Errors
/// [`Error::NotFound`] if the project does not exist.
pub(crate) async fn lock(tx: &mut Tx, id: &ProjectId) -> Result<()> {
    let text = "UPDATE kb.projects SET updated_at = updated_at WHERE id = $1";
    Error::unless_found(execute!(tx, text, Key(id.as_str()))?, "project", id)
}

/// The value of `project_id` in tables that also hold rows of the configuration file's servers.
pub(crate) fn scope(project: Option<&ProjectId>) -> Key<'_> {
    Key(project.map_or("", ProjectId::as_str))
}
