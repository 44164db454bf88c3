//! Runs of agents.

use model::ProjectId;
use serde::Serialize;
use sqlx::FromRow;

use crate::{
    Store, Time,
    error::{Error, Result},
    id::{new_id, now},
    sql::{Key, Text, row},
};

/// A run of an agent.
#[derive(Clone, Debug, PartialEq, FromRow, Serialize)]
pub struct RunRow {
    pub id: String,
    pub project_id: Option<String>,
    pub agent: String,
    pub model: String,
    pub status: String,
    pub turns: i32,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub cost_micros: i64,
    pub error: Option<String>,
    pub started_at: Time,
    pub finished_at: Option<Time>,
}

/// A run that begins.
#[derive(Clone, Copy, Debug)]
pub struct NewRun<'a> {
    pub project: Option<&'a ProjectId>,
    pub agent: &'a str,
    pub model: &'a str,
}

/// How a run ended and what it took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunEnd {
    pub status: String,
    pub turns: i32,
    pub input_tokens: i64,
    pub output_tokens: i64,
    /// In millionths of the currency that prices are configured in.
    pub cost_micros: i64,
    pub error: Option<String>,
}

impl Store {
    /// Opens the record of a run; its status is `running`.
    pub async fn run_put(&self, run: NewRun<'_>) -> Result<RunRow> {
        let mut conn = self.pool.write().await?;
        let row = row!(
            conn,
            RunRow,
            "INSERT INTO kb.agent_runs (id, project_id, agent, model, status, turns, input_tokens,
                 output_tokens, cost_micros, started_at)
             VALUES ($1, $2, $3, $4, 'running', 0, 0, 0, 0, $5)
             RETURNING id, project_id, agent, model, status, turns, input_tokens, output_tokens,
                 cost_micros, error, started_at, finished_at",
            Key(&new_id()),
            run.project.map(|project| Key(project.as_str())),
            Text(run.agent),
            Text(run.model),
            now(),
        )?;
        row.ok_or_else(|| Error::not_found("run of", run.agent))
    }

    /// Closes the record of a run.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the project has no such run.
    pub async fn run_finish(
        &self,
        project: Option<&ProjectId>,
        id: &str,
        end: &RunEnd,
    ) -> Result<RunRow> {
        let mut conn = self.pool.write().await?;
        let row = row!(
            conn,
            RunRow,
            "UPDATE kb.agent_runs SET status = $3, turns = $4, input_tokens = $5, output_tokens = $6,
                 cost_micros = $7, error = $8, finished_at = $9
             WHERE id = $1 AND COALESCE(project_id, '') = $2
             RETURNING id, project_id, agent, model, status, turns, input_tokens, output_tokens,
                 cost_micros, error, started_at, finished_at",
            Key(id),
            crate::project::scope(project),
            Text(&end.status),
            end.turns,
            end.input_tokens,
            end.output_tokens,
            end.cost_micros,
            end.error.as_deref().map(Text),
            now(),
        )?;
        row.ok_or_else(|| Error::not_found("run", id))
    }

    /// # Errors
    /// [`Error::NotFound`] if the project has no such run.
    pub async fn run_get(&self, project: Option<&ProjectId>, id: &str) -> Result<RunRow> {
        let mut conn = self.pool.read().await?;
        let row = row!(
            conn,
            RunRow,
            "SELECT id, project_id, agent, model, status, turns, input_tokens, output_tokens,
                 cost_micros, error, started_at, finished_at
             FROM kb.agent_runs WHERE id = $1 AND COALESCE(project_id, '') = $2",
            Key(id),
            crate::project::scope(project),
        )?;
        row.ok_or_else(|| Error::not_found("run", id))
    }
}
