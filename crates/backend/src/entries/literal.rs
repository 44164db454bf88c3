//! Finds the secrets in an entry.
//!
//! A *literal* is a value that is written in the entry. `${NAME}` only refers to a variable and is never a secret.
//! Literals are secrets
//!
//! - in `env` and `headers`, whatever their names, and under keys such as `clientSecret`;
//! - after an option, in a variable or in a header whose name indicates it: `--api-key=…`, `--token …`, `-e KEY=…`, `-H
//!   "Authorization: …"`;
//! - in a URL: the password, parameters with such a name, and random-looking parts of the address of a remote server;
//! - if they begin like well-known tokens (`sk-…`, `ghp_…`).

use std::{collections::BTreeSet, ops::Range};

use serde_json::Value;

/// The text shown in place of a secret.
pub(super) const MASK: &str = "•••";

/// Marks a sealed literal in a row. Contains only characters that need no escaping in a URL, an argument or a header.
pub(super) const SEALED: &str = "~sealed1~";
/// Objects whose values are all secrets.
const HOLDERS: &[&str] = &["env", "envs", "environment", "headers", "http_headers"];
/// Keys whose values are secrets although they do not end in one of [`SECRET_ENDINGS`].
const SECRET_KEYS: &[&str] = &["assertion"];
/// Keys that contain the address of a remote server.
const URLS: &[&str] = &["url", "serverUrl", "httpUrl"];
/// Words in the name of an option, a variable, a header or a parameter that make its value a secret.
const SECRET_WORDS: &[&str] = &[
    "apikey",
    "auth",
    "authorization",
    "bearer",
    "cookie",
    "credential",
    "credentials",
    "jwt",
    "key",
    "pass",
    "passphrase",
    "passwd",
    "password",
    "pat",
    "pwd",
    "secret",
    "sig",
    "signature",
    "token",
];
/// Endings that make the value a secret in names without separators (`clientSecret`, `dbpassword`).
const SECRET_ENDINGS: &[&str] = &[
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "apikey",
    "privatekey",
    "secretkey",
    "accesskey",
];
/// Options whose value is a header.
const HEADER_OPTIONS: &[&str] = &["-H", "--header", "--headers"];
/// Options whose value is a variable (`docker run`).
const VARIABLE_OPTIONS: &[&str] = &["-e", "--env"];
/// Options whose value is `user:password` (`curl`).
const USER_OPTIONS: &[&str] = &["-u", "--user", "--proxy-user"];
/// Prefixes of well-known tokens.
const TOKEN_PREFIXES: &[&str] = &[
    "sk-",
    "sk_",
    "pk_live_",
    "rk_live_",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "xapp-",
    "AKIA",
    "AIza",
    "eyJ",
    "hf_",
    "npm_",
    "lin_api_",
    "ntn_",
    "secret_",
    "tvly-",
    "fc-",
];
/// Minimum bytes of a text that counts as a token because of its prefix.
const MIN_TOKEN_BYTES: usize = 16;
/// Minimum consecutive letters and digits for a part of an address to count as random.
const MIN_RANDOM_BYTES: usize = 16;
/// Words before a `${NAME}` that are not secrets.
const SCHEMES: &[&str] = &["", "Bearer", "Basic", "Token", "token"];

/// A secret in an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// JSON pointer to the value that is or contains the secret.
    pub pointer: String,
    /// The variable, header, option or key that it belongs to, if it has a name.
    pub name: Option<String>,
    /// Whether the name or the form indicates a secret. If not, the value is a secret only because it is in `env` or
    /// `headers`, where all values are.
    pub is_evident: bool,
}

/// The secrets of an entry, in order.
pub fn found(entry: &Value) -> Vec<Found> {
    let mut all = Vec::new();
    map(entry, &mut |literal| {
        all.push(Found {
            pointer: literal.pointer.to_owned(),
            name: literal.name.map(str::to_owned),
            is_evident: literal.is_evident(),
        });
        None
    });
    all
}

