//! Finds the gateway that holds a client's call or task. If several gateways form one installation, the handles that
//! they issue name the gateway.
//!
//! A handle consists of a prefix, the place and a random part: `twh1.PLACE.RANDOM` for a call on hold,
//! `task-PLACE.RANDOM` for a task. Only gateways interpret the place; a single gateway has none.

use std::sync::{Arc, OnceLock};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use mcp::{Frame, frame::Param};

/// Prefix of handles for calls on hold. Other handles belong to modern servers.
pub(crate) const HOLD_PREFIX: &str = "twh1.";
/// Prefix of task ids.
pub(crate) const TASK_PREFIX: &str = "task-";

/// The place of this gateway, if it has one. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Place(Arc<OnceLock<String>>);

impl Place {
    pub(crate) fn keep(&self, place: String) {
        let _ = self.0.set(place);
    }

    pub(crate) fn is_known(&self) -> bool {
        self.0.get().is_some()
    }

    /// A new handle: the prefix, the place and 192 random bits.
    pub(crate) fn handle(&self, mark: &str) -> String {
        let random = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 24]>());
        match self.0.get() {
            Some(place) => format!("{mark}{place}.{random}"),
            None => format!("{mark}{random}"),
        }
    }
}

/// The place of the gateway that holds the call or task named in this request. `None` if it names none. A server's own
/// handle may look like one of ours.
#[must_use]
pub fn place_of(request: &Frame) -> Option<String> {
    let (mark, handle) = match request.method().starts_with("tasks/") {
        true => (TASK_PREFIX, request.object()?.string("taskId")?),
        false => (HOLD_PREFIX, request.param_string(Param::RequestState)?),
    };
    let (place, _) = handle.strip_prefix(mark)?.rsplit_once('.')?;
    Some(place.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, params: &str) -> Option<String> {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        place_of(&Frame::parse(text.into(), 16).expect("a request"))
    }

    #[test]
    fn handles_say_their_place() {
        let place = Place::default();
        let alone = place.handle(HOLD_PREFIX);
        assert_eq!(
            of("tools/call", &format!(r#"{{"requestState":"{alone}"}}"#)),
            None
        );
        place.keep("p_1-".to_owned());
        let held = place.handle(HOLD_PREFIX);
        let task = place.handle(TASK_PREFIX);
        assert_ne!(held, place.handle(HOLD_PREFIX));
        let is = Some("p_1-".to_owned());
        assert_eq!(
            of("tools/call", &format!(r#"{{"requestState":"{held}"}}"#)),
            is
        );
        assert_eq!(of("tasks/get", &format!(r#"{{"taskId":"{task}"}}"#)), is);
        for (method, params) in [
            ("tools/call", "{}"),
            ("tools/call", r#"{"requestState":"of.theirs"}"#),
            ("tools/call", r#"{"requestState":7}"#),
            ("tasks/get", "{}"),
            ("tasks/get", r#"{"taskId":["x"]}"#),
            ("tasks/get", &format!(r#"{{"taskId":"{held}"}}"#)),
        ] {
            assert_eq!(of(method, params), None, "{params}");
        }
    }
}
