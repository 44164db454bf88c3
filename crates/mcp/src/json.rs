//! JSON as text: one strict validation, then cheap walks and splices over it.
//!
//! [`validate`] is the gate. It accepts exactly RFC 8259 JSON in UTF-8 and refuses what parsers disagree
//! about: duplicate keys (after unescaping) and absurd depth. The walkers below it ([`members`],
//! [`elements`], [`Object`]) expect validated text; on anything else they stop early, and never panic.
//!
//! Deliberately absent: a value tree. Numbers keep their digits, objects their order, strings their escapes.

use std::{
    borrow::Cow,
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    ops::Range,
    sync::LazyLock,
};

use bytes::{Bytes, BytesMut};

/// A place in the text, in bytes.
pub type Span = Range<usize>;

/// Why a text is refused.
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
const LINEAR_KEYS: usize = 24;

/// Keyed, so that nobody outside can choose keys that collide.
static KEY_HASH: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Checks that `text` is one JSON value and nothing else, without duplicate keys, at most `max_depth` deep.
///
/// The first duplicate key does not end the check of the syntax: a caller may still want the envelope of
/// a frame that is sound but for that. Syntax and depth faults come first.
///
/// # Errors
/// The first [`Fault`] in the text, syntax before duplicates.
pub fn validate(text: &[u8], max_depth: usize) -> Result<(), Fault> {
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
    };
    scan.run(max_depth)?;
    match scan.duplicate {
        Some(key) => Err(Fault::DuplicateKey(key)),
        None => Ok(()),
    }
}

/// Marks an array among the open containers.
const ARRAY: u32 = u32::MAX;

struct Scan<'a> {
    text: &'a [u8],
    at: usize,
    /// Containers that are open: [`ARRAY`], or where an object's keys start in `keys`.
    open: Vec<u32>,
    /// Where the keys of the open objects stand: start and end.
    keys: Vec<(u32, u32)>,
    /// Hashes of all keys of an open object that has many, with its depth; innermost last.
    large: Vec<(usize, HashSet<u64>)>,
    duplicate: Option<String>,
}

impl Scan<'_> {
    fn run(&mut self, max_depth: usize) -> Result<(), Fault> {
        self.space();
        'value: loop {
            match self.peek() {
                Some(b'"') => {
                    self.string()?;
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
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.literal(b"true")?,
                Some(b'f') => self.literal(b"false")?,
                Some(b'n') => self.literal(b"null")?,
                _ => return Err(Fault::Syntax(self.at)),
            }
            // A value has ended (or an empty container is about to): close what closes, then go on.
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
                    }
                    _ => return Err(Fault::Syntax(self.at)),
                }
            }
        }
    }

    /// Offsets fit, for the text was measured.
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

    /// A key, its colon and the space around them; leaves the cursor at the value.
    fn key(&mut self) -> Result<(), Fault> {
        if self.peek() != Some(b'"') {
            return Err(Fault::Syntax(self.at));
        }
        let span = self.string()?;
        self.space();
        if self.peek() != Some(b':') {
            return Err(Fault::Syntax(self.at));
        }
        self.at += 1;
        self.space();
        if self.duplicate.is_none() && !self.is_fresh(&span) {
            self.duplicate = Some(unescape(&self.text[span]).chars().take(80).collect());
        }
        Ok(())
    }

    /// Notes a key of the innermost object; whether it is the first of its name there.
    fn is_fresh(&mut self, span: &Span) -> bool {
        let depth = self.open.len();
        if let Some((at, set)) = self.large.last_mut()
            && *at == depth
        {
            return set.insert(KEY_HASH.hash_one(unescape(&self.text[span.clone()]).as_bytes()));
        }
        let start = self.open.last().map_or(0, |start| *start as usize);
        let key = &self.text[span.clone()];
        let escaped = memchr::memchr(b'\\', key).is_some();
        let seen = &self.keys[start..];
        let twin = seen.iter().any(|(from, to)| {
            let other = &self.text[*from as usize..*to as usize];
            other == key
                || ((escaped || other.contains(&b'\\')) && unescape(other) == unescape(key))
        });
        if seen.len() >= LINEAR_KEYS {
            let all = seen
                .iter()
                .map(|(from, to)| &self.text[*from as usize..*to as usize])
                .chain([key]);
            let set = all
                .map(|key| KEY_HASH.hash_one(unescape(key).as_bytes()))
                .collect();
            self.keys.truncate(start);
            self.large.push((depth, set));
        } else {
            self.keys
                .push((self.position(span.start), self.position(span.end)));
        }
        !twin
    }

    /// A string; returns the span between its quotes.
    #[inline]
    fn string(&mut self) -> Result<Span, Fault> {
        let start = self.at + 1;
        let mut at = start;
        loop {
            at = plain_until(self.text, at);
            match self.text.get(at) {
                Some(b'"') => break,
                Some(b'\\') => at = self.escape(at)?,
                _ => return Err(Fault::Syntax(at)),
            }
        }
        self.at = at + 1;
        Ok(start..at)
    }

    /// Checks the escape at `at`; returns its end.
    fn escape(&self, at: usize) -> Result<usize, Fault> {
        match self.text.get(at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
            Some(b'u') => {
                let unit = hex4(self.text, at + 2).ok_or(Fault::Syntax(at))?;
                // A lone surrogate is no character: parsers disagree about it, so it is refused.
                match unit {
                    0xD800..0xDC00 => {
                        let low = (self.text.get(at + 6..at + 8) == Some(b"\\u"))
                            .then(|| hex4(self.text, at + 8))
                            .flatten();
                        let pair = low.is_some_and(|low| (0xDC00..0xE000).contains(&low));
                        if pair {
                            Ok(at + 12)
                        } else {
                            Err(Fault::Syntax(at))
                        }
                    }
                    0xDC00..0xE000 => Err(Fault::Syntax(at)),
                    _ => Ok(at + 6),
                }
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
            Ok(())
        } else {
            Err(Fault::Syntax(self.at))
        }
    }
}

