//! The first program in a sandbox: this binary, which becomes the server.
//!
//! Bubblewrap starts the shim with only a socket to the host, over which the shim receives the command to execute. So
//! the server's arguments and variables are on no command line of a program outside the sandbox, and no variable
//! (`LD_PRELOAD`) affects bubblewrap, which may be root.
//!
//! # Protocol
//!
//! 1. The host sends an [`Order`].
//! 2. The shim gives up its privileges, opens the sockets named in the order, and sends [`READY`] with them.
//! 3. The host checks the shim's user, capabilities, namespaces and control groups, and sends [`GO`].
//! 4. The shim executes the server. The host sees the end of the stream, or [`FAILED`] with the reason.
//!
//! # Invariants
//!
//! - The server starts with three descriptors, without privileges, and only after [`GO`].
//! - The egress proxy and port forwarding need *sockets* in the sandbox's network namespace. The shim creates them, and
//!   the host serves them: a socket stays in the namespace in which it was created. No process of Toolwharf stays
//!   between the server and its streams or its exit code.
//! - If the host has to connect to ports inside, a helper keeps running. For each byte that the helper receives, it
//!   makes a connection and sends back the connected socket. It has no more rights than the server.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{
    DumpableBehavior, Gid, Resource, Rlimit, Uid, set_dumpable_behavior, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use super::mounts::{SEAL, seal_main};
use crate::egress;
use crate::process::{inherited, seal_inherited};
use crate::process_tree::MARKER;

pub(super) const READY: u8 = b'R';
pub(super) const GO: u8 = b'G';
pub(super) const FAILED: u8 = b'E';
/// The helper's replies: with a socket, and without.
pub(super) const CONNECTED: u8 = b'C';
pub(super) const REFUSED: u8 = b'N';
/// Limit for an encoded order, above what the kernel accepts in an `exec`.
pub(super) const MAX_ORDER_BYTES: usize = 8 << 20;
/// The path of the shim inside.
pub(super) const PATH_INSIDE: &str = "/run/toolwharf/shim";
/// Timeout for each message from the host.
const HOST_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for connecting to a port inside. No connection attempt on the same host takes that long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const HELPER_ARGUMENT: &str = "helper";

/// Instructions to the shim.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Order {
    /// `None` if there are no privileges to give up: user and group stay the same.
    pub(super) user: Option<u32>,
    /// True if the shim sends a listener whose address is the server's proxy.
    pub(super) proxy: bool,
    /// Ports inside that the helper connects to. If empty, no helper is started.
    pub(super) ports: Vec<u16>,
    pub(super) cwd: String,
    pub(super) program: OsString,
    pub(super) args: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
}

impl Order {
    /// Encodes the length and the fields. Each field ends with NUL, which no field contains.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let mut put = |field: &[u8]| {
            body.extend_from_slice(field);
            body.push(0);
        };
        put(self
            .user
            .map_or(String::new(), |user| user.to_string())
            .as_bytes());
        put(if self.proxy { b"1" } else { b"" });
        let ports: Vec<_> = self.ports.iter().map(u16::to_string).collect();
        put(ports.join(" ").as_bytes());
        put(self.cwd.as_bytes());
        put(self.program.as_encoded_bytes());
        put(self.args.len().to_string().as_bytes());
        self.args.iter().for_each(|arg| put(arg.as_bytes()));
        for (name, value) in &self.env {
            put(name.as_bytes());
            put(value.as_bytes());
        }
        let mut message = u32::try_from(body.len())
            .unwrap_or(u32::MAX)
            .to_le_bytes()
            .to_vec();
        message.append(&mut body);
        message
    }

    fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = body.strip_suffix(b"\0")?.split(|&byte| byte == 0);
        let mut text = || String::from_utf8(fields.next()?.to_vec()).ok();
        let user = match text()?.as_str() {
            "" => None,
            number => Some(number.parse().ok()?),
        };
        let proxy = text()? == "1";
        let ports = text()?
            .split_ascii_whitespace()
            .map(|port| port.parse().ok())
            .collect::<Option<_>>()?;
        let cwd = text()?;
        let program = OsString::from_vec(fields.next()?.to_vec());
        let mut text = || String::from_utf8(fields.next()?.to_vec()).ok();
        let count: usize = text()?.parse().ok()?;
        let args = (0..count).map(|_| text()).collect::<Option<_>>()?;
        let mut env = BTreeMap::new();
        while let Some(name) = text() {
            env.insert(name, text()?);
        }
        Some(Self {
            user,
            proxy,
            ports,
            cwd,
            program,
            args,
            env,
        })
    }
}

