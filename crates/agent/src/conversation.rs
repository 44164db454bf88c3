//! A conversation: plain data that can be stored as JSON and continued later.
//!
//! Invariants: roles alternate, and the result of each tool call is in the next message. A stored conversation can
//! therefore be sent to a model at any time. The methods that add to it enforce the byte limit. If stored as text, it
//! is restored byte for byte; a database that sorts keys would change the form of the tool arguments, though not their
//! content.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use model::ServerName;
use serde::{Deserialize, Serialize};

use crate::{
    message::{Block, Message, Part, Role},
    raw::Raw,
    servers::Missing,
};

/// The result of an unfinished call, as shown to the model.
pub(crate) const CANCELLED: &str = "cancelled";
/// Prefix of a note from Toolwharf among the user's words. For notes in the middle of a conversation, the user role is
/// the only one that all providers support.
pub const SYSTEM_NOTE: &str = "[System note] ";
/// The result shown to the model if the real one does not fit.
const NO_ROOM: &str = "The result was left out: the conversation is full.";

/// The messages so far, and the long results that can still be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversation {
    messages: Vec<Arc<Message>>,
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    results: VecDeque<KeptResult>,
    /// Results that Apps render, oldest first.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    app_results: VecDeque<AppResult>,
    /// Servers that the model knows to be unavailable.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    missing: BTreeSet<ServerName>,
}

/// The full text of a result of which the model saw only the beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptResult {
    /// The URI of the result: `toolwharf://results/{run}/{call}`. Earlier versions wrote `toolwharf-result://{run}/{call}`.
    pub uri: String,
    pub text: Arc<str>,
    /// Bytes of the text before it was cut to the limit.
    pub whole: usize,
}

/// The full result of a tool with an App, as its server sent it. The App can be rendered from it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppResult {
    /// The model's id of the call.
    pub call: String,
    /// A `CallToolResult`.
    pub result: Raw,
}

/// An earlier state of a conversation.
pub(crate) struct Mark(Vec<Arc<Message>>, BTreeSet<ServerName>);

/// The conversation has no room for the new content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the conversation would have {bytes} bytes, but the limit is {limit}: start a new conversation"
)]
pub struct Full {
    pub bytes: usize,
    pub limit: usize,
}

impl Conversation {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn messages(&self) -> &[Arc<Message>] {
        &self.messages
    }

    /// Long results that can still be read, oldest first.
    pub fn results(&self) -> impl Iterator<Item = &KeptResult> {
        self.results.iter()
    }

    /// Full results of tools with an App that can still be rendered, oldest first.
    pub fn app_results(&self) -> impl Iterator<Item = &AppResult> {
        self.app_results.iter()
    }

    /// Total bytes of its messages: text, arguments and images.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.messages.iter().map(|message| message.bytes()).sum()
    }

    /// Adds a user's message. If the last message also has the user role, it is extended, because roles must alternate.
    /// That happens after an unanswered message, or after tool results that the model did not answer.
    ///
    /// # Errors
    /// [`Full`]; nothing was added.
    pub(crate) fn push_user(&mut self, content: Vec<Block>, limit: usize) -> Result<(), Full> {
        self.settle();
        self.push(Message::user(content), limit)
    }

    /// Adds a model's answer. The results of its calls must follow.
    ///
    /// # Errors
    /// [`Full`]; nothing was added.
    pub(crate) fn push_assistant(&mut self, content: Vec<Block>, limit: usize) -> Result<(), Full> {
        self.push(Message::assistant(content), limit)
    }

    /// Adds the results of all calls in the last message.
    ///
    /// # Errors
    /// [`Full`]; short results were added instead, so that the conversation stays valid.
    pub(crate) fn push_results(&mut self, results: Vec<Block>, limit: usize) -> Result<(), Full> {
        let short: Vec<Block> = results
            .iter()
            .filter_map(|block| match block {
                Block::ToolResult { tool_use_id, .. } => Some(result(tool_use_id, NO_ROOM, true)),
                _ => None,
            })
            .collect();
        let pushed = self.push(Message::user(results), limit);
        if pushed.is_err() {
            let _ = self.push(Message::user(short), usize::MAX);
        }
        pushed
    }

    /// Adds a `cancelled` result for each call that has none. There are such calls after a crash, and in conversations
    /// from elsewhere.
    pub(crate) fn settle(&mut self) {
        let results: Vec<Block> = match self.messages.last() {
            Some(last) if last.role == Role::Assistant => open_calls(last)
                .map(|id| result(id, CANCELLED, true))
                .collect(),
            _ => return,
        };
        if !results.is_empty() {
            let _ = self.push(Message::user(results), usize::MAX);
        }
    }

    /// Returns the current state, for [`Conversation::go_back`].
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.messages.clone(), self.missing.clone())
    }

    /// Restores an earlier state.
    pub(crate) fn go_back(&mut self, mark: Mark) {
        self.messages = mark.0;
        self.missing = mark.1;
        self.settle();
    }

    /// Returns a note for the model about servers whose tools are missing, for insertion before the user's next
    /// message. `None` if nothing changed since the last note. It contains only server names: the reasons may be a
    /// server's words, which must not look like the user's.
    pub(crate) fn note_missing(&mut self, missing: &[Missing]) -> Option<Block> {
        let missing: BTreeSet<ServerName> = missing.iter().map(|one| one.server.clone()).collect();
        let gone = names(missing.difference(&self.missing));
        let back = names(self.missing.difference(&missing));
        self.missing = missing;
        let gone = gone.map(|gone| {
            format!("The tools of {gone} are not available now. If they are needed, say so.")
        });
        let back = back.map(|back| format!("The tools of {back} are available again."));
        let told: Vec<String> = gone.into_iter().chain(back).collect();
        (!told.is_empty()).then(|| Block::text(format!("{SYSTEM_NOTE}{}", told.join(" "))))
    }

    /// Replaces the results in the last message with `why`, because the model's provider refused them.
    pub(crate) fn leave_out_results(&mut self, why: &str) {
        let Some(last) = self.messages.last_mut() else {
            return;
        };
        for block in &mut Arc::make_mut(last).content {
            if let Block::ToolResult { tool_use_id, .. } = block {
                *block = result(tool_use_id, why, true);
            }
        }
    }

    fn push(&mut self, message: Message, limit: usize) -> Result<(), Full> {
        let bytes = self.bytes().saturating_add(message.bytes());
        if bytes > limit {
            return Err(Full { bytes, limit });
        }
        match self.messages.last_mut() {
            Some(last) if last.role == message.role => {
                Arc::make_mut(last).content.extend(message.content);
            }
            _ => self.messages.push(Arc::new(message)),
        }
        Ok(())
    }

    /// Keeps the full text of a long result. Only the latest `most` are kept.
    pub(crate) fn keep(&mut self, result: KeptResult, most: usize) {
        push(&mut self.results, result, most);
    }

    /// Keeps a result for an App. Only the latest `most` are kept.
    pub(crate) fn keep_for_app(&mut self, result: AppResult, most: usize) {
        push(&mut self.app_results, result, most);
    }
}

