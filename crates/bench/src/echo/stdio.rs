//! The echo server on stdin and stdout: one thread, large reads, and one write for all responses to a read.

use std::io::{Read as _, Write as _};

use anyhow::Context as _;

use super::{Echo, Options};

/// Longest accepted line. A longer one ends the server; no request of the bench comes close.
const LINE_LIMIT: usize = 64 << 20;
const READ_SIZE: usize = 64 << 10;

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
    let mut input = vec![0; READ_SIZE];
    let mut filled = 0;
    let mut output = Vec::with_capacity(READ_SIZE);
    loop {
        if filled == input.len() {
            anyhow::ensure!(
                filled < LINE_LIMIT,
                "a line is longer than {LINE_LIMIT} bytes"
            );
            input.resize(filled * 2, 0);
        }
        let n = stdin.read(&mut input[filled..]).context("stdin")?;
        if n == 0 {
            return Ok(());
        }
        // Only the new bytes can contain the end of a line.
        let searched = filled;
        filled += n;
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', &input[searched..filled]) {
            let end = searched + end;
            let before = output.len();
            echo.answer(&input[start..end], &mut output);
            if output.len() > before {
                output.push(b'\n');
            }
            start = end + 1;
        }
        input.copy_within(start..filled, 0);
        filled -= start;
        if !output.is_empty() {
            stdout.write_all(&output).context("stdout")?;
            output.clear();
        }
    }
}
