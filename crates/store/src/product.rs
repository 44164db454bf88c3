//! Products: manifests that add servers to a project, installed and removed as a whole.

use std::collections::BTreeSet;

use model::{ProjectId, ServerName};
use serde::Serialize;
use serde_json::Value;
use sqlx::FromRow;

use crate::{
    NewServer, Put, ServerRow, Store, Time,
    error::{Error, Result},
    id::{new_id, now},
    quota::Quota,
    server,
    sql::{Doc, Key, Text, Tx, execute, row, rows, table},
};

table!($, "kb.products", "id, project_id, name, version, manifest, created_at, updated_at");

/// A product installed in a project.
#[derive(Clone, Debug, PartialEq, FromRow, Serialize)]
pub struct ProductRow {
    pub id: String,
    #[sqlx(try_from = "String")]
    pub project_id: ProjectId,
    pub name: String,
    pub version: String,
    pub manifest: Value,
    pub created_at: Time,
    pub updated_at: Time,
}

/// The result of an installation.
#[derive(Clone, Debug, PartialEq)]
pub struct Installed {
    pub product: Put<ProductRow>,
    /// The product's servers as stored, in the order given.
    pub servers: Vec<ServerRow>,
    /// Servers of the previous version that the new version does not have.
    pub removed: Vec<ServerName>,
}

impl Store {
    /// Installs or updates a product, and replaces its servers with these. A server that remains keeps its id and its
    /// `enabled` flag, which a user may have set.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the project does not exist, [`Error::Conflict`] if the name of a server is taken by one
    /// that does not belong to the product, [`Error::Invalid`] if two servers have the same name.
    pub async fn product_install(
        &self,
        project: &ProjectId,
        name: &str,
        version: &str,
        manifest: &Value,
        servers: &[NewServer],
    ) -> Result<Installed> {
        let names: BTreeSet<&ServerName> = servers.iter().map(|server| &server.name).collect();
        if names.len() != servers.len() {
            let why = format!("two servers of the product {name:?} have the same name");
            return Err(Error::Invalid(why));
        }
        let mut tx = self.locked(Some(project)).await?;
        let product = upsert(&mut tx, project, name, version, manifest).await?;
        let before = servers_of(&mut tx, project, &product.id).await?;
        let mut rows = Vec::with_capacity(servers.len());
        for server in servers {
            server::name_is_free(&mut tx, server::HOSTED, project, &server.name).await?;
            rows.push(upsert_server(&mut tx, &product, server).await?);
        }
        let mut removed = Vec::new();
        for gone in before.into_iter().filter(|name| !names.contains(name)) {
            execute!(
                tx,
                "DELETE FROM kb.project_mcp_servers WHERE project_id = $1 AND name = $2",
                Key(project.as_str()),
                Key(gone.as_str()),
            )?;
            server::forget(&mut tx, Key(project.as_str()), &gone).await?;
            removed.push(gone);
        }
        Quota::Servers.check(&mut tx, project, name).await?;
        tx.commit().await?;
        let created = product.created_at == product.updated_at;
        Ok(Installed {
            product: Put {
                row: product,
                created,
            },
            servers: rows,
            removed,
        })
    }

    /// # Errors
    /// [`Error::NotFound`] if the product is not installed in this project.
    pub async fn product_get(&self, project: &ProjectId, name: &str) -> Result<ProductRow> {
        let row = row!(
            self.pool.read().await?,
            ProductRow,
            query!(select "WHERE project_id = $1 AND name = $2"),
            Key(project.as_str()),
            Key(name),
        )?;
        row.ok_or_else(|| Error::not_found("product", name))
    }

    /// The products of a project by name, at most [`crate::MAX_PAGE`].
    pub async fn product_list(&self, project: &ProjectId) -> Result<Vec<ProductRow>> {
        rows!(
            self.pool.read().await?,
            ProductRow,
            query!(select "WHERE project_id = $1 ORDER BY name LIMIT $2"),
            Key(project.as_str()),
            i64::from(crate::MAX_PAGE),
        )
    }

    /// Removes a product with its servers, and returns the names of these servers.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the product is not installed in this project.
    pub async fn product_uninstall(
        &self,
        project: &ProjectId,
        name: &str,
    ) -> Result<Vec<ServerName>> {
        let mut tx = self.locked(Some(project)).await?;
        let id = row!(
            tx,
            (String,),
            "SELECT id FROM kb.products WHERE project_id = $1 AND name = $2",
            Key(project.as_str()),
            Key(name),
        )?;
        let (id,) = id.ok_or_else(|| Error::not_found("product", name))?;
        let servers = servers_of(&mut tx, project, &id).await?;
        for server in &servers {
            server::forget(&mut tx, Key(project.as_str()), server).await?;
        }
        execute!(
            tx,
            "DELETE FROM kb.products WHERE project_id = $1 AND id = $2",
            Key(project.as_str()),
            Key(&id),
        )?;
        tx.commit().await?;
        Ok(servers)
    }
}

async fn upsert(
    tx: &mut Tx,
    project: &ProjectId,
    name: &str,
    version: &str,
    manifest: &Value,
) -> Result<ProductRow> {
    let row = row!(
        tx,
        ProductRow,
        query!(returning "INSERT INTO kb.products (id, project_id, name, version, manifest, created_at, updated_at)
             VALUES ($1, $2, $3, $4, $5, $6, $6)
             ON CONFLICT (project_id, name) DO UPDATE SET
                 version = excluded.version, manifest = excluded.manifest, updated_at = excluded.updated_at"),
        Key(&new_id()),
        Key(project.as_str()),
        Key(name),
        Text(version),
        Doc(manifest),
        now(),
    )?;
    row.ok_or_else(|| Error::not_found("product", name))
}

async fn upsert_server(tx: &mut Tx, product: &ProductRow, server: &NewServer) -> Result<ServerRow> {
    let row = row!(
        tx,
        ServerRow,
        "INSERT INTO kb.project_mcp_servers AS s
             (id, project_id, product_id, name, description, transport, config, enabled, created_at,
              updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9)
         ON CONFLICT (project_id, name) DO UPDATE SET
             description = excluded.description, transport = excluded.transport,
             config = excluded.config, updated_at = excluded.updated_at
         WHERE s.product_id = excluded.product_id
         RETURNING id, project_id, product_id, name, description, transport, config, enabled,
             created_at, updated_at",
        Key(&new_id()),
        Key(product.project_id.as_str()),
        Key(&product.id),
        Key(server.name.as_str()),
        Text(&server.description),
        server.transport.as_str(),
        Doc(&server.config),
        server.enabled,
        now(),
    )?;
    let why = "the project already has a server with this name that does not belong to the product";
    row.ok_or_else(|| Error::conflict("server", &server.name, why))
}

async fn servers_of(tx: &mut Tx, project: &ProjectId, product: &str) -> Result<Vec<ServerName>> {
    #[derive(FromRow)]
    struct Name {
        #[sqlx(try_from = "String")]
        name: ServerName,
    }
    let rows = rows!(
        tx,
        Name,
        "SELECT name FROM kb.project_mcp_servers WHERE project_id = $1 AND product_id = $2 ORDER BY name",
        Key(project.as_str()),
        Key(product),
    )?;
    Ok(rows.into_iter().map(|row| row.name).collect())
}
