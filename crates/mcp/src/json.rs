//! JSON as text: one strict validation, then cheap walks and splices over it.
//!
//! [`validate`] is the gate. It accepts exactly RFC 8259 JSON in UTF-8, but refuses input that parsers disagree about
//! (duplicate keys, after unescaping) and excessive depth. The walkers ([`members`], [`elements`], [`Object`]) expect
//! validated text. On other text they stop early, and never panic.
//!
//! A lone surrogate escape (`"\ud83d"`, half an emoji) is valid JSON and passes through in the text. A Rust string cannot
//! hold it, so a string with one cannot be a name: [`as_string`] returns `None` for it. Keys are compared without loss.
//!
//! Deliberately absent: a value tree. Numbers keep their digits, objects their order, strings their escapes.

mod scan;

use std::{borrow::Cow, ops::Range};

use bytes::Bytes;

pub use self::scan::{Fault, outline, validate};

/// A byte range in the text.
pub type Span = Range<usize>;

/// Decodes a string from the text between its quotes, for display: lone surrogates become U+FFFD.
///
/// Escapes in an invalid string body stay as they are. Invalid UTF-8 is replaced.
#[must_use]
pub fn unescape(body: &[u8]) -> Cow<'_, str> {
    match content(body) {
        Cow::Borrowed(plain) => String::from_utf8_lossy(plain),
        Cow::Owned(decoded) => match String::from_utf8(decoded) {
            Ok(text) => Cow::Owned(text),
            Err(lone) => Cow::Owned(String::from_utf8_lossy(lone.as_bytes()).into_owned()),
        },
    }
}

/// Like [`unescape`], but `None` if the string has a lone surrogate.
#[must_use]
pub fn decode(body: &[u8]) -> Option<Cow<'_, str>> {
    match content(body) {
        Cow::Borrowed(plain) => Some(String::from_utf8_lossy(plain)),
        Cow::Owned(decoded) => String::from_utf8(decoded).ok().map(Cow::Owned),
    }
}

/// The content of a string, from the text between its quotes: UTF-8, in which a lone surrogate has three bytes as in
/// WTF-8. Different strings have different contents. An invalid string body is returned unchanged.
fn content(body: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'\\', body).is_none() {
        return Cow::Borrowed(body);
    }
    decoded(body).map_or(Cow::Borrowed(body), Cow::Owned)
}

fn decoded(body: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(body.len());
    let mut at = 0;
    while let Some(found) = memchr::memchr(b'\\', &body[at..]) {
        out.extend_from_slice(&body[at..at + found]);
        at += found;
        let byte = match body.get(at + 1)? {
            byte @ (b'"' | b'\\' | b'/') => *byte,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let (code, end) = scan::code_point(body, at)?;
                match char::from_u32(code) {
                    Some(char) => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
                    None => {
                        let low = |bits: u32| 0x80 | (bits & 0x3f) as u8;
                        out.extend_from_slice(&[0xed, low(code >> 6), low(code)]);
                    }
                }
                at = end;
                continue;
            }
            _ => return None,
        };
        out.push(byte);
        at += 2;
    }
    out.extend_from_slice(&body[at..]);
    Some(out)
}

/// `text` with U+FFFD for each lone surrogate, for readers that cannot hold one.
#[must_use]
pub fn without_lone_surrogates(text: &[u8]) -> Cow<'_, [u8]> {
    let mut out = Vec::new();
    let (mut at, mut kept) = (0, 0);
    while let Some(found) = text.get(at..).and_then(|rest| memchr::memchr(b'\\', rest)) {
        at += found;
        let Some((code, end)) = scan::code_point(text, at) else {
            at += 2;
            continue;
        };
        if char::from_u32(code).is_none() {
            out.extend_from_slice(&text[kept..at]);
            out.extend_from_slice(b"\\ufffd");
            kept = end;
        }
        at = end;
    }
    if kept == 0 {
        return Cow::Borrowed(text);
    }
    out.extend_from_slice(&text[kept..]);
    Cow::Owned(out)
}

/// The beginning of a text in printable characters, for messages to people.
#[must_use]
pub fn excerpt(text: &[u8]) -> String {
    const MAX_CHARS: usize = 200;
    // Four bytes per character at most.
    let head = &text[..text.len().min(4 * MAX_CHARS)];
    let head = String::from_utf8_lossy(head);
    let printable = head.chars().map(|c| if c.is_control() { ' ' } else { c });
    let shown: String = printable.take(MAX_CHARS).collect();
    let more = if head.chars().nth(MAX_CHARS).is_some() {
        "…"
    } else {
        ""
    };
    format!("{}{more}", shown.trim())
}

