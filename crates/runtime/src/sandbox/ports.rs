//! Ports of a server that has a network of its own, brought to the host's loopback.
//!
//! # Invariants
//!
//! - The data goes from one socket to the other without a process between; the helper inside only
//!   makes sockets.
//! - Connections are bounded; those beyond wait in the kernel's queue, and then fail.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::channel::receive;
use super::shim::CONNECTED;
use crate::pump::pump;

const CONNECTIONS: usize = 256;
/// Longer than the helper itself takes.
const HELPER: Duration = Duration::from_secs(12);
/// After a failed `accept`, which is for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Forward {
    helper: UnixStream,
    listeners: Vec<(u8, TcpListener)>,
}

impl Forward {
    /// Listens for each of `ports`; where.
    pub(super) async fn new(
        helper: OwnedFd,
        ports: &[u16],
    ) -> io::Result<(Self, BTreeMap<u16, SocketAddr>)> {
        let helper = std::os::unix::net::UnixStream::from(helper);
        helper.set_nonblocking(true)?;
        let helper = UnixStream::from_std(helper)?;
        let (mut listeners, mut addresses) = (Vec::new(), BTreeMap::new());
        for (index, &port) in (0..=u8::MAX).zip(ports) {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            addresses.insert(port, listener.local_addr()?);
            listeners.push((index, listener));
        }
        Ok((Self { helper, listeners }, addresses))
    }

    /// Forwards until it is dropped, or the helper is gone.
    pub(super) async fn run(mut self) {
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            if connections.len() >= CONNECTIONS {
                connections.join_next().await;
            }
            let (index, accepted) = self.accept().await;
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            match timeout(HELPER, self.inside(index)).await {
                Ok(Ok(Some(inside))) => {
                    connections.spawn(pump(stream, inside));
                }
                // Nobody listens there: it is closed, which is what the caller would see inside.
                Ok(Ok(None)) => {}
                Ok(Err(_)) | Err(_) => return,
            }
        }
    }

    async fn accept(&self) -> (u8, io::Result<(TcpStream, SocketAddr)>) {
        let accepts = self
            .listeners
            .iter()
            .map(|(index, listener)| Box::pin(async move { (*index, listener.accept().await) }));
        futures_util::future::select_all(accepts).await.0
    }

    async fn inside(&mut self, index: u8) -> io::Result<Option<TcpStream>> {
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
