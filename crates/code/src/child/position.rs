//! Places in the code, from the stack of an error.

use std::fmt::Write as _;

/// The name under which the code is evaluated.
pub(super) const FILE: &str = "code.js";
/// The text before the code, on the same line as its start: `await` and `return` need an async function around them.
pub(super) const BEFORE: &str = "(async()=>{";
/// The text after the code. The line end comes first, because the code may end with a comment.
pub(super) const AFTER: &str = "\n})()";

const MAX_FRAMES: usize = 10;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) line: Option<u32>,
    pub(super) column: Option<u32>,
    pub(super) stack: String,
}

/// Reads a stack as QuickJS writes it: `    at name (code.js:3:7)` or `    at code.js:3:7`.
pub(super) fn position(stack: &str) -> Position {
    let mut found = Position::default();
    let frames = stack.lines().filter_map(frame).take(MAX_FRAMES);
    for (name, line, column) in frames {
        if found.line.is_none() {
            (found.line, found.column) = (Some(line), Some(column));
        } else {
            found.stack.push('\n');
        }
        let name = if name.is_empty() { "the code" } else { name };
        let _ = write!(found.stack, "at {name} (line {line}, column {column})");
    }
    found
}

fn frame(line: &str) -> Option<(&str, u32, u32)> {
    let frame = line.trim().strip_prefix("at ")?;
    let (name, place) = match frame.rsplit_once(" (") {
        Some((name, place)) => (name, place.strip_suffix(')')?),
        None => ("", frame),
    };
    // The call of the function around the code.
    if name == "<eval>" {
        return None;
    }
    let (line, column) = place
        .strip_prefix(FILE)?
        .strip_prefix(':')?
        .split_once(':')?;
    let (line, mut column): (u32, u32) = (line.parse().ok()?, column.parse().ok()?);
    if line == 1 {
        column = column.saturating_sub(BEFORE.len() as u32).max(1);
    }
    // Names of functions without one.
    let name = name.trim_start_matches('<').trim_end_matches('>');
    let name = if name == "anonymous" { "" } else { name };
    Some((name, line, column))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks() {
        for (stack, line, column, text) in [
            ("", None, None, ""),
            ("    at native\n    at x (other.js:1:2)\n", None, None, ""),
            (
                "    at code.js:3:7\n",
                Some(3),
                Some(7),
                "at the code (line 3, column 7)",
            ),
            (
                "    at f (code.js:2:5)\n    at <anonymous> (code.js:1:20)\n    at <eval> (code.js:9:1)\n",
                Some(2),
                Some(5),
                "at f (line 2, column 5)\nat the code (line 1, column 9)",
            ),
            ("    at f (code.js:x:5)\n", None, None, ""),
        ] {
            let found = position(stack);
            assert_eq!(
                (found.line, found.column, &*found.stack),
                (line, column, text),
                "{stack}"
            );
        }
    }
}
