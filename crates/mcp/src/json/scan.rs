//! The validator: one strict walk over a text.
//!
//! Invariants: linear time; memory bounded by the depth and by the keys of open objects; no input makes it panic.
//! Deliberately absent: values. It reports only the positions of members near the root.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    sync::LazyLock,
};

use super::{Span, content, unescape};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("not UTF-8 at byte {0}")]
    Utf8(usize),
    #[error("not JSON: unexpected input at byte {0}")]
    Syntax(usize),
    #[error("nested deeper than {0} levels")]
    Depth(usize),
    #[error("duplicate key {0:?}")]
    DuplicateKey(String),
}

/// Objects up to this many keys are searched one by one; larger ones get a set.
const MAX_LINEAR_KEYS: usize = 24;

/// The hash is keyed, so that a sender cannot choose keys that collide.
static KEY_HASH: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Checks that `text` is exactly one JSON value, without duplicate keys and at most `max_depth` deep.
///
/// A duplicate key does not stop the syntax check, because a caller may still want the envelope of a frame that is
/// otherwise valid. Syntax and depth faults take precedence.
///
/// # Errors
/// The first [`Fault`] in the text, syntax before duplicates.
pub fn validate(text: &[u8], max_depth: usize) -> Result<(), Fault> {
    outline(text, max_depth, |_, _, _| {})
}

/// Like [`validate`], but also calls `member` for the members of the outermost object and of objects directly in it.
/// Its arguments are the key of the inner object (`None` for the outer one), the member's key (both as written, between
/// their quotes), and the span of the value. The members of an inner object come before the inner object itself. Ignore
/// everything it reported if the text is refused for its syntax.
///
/// # Errors
/// As [`validate`].
pub fn outline<'a>(
    text: &'a [u8],
    max_depth: usize,
    member: impl FnMut(Option<&'a [u8]>, &'a [u8], Span),
) -> Result<(), Fault> {
    if let Err(error) = std::str::from_utf8(text) {
        return Err(Fault::Utf8(error.valid_up_to()));
    }
    if u32::try_from(text.len()).is_err() {
        return Err(Fault::Syntax(text.len()));
    }
    let mut scan = Scan {
        text,
        at: 0,
        open: Vec::with_capacity(16),
        keys: Vec::with_capacity(32),
        large: Vec::new(),
        duplicate: None,
        near: Default::default(),
        member,
    };
    scan.run(max_depth)?;
    match scan.duplicate {
        Some(key) => Err(Fault::DuplicateKey(key)),
        None => Ok(()),
    }
}

/// Marks an array in the stack of open containers.
const ARRAY: u32 = u32::MAX;

struct Scan<'a, F> {
    text: &'a [u8],
    at: usize,
    /// Open containers: [`ARRAY`], or the index in `keys` of an object's first key.
    open: Vec<u32>,
    keys: Vec<Key>,
    /// Hashes of all keys of each open object with many keys, with its depth; innermost last.
    large: Vec<(usize, HashSet<u64>)>,
    duplicate: Option<String>,
    /// The current member of the outermost object, and of an object directly in it.
    near: [Near; 2],
    member: F,
}

/// A key of an open object.
#[derive(Clone, Copy)]
struct Key {
    start: u32,
    end: u32,
    escaped: bool,
}

/// A member whose value is being read.
#[derive(Clone, Copy, Default)]
struct Near {
    /// Start and end.
    key: (usize, usize),
    value: usize,
}

