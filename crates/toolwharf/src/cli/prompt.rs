//! Asking whoever sits at the terminal: for agreement, and for what nobody else is to see.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::{Context, bail};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use super::{Usage, add::stdin};

/// Asks before something that cannot be undone.
///
/// # Errors
/// [`Usage`] where nobody can answer, and the answer no.
pub(super) fn agreed(question: &str, yes: bool) -> anyhow::Result<()> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Usage(format!("{question} Say so with --yes")).into());
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    io::stdin()
        .lock()
        .read_line(&mut answer)
        .context("cannot read the answer")?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => bail!("nothing was changed"),
    }
}

/// A secret: typed without being shown, or all of standard input but for the line break at its end.
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
    eprint!("{what}: ");
    io::stderr().flush().ok();
    let _silent = Silent::begin()?;
    let mut text = String::new();
    io::stdin()
        .lock()
        .read_line(&mut text)
        .context("cannot read it")?;
    eprintln!();
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

/// The terminal shows nothing of what is typed.
struct Silent(Termios);

impl Silent {
    fn begin() -> anyhow::Result<Self> {
        let before = tcgetattr(io::stdin()).context("cannot ask the terminal")?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(io::stdin(), OptionalActions::Flush, &silent)
            .context("cannot have the terminal show nothing")?;
        Ok(Self(before))
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}
