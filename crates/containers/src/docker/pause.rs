//! The network of a container with an allow-list, and the egress proxy in it.
//!
//! The proxy must listen before the server runs, but the daemon creates a container's network namespace only when the
//! container starts. So the namespace belongs to another container, the *holder*, which starts first and does nothing.
//! A thread of this process enters the namespace and listens there. Then the server's container starts in the same
//! namespace.
//!
//! # Invariants
//!
//! - The namespace has only a loopback device. The proxy is the only way out. Its socket belongs to this process, which
//!   connects from the host's network.
//! - A thread that has entered another namespace never returns: it ends in that namespace. Threads of the async runtime
//!   never leave the host's namespace.
//! - The holder is removed with the server's container, or by the next sweep. After this process has ended, nothing
//!   listens in the namespace.
//!
//! # Deliberately absent
//!
//! Runtimes that do not use the given network namespace: gVisor's own network stack, virtual machines. [`refusal`]
//! explains this.

use crate::docker::net::Held;
use crate::docker::net::Space;
use crate::docker::net::path;
use crate::docker::spec::PROGRAM;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd as _;
use std::time::Duration;

use model::Provider;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::engine::{CHANGE_TIMEOUT, Call, Client};
use super::images::{import, inspect_image};
use super::spec::{self, Host};
use super::{Inner, Options};
use crate::docker::engine::start;
use runtime::unit::{Confined, Error};

const IMAGE: (&str, &str) = ("toolwharf/holder", "1");
/// Timeout for entering a namespace and listening there.
const ENTER_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// Load address of the program, a multiple of every page size in use.
const LOAD_ADDRESS: u64 = 0x40_0000;
const PAGE_BYTES: u64 = 0x1_0000;

/// Why an allow-list cannot be enforced with this runtime; `None` if it can.
pub(super) fn refusal(options: &Options, host: &Host) -> Option<String> {
    let host_network = host.runtime_args.iter().any(|arg| arg == "--network=host");
    match options.provider {
        Provider::Gvisor if !host_network => Some(format!(
            "allow-lists need `--network=host` in the arguments of the runtime `{}`, because gVisor's own network stack does not \
             see a proxy in the container's network namespace",
            options.runtime
        )),
        Provider::Firecracker => Some(
            "allow-lists are not supported in virtual machines, which do not see a proxy in the container's network \
             namespace; set `network` to `none` or `open`"
                .to_owned(),
        ),
        _ if program(std::env::consts::ARCH).is_none() => Some(format!(
            "allow-lists are not supported on the architecture {} yet; set `network` to `none` or `open`",
            std::env::consts::ARCH
        )),
        _ => None,
    }
}

impl Inner {
    /// Starts a holder for a server, and listens in its network. If this fails, the holder has been removed or is left
    /// to the next sweep.
    pub(super) async fn hold(&self, client: &Client, unit: Confined<'_>) -> Result<Held, Error> {
        let name = spec::pause_name(&unit.sandbox.id, &self.options.install);
        self.make_room(client, &name).await?;
        let image = format!("{}:{}", IMAGE.0, IMAGE.1);
        if inspect_image(client, &image).await?.is_none() {
            let program = program(std::env::consts::ARCH).unwrap_or_default();
            let what = "import the image of the container that holds a server's network";
            import(client, what, IMAGE, archive(PROGRAM, &program)).await?;
        }
        let deadline = Instant::now() + CHANGE_TIMEOUT;
        let id = loop {
            let body = spec::pause(&self.options, &image, unit);
            match client.create(&name, body).await {
                Ok(id) => break id,
                // The holder of the previous instance is still being removed.
                Err(Call::Daemon(409, _)) if Instant::now() < deadline => {
                    sleep(RETRY_DELAY).await;
                    self.make_room(client, &name).await?;
                }
                Err(error) => return Err(error.into()),
            }
        };
        let held = listen(client, &id).await;
        if held.is_err() {
            client.remove_or_warn(unit.label, &id).await;
        }
        held
    }
}

async fn listen(client: &Client, id: &str) -> Result<Held, Error> {
    start(client, id).await?;
    let gone = || {
        Error::Failed("the container that holds the server's network exited immediately".to_owned())
    };
    let container = client.inspect(id).await?.ok_or_else(gone)?;
    let pid = container
        .state
        .and_then(|state| state.pid)
        .filter(|&pid| pid > 0);
    let pid = pid.ok_or_else(gone)?;
    let refused = |why: String| Error::Refused {
        field: "network",
        why: format!(
            "an allow-list cannot be enforced: {why}; run Toolwharf as root on the host of the daemon, or set `network` to \
             `none` or `open`"
        ),
    };
    let unseen = |error: io::Error| {
        refused(format!(
            "the processes of the daemon are not visible: {error}"
        ))
    };
    let space = File::open(path(pid)).map_err(unseen)?;
    // If the daemon is on another host or in another PID namespace, `pid` may belong to any process here. The check
    // comes after the namespace was opened: if `pid` belongs to the container now, it also did when the namespace was
    // opened.
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).map_err(unseen)?;
    if !groups.contains(id) {
        return Err(unseen(io::Error::other(
            "another process has the container's process id",
        )));
    }
    let entered = Space::read(&space).map_err(unseen)?;
    let own = File::open("/proc/self/ns/net").and_then(|own| Space::read(&own));
    if own.map_err(unseen)? == entered {
        return Err(refused("the container that holds the server's network is in this host's network, not in a separate one".to_owned()));
    }
    let listener = listen_in(space).await.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            refused("only root can enter a container's network".to_owned())
        }
        _ => Error::Failed(format!("cannot listen in a container's network: {error}")),
    })?;
    let address = listener.local_addr().map_err(unseen)?;
    Ok(Held {
        id: id.to_owned(),
        address,
        listener: listener.into(),
        space: entered,
    })
}

