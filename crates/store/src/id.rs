//! Row ids and times.

use std::sync::Mutex;

use chrono::{DateTime, SubsecRound as _, Utc};
use uuid::{ContextV7, Timestamp, Uuid};

/// A point in time with microsecond precision, which is what both engines store.
pub type Time = DateTime<Utc>;

/// A new id: a UUID version 7 as text. Later ids sort after earlier ones, so the order of ids is the order of creation,
/// and each time corresponds to a position in that order. Ids of two replicas are ordered by the database clock, within
/// the precision of the replicas' clock estimates.
pub fn new_id() -> String {
    /// Orders ids of the same millisecond, and keeps ids ascending if the clock is set back.
    static CONTEXT: Mutex<ContextV7> = Mutex::new(ContextV7::new());
    let now = now();
    let seconds = u64::try_from(now.timestamp()).unwrap_or(0);
    let time = Timestamp::from_unix(&CONTEXT, seconds, now.timestamp_subsec_nanos());
    Uuid::new_v7(time).to_string()
}

/// The current time for new rows. It follows the database clock if replicas share the database ([`model::clock`]).
pub fn now() -> Time {
    micros(model::clock::now().into())
}

/// Rounds a time down to the precision of the database, microseconds.
pub(crate) fn micros(time: Time) -> Time {
    time.trunc_subsecs(6)
}

/// A lower bound for ids made at this time: all earlier ids are less. Times before 1970 count as 1970.
#[must_use]
pub fn floor(time: Time) -> String {
    let millis = u64::try_from(time.timestamp_millis()).unwrap_or(0);
    uuid::Builder::from_unix_timestamp_millis(millis, &[0; 10])
        .into_uuid()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time() {
        let before = now();
        let ids: Vec<String> = (0..1000).map(|_| new_id()).collect();
        assert!(ids.is_sorted());
        assert!(floor(before) <= ids[0]);
        let later = before + chrono::Duration::seconds(60);
        assert!(ids[999] < floor(later));
        assert_eq!(floor(Time::MIN_UTC), floor(Time::UNIX_EPOCH));
    }
}
