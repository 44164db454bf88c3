//! Finds the process that listens on a port of this host, in `/proc` (proc_net_tcp(5)).
//!
//! Deliberately absent: arguments of commands, which may be secret.

use std::fmt;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};

/// The state `TCP_LISTEN`.
const TCP_LISTEN: &str = "0A";

/// A listening process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub pid: u32,
    /// The kernel's short name of the command.
    command: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` (process {})",
            self.command.escape_debug(),
            self.pid
        )
    }
}

/// Returns the process that listens on `wanted`. `None` if this process cannot see it.
pub(super) fn of(wanted: SocketAddrV4) -> Option<Holder> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).ok());
    let sockets: Vec<String> = tables
        .iter()
        .flatten()
        .flat_map(|table| table.lines().skip(1))
        .filter_map(|line| listener(line, wanted))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    if sockets.is_empty() {
        return None;
    }
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let pid: u32 = pids.find(|pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten()
            .flatten();
        let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
        links.any(|link| {
            sockets
                .iter()
                .any(|socket| link.as_os_str() == socket.as_str())
        })
    })?;
    let command = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let command = command.trim_end_matches('\n').to_owned();
    Some(Holder { pid, command })
}

/// Returns the socket in a line if it listens on this address or on all addresses. Format: `sl local remote state tx:rx
/// tr:when retrnsmt uid timeout inode`.
fn listener(line: &str, wanted: SocketAddrV4) -> Option<&str> {
    let mut words = line.split_ascii_whitespace();
    let (address, local) = words.nth(1)?.split_once(':')?;
    let state = words.nth(1)?;
    let inode = words.nth(5)?;
    // An IPv4-mapped IPv6 address ends with the IPv4 address.
    let here = wanted.ip().is_unspecified()
        || address.ends_with(&hex(*wanted.ip()))
        || address.bytes().all(|digit| digit == b'0');
    let fits = here && state == TCP_LISTEN && u16::from_str_radix(local, 16) == Ok(wanted.port());
    fits.then_some(inode)
}

/// An address in the kernel's format: a number in native byte order.
fn hex(ip: Ipv4Addr) -> String {
    format!("{:08X}", u32::from_ne_bytes(ip.octets()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_listener_is_found_with_its_process() {
        for (address, ip) in [
            ("127.0.0.1:0", [127, 0, 0, 1]),
            ("127.0.0.2:0", [127, 0, 0, 2]),
            ("0.0.0.0:0", [127, 0, 0, 2]),
            ("[::]:0", [127, 0, 0, 1]),
            ("127.0.0.1:0", [0, 0, 0, 0]),
        ] {
            let listener = TcpListener::bind(address).unwrap();
            let port = listener.local_addr().unwrap().port();
            let wanted = SocketAddrV4::new(ip.into(), port);
            let holder = of(wanted).unwrap();
            assert_eq!(holder.pid, std::process::id(), "{address}");
            let own = fs::read_to_string("/proc/self/comm").unwrap();
            let used = super::super::used_by(&wanted.to_string());
            assert!(used.contains(&format!("process {}", holder.pid)), "{used}");
            assert_eq!(holder.command, own.trim_end());
            drop(listener);
            assert_eq!(of(wanted), None);
        }
    }

    #[test]
    fn other_lines_are_no_listeners() {
        let rest = "00000000:00000000 00:00000000 00000000     0        0 77 1 0 100 0 0 10 0";
        let line = |local: &str, state: &str| format!("   0: {local} 00000000:0000 {state} {rest}");
        let wanted = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080);
        assert_eq!(listener(&line("0100007F:1F90", "0A"), wanted), Some("77"));
        for (local, state) in [
            ("0100007F:1F91", "0A"),
            ("0100007F:1F90", "01"),
            ("0200007F:1F90", "0A"),
            ("0100007F", "0A"),
        ] {
            assert_eq!(
                listener(&line(local, state), wanted),
                None,
                "{local} {state}"
            );
        }
        assert_eq!(listener("", wanted), None);
    }
}
