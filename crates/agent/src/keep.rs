//! Storage of a conversation for [`crate::Agent::chat_owned`].
//!
//! Invariants of [`Keeping`]: a turn that did not start is not stored. The user's message is stored before the model is
//! called. The result is stored once, on every exit path, including a drop.

use futures_util::future::BoxFuture;
use tokio::time::timeout;

use crate::{
    conversation::Conversation,
    tools::{RECORD_TIMEOUT, Records, recorded},
};

/// Stores one conversation during one turn.
pub trait Keep: Send + 'static {
    /// The id that the conversation is stored under. The record of the run refers to it.
    fn conversation(&self) -> &str;

    /// The caller that began the turn, for the record of the run.
    fn caller(&self) -> Option<&str> {
        None
    }

    /// Called when the user's message has been added to the conversation. The model is called after this returns.
    ///
    /// # Errors
    /// The reason, for people to read. It becomes the error of the turn, and [`Keep::ended`] is not called.
    fn begun<'a>(&'a mut self, conversation: &'a Conversation)
    -> BoxFuture<'a, Result<(), String>>;

    /// Called when the turn is over or was dropped, but only after a successful [`Keep::begun`].
    fn ended(self: Box<Self>, conversation: Conversation) -> BoxFuture<'static, ()>;
}

/// A conversation, and the [`Keep`] that stores it.
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

    /// Returns the parts that a turn works on. `None` once the conversation was stored.
    pub(crate) fn parts(&mut self) -> Option<(&mut Conversation, Beginning<'_>)> {
        let (conversation, keep) = self.held.as_mut()?;
        let begun = &mut self.begun;
        let keep = &mut **keep;
        Some((conversation, Beginning { keep, begun }))
    }

    /// Stores the conversation at the end of the turn.
    pub(crate) async fn end(&mut self) {
        if let Some(ended) = self.ended() {
            // Store it in a task, so that a client that disconnects now does not abort the write.
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
    if timeout(RECORD_TIMEOUT, keeping).await.is_err() {
        tracing::warn!(
            "a conversation was not saved within {} s",
            RECORD_TIMEOUT.as_secs()
        );
    }
}

/// The part of [`Keep`] that a turn needs.
pub(crate) struct Beginning<'a> {
    keep: &'a mut dyn Keep,
    begun: &'a mut bool,
}

impl Beginning<'_> {
    pub(crate) fn caller(&self) -> Option<&str> {
        self.keep.caller()
    }

    pub(crate) fn conversation(&self) -> &str {
        self.keep.conversation()
    }

    /// Stores the user's message before the model is called.
    ///
    /// # Errors
    /// Why it was not stored.
    pub(crate) async fn begin(&mut self, conversation: &Conversation) -> Result<(), String> {
        recorded(self.keep.begun(conversation)).await?;
        *self.begun = true;
        Ok(())
    }
}