/// The first byte from `at` on that means something in a string: a quote, a backslash, a control character.
/// Eight bytes at a time, for most of a message is strings.
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
            // The lowest mark is exact; borrows can only set false ones above it.
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

fn hex4(text: &[u8], at: usize) -> Option<u16> {
    let digits = text.get(at..at + 4)?;
    digits.iter().try_fold(0u16, |unit, digit| {
        Some(unit << 4 | u16::try_from(char::from(*digit).to_digit(16)?).ok()?)
    })
}

/// The characters of a string, given what stands between its quotes.
///
/// Text that is no valid string body comes back as it is, lossily decoded.
#[must_use]
pub fn unescape(body: &[u8]) -> Cow<'_, str> {
    if memchr::memchr(b'\\', body).is_none() {
        return String::from_utf8_lossy(body);
    }
    let mut quoted = Vec::with_capacity(body.len() + 2);
    quoted.push(b'"');
    quoted.extend_from_slice(body);
    quoted.push(b'"');
    match serde_json::from_slice::<String>(&quoted) {
        Ok(text) => Cow::Owned(text),
        Err(_) => String::from_utf8_lossy(body),
    }
}

/// `text` as a JSON string, quotes included.
#[must_use]
pub fn quote(text: &str) -> String {
    serde_json::to_string(text).expect("a str is always a JSON string")
}

/// Skips one value that starts at `at`; returns its end.
fn skip(text: &[u8], mut at: usize) -> usize {
    match text.get(at) {
        Some(b'"') => skip_string(text, at),
        Some(b'{' | b'[') => {
            let mut depth = 0usize;
            while let Some(byte) = text.get(at) {
                match byte {
                    b'"' => {
                        at = skip_string(text, at);
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => {
                        depth -= 1;
                        if depth == 0 {
                            return at + 1;
                        }
                    }
                    _ => {}
                }
                at += 1;
            }
            at
        }
        _ => {
            while let Some(byte) = text.get(at) {
                if matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r') {
                    break;
                }
                at += 1;
            }
            at
        }
    }
}

