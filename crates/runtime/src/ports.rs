//! Publishes ports of sandboxed servers on this host.
//!
//! # Invariants
//!
//! - All listeners are on loopback.
//! - A chosen port is on [`CHOSEN_ADDRESS`]. Browsers send the cookies of a host to all of its ports, and the console is usually
//!   on 127.0.0.1. A port given in the configuration, or chosen by an older version, stays on 127.0.0.1, with a warning
//!   ([`notice`]).
//! - A port is *given* in the configuration, or *chosen* by this module. A given port is never replaced by another one.
//!   A chosen port is requested again at the next start of the server or of the gateway, and is not chosen for another
//!   server while it is recorded.
//! - Only the ports of the [`MAX_SERVERS`] most recently started servers are recorded.
//!
//! # Deliberately absent
//!
//! Ports chosen by the kernel: it may use them for outgoing connections while the server is down.

mod holder;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::net::{
    IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener as StdListener, ToSocketAddrs as _,
};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use model::Port;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::unit::{Confined, Error};

/// Range for chosen ports, below the range that Linux uses for outgoing connections (`ip_local_port_range`).
const PORT_RANGE: Range<u16> = 16_384..32_768;
/// Address of chosen ports: a loopback address other than the console's.
pub(crate) const CHOSEN_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Limit for the servers whose ports are recorded.
const MAX_SERVERS: usize = 1024;
/// Delay before the next `accept` after one has failed because file descriptors ran out.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Timeout for a listener to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The ports of an installation. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Ports(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: PathBuf,
    /// `None` until the file has been read. The most recently started server is the last.
    table: Mutex<Option<Vec<Row>>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    /// The id of its sandbox.
    id: String,
    name: String,
    /// Port in the sandbox → port of this host.
    ports: BTreeMap<u16, u16>,
    /// Ports in the sandbox that are published on [`CHOSEN_ADDRESS`]. The others are on 127.0.0.1.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    apart: BTreeSet<u16>,
}

impl Row {
    fn new(id: &str, name: &str) -> Self {
        Self {
            id: id.to_owned(),
            name: name.to_owned(),
            ports: BTreeMap::new(),
            apart: BTreeSet::new(),
        }
    }

    fn address(&self, inside: u16) -> Option<SocketAddrV4> {
        let ip = match self.apart.contains(&inside) {
            true => CHOSEN_ADDRESS,
            false => Ipv4Addr::LOCALHOST,
        };
        let port = self.ports.get(&inside)?;
        Some(SocketAddrV4::new(ip, *port))
    }
}

/// A warning about a published address, with a way to change it. `None` if there is nothing to warn about.
#[must_use]
pub fn notice(address: SocketAddr) -> Option<&'static str> {
    (address.ip() == IpAddr::V4(Ipv4Addr::LOCALHOST)).then_some(
        "it is on 127.0.0.1, where browsers send it the cookies of everything else on 127.0.0.1, including Toolwharf's console. \
         Ports that Toolwharf chooses are on 127.0.0.2: list only the port in the sandbox (`9000`, not `8080:9000`). A \
         port that an older version chose moves there if you stop Toolwharf and delete its entry in `hosting/ports.json` \
         of the data directory. A command with `\"network\": \"open\"` listens on the host itself, at the address in its own arguments",
    )
}

/// Listens for connections to a server's ports.
#[derive(Debug)]
pub struct Listeners {
    all: Vec<(u16, TcpListener)>,
    _open: Option<Sender<()>>,
}

/// Waits until all sockets of [`Listeners`] are closed.
#[derive(Debug)]
pub(crate) struct Closing(Receiver<()>);

impl Ports {
    /// `file` records the ports. It need not exist.
    #[must_use]
    pub fn new(file: PathBuf) -> Self {
        let table = Mutex::default();
        Self(Arc::new(Inner { file, table }))
    }

