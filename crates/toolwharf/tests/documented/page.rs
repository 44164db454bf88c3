//! Reads the commands and their output from a page.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A command of a page.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) line: usize,
    pub(crate) text: String,
    /// Lines that the page shows being typed into the program.
    pub(crate) typed: Vec<String>,
    /// The index in [`Page::outputs`], if the page shows the output of this command or of its block.
    pub(crate) output: Option<usize>,
}

/// Output that a page shows. It is the output of one of the commands that refer to it.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) line: usize,
    pub(crate) lines: Vec<String>,
}

/// A page with its commands, in their order.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) commands: Vec<Command>,
    pub(crate) outputs: Vec<Output>,
    /// All other blocks: language and text.
    pub(crate) blocks: Vec<(String, String)>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the README and the pages in `docs`, relative to the repository.
pub(crate) fn all() -> Vec<String> {
    let docs = fs::read_dir(root().join("docs")).expect("docs");
    let names = docs.map(|entry| entry.expect("a file").file_name());
    let names = names.map(|name| name.into_string().expect("UTF-8"));
    let pages = names.filter(|name| name.ends_with(".md"));
    let mut pages: Vec<_> = pages.map(|name| format!("docs/{name}")).collect();
    pages.push("README.md".to_owned());
    pages.sort();
    pages
}

fn text(name: &str) -> String {
    fs::read_to_string(root().join(name)).expect("the page")
}

impl Page {
    pub(crate) fn read(name: &str) -> Self {
        Self::parse(&text(name))
    }

    fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let mut lines = text.lines().enumerate().peekable();
        // The commands of the preceding `sh` block, if only blank lines follow it.
        let mut preceding: Vec<usize> = Vec::new();
        while let Some((at, line)) = lines.next() {
            let indent = line.len() - line.trim_start().len();
            let Some(language) = line.trim_start().strip_prefix("```") else {
                if !line.trim().is_empty() {
                    preceding.clear();
                }
                continue;
            };
            let block = lines.by_ref().map(|(_, line)| line);
            let block = block.take_while(|line| line.trim() != "```");
            let block: Vec<_> = block
                .map(|line| line.get(indent..).unwrap_or_default())
                .collect();
            match language {
                "sh" => preceding = page.script(at + 2, &block),
                "console" => page.session(at + 2, &block),
                "" if !preceding.is_empty() => {
                    let output = Some(page.outputs.len());
                    page.outputs.push(Output {
                        line: at + 2,
                        lines: block.into_iter().map(str::to_owned).collect(),
                    });
                    for index in preceding.drain(..) {
                        page.commands[index].output = output;
                    }
                }
                other => page.blocks.push((other.to_owned(), block.join("\n"))),
            }
            if language != "sh" {
                preceding.clear();
            }
        }
        page
    }

    /// Reads a block that consists of commands. Returns their indexes.
    fn script(&mut self, first: usize, block: &[&str]) -> Vec<usize> {
        let begin = self.commands.len();
        let mut open = String::new();
        let mut started = first;
        for (number, line) in (first..).zip(block) {
            if open.is_empty() {
                started = number;
            } else {
                open.push('\n');
            }
            open.push_str(line);
            if is_complete(&open) {
                self.push(started, std::mem::take(&mut open));
            }
        }
        assert!(open.is_empty(), "line {started}: the command has no end");
        (begin..self.commands.len()).collect()
    }

    /// Reads a block of commands after `$ ` and their output.
    fn session(&mut self, first: usize, block: &[&str]) {
        let mut shown: Option<Output> = None;
        for (number, line) in (first..).zip(block) {
            let prompted = line
                .split_once("$ ")
                .filter(|(host, _)| host.chars().all(|letter| letter.is_ascii_lowercase()));
            if let Some((_, text)) = prompted {
                self.shown(shown.take());
                self.push(number, text.to_owned());
            } else if let Some((program, text)) = line.split_once("> ")
                && !program.is_empty()
                && program.chars().all(char::is_alphanumeric)
            {
                let command = self.commands.last_mut().expect("a command");
                command.typed.push(text.to_owned());
            } else {
                let output = shown.get_or_insert_with(|| Output {
                    line: number,
                    lines: Vec::new(),
                });
                output.lines.push((*line).to_owned());
            }
        }
        self.shown(shown);
    }

    /// Assigns the output to the last command.
    fn shown(&mut self, output: Option<Output>) {
        let Some(mut output) = output else { return };
        while output.lines.last().is_some_and(String::is_empty) {
            output.lines.pop();
        }
        if output.lines.is_empty() {
            return;
        }
        let command = self
            .commands
            .last_mut()
            .expect("a command before its output");
        command.output = Some(self.outputs.len());
        self.outputs.push(output);
    }

    fn push(&mut self, line: usize, text: String) {
        if text.trim().is_empty() {
            return;
        }
        self.commands.push(Command {
            line,
            text,
            typed: Vec::new(),
            output: None,
        });
    }
}

/// Returns false if a quote is open, or the line continues after a backslash.
fn is_complete(text: &str) -> bool {
    let mut quote = None;
    let mut escaped = false;
    for letter in text.chars() {
        match (quote, letter) {
            _ if escaped => escaped = false,
            (Some('\''), '\\') => {}
            (_, '\\') => escaped = true,
            (Some(open), close) if open == close => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            // An apostrophe in a comment opens no quote.
            (None, '#') => return !text.ends_with('\\'),
            _ => {}
        }
    }
    quote.is_none() && !escaped
}

/// A blank line ends a table. Rows after it would be shown as text.
#[test]
fn tables_are_whole() {
    for name in all() {
        let text = text(&name);
        let mut is_code = false;
        let mut columns = None;
        let mut lines = text.lines().enumerate().peekable();
        while let Some((number, line)) = lines.next() {
            is_code ^= line.trim_start().starts_with("```");
            if is_code || !line.starts_with('|') {
                columns = None;
                continue;
            }
            let count = line.replace("\\|", "").matches('|').count();
            let is_head = columns.is_none();
            assert_eq!(
                *columns.get_or_insert(count),
                count,
                "{name}:{}: {line}",
                number + 1
            );
            if is_head {
                let below = lines.peek().map(|(_, line)| *line).unwrap_or_default();
                let is_rule =
                    below.starts_with("| -") && below.chars().all(|it| " |-:".contains(it));
                assert!(
                    is_rule,
                    "{name}:{}: a row without a head: {line}",
                    number + 1
                );
            }
        }
    }
}

#[test]
fn a_page_is_read() {
    let text = "\
Text.\n\n```sh\none 'a\n  b' \\\n  --c   # it's\ntwo\n```\n\n```\nout\n```\n\nText.\n\n```\nnot an output\n```\n
```console\n$ three\nx\n\n$ four\nsqlite> SELECT 1;\n```\n";
    let page = Page::parse(text);
    let found: Vec<_> = page
        .commands
        .iter()
        .map(|it| (it.line, &*it.text, it.output))
        .collect();
    let expected = [
        (4, "one 'a\n  b' \\\n  --c   # it's", Some(0)),
        (7, "two", Some(0)),
        (21, "three", Some(1)),
        (24, "four", None),
    ];
    assert_eq!(found, expected);
    assert_eq!(page.commands[3].typed, ["SELECT 1;"]);
    assert_eq!(page.outputs[0].lines, ["out"]);
    assert_eq!(page.outputs[1].lines, ["x"]);
    assert_eq!(page.blocks, [(String::new(), "not an output".to_owned())]);
}
