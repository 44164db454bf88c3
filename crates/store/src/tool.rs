//! Tool settings (what a user decided about a tool) and pins (the approved definition of a tool).

use model::{ProjectId, ServerName};
use serde::Serialize;
use sqlx::FromRow;

use crate::{
    Store, Time,
    error::{Error, Result},
    id::now,
    project::scope,
    quota::Quota,
    sql::{Conn, Key, Text, Tx, execute, row, rows},
    tool_change::{self, Cause},
};

/// A user's settings for a tool. `None`: the server's own value applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolSetting {
    pub enabled: Option<bool>,
    pub alias: Option<String>,
    pub description: Option<String>,
}

#[derive(Clone, Debug, PartialEq, FromRow, Serialize)]
pub struct ToolSettingRow {
    #[sqlx(try_from = "String")]
    pub project_id: ProjectId,
    #[sqlx(try_from = "String")]
    pub server: ServerName,
    pub tool: String,
    pub enabled: Option<bool>,
    pub alias: Option<String>,
    pub description: Option<String>,
    pub updated_at: Time,
}

/// A tool as its server currently offers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub tool: String,
    pub digest: String,
    /// The definition as sent by the server, byte for byte.
    pub definition: String,
    /// The digest of the server's current configuration.
    pub config_digest: String,
}

/// The approved definition of a tool, and the one waiting for approval.
#[derive(Clone, Debug, PartialEq, FromRow, Serialize)]
pub struct PinRow {
    /// `None`: the server comes from the configuration file.
    pub project_id: Option<String>,
    #[sqlx(try_from = "String")]
    pub server: ServerName,
    pub tool: String,
    pub digest: String,
    pub definition: String,
    pub pending_digest: Option<String>,
    pub pending_definition: Option<String>,
    pub first_seen_at: Time,
    /// When the pending definition was first seen.
    pub changed_at: Option<Time>,
    /// The digest of the configuration under which the tool was last listed. Empty if the pin was stored by a Toolwharf
    /// version that did not record the digest.
    pub config_digest: String,
}

/// The part of a pin that a catalog needs.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct PinDigest {
    #[sqlx(try_from = "String")]
    pub server: ServerName,
    pub tool: String,
    pub digest: String,
    pub pending_digest: Option<String>,
    pub config_digest: String,
}

impl Store {
    /// Creates or replaces the settings of a tool.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the project does not exist.
    pub async fn tool_setting_put(
        &self,
        project: &ProjectId,
        server: &ServerName,
        tool: &str,
        setting: &ToolSetting,
    ) -> Result<ToolSettingRow> {
        let mut tx = self.locked(Some(project)).await?;
        let row = row!(
            tx,
            ToolSettingRow,
            "INSERT INTO kb.tool_settings (project_id, server, tool, enabled, alias, description, updated_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7)
             ON CONFLICT (project_id, server, tool) DO UPDATE SET
                 enabled = excluded.enabled, alias = excluded.alias, description = excluded.description,
                 updated_at = excluded.updated_at
             RETURNING project_id, server, tool, enabled, alias, description, updated_at",
            Key(project.as_str()),
            Key(server.as_str()),
            Key(tool),
            setting.enabled,
            setting.alias.as_deref().map(Key),
            setting.description.as_deref().map(Text),
            now(),
        )?;
        let row = row.ok_or_else(|| Error::not_found("tool", tool))?;
        Quota::ToolSettings.check(&mut tx, project, tool).await?;
        tx.commit().await?;
        Ok(row)
    }

    /// All tool settings of a project, by server and tool. Not paged, because the project's tool list needs them all.
    pub async fn tool_setting_list(&self, project: &ProjectId) -> Result<Vec<ToolSettingRow>> {
        rows!(
            self.pool.read().await?,
            ToolSettingRow,
            "SELECT project_id, server, tool, enabled, alias, description, updated_at
             FROM kb.tool_settings WHERE project_id = $1 ORDER BY server, tool",
            Key(project.as_str()),
        )
    }