fn skip_string(text: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while let Some(found) = text
        .get(at..)
        .and_then(|rest| memchr::memchr2(b'"', b'\\', rest))
    {
        at += found;
        if text[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    text.len()
}

fn skip_space(text: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\t' | b'\n' | b'\r') = text.get(at) {
        at += 1;
    }
    at
}

/// The span of the value in `text` without the space around it.
#[must_use]
pub fn trimmed(text: &[u8]) -> Span {
    let start = skip_space(text, 0);
    start..skip(text, start)
}

/// One member of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The key, between its quotes.
    pub key: Span,
    pub value: Span,
}

/// Walks the members of the object at `object`; nothing if it is no object.
pub fn members(text: &[u8], object: Span) -> impl Iterator<Item = Member> + '_ {
    let mut at = match text.get(object.start) {
        Some(b'{') => object.start + 1,
        _ => text.len(),
    };
    std::iter::from_fn(move || {
        at = skip_space(text, at);
        if text.get(at) == Some(&b',') {
            at = skip_space(text, at + 1);
        }
        if text.get(at) != Some(&b'"') {
            return None;
        }
        let key_end = skip_string(text, at);
        let key = at + 1..key_end.saturating_sub(1).max(at + 1);
        let colon = skip_space(text, key_end);
        let start = skip_space(text, colon + 1);
        if start >= text.len() {
            return None;
        }
        at = skip(text, start);
        Some(Member {
            key,
            value: start..at,
        })
    })
}

/// Walks the elements of the array at `array`; nothing if it is no array.
pub fn elements(text: &[u8], array: Span) -> impl Iterator<Item = Span> + '_ {
    let mut at = match text.get(array.start) {
        Some(b'[') => array.start + 1,
        _ => text.len(),
    };
    std::iter::from_fn(move || {
        at = skip_space(text, at);
        if text.get(at) == Some(&b',') {
            at = skip_space(text, at + 1);
        }
        if matches!(text.get(at), None | Some(b']')) {
            return None;
        }
        let start = at;
        at = skip(text, start);
        if at == start {
            // Not validated: there is no value here to go on from.
            at = text.len();
            return None;
        }
        Some(start..at)
    })
}

/// Whether the key between quotes in `raw` spells `name`.
#[must_use]
pub fn key_is(raw: &[u8], name: &str) -> bool {
    raw == name.as_bytes() || (memchr::memchr(b'\\', raw).is_some() && unescape(raw) == name)
}

/// An object within a validated text.
#[derive(Clone, Copy)]
pub struct Object<'a> {
    text: &'a [u8],
    start: usize,
    end: usize,
}

impl<'a> Object<'a> {
    /// The object at `span`, if there is one.
    #[must_use]
    pub fn at(text: &'a [u8], span: Span) -> Option<Self> {
        (text.get(span.start) == Some(&b'{')).then_some(Self {
            text,
            start: span.start,
            end: span.end,
        })
    }

    /// The object that `text` is.
    #[must_use]
    pub fn of(text: &'a [u8]) -> Option<Self> {
        Self::at(text, trimmed(text))
    }

    #[must_use]
    pub fn span(&self) -> Span {
        self.start..self.end
    }

    pub fn members(&self) -> impl Iterator<Item = Member> + use<'a> {
        members(self.text, self.span())
    }

    /// Where the value of `key` stands.
    #[must_use]
    pub fn find(&self, key: &str) -> Option<Span> {
        self.members()
            .find(|member| key_is(&self.text[member.key.clone()], key))
            .map(|member| member.value)
    }

    /// Where the values of several keys stand, in one walk.
    #[must_use]
    pub fn find_all<const N: usize>(&self, keys: [&str; N]) -> [Option<Span>; N] {
        let mut found = [const { None }; N];
        for member in self.members() {
            let raw = &self.text[member.key];
            if let Some(at) = keys.iter().position(|key| key_is(raw, key)) {
                found[at] = Some(member.value);
            }
        }
        found
    }

    /// The text of the value of `key`.
    #[must_use]
    pub fn raw(&self, key: &str) -> Option<&'a [u8]> {
        self.find(key).map(|span| &self.text[span])
    }

    /// The value of `key`, if it is a string.
    #[must_use]
    pub fn string(&self, key: &str) -> Option<Cow<'a, str>> {
        self.raw(key).and_then(as_string)
    }

    /// The value of `key`, if it is an object.
    #[must_use]
    pub fn object(&self, key: &str) -> Option<Object<'a>> {
        self.find(key).and_then(|span| Object::at(self.text, span))
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members().next().is_none()
    }
}

