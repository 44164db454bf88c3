//! Formatting of errors.

use std::error::Error;

/// An error and its sources, outermost first, on one line. Omits a source that the text already contains, because many
/// errors repeat their source.
#[must_use]
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{says}")]
    struct Told {
        says: &'static str,
        source: Option<Box<Told>>,
    }

    #[test]
    fn each_cause_is_said_once() {
        let check = |says: &[&'static str], expected: &str| {
            let error = says
                .iter()
                .rev()
                .fold(None, |source, says| Some(Box::new(Told { says, source })));
            assert_eq!(with_causes(&*error.expect("one at least")), expected);
        };
        check(&["a"], "a");
        check(
            &["cannot call", "reset", "by peer"],
            "cannot call: reset: by peer",
        );
        check(
            &["cannot call: reset", "reset", "by peer"],
            "cannot call: reset: by peer",
        );
    }
}