/// The secrets that the server's logs and responses must not contain. Other values of `env` and `headers` are too
/// common to be redacted there.
pub fn evident(entry: &Value) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    map(entry, &mut |literal| {
        if literal.is_evident() {
            all.insert(literal.text.to_owned());
        }
        None
    });
    all
}

/// One secret, as passed to the callback of [`map`].
pub(super) struct Literal<'a> {
    pub(super) pointer: &'a str,
    pub(super) name: Option<&'a str>,
    /// The value. Numbers and booleans are written as JSON.
    pub(super) text: &'a str,
}

impl Literal<'_> {
    /// Returns true if its name or its form indicates a secret.
    fn is_evident(&self) -> bool {
        let names_one = |name| names_secret(name) || SECRET_KEYS.contains(&name);
        self.name.is_none_or(names_one) || is_token(self.text)
    }
}

/// A copy of an entry in which `replace` has replaced secrets; `None` leaves one unchanged.
pub(super) fn map(
    value: &Value,
    replace: &mut impl FnMut(&Literal<'_>) -> Option<String>,
) -> Value {
    let mut pointer = String::new();
    walk(value, &mut pointer, Place::default(), replace)
}

/// The context of a value in the entry.
#[derive(Clone, Copy, Default)]
struct Place<'a> {
    is_secret: bool,
    is_url: bool,
    name: Option<&'a str>,
    /// The argument before this one.
    option: Option<&'a str>,
}

fn walk(
    value: &Value,
    pointer: &mut String,
    place: Place<'_>,
    replace: &mut impl FnMut(&Literal<'_>) -> Option<String>,
) -> Value {
    let length = pointer.len();
    match value {
        Value::Object(members) => {
            let mut mapped = serde_json::Map::new();
            for (key, value) in members {
                pointer.push('/');
                pointer.push_str(&escaped(key));
                let place = Place {
                    is_secret: place.is_secret || key_is_secret(key, value),
                    is_url: URLS.contains(&key.as_str()),
                    name: Some(key),
                    option: None,
                };
                mapped.insert(key.clone(), walk(value, pointer, place, replace));
                pointer.truncate(length);
            }
            Value::Object(mapped)
        }
        Value::Array(items) => {
            let mut mapped = Vec::with_capacity(items.len());
            for (at, value) in items.iter().enumerate() {
                pointer.push_str(&format!("/{at}"));
                let option = at.checked_sub(1).and_then(|at| items[at].as_str());
                let option = option.filter(|option| option.starts_with('-'));
                let is_value = value.as_str().is_some_and(|text| !text.starts_with('-'));
                let follows = option.filter(|option| is_value && option_is_secret(option));
                let place = Place {
                    is_secret: place.is_secret || follows.is_some(),
                    name: follows.map(|option| option.trim_start_matches('-')),
                    option,
                    ..Place::default()
                };
                mapped.push(walk(value, pointer, place, replace));
                pointer.truncate(length);
            }
            Value::Array(mapped)
        }
        value if place.is_secret => {
            if !is_literal(value) {
                return value.clone();
            }
            let written = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let literal = Literal {
                pointer,
                name: place.name,
                text: &written,
            };
            replace(&literal).map_or_else(|| value.clone(), Value::String)
        }
        Value::String(text) => {
            let mut mapped = String::with_capacity(text.len());
            let mut end = 0;
            for part in secret_parts(text, place.option, place.is_url) {
                let literal = Literal {
                    pointer,
                    name: part.name,
                    text: &text[part.range.clone()],
                };
                mapped.push_str(&text[end..part.range.start]);
                match replace(&literal) {
                    Some(other) => mapped.push_str(&other),
                    None => mapped.push_str(literal.text),
                }
                end = part.range.end;
            }
            mapped.push_str(&text[end..]);
            mapped.into()
        }
        value => value.clone(),
    }
}

pub(super) fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn key_is_secret(key: &str, value: &Value) -> bool {
    let folded = key.to_ascii_lowercase().replace(['_', '-'], "");
    let is_text = value.is_string();
    HOLDERS.contains(&key)
        || SECRET_KEYS.contains(&key)
        || (is_text && SECRET_ENDINGS.iter().any(|ending| folded.ends_with(ending)))
}

/// Returns true if an option, a variable, a header or a parameter with this name contains a secret.
pub(super) fn names_secret(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let mut words = lower.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.any(|word| SECRET_WORDS.contains(&word) || ends_in_secret(word))
}

fn ends_in_secret(word: &str) -> bool {
    SECRET_ENDINGS.iter().any(|ending| word.ends_with(ending))
}

/// Returns true if the argument after this option is a secret.
fn option_is_secret(option: &str) -> bool {
    option.starts_with('-') && !option.contains(['=', ' ']) && names_secret(option)
}

/// A secret in a text.
#[derive(Debug, PartialEq, Eq)]
struct Part<'t> {
    range: Range<usize>,
    name: Option<&'t str>,
}

