//! Server events: started, crashed, gave up.

use model::ProjectId;
use serde::Serialize;
use serde_json::Value;
use sqlx::FromRow;

use crate::{
    Page, Store, Time,
    error::Result,
    id::{floor, new_id, now},
    sql::{Doc, Filter, Key, Text, execute, page, rows},
};

#[derive(Clone, Debug, PartialEq, FromRow, Serialize)]
pub struct EventRow {
    pub id: String,
    pub project_id: Option<String>,
    pub server: String,
    pub kind: String,
    pub detail: Value,
    pub at: Time,
}

/// A new event; its time is the time of the insert.
#[derive(Clone, Copy, Debug)]
pub struct NewEvent<'a> {
    /// `None`: the server comes from the configuration file.
    pub project: Option<&'a ProjectId>,
    pub server: &'a str,
    pub kind: &'a str,
    pub detail: &'a Value,
}

impl Store {
    pub async fn event_add(&self, event: NewEvent<'_>) -> Result<()> {
        execute!(
            self.pool.write().await?,
            "INSERT INTO kb.server_events (id, project_id, server, kind, detail, at)
             VALUES ($1, $2, $3, $4, $5, $6)",
            Key(&new_id()),
            event.project.map(|project| Key(project.as_str())),
            Key(event.server),
            Text(event.kind),
            Doc(event.detail),
            now(),
        )?;
        Ok(())
    }

    /// Events, newest first, optionally only those of one project or server. `page.after` is an id.
    pub async fn event_list(
        &self,
        project: Option<&ProjectId>,
        server: Option<&str>,
        page: &Page,
    ) -> Result<Vec<EventRow>> {
        page!(
            self.pool.read().await?,
            EventRow,
            "SELECT id, project_id, server, kind, detail, at FROM kb.server_events",
            Filter::newest_first(project, page).and("server =", server),
            "id DESC",
            page
        )
    }

    /// The last crash of each registered hosted server.
    pub async fn crash_list(&self) -> Result<Vec<EventRow>> {
        rows!(
            self.pool.read().await?,
            EventRow,
            "SELECT event.id, event.project_id, event.server, event.kind, event.detail, event.at
             FROM kb.agent_workspaces AS hosted JOIN kb.server_events AS event ON event.id =
                 (SELECT last.id FROM kb.server_events AS last
                  WHERE last.server = hosted.id AND last.kind = 'crashed'
                  ORDER BY last.id DESC LIMIT 1)",
        )
    }

    /// Deletes all events of a server.
    pub async fn events_remove(&self, server: &str) -> Result<()> {
        execute!(
            self.pool.write().await?,
            "DELETE FROM kb.server_events WHERE server = $1",
            Key(server),
        )?;
        Ok(())
    }

    /// Deletes up to 1000 of the oldest events before this time, and returns their number. Call it until it returns 0.
    pub async fn events_prune(&self, before: Time) -> Result<u64> {
        execute!(
            self.pool.write().await?,
            "DELETE FROM kb.server_events WHERE id IN
                 (SELECT id FROM kb.server_events WHERE id < $1 ORDER BY id LIMIT 1000)",
            Key(&floor(before)),
        )
    }
}
