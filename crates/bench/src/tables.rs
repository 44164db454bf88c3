//! Tables in Markdown, and the places for them in a document.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;

use crate::run::report::Row;

/// A table, whose first column has names and whose others have figures.
pub(crate) struct Table {
    /// The command of the bench that makes it. Together with the name, it identifies the table's place in a document.
    command: &'static str,
    name: &'static str,
    title: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

const END: &str = "<!-- end -->";

impl Table {
    /// A table of `bench context`.
    pub(crate) fn new(name: &'static str, title: &str, head: &[&str]) -> Self {
        Self::of("context", name, title, head)
    }

    pub(crate) fn of(
        command: &'static str,
        name: &'static str,
        title: &str,
        head: &[&str],
    ) -> Self {
        Self {
            command,
            name,
            title: title.to_owned(),
            head: head.iter().map(|cell| (*cell).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The title and the table.
    pub(crate) fn markdown(&self) -> String {
        format!("## {} [{}]\n\n{}", self.title, self.name, self.lines())
    }

    fn lines(&self) -> String {
        let mut lines = String::new();
        let mut line = |cells: &[String]| {
            let _ = writeln!(lines, "| {} |", cells.join(" | "));
        };
        line(&self.head);
        let numbers = std::iter::repeat_n("--:".to_owned(), self.head.len().saturating_sub(1));
        let rule: Vec<String> = std::iter::once("---".to_owned()).chain(numbers).collect();
        line(&rule);
        for row in &self.rows {
            line(row);
        }
        lines
    }

    /// Replaces the table of this name in a document that has a place for it.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written.
    pub(crate) fn write_into(&self, file: &Path) -> anyhow::Result<()> {
        let failed = || format!("cannot change {}", file.display());
        let text = std::fs::read_to_string(file).with_context(failed)?;
        match self.placed(&text) {
            None => eprintln!("{} has no place for `{}`", file.display(), self.name),
            Some(changed) => std::fs::write(file, changed).with_context(failed)?,
        }
        Ok(())
    }

    fn placed(&self, text: &str) -> Option<String> {
        let begin = format!("<!-- bench {}: {} -->\n", self.command, self.name);
        let (before, rest) = text.split_once(&begin)?;
        let (_, after) = rest.split_once(END)?;
        Some(format!("{before}{begin}\n{}\n{END}{after}", self.lines()))
    }
}

/// A share, with two digits.
pub(crate) fn share(share: f64) -> String {
    format!("{share:.2}")
}

/// A table of figures that are compared with a bound.
pub(crate) fn compared(rows: &[Row]) -> Table {
    let mut table = Table::new(
        "call",
        "Processor time of the gateway for each call",
        &[
            "calls",
            "direct [µs]",
            "through `call_tool` [µs]",
            "ratio",
            "bound",
        ],
    );
    for row in rows.iter().filter(|row| row.kept().is_some()) {
        let [_, figure, floor, product, ratio, bound, verdict, _] = row.cells();
        let figure = figure.trim_end_matches(" [µs]").to_owned();
        let bound = format!("{bound} {verdict}").trim().to_owned();
        table.add(vec![figure, floor, product, ratio, bound]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_replaces_the_one_in_its_place() {
        let mut table = Table::new("one", "Title", &["a", "b"]);
        table.add(vec!["x".to_owned(), "1".to_owned()]);
        let text = "before\n<!-- bench context: one -->\nold\n<!-- end -->\nafter\n";
        let want = "before\n<!-- bench context: one -->\n\n| a | b |\n| --- | --: |\n| x | 1 |\n\n<!-- end -->\nafter\n";
        assert_eq!(table.placed(text).as_deref(), Some(want));
        assert_eq!(table.placed(want).as_deref(), Some(want));
        for other in [
            Table::new("two", "Title", &["a"]),
            Table::of("peers", "one", "Title", &["a"]),
        ] {
            assert_eq!(other.placed(text), None);
        }
    }
}
