//! Commands in messages for people. If the user named a gateway, the commands name it too, so that they can be copied.
//!
//! All messages of the command line pass through [`complete`], including reasons that come from the gateway, because
//! `eprintln!` is replaced in this module tree.

use std::{borrow::Cow, env, sync::OnceLock};

use super::reach::Reach;

/// Begins a command in a message.
const COMMAND: &str = "`toolwharf ";
/// Commands that do not talk to a gateway that runs elsewhere.
const LOCAL: &[&str] = &[
    "serve",
    "stdio",
    "init",
    "service",
    "doctor",
    "completions",
    "kubernetes",
    "-",
];

/// The options that lead to the gateway that the user named.
static OPTIONS: OnceLock<String> = OnceLock::new();

/// Remembers the options that messages have to repeat.
pub(super) fn remember(reach: &Reach) {
    let Some(url) = &reach.url else { return };
    let mut options = String::new();
    // A variable of the environment also holds for the next command.
    if env::var("TOOLWHARF_URL").ok().as_ref() != Some(url) {
        options.push_str(&format!("--url {} ", quoted(&model::url_for_display(url))));
    }
    if let Some(file) = &reach.token_file {
        let file = file.display().to_string();
        options.push_str(&format!("--token-file {} ", quoted(&file)));
    }
    let _ = OPTIONS.set(options);
}

/// Adds the options to all commands in a message.
pub(super) fn complete(text: &str) -> Cow<'_, str> {
    match OPTIONS.get() {
        Some(options) if !options.is_empty() => with(options, text),
        _ => text.into(),
    }
}

fn with<'t>(options: &str, text: &'t str) -> Cow<'t, str> {
    let mut parts = text.split(COMMAND);
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        whole.push_str(COMMAND);
        let command = part.split('`').next().unwrap_or_default();
        let is_local = LOCAL.iter().any(|local| command.starts_with(local));
        if !is_local && !command.contains("--url") {
            whole.push_str(options);
        }
        whole.push_str(part);
    }
    whole.into()
}

/// Quotes a word for a shell, if that is necessary.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:@%+=[]".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_repeat_the_options() {
        for (text, expect) in [
            ("no command", "no command"),
            (
                "`toolwharf ls` lists, `toolwharf get a` shows",
                "`toolwharf --url u ls` lists, `toolwharf --url u get a` shows",
            ),
            ("run `toolwharf serve`", "run `toolwharf serve`"),
            (
                "`toolwharf ls --url x`, and toolwharf ls",
                "`toolwharf ls --url x`, and toolwharf ls",
            ),
        ] {
            assert_eq!(with("--url u ", text), expect);
        }
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("http://[::1]:6280/x"), "http://[::1]:6280/x");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
