//! `[agent]`, and how a project's agent starts its servers.

use std::path::Path;

use model::{AgentSettings, ModelApi, StartPolicy};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{values::integer, walk::Walk};

/// The tools of Toolwharf itself that an agent can have.
pub(super) const NATIVE_TOOLS: &[&str] = &["display_recipe"];

/// Longest system prompt, in bytes.
const SYSTEM_BYTES: usize = 256 << 10;

impl Walk<'_> {
    /// How the servers that an agent uses are started at its first chat.
    pub(super) fn agent_start(&mut self, table: &DeTable<'_>) -> Option<StartPolicy> {
        let (word, span) = self.string(table, "start")?;
        match word.as_str() {
            "sequential" => Some(StartPolicy::Sequential),
            "parallel" => Some(StartPolicy::Parallel),
            _ => {
                self.wrong(span, "bad `start`", "`sequential` or `parallel`");
                None
            }
        }
    }

    pub(super) fn agent(&mut self, table: &DeTable<'_>) -> Option<AgentSettings> {
        let mut into = AgentSettings::default();
        let known = [
            "api",
            "model",
            "api_key",
            "base_url",
            "system",
            "system_file",
            "max_tokens",
            "max_turns",
            "max_chats",
            "start",
            "native",
            "prices",
        ];
        self.unknown_keys(table, "agent.", &known);
        if let Some((word, span)) = self.string(table, "api") {
            match word.as_str() {
                "anthropic" => into.api = ModelApi::Anthropic,
                "openai" => into.api = ModelApi::OpenAi,
                _ => self.wrong(span, "bad `api`", "`anthropic` or `openai`"),
            }
        }
        into.start = self.agent_start(table).unwrap_or(into.start);
        into.api_key = self.secret(table, "api_key");
        if let Some((url, span)) = self.string(table, "base_url") {
            if url.starts_with("http://") || url.starts_with("https://") {
                into.base_url = Some(url);
            } else {
                self.wrong(span, "bad `base_url`", r#""https://…""#);
            }
        }
        into.system = self.string(table, "system").map(|(text, _)| text);
        if let Some((file, span)) = self.string(table, "system_file") {
            let path = self
                .source
                .path
                .parent()
                .unwrap_or(Path::new(""))
                .join(file);
            let short = |text: &String| text.len() <= SYSTEM_BYTES;
            match std::fs::read_to_string(&path).ok().filter(short) {
                Some(text) => into.system = Some(text),
                None => {
                    let what = format!(
                        "{} cannot be read, is no text, or is too long",
                        path.display()
                    );
                    self.wrong(
                        span,
                        &what,
                        "a text file of at most 256 KiB, beside this one",
                    );
                }
            }
        }
        for (key, most) in [
            ("max_tokens", 1_000_000),
            ("max_turns", 1_000),
            ("max_chats", 10_000),
        ] {
            let Some(item) = table.get(key) else { continue };
            let count = integer(item.get_ref()).and_then(|n| u32::try_from(n).ok());
            match count.filter(|count| (1..=most).contains(count)) {
                Some(count) => match key {
                    "max_turns" => into.max_turns = count,
                    "max_chats" => into.max_chats = count as usize,
                    _ => into.max_tokens = Some(count),
                },
                None => self.wrong(
                    item.span(),
                    &format!("bad `{key}`"),
                    &format!("a whole number from 1 to {most}"),
                ),
            }
        }
        for (name, span) in self.strings(table, "native") {
            if NATIVE_TOOLS.contains(&name.as_str()) {
                into.native.insert(name);
            } else {
                let known = NATIVE_TOOLS.join("`, `");
                self.wrong(span, "bad `native`", &format!("some of `{known}`"));
            }
        }
        if let Some(prices) = self.table(table, "prices") {
            for (model, item) in prices {
                let Some(price) = item.get_ref().as_table() else {
                    self.wrong(
                        item.span(),
                        "bad price",
                        "a table with `input` and `output`",
                    );
                    continue;
                };
                let kinds = ["input", "output", "cache_read", "cache_write"];
                self.unknown_keys(price, "agent.prices.*.", &kinds);
                let of = kinds.map(|kind| {
                    price
                        .get(kind)
                        .map(|item| (item.span(), micros(item.get_ref())))
                });
                let mut all = [0; 4];
                for (slot, given) in all.iter_mut().zip(of) {
                    match given {
                        None => {}
                        Some((_, Some(micros))) => *slot = micros,
                        Some((span, None)) => {
                            self.wrong(span, "bad price", "a number, such as 3.0")
                        }
                    }
                }
                into.prices.insert(model.get_ref().to_string(), all);
            }
        }
        match self.string(table, "model") {
            Some((model, _)) if !model.trim().is_empty() => {
                into.model = model;
                Some(into)
            }
            _ => {
                let span = table.values().next().map_or(0..0, Spanned::span);
                self.wrong(
                    span,
                    "`[agent]` has no `model`",
                    r#"`model = "claude-sonnet-4-5"`, for instance"#,
                );
                None
            }
        }
    }
}

/// An amount of money in millionths.
fn micros(value: &DeValue<'_>) -> Option<u64> {
    let amount: f64 = match value {
        DeValue::Integer(_) => integer(value)? as f64,
        DeValue::Float(float) => float.as_str().parse().ok()?,
        _ => return None,
    };
    (0.0..=1e6)
        .contains(&amount)
        .then(|| (amount * 1e6).round() as u64)
}
