//! MCP servers of projects.

use model::{ProjectId, ServerName};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::FromRow;

use crate::{
    Put, Store, Time,
    error::{Error, Result},
    id::{new_id, now},
    names::words,
    project,
    quota::Quota,
    sql::{Doc, Key, Text, Tx, execute, row, rows, table},
};

table!(
    $, "kb.project_mcp_servers",
    "id, project_id, product_id, name, description, transport, config, enabled, created_at, updated_at"
);

/// The transport of a server, as stored in the column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportKind {
    Stdio,
    Sse,
    Http,
}

/// A server of a project.
#[derive(Clone, Debug, PartialEq, FromRow, Serialize)]
pub struct ServerRow {
    pub id: String,
    #[sqlx(try_from = "String")]
    pub project_id: ProjectId,
    /// The product that installed it, if any.
    pub product_id: Option<String>,
    #[sqlx(try_from = "String")]
    pub name: ServerName,
    pub description: String,
    #[sqlx(try_from = "String")]
    pub transport: TransportKind,
    pub config: Value,
    pub enabled: bool,
    pub created_at: Time,
    pub updated_at: Time,
}

/// A server to create, replace or install.
#[derive(Clone, Debug, PartialEq)]
pub struct NewServer {
    pub name: ServerName,
    pub description: String,
    pub transport: TransportKind,
    pub config: Value,
    pub enabled: bool,
}

const BY_PRODUCT: &str = "it belongs to a product: update or uninstall the product instead";

impl Store {
    /// Creates or replaces a server.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the project does not exist, [`Error::Conflict`] if the server belongs to a product, or if
    /// a hosted server has the same name.
    pub async fn server_put(
        &self,
        project: &ProjectId,
        server: &NewServer,
    ) -> Result<Put<ServerRow>> {
        let mut tx = self.locked(Some(project)).await?;
        name_is_free(&mut tx, HOSTED, project, &server.name).await?;
        let row = row!(
            tx,
            ServerRow,
            query!(returning "INSERT INTO kb.project_mcp_servers AS s
                     (id, project_id, name, description, transport, config, enabled, created_at, updated_at)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8)
                 ON CONFLICT (project_id, name) DO UPDATE SET
                     description = excluded.description, transport = excluded.transport,
                     config = excluded.config, enabled = excluded.enabled, updated_at = excluded.updated_at
                 WHERE s.product_id IS NULL"),
            Key(&new_id()),
            Key(project.as_str()),
            Key(server.name.as_str()),
            Text(&server.description),
            server.transport.as_str(),
            Doc(&server.config),
            server.enabled,
            now(),
        )?;
        let row = row.ok_or_else(|| Error::conflict("server", &server.name, BY_PRODUCT))?;
        let created = row.created_at == row.updated_at;
        if created {
            let name = server.name.as_str();
            Quota::Servers.check(&mut tx, project, name).await?;
        }
        tx.commit().await?;
        Ok(Put { row, created })
    }

    /// # Errors
    /// [`Error::NotFound`] if the project has no such server.
    pub async fn server_get(&self, project: &ProjectId, name: &ServerName) -> Result<ServerRow> {
        let row = row!(
            self.pool.read().await?,
            ServerRow,
            query!(select "WHERE project_id = $1 AND name = $2"),
            Key(project.as_str()),
            Key(name.as_str()),
        )?;
        row.ok_or_else(|| Error::not_found("server", name))
    }

    /// The server with this id. `project` restricts the lookup to one project.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the server does not exist.
    pub async fn server_get_by_id(
        &self,
        project: Option<&ProjectId>,
        id: &str,
    ) -> Result<ServerRow> {
        let row = row!(
            self.pool.read().await?,
            ServerRow,
            query!(select "WHERE id = $1 AND ($2 = '' OR project_id = $2)"),
            Key(id),
            project::scope(project),
        )?;
        row.ok_or_else(|| Error::not_found("server", id))
    }

