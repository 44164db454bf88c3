//! Ids and times, as rows hold them.

use std::sync::Mutex;

use chrono::{DateTime, SubsecRound as _, Utc};
use uuid::{ContextV7, Timestamp, Uuid};

/// A point in time, to the microsecond: that is what both engines keep.
pub type Time = DateTime<Utc>;

/// A new id: a UUID of version 7 as text. Later ids sort behind earlier ones, so that "newest first"
/// is the order of ids and a time is a place in it. Of ids of two replicas the database's clock decides, as
/// exactly as they know it.
pub fn new_id() -> String {
    /// What orders ids of the same millisecond, and goes on where the clock goes back.
    static CONTEXT: Mutex<ContextV7> = Mutex::new(ContextV7::new());
    let now = now();
    let seconds = u64::try_from(now.timestamp()).unwrap_or(0);
    let time = Timestamp::from_unix(&CONTEXT, seconds, now.timestamp_subsec_nanos());
    Uuid::new_v7(time).to_string()
}

/// The time that rows made now get: the database's, if replicas share it ([`model::clock`]).
pub fn now() -> Time {
    micros(model::clock::now().into())
}

/// What is stored of a time.
pub(crate) fn micros(time: Time) -> Time {
    time.trunc_subsecs(6)
}

/// The smallest id that can be made at this time: all earlier ones are less. Times before 1970 are
/// taken as 1970.
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
