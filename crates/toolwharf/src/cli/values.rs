//! Parsers of option values. Their errors say what to write instead.

use std::ops::RangeInclusive;

use clap::builder::PossibleValuesParser;

use super::print::parse_duration;

/// Maximum of the options that are given in seconds.
const MAX_SECONDS: u64 = 24 * 3600;
/// Maximum number of rows or lines.
const MAX_LINES: u32 = 1_000_000;
/// Maximum length of a name or an id, in bytes.
const MAX_NAME_BYTES: usize = store::MAX_KEY;

/// Parses seconds, as a number or with a unit (`30`, `30s`, `5m`).
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    seconds_in(text, 1..=MAX_SECONDS)
}

/// Parses a time to wait, which may be 0.
pub(super) fn wait(text: &str) -> Result<u64, String> {
    seconds_in(text, 0..=MAX_SECONDS)
}

/// Parses seconds within a range.
pub(super) fn seconds_in(text: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let with_unit = || parse_duration(text).map(|time| time.as_secs());
    let found = text.parse().ok().or_else(with_unit);
    found.filter(|found| range.contains(found)).ok_or_else(|| {
        let (least, most) = range.into_inner();
        format!("write seconds from {least} to {most}, such as 30, 30s or 5m")
    })
}

/// Parses a number of rows or lines.
pub(super) fn lines(text: &str) -> Result<u32, String> {
    lines_in(text, 1..=MAX_LINES)
}

/// Parses a number of rows or lines within a range.
pub(super) fn lines_in(text: &str, range: RangeInclusive<u32>) -> Result<u32, String> {
    let found = text.parse().ok();
    found.filter(|found| range.contains(found)).ok_or_else(|| {
        let (least, most) = range.into_inner();
        format!("write a number from {least} to {most}")
    })
}

/// Parses a number of lines, which may be 0.
pub(super) fn tail(text: &str) -> Result<usize, String> {
    lines_in(text, 0..=MAX_LINES).map(|lines| lines as usize)
}

/// Parses a number that is at least 1.
pub(super) fn count(text: &str) -> Result<u64, String> {
    let found = text.parse().ok();
    let found = found.filter(|found| (1..=u64::from(u32::MAX)).contains(found));
    found.ok_or_else(|| "write a number of at least 1, such as 4".to_owned())
}

/// Parses the name or the id of an object that should exist.
pub(super) fn name(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("a name or id cannot be empty".to_owned()),
        1..=MAX_NAME_BYTES => Ok(text.to_owned()),
        _ => Err(format!("a name or id has at most {MAX_NAME_BYTES} bytes")),
    }
}

/// The outcomes of tool calls.
pub(super) fn call_outcomes() -> PossibleValuesParser {
    PossibleValuesParser::new([
        "open",
        "ok",
        "tool_error",
        "error",
        "timeout",
        "cancelled",
        "unknown",
    ])
}

/// The outcomes of agent runs.
pub(super) fn run_outcomes() -> PossibleValuesParser {
    PossibleValuesParser::new(["running", "done", "failed", "cancelled", "interrupted"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_have_a_range_and_may_have_a_unit() {
        for (text, expect) in [
            ("30", Some(30)),
            ("30s", Some(30)),
            ("5m", Some(300)),
            ("1d", Some(86_400)),
            ("0", None),
            ("2d", None),
            ("-1", None),
            ("soon", None),
            ("1.5", None),
            ("", None),
        ] {
            assert_eq!(seconds(text).ok(), expect, "{text:?}");
        }
        assert_eq!(wait("0"), Ok(0));
    }

    #[test]
    fn names_have_a_range() {
        assert_eq!(name("a/b c"), Ok("a/b c".to_owned()));
        assert!(name("").is_err_and(|why| why.contains("empty")));
        assert!(name(&"x".repeat(1025)).is_err_and(|why| why.contains("at most 1024 bytes")));
    }

    #[test]
    fn numbers_have_a_range() {
        assert_eq!(lines("5"), Ok(5));
        assert!(lines("0").is_err_and(|why| why.contains("from 1 to 1000000")));
        assert!(lines_in("7", 1..=5).is_err());
        assert_eq!(count("4"), Ok(4));
        assert!(count("0").is_err() && count("many").is_err());
    }
}
