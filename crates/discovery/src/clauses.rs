//! Splits a task into clauses, which are often the steps that different tools are needed for.

/// Clauses of a task that are compared alone. Further ones count as a part of the whole only.
pub const MAX_CLAUSES: usize = 4;

/// Clauses with fewer words say too little alone.
const MIN_WORDS: usize = 3;

/// Words that begin a clause.
const BEGINNINGS: &[&str] = &["and", "then", "also", "finally"];

/// Consecutive parts of `text`, which make up the whole of it.
pub fn clauses(text: &str) -> Vec<&str> {
    let mut clauses = Vec::new();
    let mut start = 0;
    let mut begins_clause = false;
    for word in text.split_inclusive(char::is_whitespace) {
        let at = word.as_ptr().addr() - text.as_ptr().addr();
        let bare = word.trim_end();
        let is_beginning = BEGINNINGS
            .iter()
            .any(|beginning| bare.eq_ignore_ascii_case(beginning));
        if (begins_clause || is_beginning) && at > start {
            clauses.push(&text[start..at]);
            start = at;
        }
        begins_clause = bare.ends_with(['.', '!', '?', ';', ',', '。', '！', '？', '；', '，'])
            || word.ends_with('\n');
    }
    clauses.push(&text[start..]);
    clauses
}

/// Returns whether a part is long enough to be compared alone.
pub fn is_meaningful(clause: &str) -> bool {
    let is_word = |word: &&str| word.chars().any(char::is_alphanumeric);
    clause.split_whitespace().filter(is_word).count() >= MIN_WORDS
}

#[cfg(test)]
mod tests {
    use super::{clauses, is_meaningful};

    #[track_caller]
    fn check(text: &str, expect: &[&str]) {
        let found = clauses(text);
        assert_eq!(found.concat(), text);
        let found: Vec<&str> = found
            .into_iter()
            .filter(|clause| is_meaningful(clause))
            .map(str::trim_end)
            .collect();
        assert_eq!(found, expect, "{text:?}");
    }

    #[test]
    fn sentences_and_steps_are_clauses() {
        check("", &[]);
        check("Report a bug", &["Report a bug"]);
        check(
            "Read the file a.csv, draw a bar chart and save it.\nThen send it by mail!",
            &[
                "Read the file a.csv,",
                "draw a bar chart",
                "and save it.",
                "Then send it by mail!",
            ],
        );
        check(
            "Look up 3.5 and www.example.com  then  , ; stop",
            &["Look up 3.5"],
        );
        check(" , and and\n\n\n。", &[]);
    }
}
