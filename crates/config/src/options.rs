//! Options of a server, apart from its sandbox. They have the same format in files, projects and registrations.

use std::num::NonZeroU32;
use std::time::Duration;

use model::{Breaker, EraPolicy, Heartbeat, ServerSpec, Sharing};
use serde_json::Value;

use super::keys::{bounds, snake};
use super::members::Reader;

/// Reads the options into `spec`. Their names are in snake case. The caller reports unknown names.
pub fn options(reader: &mut Reader<'_>, spec: &mut ServerSpec) {
    const KEYS: &str = "/ToolwharfKeys/properties";
    spec.max_concurrency = count(reader, KEYS, "maxConcurrency");
    spec.max_caller_values = count(reader, KEYS, "maxCallerValues");
    let failures = count(reader, KEYS, "breakerFailures");
    let cooldown = reader.time("breaker_cooldown_ms");
    if failures.is_some() || cooldown.is_some() {
        let usual = Breaker::default();
        spec.breaker = Some(Breaker {
            failures: failures.map_or(usual.failures, NonZeroU32::get),
            cooldown: cooldown.unwrap_or(usual.cooldown),
        });
    }
    if let Some(era) = reader.word::<EraPolicy>("era") {
        spec.era = era;
    }
    if let Some(sharing) = reader.word::<Sharing>("sharing") {
        spec.sharing = sharing;
    }
    time(reader, "call_timeout_ms", &mut spec.call_timeout);
    time(reader, "start_timeout_ms", &mut spec.start_timeout);
    spec.lazy = match reader.get("start").map(|value| value.as_str()) {
        None => None,
        Some(Some("boot")) => Some(false),
        Some(Some("demand")) => Some(true),
        Some(_) => {
            reader.wrong("start", "must be \"boot\" or \"demand\"");
            None
        }
    };
}

/// The health check of a server. `None`: disabled.
pub fn heartbeat(reader: &mut Reader<'_>) -> Option<Heartbeat> {
    const KEYS: &str = "/Heartbeat/anyOf/1/properties";
    let mut heartbeat = Heartbeat::default();
    match reader.get("heartbeat") {
        None | Some(Value::Bool(true)) => {}
        Some(Value::Bool(false)) => return None,
        Some(_) => {
            let mut reader = reader.inner("heartbeat")?;
            reader.known_at(KEYS);
            time(&mut reader, "interval_ms", &mut heartbeat.interval);
            time(&mut reader, "timeout_ms", &mut heartbeat.timeout);
            if let Some(misses) = count(&mut reader, KEYS, "misses") {
                heartbeat.misses = misses.get();
            }
        }
    }
    Some(heartbeat)
}

/// A number within the bounds of its schema, which is at the JSON pointer `keys`, `/` and `key` in `schemas.json`.
fn count(reader: &mut Reader<'_>, keys: &str, key: &str) -> Option<NonZeroU32> {
    let number = reader.number(&snake(key), || bounds(&format!("{keys}/{key}")))?;
    NonZeroU32::new(u32::try_from(number).ok()?)
}

fn time(reader: &mut Reader<'_>, key: &str, into: &mut Duration) {
    if let Some(time) = reader.time(key) {
        *into = time;
    }
}
