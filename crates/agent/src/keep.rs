//! Where a conversation is kept, by whoever lets [`crate::Agent::chat_owned`] have it.
//!
//! Invariants of [`Keeping`]: nothing is kept of a turn that did not start; what the user said is kept before the model is
//! asked; what came of that is kept once, on every way out, a drop included.

use futures_util::future::BoxFuture;
use tokio::time::timeout;

use crate::{
    conversation::Conversation,
    tools::{RECORD, Records},
};

/// Keeps one conversation through one turn.
pub trait Keep: Send + 'static {
    /// The id that the conversation is kept under. The record of the run names it.
    fn conversation(&self) -> &str;

    /// The user's message is in the conversation, and the model is asked once this returns.
    ///
    /// # Errors
    /// With what is wrong, for people to read; the turn ends with it, and [`Keep::ended`] is not called.
    fn begun<'a>(&'a mut self, conversation: &'a Conversation)
    -> BoxFuture<'a, Result<(), String>>;

    /// The turn is over, or was dropped. Not called if the turn never got as far as [`Keep::begun`].
    fn ended(self: Box<Self>, conversation: Conversation) -> BoxFuture<'static, ()>;
}

/// A conversation and where it is kept.
pub(crate) struct Keeping<'a> {
    records: &'a Records,
    held: Option<(Conversation, Box<dyn Keep>)>,
    begun: bool,
}

impl<'a> Keeping<'a> {
    pub(crate) fn new(
        records: &'a Records,
        conversation: Conversation,
        keep: Box<dyn Keep>,
    ) -> Self {
        Self {
            records,
            held: Some((conversation, keep)),
            begun: false,
        }
    }

    /// What a turn works on; `None` once it is kept.
    pub(crate) fn parts(&mut self) -> Option<(&mut Conversation, Beginning<'_>)> {
        let (conversation, keep) = self.held.as_mut()?;
        let begun = &mut self.begun;
        let keep = &mut **keep;
        Some((conversation, Beginning { keep, begun }))
    }

    /// Keeps it at the end of the turn.
    pub(crate) async fn end(&mut self) {
        if let Some(ended) = self.ended() {
            // In a task, so that a client that goes away now does not end it.
            let keeping = self.records.tasks.spawn(ended);
            let _ = keeping.await;
        }
    }

    fn ended(&mut self) -> Option<impl Future<Output = ()> + use<>> {
        let (conversation, keep) = self.held.take()?;
        self.begun.then(|| kept(keep.ended(conversation)))
    }
}

impl Drop for Keeping<'_> {
    fn drop(&mut self) {
        if let Some(ended) = self.ended() {
            self.records.later(ended);
        }
    }
}

async fn kept(keeping: BoxFuture<'static, ()>) {
    if timeout(RECORD, keeping).await.is_err() {
        tracing::warn!("a conversation was not kept within {} s", RECORD.as_secs());
    }
}

/// The part of a [`Keep`] that a turn needs.
pub(crate) struct Beginning<'a> {
    keep: &'a mut dyn Keep,
    begun: &'a mut bool,
}

impl Beginning<'_> {
    pub(crate) fn conversation(&self) -> &str {
        self.keep.conversation()
    }

    /// Keeps what was said, before the model is asked.
    ///
    /// # Errors
    /// Why it is not kept.
    pub(crate) async fn begin(&mut self, conversation: &Conversation) -> Result<(), String> {
        match timeout(RECORD, self.keep.begun(conversation)).await {
            Ok(begun) => begun?,
            Err(_) => return Err(format!("no answer within {} s", RECORD.as_secs())),
        }
        *self.begun = true;
        Ok(())
    }
}
