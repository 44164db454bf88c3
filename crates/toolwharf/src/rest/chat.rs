//! Chats with an agent, and the conversations that are kept of them.

use std::convert::Infallible;

use agent::Conversation;
use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::{StreamExt as _, stream};
use model::ProjectId;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{ConversationDetail, ConversationRow, Time};
use utoipa::ToSchema;

use super::{Problem, Shared, access, input, input::Page, schemas};
use crate::agents::{NoAgent, TooMany};

/// Longest title, in characters: the beginning of what was said first.
const TITLE: usize = 80;
/// Longest message, in bytes.
const MESSAGE: usize = 1 << 20;

/// Something that is said to an agent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatRequest {
    /// The conversation that goes on; a new one without it.
    #[serde(default)]
    pub(crate) conversation: Option<String>,
    #[schema(min_length = 1)]
    pub(crate) message: String,
}

/// A conversation, as lists have it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConversationInfo {
    pub(crate) id: String,
    pub(crate) project: Option<String>,
    pub(crate) title: String,
    #[schema(value_type = String, format = DateTime)]
    pub(crate) created_at: Time,
    #[schema(value_type = String, format = DateTime)]
    pub(crate) updated_at: Time,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Conversations {
    /// Newest first.
    pub(crate) conversations: Vec<ConversationInfo>,
    /// Give it as `after` for the next page; none on the last.
    pub(crate) next: Option<String>,
}

/// A conversation with all that was said.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WholeConversation {
    #[serde(flatten)]
    pub(crate) info: ConversationInfo,
    /// What was said, in turns: `role`, and `content` in blocks.
    #[schema(schema_with = schemas::any)]
    pub(crate) messages: Value,
}

#[derive(Deserialize)]
pub(super) struct Named {
    conversation: String,
}