impl<'a, F: FnMut(Option<&'a [u8]>, &'a [u8], Span)> Scan<'a, F> {
    fn run(&mut self, max_depth: usize) -> Result<(), Fault> {
        self.space();
        'value: loop {
            match self.peek() {
                Some(b'"') => {
                    self.string()?;
                    self.ended();
                }
                Some(b'{') => {
                    self.at += 1;
                    self.descend(self.position(self.keys.len()), max_depth)?;
                    if self.peek() != Some(b'}') {
                        self.key()?;
                        continue 'value;
                    }
                }
                Some(b'[') => {
                    self.at += 1;
                    self.descend(ARRAY, max_depth)?;
                    if self.peek() != Some(b']') {
                        continue 'value;
                    }
                }
                Some(b'-' | b'0'..=b'9') => {
                    self.number()?;
                    self.ended();
                }
                Some(b't') => self.literal(b"true")?,
                Some(b'f') => self.literal(b"false")?,
                Some(b'n') => self.literal(b"null")?,
                _ => return Err(Fault::Syntax(self.at)),
            }
            // A value has ended (or an empty container is about to): close containers, then continue.
            loop {
                self.space();
                let Some(open) = self.open.last() else {
                    return if self.at == self.text.len() {
                        Ok(())
                    } else {
                        Err(Fault::Syntax(self.at))
                    };
                };
                let array = *open == ARRAY;
                match self.peek() {
                    Some(b',') => {
                        self.at += 1;
                        self.space();
                        // `[1,]` and `{"a":1,}` fail here: a value or a key has to follow.
                        if !array {
                            self.key()?;
                        }
                        continue 'value;
                    }
                    Some(b']') if array => {
                        self.at += 1;
                        self.open.pop();
                        self.ended();
                    }
                    Some(b'}') if !array => {
                        self.at += 1;
                        if self
                            .large
                            .last()
                            .is_some_and(|(depth, _)| *depth == self.open.len())
                        {
                            self.large.pop();
                        }
                        if let Some(start) = self.open.pop() {
                            self.keys.truncate(start as usize);
                        }
                        self.ended();
                    }
                    _ => return Err(Fault::Syntax(self.at)),
                }
            }
        }
    }

    /// Handles a value that ended at the cursor. Reports its member if that is near the root.
    #[inline]
    fn ended(&mut self) {
        let text = self.text;
        let key = |near: Near| &text[near.key.0..near.key.1];
        match *self.open.as_slice() {
            [outer] if outer != ARRAY => {
                let [near, _] = self.near;
                (self.member)(None, key(near), near.value..self.at);
            }
            [outer, inner] if outer != ARRAY && inner != ARRAY => {
                let [parent, near] = self.near;
                (self.member)(Some(key(parent)), key(near), near.value..self.at);
            }
            _ => {}
        }
    }

    /// Offsets fit, because the length of the text was checked.
    fn position(&self, at: usize) -> u32 {
        u32::try_from(at).unwrap_or(ARRAY)
    }

    fn descend(&mut self, container: u32, max_depth: usize) -> Result<(), Fault> {
        if self.open.len() >= max_depth {
            return Err(Fault::Depth(max_depth));
        }
        self.open.push(container);
        self.space();
        Ok(())
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    #[inline]
    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// Reads a key, its colon and the white space around them. Leaves the cursor at the value.
    fn key(&mut self) -> Result<(), Fault> {
        if self.peek() != Some(b'"') {
            return Err(Fault::Syntax(self.at));
        }
        let (span, escaped) = self.string()?;
        self.space();
        if self.peek() != Some(b':') {
            return Err(Fault::Syntax(self.at));
        }
        self.at += 1;
        self.space();
        if let Some(near) = self.near.get_mut(self.open.len() - 1) {
            *near = Near {
                key: (span.start, span.end),
                value: self.at,
            };
        }
        if self.duplicate.is_none() && !self.is_fresh(&span, escaped) {
            self.duplicate = Some(unescape(&self.text[span]).chars().take(80).collect());
        }
        Ok(())
    }

    /// Records a key of the innermost object. Returns false for a duplicate.
    fn is_fresh(&mut self, span: &Span, escaped: bool) -> bool {
        let text = self.text;
        let depth = self.open.len();
        if let Some((at, set)) = self.large.last_mut()
            && *at == depth
        {
            return set.insert(KEY_HASH.hash_one(&*content(&text[span.clone()])));
        }
        let start = self.open.last().map_or(0, |start| *start as usize);
        let raw = |key: &Key| &text[key.start as usize..key.end as usize];
        let key = Key {
            start: self.position(span.start),
            end: self.position(span.end),
            escaped,
        };
        let seen = &self.keys[start..];
        let is_duplicate = seen.iter().any(|other| {
            if escaped || other.escaped {
                content(raw(other)) == content(raw(&key))
            } else {
                raw(other) == raw(&key)
            }
        });
        if seen.len() >= MAX_LINEAR_KEYS {
            let all = seen.iter().chain([&key]);
            let set = all
                .map(|key| KEY_HASH.hash_one(&*content(raw(key))))
                .collect();
            self.keys.truncate(start);
            self.large.push((depth, set));
        } else {
            self.keys.push(key);
        }
        !is_duplicate
    }

    /// Reads a string. Returns the span between the quotes, and true if the string has escapes.
    #[inline]
    fn string(&mut self) -> Result<(Span, bool), Fault> {
        let start = self.at + 1;
        let mut at = start;
        let mut escaped = false;
        loop {
            at = plain_until(self.text, at);
            match self.text.get(at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    at = self.escape(at)?;
                }
                _ => return Err(Fault::Syntax(at)),
            }
        }
        self.at = at + 1;
        Ok((start..at, escaped))
    }

    /// Checks the escape at `at`. Returns its end.
    fn escape(&self, at: usize) -> Result<usize, Fault> {
        match self.text.get(at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
            Some(b'u') => {
                let (_, end) = code_point(self.text, at).ok_or(Fault::Syntax(at))?;
                Ok(end)
            }
            _ => Err(Fault::Syntax(at)),
        }
    }

    fn number(&mut self) -> Result<(), Fault> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            _ => return Err(Fault::Syntax(start)),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            if !matches!(self.peek(), Some(b'0'..=b'9')) {
                return Err(Fault::Syntax(start));
            }
            self.digits();
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            if !matches!(self.peek(), Some(b'0'..=b'9')) {
                return Err(Fault::Syntax(start));
            }
            self.digits();
        }
        Ok(())
    }

    fn digits(&mut self) {
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
    }

    fn literal(&mut self, word: &[u8]) -> Result<(), Fault> {
        if self.text[self.at..].starts_with(word) {
            self.at += word.len();
            self.ended();
            Ok(())
        } else {
            Err(Fault::Syntax(self.at))
        }
    }
}

