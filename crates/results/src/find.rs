//! Words in a text, with what surrounds them.

use std::fmt::Write as _;

use crate::{bound::Bound, path::shown};

/// Maximum bytes of a word. Bounds the time of a search.
const MAX_WORD: usize = 200;
/// Bytes shown before and after a match, unless the caller asks for another number.
pub(crate) const USUAL_CONTEXT: usize = 100;
const MAX_CONTEXT: usize = 2_000;

/// The offsets of a word, without regard to the case of ASCII letters. Matches do not overlap.
fn matches<'t>(text: &'t str, word: &'t str) -> impl Iterator<Item = usize> + 't {
    let (bytes, word) = (text.as_bytes(), word.as_bytes());
    let first = word[0];
    let starts = memchr::memchr2_iter(
        first.to_ascii_lowercase(),
        first.to_ascii_uppercase(),
        bytes,
    );
    let mut free = 0;
    starts.filter(move |at| {
        let part = bytes.get(*at..at + word.len());
        let is_match = *at >= free && part.is_some_and(|part| part.eq_ignore_ascii_case(word));
        if is_match {
            free = at + word.len();
        }
        is_match
    })
}

/// The matches of a word after the first `skip`, with `context` bytes before and after each, as many as the bound allows.
///
/// # Errors
/// The word is empty or too long.
pub(crate) fn search(
    text: &str,
    word: &str,
    context: usize,
    skip: usize,
    bound: Bound,
) -> Result<String, String> {
    if word.is_empty() || word.len() > MAX_WORD {
        return Err(format!("`search` must have 1 to {MAX_WORD} bytes"));
    }
    let context = context.min(MAX_CONTEXT);
    let longest = format!(
        "{} matches of `{}`; to see more, use skip {}",
        text.len(),
        shown(word),
        text.len()
    );
    let mut room = bound.beside(&longest);
    let (mut count, mut seen) = (0_usize, skip);
    // The line of the offset `counted`, and the end of the last part shown.
    let (mut line, mut counted, mut end) = (1, 0, 0);
    let mut found = String::new();
    let mut is_full = false;
    for at in matches(text, word) {
        count += 1;
        if count <= skip || is_full {
            continue;
        }
        if at + word.len() <= end {
            // Seen in the context of the one before.
            seen = count;
            continue;
        }
        line += memchr::memchr_iter(b'\n', &text.as_bytes()[counted..at]).count();
        counted = at;
        let start = text.ceil_char_boundary(at.saturating_sub(context).max(end));
        let stop = text.floor_char_boundary((at + word.len()).saturating_add(context));
        let head = format!("[match {count}, line {line}, byte {at}] ");
        let mut piece = format!("{head}{}\n", &text[start..stop]);
        if !room.take(&piece) {
            is_full = true;
            if !found.is_empty() {
                continue;
            }
            // The first one is shown as far as possible.
            piece = format!("{head}{}\n", &text[at..stop]);
            piece.truncate(room.head(&piece).len());
        }
        found.push_str(&piece);
        (seen, end) = (count, stop);
    }
    let word = shown(word);
    if count == 0 {
        return Ok(format!("[no match of `{word}` in {} bytes]", text.len()));
    }
    if seen <= skip && skip > 0 {
        return Err(format!(
            "there are {count} matches of `{word}`, so there is none after the first {skip}"
        ));
    }
    let matched = if count == 1 { "match" } else { "matches" };
    let _ = write!(found, "\n[{count} {matched} of `{word}`");
    if seen < count {
        let _ = write!(found, "; to see more, use skip {seen}");
    }
    found.push(']');
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "one error\ntwo\nthree ERROR and error\nüerrorü\n";

    #[test]
    fn matches_have_their_places() {
        let all = search(TEXT, "Error", 4, 0, Bound::Tokens(1_000)).expect("matches");
        let expect = "[match 1, line 1, byte 4] one error\ntwo\n\
                      [match 2, line 3, byte 20] ree ERROR and\n\
                      [match 3, line 3, byte 30]  error\nüe\n\
                      [match 4, line 4, byte 38] rrorü\n";
        // The contexts of the last two touch.
        assert_eq!(all.lines().count(), 9, "{all}");
        assert!(all.starts_with(&expect[..70]), "{all}");
        assert!(all.ends_with("\n[4 matches of `Error`]"), "{all}");
        let later = search(TEXT, "error", 4, 3, Bound::Tokens(1_000)).expect("the last");
        assert!(later.starts_with("[match 4, line 4, byte 38]"), "{later}");
        let none = search(TEXT, "error", 4, 4, Bound::Tokens(1_000)).expect_err("no more");
        assert!(none.contains("there are 4 matches"), "{none}");
        let none = search(TEXT, "x", 4, 0, Bound::Tokens(1_000));
        assert_eq!(none.as_deref(), Ok("[no match of `x` in 46 bytes]"));
    }

    #[test]
    fn more_matches_than_fit_are_read_in_parts() {
        let text: String = (0..500).map(|n| format!("entry {n} of many\n")).collect();
        let (mut skip, mut parts) = (0, 0);
        let bound = Bound::Tokens(250);
        loop {
            let part = search(&text, "entry", 20, skip, bound).expect("a part");
            assert!(bound.fits(&part), "{part}");
            parts += 1;
            match part.rsplit_once("use skip ") {
                Some((_, next)) => {
                    let next = next.trim_end_matches(']').parse().expect("a number");
                    assert!(next > skip);
                    skip = next;
                }
                None => break,
            }
        }
        assert!((5..200).contains(&parts), "{parts}");
    }

    #[test]
    fn hostile_words() {
        let text = "a".repeat(1 << 20);
        for word in ["", &"a".repeat(201)] {
            assert!(search(&text, word, 0, 0, Bound::Tokens(300)).is_err());
        }
        let bound = Bound::Tokens(300);
        let found = search(&text, &"a".repeat(200), usize::MAX, 0, bound).expect("matches");
        assert!(found.contains("[5242 matches of"), "{found}");
        assert!(bound.fits(&found), "{found}");
        let wide = "😀".repeat(100);
        let found = search(&wide, "😀", 1, 0, bound).expect("matches");
        assert!(found.contains("[100 matches"), "{found}");
        let found = search("x", "x", 5_000, 0, Bound::Tokens(0)).expect("something");
        assert!(found.contains("[1 match of `x`]"), "{found}");
    }
}
