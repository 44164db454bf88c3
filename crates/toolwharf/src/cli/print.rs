//! Output: tables, JSON, and untrusted text.

use std::{
    io::{self, IsTerminal, Write},
    os::fd::AsFd,
};

use anyhow::Context as _;
use serde::{Serialize, de::DeserializeOwned};

use super::{Context, Output, http::Api};

/// Writes data to stdout. A closed pipe is not an error.
pub(super) fn data(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    data(&(serde_json::to_string_pretty(value)? + "\n"))
}

impl Context {
    /// Prints the value if the output is JSON.
    pub(super) fn print_json(&self, value: &impl Serialize) -> anyhow::Result<()> {
        match self.output {
            Output::Json => json(value),
            Output::Table => Ok(()),
        }
    }

    /// Prints the value as JSON, or its text.
    pub(super) fn print(
        &self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        match self.output {
            Output::Json => json(value),
            Output::Table => data(&text()),
        }
    }

    /// Gets the resource at `path`. With JSON output, prints it as the gateway sent it, and returns `None`.
    pub(super) async fn shown<T: DeserializeOwned>(
        &self,
        api: &Api,
        path: &str,
    ) -> anyhow::Result<Option<T>> {
        match self.output {
            Output::Json => json(&api.get::<serde_json::Value>(path).await?).map(|()| None),
            Output::Table => api.get(path).await.map(Some),
        }
    }
}

/// Writes a server's text to stdout: unchanged to a pipe, without control characters to a terminal.
pub(super) fn foreign(text: &str) -> anyhow::Result<()> {
    if io::stdout().is_terminal() {
        data(&printable(text))
    } else {
        data(text)
    }
}

/// Replaces control characters, which could control a terminal.
pub(super) fn printable(text: &str) -> String {
    let harmless = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    text.chars()
        .map(|c| if harmless(c) { c } else { '\u{fffd}' })
        .collect()
}

/// Minimum width of a column that is shortened to fit the terminal, in characters.
const MIN_COLUMN_CHARS: usize = 12;
/// Indentation of a note below its line.
const NOTE_INDENT: usize = 4;
/// Number of spaces between two columns.
const COLUMN_GAP: usize = 2;

