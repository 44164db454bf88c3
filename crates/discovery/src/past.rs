//! Words of earlier searches that led to a call of a tool.
//!
//! Invariant: a word is known only by the hash of its stem, so neither the data nor a result shows the text of a search.

use crate::{
    postings::{Posting, Postings, TOOL_FIELDS},
    words::{MAX_QUERY_BYTES, Term, each_stem},
};

/// Distinct words of a query that are used.
const MAX_WORDS: usize = 40;

/// The weight of a word that led to the tool very often. A word of the description of usual length has 1.
const WEIGHT: f32 = 2.0;

/// The number of calls at which a word has half of this weight.
const HALF: f32 = 2.0;

/// A word of a query, as a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Word(Term);

/// The distinct words of a query that have a meaning for a search. Numbers and words with digits are left out: they name
/// single things rather than kinds of tasks.
pub fn query_words(query: &str) -> Vec<Word> {
    let query = &query[..query.floor_char_boundary(MAX_QUERY_BYTES)];
    let mut words = Vec::new();
    each_stem(query, |stem| {
        let word = Word(Term::of(&stem));
        if stem.chars().all(char::is_alphabetic) && !words.contains(&word) {
            words.push(word);
        }
        words.len() < MAX_WORDS
    });
    words
}

/// The words that led to the tools of a segment.
#[derive(Debug)]
pub struct Past {
    postings: Postings,
}

impl Past {
    /// `counts` has the number of a tool, a word, and how many calls it led to, once for each pair.
    pub fn new(counts: impl IntoIterator<Item = (usize, Word, f32)>) -> Self {
        let posting = |(tool, Word(term), count): (usize, Word, f32)| {
            let posting = Posting {
                tool: u32::try_from(tool).ok()?,
                weight: WEIGHT * count / (count + HALF),
                shares: [0; TOOL_FIELDS],
            };
            (count > 0.0).then_some((term, posting))
        };
        Self {
            postings: Postings::new(counts.into_iter().filter_map(posting).collect()),
        }
    }

    /// The postings of a term, by the number of the tool. They belong to no field of a definition.
    pub(crate) fn find(&self, term: Term) -> &[Posting] {
        self.postings.find(term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_stems_without_numbers() {
        let words = query_words("Refund the tickets of order 4711 or PO-99x7, ticket");
        assert_eq!(words, query_words("refund ticket order PO"));
        assert_eq!(query_words("the 12 of 3"), []);
        assert_eq!(query_words(&"one two ".repeat(1 << 16)).len(), 2);
        let many: String = (0..1000)
            .map(|number| format!("w{} ", "x".repeat(number)))
            .collect();
        assert!(query_words(&many).len() <= MAX_WORDS);
    }
}
