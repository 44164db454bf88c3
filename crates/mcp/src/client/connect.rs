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

use futures_util::future::BoxFuture;
use http_client::Proxies;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};

use super::{Ambient, Client, Event, Link, duplex::Duplex, http};
use crate::lines::{Line, LineReader, write_lines};

/// Maximum wait for a clean close after a connection was blocked.
const BLOCKED_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time that calls in flight wait for the exit code of a process whose output has ended. On a busy machine, the
/// clean-up of a sandbox takes seconds.
const EXIT_WAIT: Duration = Duration::from_secs(5);
/// Capacity of the queue for events that belong to no call.
pub(super) const MAX_AMBIENT_EVENTS: usize = 256;

/// The transport and address of a server.
pub enum Target {
    /// A stdio server's pipes, or any other byte streams.
    Stream {
        reader: Box<dyn AsyncRead + Send + Unpin>,
        writer: Box<dyn AsyncWrite + Send + Unpin>,
        /// Called with each line, or beginning of a line, that is not part of a message.
        stray: Option<Stray>,
        /// Completes when the process behind the streams has ended, and says how.
        exit: Option<BoxFuture<'static, String>>,
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
        Self::through(Proxies::of_environment())
    }
}

impl Connector {
    /// A connector for the servers of other parties. It uses the proxies of the environment.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A connector for servers that this installation runs, and for gateways of this installation. It uses no proxy.
    #[must_use]
    pub fn direct() -> Self {
        Self::through(Proxies::none())
    }

