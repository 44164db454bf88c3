//! Sealed values in stored entries: checks whether all programs that use the database support sealed values, and seals
//! rows that contain plain text.
//!
//! Sealing cannot be undone: once it has begun, a program that does not support it cannot open the database.

use serde_json::Value;

use crate::{
    Store, Time,
    error::Result,
    migrate::LATEST,
    product::ProductRow,
    sql::{Doc, Key, execute, row, rows},
};

/// Programs with this schema version or a later one support sealed values.
const SEALING_VERSION: i64 = 17;

impl Store {
    /// Returns whether values in entries may be sealed, which requires that every running replica supports sealed
    /// values. Once this has returned `true`, programs without that support cannot open the database.
    pub async fn sealing_begin(&self) -> Result<bool> {
        let begun = row!(
            self.pool.read().await?,
            (i64,),
            "SELECT version FROM kb.schema_migrations WHERE version = $1 AND needs >= $1",
            SEALING_VERSION,
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
                SEALING_VERSION,
            )?;
            if old.is_some_and(|(count,)| count > 0) {
                return Ok(false);
            }
        }
        execute!(
            self.pool.write().await?,
            "UPDATE kb.schema_migrations SET needs = $1 WHERE version = $1",
            SEALING_VERSION,
        )?;
        Ok(true)
    }

    /// Replaces the entry of a project's server with its sealed form, unless the row was changed since `updated_at`.
    /// Returns whether it was replaced.
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

    /// Like [`Store::server_seal`], for a hosted server.
    pub async fn registration_seal(
        &self,
        id: &str,
        updated_at: Time,
        config: &Value,
    ) -> Result<bool> {
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

    /// Like [`Store::server_seal`], for the manifest of a product.
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

    /// All products of all projects. Not paged, because it is read once at the start.
    pub async fn product_list_all(&self) -> Result<Vec<ProductRow>> {
        rows!(
            self.pool.read().await?,
            ProductRow,
            "SELECT id, project_id, name, version, manifest, created_at, updated_at
             FROM kb.products ORDER BY project_id, name",
        )
    }
}

/// The schema version that this program reports to other replicas.
pub(crate) const KNOWN_VERSION: i64 = LATEST;
