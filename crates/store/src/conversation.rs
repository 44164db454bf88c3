//! Conversations with agents.
//!
//! The body is stored as text, not as a JSON document, because the model must receive it unchanged, and a database that
//! sorts keys would change it. To save, a caller names the revision that it read, so that only one of two simultaneous
//! turns is saved.

use model::ProjectId;
use serde::Serialize;
use sqlx::FromRow;

use crate::{
    Page, Store, Time,
    error::{Error, Result},
    id::now,
    sql::{Filter, Key, Text, execute, page, row, table},
};

table!($, "kb.conversations", "id, project_id, title, revision, created_at, updated_at");

/// A conversation as shown in lists.
#[derive(Clone, Debug, PartialEq, FromRow, Serialize)]
pub struct ConversationRow {
    pub id: String,
    pub project_id: Option<String>,
    pub title: String,
    /// Incremented on each save.
    pub revision: i64,
    pub created_at: Time,
    pub updated_at: Time,
}

/// A conversation with its body.
#[derive(Clone, Debug, PartialEq, FromRow, Serialize)]
pub struct ConversationDetail {
    #[sqlx(flatten)]
    #[serde(flatten)]
    pub row: ConversationRow,
    pub body: String,
}

impl Store {
    /// Adds a conversation. `id` was made by [`crate::new_id`].
    ///
    /// # Errors
    /// [`Error::NotFound`] if the project does not exist, [`Error::Conflict`] if the id is taken.
    pub async fn conversation_put(
        &self,
        id: &str,
        project: Option<&ProjectId>,
        title: &str,
        body: &str,
    ) -> Result<ConversationRow> {
        let mut tx = self.locked(project).await?;
        let made = row!(
            tx,
            ConversationRow,
            query!(returning "INSERT INTO kb.conversations (id, project_id, title, body, revision, created_at, updated_at)
                 VALUES ($1, $2, $3, $4, 1, $5, $5)"),
            Key(id),
            project.map(|project| Key(project.as_str())),
            Text(title),
            Text(body),
            now(),
        )?;
        let made = made.ok_or_else(|| Error::not_found("conversation", title))?;
        tx.commit().await?;
        Ok(made)
    }

    /// Replaces the body, unless the conversation was saved since this revision.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the conversation is not in this scope, [`Error::Conflict`] if another save came first.
    pub async fn conversation_save(
        &self,
        project: Option<&ProjectId>,
        id: &str,
        revision: i64,
        body: &str,
    ) -> Result<ConversationRow> {
        let mut conn = self.pool.write().await?;
        let saved = row!(
            conn,
            ConversationRow,
            query!(returning "UPDATE kb.conversations SET body = $4, revision = revision + 1, updated_at = $5
                 WHERE id = $1 AND COALESCE(project_id, '') = $2 AND revision = $3"),
            Key(id),
            crate::project::scope(project),
            revision,
            Text(body),
            now(),
        )?;
        if let Some(row) = saved {
            return Ok(row);
        }
        drop(conn);
        self.conversation_get(project, id).await?;
        let why = "another turn was saved first: reload the conversation";
        Err(Error::conflict("conversation", id, why))
    }

    /// # Errors
    /// [`Error::NotFound`] if the conversation is not in this scope.
    pub async fn conversation_get(
        &self,
        project: Option<&ProjectId>,
        id: &str,
    ) -> Result<ConversationDetail> {
        let found = row!(
            self.pool.read().await?,
            ConversationDetail,
            query!(select "body", "WHERE id = $1 AND COALESCE(project_id, '') = $2"),
            Key(id),
            crate::project::scope(project),
        )?;
        found.ok_or_else(|| Error::not_found("conversation", id))
    }

    /// Conversations, newest first, optionally those of one project. `page.after` is an id.
    pub async fn conversation_list(
        &self,
        project: Option<&ProjectId>,
        page: &Page,
    ) -> Result<Vec<ConversationRow>> {
        page!(
            self.pool.read().await?,
            ConversationRow,
            query!(select ""),
            Filter::newest_first(project, page),
            "id DESC",
            page
        )
    }

    /// # Errors
    /// [`Error::NotFound`] if the conversation is not in this scope.
    pub async fn conversation_remove(&self, project: Option<&ProjectId>, id: &str) -> Result<()> {
        let removed = execute!(
            self.pool.write().await?,
            "DELETE FROM kb.conversations WHERE id = $1 AND COALESCE(project_id, '') = $2",
            Key(id),
            crate::project::scope(project),
        )?;
        Error::unless_found(removed, "conversation", id)
    }
}