impl From<ConversationRow> for ConversationInfo {
    fn from(row: ConversationRow) -> Self {
        Self {
            id: row.id,
            project: row.project_id,
            title: row.title,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

impl From<NoAgent> for Problem {
    fn from(error: NoAgent) -> Self {
        match error {
            NoAgent::Store(error) => error.into(),
            error => Self::new(409, error.to_string()),
        }
    }
}

impl From<TooMany> for Problem {
    fn from(error: TooMany) -> Self {
        Self::new(503, error.to_string())
    }
}

pub(super) async fn chat(
    State(rest): State<Shared>,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Result<Response, Problem> {
    said(rest, None, body).await
}

pub(super) async fn chat_in_project(
    State(rest): State<Shared>,
    project: access::Project,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Result<Response, Problem> {
    said(rest, Some(project.0), body).await
}

async fn said(
    rest: Shared,
    project: Option<ProjectId>,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Result<Response, Problem> {
    let body = input::whole(body)?;
    let asked: ChatRequest = input::typed(&mut serde_json::Deserializer::from_slice(&body))?;
    if asked.message.trim().is_empty() || asked.message.len() > MESSAGE {
        let must = format!("is a text of 1 to {MESSAGE} bytes");
        return Err(Problem::field(400, "/message", must));
    }
    let agent = rest.agents.of(project.as_ref()).await?;
    let store = rest.agents.store().clone();
    let mut turn = rest.agents.turn()?;
    let (row, conversation) = match &asked.conversation {
        Some(id) => {
            // Before it is read: a turn that is under way has not written yet.
            if !turn.of(project.as_ref(), id) {
                let busy = "a turn of this conversation is under way: wait for its end";
                return Err(Problem::new(409, busy));
            }
            kept(store.conversation_get(project.as_ref(), id).await?)?
        }
        None => {
            let title = title(&asked.message);
            let fresh = Conversation::new();
            let body = serde_json::to_string(&fresh).unwrap_or_default();
            let row = store
                .conversation_put(project.as_ref(), &title, &body)
                .await?;
            // Nobody else knows it yet.
            turn.of(project.as_ref(), &row.id);
            (row, fresh)
        }
    };
    let first = json!({ "id": row.id, "title": row.title });
    let keep = async move |conversation: Conversation| {
        let _turn = turn;
        let saved = match serde_json::to_string(&conversation) {
            Ok(body) => {
                let saved = store.conversation_save(project.as_ref(), &row.id, row.revision, &body);
                saved.await.map(|_| ()).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = saved {
            tracing::error!(conversation = row.id, "what was said is not kept: {error}");
        }
    };
    let events = agent.chat_owned(conversation, asked.message, keep);
    let over = rest.over.clone().cancelled_owned();
    let events = events.map(|happened| {
        let data = serde_json::to_value(&happened).unwrap_or_default();
        let kind = data["type"].as_str().unwrap_or("event").to_owned();
        event(&kind, &data)
    });
    let first = stream::once(async move { event("conversation", &first) });
    let body = Body::from_stream(first.chain(events).take_until(over));
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, body).into_response())
}

fn event(kind: &str, data: &Value) -> Result<Bytes, Infallible> {
    Ok(mcp::sse::encode(Some(kind), None, &data.to_string().into()))
}

/// The beginning of what was said, on one line.
fn title(message: &str) -> String {
    let words = message.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().filter(|c| *c != '\0').take(TITLE).collect()
}

fn kept(detail: ConversationDetail) -> Result<(ConversationRow, Conversation), Problem> {
    match serde_json::from_str(&detail.body) {
        Ok(conversation) => Ok((detail.row, conversation)),
        Err(error) => {
            let why = format!("conversation `{}` cannot be read: {error}", detail.row.id);
            Err(Problem::new(500, why))
        }
    }
}

pub(super) async fn list(
    State(rest): State<Shared>,
    page: Page,
) -> Result<Json<Conversations>, Problem> {
    listed(&rest, None, &page).await
}

pub(super) async fn list_in_project(
    State(rest): State<Shared>,
    project: access::Project,
    page: Page,
) -> Result<Json<Conversations>, Problem> {
    listed(&rest, Some(&project.0), &page).await
}

async fn listed(
    rest: &Shared,
    project: Option<&ProjectId>,
    page: &Page,
) -> Result<Json<Conversations>, Problem> {
    let rows = rest
        .agents
        .store()
        .conversation_list(project, page.asked())
        .await?;
    let next = page.next(&rows, |row| row.id.clone());
    let conversations = rows.into_iter().map(Into::into).collect();
    Ok(Json(Conversations {
        conversations,
        next,
    }))
}

pub(super) async fn show(
    State(rest): State<Shared>,
    Path(named): Path<Named>,
) -> Result<Json<WholeConversation>, Problem> {
    shown(&rest, None, &named.conversation).await
}

pub(super) async fn show_in_project(
    State(rest): State<Shared>,
    project: access::Project,
    Path(named): Path<Named>,
) -> Result<Json<WholeConversation>, Problem> {
    shown(&rest, Some(&project.0), &named.conversation).await
}

async fn shown(
    rest: &Shared,
    project: Option<&ProjectId>,
    id: &str,
) -> Result<Json<WholeConversation>, Problem> {
    let (row, conversation) = kept(rest.agents.store().conversation_get(project, id).await?)?;
    let messages = serde_json::to_value(conversation.messages()).unwrap_or_default();
    Ok(Json(WholeConversation {
        info: row.into(),
        messages,
    }))
}

pub(super) async fn remove(
    State(rest): State<Shared>,
    Path(named): Path<Named>,
) -> Result<StatusCode, Problem> {
    removed(&rest, None, &named.conversation).await
}

pub(super) async fn remove_in_project(
    State(rest): State<Shared>,
    project: access::Project,
    Path(named): Path<Named>,
) -> Result<StatusCode, Problem> {
    removed(&rest, Some(&project.0), &named.conversation).await
}

async fn removed(
    rest: &Shared,
    project: Option<&ProjectId>,
    id: &str,
) -> Result<StatusCode, Problem> {
    rest.agents.store().conversation_remove(project, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