    /// # Errors
    /// [`Error::NotFound`] if the tool has no settings.
    pub async fn tool_setting_delete(
        &self,
        project: &ProjectId,
        server: &ServerName,
        tool: &str,
    ) -> Result<()> {
        let removed = execute!(
            self.pool.write().await?,
            "DELETE FROM kb.tool_settings WHERE project_id = $1 AND server = $2 AND tool = $3",
            Key(project.as_str()),
            Key(server.as_str()),
            Key(tool),
        )?;
        Error::unless_found(removed, "setting of the tool", tool)
    }

    /// The pins of a server by tool. Not paged, because a catalog needs them all.
    pub async fn pin_list(
        &self,
        project: Option<&ProjectId>,
        server: &ServerName,
    ) -> Result<Vec<PinRow>> {
        pins(self.pool.read().await?, project, server).await
    }

    /// The pins of all servers of a project (`None`: of the configuration file) without the definitions. Not paged,
    /// because the caller loads the whole project.
    pub async fn pin_digest_list(&self, project: Option<&ProjectId>) -> Result<Vec<PinDigest>> {
        rows!(
            self.pool.read().await?,
            PinDigest,
            "SELECT server, tool, digest, pending_digest, config_digest FROM kb.tool_pins
             WHERE project_id = $1 ORDER BY server, tool",
            scope(project),
        )
    }

    /// Compares a server's tools with their pins, and returns the pins afterwards:
    ///
    /// - A new tool is pinned.
    /// - With an unchanged server configuration, a changed definition waits for approval. If the server returns to the
    ///   pinned definition, no definition is pending any longer.
    /// - With a changed server configuration, the new definition is pinned and the change is recorded.
    ///
    /// Writes nothing if nothing has changed.
    pub async fn pins_seen(
        &self,
        project: Option<&ProjectId>,
        server: &ServerName,
        seen: &[Seen],
    ) -> Result<Vec<PinRow>> {
        let pins = self.pin_list(project, server).await?;
        let changed: Vec<&Seen> = seen.iter().filter(|tool| !is_known(&pins, tool)).collect();
        if changed.is_empty() {
            return Ok(pins);
        }
        let mut tx = self.pool.begin().await?;
        let mut noted = false;
        for tool in changed {
            if is_configured_anew(&pins, tool) {
                let definition = (tool.digest.as_str(), tool.definition.as_str());
                let cause = Cause::Configuration;
                tool_change::note(
                    &mut tx,
                    scope(project),
                    server,
                    &tool.tool,
                    (cause, None),
                    definition,
                )
                .await?;
                noted = true;
            }
            // The statement compares again, because the pins were read before the transaction.
            execute!(
                tx,
                "INSERT INTO kb.tool_pins AS p
                     (project_id, server, tool, digest, definition, first_seen_at, config_digest)
                 VALUES ($1, $2, $3, $4, $5, $6, $7)
                 ON CONFLICT (project_id, server, tool) DO UPDATE SET
                     digest =
                         CASE WHEN p.config_digest IN ('', excluded.config_digest) THEN p.digest
                              ELSE excluded.digest END,
                     definition =
                         CASE WHEN p.config_digest IN ('', excluded.config_digest) THEN p.definition
                              ELSE excluded.definition END,
                     pending_digest =
                         CASE WHEN excluded.digest = p.digest
                                  OR p.config_digest NOT IN ('', excluded.config_digest) THEN NULL
                              ELSE excluded.digest END,
                     pending_definition =
                         CASE WHEN excluded.digest = p.digest
                                  OR p.config_digest NOT IN ('', excluded.config_digest) THEN NULL
                              ELSE excluded.definition END,
                     changed_at =
                         CASE WHEN excluded.digest = p.digest
                                  OR p.config_digest NOT IN ('', excluded.config_digest) THEN NULL
                              WHEN excluded.digest = p.pending_digest THEN p.changed_at
                              ELSE excluded.first_seen_at END,
                     config_digest = excluded.config_digest",
                scope(project),
                Key(server.as_str()),
                Key(&tool.tool),
                Key(&tool.digest),
                Text(&tool.definition),
                now(),
                Key(&tool.config_digest),
            )?;
        }
        if noted {
            tool_change::trim(&mut tx, scope(project), server).await?;
        }
        tx.commit().await?;
        self.pin_list(project, server).await
    }