    /// All servers of a project by name. Not paged, because the caller loads the whole project.
    pub async fn server_list(&self, project: &ProjectId) -> Result<Vec<ServerRow>> {
        rows!(
            self.pool.read().await?,
            ServerRow,
            query!(select "WHERE project_id = $1 ORDER BY name"),
            Key(project.as_str()),
        )
    }

    /// All servers of all projects, by project and name. Not paged, because it is read at start-up.
    pub async fn server_list_all(&self) -> Result<Vec<ServerRow>> {
        rows!(
            self.pool.read().await?,
            ServerRow,
            query!(select "ORDER BY project_id, name"),
        )
    }

    /// Enables or disables a server, including one that belongs to a product.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the project has no such server.
    pub async fn server_set_enabled(
        &self,
        project: &ProjectId,
        name: &ServerName,
        enabled: bool,
    ) -> Result<ServerRow> {
        let row = row!(
            self.pool.write().await?,
            ServerRow,
            query!(returning "UPDATE kb.project_mcp_servers SET enabled = $3, updated_at = $4
                 WHERE project_id = $1 AND name = $2"),
            Key(project.as_str()),
            Key(name.as_str()),
            enabled,
            now(),
        )?;
        row.ok_or_else(|| Error::not_found("server", name))
    }

    /// Removes a server with its tool settings and its snapshot. Its pins remain, so that a server that is added again
    /// has the approved definitions.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the project has no such server, [`Error::Conflict`] if it belongs to a product: uninstall
    /// the product instead.
    pub async fn server_delete(&self, project: &ProjectId, name: &ServerName) -> Result<()> {
        let mut tx = self.pool.begin().await?;
        let removed = execute!(
            tx,
            "DELETE FROM kb.project_mcp_servers
             WHERE project_id = $1 AND name = $2 AND product_id IS NULL",
            Key(project.as_str()),
            Key(name.as_str()),
        )?;
        if removed == 0 {
            // Release the connection first, because SQLite has only one connection for writing.
            drop(tx);
            self.server_get(project, name).await?;
            return Err(Error::conflict("server", name, BY_PRODUCT));
        }
        forget(&mut tx, Key(project.as_str()), name).await?;
        tx.commit().await
    }
}

/// How to check whether a name is taken: the query for a server with this name, the kind of object that needs the name,
/// and the error if the name is taken.
pub(crate) type Others = (&'static str, &'static str, &'static str);

/// The hosted servers of the project.
pub(crate) const HOSTED: Others = (
    "SELECT id FROM kb.agent_workspaces
     WHERE container_type = 'mcp_server' AND COALESCE(project_id, '') = $1 AND name = $2",
    "server",
    "a hosted server of the project has this name",
);

/// The servers of the project except hosted ones.
pub(crate) const NOT_HOSTED: Others = (
    "SELECT id FROM kb.project_mcp_servers WHERE project_id = $1 AND name = $2",
    "hosted server",
    "another server of the project has this name",
);

/// Checks that none of these servers has this name. The project must be locked.
pub(crate) async fn name_is_free(
    tx: &mut Tx,
    (query, what, why): Others,
    project: &ProjectId,
    name: &ServerName,
) -> Result<()> {
    let (project, key) = (Key(project.as_str()), Key(name.as_str()));
    match row!(tx, (String,), query, project, key)? {
        None => Ok(()),
        Some(_) => Err(Error::conflict(what, name, why)),
    }
}

/// Deletes the data of a removed server except its tool pins, because removing a server and adding it again must not
/// approve any tool definition.
pub(crate) async fn forget(tx: &mut Tx, project: Key<'_>, server: &ServerName) -> Result<()> {
    for text in [
        "DELETE FROM kb.tool_settings WHERE project_id = $1 AND server = $2",
        "DELETE FROM kb.catalog_snapshots WHERE project_id = $1 AND server = $2",
    ] {
        execute!(tx, text, project, Key(server.as_str()))?;
    }
    Ok(())
}

words!(TransportKind, "transport", {
    Stdio => "stdio",
    Sse => "sse",
    Http => "http",
});