/// The secrets in an argument or a URL, in order and without overlaps. `option` is the argument before it.
fn secret_parts<'t>(text: &'t str, option: Option<&str>, is_url: bool) -> Vec<Part<'t>> {
    let mut scan = Scan {
        text,
        is_url,
        parts: Vec::new(),
    };
    let is_one = |options: &[&str]| option.is_some_and(|option| options.contains(&option));
    if is_one(HEADER_OPTIONS)
        && let Some((name, at)) = header(text)
    {
        scan.add(at..text.len(), Some(name));
    } else if is_one(VARIABLE_OPTIONS)
        && let Some((name, at)) = assignment(text)
    {
        scan.add(at..text.len(), Some(name));
    } else if is_one(USER_OPTIONS)
        && let Some((_, password)) = text.split_once(':')
    {
        scan.add(text.len() - password.len()..text.len(), Some("password"));
    } else {
        scan.value(0);
    }
    let mut parts = scan.parts;
    parts.retain(|part| !part.range.is_empty() && is_literal(&text[part.range.clone()].into()));
    parts.sort_by_key(|part| (part.range.start, std::cmp::Reverse(part.range.end)));
    let mut end = 0;
    parts.retain(|part| {
        let is_apart = part.range.start >= end;
        if is_apart {
            end = part.range.end;
        }
        is_apart
    });
    parts
}

/// `NAME=…`: the name, and the offset of the value.
fn assignment(text: &str) -> Option<(&str, usize)> {
    let at = text.find(['=', '/', '?', ' ', ':', '"', '\''])?;
    text[at..].starts_with('=').then(|| (&text[..at], at + 1))
}

/// `NAME: …`: the name, and the offset of the value.
fn header(text: &str) -> Option<(&str, usize)> {
    let (name, value) = text.split_once(':')?;
    let is_name = !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let at = text.len() - value.trim_start().len();
    (is_name && !value.starts_with("//")).then_some((name, at))
}

struct Scan<'t> {
    text: &'t str,
    is_url: bool,
    parts: Vec<Part<'t>>,
}

impl<'t> Scan<'t> {
    fn add(&mut self, range: Range<usize>, name: Option<&'t str>) {
        self.parts.push(Part { range, name });
    }

    /// Scans the text from `from` on as one value.
    fn value(&mut self, from: usize) {
        let rest = &self.text[from..];
        if let Some((name, at)) = assignment(rest) {
            let bare = name.trim_start_matches('-');
            return match names_secret(bare) {
                true => self.add(from + at..self.text.len(), Some(bare)),
                false => self.value(from + at),
            };
        }
        if let Some((name, at)) = header(rest)
            && names_secret(name)
        {
            return self.add(from + at..self.text.len(), Some(name));
        }
        self.words(from);
    }

