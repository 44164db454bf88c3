//! The standard streams of a server, over `attach`.
//!
//! A broken connection (because a kubelet or an API server restarts) is opened again while the server runs. Data in
//! flight may be lost. So both streams start a new line after a reconnection, and an incomplete line does not corrupt
//! the next one.
//!
//! stdout has a bounded buffer. While it is full, neither stdout nor stderr is read, and the server blocks as it would
//! on a pipe. Once the reader of stdout is gone or the server is killed, the rest is discarded. stdout of a server that
//! is reached on a port is treated like stderr: it logs there.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use kube::api::{AttachParams, LogParams};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout, timeout_at};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;

use super::api::{Call, Cluster, call};
use super::channels::{self, STATUS, STDERR, STDIN, STDOUT, Sink, Socket, Stream, message, piece};
use super::spec::SERVER_CONTAINER;
use runtime::handle::ProcessState;
use runtime::stderr::Splitter;

/// Capacity of the stdout buffer in bytes. A buffer that has grown keeps its memory.
pub(super) const BUFFER_BYTES: usize = 16 << 10;
/// Limit in bytes for reading the log that was written before the first connection.
const MAX_LOG_BYTES: i64 = 64 << 10;
/// Size of one message to stdin, in bytes.
const CHUNK_BYTES: usize = 8 << 10;
/// Interval of pings. Load balancers close connections that are idle for longer.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// A connection that receives nothing for this long counts as lost. A machine that loses power closes no connection.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(45);
const RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);
/// After this time, a connection is assumed to reach a running server.
const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// Timeout for output that was written before the first connection.
const EARLY_OUTPUT_TIMEOUT: Duration = Duration::from_millis(20);

pub(super) struct Pump {
    pub(super) cluster: Cluster,
    pub(super) pod: String,
    pub(super) shared: Arc<ProcessState>,
    /// True if the transport is stdio. Otherwise the server has no stdin.
    pub(super) has_streams: bool,
    pub(super) stdin: DuplexStream,
    pub(super) stdout: DuplexStream,
    /// Cancelled when the remaining output can be discarded.
    pub(super) killed: CancellationToken,
    /// Cancelled when the server has ended. Then connecting is pointless.
    pub(super) ended: CancellationToken,
}

/// Writes its stderr to the log.
struct Lines {
    shared: Arc<ProcessState>,
    splitter: Splitter,
}

impl Lines {
    fn write(&mut self, bytes: &[u8]) {
        let log = &self.shared.log;
        self.splitter.push(bytes, |line| log.push(line));
    }
}

impl Pump {
    /// Runs until the server and its streams have ended. `attached` is the first connection, if already open.
    pub(super) async fn run(self, attached: Option<Socket>) {
        let mut lines = Lines {
            shared: Arc::clone(&self.shared),
            splitter: Splitter::default(),
        };
        self.pump(&mut lines, attached).await;
        lines.splitter.finish(|line| lines.shared.log.push(line));
    }

    async fn pump(mut self, lines: &mut Lines, mut first: Option<Socket>) {
        let mut is_first = true;
        let mut out_ends_line = true;
        let mut pause = RETRY_DELAY;
        let mut has_failed = false;
        loop {
            let attached = match first.take() {
                Some(attached) => Ok(attached),
                None => tokio::select! {
                    attached = self.attach(has_failed) => attached,
                    () = self.ended.cancelled() => break,
                },
            };
            has_failed = attached.is_err();
            match attached {
                Ok(attached) => {
                    pause = RETRY_DELAY;
                    if !is_first && !out_ends_line {
                        let _ = self.stdout.write_all(b"\n").await;
                    }
                    self.converse(attached, lines, is_first, &mut out_ends_line)
                        .await;
                    is_first = false;
                }
                Err(error) => {
                    let error = runtime::unit::Error::from(error);
                    tracing::debug!(label = self.shared.label, "cannot attach: {error}");
                }
            }
            tokio::select! {
                () = sleep(pause) => pause = (2 * pause).min(MAX_RETRY_DELAY),
                () = self.ended.cancelled() => break,
            }
        }
        if is_first {
            // The server ended before a connection was possible.
            lines.write(self.written().await.as_bytes());
        }
    }

    /// Connects to the server's streams. `is_anew`: use a new client, because the last attempt failed.
    pub(super) async fn attach(&self, is_anew: bool) -> Result<Socket, Call> {
        let client = match is_anew {
            true => self.cluster.anew().map_err(Call::Other)?,
            false => self.cluster.client.clone(),
        };
        let params = AttachParams::default()
            .container(SERVER_CONTAINER)
            .stdin(self.has_streams)
            .stdout(true)
            .stderr(true);
        channels::attach(&self.cluster, &client, &self.pod, &params).await
    }