/// The shim's main function. `args` follow the arguments that select it.
///
/// Only a sandbox starts the shim; with other arguments, the function fails immediately. Must not be called from an
/// async runtime, nor after another thread was started.
#[must_use]
pub fn shim_main(args: &[OsString]) -> ExitCode {
    let number = |text: &OsString| text.to_str()?.parse().ok();
    let result = match args {
        [word, writable @ ..] if word == SEAL => seal_main(writable),
        [channel] => match number(channel) {
            Some(channel) => become_server(channel),
            None => Err(io::Error::other("only Toolwharf starts this command")),
        },
        [word, channel] if word == HELPER_ARGUMENT => match number(channel) {
            Some(channel) => help(channel),
            None => Err(io::Error::other("only Toolwharf starts this command")),
        },
        _ => Err(io::Error::other("only Toolwharf starts this command")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "shim: {error}");
            ExitCode::from(126)
        }
    }
}

fn become_server(channel: i32) -> io::Result<()> {
    let mut channel = UnixStream::from(inherited(channel)?);
    // Closes everything inherited on exec, including the channel's first copy.
    seal_inherited();
    channel.set_read_timeout(Some(HOST_TIMEOUT))?;
    channel.set_write_timeout(Some(HOST_TIMEOUT))?;
    match prepare(&mut channel) {
        Ok(mut command) => {
            let error = command.exec();
            let program = command.get_program().display();
            report(&mut channel, format!("cannot run `{program}`: {error}"))
        }
        Err(error) => report(&mut channel, error),
    }
}

/// Reports an error to the host, which passes it on to the user. The server's own stderr is not the place for it.
fn report(channel: &mut UnixStream, what: impl Display) -> io::Result<()> {
    let mut message = vec![FAILED];
    message.extend_from_slice(what.to_string().as_bytes());
    channel.write_all(&message)?;
    Err(io::Error::other("the server was not started"))
}

fn prepare(channel: &mut UnixStream) -> io::Result<Command> {
    let mut length = [0; 4];
    channel.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_ORDER_BYTES {
        return Err(io::Error::other(format!(
            "the server's arguments and environment together exceed {MAX_ORDER_BYTES} bytes"
        )));
    }
    let mut body = vec![0; length];
    channel.read_exact(&mut body)?;
    let order = Order::decode(&body).ok_or_else(|| io::Error::other("malformed order"))?;

    drop_privileges(order.user)?;
    let mut sockets: Vec<OwnedFd> = Vec::new();
    let mut command = Command::new(&order.program);
    command.args(&order.args).env_clear().envs(&order.env);
    // The marker of all processes of an instance came in the environment.
    if let Some(marker) = std::env::var_os(MARKER) {
        command.env(MARKER, marker);
    }
    if order.proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        command.envs(egress::variables(listener.local_addr()?));
        sockets.push(listener.into());
    }
    if !order.ports.is_empty() {
        sockets.push(start_helper(&order.ports)?);
    }
    command.current_dir(&order.cwd);
    let borrowed: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    send(channel.as_fd(), READY, &borrowed)?;
    drop(sockets);
    let mut word = [0];
    channel.read_exact(&mut word)?;
    if word != [GO] {
        return Err(io::Error::other("Toolwharf cancelled the start"));
    }
    Ok(command)
}

/// Gives up all privileges, whether there are any or not.
fn drop_privileges(user: Option<u32>) -> io::Result<()> {
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_no_new_privs(true)?;
    // A core file would go to a program of the host, or into a volume.
    let no_core_file = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, no_core_file)?;
    if let Some(user) = user {
        for capability in CapabilitySet::all().iter() {
            // Capabilities unknown to this kernel need not be removed.
            let _ = remove_capability_from_bounding_set(capability);
        }
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(user));
        set_thread_groups(&[])?;
        set_thread_res_gid(group, group, group)?;
        set_thread_res_uid(user, user, user)?;
    }
    set_capabilities(None, none)?;
    Ok(())
}

