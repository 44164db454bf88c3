//! The standard streams of a container, which arrive as one stream.
//!
//! stdout has a bounded buffer. While it is full, neither stdout nor stderr is read, and the container blocks as it
//! would on a pipe. Once the reader of stdout is gone or the container is killed, the rest is discarded: a daemon only
//! completes a container's exit after its streams have been read.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bollard::container::{AttachContainerResults, LogOutput};
use futures_util::StreamExt as _;
use tokio::io::{AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use runtime::handle::ProcessState;
use runtime::unit;

/// The capacity of a pipe, in bytes.
const BUFFER_BYTES: usize = 64 << 10;

type Input = Pin<Box<dyn AsyncWrite + Send>>;

/// Writes to a container's stdin. Dropping it closes stdin.
pub(super) struct Stdin {
    /// `None` only while this is being dropped.
    input: Option<Input>,
    closing: Option<oneshot::Sender<Input>>,
}

/// Copies the daemon's stream to its destinations.
pub(super) struct Pump {
    attached:
        Pin<Box<dyn futures_util::Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>,
    closing: oneshot::Receiver<Input>,
    closes: bool,
    /// `None`: stdout is treated like stderr, because a server that is reached over HTTP logs there.
    stdout: Option<DuplexStream>,
}

/// Creates the streams for talking to a container, if it is bridged, and the pump that moves their data. `closes`: true
/// if the end of stdin is passed on to the container; false if passing it on would end the whole stream.
pub(super) fn streams(
    is_bridged: bool,
    attached: AttachContainerResults,
    closes: bool,
) -> (Option<unit::Stdio>, Pump) {
    let (closing, closed) = oneshot::channel();
    let (ours, theirs) = duplex(BUFFER_BYTES);
    let stdin = Stdin {
        input: Some(attached.input),
        closing: Some(closing),
    };
    let stdio = unit::Stdio {
        stdin: Box::new(stdin),
        stdout: Box::new(theirs),
    };
    let pump = Pump {
        attached: attached.output,
        closing: closed,
        closes: closes && is_bridged,
        stdout: is_bridged.then_some(ours),
    };
    (is_bridged.then_some(stdio), pump)
}

impl Pump {
    /// Runs until the stream ends.
    ///
    /// `killed` ends a wait for the reader of stdout.
    pub(super) async fn run(self, shared: Arc<ProcessState>, killed: CancellationToken) {
        let Self {
            mut attached,
            closing,
            closes,
            mut stdout,
        } = self;
        let (mut lines, log) = duplex(BUFFER_BYTES);
        let moving = async move {
            let bridged = stdout.is_some();
            while let Some(Ok(output)) = attached.next().await {
                match (output, &mut stdout) {
                    (LogOutput::StdOut { message }, Some(pipe)) => {
                        tokio::select! {
                            // An error means that the reader is gone, which is allowed.
                            _ = pipe.write_all(&message) => {}
                            () = killed.cancelled() => stdout = None,
                        }
                    }
                    (LogOutput::StdOut { .. }, None) if bridged => {}
                    (LogOutput::StdOut { message } | LogOutput::StdErr { message }, _) => {
                        let _ = lines.write_all(&message).await;
                    }
                    (LogOutput::StdIn { .. } | LogOutput::Console { .. }, _) => {}
                }
            }
        };
        let closer = async move {
            let mut input = closing.await;
            if let Ok(input) = &mut input
                && closes
            {
                // Closing fails if the container has already closed its stdin.
                let _ = input.shutdown().await;
            }
            std::future::pending::<()>().await;
        };
        let moving = async { tokio::join!(moving, shared.log.fill(log)) };
        tokio::select! {
            _ = moving => {}
            () = closer => {}
        }
    }
}

impl Drop for Stdin {
    fn drop(&mut self) {
        if let (Some(input), Some(closing)) = (self.input.take(), self.closing.take()) {
            // If the stream has ended, nothing receives the input, and it is dropped.
            let _ = closing.send(input);
        }
    }
}

impl Stdin {
    fn input(&mut self) -> io::Result<Pin<&mut (dyn AsyncWrite + Send + 'static)>> {
        let input = self.input.as_mut();
        Ok(input.ok_or(io::ErrorKind::BrokenPipe)?.as_mut())
    }
}

impl AsyncWrite for Stdin {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.input()?.poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input()?.poll_shutdown(cx)
    }
}