/// Returns a table with aligned columns. On a terminal, the table fits its width, and states are coloured.
pub(super) fn table(
    head: impl AsRef<[&'static str]>,
    rows: impl IntoIterator<Item = impl AsRef<[String]>>,
) -> String {
    let terminal = width(&io::stdout());
    drawn(
        head.as_ref(),
        rows,
        terminal,
        terminal.is_some() && takes_colour(),
    )
}

/// Returns whether the user wants colour (no-color.org) and the terminal supports it.
pub(super) fn takes_colour() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

/// Returns the colour of a cell (ECMA-48, SGR), if it contains a state.
fn colour(head: &str, cell: &str) -> Option<u8> {
    let is_state = matches!(head, "STATE" | "STATUS");
    match cell.trim_end() {
        _ if !is_state => None,
        "running" | "enabled" | "ok" | "done" | "signed_in" => Some(32),
        "starting" | "restarting" | "stopping" | "unresponsive" | "backoff" | "unavailable"
        | "changed" | "kept back" | "open" | "needs_login" => Some(33),
        "blocked" | "failed" | "unusable" | "unknown" | "error" | "tool_error" | "timeout"
        | "interrupted" => Some(31),
        _ => Some(2),
    }
}

/// Returns the width in characters, if the stream is a terminal.
pub(super) fn width(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    let is_terminal = stream.is_terminal();
    let size = is_terminal.then(|| rustix::termios::tcgetwinsize(stream));
    let columns = usize::from(size?.ok()?.ws_col);
    (columns > 0).then_some(columns)
}

/// Like [`table`], with notes in the last column. On a terminal, a note that does not fit into its line is shown in full
/// below it.
pub(super) fn table_with_notes(head: &[&'static str], rows: &[Vec<String>]) -> String {
    let terminal = width(&io::stdout());
    let coloured = terminal.is_some() && takes_colour();
    drawn_with_notes(head, rows, terminal, coloured)
}

fn drawn_with_notes(
    head: &[&str],
    rows: &[Vec<String>],
    terminal: Option<usize>,
    coloured: bool,
) -> String {
    let Some(terminal) = terminal else {
        return drawn(head, rows, None, coloured);
    };
    let last = head.len().saturating_sub(1);
    let before: Vec<Vec<String>> = rows.iter().map(|row| row[..last].to_vec()).collect();
    let table = drawn(&head[..last], &before, Some(terminal), false);
    let widest = table.lines().map(|line| line.chars().count()).max();
    let begin = widest.unwrap_or_default() + COLUMN_GAP;
    let notes = rows.iter().map(|row| one_line(&row[last], usize::MAX));
    let notes: Vec<String> = notes.collect();
    let fits = |note: &String| begin + note.chars().count() <= terminal;
    let has_column = begin + MIN_COLUMN_CHARS <= terminal
        && notes.iter().any(|note| !note.is_empty() && fits(note));
    let drawn = drawn(&head[..last], &before, Some(terminal), coloured);
    let mut out = String::new();
    for (number, (line, plain)) in drawn.lines().zip(table.lines()).enumerate() {
        let note = match number {
            0 => has_column.then(|| head[last].to_owned()),
            row => Some(notes[row - 1].clone()).filter(|note| !note.is_empty()),
        };
        out.push_str(line);
        match note {
            Some(note) if has_column && fits(&note) => {
                out.push_str(&" ".repeat(begin - plain.chars().count()));
                out.push_str(&note);
            }
            Some(note) => {
                out.push('\n');
                out.push_str(&" ".repeat(NOTE_INDENT));
                out.push_str(&wrapped(&note, NOTE_INDENT, Some(terminal)));
            }
            None => {}
        }
        out.push('\n');
    }
    out
}

fn drawn(
    head: &[&str],
    rows: impl IntoIterator<Item = impl AsRef<[String]>>,
    terminal: Option<usize>,
    coloured: bool,
) -> String {
    let plain = |cell: &String| one_line(cell, usize::MAX);
    let rows = rows.into_iter();
    let rows = rows.map(|row| row.as_ref().iter().map(plain).collect());
    let rows: Vec<Vec<String>> = rows.collect();
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    if let Some(terminal) = terminal {
        fit(&mut widths, terminal);
    }
    let mut out = String::new();
    let mut line = |cells: &[&str], coloured: bool| {
        let padded: Vec<String> = cells
            .iter()
            .zip(head.iter().zip(&widths))
            .map(|(cell, (head, width))| {
                let padded = format!("{:1$}", cut(cell, *width), *width);
                match colour(head, &padded).filter(|_| coloured) {
                    Some(colour) => format!("\u{1b}[{colour}m{padded}\u{1b}[0m"),
                    None => padded,
                }
            })
            .collect();
        out.push_str(padded.join(&" ".repeat(COLUMN_GAP)).trim_end());
        out.push('\n');
    };
    line(head, false);
    for row in &rows {
        let cells: Vec<&str> = row.iter().map(String::as_str).collect();
        line(&cells, coloured);
    }
    out
}

/// Narrows the widest columns until a line fits.
fn fit(widths: &mut [usize], terminal: usize) {
    let gaps = COLUMN_GAP * widths.len().saturating_sub(1);
    loop {
        let too_long = widths.iter().sum::<usize>() + gaps > terminal;
        let widest = widths
            .iter_mut()
            .max()
            .filter(|width| **width > MIN_COLUMN_CHARS);
        match widest {
            Some(widest) if too_long => *widest -= 1,
            _ => return,
        }
    }
}

/// Returns the text on one line, without control characters, with at most `width` characters.
pub(super) fn one_line(text: &str, width: usize) -> String {
    cut(&printable(text).replace(['\n', '\t'], " "), width)
}

fn cut(cell: &str, width: usize) -> String {
    if cell.chars().count() <= width {
        return cell.to_owned();
    }
    let begin: String = cell.chars().take(width.saturating_sub(1)).collect();
    begin + "…"
}

/// Joins names, at most ten of them.
pub(super) fn names(all: &[String]) -> String {
    const MAX: usize = 10;
    let shown = all.iter().take(MAX).map(String::as_str);
    let joined = shown.collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(MAX) {
        0 => joined,
        more => format!("{joined} and {more} more"),
    }
}

/// Formats a duration in its two largest units.
pub(super) fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m{}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h{minutes}m"),
        (days, hours, _) => format!("{days}d{hours}h"),
    }
}

