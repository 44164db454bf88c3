//! Compares a query with the names of tools.
//!
//! Invariants: a query that consists of several words can only match a whole name. Prefixes and typing errors are found
//! if the query is one word, as names are.

/// Why a tool is found, in the order of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// The query is the exposed name.
    Exposed,
    /// The query is the native name.
    Native,
    /// The query is one of the names, with other separators or capitals.
    Spelling,
    /// A name begins with the query.
    Prefix,
    /// A name differs from the query in one or two letters.
    Typo,
    /// Words of the query, or related words, occur in the definition.
    Relevance,
}

/// Names and queries with more bytes are not compared, except for equality.
const MAX_NAME_BYTES: usize = 128;

/// Shortest query that matches the beginning of a name, in bytes without separators.
const MIN_PREFIX_BYTES: usize = 3;

/// Shortest query, in bytes without separators, that matches a name with one and with two wrong letters.
const MIN_TYPO_BYTES: [usize; 2] = [4, 8];

/// A name without separators, in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Plain {
    text: String,
    /// The letters that occur, one bit each.
    letters: u64,
}

impl Plain {
    fn set(&mut self, name: &str) {
        self.text.clear();
        self.letters = 0;
        if name.len() > MAX_NAME_BYTES {
            return;
        }
        for letter in name.chars().filter(|letter| letter.is_alphanumeric()) {
            self.text.extend(letter.to_lowercase());
            self.letters |= 1 << (u32::from(letter.to_ascii_lowercase()) & 63);
        }
    }
}

/// The native name of a tool.
#[derive(Debug)]
pub(crate) struct Name {
    native: Box<str>,
    plain: Plain,
}

impl Name {
    pub(crate) fn new(native: &str) -> Self {
        let mut plain = Plain::default();
        // A longer name is found by its beginning. Exposed names are never that long.
        let end = native.floor_char_boundary(MAX_NAME_BYTES);
        plain.set(&native[..end]);
        plain.text.shrink_to_fit();
        Self {
            native: native[..end].into(),
            plain,
        }
    }

    /// The memory behind the struct, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.native.len() + self.plain.text.capacity()
    }
}

/// A query that may be a name.
pub(crate) struct Matcher<'q> {
    query: &'q str,
    plain: Plain,
    one_word: bool,
    exposed: Plain,
}

impl<'q> Matcher<'q> {
    /// Returns `None` if the query cannot be a name.
    pub(crate) fn new(query: &'q str) -> Option<Self> {
        let query = query.trim();
        if query.len() > MAX_NAME_BYTES {
            return None;
        }
        let mut plain = Plain::default();
        plain.set(query);
        (!plain.text.is_empty()).then(|| Self {
            query,
            plain,
            one_word: !query.contains(char::is_whitespace),
            exposed: Plain::default(),
        })
    }

    /// How the query matches a tool, if it does.
    pub(crate) fn tier(&mut self, exposed: &str, name: &Name) -> Option<Tier> {
        if exposed == self.query {
            return Some(Tier::Exposed);
        }
        if *name.native == *self.query {
            return Some(Tier::Native);
        }
        if exposed == &*name.native {
            self.exposed.text.clear();
        } else {
            self.exposed.set(exposed);
        }
        let query = self.plain.text.as_bytes();
        let both = [&name.plain, &self.exposed];
        if both.iter().any(|plain| plain.text.as_bytes() == query) {
            return Some(Tier::Spelling);
        }
        if !self.one_word {
            return None;
        }
        if query.len() >= MIN_PREFIX_BYTES
            && both
                .iter()
                .any(|plain| plain.text.as_bytes().starts_with(query))
        {
            return Some(Tier::Prefix);
        }
        let errors = MIN_TYPO_BYTES
            .iter()
            .filter(|least| query.len() >= **least)
            .count();
        let close = |plain: &&Plain| {
            // A wrong letter changes two bits at most.
            (plain.letters ^ self.plain.letters).count_ones() as usize <= 2 * errors
                && plain.text.len().abs_diff(query.len()) <= errors
                && is_near(plain.text.as_bytes(), query, errors)
        };
        (errors > 0 && both.iter().any(close)).then_some(Tier::Typo)
    }
}

/// Returns whether `a` becomes `b` if at most `limit` letters are inserted, removed, replaced or swapped with the next one.
fn is_near(a: &[u8], b: &[u8], limit: usize) -> bool {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[same..], &b[same..]);
    let same = a
        .iter()
        .rev()
        .zip(b.iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    let (a, b) = (&a[..a.len() - same], &b[..b.len() - same]);
    if a.len().min(b.len()) == 0 {
        return a.len().max(b.len()) <= limit;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        if row.iter().all(|distance| *distance > limit) {
            return false;
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()] <= limit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_in_steps() {
        for (query, exposed, native, expect) in [
            (
                "github__create_issue",
                "github__create_issue",
                "create_issue",
                Some(Tier::Exposed),
            ),
            (
                " create_issue ",
                "github__create_issue",
                "create_issue",
                Some(Tier::Native),
            ),
            (
                "create issue",
                "github__create_issue",
                "create_issue",
                Some(Tier::Spelling),
            ),
            (
                "createIssue",
                "github__create_issue",
                "create_issue",
                Some(Tier::Spelling),
            ),
            (
                "`create-issue`",
                "github__create_issue",
                "create_issue",
                Some(Tier::Spelling),
            ),
            (
                "github.create_issue",
                "github__create_issue",
                "create_issue",
                Some(Tier::Spelling),
            ),
            (
                "create_",
                "github__create_issue",
                "create_issue",
                Some(Tier::Prefix),
            ),
            (
                "GitHub",
                "github__create_issue",
                "create_issue",
                Some(Tier::Prefix),
            ),
            (
                "create_isseu",
                "github__create_issue",
                "create_issue",
                Some(Tier::Typo),
            ),
            (
                "craete_isue",
                "github__create_issue",
                "create_issue",
                Some(Tier::Typo),
            ),
            ("cr", "github__create_issue", "create_issue", None),
            (
                "create an issue",
                "github__create_issue",
                "create_issue",
                None,
            ),
            ("close_issue", "github__create_issue", "create_issue", None),
            ("find", "file", "file", None),
            ("", "file", "file", None),
            ("?!", "file", "file", None),
        ] {
            let tier = Matcher::new(query)
                .and_then(|mut matcher| matcher.tier(exposed, &Name::new(native)));
            assert_eq!(tier, expect, "{query}");
        }
    }

    #[test]
    fn distances() {
        for (a, b, distance) in [
            ("", "", 0),
            ("abc", "", 3),
            ("abc", "acb", 1),
            ("abc", "abd", 1),
            ("abcd", "bcd", 1),
            ("aaa", "aa", 1),
            ("abab", "baba", 2),
            ("kitten", "sitting", 3),
        ] {
            for limit in 0..5 {
                let near = is_near(a.as_bytes(), b.as_bytes(), limit);
                assert_eq!(near, distance <= limit, "{a} {b} {limit}");
                assert_eq!(
                    near,
                    is_near(b.as_bytes(), a.as_bytes(), limit),
                    "{a} {b} {limit}"
                );
            }
        }
    }
}