/// Finds the first byte from `at` on that is special in a string: a quote, a backslash or a control character. Reads
/// eight bytes at a time, because most of a message is strings.
#[inline]
fn plain_until(text: &[u8], mut at: usize) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let zero = |word: u64| word.wrapping_sub(ONES) & !word & HIGH;
    while let Some(chunk) = text.get(at..at + 8) {
        let word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
        let special = zero(word ^ (ONES * u64::from(b'"')))
            | zero(word ^ (ONES * u64::from(b'\\')))
            | (word.wrapping_sub(ONES * 0x20) & !word & HIGH);
        if special != 0 {
            // The lowest mark is exact. Borrows can set false marks only above it.
            return at + special.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while let Some(byte) = text.get(at) {
        if matches!(byte, b'"' | b'\\' | 0..=0x1f) {
            break;
        }
        at += 1;
    }
    at
}

/// The code point of the `\u` escape at `at`, and the end of the escape. Two escapes that form a pair are read together;
/// a surrogate without its other half is returned as it is.
pub(super) fn code_point(text: &[u8], at: usize) -> Option<(u32, usize)> {
    let unit = |at: usize| {
        let escaped = text.get(at..at + 2) == Some(b"\\u");
        escaped.then(|| hex4(text, at + 2)).flatten()
    };
    let first = u32::from(unit(at)?);
    if let 0xD800..0xDC00 = first
        && let Some(low @ 0xDC00..0xE000) = unit(at + 6)
    {
        let code = 0x1_0000 + ((first - 0xD800) << 10) + u32::from(low - 0xDC00);
        return Some((code, at + 12));
    }
    Some((first, at + 6))
}

fn hex4(text: &[u8], at: usize) -> Option<u16> {
    let digits = text.get(at..at + 4)?;
    digits.iter().try_fold(0u16, |unit, digit| {
        Some(unit << 4 | u16::try_from(char::from(*digit).to_digit(16)?).ok()?)
    })
}
