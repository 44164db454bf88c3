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

use kube::api::{AttachParams, AttachedProcess, LogParams};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::api::{Call, Cluster, call};
use super::spec::SERVER;
use crate::handle::ProcessState;

/// As much as a pipe holds.
pub(super) const BUFFER: usize = 64 << 10;
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A connection that lasts so long is one to a server that runs.
const SETTLED: Duration = Duration::from_secs(2);
/// How long the last bytes of a connection that broke may take to be read.
const LAST: Duration = Duration::from_millis(500);
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

impl Pump {
    /// Until the server has ended, and its streams have. `attached` is the first connection, if there is one yet.
    pub(super) async fn run(self, attached: Option<AttachedProcess>) {
        let (lines, log) = duplex(BUFFER);
        let shared = Arc::clone(&self.shared);
        tokio::join!(self.pump(lines, attached), shared.log.fill(log));
    }

    async fn pump(mut self, mut lines: DuplexStream, mut first: Option<AttachedProcess>) {
        let mut is_first = true;
        let mut out_ends_line = true;
        let mut pause = PAUSE;
        loop {
            let attached = match first.take() {
                Some(attached) => Ok(attached),
                None => tokio::select! {
                    attached = self.attach() => attached,
                    () = self.ended.cancelled() => break,
                },
            };
            match attached {
                Ok(attached) => {
                    pause = PAUSE;
                    if !is_first && !out_ends_line {
                        let _ = self.stdout.write_all(b"\n").await;
                    }
                    self.converse(attached, &mut lines, is_first, &mut out_ends_line)
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
            let _ = lines.write_all(self.written().await.as_bytes()).await;
        }
    }

    pub(super) async fn attach(&self) -> Result<AttachedProcess, Call> {
        let params = AttachParams::default()
            .container(SERVER)
            .stdin(self.has_streams)
            .stdout(true)
            .stderr(true)
            .max_stdin_buf_size(BUFFER)
            .max_stdout_buf_size(BUFFER)
            .max_stderr_buf_size(BUFFER);
        call(
            "attach to a pod",
            self.cluster.pods.attach(&self.pod, &params),
        )
        .await
    }

    /// All that it has written so far, both streams, as the node has kept it.
    async fn written(&self) -> String {
        let params = LogParams {
            container: Some(SERVER.to_owned()),
            limit_bytes: Some(BUFFER as i64),
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
        mut attached: AttachedProcess,
        lines: &mut DuplexStream,
        is_first: bool,
        out_ends_line: &mut bool,
    ) {
        let mut input = attached.stdin();
        let (Some(mut output), Some(mut errors)) = (attached.stdout(), attached.stderr()) else {
            return;
        };
        if is_first {
            // Nobody has spoken to it yet: what it wrote, it wrote to stderr.
            let written = self.written().await;
            let early = early(&mut errors).await;
            let _ = lines.write_all(written.as_bytes()).await;
            let _ = lines
                .write_all(&early[overlap(written.as_bytes(), &early)..])
                .await;
        } else if let Some(input) = &mut input
            && input.write_all(b"\n").await.is_err()
        {
            return;
        }
        let status = attached.take_status();
        let broken = async {
            // With a status the streams come to their end. Without one they may stay open for ever: the halves of kube's pipes
            // do not close when they are dropped.
            let said = match status {
                Some(status) => status.await,
                None => None,
            };
            match said {
                Some(_) => std::future::pending().await,
                None => sleep(LAST).await,
            }
        };
        let (stdin, stdout, killed) = (&mut self.stdin, &mut self.stdout, &self.killed);
        let writing = async move {
            let mut chunk = vec![0; BUFFER];
            loop {
                match (&mut input, stdin.read(&mut chunk).await) {
                    (Some(input), Ok(count)) if count > 0 => {
                        let sent = async {
                            input.write_all(&chunk[..count]).await?;
                            input.flush().await
                        };
                        if sent.await.is_err() {
                            return;
                        }
                    }
                    // The end of the input would be the end of the whole connection: it is stopped by a signal.
                    _ => {
                        killed.cancelled().await;
                        let _keep = &input;
                        return;
                    }
                }
            }
        };
        let reading = async {
            let mut chunk = vec![0; BUFFER];
            while let Ok(count) = output.read(&mut chunk).await
                && count > 0
            {
                *out_ends_line = chunk[count - 1] == b'\n';
                tokio::select! {
                    // Its reader is gone, and may be so.
                    _ = stdout.write_all(&chunk[..count]) => {}
                    () = killed.cancelled() => {}
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
        let logging = tokio::io::copy(&mut errors, lines);
        let reading = async { tokio::join!(reading, logging) };
        tokio::select! {
            _ = reading => {}
            () = settled => {}
            () = broken => {}
            // Both end with the connection; the output has more to say.
            () = async { writing.await; std::future::pending().await } => {}
        }
    }
}

/// Reads the output that is there already, for at most [`EARLY`].
async fn early(errors: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut early = vec![0; BUFFER];
    let count = timeout(EARLY, errors.read(&mut early)).await;
    early.truncate(count.ok().and_then(Result::ok).unwrap_or(0));
    early
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