/// Appends an item and drops the oldest ones beyond `most`.
fn push<T>(kept: &mut VecDeque<T>, new: T, most: usize) {
    kept.push_back(new);
    while kept.len() > most {
        kept.pop_front();
    }
}

/// Joins server names for use in a sentence. `None` if there are no names.
fn names<'n>(of: impl Iterator<Item = &'n ServerName>) -> Option<String> {
    let names: Vec<String> = of.map(|name| format!("`{name}`")).collect();
    match names.as_slice() {
        [] => None,
        [one] => Some(format!("the server {one}")),
        many => Some(format!("the servers {}", many.join(", "))),
    }
}

fn open_calls(message: &Message) -> impl Iterator<Item = &str> {
    message.content.iter().filter_map(|block| match block {
        Block::ToolUse { id, .. } => Some(id.as_str()),
        _ => None,
    })
}

/// A tool result that consists of one text.
pub(crate) fn result(id: &str, text: &str, is_error: bool) -> Block {
    Block::ToolResult {
        tool_use_id: id.to_owned(),
        content: vec![Part::text(text)],
        is_error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::Fields;

    fn call(id: &str) -> Block {
        Block::ToolUse {
            id: id.to_owned(),
            name: "x".to_owned(),
            input: Raw::parse(r#"{ "n": 1.0e2 }"#).expect("JSON"),
            more: Fields::default(),
        }
    }

    #[test]
    fn an_open_call_gets_a_result_before_anything_else_is_said() {
        let mut conversation = Conversation::new();
        let most = usize::MAX;
        let say = |conversation: &mut Conversation, text: &str| {
            let said = conversation.push_user(vec![Block::text(text)], most);
            said.expect("room");
        };
        say(&mut conversation, "hi");
        say(&mut conversation, "there");
        assert_eq!(conversation.messages().len(), 1);
        let calls = vec![call("a"), call("b")];
        conversation.push_assistant(calls, most).expect("room");
        say(&mut conversation, "go on");
        let expect = [
            result("a", "cancelled", true),
            result("b", "cancelled", true),
            Block::text("go on"),
        ];
        assert_eq!(conversation.messages()[2].content, expect);
        let json = serde_json::to_string(&conversation).expect("JSON");
        assert!(json.contains(r#""input":{ "n": 1.0e2 }"#), "{json}");
        let back: Conversation = serde_json::from_str(&json).expect("what was written");
        assert_eq!(back, conversation);
        assert_eq!(serde_json::to_string(&back).expect("JSON"), json);
    }

    #[test]
    fn a_full_conversation_stays_valid() {
        let mut conversation = Conversation::new();
        conversation
            .push_user(vec![Block::text("0123456789")], 20)
            .expect("room");
        let error = conversation.push_user(vec![Block::text("0123456789x")], 20);
        assert_eq!(
            error,
            Err(Full {
                bytes: 21,
                limit: 20
            })
        );
        conversation
            .push_assistant(vec![call("a")], 1000)
            .expect("room");
        let long = result("a", &"x".repeat(1000), false);
        let error = conversation
            .push_results(vec![long], 1000)
            .expect_err("no room");
        assert!(
            error.to_string().ends_with("start a new conversation"),
            "{error}"
        );
        let last = conversation.messages().last().expect("a message");
        assert_eq!(last.content, [result("a", NO_ROOM, true)]);
    }

    #[test]
    fn only_the_last_results_are_kept() {
        let mut conversation = Conversation::new();
        for number in 0..5 {
            let kept = KeptResult {
                uri: number.to_string(),
                text: "x".into(),
                whole: 1,
            };
            conversation.keep(kept, 2);
        }
        let uris: Vec<_> = conversation.results().map(|kept| &*kept.uri).collect();
        assert_eq!(uris, ["3", "4"]);
    }
}