/// `text` as a JSON string, quotes included.
#[must_use]
pub fn quote(text: &str) -> String {
    serde_json::to_string(text).expect("a str is always a JSON string")
}

/// Skips one value that starts at `at`. Returns its end.
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

/// The span of the value in `text`, without surrounding white space.
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

/// Walks the members of the object at `object`. Empty if that is not an object.
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

/// Walks the elements of the array at `array`. Empty if that is not an array.
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
            // The text was not validated: no value follows, so stop.
            at = text.len();
            return None;
        }
        Some(start..at)
    })
}

/// Returns true if the key in `raw` (the text between its quotes) equals `name`.
#[must_use]
pub fn key_is(raw: &[u8], name: &str) -> bool {
    raw == name.as_bytes()
        // Escapes always make a key longer.
        || (raw.len() > name.len()
            && memchr::memchr(b'\\', raw).is_some()
            && *content(raw) == *name.as_bytes())
}

/// An object within a validated text.
#[derive(Clone, Copy)]
pub struct Object<'a> {
    text: &'a [u8],
    start: usize,
    end: usize,
}

impl<'a> Object<'a> {
    /// The object at `span`, if any.
    #[must_use]
    pub fn at(text: &'a [u8], span: Span) -> Option<Self> {
        (text.get(span.start) == Some(&b'{')).then_some(Self {
            text,
            start: span.start,
            end: span.end,
        })
    }

    /// The object that `text` consists of.
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

    /// The span of the value of `key`.
    #[must_use]
    pub fn find(&self, key: &str) -> Option<Span> {
        self.members()
            .find(|member| key_is(&self.text[member.key.clone()], key))
            .map(|member| member.value)
    }

    /// The spans of the values of several keys, found in one walk.
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

/// The decoded string, if `raw` is one without lone surrogates.
#[must_use]
pub fn as_string(raw: &[u8]) -> Option<Cow<'_, str>> {
    if raw.len() < 2 || raw[0] != b'"' {
        return None;
    }
    decode(&raw[1..raw.len() - 1])
}

/// Edits to a text. Each edit replaces one span; spans do not overlap.
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

    /// Inserts members (`"key":value`, comma separated, not empty) at the beginning of the object at `object`.
    pub fn insert(&mut self, text: &[u8], object: &Span, members: impl Into<Vec<u8>>) -> &mut Self {
        let inside = object.start + 1;
        let mut with = members.into();
        if text.get(skip_space(text, inside)) != Some(&b'}') {
            with.push(b',');
        }
        self.replace(inside..inside, with)
    }

    /// Sets the member `key` of `object`: replaces its value, or inserts the member at the beginning. `value` is JSON text.
    pub fn set(
        &mut self,
        text: &[u8],
        object: &Object<'_>,
        key: &str,
        value: impl Into<Vec<u8>>,
    ) -> &mut Self {
        let value = value.into();
        match object.find(key) {
            Some(old) => self.replace(old, value),
            None => self.insert(
                text,
                &object.span(),
                [quote(key).as_bytes(), b":", &value].concat(),
            ),
        }
    }

    /// Removes the member with the value at `value` from its object, including its comma.
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

    /// The part `within` of the old text, with the edits made.
    #[must_use]
    pub fn apply_within(mut self, text: &[u8], within: Span) -> Bytes {
        self.edits.sort_by_key(|(span, _)| (span.start, span.end));
        let grown: usize = self.edits.iter().map(|(_, with)| with.len()).sum();
        let gone: usize = self.edits.iter().map(|(span, _)| span.len()).sum();
        // Exact if all edits apply: a buffer without spare capacity needs no second allocation.
        let mut out = Vec::with_capacity((within.len() + grown).saturating_sub(gone));
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
        out.into()
    }

    /// The whole text with the edits made.
    #[must_use]
    pub fn apply(self, text: &Bytes) -> Bytes {
        if self.edits.is_empty() {
            text.clone()
        } else {
            self.apply_within(text, 0..text.len())
        }
    }
}