/// Listens in a namespace, from a separate thread that ends afterwards.
async fn listen_in(space: File) -> io::Result<TcpListener> {
    let (done, listener) = oneshot::channel();
    std::thread::Builder::new()
        .name("wharf-netns".to_owned())
        .spawn(move || {
            let network = Some(LinkNameSpaceType::Network);
            let entered = move_into_link_name_space(space.as_fd(), network);
            let listener = entered
                .map_err(io::Error::from)
                .and_then(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
            // If the receiver no longer waits, this closes the listener.
            let _ = done.send(listener);
        })?;
    match timeout(ENTER_TIMEOUT, listener).await {
        Ok(Ok(listener)) => listener,
        Ok(Err(_)) => Err(io::ErrorKind::BrokenPipe.into()),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// An ELF executable that waits for a signal to end it. It has one segment, which is the whole file, and loops around
/// one system call. The holder's image contains only this file, because no other image is available on every daemon.
fn program(arch: &str) -> Option<Vec<u8>> {
    let (machine, code): (u16, &[u8]) = match arch {
        // mov eax, 34 (pause); syscall; jmp back
        "x86_64" => (62, &[0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7]),
        // mov x0..x3, 0; mov x8, 73 (ppoll); svc 0; b back
        "aarch64" => (
            183,
            &[
                0x00, 0x00, 0x80, 0xd2, 0x01, 0x00, 0x80, 0xd2, 0x02, 0x00, 0x80, 0xd2, 0x03, 0x00,
                0x80, 0xd2, 0x28, 0x09, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4, 0xfa, 0xff, 0xff, 0x17,
            ],
        ),
        _ => return None,
    };
    let (header, segment): (u16, u16) = (64, 56);
    let code_at = u64::from(header + segment);
    let size = code_at + code.len() as u64;
    let mut file = Vec::with_capacity(size as usize);
    // ELF identification: 64 bits, little endian, version 1, System V.
    file.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    // The file type is "executable".
    file.extend_from_slice(&2_u16.to_le_bytes());
    file.extend_from_slice(&machine.to_le_bytes());
    file.extend_from_slice(&1_u32.to_le_bytes());
    // Entry point, offset of the program headers, no sections, no flags.
    for number in [LOAD_ADDRESS + code_at, u64::from(header), 0] {
        file.extend_from_slice(&number.to_le_bytes());
    }
    file.extend_from_slice(&0_u32.to_le_bytes());
    for number in [header, segment, 1, 64, 0, 0] {
        file.extend_from_slice(&number.to_le_bytes());
    }
    // A loadable segment, readable and executable.
    file.extend_from_slice(&1_u32.to_le_bytes());
    file.extend_from_slice(&5_u32.to_le_bytes());
    for number in [0, LOAD_ADDRESS, LOAD_ADDRESS, size, size, PAGE_BYTES] {
        file.extend_from_slice(&number.to_le_bytes());
    }
    file.extend_from_slice(code);
    Some(file)
}

/// A tar archive (ustar) of one executable file.
fn archive(path: &str, content: &[u8]) -> Vec<u8> {
    const BLOCK_BYTES: usize = 512;
    let mut head = [0_u8; BLOCK_BYTES];
    let mut put = |at: usize, text: &[u8]| head[at..at + text.len()].copy_from_slice(text);
    put(0, path.trim_start_matches('/').as_bytes());
    put(100, b"0000755\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}\0", content.len()).as_bytes());
    put(136, b"00000000000\0");
    // The checksum is computed with its own eight bytes as spaces.
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = head.iter().map(|&byte| u32::from(byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = head.to_vec();
    archive.extend_from_slice(content);
    let blocks = archive.len().div_ceil(BLOCK_BYTES) + 2;
    archive.resize(blocks * BLOCK_BYTES, 0);
    archive
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_holder_runs_until_it_is_told_not_to() {
        let dir = tempfile::tempdir().unwrap();
        let archive = archive(PROGRAM, &program(std::env::consts::ARCH).unwrap());
        let tar = dir.path().join("tar");
        std::fs::write(&tar, archive).unwrap();
        let mut unpack = Command::new("tar");
        unpack.arg("-xf").arg(&tar).current_dir(dir.path());
        let status = unpack.status().unwrap();
        assert!(status.success());
        let file = dir.path().join("holder");
        let mode = file.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        let mut child = Command::new(file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // `S`: the process sleeps in its only system call.
        let stat = format!("/proc/{}/stat", child.id());
        let deadline = std::time::SystemTime::now() + Duration::from_secs(10);
        while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
            assert!(child.try_wait().unwrap().is_none(), "it ended");
            assert!(std::time::SystemTime::now() < deadline, "it does not sleep");
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_other_architecture_has_a_program_of_the_same_shape() {
        let (here, there) = (program("x86_64").unwrap(), program("aarch64").unwrap());
        assert_eq!(here[..18], there[..18]);
        assert_eq!(here[24..64], there[24..64], "entry point and sizes");
        // Instructions have four bytes and are aligned to four.
        assert_eq!((there.len() - 120) % 4, 0);
        assert_eq!(program("vax"), None);
    }
}
