//! Where the log goes: to stderr, with its level and format set.
//!
//! What servers and clients say gets into it, and is only ever text: escape sequences are taken out by the formatter, and
//! a carriage return, with which the rest of a line could be written over, here.

use std::{
    borrow::Cow,
    io::{self, Write},
};

use model::{LogFormat, Settings};

/// Logs to stderr: `RUST_LOG`, else the configured level.
pub(crate) fn init(settings: &Settings) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .or_else(|_| tracing_subscriber::EnvFilter::try_new(&settings.log.level))
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"))
        // Postgres' notices of what is there already.
        .add_directive("sqlx=warn".parse().expect("it is a directive"))
        // Each request that fails, which is told where it is handled; and answers that it cannot read, secrets included.
        .add_directive("kube_client=off".parse().expect("it is a directive"))
        .add_directive("kube_runtime=off".parse().expect("it is a directive"));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Plain(io::stderr()))
        .with_target(false);
    match settings.log.format {
        LogFormat::Json => logs.json().flatten_event(true).init(),
        LogFormat::Text => {
            use std::io::IsTerminal;
            logs.with_ansi(io::stderr().is_terminal()).init();
        }
    }
}

/// Writes a carriage return as `\r`.
struct Plain<W>(W);

impl<W: Write> Write for Plain<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.write_all(&plain(text))?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn plain(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'\r') {
        return text.into();
    }
    let parts: Vec<_> = text.split(|byte| *byte == b'\r').collect();
    parts.join(&b"\\r"[..]).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_carriage_return_is_text() {
        assert_eq!(&*plain(b"a line\n"), b"a line\n");
        assert_eq!(&*plain(b"\ra\r\nb\r"), b"\\ra\\r\nb\\r");
    }
}
