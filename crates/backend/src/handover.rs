//! The socket pair of an upgrade, between the old gateway and the new one: messages with file descriptors
//! (docs/decisions/0024).
//!
//! Each message is one packet of JSON. Invariant: a message of an unknown type is ignored, so that two versions understand
//! each other. Deliberately absent: the order of the messages, which `toolwharf::upgrade` determines.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    cmsg_space,
    io::ioctl_fionbio,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
        sockopt::socket_type,
    },
};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;

/// Set for a gateway whose standard input is its end of the socket pair.
pub const VARIABLE: &str = "TOOLWHARF_UPGRADE";

/// Maximum bytes of a message.
const MAX_MESSAGE_BYTES: usize = 16 << 10;
/// Maximum descriptors of a message.
const MAX_PASSED: usize = 8;

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    /// From the old gateway, with the lock of the data directory, the listener for clients, and the listener of the Apps
    /// if there is one.
    Begin {
        /// The user chose the port.
        is_fixed: bool,
        /// The period of the service manager's watchdog, in microseconds.
        watchdog: Option<u64>,
        /// The schema version of the old gateway's program.
        schema: i64,
    },
    /// From the new gateway: it can serve.
    Ready,
    /// From the new gateway: it exits.
    Failed { why: String },
    /// From the old gateway: the new one must serve, whatever happens to the old one.
    Go,
    /// From the old gateway: the service manager knows the new one, which serves from now on.
    Serve,
    /// From the old gateway, with the connection of a client.
    Connection,
    /// From another version.
    #[serde(other)]
    Unknown,
}

/// One end of the socket pair. It is also closed when its process ends.
#[derive(Debug)]
pub struct Channel(AsyncFd<OwnedFd>);

impl Channel {
    /// Creates a socket pair. Returns this process's end, and the end for the new gateway.
    ///
    /// # Errors
    /// Too many open files.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (own, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self::new(own)?, other))
    }

    /// The end that this process got as its standard input.
    ///
    /// # Errors
    /// The standard input is something else.
    pub fn of_stdin() -> io::Result<Self> {
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        if socket_type(&socket)? != SocketType::SEQPACKET {
            return Err(io::Error::other("it is not a socket of packets"));
        }
        ioctl_fionbio(&socket, true)?;
        Self::new(socket)
    }

    fn new(socket: OwnedFd) -> io::Result<Self> {
        #[expect(
            deprecated,
            reason = "its replacement is unsafe, because of types whose descriptor can change; this type is not one of them"
        )]
        AsyncFd::new(socket).map(Self)
    }

    /// Sends a message. Waits while the other process has not read the earlier ones.
    ///
    /// # Errors
    /// The other process has closed its end, or the kernel refuses the descriptors.
    ///
    /// # Cancel safety
    /// Cancel safe: the message is either sent or not.
    pub async fn send(&self, message: &Message, passed: &[BorrowedFd<'_>]) -> io::Result<()> {
        let text = serde_json::to_vec(message).map_err(io::Error::other)?;
        loop {
            let mut guard = self.0.writable().await?;
            if let Ok(sent) = guard.try_io(|socket| send(socket.get_ref(), &text, passed)) {
                return sent;
            }
        }
    }

    /// Returns the next message and its descriptors; `None` if the other process has closed its end.
    ///
    /// # Errors
    /// I/O errors of the socket.
    ///
    /// # Cancel safety
    /// Cancel safe: no message is lost.
    pub async fn receive(&self) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
        loop {
            let mut guard = self.0.readable().await?;
            match guard.try_io(|socket| receive(socket.get_ref())) {
                // The other process died before it had read everything.
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Ok(None);
                }
                Ok(received) => return received,
                Err(_would_block) => {}
            }
        }
    }
}

/// Sends a packet with descriptors.
pub(crate) fn send(socket: impl AsFd, text: &[u8], passed: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_PASSED))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !passed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(passed)) {
        return Err(io::Error::other("too many descriptors"));
    }
    sendmsg(
        socket,
        &[IoSlice::new(text)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

fn receive(socket: &OwnedFd) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
    let mut text = vec![0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_PASSED))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut text)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut passed = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            passed.extend(descriptors);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let message = serde_json::from_slice(&text[..received.bytes]);
    Ok(Some((message.unwrap_or(Message::Unknown), passed)))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read as _, Write as _},
    };

    use super::*;

    #[tokio::test]
    async fn messages_and_descriptors_arrive_until_the_other_end_is_closed() {
        let (old, new) = Channel::pair().unwrap();
        let new = Channel::new(new).unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let begin = Message::Begin {
            is_fixed: true,
            watchdog: None,
            schema: 1,
        };
        old.send(&begin, &[writer.as_fd()]).await.unwrap();
        drop(writer);
        let (message, mut passed) = new.receive().await.unwrap().unwrap();
        assert!(
            matches!(message, Message::Begin { is_fixed: true, .. }),
            "{message:?}"
        );
        File::from(passed.remove(0)).write_all(b"x").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");

        send(new.0.get_ref(), b"{\"type\":\"of a later version\"}", &[]).unwrap();
        let (message, _) = old.receive().await.unwrap().unwrap();
        assert!(matches!(message, Message::Unknown), "{message:?}");

        // It has not read this message.
        old.send(&Message::Go, &[]).await.unwrap();
        drop(new);
        assert!(old.receive().await.unwrap().is_none());
        assert!(old.send(&Message::Go, &[]).await.is_err());
    }
}