/// Formats the duration of a call.
pub(super) fn micros(us: u64) -> String {
    match us {
        ..10_000 => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
        _ => format!("{} ms", us / 1_000),
    }
}

/// Parses a duration such as 30m, 12h or 90d.
pub(super) fn parse_duration(text: &str) -> Option<std::time::Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    // Limited, so that adding the duration to a timestamp cannot overflow.
    let number: u64 = number.parse().ok().filter(|number| *number <= 36_500)?;
    Some(std::time::Duration::from_secs(seconds * number))
}

/// Formats a time, to the second.
pub(super) fn time(time: store::Time) -> String {
    let text = time.to_rfc3339();
    let (date, rest) = text.split_once('T').unwrap_or((&text, ""));
    format!("{date} {}", rest.get(..8).unwrap_or(rest))
}

/// Width of the names in [`fields`], with the gap after it.
const FIELD_INDENT: usize = 17;

/// Returns lines of names and values. Omits empty values. On a terminal, long values wrap.
pub(super) fn fields(rows: &[(&str, String)]) -> String {
    let width = width(&io::stdout());
    rows.iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| {
            let value = wrapped(&value.replace('\n', " "), FIELD_INDENT, width);
            format!("{name:15}  {value}\n")
        })
        .collect()
}

/// Returns a text without control characters, whose lines after the first are indented. Lines are broken at blanks so
/// that they end before column `width`, if there is one. The first line begins at column `indent`.
pub(super) fn wrapped(text: &str, indent: usize, width: Option<usize>) -> String {
    let room = width.map_or(usize::MAX, |width| {
        width.saturating_sub(indent).max(MIN_COLUMN_CHARS)
    });
    let mut lines: Vec<String> = Vec::new();
    for line in printable(text).lines() {
        let mut rest = line;
        while let Some((end, _)) = rest.char_indices().nth(room) {
            let at = match rest[..end].rfind(' ') {
                _ if rest[end..].starts_with(' ') => end,
                Some(at) if at > 0 => at,
                // A word that is longer than a line is broken anywhere.
                _ => end,
            };
            lines.push(rest[..at].trim_end().to_owned());
            rest = rest[at..].trim_start();
        }
        lines.push(rest.to_owned());
    }
    lines.join(&format!("\n{}", " ".repeat(indent)))
}

