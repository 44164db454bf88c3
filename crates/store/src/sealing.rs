//! Sealed values in the entries of rows: whether all programs on the database know them, and sealing rows that hold plain text.
//!
//! Sealing begins once, for good: from then on a program that does not know it cannot open the database.

use serde_json::Value;

use crate::{
    Store, Time,
    error::Result,
    migrate::LATEST,
    product::ProductRow,
    sql::{Doc, Key, execute, row, rows},
};

/// The first schema version whose programs know sealed values.
const SEALING: i64 = 17;

impl Store {
    /// Whether values in entries may be sealed: no replica runs that is of a version before this was known. Programs of such a version
    /// cannot open the database after this has returned `true`.
    pub async fn sealing_begin(&self) -> Result<bool> {
        let begun = row!(
            self.pool.read().await?,
            (i64,),
            "SELECT version FROM kb.schema_migrations WHERE version = $1 AND needs >= $1",
            SEALING,
        )?;
        if begun.is_some() {
            return Ok(true);
        }
        if self.has_replicas() {
            let old = row!(
                self.pool.read().await?,
                (i64,),
                "SELECT COUNT(*) FROM kb.toolwharf_replicas
                 WHERE expires_at > clock_timestamp() AND (knows IS NULL OR knows < $1)",
                SEALING,
            )?;
            if old.is_some_and(|(count,)| count > 0) {
                return Ok(false);
            }
        }
        execute!(
            self.pool.write().await?,
            "UPDATE kb.schema_migrations SET needs = $1 WHERE version = $1",
            SEALING,
        )?;
        Ok(true)
    }

    /// Replaces the entry of a project's server by the same one with sealed values, unless the row was changed since `updated_at`;
    /// whether it was replaced.
    pub async fn server_seal(&self, id: &str, updated_at: Time, config: &Value) -> Result<bool> {
        let changed = execute!(
            self.pool.write().await?,
            "UPDATE kb.project_mcp_servers SET config = $3 WHERE id = $1 AND updated_at = $2",
            Key(id),
            updated_at,
            Doc(config),
        )?;
        Ok(changed == 1)
    }

    /// As [`Store::server_seal`], of a hosted server.
    pub async fn workspace_seal(&self, id: &str, updated_at: Time, config: &Value) -> Result<bool> {
        let changed = execute!(
            self.pool.write().await?,
            "UPDATE kb.agent_workspaces SET config = $3
             WHERE id = $1 AND updated_at = $2 AND container_type = 'mcp_server'",
            Key(id),
            updated_at,
            Doc(config),
        )?;
        Ok(changed == 1)
    }

    /// As [`Store::server_seal`], of the manifest of a product.
    pub async fn product_seal(&self, id: &str, updated_at: Time, manifest: &Value) -> Result<bool> {
        let changed = execute!(
            self.pool.write().await?,
            "UPDATE kb.products SET manifest = $3 WHERE id = $1 AND updated_at = $2",
            Key(id),
            updated_at,
            Doc(manifest),
        )?;
        Ok(changed == 1)
    }

    /// All products of all projects; not paged, for it is read once at the start.
    pub async fn product_list_all(&self) -> Result<Vec<ProductRow>> {
        rows!(
            self.pool.read().await?,
            ProductRow,
            "SELECT id, project_id, name, version, manifest, created_at, updated_at
             FROM kb.products ORDER BY project_id, name",
        )
    }
}

/// The schema version that this program tells other replicas that it knows.
pub(crate) const KNOWN: i64 = LATEST;
