//! Kubernetes events about servers and their resources.
//!
//! An event's name is derived from its contents, so that reporting it twice has no effect.

use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::api::DynamicObject;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use store::EventRow;

use super::{
    cluster::{name, uid},
    definition::{KIND, api_version},
    status::{Condition, reason},
};

/// Maximum characters of a message in Kubernetes.
const MAX_MESSAGE_CHARS: usize = 1000;
/// Kinds of server events that are not warnings.
const NORMAL_KINDS: [&str; 6] = [
    "ready",
    "exited",
    "recovered",
    "responsive",
    "stopped",
    "runtime-back",
];

/// An event of the resource's server.
pub(super) fn of_server(object: &DynamicObject, row: &EventRow) -> Event {
    let is_normal = NORMAL_KINDS.contains(&row.kind.as_str());
    let message = row.detail["message"].as_str().unwrap_or_default();
    event(
        object,
        &row.id,
        is_normal,
        &reason(&row.kind),
        message,
        row.at,
    )
}

/// An event about the acceptance of a resource's spec.
pub(super) fn of_spec(object: &DynamicObject, accepted: &Condition) -> Event {
    let what = json!([
        uid(object),
        object.metadata.generation,
        accepted.status,
        accepted.reason,
        accepted.message
    ]);
    let id = hex::encode(&Sha256::digest(what.to_string())[..8]);
    let is_normal = accepted.status == "True";
    event(
        object,
        &id,
        is_normal,
        &accepted.reason,
        &accepted.message,
        store::now(),
    )
}

fn event(
    object: &DynamicObject,
    id: &str,
    is_normal: bool,
    reason: &str,
    message: &str,
    at: store::Time,
) -> Event {
    let at = serde_json::from_value::<Time>(json!(at)).ok();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{id}", name(object))),
            namespace: object.metadata.namespace.clone(),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some(api_version()),
            kind: Some(KIND.to_owned()),
            name: object.metadata.name.clone(),
            namespace: object.metadata.namespace.clone(),
            uid: object.metadata.uid.clone(),
            ..ObjectReference::default()
        },
        type_: Some(if is_normal { "Normal" } else { "Warning" }.to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message.chars().take(MAX_MESSAGE_CHARS).collect()),
        first_timestamp: at.clone(),
        last_timestamp: at,
        count: Some(1),
        source: Some(EventSource {
            component: Some("toolwharf".to_owned()),
            ..EventSource::default()
        }),
        ..Event::default()
    }
}

/// Returns true if the condition in the status equals this one.
pub(super) fn is_told(before: &Value, accepted: &Condition, generation: Option<i64>) -> bool {
    let conditions = before["conditions"].as_array().into_iter().flatten();
    let mut same = conditions.filter(|one| one["type"] == "Accepted");
    same.next().is_some_and(|one| {
        one["status"] == accepted.status
            && one["reason"] == accepted.reason.as_str()
            && one["message"] == accepted.message.as_str()
            && one["observedGeneration"] == json!(generation)
    })
}
