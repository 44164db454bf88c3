//! Terminal prompts: confirmations and secrets.

use std::io::{self, BufRead, IsTerminal, Read as _, Write};

use anyhow::{Context, bail};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use super::Usage;

/// Maximum size of standard input, in bytes.
const MAX_INPUT_BYTES: u64 = 16 << 20;

/// Asks for confirmation.
///
/// # Errors
/// [`Usage`] if standard input is not a terminal, or an error if the user declines.
pub(super) fn agreed(question: &str, yes: bool) -> anyhow::Result<()> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Usage(format!("{question} Confirm with --yes")).into());
    }
    eprint!("{question} [y/N] ");
    match typed("the answer")?.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => bail!("nothing was changed"),
    }
}

/// Asks until `parse` accepts the answer, and prints the error for other answers.
///
/// # Errors
/// The input ends before that.
pub(super) fn asked<T>(
    question: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> anyhow::Result<T> {
    loop {
        eprint!("{question} ");
        let text = typed("the answer")?;
        if text.is_empty() {
            eprintln!();
            bail!("nothing was changed");
        }
        match parse(text.trim()) {
            Ok(answer) => return Ok(answer),
            Err(why) => eprintln!("{why}"),
        }
    }
}

/// Reads a secret: from the terminal without echo, or from standard input without the final line break.
pub(super) fn secret(what: &str) -> anyhow::Result<String> {
    if !io::stdin().is_terminal() {
        let mut text = stdin()?;
        for end in ["\n", "\r"] {
            if text.ends_with(end) {
                text.truncate(text.len() - end.len());
            }
        }
        return Ok(text);
    }
    // Turning off the echo discards what was typed before, so the question comes after it.
    let _silent = Silent::begin()?;
    eprint!("{what}: ");
    io::stderr().flush().ok();
    let text = typed("the secret")?;
    eprintln!();
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

/// Reads a line. `what` names it in an error.
pub(super) fn typed(what: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = io::stdin().lock().read_line(&mut text);
    read.with_context(|| format!("cannot read {what}"))?;
    Ok(text)
}

/// Turns off the terminal's echo until dropped.
struct Silent(Termios);

impl Silent {
    fn begin() -> anyhow::Result<Self> {
        let before = tcgetattr(io::stdin()).context("cannot read the terminal's settings")?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(io::stdin(), OptionalActions::Flush, &silent)
            .context("cannot turn off the terminal's echo")?;
        Ok(Self(before))
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}

pub(super) fn stdin() -> anyhow::Result<String> {
    let mut text = String::new();
    let read = io::stdin()
        .lock()
        .take(MAX_INPUT_BYTES + 1)
        .read_to_string(&mut text)
        .context("cannot read standard input")?;
    if read as u64 > MAX_INPUT_BYTES {
        anyhow::bail!(
            "standard input is larger than {} MiB",
            MAX_INPUT_BYTES >> 20
        );
    }
    Ok(text)
}
