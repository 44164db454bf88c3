//! Long-lived streams, served without hyper to keep them cheap.
//!
//! hyper keeps an 8 KB read buffer and an 8 KB write buffer for every connection. A `GET` stream or
//! `subscriptions/listen` may send nothing for hours, so its connection is taken out of hyper ([`super::listener`]).
//! Only a socket, the stream's state and this loop remain.

use std::{fmt::Write as _, future::poll_fn, io, pin::Pin, sync::Arc, task::Poll, time::Duration};

use bytes::Bytes;
use http::HeaderName;
use mcp::{
    backlog::{Account, Charge},
    outbox::Outbox,
    server::Reader,
    sse,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    body::{KEEP_ALIVE, Unread, poll_request},
    shares::Share,
    socket::Socket,
};

/// Write timeout. A client that reads nothing for this long is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Events smaller than this are copied into one buffer, so that they need only one write.
const COPY_BELOW_BYTES: usize = 4 << 10;

/// A stream that takes a connection over.
pub(crate) struct Takeover {
    pub(crate) stream: Source,
    /// An encoded event to send before all others.
    pub(crate) opening: Option<Bytes>,
    /// The stream's share of the event-stream limit. When it is revoked, the stream ends.
    pub(crate) share: Share,
    /// The session ends with the stream (HTTP+SSE).
    pub(crate) ends_session: bool,
    /// Headers to send in addition to the usual ones of an event stream.
    pub(crate) headers: Vec<(HeaderName, String)>,
}

/// The origin of a stream's events.
pub(crate) enum Source {
    /// A legacy session.
    Session(Reader),
    /// A request of a modern client. The request ends when the client disconnects.
    Listen(Listening),
}

impl Source {
    /// The next event, encoded; `None` at the end.
    ///
    /// # Cancel safety
    /// Cancel safe.
    async fn next(&mut self) -> Option<Bytes> {
        match self {
            Self::Session(reader) => reader.next().await,
            Self::Listen(listening) => listening.next().await,
        }
    }
}

/// Sends the stream's events until the stream, the client or the gateway ends.
///
/// # Errors
/// I/O errors of the socket; [`io::ErrorKind::TimedOut`] if the client does not read;
/// [`io::ErrorKind::ConnectionAborted`] if the client was cut off because other clients needed the memory.
pub(crate) async fn run(
    socket: &mut Socket,
    takeover: &mut Takeover,
    account: &Arc<Account>,
    over: &CancellationToken,
) -> io::Result<()> {
    let mut head = String::from(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n\
         x-accel-buffering: no\r\ntransfer-encoding: chunked\r\nconnection: close\r\n",
    );
    for (name, value) in &takeover.headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    head.push_str("\r\n");
    write(socket, head.as_bytes()).await?;
    if let Some(opening) = &takeover.opening {
        chunk(socket, account, opening).await?;
    }
    loop {
        // No buffer lives across this await, so an idle stream has none.
        let event = tokio::select! {
            event = takeover.stream.next() => event,
            () = gone(socket) => return Ok(()),
            () = cut(account) => return Err(io::ErrorKind::ConnectionAborted.into()),
            () = takeover.share.over().cancelled() => None,
            () = tokio::time::sleep(KEEP_ALIVE) => {
                chunk(socket, account, b": \n\n").await?;
                continue;
            }
            // Only for session streams: a listen stream ends with a response when the gateway stops.
            () = over.cancelled(), if matches!(takeover.stream, Source::Session(_)) => None,
        };
        let Some(event) = event else { break };
        chunk(socket, account, &event).await?;
    }
    write(socket, b"0\r\n\r\n").await?;
    timeout(WRITE_TIMEOUT, socket.shutdown())
        .await
        .unwrap_or(Ok(()))
}

/// Waits until the client has closed the connection. Any input is discarded: no further request can be answered on it.
async fn gone(socket: &mut Socket) {
    poll_fn(|cx| {
        // The buffer is not part of the future.
        let mut scrap = [0u8; 256];
        loop {
            let mut read = ReadBuf::new(&mut scrap);
            match Pin::new(&mut *socket).poll_read(cx, &mut read) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) if !read.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(()),
            }
        }
    })
    .await;
}

async fn chunk(socket: &mut Socket, account: &Arc<Account>, data: &[u8]) -> io::Result<()> {
    let written = async {
        let head = format!("{:x}\r\n", data.len());
        if data.len() < COPY_BELOW_BYTES {
            let mut out = head.into_bytes();
            out.extend_from_slice(data);
            out.extend_from_slice(b"\r\n");
            return write(socket, &out).await;
        }
        let _charge = Charge::new(account, data.len());
        account.backlog().settle();
        write(socket, head.as_bytes()).await?;
        write(socket, data).await?;
        write(socket, b"\r\n").await
    };
    tokio::select! {
        biased;
        () = cut(account) => Err(io::ErrorKind::ConnectionAborted.into()),
        written = written => written,
    }
}

/// Waits until the client is cut off. Its queued messages count, and so does the event that is being written.
async fn cut(account: &Account) {
    poll_fn(|cx| {
        account.register(cx.waker());
        if account.is_cut() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

async fn write(socket: &mut Socket, data: &[u8]) -> io::Result<()> {
    let written = async {
        socket.write_all(data).await?;
        // TLS keeps data that the socket does not take at once.
        socket.flush().await
    };
    timeout(WRITE_TIMEOUT, written)
        .await
        .map_err(|_| io::ErrorKind::TimedOut)?
}

/// Briefly reads and discards remaining input. Closing a socket with unread input would reset the connection and lose
/// the last data that was sent.
pub(crate) async fn drain(socket: &mut (impl AsyncRead + Unpin)) {
    let mut scrap = [0u8; 1024];
    let reading = async { while matches!(socket.read(&mut scrap).await, Ok(n) if n > 0) {} };
    let _ = timeout(Duration::from_millis(200), reading).await;
}

/// The stream of one request. Dropping it cancels the request.
pub(crate) struct Listening {
    pub outbox: Arc<Outbox>,
    /// `None` once the request is answered.
    pub answering: Option<AbortOnDropHandle<Unread>>,
    pub answer: Option<Unread>,
}

impl Listening {
    /// The next event, encoded. The last one is the response.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        let Self {
            outbox,
            answering,
            answer,
        } = self;
        let message = poll_fn(|cx| poll_request(outbox, answering, answer, cx)).await?;
        Some(sse::encode(Some("message"), None, &message))
    }
}
