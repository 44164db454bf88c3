//! The status of a resource: the conditions of its server, and since when they hold.

use engine::server::Server;
use kube::api::DynamicObject;
use lifecycle::Phase;
use serde_json::{Value, json};
use store::Time;

/// Maximum characters of a condition's message.
const MAX_MESSAGE_CHARS: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    /// `True`, `False` or `Unknown`.
    pub(super) status: &'static str,
    /// The reason in `CamelCase`, as Kubernetes requires.
    pub(super) reason: String,
    pub(super) message: String,
}

impl Condition {
    pub(super) fn new(status: &'static str, reason: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Status {
    pub(super) generation: Option<i64>,
    pub(super) id: Option<String>,
    pub(super) state: String,
    pub(super) tools: usize,
    pub(super) last_event: Option<String>,
    pub(super) accepted: Condition,
    pub(super) ready: Condition,
}

impl Status {
    /// The status as written to the resource. `before`: its current status.
    pub(super) fn to_value(&self, before: &Value, now: Time) -> Value {
        let condition = |kind: &str, new: &Condition| {
            let conditions = before["conditions"].as_array().into_iter().flatten();
            let mut same = conditions
                .filter(|one| one["type"] == kind && one["status"] == new.status)
                .map(|one| one["lastTransitionTime"].clone());
            let now = || json!(now);
            let message = match new.message.as_str() {
                "" => self.state.as_str(),
                message => message,
            };
            let message: String = message.chars().take(MAX_MESSAGE_CHARS).collect();
            json!({
                "type": kind,
                "status": new.status,
                "observedGeneration": self.generation,
                "lastTransitionTime": same.next().filter(Value::is_string).unwrap_or_else(now),
                "reason": new.reason,
                "message": message,
            })
        };
        let mut status = json!({
            "observedGeneration": self.generation,
            "tools": self.tools,
            "conditions": [condition("Accepted", &self.accepted), condition("Ready", &self.ready)],
        });
        let texts = [
            ("id", self.id.as_deref()),
            ("state", Some(self.state.as_str())),
            ("lastEvent", self.last_event.as_deref()),
        ];
        // Kubernetes 1.20 turns an applied empty text into `null`.
        for (key, value) in texts {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                status[key] = value.into();
            }
        }
        status
    }
}

/// Returns true if the resource's status differs from `status`. Fields added by others are ignored.
pub(super) fn is_different(before: &Value, status: &Value) -> bool {
    let conditions = before["conditions"].as_array();
    let has = |one: &Value| conditions.is_some_and(|all| all.contains(one));
    let members = status.as_object().into_iter().flatten();
    let mut members = members.map(|(key, value)| match value.as_array() {
        Some(conditions) => conditions.iter().all(has),
        None => before[key] == *value,
    });
    !members.all(|same| same)
}

/// The current status of the resource.
pub(super) fn of(object: &DynamicObject) -> &Value {
    &object.data["status"]
}

/// The id of the server, according to the resource.
pub(super) fn id(object: &DynamicObject) -> Option<&str> {
    of(object)["id"].as_str()
}

/// The state of a server, and its `Ready` condition.
pub(super) fn ready(server: &Server) -> (&'static str, Condition) {
    if !server.spec.enabled {
        let condition = Condition::new("False", "Disabled", "`enabled` is false");
        return ("disabled", condition);
    }
    let status = server.status();
    let word = status.word();
    if let Some(why) = &server.spec.unusable {
        return (word, Condition::new("False", "Unusable", why.as_str()));
    }
    let why = status.reason.as_deref().unwrap_or_default();
    let condition = match status.phase {
        Phase::Running { .. } => Condition::new("True", &reason(word), "the server answers calls"),
        Phase::Idle => Condition::new("True", "Idle", "the server starts on first use"),
        _ if status.elsewhere => Condition::new("Unknown", &reason(word), why),
        Phase::Unresponsive => Condition::new(
            "False",
            &reason(word),
            "the server does not answer heartbeats",
        ),
        _ => Condition::new("False", &reason(word), why),
    };
    (word, condition)
}

/// Converts a word to a reason of a condition or an event: `needs_login` becomes `NeedsLogin`.
pub(super) fn reason(word: &str) -> String {
    let parts = word.split(['_', '-', ' ']).filter(|part| !part.is_empty());
    let capital = |part: &str| part[..1].to_ascii_uppercase() + &part[1..];
    parts.map(capital).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d08_a_condition_keeps_its_time_until_its_status_changes() {
        let status = |ready: &'static str, why: &str| Status {
            generation: Some(2),
            id: Some("1".to_owned()),
            state: "running".to_owned(),
            tools: 3,
            last_event: None,
            accepted: Condition::new("True", "Registered", ""),
            ready: Condition::new(ready, "Running", why),
        };
        let time =
            |seconds| Time::from(std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds));
        let times = |value: &Value| {
            [0, 1].map(|at| {
                value["conditions"][at]["lastTransitionTime"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            })
        };
        let first = status("True", "").to_value(&Value::Null, time(0));
        assert_eq!(
            times(&first),
            ["1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"]
        );
        let same = status("True", "other").to_value(&first, time(9));
        assert_eq!(times(&same), times(&first));
        let changed = status("False", "").to_value(&same, time(9));
        assert_eq!(
            times(&changed),
            ["1970-01-01T00:00:00Z", "1970-01-01T00:00:09Z"]
        );
        assert_eq!(changed.get("lastEvent"), None);
    }

    #[test]
    fn reasons_are_in_camel_case() {
        assert_eq!(
            [
                reason("running"),
                reason("needs_login"),
                reason("runtime-lost")
            ],
            ["Running", "NeedsLogin", "RuntimeLost"]
        );
    }
}