/// Returns the beginning of a text, on one line.
pub(super) fn short(text: &str, chars: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    let mut out: String = line.chars().take(chars).collect();
    if line.chars().nth(chars).is_some() || text.lines().nth(1).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up_and_steer_no_terminal() {
        let rows = [
            ["a".to_owned(), "b\u{1b}[31m".to_owned()],
            ["long name".to_owned(), "two\nlines".to_owned()],
        ];
        assert_eq!(
            drawn(&["N", "V"], &rows, None, false),
            "N          V\na          b\u{fffd}[31m\nlong name  two lines\n"
        );
    }

    #[test]
    fn lines_are_cut_and_steer_no_terminal() {
        for (text, width, expect) in [
            ("short", 5, "short"),
            ("longer", 5, "long…"),
            ("a\u{1b}[2J\nb\tc", 80, "a\u{fffd}[2J b c"),
            ("\u{9b}31m", 80, "\u{fffd}31m"),
            ("äöüß", 3, "äö…"),
        ] {
            assert_eq!(one_line(text, width), expect);
        }
    }

    #[test]
    fn a_table_fits_the_terminal() {
        let long = "x".repeat(60);
        let rows = [["name".to_owned(), long.clone(), long]];
        let table = drawn(&["N", "A", "B"], &rows, Some(50), false);
        let widest = table.lines().map(|line| line.chars().count()).max();
        assert_eq!(widest, Some(50), "{table}");
        assert!(
            table.contains("name  xxx") && table.contains('…'),
            "{table}"
        );
        // Columns keep a readable minimum width.
        let table = drawn(&["N", "A", "B"], &rows, Some(5), false);
        let widest = table.lines().map(|line| line.chars().count()).max();
        assert_eq!(
            widest,
            Some(4 + COLUMN_GAP + MIN_COLUMN_CHARS + COLUMN_GAP + MIN_COLUMN_CHARS),
            "{table}"
        );
    }

    #[test]
    fn a_note_that_does_not_fit_is_shown_in_full_below_its_line() {
        let row =
            |name: &str, note: &str| vec![name.to_owned(), "running".to_owned(), note.to_owned()];
        let why = "it does not trust the TLS certificate of a host: set `SSL_CERT_FILE`";
        let rows = [row("one", "up 5m"), row("two", why), row("three", "")];
        let table = drawn_with_notes(&["NAME", "STATE", "NOTE"], &rows, Some(40), false);
        assert_eq!(
            table,
            "NAME   STATE    NOTE\n\
             one    running  up 5m\n\
             two    running\n    it does not trust the TLS\n    certificate of a host: set\n    `SSL_CERT_FILE`\n\
             three  running\n"
        );
        assert!(
            table.lines().all(|line| line.chars().count() <= 40),
            "{table}"
        );
        let narrow = drawn_with_notes(&["NAME", "STATE", "NOTE"], &rows, Some(20), false);
        assert!(
            narrow.starts_with("NAME   STATE\none    running\n    up 5m\n"),
            "{narrow}"
        );
        // Without a terminal, each server has one line.
        let piped = drawn_with_notes(&["NAME", "STATE", "NOTE"], &rows, None, false);
        assert!(piped.contains(why) && piped.lines().count() == 4, "{piped}");
    }

    #[test]
    fn long_texts_wrap_at_blanks() {
        for (text, width, expect) in [
            ("one two three", Some(2 + 12), "one two\n  three"),
            ("one two three four", None, "one two three four"),
            ("abcdefghijklmnopq", Some(14), "abcdefghijkl\n  mnopq"),
            ("a\nb", None, "a\n  b"),
            ("exactly 12ch", Some(14), "exactly 12ch"),
            ("ääääää öööööö", Some(14), "ääääää\n  öööööö"),
            ("\u{1b}[2J", Some(80), "\u{fffd}[2J"),
        ] {
            assert_eq!(wrapped(text, 2, width), expect);
        }
    }

    #[test]
    fn states_have_colours_on_a_terminal() {
        let rows = [["running".to_owned(), "running".to_owned()]];
        let table = drawn(&["STATE", "NAME"], &rows, Some(80), true);
        assert_eq!(
            table,
            "STATE    NAME\n\u{1b}[32mrunning\u{1b}[0m  running\n"
        );
    }

    #[test]
    fn durations() {
        for (ms, expect) in [
            (999, "0s"),
            (61_000, "1m1s"),
            (3_660_000, "1h1m"),
            (90_000_000, "1d1h"),
        ] {
            assert_eq!(duration(ms), expect);
        }
    }
}
