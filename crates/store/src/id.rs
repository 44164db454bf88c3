//! Ids and times, as rows hold them.

use chrono::{DateTime, SubsecRound as _, Utc};
use uuid::Uuid;

/// A point in time, to the microsecond: that is what both engines keep.
pub type Time = DateTime<Utc>;

/// A new id: a UUID of version 7 as text. Later ids sort behind earlier ones, so that "newest first"
/// is the order of ids and a time is a place in it.
pub fn new_id() -> String {
    Uuid::now_v7().to_string()
}

/// The time that rows made now get.
pub fn now() -> Time {
    micros(Utc::now())
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
