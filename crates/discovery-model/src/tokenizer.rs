//! Splits text into the tokens of a BERT vocabulary without upper case (WordPiece).

use std::collections::HashMap;

use unicode_normalization::{UnicodeNormalization as _, char::is_combining_mark};

/// Bytes of a text that are read.
const MAX_TEXT_BYTES: usize = 16 << 10;

/// A word with more characters is unknown.
const MAX_WORD_CHARS: usize = 100;

pub(crate) struct Tokenizer {
    tokens: HashMap<Box<str>, u32>,
    /// The tokens before and after each text, and the one for unknown words.
    first: u32,
    last: u32,
    unknown: u32,
}

impl Tokenizer {
    /// `tokens` has one token per line. Returns `None` if a special token is missing.
    pub(crate) fn new(tokens: &str) -> Option<Self> {
        let tokens: HashMap<Box<str>, u32> = tokens.lines().map(Box::from).zip(0..).collect();
        let special = |name: &str| tokens.get(name).copied();
        Some(Self {
            first: special("[CLS]")?,
            last: special("[SEP]")?,
            unknown: special("[UNK]")?,
            tokens,
        })
    }

    /// The tokens of a text, at most `limit`, which is at least 2.
    pub(crate) fn tokens(&self, text: &str, limit: usize) -> Vec<u32> {
        self.parts(&[text], limit).0
    }

    /// The tokens of a text that consists of `parts`, and where each part ends in them.
    pub(crate) fn parts(&self, parts: &[&str], limit: usize) -> (Vec<u32>, Vec<usize>) {
        let mut tokens = vec![self.first];
        let mut ends = Vec::new();
        for part in parts {
            self.append(part, limit, &mut tokens);
            tokens.truncate(limit - 1);
            ends.push(tokens.len());
        }
        tokens.push(self.last);
        (tokens, ends)
    }

    /// Appends the tokens of `text`. There can be a few more than `limit`.
    fn append(&self, text: &str, limit: usize, tokens: &mut Vec<u32>) {
        let text = &text[..text.floor_char_boundary(MAX_TEXT_BYTES)];
        let mut word = String::new();
        let letters = text
            .chars()
            .filter(|letter| !is_removed(*letter))
            .flat_map(char::to_lowercase)
            .nfd()
            .filter(|letter| !is_combining_mark(*letter));
        for letter in letters {
            if tokens.len() >= limit {
                break;
            }
            if letter.is_whitespace() {
                self.pieces(&mut word, tokens);
            } else if is_punctuation(letter) || is_ideograph(letter) {
                self.pieces(&mut word, tokens);
                word.push(letter);
                self.pieces(&mut word, tokens);
            } else {
                word.push(letter);
            }
        }
        self.pieces(&mut word, tokens);
    }

    /// Appends the longest tokens that make up `word`, and empties it.
    fn pieces(&self, word: &mut String, tokens: &mut Vec<u32>) {
        let before = tokens.len();
        let mut rest = word.as_str();
        let mut piece = String::new();
        if rest.chars().nth(MAX_WORD_CHARS).is_some() {
            tokens.push(self.unknown);
            rest = "";
        }
        while !rest.is_empty() {
            let ends = rest
                .char_indices()
                .rev()
                .map(|(at, letter)| at + letter.len_utf8());
            let found = ends.into_iter().find_map(|end| {
                piece.clear();
                if rest.len() < word.len() {
                    piece.push_str("##");
                }
                piece.push_str(&rest[..end]);
                Some((end, *self.tokens.get(piece.as_str())?))
            });
            let Some((end, token)) = found else {
                tokens.truncate(before);
                tokens.push(self.unknown);
                break;
            };
            tokens.push(token);
            rest = &rest[end..];
        }
        word.clear();
    }
}

/// Control characters, and the common ones without a shape.
fn is_removed(letter: char) -> bool {
    letter.is_control() && !letter.is_whitespace()
        || matches!(letter,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fffd}')
}

/// Punctuation of ASCII in the sense of the vocabulary, which includes symbols, and the common ones beyond it.
fn is_punctuation(letter: char) -> bool {
    letter.is_ascii_punctuation()
        || matches!(letter,
            '\u{a1}' | '\u{a7}' | '\u{ab}' | '\u{b6}' | '\u{b7}' | '\u{bb}' | '\u{bf}'
            | '\u{2010}'..='\u{2027}' | '\u{2030}'..='\u{205e}'
            | '\u{3001}'..='\u{3003}' | '\u{3008}'..='\u{3011}' | '\u{3014}'..='\u{301f}'
            | '\u{ff01}'..='\u{ff0f}' | '\u{ff1a}'..='\u{ff1b}' | '\u{ff1f}' | '\u{ff3b}' | '\u{ff3d}' | '\u{ff5b}' | '\u{ff5d}')
}

/// Characters that form a word alone.
fn is_ideograph(letter: char) -> bool {
    matches!(letter,
        '\u{4e00}'..='\u{9fff}' | '\u{3400}'..='\u{4dbf}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{2fa1f}')
}
