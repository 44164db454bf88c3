//! Chats with an agent, and the conversations that are kept of them.

use serde::{Deserialize, Serialize};
use serde_json::Value;
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
}
