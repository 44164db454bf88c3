//! Output of a chat.
//!
//! Invariants: stdout gets the model's text and the output of native tools for people, or the events as lines of JSON.
//! Everything else goes to stderr, dimmed if that is a terminal and `NO_COLOR` is not set. Control characters are
//! removed from untrusted text.

use std::{
    collections::HashMap,
    io::{self, IsTerminal, Write as _},
};

use serde_json::Value;

use super::print;

/// Line width if stderr is not a terminal.
const DEFAULT_WIDTH: usize = 200;
/// Maximum number of calls whose names are kept.
const MAX_CALL_NAMES: usize = 1_000;

pub(super) struct Screen {
    json: bool,
    dims: bool,
    /// True if the last line on stdout has no line break yet.
    open: bool,
    /// Names of the tools being called, by call id.
    tools: HashMap<String, String>,
    /// The usage of the turn so far.
    usage: Option<String>,
}

impl Screen {
    pub(super) fn new(json: bool) -> Self {
        Self {
            json,
            dims: io::stderr().is_terminal() && print::takes_colour(),
            open: false,
            tools: HashMap::new(),
            usage: None,
        }
    }

    /// Shows an event of a chat.
    pub(super) fn event(&mut self, event: &Value) -> anyhow::Result<()> {
        if self.json {
            return print::foreign(&format!("{event}\n"));
        }
        let text = |key: &str| event[key].as_str().unwrap_or_default();
        match text("type") {
            "text_delta" => self.text(text("text")),
            "retrying" => {
                let pause = event["pause_ms"].as_u64().unwrap_or_default();
                let pause = pause as f64 / 1000.0;
                let why = text("why");
                self.word(&format!(
                    "retrying the model request in {pause:.1} s: {why}"
                ))
            }
            "waiting_for_servers" => {
                let servers = event["servers"].as_array().into_iter().flatten();
                let servers: Vec<&str> = servers.filter_map(Value::as_str).collect();
                self.word(&format!(
                    "waiting for servers to start: {}",
                    servers.join(", ")
                ))
            }
            "servers_missing" => {
                for one in event["servers"].as_array().into_iter().flatten() {
                    let of = |key: &str| one[key].as_str().unwrap_or_default();
                    let (server, reason) = (of("server"), of("reason"));
                    self.word(&format!("the tools of {server} are missing: {reason}"))?;
                }
                Ok(())
            }
            "tool_call" => {
                if self.tools.len() < MAX_CALL_NAMES {
                    self.tools
                        .insert(text("id").to_owned(), text("name").to_owned());
                }
                self.word(&call(text("name"), &event["arguments"]))
            }
            "tool_result" => {
                let name = self.tools.remove(text("id")).unwrap_or_default();
                let failed = event["is_error"] == true;
                self.word(&result(&name, failed, text("preview")))
            }
            "native" => {
                self.end_line()?;
                let mut out = String::new();
                readable(&event["payload"], 0, &mut out);
                print::foreign(&out)
            }
            "usage" => {
                self.usage = used(event);
                Ok(())
            }
            kind @ ("done" | "error") => {
                self.end_line()?;
                if kind == "done" && text("stop_reason") == "max_tokens" {
                    self.word("the response was cut off at `max_tokens`")?;
                }
                self.tools.clear();
                match self.usage.take() {
                    Some(used) => self.word(&used),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn text(&mut self, text: &str) -> anyhow::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.open = !text.ends_with('\n');
        print::foreign(text)
    }

    /// Ends an unfinished line of the model.
    pub(super) fn end_line(&mut self) -> anyhow::Result<()> {
        match std::mem::take(&mut self.open) {
            true => print::data("\n"),
            false => Ok(()),
        }
    }

    /// Prints a line to stderr, cut to the width of the terminal.
    pub(super) fn word(&mut self, text: &str) -> anyhow::Result<()> {
        self.end_line()?;
        let width = print::width(&io::stderr()).unwrap_or(DEFAULT_WIDTH);
        self.dim(&print::one_line(text, width));
        Ok(())
    }

    /// Prints a line to stderr, in full.
    pub(super) fn note(&mut self, text: &str) -> anyhow::Result<()> {
        self.end_line()?;
        self.dim(&print::printable(text));
        Ok(())
    }

    fn dim(&self, line: &str) {
        match self.dims {
            true => eprintln!("\x1b[2m{line}\x1b[0m"),
            false => eprintln!("{line}"),
        }
    }

    /// Ends the line on which the terminal has shown `^C`.
    pub(super) fn interrupted(&mut self) -> anyhow::Result<()> {
        if io::stderr().is_terminal() {
            self.open = false;
            eprintln!();
        }
        self.end_line()
    }

    /// Prints an error of a turn, in full.
    pub(super) fn error(&mut self, why: &str) -> anyhow::Result<()> {
        self.end_line()?;
        eprintln!("error: {}", print::printable(why));
        Ok(())
    }

    pub(super) fn prompt(&mut self) -> anyhow::Result<()> {
        self.end_line()?;
        eprint!("> ");
        let _ = io::stderr().flush();
        Ok(())
    }
}

/// Returns a tool call as one line.
pub(super) fn call(name: &str, arguments: &Value) -> String {
    format!("→ {name} {arguments}")
}

/// Returns a tool result as one line.
pub(super) fn result(name: &str, failed: bool, text: &str) -> String {
    let mark = if failed { '✗' } else { '✓' };
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    let more = if lines.next().is_some() { " …" } else { "" };
    format!("{mark} {name}: {first}{more}")
}

/// Returns the usage of a run as one line, if any.
fn used(usage: &Value) -> Option<String> {
    let of = |key: &str| usage[key].as_u64().unwrap_or_default();
    let cached = of("cache_read");
    let input = of("input")
        .saturating_add(cached)
        .saturating_add(of("cache_write"));
    let output = of("output");
    if input == 0 && output == 0 {
        return None;
    }
    let mut out = format!("{input} tokens in");
    if cached > 0 {
        out.push_str(&format!(" ({cached} from the cache)"));
    }
    out.push_str(&format!(", {output} out"));
    match of("cost_micros") {
        0 => {}
        micros => out.push_str(&format!(", cost {:.4}", micros as f64 / 1e6)),
    }
    Some(out)
}

/// Formats JSON for people: names and values, with dashes before list items.
fn readable(value: &Value, indent: usize, out: &mut String) {
    let margin = " ".repeat(indent);
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
                item(&format!("{margin}{name}:"), value, indent, out);
            }
        }
        Value::Array(items) => {
            for value in items {
                item(&format!("{margin}-"), value, indent, out);
            }
        }
        scalar => out.push_str(&format!("{margin}{}\n", plain(scalar))),
    }
}

