//! Words with related meanings, from a table that is part of the program. `words/README.md` says how it is made.
//!
//! The format of `words.bin`, all numbers in little endian:
//!
//! 1. `words\0\0\1`, and the number of words (4 bytes)
//! 2. the term of each word, in ascending order (8 bytes)
//! 3. the index of each word's first entry in the next list, and the length of that list (4 bytes)
//! 4. related words: the index of the word (2 bytes), and how near it is (1 byte). The nearest come first.

use crate::words::Term;

/// The cosine at which a related word would not count.
const UNRELATED_COSINE: f32 = 0.3;

/// The cosine that the table stores as 0. It stores 1 as 255.
const LEAST_COSINE: f32 = 0.5;

static TABLE: &[u8] = include_bytes!("../words/words.bin");

struct Table<'t> {
    words: &'t [[u8; 8]],
    starts: &'t [[u8; 4]],
    related: &'t [[u8; 3]],
}

fn table(bytes: &[u8]) -> Option<Table<'_>> {
    let rest = bytes.strip_prefix(b"words\0\0\x01")?;
    let (count, rest) = rest.split_first_chunk()?;
    let count = u32::from_le_bytes(*count) as usize;
    let (words, rest) = rest.split_at_checked(count.checked_mul(8)?)?;
    let (starts, related) = rest.split_at_checked(count.checked_add(1)?.checked_mul(4)?)?;
    Some(Table {
        words: words.as_chunks().0,
        starts: starts.as_chunks().0,
        related: related.as_chunks().0,
    })
}

impl<'t> Table<'t> {
    fn of(&self, term: Term) -> Option<&'t [[u8; 3]]> {
        let at = self
            .words
            .binary_search_by_key(&term.0, |word| u64::from_le_bytes(*word))
            .ok()?;
        let start = |at: usize| Some(u32::from_le_bytes(*self.starts.get(at)?) as usize);
        self.related.get(start(at)?..start(at + 1)?)
    }
}

/// The words related to a word, nearest first, and how near each of them is: 1 for the same meaning. Empty for unknown
/// words.
pub(crate) fn related(term: Term) -> impl Iterator<Item = (Term, f32)> {
    let table = table(TABLE);
    let entries = table.as_ref().and_then(|table| table.of(term));
    let words = table.map_or(&[][..], |table| table.words);
    entries
        .unwrap_or_default()
        .iter()
        .filter_map(move |[low, high, near]| {
            let word = words.get(usize::from(u16::from_le_bytes([*low, *high])))?;
            let cosine = LEAST_COSINE + (1.0 - LEAST_COSINE) * f32::from(*near) / 255.0;
            let near = (cosine - UNRELATED_COSINE) / (1.0 - UNRELATED_COSINE);
            Some((Term(u64::from_le_bytes(*word)), near))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stem::stem;

    /// The words that the table is made of.
    const VOCABULARY: &str = include_str!("../words/vocabulary.txt");

    #[test]
    fn the_table_is_intact() {
        let table = table(TABLE).expect("a table");
        assert!(TABLE.len() <= 4 << 20);
        assert!(
            table
                .words
                .is_sorted_by_key(|word| u64::from_le_bytes(*word))
        );
        let starts: Vec<usize> = table
            .starts
            .iter()
            .map(|start| u32::from_le_bytes(*start) as usize)
            .collect();
        assert!(starts.is_sorted());
        assert_eq!(
            (starts.len(), starts[0], starts.last()),
            (table.words.len() + 1, 0, Some(&table.related.len()))
        );
        for [low, high, _] in table.related {
            assert!(usize::from(u16::from_le_bytes([*low, *high])) < table.words.len());
        }
    }

    #[test]
    fn the_recipe_has_the_same_stems_and_terms() {
        let table = table(TABLE).expect("a table");
        let mut terms: Vec<Term> = VOCABULARY
            .lines()
            .map(|word| Term::of(&stem(word)))
            .collect();
        terms.sort_unstable();
        terms.dedup();
        let words: Vec<Term> = table
            .words
            .iter()
            .map(|word| Term(u64::from_le_bytes(*word)))
            .collect();
        assert!(words == terms, "run `words/make.py` again");
    }

    #[test]
    fn related_words_have_related_meanings() {
        for (word, expect) in [
            ("picture", "image"),
            ("mail", "email"),
            ("fetch", "retrieve"),
            ("shop", "store"),
        ] {
            let expect = Term::of(&stem(expect));
            let found = related(Term::of(&stem(word))).find(|(term, _)| *term == expect);
            let near = found.map_or(0.0, |(_, near)| near);
            assert!(near > 0.2 && near < 1.0, "{word}: {near}");
        }
        assert_eq!(related(Term::of("qqqqq")).count(), 0);
    }

    #[test]
    fn a_broken_table_has_no_words() {
        for length in [0, 7, 8, 11, 12, 100, 10_000] {
            assert!(table(&TABLE[..length]).is_none(), "{length}");
        }
    }
}