    /// Scans the text from `from` on word by word, such as a command line for a shell.
    fn words(&mut self, from: usize) {
        let text = self.text;
        let is_end = |letter: char| letter.is_whitespace() || "\"'`;,()".contains(letter);
        let mut expects: Option<&'t str> = None;
        let mut start = from;
        for word in text[from..].split_inclusive(is_end) {
            let bare = word.trim_end_matches(is_end);
            let range = start..start + bare.len();
            start += word.len();
            if bare.is_empty() {
                continue;
            }
            if let Some(option) = expects.take().filter(|_| !bare.starts_with('-')) {
                self.add(range, Some(option));
                continue;
            }
            if let Some(name) = bare.strip_suffix(':').filter(|name| names_secret(name)) {
                // A header within a longer text. Its value extends to the closing quote.
                let tail = &text[range.end..];
                let end = tail.find(['"', '\'']).unwrap_or(tail.len());
                let value = tail[..end].trim_start();
                let at = range.end + end - value.len();
                self.add(at..range.end + end, Some(name));
                continue;
            }
            expects = option_is_secret(bare).then(|| bare.trim_start_matches('-'));
            self.word(range);
        }
    }

    fn word(&mut self, range: Range<usize>) {
        let text = self.text;
        let word = &text[range.clone()];
        for (at, _) in word.match_indices(SEALED) {
            let sealed = &word[at + SEALED.len()..];
            let end = sealed
                .find(|letter: char| !letter.is_ascii_alphanumeric() && !"-_".contains(letter))
                .unwrap_or(sealed.len());
            let start = range.start + at;
            self.add(start..start + SEALED.len() + end, None);
        }
        if range.start > 0
            && let Some((name, at)) = assignment(word)
            && names_secret(name.trim_start_matches('-'))
        {
            return self.add(
                range.start + at..range.end,
                Some(name.trim_start_matches('-')),
            );
        }
        let value = word.rfind('=').map_or(0, |at| at + 1);
        if is_token(&word[value..]) && !word.contains("://") {
            self.add(range.start + value..range.end, None);
        }
        if let Some(scheme) = word.find("://") {
            self.url(range.start + scheme + "://".len()..range.end);
        }
    }

    /// Scans the authority of a URL and the rest of it.
    fn url(&mut self, range: Range<usize>) {
        let text = self.text;
        let of = |at: usize, ends: &[char]| {
            text[at..range.end]
                .find(ends)
                .map_or(range.end, |found| at + found)
        };
        let host_ends = of(range.start, &['/', '?', '#']);
        if let Some(at) = text[range.start..host_ends].rfind('@') {
            let user = &text[range.start..range.start + at];
            // A user without a password is often a token.
            let start = user.find(':').map_or(0, |colon| colon + 1);
            self.add(range.start + start..range.start + at, Some("password"));
        }
        let path_ends = of(host_ends, &['?', '#']);
        let mut start = host_ends;
        for segment in text[host_ends..path_ends].split('/') {
            if (self.is_url && is_random(segment)) || is_token(segment) {
                self.add(start..start + segment.len(), None);
            }
            start += segment.len() + 1;
        }
        let mut start = of(host_ends, &['?']) + 1;
        while start < range.end {
            let end = of(start, &['&', '#']);
            if let Some((name, value)) = text[start..end].split_once('=')
                && (names_secret(name)
                    || name == "code"
                    || is_token(value)
                    || (self.is_url && is_random(value)))
            {
                self.add(end - value.len()..end, Some(name));
            }
            start = end + 1;
        }
    }
}

/// Returns true if a word begins like a well-known token.
fn is_token(word: &str) -> bool {
    word.len() >= MIN_TOKEN_BYTES && TOKEN_PREFIXES.iter().any(|start| word.starts_with(start))
}

/// Returns true for a part of an address that looks generated: a UUID, or a long run of letters and digits.
fn is_random(part: &str) -> bool {
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let lengths: Vec<usize> = part.split('-').map(str::len).collect();
    if lengths == [8, 4, 4, 4, 12] && part.split('-').all(is_hex) {
        return true;
    }
    part.split(|letter: char| !letter.is_ascii_alphanumeric())
        .any(|run| {
            let digits = run.bytes().filter(u8::is_ascii_digit).count();
            run.len() >= MIN_RANDOM_BYTES && digits >= 2 && run.len() - digits >= 2
        })
}