fn item(head: &str, value: &Value, indent: usize, out: &mut String) {
    out.push_str(head);
    match value {
        Value::Object(_) | Value::Array(_) => {
            out.push('\n');
            readable(value, indent + 2, out);
        }
        scalar => out.push_str(&format!(" {}\n", plain(scalar))),
    }
}

fn plain(scalar: &Value) -> String {
    match scalar {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_results_and_usage() {
        assert_eq!(
            call("fetch", &json!({ "url": "u" })),
            r#"→ fetch {"url":"u"}"#
        );
        assert_eq!(result("fetch", false, "\none\n\ntwo"), "✓ fetch: one …");
        assert_eq!(result("fetch", true, ""), "✗ fetch: ");
        let usage = json!({ "input": 10, "output": 5, "cache_read": 0, "cost_micros": 0 });
        assert_eq!(used(&usage).as_deref(), Some("10 tokens in, 5 out"));
        assert_eq!(used(&json!({ "input": 0, "output": 0 })), None);
        let usage = json!({ "input": 10, "output": 5, "cache_read": 90, "cache_write": 1, "cost_micros": 12_345 });
        assert_eq!(
            used(&usage).as_deref(),
            Some("101 tokens in (90 from the cache), 5 out, cost 0.0123")
        );
    }

    #[test]
    fn payloads_are_readable() {
        let mut out = String::new();
        let recipe = json!({ "notes": null, "steps": ["cut", { "for": 3 }], "title": "Soup" });
        readable(&recipe, 0, &mut out);
        assert_eq!(out, "steps:\n  - cut\n  -\n    for: 3\ntitle: Soup\n");
    }
}