    /// Listens for each of a server's `ports`, on the given port of this host or on a chosen one.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if a given port is in use.
    pub async fn listen(&self, unit: Confined<'_>, ports: Vec<Port>) -> Result<Listeners, Error> {
        let mut all = Vec::with_capacity(ports.len());
        if !ports.is_empty() {
            let inner = Arc::clone(&self.0);
            let (id, name) = (unit.sandbox.id.clone(), unit.label.to_owned());
            let bound = tokio::task::spawn_blocking(move || inner.bind(&id, &name, &ports)).await;
            let gone =
                |_| Error::Failed("listening on the server's ports was interrupted".to_owned());
            for (inside, listener) in bound.map_err(gone)?? {
                let address = listener.local_addr().map_err(lost)?;
                if let Some(notice) = notice(address) {
                    tracing::warn!(server = unit.label, port = inside, %address, "port {inside}: {notice}");
                }
                let listener = listener
                    .set_nonblocking(true)
                    .and_then(|()| TcpListener::from_std(listener));
                let failed =
                    |error| Error::Failed(format!("cannot listen on the server's ports: {error}"));
                all.push((inside, listener.map_err(failed)?));
            }
        }
        Ok(Listeners { all, _open: None })
    }
}

impl Inner {
    fn bind(&self, id: &str, name: &str, ports: &[Port]) -> Result<Vec<(u16, StdListener)>, Error> {
        let mut table = self.table.lock();
        let table = table.get_or_insert_with(|| self.read());
        let before = table.iter().position(|row| row.id == id);
        let before = before.map(|at| table.remove(at));
        let mut row = Row::new(id, name);
        let mut bound = Vec::with_capacity(ports.len());
        let mut refused = None;
        // Given ports first, so that none of them is chosen for another port.
        let (given, chosen): (Vec<&Port>, Vec<&Port>) =
            ports.iter().partition(|port| port.host.is_some());
        for port in given.into_iter().chain(chosen) {
            let old = before.as_ref().and_then(|row| row.address(port.inside));
            let listener = match port.host {
                Some(host) => {
                    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, host);
                    bind(address).map_err(|error| refusal(address, &error, table))
                }
                None => choose(id, port.inside, old, table, &row),
            };
            match listener.and_then(|listener| Ok((listener.local_addr().map_err(lost)?, listener)))
            {
                Ok((address, listener)) => {
                    row.ports.insert(port.inside, address.port());
                    if address.ip() == IpAddr::V4(CHOSEN_ADDRESS) {
                        row.apart.insert(port.inside);
                    }
                    bound.push((port.inside, listener));
                }
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        if let Some(error) = refused {
            // The server keeps the ports recorded before.
            table.extend(before);
            return Err(error);
        }
        // These ports now belong to this server: remove them from the rows of other servers.
        for other in table.iter_mut() {
            let is_own = |host: &u16| row.ports.values().any(|own| own == host);
            other.ports.retain(|_, host| !is_own(host));
        }
        let changed = before.as_ref() != Some(&row);
        table.push(row);
        if changed {
            let extra = table.len().saturating_sub(MAX_SERVERS);
            table.drain(..extra);
            if let Err(error) = self.write(table) {
                let file = self.file.display();
                tracing::warn!(%file, %error, "cannot record the ports of servers");
            }
        }
        Ok(bound)
    }

    fn read(&self) -> Vec<Row> {
        let read = match fs::read(&self.file) {
            Ok(text) => serde_json::from_slice(&text).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => Err(error),
        };
        read.unwrap_or_else(|error| {
            let file = self.file.display();
            tracing::warn!(%file, %error, "cannot read the recorded ports of servers; new ports are chosen");
            Vec::new()
        })
    }

    fn write(&self, table: &[Row]) -> io::Result<()> {
        if let Some(dir) = self.file.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        let new = self.file.with_extension("new");
        let mut file = OpenOptions::new();
        let mut file = file
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(&serde_json::to_vec_pretty(table)?)?;
        file.sync_data()?;
        fs::rename(&new, &self.file)
    }
}

fn bind(address: SocketAddrV4) -> io::Result<StdListener> {
    StdListener::bind(address)
}

/// Returns a listener on the previous port, or on one that no other server has.
fn choose(
    id: &str,
    inside: u16,
    old: Option<SocketAddrV4>,
    others: &[Row],
    own: &Row,
) -> Result<StdListener, Error> {
    let rows = others.iter().chain([own]);
    let taken: BTreeSet<u16> = rows.flat_map(|row| row.ports.values().copied()).collect();
    // FNV-1a. Each server starts at a different port, so that installations on one host rarely collide.
    let bytes = id.bytes().chain(inside.to_be_bytes());
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let first = usize::try_from(hash).unwrap_or_default() % PORT_RANGE.len();
    let free = PORT_RANGE.cycle().skip(first).take(PORT_RANGE.len());
    let free = free.filter(|port| !taken.contains(port));
    let free = free.map(|port| SocketAddrV4::new(CHOSEN_ADDRESS, port));
    let old = old.filter(|old| !own.ports.values().any(|own| *own == old.port()));
    for address in old.into_iter().chain(free) {
        match bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            other => return other.map_err(|error| refusal(address, &error, others)),
        }
    }
    Err(Error::Refused {
        field: "ports",
        why: format!(
            "all ports of this host from {} to {} are in use; free one, or name another port, as in \"8080:{inside}\"",
            PORT_RANGE.start,
            PORT_RANGE.end - 1
        ),
    })
}

