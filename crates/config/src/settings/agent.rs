//! `[agent]`, and how a project's agent starts its servers.

use std::path::Path;

use model::{AgentSettings, ModelApi, StartPolicy};
use toml::{Spanned, de::DeValue};

use super::{
    values::{integer, is_web_url},
    walk::{Table, set},
};

/// The built-in tools that an agent can use.
pub(super) const NATIVE_TOOLS: &[&str] = &["display_recipe"];

/// Maximum length of a system prompt, in bytes.
const MAX_SYSTEM_BYTES: usize = 256 << 10;

/// How an agent's servers are started for its first chat.
pub(super) fn start(table: &mut Table<'_, '_>) -> Option<StartPolicy> {
    let policies = [
        ("sequential", StartPolicy::Sequential),
        ("parallel", StartPolicy::Parallel),
    ];
    table.either("start", policies)
}

pub(super) fn read(mut table: Table<'_, '_>) -> Option<AgentSettings> {
    let walk = table.walk;
    let mut into = AgentSettings::default();
    let apis = [
        ("anthropic", ModelApi::Anthropic),
        ("openai", ModelApi::OpenAi),
    ];
    set(&mut into.api, table.either("api", apis));
    set(&mut into.start, start(&mut table));
    into.api_key = table.secret("api_key");
    let must = r#"a URL such as "https://api.anthropic.com""#;
    into.base_url = table.text("base_url", must, is_web_url);
    into.system = table.string("system").map(|(text, _)| text);
    if let Some((file, span)) = table.string("system_file") {
        let folder = walk.source.path.parent().unwrap_or(Path::new(""));
        let path = folder.join(file);
        match std::fs::read_to_string(&path) {
            Ok(text) if text.len() <= MAX_SYSTEM_BYTES => into.system = Some(text),
            read => {
                let why = read.err().map(|error| format!("cannot be read: {error}"));
                let why = why.unwrap_or_else(|| "is larger than 256 KiB".to_owned());
                let what = format!("{} {why}", path.display());
                let write = "the path of a text file of at most 256 KiB, relative to the folder of toolwharf.toml";
                walk.wrong(span, &what, write);
            }
        }
    }
    into.max_tokens = table.count("max_tokens", 1..=1_000_000);
    set(&mut into.max_turns, table.count("max_turns", 1..=1_000));
    set(&mut into.max_chats, table.count("max_chats", 1..=10_000));
    let must = format!("one or more of `{}`", NATIVE_TOOLS.join("`, `"));
    let native = table.each("native", &must, |name| {
        NATIVE_TOOLS.contains(&name).then(|| name.to_owned())
    });
    into.native.extend(native);
    for (model, item) in table.items("prices").into_iter().flatten() {
        let Some(items) = item.get_ref().as_table() else {
            walk.wrong(
                item.span(),
                &format!("the price of `{}` is not a table", model.get_ref()),
                "a table with `input` and `output`",
            );
            continue;
        };
        let mut price = Table::new(walk, items, "agent.prices.*.");
        let kinds = ["input", "output", "cache_read", "cache_write"];
        let of = kinds.map(|kind| price.value(kind, "a number up to 1000000, such as 3.0", micros));
        let of = of.map(Option::unwrap_or_default);
        into.prices.insert(model.get_ref().to_string(), of);
    }
    match table.string("model") {
        Some((model, _)) if !model.trim().is_empty() => {
            into.model = model;
            Some(into)
        }
        // A value of the wrong type is already reported.
        None if table.items.get("model").is_some() => None,
        _ => {
            let span = table.items.keys().next().map_or(0..0, Spanned::span);
            walk.wrong(
                span,
                "`[agent]` has no `model`",
                r#"`model = "claude-sonnet-4-5"`, for instance"#,
            );
            None
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
