//! An estimate of the number of tokens of a text.

/// Approximate number of tokens of `text` for a language model.
///
/// The rule imitates byte pair encodings with large vocabularies. A word is a token, together with a space before it, and
/// long words are a token for every ten letters. So are three digits, four neighbouring punctuation marks, and four bytes
/// of characters that are not ASCII. Over the 527 definitions in `data/`, the sum is within 1 % of that of `o200k_base` and
/// of `cl100k_base`; nine of ten single definitions are between 5 % below and 12 % above.
pub fn tokens(text: &[u8]) -> usize {
    runs(text).map(|run| run.tokens).sum()
}

/// Returns whether [`tokens`] of the text are at most `most`. Reads only as much of the text as it needs to know that.
pub fn has_at_most(text: &[u8], most: usize) -> bool {
    // A token has at least one byte.
    if text.len() <= most {
        return true;
    }
    let mut left = most;
    runs(text).all(|run| match left.checked_sub(run.tokens) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    })
}

/// The length, in bytes, of the longest beginning of the text with at most `most` tokens. It may end within a character.
pub fn beginning(text: &[u8], most: usize) -> usize {
    let (mut left, mut end) = (most, 0);
    for run in runs(text) {
        if run.tokens > left {
            return end + left.saturating_mul(run.per_token).min(run.bytes);
        }
        left -= run.tokens;
        end += run.bytes;
    }
    end
}

/// Neighbouring characters of one kind.
struct Run {
    bytes: usize,
    per_token: usize,
    tokens: usize,
}

fn runs(mut rest: &[u8]) -> impl Iterator<Item = Run> {
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let (kind, per_token) = match first {
            b'a'..=b'z' | b'A'..=b'Z' => (Kind::Letter, 10),
            b'0'..=b'9' => (Kind::Digit, 3),
            0x80.. => (Kind::Wide, 4),
            b' ' | b'\t' | b'\r' | b'\n' => (Kind::Space, 16),
            _ => (Kind::Mark, 4),
        };
        let bytes = rest
            .iter()
            .take_while(|byte| Kind::of(**byte) == kind)
            .count();
        rest = &rest[bytes..];
        // A single space belongs to the next word.
        let is_free = kind == Kind::Space && bytes == 1;
        let tokens = if is_free {
            0
        } else {
            bytes.div_ceil(per_token)
        };
        Some(Run {
            bytes,
            per_token,
            tokens,
        })
    })
}

#[derive(PartialEq, Eq)]
enum Kind {
    Letter,
    Digit,
    Wide,
    Space,
    Mark,
}

impl Kind {
    fn of(byte: u8) -> Self {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => Self::Letter,
            b'0'..=b'9' => Self::Digit,
            0x80.. => Self::Wide,
            b' ' | b'\t' | b'\r' | b'\n' => Self::Space,
            _ => Self::Mark,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{beginning, has_at_most, tokens};

    /// Texts with their number of tokens in `o200k_base`, and how far the estimate may be from it.
    const COUNTED: &[(usize, usize, &str)] = &[
        (0, 0, ""),
        (1, 0, "a"),
        (
            14,
            0,
            "Returns the weather forecast for a city, for up to seven days.",
        ),
        (
            50,
            5,
            r#"{"name":"create_issue","description":"Opens an issue in a repository.","inputSchema":{"type":"object","properties":{"title":{"type":"string"},"labels":{"type":"array","items":{"type":"string"}}},"required":["title"]}}"#,
        ),
        (12, 5, "使用必应搜索指定的关键词，并返回搜索结果列表"),
        (
            14,
            2,
            "Die Wettervorhersage für eine Stadt, für bis zu sieben Tage",
        ),
    ];

    #[test]
    fn estimates_are_near_to_a_tokenizer() {
        for (counted, error, text) in COUNTED {
            let estimate = tokens(text.as_bytes());
            assert!(
                estimate.abs_diff(*counted) <= *error,
                "{estimate} for {counted}: {text}"
            );
        }
    }
    #[test]
    fn a_beginning_has_the_tokens_asked_for() {
        for (_, _, text) in COUNTED {
            let text = text.as_bytes();
            let all = tokens(text);
            for most in 0..all + 3 {
                assert_eq!(has_at_most(text, most), all <= most, "{most} of {all}");
                let end = beginning(text, most);
                assert_eq!(end == text.len(), all <= most, "{most} of {all}");
                assert!(tokens(&text[..end]) <= most, "{most} of {all}");
            }
        }
    }
}