/// The characters of the string that `raw` is.
#[must_use]
pub fn as_string(raw: &[u8]) -> Option<Cow<'_, str>> {
    (raw.len() >= 2 && raw[0] == b'"').then(|| unescape(&raw[1..raw.len() - 1]))
}

/// Changes to a text: each replaces one span, spans do not overlap.
#[derive(Default)]
pub struct Splice<'a> {
    edits: Vec<(Span, Cow<'a, [u8]>)>,
}

impl<'a> Splice<'a> {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    pub fn replace(&mut self, span: Span, with: impl Into<Cow<'a, [u8]>>) -> &mut Self {
        self.edits.push((span, with.into()));
        self
    }

    /// Puts members (`"key":value`, comma separated, not empty) first into the object at `object`.
    pub fn insert(&mut self, text: &[u8], object: &Span, members: &[u8]) -> &mut Self {
        let inside = object.start + 1;
        let mut with = members.to_vec();
        if text.get(skip_space(text, inside)) != Some(&b'}') {
            with.push(b',');
        }
        self.replace(inside..inside, with)
    }

    /// Takes the member whose value stands at `value` out of its object, its comma too.
    pub fn remove(&mut self, text: &[u8], object: &Span, value: &Span) -> &mut Self {
        let mut before = None;
        let mut all = members(text, object.clone()).peekable();
        while let Some(member) = all.next() {
            if member.value == *value {
                let own_start = member.key.start - 1;
                let span = match (before, all.peek()) {
                    (_, Some(next)) => own_start..next.key.start - 1,
                    (Some(end), None) => end..value.end,
                    (None, None) => own_start..value.end,
                };
                return self.replace(span, &b""[..]);
            }
            before = Some(member.value.end);
        }
        self
    }

    /// The text with the changes made, from `within` of the old text.
    #[must_use]
    pub fn apply_within(mut self, text: &[u8], within: Span) -> Bytes {
        self.edits.sort_by_key(|(span, _)| (span.start, span.end));
        let grown: usize = self.edits.iter().map(|(_, with)| with.len()).sum();
        let mut out = BytesMut::with_capacity(within.len() + grown);
        let mut at = within.start;
        for (span, with) in &self.edits {
            if span.start < at || span.end > within.end {
                continue;
            }
            out.extend_from_slice(&text[at..span.start]);
            out.extend_from_slice(with);
            at = span.end;
        }
        out.extend_from_slice(&text[at..within.end]);
        out.freeze()
    }

    /// The whole text with the changes made.
    #[must_use]
    pub fn apply(self, text: &Bytes) -> Bytes {
        if self.edits.is_empty() {
            text.clone()
        } else {
            self.apply_within(text, 0..text.len())
        }
    }
}