/// Names the process that listens on `address` (`ADDR:PORT`), for messages: ", which `nginx` (process 7) uses". Empty if
/// it cannot be found.
#[must_use]
pub fn used_by(address: &str) -> String {
    let addresses = address.to_socket_addrs().into_iter().flatten();
    let mut holders = addresses.filter_map(|address| match address {
        SocketAddr::V4(address) => holder::of(address),
        SocketAddr::V6(address) => {
            let ip = address
                .ip()
                .to_ipv4_mapped()
                .unwrap_or(Ipv4Addr::UNSPECIFIED);
            holder::of(SocketAddrV4::new(ip, address.port()))
        }
    });
    let holder = holders.next();
    holder.map_or_else(String::new, |holder| format!(", which {holder} uses"))
}

fn lost(error: io::Error) -> Error {
    Error::Failed(format!("cannot determine the chosen port: {error}"))
}

fn refusal(address: SocketAddrV4, error: &io::Error, rows: &[Row]) -> Error {
    let port = address.port();
    let why = match error.kind() {
        io::ErrorKind::AddrInUse => {
            let mut why = format!("port {port} of this host is taken");
            if let Some(holder) = holder::of(address) {
                why.push_str(&format!(" by {holder}"));
                let own = holder.pid == std::process::id();
                let row = rows
                    .iter()
                    .find(|row| row.ports.values().any(|&own| own == port));
                if let Some(row) = row.filter(|_| own) {
                    why.push_str(&format!(", for the server `{}`", row.name));
                }
            }
            why + "; free it, or give another port"
        }
        io::ErrorKind::PermissionDenied => {
            format!("port {port} of this host requires root; use port 1024 or higher, or omit it")
        }
        io::ErrorKind::AddrNotAvailable => {
            let ip = address.ip();
            format!(
                "this host has no address {ip}, which is used for chosen ports; add it (Linux: `ip address add {ip}/8 dev lo`, \
                 macOS: `ifconfig lo0 alias {ip}`), or give a port of 127.0.0.1, as in \"8080:9000\""
            )
        }
        _ => format!("cannot listen on port {port} of this host: {error}"),
    };
    Error::Refused {
        field: "ports",
        why,
    }
}

