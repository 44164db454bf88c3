//! Chats with an agent, and the conversations that are kept of them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::{Time, schema};

/// Something that is said to an agent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatRequest {
    /// The conversation that goes on; a new one without it.
    #[serde(default)]
    pub conversation: Option<String>,
    #[schema(min_length = 1)]
    pub message: String,
    /// Whether somebody answers what servers ask in the course of their calls: the event `questions` tells it. Without
    /// it nothing may be asked.
    #[serde(default)]
    pub can_answer: bool,
}

/// Answers to what a server asks in the course of a call of the agent's.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatAnswers {
    /// The call's id, of the event `questions`.
    pub call: String,
    /// By the keys of the questions: `{"action": "accept", "content": {…}}`, `decline` or `cancel` (`ElicitResult`).
    #[schema(value_type = Object)]
    pub answers: Map<String, Value>,
}

/// A conversation, as lists have it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ConversationInfo {
    pub id: String,
    pub project: Option<String>,
    pub title: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Time,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Time,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Conversations {
    /// Newest first.
    pub conversations: Vec<ConversationInfo>,
    /// Give it as `after` for the next page; none on the last.
    pub next: Option<String>,
}

/// A conversation with all that was said.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct WholeConversation {
    #[serde(flatten)]
    pub info: ConversationInfo,
    /// What was said, in turns: `role`, and `content` in blocks.
    #[schema(schema_with = schema::any)]
    pub messages: Value,
    /// Whole results of tools with an App, by the ids of their calls: of the last few, to draw the Apps again.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub results: Map<String, Value>,
}
