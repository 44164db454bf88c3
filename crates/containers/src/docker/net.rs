//! The network of a container: its connections to other hosts, and its published ports.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    net::SocketAddr,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::PathBuf,
};

use runtime::{egress::Allowed, ports::Listeners};

/// The network of a container, apart from its streams.
pub(super) struct Net {
    /// The allow-list and the namespace for the egress proxy.
    pub(super) held: Option<(Allowed, Held)>,
    /// The addresses on which its ports are published.
    pub(super) addresses: BTreeMap<u16, SocketAddr>,
    /// The relay's file and its listeners. `None`: there are no ports, or the daemon publishes them.
    pub(super) relay: Option<(PathBuf, Listeners)>,
}

/// A network namespace with a listener in it.
pub(super) struct Held {
    /// Container id of the holder.
    pub(super) id: String,
    pub(super) address: SocketAddr,
    pub(super) listener: OwnedFd,
    pub(super) space: Space,
}

/// Identifies a network namespace by device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Space(u64, u64);

pub(super) fn path(pid: i64) -> String {
    format!("/proc/{pid}/ns/net")
}

impl Space {
    /// The namespace of a process of this host.
    pub(super) fn of(pid: i64) -> io::Result<Self> {
        Self::read(&File::open(path(pid))?)
    }

    pub(super) fn read(file: &File) -> io::Result<Self> {
        let file = file.metadata()?;
        Ok(Self(file.dev(), file.ino()))
    }
}
