//! Splits text into words, and words into terms.
//!
//! A term is the 64-bit hash of a stemmed word. Terms of different words are equal so rarely that nothing checks for it:
//! the only effect would be a wrong score. Chinese, Japanese and Korean text has no spaces, so each pair of neighbouring
//! characters is a word.

use crate::stem::stem;

/// Bytes of a query that are used. The rest of a longer one is ignored.
pub(crate) const MAX_QUERY_BYTES: usize = 8 << 10;

/// Longest word, in bytes. The rest of a longer one is ignored.
const MAX_WORD_BYTES: usize = 48;

/// Words without a meaning for a search, in alphabetical order.
const STOP_WORDS: &[&str] = &[
    "a", "about", "after", "all", "also", "am", "an", "and", "any", "are", "as", "at", "be",
    "been", "before", "being", "both", "but", "by", "can", "could", "did", "do", "does", "down",
    "each", "every", "for", "from", "had", "has", "have", "having", "he", "her", "here", "his",
    "how", "i", "if", "in", "into", "is", "it", "its", "just", "may", "me", "might", "more",
    "most", "must", "my", "need", "no", "not", "of", "off", "on", "only", "or", "other", "our",
    "out", "over", "own", "please", "s", "same", "shall", "she", "should", "so", "some", "such",
    "t", "than", "that", "the", "their", "them", "then", "there", "these", "they", "this", "those",
    "to", "too", "under", "up", "us", "very", "want", "was", "we", "were", "what", "when", "where",
    "which", "who", "whom", "why", "will", "with", "would", "you", "your",
];

/// The identity of a stemmed word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Term(pub(crate) u64);

impl Term {
    /// The term of a word that is already stemmed. FNV-1a, with its bits mixed so that each of them is usable.
    pub(crate) fn of(stemmed: &str) -> Self {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in stemmed.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        Self(hash ^ (hash >> 33))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Lower,
    Upper,
    Digit,
    /// A character of a script that has no spaces between words.
    Ideograph,
    /// Between words.
    Other,
}

fn class(letter: char) -> Class {
    match letter {
        'a'..='z' => Class::Lower,
        'A'..='Z' => Class::Upper,
        '0'..='9' => Class::Digit,
        _ if letter.is_ascii() => Class::Other,
        '\u{3040}'..='\u{30ff}'
        | '\u{3400}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7af}'
        | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{3ffff}' => Class::Ideograph,
        _ if letter.is_uppercase() => Class::Upper,
        _ if letter.is_alphanumeric() => Class::Lower,
        _ => Class::Other,
    }
}

/// Calls `found` with each word of `text`, in lower case, until it returns `false`. Names in `camelCase`, `snake_case` and
/// `kebab-case` are split.
pub(crate) fn each_word(text: &str, mut found: impl FnMut(&str) -> bool) {
    let mut word = String::new();
    let mut before = Class::Other;
    // The last ideograph, and whether it is already part of a pair.
    let mut ideograph: Option<(char, bool)> = None;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let now = class(letter);
        if now != Class::Ideograph
            && let Some((alone, false)) = ideograph.take()
        {
            word.push(alone);
            if !found(&word) {
                return;
            }
            word.clear();
        }
        let next = letters.peek().copied().map_or(Class::Other, class);
        // `aB`, `1B`, and the `C` of `ABCd`.
        let boundary = now == Class::Upper
            && (matches!(before, Class::Lower | Class::Digit)
                || before == Class::Upper && next == Class::Lower);
        if (boundary || matches!(now, Class::Other | Class::Ideograph)) && !word.is_empty() {
            if !found(&word) {
                return;
            }
            word.clear();
        }
        match now {
            Class::Other => {}
            Class::Ideograph => {
                let paired = match ideograph {
                    Some((first, _)) => {
                        word.push(first);
                        word.push(letter);
                        if !found(&word) {
                            return;
                        }
                        word.clear();
                        true
                    }
                    None => false,
                };
                ideograph = Some((letter, paired));
            }
            Class::Lower | Class::Upper | Class::Digit => {
                if word.len() < MAX_WORD_BYTES {
                    word.extend(letter.to_lowercase());
                }
            }
        }
        before = now;
    }
    if let Some((alone, false)) = ideograph {
        word.push(alone);
    }
    if !word.is_empty() {
        found(&word);
    }
}

/// Calls `found` with each stemmed word of `text` that has a meaning for a search, until it returns `false`.
pub(crate) fn each_stem(text: &str, mut found: impl FnMut(String) -> bool) {
    each_word(text, |word| {
        STOP_WORDS.binary_search(&word).is_ok() || found(stem(word))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &[&str]) {
        let mut words = Vec::new();
        each_word(text, |word| {
            words.push(word.to_owned());
            true
        });
        assert_eq!(words, expect, "{text:?}");
    }

    #[test]
    fn names_and_sentences_are_split() {
        check("", &[]);
        check("get_current-time", &["get", "current", "time"]);
        check("getHTTPServer2Name", &["get", "http", "server2", "name"]);
        check(
            "Read the S3 bucket's files.",
            &["read", "the", "s3", "bucket", "s", "files"],
        );
        check("ÄrgerÜber", &["ärger", "über"]);
        check("&&||!!()\"*?", &[]);
    }

    #[test]
    fn chinese_text_is_split_into_pairs() {
        check("天气预报", &["天气", "气预", "预报"]);
        check("查 天气", &["查", "天气"]);
        check("八字info, 时", &["八字", "info", "时"]);
        check("abc中def", &["abc", "中", "def"]);
    }

    #[test]
    fn long_words_are_cut() {
        let long = "x".repeat(1000);
        check(&long, &[&long[..MAX_WORD_BYTES]]);
    }

    #[test]
    fn stop_words_are_sorted_and_left_out() {
        assert!(STOP_WORDS.is_sorted());
        let mut stems = Vec::new();
        each_stem("What is the weather in these cities?", |stem| {
            stems.push(stem);
            true
        });
        assert_eq!(stems, ["weather", "city"]);
    }
}
