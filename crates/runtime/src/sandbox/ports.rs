//! Publishes ports of a server with its own network namespace on the host's loopback.
//!
//! # Invariants
//!
//! - Data is copied directly between the two sockets. The helper inside only creates sockets.
//! - The number of connections is limited. Further ones wait in the kernel's queue and then fail.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::channel::receive;
use super::shim::CONNECTED;
use crate::ports::Listeners;
use crate::pump::pump;

const MAX_CONNECTIONS: usize = 256;
/// Timeout for an answer from the helper, longer than the helper's own timeout.
const HELPER_TIMEOUT: Duration = Duration::from_secs(12);

pub(super) struct Forward {
    helper: UnixStream,
    /// Port numbers in the order known to the helper, which addresses them by index.
    ports: Vec<u16>,
    listeners: Listeners,
}

impl Forward {
    pub(super) fn new(helper: OwnedFd, ports: Vec<u16>, listeners: Listeners) -> io::Result<Self> {
        let helper = std::os::unix::net::UnixStream::from(helper);
        helper.set_nonblocking(true)?;
        let helper = UnixStream::from_std(helper)?;
        Ok(Self {
            helper,
            ports,
            listeners,
        })
    }

    /// Forwards connections until dropped or until the helper is gone.
    pub(super) async fn run(mut self) {
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            if connections.len() >= MAX_CONNECTIONS {
                connections.join_next().await;
            }
            let (port, stream) = self.listeners.accept().await;
            match timeout(HELPER_TIMEOUT, self.inside(port)).await {
                Ok(Ok(Some(inside))) => {
                    connections.spawn(pump(stream, inside));
                }
                // Nothing listens on the port. The connection is closed, as it would be for a client inside.
                Ok(Ok(None)) => {}
                Ok(Err(_)) | Err(_) => return,
            }
        }
    }

    async fn inside(&mut self, port: u16) -> io::Result<Option<TcpStream>> {
        let index = self.ports.iter().position(|known| *known == port);
        let index = index.and_then(|index| u8::try_from(index).ok());
        let index = index.ok_or(io::ErrorKind::InvalidInput)?;
        self.helper.write_all(&[index]).await?;
        match receive(&self.helper).await? {
            (Some(CONNECTED), _, mut sockets) => {
                let socket = sockets.pop().ok_or(io::ErrorKind::InvalidData)?;
                let stream = std::net::TcpStream::from(socket);
                stream.set_nonblocking(true)?;
                Ok(Some(TcpStream::from_std(stream)?))
            }
            (Some(_), ..) => Ok(None),
            (None, ..) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
