//! The events that record a server's notes, and which of them are warnings.

use std::sync::atomic::Ordering;

use lifecycle::{Cause, Note};
use model::Declared;
use serde_json::{Value, json};

use crate::server::{Server, status::Trouble};

impl Server {
    /// The kind of the event that records a note, and whether it is a warning.
    pub(super) fn event_of(&self, note: &Note) -> (&'static str, bool) {
        let Note::Blocked { .. } = note else {
            return (note.kind(), note.is_warning());
        };
        let status = self.status();
        // The response to the registration already reports this.
        let is_answer = self.spec.declared == Declared::Registered
            && self.begin.get().is_none()
            && self.stats.starts.load(Ordering::Relaxed) <= 1;
        // A warning was given when the declaration became unusable. Another change of it makes no difference.
        let is_known = self.spec.unusable.is_some() && status.trouble == Some(Trouble::Blocked);
        let kind = match status.needs_login {
            true => "needs-login",
            false => note.kind(),
        };
        (kind, !is_answer && !is_known)
    }

    /// The details of the event that records a note.
    pub(super) fn detail_of(&self, note: &Note) -> Value {
        let mut detail = json!({ "name": self.name().as_str(), "message": note.to_string() });
        match note {
            Note::Crashed {
                cause: Cause::Exit(exit),
            } => {
                detail["exitCode"] = exit.code.into();
                detail["signal"] = exit.signal.into();
                detail["outOfMemory"] = exit.out_of_memory.into();
                detail["forkBomb"] = exit.fork_bomb.into();
            }
            Note::Backoff { wait, .. } | Note::Unavailable { wait, .. } => {
                detail["waitSeconds"] = match wait.subsec_nanos() {
                    0 => wait.as_secs().into(),
                    _ => wait.as_secs_f64().into(),
                };
            }
            Note::Unresponsive { missed } => detail["missed"] = (*missed).into(),
            _ => {}
        }
        detail
    }
}
