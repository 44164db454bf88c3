//! The text of a configuration file: positions and excerpts for messages.
//!
//! Invariant: an excerpt shows keys and punctuation, and only those values that the caller declared harmless.
//! Everything else (values, comments, stray words) is replaced by `…`, because it may be a secret. In a file that does
//! not parse, a value can look like a key, so only known words are shown.

use std::cell::Cell;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::keys::ENTRY_KEYS;

/// Maximum number of line lookups in one file. Each one scans the text again, which would take very long in a
/// large file full of problems.
const MAX_PLACES: usize = 400;
/// Maximum length of an excerpt, in characters. A minified file is a single line.
const MAX_EXCERPT_CHARS: usize = 100;

/// The syntax for splitting a line into tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    Json,
    Toml,
}

/// The parts of a line that an excerpt shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Only known words, because the file does not parse.
    Words,
    /// Only keys, because the text at the position of the problem may be a secret.
    Keys,
    /// Keys, and the token at the position of the problem.
    Place,
}

/// Keys that every excerpt may show, in addition to the known keys of entries and settings.
const CONTAINER_KEYS: &[&str] = &[
    "mcpServers",
    "servers",
    "context_servers",
    "mcp",
    "inputs",
    "source",
    "settings",
];

#[derive(Debug)]
pub struct Source {
    pub path: PathBuf,
    pub text: String,
    syntax: Syntax,
    /// The number of lookups that are left.
    places_left: Cell<usize>,
}

/// Line and column, both counted from 1. The column counts characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

/// A masked line, and the columns to underline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    pub line: String,
    pub carets: Range<usize>,
}

impl Source {
    pub fn new(path: &Path, text: String, syntax: Syntax) -> Self {
        // Editors on Windows add a byte order mark, which the parsers reject.
        let text = match text.strip_prefix('\u{feff}') {
            Some(rest) => rest.to_owned(),
            None => text,
        };
        Self {
            path: path.to_owned(),
            text,
            syntax,
            places_left: Cell::new(MAX_PLACES),
        }
    }

    /// Returns whether the place of another problem may be looked up. Each one scans the text.
    pub fn may_locate(&self) -> bool {
        let left = self.places_left.get();
        self.places_left.set(left.saturating_sub(1));
        left > 0
    }

    pub fn position(&self, offset: usize) -> Position {
        let before = &self.text[..self.boundary(offset)];
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        Position {
            line: before.matches('\n').count() + 1,
            column: before[start..].chars().count() + 1,
        }
    }

    /// The line in which the span begins.
    pub fn excerpt(&self, span: &Range<usize>, show: Show) -> Excerpt {
        let at = self.boundary(span.start);
        let start = self.text[..at].rfind('\n').map_or(0, |at| at + 1);
        let line = self.text[start..].lines().next().unwrap_or_default();
        let span = at - start..self.boundary(span.end.max(at)) - start;
        let tokens = match self.syntax {
            Syntax::Json => json_tokens(line, show),
            Syntax::Toml => toml_tokens(line),
        };
        mask(line, &tokens, &span, show == Show::Place)
    }

    fn boundary(&self, offset: usize) -> usize {
        let mut at = offset.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        at
    }
}

/// A token of a line, and whether it is always shown.
struct Token {
    range: Range<usize>,
    open: bool,
}

fn mask(line: &str, tokens: &[Token], span: &Range<usize>, harmless: bool) -> Excerpt {
    let mut shown: Vec<char> = Vec::new();
    let mut carets: Option<Range<usize>> = None;
    let mut gap: Option<Range<usize>> = None;
    for token in tokens {
        let touched =
            token.range.start < span.end.max(span.start + 1) && span.start < token.range.end;
        let from = shown.len();
        let text = &line[token.range.clone()];
        if token.open || (touched && harmless) {
            shown.extend(text.chars().map(|c| if c.is_control() { ' ' } else { c }));
        } else if text.starts_with('"') {
            shown.extend("\"…\"".chars());
        } else {
            shown.push('…');
        }
        let end = shown.len();
        if touched && text.trim().is_empty() {
            gap = gap.or(Some(from..end));
        } else if touched {
            carets = Some(carets.map_or(from..end, |c| c.start..end));
        }
    }
    let end = shown.len();
    let carets = carets.or(gap).unwrap_or(end..end + 1);
    window(&shown, carets)
}

