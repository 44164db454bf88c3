//! Sends requests to the client during a call: server requests to legacy clients, `input_required` results to modern
//! ones.

use std::{collections::BTreeMap, fmt::Display, time::Duration};

use rmcp::{
    ErrorData, RoleServer,
    model::{
        ClientCapabilities, InputRequest, InputRequests, InputRequiredResult, InputResponses,
        ProtocolVersion, ServerRequest,
    },
    service::{RequestContext, ServiceError},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;

/// The context of a client's request.
pub(crate) type Context = RequestContext<RoleServer>;
/// The outcome of a request.
pub(crate) type Answer<T> = Result<T, ErrorData>;

/// A person may have to answer, so the limit is long.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

/// A request to the client.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    /// The key in `inputRequests` and `inputResponses`; unused with legacy peers.
    pub(crate) key: &'static str,
    pub(crate) method: &'static str,
    pub(crate) params: Value,
}

impl Question {
    pub(crate) fn elicitation(key: &'static str, message: &str, schema: Value) -> Self {
        let params = json!({ "mode": "form", "message": message, "requestedSchema": schema });
        Self {
            key,
            method: "elicitation/create",
            params,
        }
    }

    pub(crate) fn sampling(key: &'static str, prompt: &str, max_tokens: u32) -> Self {
        let params = json!({
            "messages": [{ "role": "user", "content": { "type": "text", "text": prompt } }],
            "maxTokens": max_tokens,
        });
        Self {
            key,
            method: "sampling/createMessage",
            params,
        }
    }

    pub(crate) fn roots(key: &'static str) -> Self {
        Self {
            key,
            method: "roots/list",
            params: json!({}),
        }
    }

    /// Returns whether `capabilities` allow this request.
    pub(crate) fn is_supported(&self, capabilities: &ClientCapabilities) -> bool {
        match self.method {
            "elicitation/create" => capabilities.elicitation.is_some(),
            "sampling/createMessage" => capabilities.sampling.is_some(),
            _ => capabilities.roots.is_some(),
        }
    }

    fn capability(&self) -> Value {
        match self.method {
            "elicitation/create" => json!({ "elicitation": {} }),
            "sampling/createMessage" => json!({ "sampling": {} }),
            _ => json!({ "roots": {} }),
        }
    }

    /// Returns whether `answer` has the right shape for this request.
    fn accepts(&self, answer: &Value) -> bool {
        match self.method {
            "elicitation/create" => match answer["action"].as_str() {
                Some("accept") => answer["content"].is_object(),
                Some("decline" | "cancel") => true,
                _ => false,
            },
            "sampling/createMessage" => answer.get("content").is_some(),
            _ => answer["roots"].is_array(),
        }
    }
}

/// The outcome of asking the client.
pub(crate) enum Asked {
    /// All requests were answered. Maps each key to a result, or to `{"error": …}` if the client refused.
    Answered(BTreeMap<&'static str, Value>),
    /// A modern client has to retry the call with the answers.
    Pending(InputRequiredResult),
}

/// Returns whether the client speaks the modern protocol (2026-07-28 or later).
pub(crate) fn is_modern(context: &Context) -> bool {
    context
        .protocol_version()
        .is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}

/// Deserializes a value that this program wrote as JSON or that a client sent.
pub(crate) fn typed<T: DeserializeOwned>(value: Value) -> Answer<T> {
    serde_json::from_value(value).map_err(internal)
}

pub(crate) fn internal(error: impl Display) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

pub(crate) fn invalid(message: impl Display) -> ErrorData {
    ErrorData::invalid_params(message.to_string(), None)
}

/// Makes a result from JSON and marks it complete. The SDK removes the mark for legacy peers.
pub(crate) fn complete<T: DeserializeOwned>(mut value: Value) -> Answer<T> {
    value["resultType"] = json!("complete");
    typed(value)
}

/// Returns an error if the client did not declare the capability that a question needs.
pub(crate) fn require(context: &Context, questions: &[Question]) -> Answer<()> {
    let capabilities = context.client_capabilities().unwrap_or_default();
    match questions.iter().find(|q| !q.is_supported(&capabilities)) {
        None => Ok(()),
        Some(question) => Err(ErrorData::missing_required_client_capability(typed(
            question.capability(),
        )?)),
    }
}

/// Asks `questions`. `responses` are the answers that a modern client sent with its request; `state` is the
/// `requestState` that it must return with its answers.
pub(crate) async fn ask(
    context: &Context,
    responses: Option<&InputResponses>,
    questions: &[Question],
    state: Option<String>,
) -> Answer<Asked> {
    require(context, questions)?;
    let mut answers = BTreeMap::new();
    if is_modern(context) {
        for question in questions {
            let response = responses.and_then(|responses| responses.get(question.key));
            match response {
                Some(answer) if question.accepts(answer) => {
                    answers.insert(question.key, answer.clone());
                }
                // The answers are missing or unusable. Ask everything again, since this server stores no answers.
                _ => return Ok(Asked::Pending(pending(questions, state)?)),
            }
        }
    } else {
        for question in questions {
            answers.insert(question.key, ask_legacy(context, question).await?);
        }
    }
    Ok(Asked::Answered(answers))
}

/// The result that makes a modern client answer `questions` and retry.
pub(crate) fn pending(
    questions: &[Question],
    state: Option<String>,
) -> Answer<InputRequiredResult> {
    let requests: InputRequests = questions
        .iter()
        .map(|question| {
            let request = json!({ "method": question.method, "params": question.params });
            Ok((question.key.to_owned(), typed::<InputRequest>(request)?))
        })
        .collect::<Answer<_>>()?;
    Ok(InputRequiredResult::new(Some(requests), state))
}

async fn ask_legacy(context: &Context, question: &Question) -> Answer<Value> {
    let request: ServerRequest =
        typed(json!({ "method": question.method, "params": question.params }))?;
    match timeout(ANSWER_LIMIT, context.peer.send_request(request)).await {
        Ok(Ok(result)) => serde_json::to_value(result).map_err(internal),
        Ok(Err(ServiceError::McpError(error))) => Ok(json!({ "error": error })),
        Ok(Err(error)) => Err(internal(error)),
        Err(_) => {
            let method = question.method;
            Err(internal(format!(
                "the client did not answer {method} in time"
            )))
        }
    }
}