/// The text on one line: line breaks between tokens become spaces (strings cannot contain any).
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
            r#""cut \ud83d""#,
            r#""\udc00\ud83dx\ud83d\u0041""#,
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
            ("\"\\ud80\"", 1),
            ("\"\\ud83d\\uzzzz\"", 7),
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
        // Halves of emoji are different keys, unless they are the same half.
        check(r#"{"\ud83d":1,"\ud83e":2,"\\ud83d":3,"\ufffd":4}"#, Ok(()));
        let twice = Fault::DuplicateKey("\u{fffd}\u{fffd}\u{fffd}".into());
        check(r#"{"\ud83d":1,"\uD83D":2}"#, Err(twice));
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
    fn strings_are_decoded() {
        let check = |raw: &str, expect: Option<&str>| {
            assert_eq!(as_string(raw.as_bytes()).as_deref(), expect, "{raw}");
        };
        check(
            r#""é\"\\\/\b\f\n\r\t\u00e9""#,
            Some("é\"\\/\u{8}\u{c}\n\r\té"),
        );
        check(r#""\uD83D\ude00!""#, Some("😀!"));
        check(r#""\\ud83d""#, Some("\\ud83d"));
        check("7", None);
        // A lone surrogate has no place in a Rust string.
        for lone in [r#""x\ud83d""#, r#""\ude00\ud83d""#, r#""\ud83d\u0041""#] {
            check(lone, None);
            assert!(unescape(lone.as_bytes()).contains('\u{fffd}'), "{lone}");
        }
    }

    #[test]
    fn lone_surrogates_are_replaced_for_readers_that_cannot_hold_them() {
        let check = |text: &str, expect: &str| {
            let whole = without_lone_surrogates(text.as_bytes());
            assert_eq!(String::from_utf8_lossy(&whole), expect);
            assert_eq!(matches!(whole, Cow::Borrowed(_)), text == expect);
        };
        check(
            r#"["a\ud83d","\udE00\ud83d\ude00"]"#,
            r#"["a\ufffd","\ufffd\ud83d\ude00"]"#,
        );
        check(r#"{"\\ud83d":"\u0041\n"}"#, r#"{"\\ud83d":"\u0041\n"}"#);
        check("\\", "\\");
    }

    #[test]
    fn splices() {
        let text = Bytes::from_static(br#"{ "a": 1, "b": {"c": [1,2]}, "d": "x" }"#);
        let object = Object::of(&text).expect("an object");
        let find = |key| object.find(key).expect(key);
        type Edit<'a> = &'a dyn for<'s> Fn(&'s mut Splice<'static>) -> &'s mut Splice<'static>;
        let check = |edit: Edit<'_>, expect: &str| {
            let mut splice = Splice::new();
            edit(&mut splice);
            assert_eq!(splice.apply(&text), expect);
        };
        let replaced = r#"{ "a": 7, "b": {"c": [1,2]}, "d": "x" }"#;
        check(&|s| s.replace(find("a"), &b"7"[..]), replaced);
        for (key, expect) in [
            ("a", r#"{ "b": {"c": [1,2]}, "d": "x" }"#),
            ("d", r#"{ "a": 1, "b": {"c": [1,2]} }"#),
        ] {
            check(&|s| s.remove(&text, &object.span(), &find(key)), expect);
        }
        let inserted = r#"{"z":0, "a": 1, "b": {"c": [1,2]}, "d": "x" }"#;
        check(&|s| s.insert(&text, &object.span(), b"\"z\":0"), inserted);
        check(&|s| s.set(&text, &object, "z", "0"), inserted);
        check(&|s| s.set(&text, &object, "a", "7"), replaced);
    }

    #[test]
    fn the_outline_is_what_walks_find() {
        for text in [
            r#" {"a" : 1 , "p":{"b":[{"c":1}],"d":"x\"y", "\u0065":{"f":{}}}, "g":[{"h":1}], "i": {} ,"j":null}"#,
            r#"{"a":{},"b":[],"c":[[]],"d":{"e":{},"f":true}}"#,
            r#"[{"a":1}]"#,
            "{}",
            "7",
        ] {
            let text = text.as_bytes();
            let mut heard = Vec::new();
            outline(text, 8, |parent, key, value| {
                heard.push((parent, key, value))
            })
            .expect("JSON");
            let mut found = Vec::new();
            for outer in members(text, trimmed(text)) {
                for inner in members(text, outer.value.clone()) {
                    found.push((
                        Some(&text[outer.key.clone()]),
                        &text[inner.key],
                        inner.value,
                    ));
                }
                found.push((None, &text[outer.key], outer.value));
            }
            assert_eq!(heard, found, "{}", String::from_utf8_lossy(text));
        }
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
                Ok(()) => prop_assert!(
                    theirs.is_ok()
                        || !matches!(without_lone_surrogates(text.as_bytes()), Cow::Borrowed(_))
                        || theirs.as_ref().is_err_and(|e| e.to_string().contains("out of range")),
                    "{text}: {theirs:?}"
                ),
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
