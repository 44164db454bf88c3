//! What somebody decided about a tool (settings), and what the tool was when it was first seen
//! (pins).

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

/// A decision about a tool; what is `None` is as the server says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolSetting {
    pub enabled: Option<bool>,
    pub alias: Option<String>,
    pub description: Option<String>,
}

/// A stored decision.
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

/// A tool as its server offers it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub tool: String,
    pub digest: String,
    /// The definition as the server wrote it, to the byte.
    pub definition: String,
    /// Of the configuration that the server has.
    pub config_digest: String,
}

/// A tool's approved definition, and the one that waits for approval.
#[derive(Clone, Debug, PartialEq, FromRow, Serialize)]
pub struct PinRow {
    /// `None`: the server is one of the configuration file.
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
    /// Of the configuration under which the tool was last listed; empty: an earlier version did not note it.
    pub config_digest: String,
}

/// What a catalog needs to know of a pin.
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
    /// Stores a decision about a tool in place of an earlier one.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such project.
    pub async fn tool_setting_put(
        &self,
        project: &ProjectId,
        server: &ServerName,
        tool: &str,
        setting: &ToolSetting,
    ) -> Result<ToolSettingRow> {
        let mut tx = self.pool.begin().await?;
        crate::project::lock(&mut tx, project).await?;
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

    /// All decisions of a project, by server and tool; not paged, for a view needs them all.
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
    /// [`Error::NotFound`] if nothing was decided about this tool.
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
        match removed {
            0 => Err(Error::not_found("setting of the tool", tool)),
            _ => Ok(()),
        }
    }

    /// The pins of a server by tool; not paged, for a catalog needs them all.
    pub async fn pin_list(
        &self,
        project: Option<&ProjectId>,
        server: &ServerName,
    ) -> Result<Vec<PinRow>> {
        pins(self.pool.read().await?, project, server).await
    }

    /// The pins of all servers of a project (`None`: of the configuration file) without the definitions; not
    /// paged, for whoever asks loads the whole project.
    pub async fn pin_digest_list(&self, project: Option<&ProjectId>) -> Result<Vec<PinDigest>> {
        rows!(
            self.pool.read().await?,
            PinDigest,
            "SELECT server, tool, digest, pending_digest, config_digest FROM kb.tool_pins
             WHERE project_id = $1 ORDER BY server, tool",
            scope(project),
        )
    }

    /// Compares a server's tools with their pins: one that is new is pinned. Another definition under the same
    /// configuration waits for approval, and the pinned one again ends the waiting. Under another configuration
    /// the definition is pinned anew, and the change is recorded. The server's pins after that. Nothing is written
    /// if nothing has changed.
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
                    cause,
                    definition,
                )
                .await?;
                noted = true;
            }
            // Compared again in the statement: the reading above was before the transaction.
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

    /// Pins the definitions that wait for approval, of each tool the one of this digest, and records that. All of them,
    /// or none.
    ///
    /// # Errors
    /// [`Error::NotFound`] if a tool has no pin, [`Error::Conflict`] if another definition of it waits, or none.
    pub async fn pins_approve(
        &self,
        project: Option<&ProjectId>,
        server: &ServerName,
        tools: &[(&str, &str)],
    ) -> Result<()> {
        let mut tx = self.pool.begin().await?;
        for &(tool, digest) in tools {
            if approve(&mut tx, project, server, tool, digest).await? {
                continue;
            }
            // Given back first: with SQLite there is only one connection that writes.
            drop(tx);
            let pins = self.pin_list(project, server).await?;
            if pins.iter().any(|pin| pin.tool == tool) {
                let why = "another definition waits for approval than this one, or none";
                return Err(Error::conflict("tool", tool, why));
            }
            return Err(Error::not_found("tool", tool));
        }
        tool_change::trim(&mut tx, scope(project), server).await?;
        tx.commit().await
    }
}

/// Pins the definition of this digest that waits for approval; `false` if none of it does.
async fn approve(
    tx: &mut Tx,
    project: Option<&ProjectId>,
    server: &ServerName,
    tool: &str,
    digest: &str,
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
    tool_change::note(tx, owner, server, tool, Cause::Approved, definition).await?;
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

/// Whether seeing this tool changes nothing. `pins` are in the order of tools.
fn is_known(pins: &[PinRow], seen: &Seen) -> bool {
    found(pins, seen).is_some_and(|pin| {
        *pin.pending_digest.as_ref().unwrap_or(&pin.digest) == seen.digest
            && pin.config_digest == seen.config_digest
    })
}

/// Whether this tool is pinned anew because its server has another configuration.
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
