//! Chats with an agent, and stored conversations.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::{Time, schema};

/// A message to an agent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatRequest {
    /// The conversation to continue. Without it, a new conversation begins.
    #[serde(default)]
    pub conversation: Option<String>,
    #[schema(min_length = 1)]
    pub message: String,
    /// `true` if the caller can answer when a server asks for input during a tool call. Such requests arrive as the
    /// event `questions`. If `false`, servers cannot ask.
    #[serde(default)]
    pub can_answer: bool,
}

/// Answers to a server that asked for input during a tool call of the agent.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatAnswers {
    /// The call id in the event `questions`.
    pub call: String,
    /// Answers by question key, each an `ElicitResult`: `{"action": "accept", "content": {…}}`, or with the action
    /// `decline` or `cancel`.
    #[schema(value_type = Object)]
    pub answers: Map<String, Value>,
}

/// A conversation in a list.
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
    /// Pass it as `after` to get the next page. `null` on the last page.
    pub next: Option<String>,
}

/// A conversation with its messages.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct WholeConversation {
    #[serde(flatten)]
    pub info: ConversationInfo,
    /// The messages in order. Each has a `role`, and `content` in blocks.
    #[schema(schema_with = schema::any)]
    pub messages: Value,
    /// Full results of the most recent calls to tools with an App, by call id. The console needs them to draw the Apps
    /// again.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub results: Map<String, Value>,
}
