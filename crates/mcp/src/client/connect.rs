//! Connecting to servers: era detection and the handshake.
//!
//! A byte stream gets `initialize` first. A server that accepts it is treated as legacy, so a process that supports
//! both eras does not have to be started twice. Only a server that refuses it gets `server/discover`. A URL gets the
//! modern request first, because the HTTP status shows the era (2026-07-28 basic/transports/streamable-http "Backward
//! Compatibility").

use super::handshake::handshake;
use crate::client::handshake::ConnectError;
use crate::client::handshake::Options;
use std::time::Duration;

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};

use super::{Ambient, Client, Event, Link, duplex::Duplex, http};
use crate::lines::{Line, LineReader, write_lines};

/// Maximum wait for a clean close after a connection was blocked.
const BLOCKED_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Capacity of the queue for events outside of calls.
const MAX_AMBIENT_EVENTS: usize = 256;

/// The transport and address of a server.
pub enum Target {
    /// A stdio server's pipes, or any other byte streams.
    Stream {
        reader: Box<dyn AsyncRead + Send + Unpin>,
        writer: Box<dyn AsyncWrite + Send + Unpin>,
        /// Called with each line that is not a valid message.
        stray: Option<Stray>,
    },
    /// Streamable HTTP of either era, or HTTP+SSE if detection finds that.
    Http {
        url: String,
        headers: Vec<(String, String)>,
    },
    /// HTTP+SSE of 2024-11-05.
    Sse {
        url: String,
        headers: Vec<(String, String)>,
    },
}

/// Callback for an output line that is not a message.
pub type Stray = Box<dyn Fn(&[u8]) + Send + Sync>;

/// Opens connections, and holds the HTTP connection pools that the connections share.
#[derive(Clone)]
pub struct Connector {
    http: http::Pool,
    /// Used with [`Options::public_only`].
    public: http::Pool,
}

impl Default for Connector {
    fn default() -> Self {
        Self {
            http: http::Pool::new(false),
            public: http::Pool::new(true),
        }
    }
}

impl Connector {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Connects to `target`.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(
        &self,
        target: Target,
        options: &Options,
    ) -> Result<(Client, Ambient), ConnectError> {
        let timeout = options.timeout;
        tokio::time::timeout(timeout, self.connect_unbounded(target, options))
            .await
            .unwrap_or(Err(ConnectError::Timeout(timeout)))
    }

    async fn connect_unbounded(
        &self,
        target: Target,
        options: &Options,
    ) -> Result<(Client, Ambient), ConnectError> {
        let (ambient, events) = mpsc::channel(MAX_AMBIENT_EVENTS);
        let pool = if options.public_only {
            &self.public
        } else {
            &self.http
        };
        let client = match target {
            Target::Stream {
                reader,
                writer,
                stray,
            } => {
                let link = open_stream(reader, writer, stray, options, ambient);
                handshake(Link::Duplex(link), options).await?
            }
            Target::Http { url, headers } => {
                http::connect(pool, &url, &headers, options, ambient).await?
            }
            Target::Sse { url, headers } => {
                http::sse::connect(pool, &url, &headers, options, ambient).await?
            }
        };
        let client = client.speaking_as(options);
        if let (Some(chain), Some(behind)) = (&options.identity.chain, &client.info().behind)
            && let Err(blocked) = chain.judge(behind)
        {
            client.close(BLOCKED_CLOSE_TIMEOUT).await;
            return Err(blocked.into());
        }
        Ok((client, events))
    }
}

/// Runs a duplex link over byte streams. Its task ends when either stream ends or the link is closed.
fn open_stream(
    reader: Box<dyn AsyncRead + Send + Unpin>,
    writer: Box<dyn AsyncWrite + Send + Unpin>,
    stray: Option<Stray>,
    options: &Options,
    ambient: mpsc::Sender<Event>,
) -> Duplex {
    let (link, mut outbound) = Duplex::new(options.label.clone(), options.max_depth, ambient);
    let max = options.max_message;
    let mut lines = LineReader::new(reader, max);
    let reading = link.clone();
    crate::client::spawn_linked(async move {
        let read = async {
            loop {
                match lines.next().await {
                    Ok(Some(Line::Text(text))) => {
                        if let Some(stray) = &stray
                            && text.trim_ascii_start().first() != Some(&b'{')
                        {
                            stray(&text);
                        }
                        reading.deliver(text);
                    }
                    Ok(Some(Line::TooLong { head })) => reading.too_long(max, &head),
                    Ok(None) => break "the server closed its output".to_owned(),
                    Err(error) => break format!("reading from the server failed: {error}"),
                }
            }
        };
        let write = async {
            match write_lines(writer, &mut outbound).await {
                Ok(()) => std::future::pending().await,
                // The reader gives a better reason: a server that exits closes both streams.
                Err(error) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    format!("writing to the server failed: {error}")
                }
            }
        };
        let why = tokio::select! {
            why = read => why,
            why = write => why,
            why = reading.closed() => why.to_string(),
        };
        reading.close(&why);
    });
    link
}
