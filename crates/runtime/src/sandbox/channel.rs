//! The host's ends of the sockets to a shim and to its helper.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;

use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::Pid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;

use super::shim::{FAILED, GO, Order, READY};

/// Limit for an error text from a shim; longer texts are cut.
const MAX_ERROR_BYTES: u64 = 1024;

#[derive(Debug)]
pub(super) struct Channel(UnixStream);

/// The reply of a shim that has completed all preparations and waits to become the server.
#[derive(Debug)]
pub(super) struct Ready {
    /// As reported by the kernel, not by the shim.
    pub(super) pid: Option<Pid>,
    pub(super) sockets: Vec<OwnedFd>,
}

impl Channel {
    /// Creates a channel and the shim's end of it.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = StdStream::pair()?;
        set_socket_passcred(&ours, true)?;
        ours.set_nonblocking(true)?;
        Ok((Self(UnixStream::from_std(ours)?), theirs.into()))
    }

    /// Sends the order and waits for the reply. `Ok(Err)` is the error that the shim reported. An I/O error means that
    /// the stream ended: no shim was started.
    pub(super) async fn order(&mut self, order: &Order) -> io::Result<Result<Ready, String>> {
        self.0.write_all(&order.encode()).await?;
        let (word, pid, sockets) = receive(&self.0).await?;
        match word {
            Some(READY) => Ok(Ok(Ready { pid, sockets })),
            Some(FAILED) => Ok(Err(self.text().await)),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Lets the shim become the server.
    pub(super) async fn go(&mut self) -> io::Result<Result<(), String>> {
        self.0.write_all(&[GO]).await?;
        let mut word = [0];
        match self.0.read(&mut word).await? {
            // The shim's end was closed by its `exec`: it is the server now.
            0 => Ok(Ok(())),
            _ if word == [FAILED] => Ok(Err(self.text().await)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    async fn text(&mut self) -> String {
        let mut text = Vec::new();
        let _ = (&mut self.0)
            .take(MAX_ERROR_BYTES)
            .read_to_end(&mut text)
            .await;
        String::from_utf8_lossy(&text).escape_debug().to_string()
    }
}

/// Receives one byte, with the sender's process id and the descriptors sent along. No byte means the end of the stream.
pub(super) async fn receive(
    stream: &UnixStream,
) -> io::Result<(Option<u8>, Option<Pid>, Vec<OwnedFd>)> {
    stream
        .async_io(Interest::READABLE, || {
            let mut byte = [0];
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2), ScmCredentials(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let received = recvmsg(
                stream.as_fd(),
                &mut [IoSliceMut::new(&mut byte)],
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            )?;
            let (mut pid, mut sockets) = (None, Vec::new());
            for message in ancillary.drain() {
                match message {
                    RecvAncillaryMessage::ScmRights(descriptors) => sockets.extend(descriptors),
                    RecvAncillaryMessage::ScmCredentials(who) => pid = Some(who.pid),
                    _ => {}
                }
            }
            let byte = (received.bytes > 0).then_some(byte[0]);
            Ok((byte, pid, sockets))
        })
        .await
}