    /// Reads the node's log of everything that the server has written so far to both streams.
    async fn written(&self) -> String {
        let params = LogParams {
            container: Some(SERVER_CONTAINER.to_owned()),
            limit_bytes: Some(MAX_LOG_BYTES),
            ..LogParams::default()
        };
        let read = call(
            "read the log of a pod",
            self.cluster.pods.logs(&self.pod, &params),
        );
        read.await.unwrap_or_else(|error| match error {
            Call::Api(403, _) => "toolwharf: the server's first output is missing: Toolwharf is not permitted to read the log of its pod\n".to_owned(),
            _ => String::new(),
        })
    }

    /// Moves bytes until the connection ends.
    async fn converse(
        &mut self,
        socket: Socket,
        lines: &mut Lines,
        is_first: bool,
        out_ends_line: &mut bool,
    ) {
        let (mut sink, mut stream) = socket.split();
        let mut output = Vec::new();
        if is_first {
            // The server has received no request yet, so all output in the log is from stderr.
            let written = self.written().await;
            let (early, rest) = early(&mut stream).await;
            output = rest;
            lines.write(written.as_bytes());
            lines.write(&early[overlap(written.as_bytes(), &early)..]);
        } else if self.has_streams && sink.send(message(STDIN, b"\n")).await.is_err() {
            return;
        }
        let (stdin, stdout, killed) = (&mut self.stdin, &mut self.stdout, &self.killed);
        let reading = async {
            for bytes in output {
                let _ = stdout.write_all(&bytes).await;
            }
            while let Ok(Some(Ok(message))) = timeout(SILENCE_TIMEOUT, stream.next()).await {
                match piece(message) {
                    Some((STDOUT, bytes)) => {
                        *out_ends_line = bytes.ends_with(b"\n");
                        tokio::select! {
                            // An error means that the reader is gone, which is allowed.
                            _ = stdout.write_all(&bytes) => {}
                            () = killed.cancelled() => {}
                        }
                    }
                    Some((STDERR, bytes)) => {
                        lines.write(&bytes);
                    }
                    Some((STATUS, _)) => return,
                    _ => {}
                }
            }
        };
        let log = &self.shared.log;
        let settled = async {
            sleep(SETTLED_AFTER).await;
            if !is_first {
                log.note(
                    "toolwharf: the connection to the server's streams was lost and opened again",
                );
            }
            std::future::pending().await
        };
        tokio::select! {
            () = reading => {}
            () = settled => {}
            // When stdin ends, the output must still be read until the connection ends.
            () = async { send(stdin, &mut sink).await; std::future::pending().await } => {}
        }
    }
}

/// Sends stdin and pings until the connection fails. The end of the input is not sent, because it would end the whole
/// connection; a signal stops the server instead.
async fn send(stdin: &mut DuplexStream, sink: &mut Sink) {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut is_open = true;
    let mut ping = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let next = tokio::select! {
            read = stdin.read(&mut chunk), if is_open => match read {
                Ok(count @ 1..) => message(STDIN, &chunk[..count]),
                _ => {
                    is_open = false;
                    continue;
                }
            },
            _ = ping.tick() => Message::Ping(Bytes::new()),
        };
        if sink.send(next).await.is_err() {
            return;
        }
    }
}

/// Reads stderr that is already available, for at most [`EARLY_OUTPUT_TIMEOUT`]. Also returns the stdout received in
/// that time.
async fn early(stream: &mut Stream) -> (Vec<u8>, Vec<Bytes>) {
    let (mut errors, mut output) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + EARLY_OUTPUT_TIMEOUT;
    while errors.is_empty()
        && let Ok(Some(Ok(message))) = timeout_at(deadline, stream.next()).await
    {
        match piece(message) {
            Some((STDERR, bytes)) => errors.extend_from_slice(&bytes),
            Some((STDOUT, bytes)) => output.push(bytes),
            _ => {}
        }
    }
    (errors, output)
}

/// Returns the length of the longest start of `new` that is also the end of `old`.
fn overlap(old: &[u8], new: &[u8]) -> usize {
    let most = old.len().min(new.len());
    let lengths = (1..=most).rev();
    lengths
        .into_iter()
        .find(|&length| old.ends_with(&new[..length]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::overlap;

    #[test]
    fn what_came_twice_is_counted_once() {
        for (old, new, length) in [
            ("", "", 0),
            ("a\nb\n", "", 0),
            ("", "a\n", 0),
            ("a\nb\n", "b\n", 2),
            ("a\nb\n", "b\nc\n", 2),
            ("a\nb\n", "a\nb\n", 4),
            ("a\nb\n", "c\n", 0),
            ("a\n", "a\na\n", 2),
        ] {
            assert_eq!(
                overlap(old.as_bytes(), new.as_bytes()),
                length,
                "{old:?} {new:?}"
            );
        }
    }
}