/// The text on one line: line breaks between tokens become spaces (inside strings there are none).
#[must_use]
pub fn one_line(text: &Bytes) -> Bytes {
    if memchr::memchr2(b'\n', b'\r', text).is_none() {
        return text.clone();
    }
    text.iter()
        .map(|byte| {
            if matches!(byte, b'\n' | b'\r') {
                b' '
            } else {
                *byte
            }
        })
        .collect::<Vec<u8>>()
        .into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, expect: Result<(), Fault>) {
        assert_eq!(validate(text.as_bytes(), 8), expect, "{text}");
    }

    #[test]
    fn accepts_json() {
        for text in [
            "0",
            "-1.5e+10",
            "[]",
            "{}",
            " { \"a\" : [ 1 , {} , [ ] ] } ",
            r#""é😀\n\/""#,
            "123456789012345678901234567890",
            r#""\uD83D\uDE00""#,
        ] {
            check(text, Ok(()));
        }
    }

    #[test]
    fn refuses_what_is_not_json() {
        for (text, at) in [
            ("", 0),
            ("[1,]", 3),
            ("{\"a\":1,}", 7),
            ("01", 1),
            ("[1 2]", 3),
            ("{\"a\" 1}", 5),
            ("\"\n\"", 1),
            ("\"\\x\"", 1),
            ("\"abc", 4),
            ("tru", 0),
            ("1.", 0),
            ("1 1", 2),
            ("[}", 1),
            ("\"\\ud800\"", 1),
            ("\"\\udc00x\"", 1),
        ] {
            check(text, Err(Fault::Syntax(at)));
        }
        assert_eq!(validate(b"\"\xff\"", 8), Err(Fault::Utf8(1)));
        assert_eq!(validate(&b"[".repeat(100_000), 8), Err(Fault::Depth(8)));
    }

    #[test]
    fn refuses_duplicate_keys_at_any_depth() {
        check(r#"{"a":1,"a":2}"#, Err(Fault::DuplicateKey("a".into())));
        check(
            r#"[{"x":{"b":1,"\u0062":2}}]"#,
            Err(Fault::DuplicateKey("b".into())),
        );
        check(r#"{"a":{"b":1},"b":{"a":1}}"#, Ok(()));
        let many = |last: &str| {
            format!(
                "{{{}{last}}}",
                (0..100).map(|n| format!("\"k{n}\":0,")).collect::<String>()
            )
        };
        check(&many("\"k7\":1"), Err(Fault::DuplicateKey("k7".into())));
        check(&many("\"k100\":1"), Ok(()));
    }

    #[test]
    fn splices() {
        let text = Bytes::from_static(br#"{ "a": 1, "b": {"c": [1,2]}, "d": "x" }"#);
        let object = Object::of(&text).expect("an object");
        let find = |key| object.find(key).expect(key);
        let change = |edit: &dyn Fn(&mut Splice<'static>)| {
            let mut splice = Splice::new();
            edit(&mut splice);
            String::from_utf8(splice.apply(&text).to_vec()).expect("utf-8")
        };
        assert_eq!(
            change(&|s| {
                s.replace(find("a"), &b"7"[..]);
            }),
            r#"{ "a": 7, "b": {"c": [1,2]}, "d": "x" }"#
        );
        assert_eq!(
            change(&|s| {
                s.remove(&text, &object.span(), &find("a"));
            }),
            r#"{ "b": {"c": [1,2]}, "d": "x" }"#
        );
        assert_eq!(
            change(&|s| {
                s.remove(&text, &object.span(), &find("d"));
            }),
            r#"{ "a": 1, "b": {"c": [1,2]} }"#
        );
        assert_eq!(
            change(&|s| {
                s.insert(&text, &object.span(), b"\"z\":0");
            }),
            r#"{"z":0, "a": 1, "b": {"c": [1,2]}, "d": "x" }"#
        );
    }

    #[test]
    fn walks_over_what_is_no_json_end() {
        for text in [
            &b"[}"[..],
            b"[:",
            b"[1}2",
            b"{\"a\"}",
            b"{\"a\":,",
            b"[,,]",
            b"[\"",
            b"{\"a\":}x",
        ] {
            assert!(elements(text, 0..text.len()).take(100).count() < 100);
            assert!(members(text, 0..text.len()).take(100).count() < 100);
        }
    }

    proptest! {
        #[test]
        fn agrees_with_serde_json(text in "[\\[\\]{}\",:0-9a-e\\\\ tfnulrs.\\-]{0,24}") {
            let ours = validate(text.as_bytes(), 128);
            let theirs = serde_json::from_str::<serde_json::Value>(&text);
            match ours {
                Ok(()) => prop_assert!(theirs.is_ok() || theirs.as_ref().is_err_and(|e| e.to_string().contains("out of range")), "{text}: {theirs:?}"),
                Err(Fault::DuplicateKey(_)) => {}
                Err(_) => prop_assert!(theirs.is_err(), "{text}"),
            }
        }

        #[test]
        fn walkers_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            for member in members(&bytes, 0..bytes.len()) {
                let _ = unescape(&bytes[member.key]);
                let _ = &bytes[member.value];
            }
            for element in elements(&bytes, 0..bytes.len()) {
                let _ = &bytes[element];
            }
            let _ = validate(&bytes, 16);
        }
    }
}
