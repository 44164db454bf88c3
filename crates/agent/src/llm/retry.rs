//! When a request is retried, and after which pause (429, 529, other 5xx, no connection).

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use serde::Deserialize;

/// How to retry requests that failed before any content arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "snake_case", deny_unknown_fields)]
pub struct Retry {
    /// Maximum number of attempts. 1 means no retry.
    pub attempts: u32,
    /// The first pause, in milliseconds. Each further pause is twice as long, up to `longest`.
    #[serde(with = "millis")]
    pub first: Duration,
    #[serde(with = "millis")]
    pub longest: Duration,
    /// Maximum time from the start of the first attempt to the end of a pause, in milliseconds. A pause that would end
    /// later is not made.
    #[serde(with = "millis")]
    pub total: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 5,
            first: Duration::from_millis(500),
            longest: Duration::from_secs(16),
            total: Duration::from_secs(120),
        }
    }
}

impl Retry {
    /// The pause after `failed` attempts (at least 1), `elapsed` after the start of the first one. `None`: give up.
    ///
    /// `random` is in `0.0..1.0`. A pause requested by the server is used in full (but at least half of `first`). Other
    /// pauses are spread over the upper half of their length, so that clients that failed together do not retry
    /// together.
    pub(super) fn pause(
        &self,
        failed: u32,
        asked: Option<Duration>,
        elapsed: Duration,
        random: f64,
    ) -> Option<Duration> {
        if failed >= self.attempts {
            return None;
        }
        let grown = self
            .first
            .saturating_mul(1 << failed.saturating_sub(1).min(20))
            .min(self.longest);
        let pause = match asked {
            Some(asked) => asked.max(self.first / 2),
            None => grown.mul_f64(0.5 + random / 2.0),
        };
        (elapsed.checked_add(pause)? <= self.total).then_some(pause)
    }
}

/// The pause that a response's headers request: `retry-after-ms`, or `retry-after` in seconds or as a date.
pub(super) fn asked(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    if let Some(ms) = text("retry-after-ms").and_then(|ms| ms.parse().ok()) {
        return Some(Duration::from_millis(ms));
    }
    let after = text("retry-after")?;
    if let Ok(seconds) = after.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = httpdate::parse_http_date(after).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// Durations in milliseconds in settings.
pub(super) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer};

    pub(in crate::llm) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn pauses_double_and_end() {
        let retry = Retry::default();
        let at = |failed, random| retry.pause(failed, None, MS(0), random);
        assert_eq!(at(1, 0.0), Some(MS(250)));
        assert_eq!(at(1, 1.0), Some(MS(500)));
        assert_eq!(at(4, 1.0), Some(MS(4000)));
        assert_eq!(at(5, 0.0), None);
        let patient = Retry {
            attempts: 40,
            ..retry
        };
        assert_eq!(patient.pause(30, None, MS(0), 1.0), Some(MS(16_000)));
        assert_eq!(patient.pause(30, None, MS(119_000), 1.0), None);
    }

    #[test]
    fn what_a_server_asks_for_is_waited_or_too_long() {
        let retry = Retry::default();
        assert_eq!(retry.pause(1, Some(MS(7000)), MS(0), 0.0), Some(MS(7000)));
        assert_eq!(retry.pause(1, Some(MS(0)), MS(0), 0.0), Some(MS(250)));
        assert_eq!(retry.pause(1, Some(MS(3_600_000)), MS(0), 0.0), None);
        assert_eq!(retry.pause(1, Some(Duration::MAX), MS(1), 0.0), None);
    }

    #[test]
    fn seconds_milliseconds_and_dates() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let check = |name: &'static str, value: &str, expect| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().expect("a header"));
            assert_eq!(asked(&headers, now), expect, "{name}: {value}");
        };
        check("retry-after", "3", Some(MS(3000)));
        check("retry-after", "0.5", Some(MS(500)));
        check("retry-after-ms", "40", Some(MS(40)));
        check(
            "retry-after",
            "Sun, 09 Sep 2001 01:46:45 GMT",
            Some(MS(5000)),
        );
        check("retry-after", "Sun, 09 Sep 2001 01:46:30 GMT", Some(MS(0)));
        for bad in ["soon", "-1", "NaN", "1e300", ""] {
            check("retry-after", bad, None);
        }
    }
}
