//! Parts of a text by bytes and by lines.

use crate::bound::{Bound, noted};

/// Bytes `offset..offset + length` of a text, extended or reduced to whole characters. `whole`: the length of the text
/// before its end was left out.
pub(crate) fn bytes(
    text: &str,
    whole: usize,
    offset: usize,
    length: usize,
    bound: Bound,
) -> Result<String, String> {
    if offset >= text.len() && !(offset == 0 && text.is_empty()) {
        let bytes = text.len();
        return Err(format!(
            "there are {bytes} bytes, so there is nothing at the offset {offset}"
        ));
    }
    let start = text.floor_char_boundary(offset);
    let end = text.floor_char_boundary(start.saturating_add(length));
    let longest =
        format!("bytes {whole} to {whole} of {whole}; to read on, use the offset {whole}");
    let piece = bound.beside(&longest).head(&text[start..end]);
    let end = match start + piece.len() {
        // At least one character, even if its encoding is longer than `length`.
        end if end == start && start < text.len() => text.ceil_char_boundary(start + 1),
        end => end,
    };
    let note = note(start, end, text.len(), whole);
    Ok(noted(&text[start..end], &note))
}

fn note(start: usize, end: usize, there: usize, whole: usize) -> String {
    let rest = match end < there {
        true => format!("to read on, use the offset {end}"),
        false if there < whole => "the rest was not kept".to_owned(),
        false => "this is the end".to_owned(),
    };
    format!("bytes {start} to {end} of {whole}; {rest}")
}

/// `count` lines of a text from the line `first`. The first line has the number 1.
pub(crate) fn lines(
    text: &str,
    first: usize,
    count: usize,
    bound: Bound,
) -> Result<String, String> {
    let bytes = text.as_bytes();
    let ends = || memchr::memchr_iter(b'\n', bytes).map(|at| at + 1);
    let end_of_last = text.len();
    let total = ends().filter(|end| *end < end_of_last).count() + 1;
    let first = first.max(1);
    if first > total {
        return Err(format!(
            "there are {total} lines, so there is no line {first}"
        ));
    }
    let start = match first {
        1 => 0,
        first => ends().nth(first - 2).unwrap_or(end_of_last),
    };
    let wanted = count.clamp(1, total + 1 - first);
    let mut rest = memchr::memchr_iter(b'\n', &bytes[start..]).map(|at| start + at + 1);
    let end = rest.nth(wanted - 1).unwrap_or(end_of_last);
    let longest = format!(
        "the beginning of line {total} of {total}, which is long; to read on, use the offset {end}"
    );
    let piece = bound.beside(&longest).head(&text[start..end]);
    let (piece, note) = if start + piece.len() == end {
        (piece, line_note(first, wanted, total))
    } else {
        // Whole lines, or else a part of the first.
        match piece.rfind('\n') {
            Some(last) => {
                let piece = &piece[..=last];
                let shown = memchr::memchr_iter(b'\n', piece.as_bytes()).count();
                (piece, line_note(first, shown, total))
            }
            None => {
                let next = start + piece.len();
                let note = format!(
                    "the beginning of line {first} of {total}, which is long; to read on, use the offset {next}"
                );
                (piece, note)
            }
        }
    };
    Ok(noted(piece.trim_end_matches('\n'), &note))
}

fn line_note(first: usize, count: usize, total: usize) -> String {
    let last = first + count - 1;
    let rest = match last < total {
        true => format!("to read on, use the line {}", last + 1),
        false => "this is the end".to_owned(),
    };
    format!("lines {first} to {last} of {total}; {rest}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOKENS: Bound = Bound::Tokens(1_000);

    #[test]
    fn ranges_are_whole_characters_within_the_text() {
        let text = "aé😀b";
        for (offset, length, part) in [
            (0, usize::MAX, "aé😀b"),
            (1, 1, "é"),
            (2, 1, "é"),
            (3, 3, "😀"),
            (7, usize::MAX, "b"),
            (0, 0, "a"),
        ] {
            let read = bytes(text, text.len(), offset, length, TOKENS).expect("a part");
            let (piece, _) = read.rsplit_once("\n\n[").expect("a note");
            assert_eq!(piece, part, "{offset} {length}");
        }
        for offset in [8, usize::MAX] {
            let error = bytes(text, 8, offset, 1, TOKENS).expect_err("nothing");
            assert!(error.contains("there are 8 bytes"), "{error}");
        }
        assert_eq!(
            bytes("", 0, 0, 9, TOKENS).as_deref(),
            Ok("\n\n[bytes 0 to 0 of 0; this is the end]")
        );
        let cut = bytes("abc", 9, 2, 5, TOKENS).expect("the end");
        assert_eq!(cut, "c\n\n[bytes 2 to 3 of 9; the rest was not kept]");
    }

    #[test]
    fn lines_are_whole() {
        let text = "one\ntwo\n\nfour\n";
        for (first, count, expect) in [
            (
                0,
                1,
                "one\n\n[lines 1 to 1 of 4; to read on, use the line 2]",
            ),
            (
                2,
                2,
                "two\n\n[lines 2 to 3 of 4; to read on, use the line 4]",
            ),
            (
                4,
                usize::MAX,
                "four\n\n[lines 4 to 4 of 4; this is the end]",
            ),
        ] {
            assert_eq!(lines(text, first, count, TOKENS).as_deref(), Ok(expect));
        }
        let error = lines(text, 5, 1, TOKENS).expect_err("no such line");
        assert_eq!(error, "there are 4 lines, so there is no line 5");
        // Lines that do not fit are left out, and one that is too long is cut.
        let long = format!("{}\n{}", "a b ".repeat(10), "x y ".repeat(5_000));
        let read = lines(&long, 1, 2, Bound::Tokens(100)).expect("a line");
        assert!(
            read.ends_with("[lines 1 to 1 of 2; to read on, use the line 2]"),
            "{read}"
        );
        let read = lines(&long, 2, 1, Bound::Tokens(100)).expect("a part");
        assert!(
            read.contains(
                "[the beginning of line 2 of 2, which is long; to read on, use the offset"
            ),
            "{read}"
        );
        assert!(Bound::Tokens(110).fits(&read), "{read}");
    }

    proptest! {
        #[test]
        fn a_text_can_be_read_to_its_end(text in "\\PC{1,200}(\n|\\PC){0,400}", most in 40..200_usize) {
            let (mut at, mut whole) = (0, String::new());
            while at < text.len() {
                let bound = Bound::Tokens(most);
                let read = bytes(&text, text.len(), at, usize::MAX, bound).expect("a part");
                prop_assert!(bound.fits(&read) || read.chars().count() < 90);
                let (piece, _) = read.rsplit_once("\n\n[").expect("a note");
                prop_assert!(!piece.is_empty());
                whole.push_str(piece);
                at += piece.len();
            }
            prop_assert_eq!(whole, text);
        }
    }
}
