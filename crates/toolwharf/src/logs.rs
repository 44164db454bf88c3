//! Log output to stderr, with configured level and format.
//!
//! Messages may contain text from servers and clients. The formatter removes escape sequences; this module escapes
//! carriage returns, with which a text could overwrite the rest of its line.

use std::{
    borrow::Cow,
    io::{self, Write},
};

use model::{LogFormat, Settings};

/// Starts logging to stderr. The level is `RUST_LOG`, or else the configured one.
pub(crate) fn init(settings: &Settings) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .or_else(|_| tracing_subscriber::EnvFilter::try_new(&settings.log.level))
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"))
        // This hides Postgres notices about objects that exist already.
        .add_directive("sqlx=warn".parse().expect("it is a directive"))
        // These crates log each failed request, which the caller reports too, and unreadable responses with the secrets
        // in them.
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
