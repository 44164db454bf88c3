//! Splits an input into several values.

/// The input up to a line of `--`, and the rest. Without such a line, all of it and nothing.
pub(crate) fn split(input: &[u8]) -> (&[u8], &[u8]) {
    const LINE: &[u8] = b"\n--\n";
    let at = input.windows(LINE.len()).position(|part| part == LINE);
    match at {
        Some(at) => (&input[..at], &input[at + LINE.len()..]),
        None => (input, b""),
    }
}

/// All parts between lines of `--`, at most `N`. Missing ones are empty.
pub(crate) fn parts<const N: usize>(input: &[u8]) -> [&[u8]; N] {
    let mut rest = input;
    [(); N].map(|()| {
        let part;
        (part, rest) = split(rest);
        part
    })
}

/// The input as text. Invalid bytes are replaced.
pub(crate) fn text(input: &[u8]) -> String {
    String::from_utf8_lossy(input).into_owned()
}

/// Returns true if the input has this text itself, in any case. Messages may then show it.
pub(crate) fn mentions(input: &[u8], secret: &str) -> bool {
    let secret = secret.as_bytes();
    let mut parts = input.windows(secret.len());
    parts.any(|part| part.eq_ignore_ascii_case(secret))
}