impl Listeners {
    /// Returns the published address of each port.
    pub fn addresses(&self) -> io::Result<BTreeMap<u16, SocketAddr>> {
        let address =
            |(inside, listener): &(u16, TcpListener)| Ok((*inside, listener.local_addr()?));
        self.all.iter().map(address).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns an object that waits until the listeners are closed.
    pub(crate) fn closing(&mut self) -> Closing {
        let (open, closing) = channel();
        self._open = Some(open);
        Closing(closing)
    }

    /// Accepts the next connection. Returns the port in the sandbox and the connection.
    ///
    /// # Cancel safety
    ///
    /// No connection is lost.
    pub async fn accept(&self) -> (u16, TcpStream) {
        loop {
            let accepts = self.all.iter().map(|(inside, listener)| {
                Box::pin(async move { (*inside, listener.accept().await) })
            });
            match futures_util::future::select_all(accepts).await.0 {
                (inside, Ok((stream, _))) => return (inside, stream),
                (_, Err(_)) => sleep(ACCEPT_RETRY_DELAY).await,
            }
        }
    }
}

impl Closing {
    /// Waits until the listeners are closed, at most one second. Blocks.
    pub(crate) fn wait(&self) {
        // Returns when all senders are dropped.
        let _ = self.0.recv_timeout(CLOSE_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Port = Port {
        inside: 9000,
        host: None,
    };

    /// Binds these ports for a server. Returns the ports of this host.
    fn bind(ports: &Ports, id: &str, all: &[Port]) -> Result<(Vec<u16>, Vec<StdListener>), String> {
        let bound = ports
            .0
            .bind(id, id, all)
            .map_err(|error| error.to_string())?;
        let (_, listeners): (Vec<_>, Vec<_>) = bound.into_iter().unzip();
        let host = |listener: &StdListener| listener.local_addr().unwrap().port();
        Ok((listeners.iter().map(host).collect(), listeners))
    }

    #[test]
    fn a_port_that_was_chosen_is_kept_and_is_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("below/ports.json");
        let ports = Ports::new(file.clone());
        let two = [
            ONE,
            Port {
                inside: 9001,
                ..ONE
            },
        ];
        let (first, held) = bind(&ports, "a", &two).unwrap();
        assert!(first.iter().all(|port| PORT_RANGE.contains(port)) && first[0] != first[1]);
        // A second instance at the same time gets other ports.
        let (second, others) = bind(&ports, "a", &two).unwrap();
        assert!(second.iter().all(|port| !first.contains(port)));
        drop((held, others));
        // The ports stay the same in the next run of the gateway, even though other ports are free now.
        let ports = Ports::new(file);
        for _ in 0..2 {
            assert_eq!(bind(&ports, "a", &two).unwrap().0, second);
        }
        let stranger = Row::new("b", "b");
        let table = ports.0.table.lock().clone().unwrap();
        let old = Some(SocketAddrV4::new(CHOSEN_ADDRESS, second[0]));
        let others = choose("a", 9000, None, &table, &stranger).unwrap();
        assert!(!second.contains(&others.local_addr().unwrap().port()));
        // A port that was lost to another program is not requested again.
        let lost = bind_to(CHOSEN_ADDRESS, second[0]);
        let (third, _) = bind(&ports, "a", &two).unwrap();
        assert!(third[0] != second[0] && third[1] == second[1]);
        drop(lost);
        assert_eq!(bind(&ports, "a", &two).unwrap().0, third);
        let again = choose("b", 9000, old, &[], &stranger).unwrap();
        assert_eq!(again.local_addr().unwrap().port(), second[0]);
    }

    fn bind_to(ip: Ipv4Addr, port: u16) -> StdListener {
        super::bind(SocketAddrV4::new(ip, port)).unwrap()
    }

    fn ips(ports: &Ports, id: &str, all: &[Port]) -> Vec<String> {
        let (_, listeners) = bind(ports, id, all).unwrap();
        let ip = |listener: &StdListener| listener.local_addr().unwrap().ip().to_string();
        listeners.iter().map(ip).collect()
    }

    #[test]
    fn a_chosen_port_is_on_an_address_of_its_own_and_a_given_one_stays_with_a_notice() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ports.json");
        let ports = Ports::new(file.clone());
        let (chosen, listeners) = bind(&ports, "a", &[ONE]).unwrap();
        let address = listeners[0].local_addr().unwrap();
        assert_eq!(address.ip(), IpAddr::V4(CHOSEN_ADDRESS));
        assert_eq!(notice(address), None);
        drop(listeners);
        let given = Port {
            host: Some(chosen[0]),
            inside: 9001,
        };
        let both = [ONE, given];
        let (_, listeners) = bind(&ports, "b", &both).unwrap();
        // The ports that the server's settings name come first.
        let addresses = [0, 1].map(|at: usize| listeners[at].local_addr().unwrap());
        assert_eq!(addresses[0].ip(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert!(notice(addresses[0]).unwrap().contains("127.0.0.2"));
        assert_eq!(addresses[1].ip(), IpAddr::V4(CHOSEN_ADDRESS));
        drop(listeners);
        // A port chosen by an older version stays on its address over restarts, and so does one chosen by this version.
        let old = r#"[{"id":"old","name":"old","ports":{"9000":16500}}]"#;
        fs::write(&file, old).unwrap();
        for _ in 0..2 {
            let ports = Ports::new(file.clone());
            assert_eq!(ips(&ports, "old", &[ONE]), ["127.0.0.1"]);
            assert_eq!(ips(&ports, "new", &[ONE]), ["127.0.0.2"]);
        }
        let ports = Ports::new(file);
        assert_eq!(bind(&ports, "old", &[ONE]).unwrap().0, [16500]);
    }

    #[test]
    fn a_host_without_the_address_is_told_how_to_get_it() {
        let error = io::Error::from(io::ErrorKind::AddrNotAvailable);
        let address = SocketAddrV4::new(CHOSEN_ADDRESS, 16_384);
        let why = refusal(address, &error, &[]).to_string();
        for part in [
            "no address 127.0.0.2",
            "ip address add 127.0.0.2/8",
            "8080:9000",
        ] {
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn a_port_that_was_given_is_that_one_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let ports = Ports::new(dir.path().join("ports.json"));
        let (chosen, _) = bind(&ports, "a", &[ONE]).unwrap();
        let given = Port {
            host: Some(chosen[0]),
            ..ONE
        };
        let (host, held) = bind(&ports, "b", &[given]).unwrap();
        assert_eq!(host, chosen);
        let refused = bind(&ports, "c", &[given]).unwrap_err();
        for part in [&chosen[0].to_string(), "(process ", "for the server `b`"] {
            assert!(refused.contains(part), "{refused}");
        }
        drop(held);
        // A refusal does not change what was recorded.
        let (before, _) = bind(&ports, "c", &[ONE]).unwrap();
        let held = bind_to(Ipv4Addr::LOCALHOST, chosen[0]);
        assert!(bind(&ports, "c", &[given]).is_err());
        assert_eq!(bind(&ports, "c", &[ONE]).unwrap().0, before);
        drop(held);
    }

    #[test]
    fn what_is_remembered_has_an_end() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ports.json");
        fs::write(&file, "no table").unwrap();
        let rows = |count| {
            let row = |number| Row {
                id: format!("s-{number}"),
                name: "s".to_owned(),
                ports: BTreeMap::from([(9000, 16_384 + number)]),
                apart: BTreeSet::from([9000]),
            };
            (0..count).map(row).collect::<Vec<_>>()
        };
        let ports = Ports::new(file.clone());
        // An invalid file counts as empty.
        bind(&ports, "a", &[ONE]).unwrap();
        assert_eq!(ports.0.read().len(), 1);
        let most = u16::try_from(MAX_SERVERS).unwrap();
        ports.0.write(&rows(most)).unwrap();
        let ports = Ports::new(file);
        bind(&ports, "a", &[ONE]).unwrap();
        bind(&ports, "s-1", &[ONE]).unwrap();
        bind(&ports, "b", &[ONE]).unwrap();
        let rows = ports.0.read();
        let known = |id: &str| rows.iter().any(|row| row.id == id);
        assert_eq!(rows.len(), MAX_SERVERS);
        assert!(known("a") && known("b") && known("s-1") && known("s-3"));
        assert!(!known("s-0") && !known("s-2"), "they started longest ago");
    }
}