    /// Approves the pending definition of each tool, which must have the given digest, and records the changes with the
    /// caller. Approves all of them or none.
    ///
    /// # Errors
    /// [`Error::NotFound`] if a tool has no pin, [`Error::Conflict`] if a tool has no pending definition, or a
    /// different one.
    pub async fn pins_approve(
        &self,
        project: Option<&ProjectId>,
        server: &ServerName,
        tools: &[(&str, &str)],
        caller: Option<&str>,
    ) -> Result<()> {
        let mut tx = self.pool.begin().await?;
        for &(tool, digest) in tools {
            if approve(&mut tx, project, server, (tool, digest), caller).await? {
                continue;
            }
            // Release the connection first, because SQLite has only one connection for writing.
            drop(tx);
            let pins = self.pin_list(project, server).await?;
            if pins.iter().any(|pin| pin.tool == tool) {
                let why = "this definition is not waiting for approval; list the tools again";
                return Err(Error::conflict("tool", tool, why));
            }
            return Err(Error::not_found("tool", tool));
        }
        tool_change::trim(&mut tx, scope(project), server).await?;
        tx.commit().await
    }
}

/// Pins the pending definition with this digest. Returns `false` if there is none.
async fn approve(
    tx: &mut Tx,
    project: Option<&ProjectId>,
    server: &ServerName,
    (tool, digest): (&str, &str),
    caller: Option<&str>,
) -> Result<bool> {
    let waiting = row!(
        tx,
        (String,),
        "SELECT pending_definition FROM kb.tool_pins
         WHERE project_id = $1 AND server = $2 AND tool = $3 AND pending_digest = $4",
        scope(project),
        Key(server.as_str()),
        Key(tool),
        Key(digest),
    )?;
    let Some((definition,)) = waiting else {
        return Ok(false);
    };
    let (owner, definition) = (scope(project), (digest, definition.as_str()));
    let cause = (Cause::Approved, caller);
    tool_change::note(tx, owner, server, tool, cause, definition).await?;
    let approved = execute!(
        tx,
        "UPDATE kb.tool_pins SET
             digest = pending_digest, definition = pending_definition,
             pending_digest = NULL, pending_definition = NULL, changed_at = NULL
         WHERE project_id = $1 AND server = $2 AND tool = $3 AND pending_digest = $4",
        scope(project),
        Key(server.as_str()),
        Key(tool),
        Key(digest),
    )?;
    Ok(approved > 0)
}

async fn pins(
    mut conn: Conn,
    project: Option<&ProjectId>,
    server: &ServerName,
) -> Result<Vec<PinRow>> {
    rows!(
        conn,
        PinRow,
        "SELECT NULLIF(project_id, '') AS project_id, server, tool, digest, definition,
             pending_digest, pending_definition, first_seen_at, changed_at, config_digest
         FROM kb.tool_pins WHERE project_id = $1 AND server = $2 ORDER BY tool",
        scope(project),
        Key(server.as_str()),
    )
}

/// True if the pin of this tool needs no change. `pins` are sorted by tool.
fn is_known(pins: &[PinRow], seen: &Seen) -> bool {
    found(pins, seen).is_some_and(|pin| {
        *pin.pending_digest.as_ref().unwrap_or(&pin.digest) == seen.digest
            && pin.config_digest == seen.config_digest
    })
}

/// True if this tool must be pinned again because the configuration of its server changed.
fn is_configured_anew(pins: &[PinRow], seen: &Seen) -> bool {
    found(pins, seen).is_some_and(|pin| {
        pin.digest != seen.digest
            && !pin.config_digest.is_empty()
            && pin.config_digest != seen.config_digest
    })
}

fn found<'p>(pins: &'p [PinRow], seen: &Seen) -> Option<&'p PinRow> {
    let found = pins.binary_search_by(|pin| pin.tool.as_str().cmp(&seen.tool));
    found.ok().map(|index| &pins[index])
}