/// Starts the helper as a grandchild, so that the server has no child that it does not know. Returns the socket to the
/// helper.
fn start_helper(ports: &[u16]) -> io::Result<OwnedFd> {
    let (theirs, ours) = UnixStream::pair()?;
    let inherited: OwnedFd = theirs.into();
    fcntl_setfd(&inherited, FdFlags::empty())?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&inherited).to_string();
    let own: Vec<_> = std::env::args_os().skip(1).collect();
    // The last argument is the number of the channel.
    let own = &own[..own.len().saturating_sub(1)];
    let mut command = Command::new(PATH_INSIDE);
    command
        .args(own)
        .arg(HELPER_ARGUMENT)
        .arg(number)
        .env_clear();
    if let Some(marker) = std::env::var_os(MARKER) {
        command.env(MARKER, marker);
    }
    let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
    command.env("TOOLWHARF_PORTS", ports.join(" "));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let status = command.status()?;
    if !status.success() {
        return Err(io::Error::other(format!("port helper failed: {status}")));
    }
    Ok(ours.into())
}

fn help(channel: i32) -> io::Result<()> {
    if std::env::var_os("TOOLWHARF_STAY").is_none() {
        // Run this program again as a child, and exit, so that the child is not the server's.
        let own: Vec<_> = std::env::args_os().skip(1).collect();
        Command::new(PATH_INSIDE)
            .args(own)
            .env("TOOLWHARF_STAY", "1")
            .spawn()?;
        return Ok(());
    }
    // The server runs as the same user, but must not access the memory and binary of the helper.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // Signals to the server's process group must not reach the helper.
    let _ = rustix::process::setsid();
    let ports = std::env::var("TOOLWHARF_PORTS").unwrap_or_default();
    let ports: Vec<u16> = ports
        .split_ascii_whitespace()
        .filter_map(|port| port.parse().ok())
        .collect();
    let mut channel = UnixStream::from(inherited(channel)?);
    seal_inherited();
    let mut index = [0];
    while channel.read_exact(&mut index).is_ok() {
        let connected = ports
            .get(usize::from(index[0]))
            .and_then(|&port| connect(port).ok());
        match connected {
            Some(stream) => send(channel.as_fd(), CONNECTED, &[stream.as_fd()])?,
            None => send(channel.as_fd(), REFUSED, &[])?,
        }
    }
    Ok(())
}

fn connect(port: u16) -> io::Result<TcpStream> {
    let try_one = |address: SocketAddr| TcpStream::connect_timeout(&address, CONNECT_TIMEOUT);
    try_one((Ipv4Addr::LOCALHOST, port).into())
        .or_else(|_| try_one((Ipv6Addr::LOCALHOST, port).into()))
}

fn send(socket: BorrowedFd<'_>, word: u8, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many sockets for one message"));
    }
    let word = [word];
    let sent = sendmsg(
        socket,
        &[IoSlice::new(&word)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    if sent == 1 {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_arrives_as_it_was_given() {
        for user in [None, Some(12_345)] {
            let order = Order {
                user,
                proxy: user.is_some(),
                ports: vec![80, 8080],
                cwd: "/tmp/home".into(),
                program: "/usr/bin/env".into(),
                args: vec![String::new(), "a b".into(), "\n".into()],
                env: BTreeMap::from([("A".into(), String::new()), ("B".into(), "x=y".into())]),
            };
            let message = order.encode();
            assert_eq!(message[..4], u32::to_le_bytes(message.len() as u32 - 4));
            assert!(Order::decode(&message[4..]) == Some(order));
            for cut in [&[][..], b"\0", b"x\0", &message[4..20]] {
                assert!(Order::decode(cut).is_none());
            }
        }
    }

    #[test]
    fn nobody_starts_a_shim_by_hand() {
        for args in [&[][..], &["x"], &["1"], &["helper", "x"], &["999999"]] {
            let args: Vec<_> = args.iter().map(OsString::from).collect();
            assert_eq!(shim_main(&args), ExitCode::from(126));
        }
    }
}
