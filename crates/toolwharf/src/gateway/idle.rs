//! Long streams without the HTTP machinery: a stream that says little should cost little.
//!
//! hyper keeps read and write buffers of 8 KB each for every connection. A `GET` stream and `subscriptions/listen` send
//! nothing for hours, so the connection is taken out of hyper ([`super::listener`]) and lives on as a socket, what it
//! carries, and this loop.

use std::{fmt::Write as _, future::poll_fn, io, sync::Arc, task::Poll, time::Duration};

use bytes::Bytes;
use http::HeaderName;
use mcp::{
    backlog::{Account, Charge},
    server::Reader,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{body::KEEP_ALIVE, listen::Listening, shares::Share};

/// A reader that takes nothing for so long is gone.
const STALLED: Duration = Duration::from_secs(60);

/// An event of fewer bytes is copied, so that it is one write.
const COPIED: usize = 4 << 10;

/// A stream that takes a connection over.
pub(crate) struct Takeover {
    pub(crate) stream: Source,
    /// An event before all others, ready to send.
    pub(crate) opening: Option<Bytes>,
    /// Of all streams. Revoked, this ends.
    pub(crate) share: Share,
    /// The session ends with the stream (HTTP+SSE).
    pub(crate) ends_session: bool,
    /// Headers besides those of every event stream.
    pub(crate) headers: Vec<(HeaderName, String)>,
}

/// Where the events of a stream come from.
pub(crate) enum Source {
    /// A legacy session.
    Session(Reader),
    /// A request of a modern client, which is over when the client is gone.
    Listen(Listening),
}

impl Source {
    /// The next event, ready to send; `None` at the end.
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

/// Sends the stream's events until it, the client or the product is gone.
///
/// # Errors
/// The socket's own, [`io::ErrorKind::TimedOut`] for a client that does not read, and
/// [`io::ErrorKind::ConnectionAborted`] for one that was cut off, since others needed the memory.
pub(crate) async fn run(
    socket: &mut TcpStream,
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
        // Nothing is awaited with a buffer in hand: an idle stream holds none.
        let event = tokio::select! {
            event = takeover.stream.next() => event,
            () = gone(socket) => return Ok(()),
            () = cut(account) => return Err(io::ErrorKind::ConnectionAborted.into()),
            () = takeover.share.over().cancelled() => None,
            () = tokio::time::sleep(KEEP_ALIVE) => {
                chunk(socket, account, b": \n\n").await?;
                continue;
            }
            // The other kind ends by itself, with an answer.
            () = over.cancelled(), if matches!(takeover.stream, Source::Session(_)) => None,
        };
        let Some(event) = event else { break };
        chunk(socket, account, &event).await?;
    }
    write(socket, b"0\r\n\r\n").await?;
    timeout(STALLED, socket.shutdown()).await.unwrap_or(Ok(()))
}

/// Waits until the client has closed. What it sends meanwhile is no request that could be answered here.
async fn gone(socket: &TcpStream) {
    loop {
        if socket.readable().await.is_err() {
            return;
        }
        let mut scrap = [0u8; 256];
        match socket.try_read(&mut scrap) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

async fn chunk(socket: &mut TcpStream, account: &Arc<Account>, data: &[u8]) -> io::Result<()> {
    let written = async {
        let head = format!("{:x}\r\n", data.len());
        if data.len() < COPIED {
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

/// Waits until the client is cut off: besides what is being written, what is queued for it may have been too much.
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

async fn write(socket: &mut TcpStream, data: &[u8]) -> io::Result<()> {
    timeout(STALLED, socket.write_all(data))
        .await
        .map_err(|_| io::ErrorKind::TimedOut)?
}

/// Reads and drops what the client still sends, for a moment: closing over unread input would reset the
/// connection and lose what was sent last.
pub(crate) async fn drain(socket: &mut TcpStream) {
    let mut scrap = [0u8; 1024];
    let reading = async { while matches!(socket.read(&mut scrap).await, Ok(n) if n > 0) {} };
    let _ = timeout(Duration::from_millis(200), reading).await;
}
