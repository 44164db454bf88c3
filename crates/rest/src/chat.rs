//! Routes of chats with an agent and of stored conversations.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use agent::{ChatEvent, Conversation, Keep, Raw};
use api::{ChatAnswers, ChatRequest, ConversationInfo, Conversations, WholeConversation};
use axum::{
    Extension, Json,
    body::Bytes,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use futures_util::{StreamExt as _, future::BoxFuture, stream};
use model::ProjectId;
use serde_json::{Value, json};
use store::{ConversationDetail, ConversationRow, Store};

use super::{
    AppState, Problem, Rest,
    access::{Who, Within},
    answer::event_stream,
    input::{self, Page},
};
use crate::agents::{NoAgent, NoTurn, Turn};

/// Maximum length of a title, in characters. The title is the beginning of the first message.
const MAX_TITLE_CHARS: usize = 80;
/// Maximum length of a message, in bytes.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

pub(super) fn to_api(row: ConversationRow) -> ConversationInfo {
    ConversationInfo {
        id: row.id,
        project: row.project_id,
        title: row.title,
        created_at: row.created_at,
        updated_at: row.updated_at,
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

impl From<NoTurn> for Problem {
    fn from(error: NoTurn) -> Self {
        Self::new(503, error.to_string())
    }
}

pub(super) async fn chat(
    State(rest): State<AppState>,
    Extension(who): Who,
    Within(project): Within,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Result<Response, Problem> {
    let body = input::whole(body)?;
    let asked: ChatRequest = input::typed(&mut serde_json::Deserializer::from_slice(&body))?;
    if asked.message.trim().is_empty() || asked.message.len() > MAX_MESSAGE_BYTES {
        let must = format!("must be a string of 1 to {MAX_MESSAGE_BYTES} bytes");
        return Err(Problem::field(400, "/message", must));
    }
    let agent = rest.agents.of(project.as_ref()).await?;
    let store = rest.agents.store().clone();
    let mut turn = rest.agents.turn()?;
    let (id, place, conversation) = match asked.conversation {
        Some(id) => {
            let busy = "a turn of this conversation is in progress: wait for its end";
            // Check this before reading the conversation, because a turn in progress has not been written yet.
            if !turn.of(project.as_ref(), &id) {
                return Err(Problem::new(409, busy));
            }
            let (row, conversation) = kept(store.conversation_get(project.as_ref(), &id).await?)?;
            // Check this after reading the conversation: if a turn begins on another replica from now on, it changes
            // the revision.
            if store.run_place(project.as_ref(), &id).await?.is_some() {
                return Err(Problem::new(409, busy));
            }
            let (title, revision) = (row.title, Some(row.revision));
            (row.id, Place { title, revision }, conversation)
        }
        None => {
            let (id, title) = (store::new_id(), title(&asked.message));
            // The id is new, so no other turn can be using it.
            turn.of(project.as_ref(), &id);
            let revision = None;
            (id, Place { title, revision }, Conversation::new())
        }
    };
    let mut first = Some(json!({ "id": id, "title": place.title }));
    let questions = asked.can_answer.then(|| turn.questions());
    let is_gone = Arc::<AtomicBool>::default();
    let keep = Kept {
        store,
        project,
        id,
        caller: who.id.clone(),
        is_new: place.revision.is_none(),
        place,
        is_gone: is_gone.clone(),
        _turn: turn,
    };
    let events = agent.chat_owned(conversation, asked.message, keep, questions);
    let events = events.flat_map(move |happened| {
        // Report the conversation once it is stored. Report `null` if the turn did not start and nothing was stored.
        let conversation = match &happened {
            ChatEvent::Started { .. } => first.take().map(|data| event("conversation", &data)),
            ChatEvent::Error { .. } if is_gone.load(Ordering::Relaxed) => {
                Some(event("conversation", &json!({ "id": null })))
            }
            _ => None,
        };
        let data = serde_json::to_value(&happened).unwrap_or_default();
        let kind = data["type"].as_str().unwrap_or("event").to_owned();
        stream::iter(conversation.into_iter().chain([event(&kind, &data)]))
    });
    Ok(event_stream(events))
}

/// A conversation during a turn.
struct Kept {
    store: Store,
    project: Option<ProjectId>,
    id: String,
    /// The caller that began the turn.
    caller: Arc<str>,
    place: Place,
    is_new: bool,
    /// The conversation was empty and has been deleted.
    is_gone: Arc<AtomicBool>,
    /// Kept until the conversation is saved, so that no other turn of the conversation begins.
    _turn: Turn,
}

/// The columns of the database row.
struct Place {
    title: String,
    /// `None`: no row exists yet.
    revision: Option<i64>,
}

impl Kept {
    async fn save(&mut self, conversation: &Conversation) -> Result<(), String> {
        let body = serde_json::to_string(conversation).map_err(|error| error.to_string())?;
        let (store, project, id) = (&self.store, self.project.as_ref(), &self.id);
        let row = match self.place.revision {
            Some(revision) => store.conversation_save(project, id, revision, &body).await,
            None => {
                let title = &self.place.title;
                store.conversation_put(id, project, title, &body).await
            }
        };
        let row = row.map_err(|error| error.to_string())?;
        self.place.revision = Some(row.revision);
        Ok(())
    }

    async fn remove(&self) -> Result<(), String> {
        let removed = self
            .store
            .conversation_remove(self.project.as_ref(), &self.id);
        removed.await.map_err(|error| error.to_string())?;
        self.is_gone.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Keep for Kept {
    fn conversation(&self) -> &str {
        &self.id
    }

    fn caller(&self) -> Option<&str> {
        Some(&self.caller)
    }

    fn begun<'a>(
        &'a mut self,
        conversation: &'a Conversation,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(self.save(conversation))
    }

    fn ended(mut self: Box<Self>, conversation: Conversation) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // The model provider rejected the first message, which was then removed.
            let is_empty = self.is_new && conversation.messages().is_empty();
            let kept = match is_empty {
                true => self.remove().await,
                false => self.save(&conversation).await,
            };
            if let Err(error) = kept {
                tracing::error!(
                    conversation = self.id,
                    "cannot save the conversation: {error}"
                );
            }
        })
    }
}

fn event(kind: &str, data: &Value) -> Bytes {
    mcp::sse::encode(Some(kind), None, &data.to_string().into())
}

/// Returns the beginning of the message, on one line.
fn title(message: &str) -> String {
    let words = message.split_whitespace().collect::<Vec<_>>().join(" ");
    words
        .chars()
        .filter(|c| *c != '\0')
        .take(MAX_TITLE_CHARS)
        .collect()
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
    State(rest): State<AppState>,
    Within(project): Within,
    page: Page,
) -> Result<Json<Conversations>, Problem> {
    let store = rest.agents.store();
    let rows = store
        .conversation_list(project.as_ref(), page.asked())
        .await?;
    Ok(Json(Conversations {
        next: page.next(&rows, |row| row.id.clone()),
        conversations: rows.into_iter().map(to_api).collect(),
    }))
}

pub(super) async fn show(
    State(rest): State<AppState>,
    Within(project): Within,
    Path(id): Path<String>,
) -> Result<Json<WholeConversation>, Problem> {
    let store = rest.agents.store();
    let (row, conversation) = kept(store.conversation_get(project.as_ref(), &id).await?)?;
    let messages = serde_json::to_value(conversation.messages()).unwrap_or_default();
    let results = conversation.app_results();
    let results = results.map(|kept| (kept.call.clone(), kept.result.read().unwrap_or_default()));
    Ok(Json(WholeConversation {
        info: to_api(row),
        messages,
        results: results.collect(),
    }))
}

/// Answers a server that asked for input during a turn. The turn may run on another replica.
pub(super) async fn answer(
    State(rest): State<AppState>,
    Extension(who): Who,
    Within(project): Within,
    Path(id): Path<String>,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Result<Response, Problem> {
    let body = input::whole(body)?;
    if let Some(status) = answered(&rest, project.as_ref(), &id, &body) {
        return Ok(status?.into_response());
    }
    let place = rest.agents.store().run_place(project.as_ref(), &id).await?;
    let conversation = (project.as_ref(), id.as_str());
    if let Some(address) = place
        && let Some(answer) = rest.answers_at(&address, &who, conversation, &body).await
    {
        return answer.map(|answer| answer.map(axum::body::Body::new));
    }
    let why = format!("no turn of the conversation `{id}` is in progress, so no question is open");
    Err(Problem::new(409, why))
}

/// Passes answers to the turn of a conversation. `None` if this replica runs no turn of that conversation.
pub(super) fn answered(
    rest: &Rest,
    project: Option<&ProjectId>,
    id: &str,
    body: &[u8],
) -> Option<Result<StatusCode, Problem>> {
    let questions = rest.agents.questions(project, id)?;
    let given = input::typed(&mut serde_json::Deserializer::from_slice(body));
    Some(given.and_then(|given: ChatAnswers| {
        let call = &given.call;
        match questions.answer(call, Raw::of(&given.answers)) {
            true => Ok(StatusCode::NO_CONTENT),
            false => {
                let why = format!("no question is open in the call `{call}`");
                Err(Problem::new(409, why))
            }
        }
    }))
}

pub(super) async fn remove(
    State(rest): State<AppState>,
    Within(project): Within,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    let store = rest.agents.store();
    store.conversation_remove(project.as_ref(), &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