/// The address of a remote server without its secrets, for lists.
pub fn masked_url(url: &str) -> String {
    let mut masked = url.to_owned();
    for part in secret_parts(url, None, true).into_iter().rev() {
        masked.replace_range(part.range, MASK);
    }
    masked
}

/// Returns true if a value contains more than references to variables.
pub(super) fn is_literal(value: &Value) -> bool {
    let Some(text) = value.as_str() else {
        return !value.is_null();
    };
    let mut rest = text;
    let mut literal = String::new();
    while let Some((before, form)) = rest.split_once("${") {
        literal.push_str(before);
        let Some((form, tail)) = form.split_once('}') else {
            return true;
        };
        let mut prefixes = ["env:", "login:", "header:"].iter();
        let name = prefixes.find_map(|prefix| form.strip_prefix(prefix));
        if !name
            .unwrap_or(form)
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        {
            return true;
        }
        rest = tail;
    }
    literal.push_str(rest);
    !SCHEMES.contains(&literal.trim()) || (rest == text && !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Vec<&str> {
        let parts = secret_parts(text, None, false);
        parts.into_iter().map(|part| &text[part.range]).collect()
    }

    #[test]
    fn secrets_in_arguments() {
        for (text, expect) in [
            ("--api-key=s1", vec!["s1"]),
            ("--apiKey=s1", vec!["s1"]),
            ("--dbPassword=s1", vec!["s1"]),
            ("--env=API_KEY=s1", vec!["s1"]),
            ("API_KEY=s1 with spaces", vec!["s1 with spaces"]),
            ("DATABASE_URL=postgres://u:s1@db/x", vec!["s1"]),
            ("Authorization: Bearer s1", vec!["Bearer s1"]),
            ("Authorization:s1", vec!["s1"]),
            ("--header=X-Api-Key: s1", vec!["s1"]),
            ("exec server --token s1 --port 1", vec!["s1"]),
            ("TOKEN=s1 exec server", vec!["s1 exec server"]),
            ("exec env TOKEN=s1 server", vec!["s1"]),
            (
                "curl -H \"Authorization: Bearer s1\" https://u:s2@h/?key=s3",
                vec!["Bearer s1", "s2", "s3"],
            ),
            ("https://h/?code=s1&n=1#x", vec!["s1"]),
            ("sk-0123456789abcdef", vec!["sk-0123456789abcdef"]),
            ("~sealed1~AAAA", vec!["~sealed1~AAAA"]),
            ("--key=${KEY}", vec![]),
            ("postgres://u:${PW}@db/x?sslmode=off", vec![]),
            ("--keyboard=de", vec![]),
            ("monkey=1", vec![]),
            ("a b=c", vec![]),
            ("sk-short", vec![]),
            ("https://example.com/0123456789abcdef0123", vec![]),
            ("C:\\program", vec![]),
        ] {
            assert_eq!(parts(text), expect, "{text}");
        }
        for (option, text, expect) in [
            ("-H", "X-Custom: s1", "s1"),
            ("--header", "X-Custom:s1", "s1"),
            ("-e", "PLACE=s1", "s1"),
            ("-u", "me:s1", "s1"),
        ] {
            let parts = secret_parts(text, Some(option), false);
            assert_eq!(&text[parts[0].range.clone()], expect, "{option} {text}");
        }
    }

    #[test]
    fn random_parts_of_an_address() {
        for (url, expect) in [
            ("https://h.example/mcp", "https://h.example/mcp"),
            (
                "https://h.example/2025-06-18/some-long-name-of-a-server",
                "https://h.example/2025-06-18/some-long-name-of-a-server",
            ),
            (
                "https://h.example/s/0a1b2c3d4e5f6071829a/mcp",
                "https://h.example/s/•••/mcp",
            ),
            (
                "https://h.example/01234567-89ab-cdef-0123-456789abcdef",
                "https://h.example/•••",
            ),
            (
                "https://u@h.example/?profile=x",
                "https://•••@h.example/?profile=x",
            ),
        ] {
            assert_eq!(masked_url(url), expect);
        }
    }
}
