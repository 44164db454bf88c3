//! The echo server on stdin and stdout: one thread, large reads, and one write for all responses to a read.

use std::io::{Read as _, Write as _};

use anyhow::Context as _;

use super::{Echo, Options};
use crate::frame::LineBuffer;

/// Serves until stdin closes.
///
/// # Errors
///
/// Stdin or stdout failed, or a line was longer than 64 MiB.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let echo = Echo::new(options);
    // The raw descriptors, because `Stdin` and `Stdout` add locks and buffers.
    let mut stdin = std::fs::File::from(rustix::io::dup(std::io::stdin())?);
    let mut stdout = std::fs::File::from(rustix::io::dup(std::io::stdout())?);
    let mut input = LineBuffer::new();
    let mut output = Vec::new();
    loop {
        let n = stdin.read(input.free()?).context("stdin")?;
        if n == 0 {
            return Ok(());
        }
        input.take(n, |line| {
            let before = output.len();
            echo.answer(line, &mut output);
            if output.len() > before {
                output.push(b'\n');
            }
        });
        if !output.is_empty() {
            stdout.write_all(&output).context("stdout")?;
            output.clear();
        }
    }
}