/// Truncates a long line around the carets.
fn window(shown: &[char], carets: Range<usize>) -> Excerpt {
    let indent = shown.iter().take_while(|c| c.is_whitespace()).count();
    let from = if carets.start.saturating_sub(indent) > MAX_EXCERPT_CHARS * 2 / 3 {
        carets.start - MAX_EXCERPT_CHARS / 3
    } else {
        indent.min(carets.start)
    };
    let to = shown.len().min(from + MAX_EXCERPT_CHARS);
    let head = if from > indent { "…" } else { "" };
    let tail = if to < shown.len() { "…" } else { "" };
    let body: String = shown[from.min(to)..to].iter().collect();
    let shift = head.chars().count();
    let start = carets.start - from + shift;
    let end = (carets.end.min(to + 1).max(carets.start + 1)) - from + shift;
    Excerpt {
        line: format!("{head}{}{tail}", body.trim_end()),
        carets: start..end,
    }
}

fn json_tokens(line: &str, show: Show) -> Vec<Token> {
    let bytes = line.as_bytes();
    let mut tokens: Vec<Token> = Vec::new();
    let mut at = 0;
    // Whether a string at this position can be a key: at the start, or after `{` or `,`.
    let mut key_place = true;
    while at < bytes.len() {
        let start = at;
        let mut open = false;
        match bytes[at] {
            b'"' => {
                at = string_end(bytes, at);
                let rest = line[at..].trim_start();
                let closed = at > start + 1 && bytes[at - 1] == b'"';
                let known = || {
                    let key = line[start..at].trim_matches('"');
                    ENTRY_KEYS.contains(&key) || CONTAINER_KEYS.contains(&key)
                };
                open = key_place
                    && closed
                    && rest.starts_with(':')
                    && (show != Show::Words || known());
                key_place = false;
            }
            b'{' | b',' => {
                at += 1;
                (open, key_place) = (true, true);
            }
            b'}' | b'[' | b']' | b':' => {
                at += 1;
                (open, key_place) = (true, false);
            }
            c if c.is_ascii_whitespace() => {
                at += 1;
                open = true;
            }
            b'/' if matches!(bytes.get(at + 1), Some(b'/' | b'*')) => at = bytes.len(),
            _ => {
                while at < bytes.len() && !b"\"{}[]:, \t\r".contains(&bytes[at]) {
                    at += 1;
                }
                open = matches!(&line[start..at], "true" | "false" | "null");
                key_place = false;
            }
        }
        tokens.push(Token {
            range: start..at,
            open,
        });
    }
    tokens
}

/// The index after the closing quote, or the end of the line.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The text before `=` is a key. A line without `=` is a table header or a part of a longer value.
fn toml_tokens(line: &str) -> Vec<Token> {
    let token = |range: Range<usize>, open| Token { range, open };
    let trimmed = line.trim_start();
    let indent = line.len() - trimmed.len();
    if trimmed.starts_with('[') && !trimmed.contains(['"', '\'', '=']) {
        return vec![token(0..indent, true), token(indent..line.len(), true)];
    }
    let Some(equals) = line.find('=') else {
        return vec![token(0..indent, true), token(indent..line.len(), false)];
    };
    let key_end = line[..equals].trim_end().len();
    let gap = line[equals + 1..].len() - line[equals + 1..].trim_start().len();
    let value = equals + 1 + gap;
    vec![
        token(0..indent.min(key_end), true),
        token(indent.min(key_end)..key_end, true),
        token(key_end..value, true),
        token(value..line.len(), false),
    ]
    .into_iter()
    .filter(|token| !token.range.is_empty())
    .collect()
}