    /// A connector with these proxies.
    #[must_use]
    pub fn through(proxies: &'static Proxies) -> Self {
        let pool = |public_only| {
            http::Pool::new(http_client::Options {
                proxies,
                ..http_client::Options::guarded(public_only)
            })
        };
        Self {
            http: pool(false),
            public: pool(true),
        }
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
                exit,
            } => {
                let link = open_stream((reader, writer), stray, exit, options, ambient);
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

type Streams = (
    Box<dyn AsyncRead + Send + Unpin>,
    Box<dyn AsyncWrite + Send + Unpin>,
);

/// Runs a duplex link over byte streams. It ends when either stream ends or the link is closed. Calls that are then in
/// flight fail with the way in which the process exited, if that is known in time.
fn open_stream(
    (reader, writer): Streams,
    stray: Option<Stray>,
    exit: Option<BoxFuture<'static, String>>,
    options: &Options,
    ambient: mpsc::Sender<Event>,
) -> Duplex {
    let (link, mut outbound) = Duplex::new(options.label.clone(), options.max_depth, ambient);
    let max = options.max_message;
    let partial = link.clone();
    let mut lines =
        LineReader::new(reader, max).on_partial(move |head| partial.printed().set_unfinished(head));
    let reading = link.clone();
    crate::client::spawn_linked(async move {
        let read = async {
            loop {
                match lines.next().await {
                    Ok(Some(Line::Text(text))) => {
                        if let (Some(other), Some(stray)) = (reading.deliver(text), &stray) {
                            stray(&other);
                        }
                    }
                    Ok(Some(Line::TooLong { head })) => reading.too_long(max, &head),
                    Ok(None) => {
                        if let (Some(last), Some(stray)) = (lines.partial(), &stray) {
                            stray(last);
                        }
                        break "the server closed its output".to_owned();
                    }
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
            // All calls have ended.
            _ = reading.closed() => return,
        };
        let (why, interrupted) = reading.shut(&why);
        let exit = match exit {
            Some(exit) if !interrupted.is_empty() => {
                tokio::time::timeout(EXIT_WAIT, exit).await.ok()
            }
            _ => None,
        };
        let why = exit.map_or(why.clone(), |exit| format!("{why}; {exit}").into());
        interrupted.end(why);
    });
    link
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream},
        time::Instant,
    };

    use super::*;
    use crate::{
        Frame,
        client::{CallError, Identity, Outgoing, PROBE_TIMEOUT},
    };

    const INITIALIZED: &str =
        r#""result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{}}"#;
    const REFUSED: &str = r#""error":{"code":-32601,"message":"Method not found"}"#;

    fn options() -> Options {
        Options {
            label: "test".into(),
            identity: Identity {
                name: "test".to_owned(),
                version: "1".to_owned(),
                chain: None,
            },
            capabilities: "{}".to_owned(),
            era: None,
            max_message: 1 << 20,
            max_depth: 64,
            timeout: Duration::from_secs(60),
            public_only: false,
            authorize: None,
            sign: None,
        }
    }

    /// Answers `initialize` with these members, and nothing else. Returns when its input ends.
    async fn answer_initialize(input: DuplexStream, output: &mut DuplexStream, members: &str) {
        let mut lines = BufReader::new(input).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if line.contains("\"initialize\"") {
                let answer = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,{members}}}\n");
                output.write_all(answer.as_bytes()).await.expect("a pipe");
            }
        }
    }

    fn stream(exit: Option<BoxFuture<'static, String>>) -> (Target, (DuplexStream, DuplexStream)) {
        let (writer, input) = tokio::io::duplex(4096);
        let (output, reader) = tokio::io::duplex(4096);
        let target = Target::Stream {
            reader: Box::new(reader),
            writer: Box::new(writer),
            stray: None,
            exit,
        };
        (target, (input, output))
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_ignores_unknown_methods_does_not_delay_the_start() {
        let (target, (input, mut output)) = stream(None);
        let began = Instant::now();
        let (connector, options) = (Connector::new(), options());
        let connected = tokio::select! {
            connected = connector.connect(target, &options) => connected,
            () = answer_initialize(input, &mut output, REFUSED) => panic!("it keeps running"),
        };
        assert!(matches!(connected, Err(ConnectError::NotLegacy(_))));
        assert_eq!(began.elapsed(), PROBE_TIMEOUT);
    }

    /// Why a call in flight failed, and how long after the output of its server had ended.
    async fn failed_after(exit: Option<BoxFuture<'static, String>>) -> (String, Duration) {
        let (target, (input, mut output)) = stream(exit);
        let (connector, options) = (Connector::new(), options());
        let (client, _ambient) = tokio::select! {
            connected = connector.connect(target, &options) => connected.expect("it answers"),
            () = answer_initialize(input, &mut output, INITIALIZED) => panic!("it keeps running"),
        };
        let frame = Frame::request("1", "tools/call", None);
        let mut call = client
            .call(Outgoing::new(&frame))
            .await
            .expect("it is open");
        drop(output);
        let ended = Instant::now();
        let why = client.closed().await;
        assert_eq!(
            (&*why, ended.elapsed()),
            ("the server closed its output", Duration::ZERO)
        );
        let refused = client.call(Outgoing::new(&frame)).await;
        assert!(matches!(refused, Err(CallError::Closed(_))));
        let Err(CallError::Closed(why)) = call.next().await else {
            panic!("it failed");
        };
        (why.to_string(), ended.elapsed())
    }

    /// New calls fail at once. The error of a call in flight contains the exit code, if that is known in time.
    #[tokio::test(start_paused = true)]
    async fn h09_a_call_in_flight_is_told_the_exit_code() {
        let closed = "the server closed its output";
        let late = Box::pin(async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            "it ended with exit code 7".to_owned()
        });
        let expected = format!("{closed}; it ended with exit code 7");
        assert_eq!(
            failed_after(Some(late)).await,
            (expected, Duration::from_secs(2))
        );
        let never = Box::pin(std::future::pending());
        assert_eq!(
            failed_after(Some(never)).await,
            (closed.to_owned(), EXIT_WAIT)
        );
        assert_eq!(
            failed_after(None).await,
            (closed.to_owned(), Duration::ZERO)
        );
    }
}
