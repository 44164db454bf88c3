//! The standard streams of a server, over `attach`.
//!
//! A connection that breaks off (a kubelet or an API server that is restarted) is made again for as long as the server runs.
//! What was on its way may be lost, so that both streams begin a new line then: half a line does not spoil the next one.
//!
//! stdout has a bounded buffer; while it is full, nothing is read, stderr neither, and the server stalls as it would on a
//! pipe. Once the reader of stdout has gone, or the server is killed, the rest is thrown away. stdout of a server that is
//! reached at a port is as good as stderr: it logs there.

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
use super::spec::SERVER;
use crate::handle::ProcessState;
use crate::stderr::Splitter;

/// As much as waits for its reader. It stays as large as it once was.
pub(super) const BUFFER: usize = 16 << 10;
/// Of the log that was written before anybody listened.
const WRITTEN: i64 = 64 << 10;
/// What is sent at a time.
const CHUNK: usize = 8 << 10;
/// How often the other end is pinged. Load balancers close connections that are silent for longer.
const PING: Duration = Duration::from_secs(15);
/// A connection counts as lost when nothing has come for this long. A machine that loses its power closes nothing.
const SILENCE: Duration = Duration::from_secs(45);
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A connection that lasts so long is one to a server that runs.
const SETTLED: Duration = Duration::from_secs(2);
/// How long what was written before the first connection may take to arrive.
const EARLY: Duration = Duration::from_millis(20);

pub(super) struct Pump {
    pub(super) cluster: Cluster,
    pub(super) pod: String,
    pub(super) shared: Arc<ProcessState>,
    /// Whether it is spoken to over its streams: else it has no stdin.
    pub(super) has_streams: bool,
    pub(super) stdin: DuplexStream,
    pub(super) stdout: DuplexStream,
    /// Nobody needs the rest.
    pub(super) killed: CancellationToken,
    /// The server has ended: there is nothing to connect to.
    pub(super) ended: CancellationToken,
}

/// What it writes to stderr, on its way into the log.
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
    /// Until the server has ended, and its streams have. `attached` is the first connection, if there is one yet.
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
        let mut pause = PAUSE;
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
                    pause = PAUSE;
                    if !is_first && !out_ends_line {
                        let _ = self.stdout.write_all(b"\n").await;
                    }
                    self.converse(attached, lines, is_first, &mut out_ends_line)
                        .await;
                    is_first = false;
                }
                Err(error) => {
                    let error = crate::unit::Error::from(error);
                    tracing::debug!(label = self.shared.label, "cannot attach: {error}");
                }
            }
            tokio::select! {
                () = sleep(pause) => pause = (2 * pause).min(PAUSE_MAX),
                () = self.ended.cancelled() => break,
            }
        }
        if is_first {
            // It was gone before anybody could listen.
            lines.write(self.written().await.as_bytes());
        }
    }

    /// `is_anew`: over a new client, because the last attempt failed.
    pub(super) async fn attach(&self, is_anew: bool) -> Result<Socket, Call> {
        let client = match is_anew {
            true => self.cluster.anew().map_err(Call::Other)?,
            false => self.cluster.client.clone(),
        };
        let params = AttachParams::default()
            .container(SERVER)
            .stdin(self.has_streams)
            .stdout(true)
            .stderr(true);
        channels::attach(&self.cluster, &client, &self.pod, &params).await
    }

    /// All that it has written so far, both streams, as the node has kept it.
    async fn written(&self) -> String {
        let params = LogParams {
            container: Some(SERVER.to_owned()),
            limit_bytes: Some(WRITTEN),
            ..LogParams::default()
        };
        let read = call(
            "read the log of a pod",
            self.cluster.pods.logs(&self.pod, &params),
        );
        read.await.unwrap_or_else(|error| match error {
            Call::Api(403, _) => "toolwharf: what it wrote first is not known: there is no leave to read the log of its pod\n".to_owned(),
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
            // Nobody has spoken to it yet: what it wrote, it wrote to stderr.
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
            while let Ok(Some(Ok(message))) = timeout(SILENCE, stream.next()).await {
                match piece(message) {
                    Some((STDOUT, bytes)) => {
                        *out_ends_line = bytes.ends_with(b"\n");
                        tokio::select! {
                            // Its reader is gone, and may be so.
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
            sleep(SETTLED).await;
            if !is_first {
                log.note("toolwharf: the connection to its streams broke off, and was made again");
            }
            std::future::pending().await
        };
        tokio::select! {
            () = reading => {}
            () = settled => {}
            // It ends with the connection; the output has more to say.
            () = async { send(stdin, &mut sink).await; std::future::pending().await } => {}
        }
    }
}

/// Sends what is read, and pings, until the connection fails. The end of the input would be the end
/// of the whole connection: a server is stopped by a signal.
async fn send(stdin: &mut DuplexStream, sink: &mut Sink) {
    let mut chunk = vec![0; CHUNK];
    let mut is_open = true;
    let mut ping = interval_at(Instant::now() + PING, PING);
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

/// Reads the stderr that is there already, for at most [`EARLY`]; and the output that comes meanwhile.
async fn early(stream: &mut Stream) -> (Vec<u8>, Vec<Bytes>) {
    let (mut errors, mut output) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + EARLY;
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

/// How much of the beginning of `new` is the end of `old`.
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
