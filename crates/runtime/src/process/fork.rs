//! Code that runs around a fork. Contains all unsafe code of process launches.

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::process::{Resource, Signal};

use tokio::signal::unix::{SignalKind, signal};

use super::{cage::Door, files};
use crate::sentinel::{announce, is_container_client};

/// Sets up the child that `command` will fork: it is registered with the sentinel, gets a new session, and is killed
/// when this process or the calling thread dies. With a `door`, the child first joins the control groups of its sandbox.
#[expect(
    unsafe_code,
    reason = "std has no safe way to run code between fork and exec"
)]
pub(super) fn bind(command: &mut Command, socket: Arc<UnixStream>, door: Option<Arc<Door>>) {
    let host = rustix::process::getpid();
    let files = files::given();
    let program = Path::new(command.get_program()).file_name();
    let on_host_death = match program.and_then(|name| name.to_str()) {
        Some(name) if is_container_client(name) => Signal::TERM,
        _ => Signal::KILL,
    };
    let before_exec = move || -> io::Result<()> {
        // The new session comes before the registration, because a registered process is treated as the leader of a
        // session and group.
        rustix::process::setsid()?;
        rustix::process::set_parent_process_death_signal(Some(on_host_death))?;
        // If the host died before the death signal was set, the kernel will not send it.
        if rustix::process::getppid() != Some(host) {
            return Err(Errno::SRCH.into());
        }
        // Turn huge pages on again: the gateway's allocator turns them off to save memory, and children inherit that.
        let _ = rustix::thread::disable_transparent_huge_pages(false);
        // Old programs handle a high limit badly: they close every descriptor number up to it, or use `select`.
        if let Some(files) = files {
            let _ = rustix::process::setrlimit(Resource::Nofile, files);
        }
        if let Some(door) = &door {
            for group in &door.join {
                // "0" means the writing process.
                rustix::io::write(group, b"0")?;
            }
            for kept in &door.pass {
                fcntl_setfd(kept, FdFlags::empty())?;
            }
        }
        announce(&socket)
    };
    // SAFETY: between fork and exec in a process that had several threads, only async-signal-safe functions may be
    // called. The closure makes plain system calls, iterates over two slices and formats a number on the stack. It does
    // not allocate, lock, panic or unwind, and its errors are plain numbers. Nothing is dropped in the child: it
    // executes or exits.
    unsafe { command.pre_exec(before_exec) };
}

/// Sets close-on-exec on the descriptors that this process inherited from its parent, such as a shell or service
/// manager. Descriptors opened by Rust code are never inherited.
#[expect(
    unsafe_code,
    reason = "a descriptor without an owner can only be borrowed by its number"
)]
pub(crate) fn seal_inherited() {
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten();
    let numbers = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    for number in numbers.filter(|&number: &i32| number > 2) {
        // SAFETY: only the close-on-exec flag of the descriptor is changed, which does not affect its owner. If it was
        // closed in the meantime, the call fails. If its number was reused, the new descriptor has the flag already,
        // like all that this program opens.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        if let Ok(flags) = fcntl_getfd(descriptor)
            && !flags.contains(FdFlags::CLOEXEC)
        {
            let _ = fcntl_setfd(descriptor, flags | FdFlags::CLOEXEC);
        }
    }
}

/// Duplicates a descriptor that the parent left open for this process, by its number. The original stays open.
///
/// # Errors
///
/// `EBADF` if no descriptor has this number.
#[expect(
    unsafe_code,
    reason = "a descriptor without an owner can only be borrowed by its number"
)]
pub fn inherited(number: i32) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: the descriptor is borrowed for one call, which duplicates it or fails. No part of this program owns it, so
    // no other thread closes it in the meantime.
    unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned()
}

/// Makes dead children wait to be reaped. If the parent ignored `SIGCHLD`, this process inherited that, and the kernel
/// would reap its children: exit codes would be lost, and process ids could be reused while this process still uses
/// them. An empty handler fixes this, for the children too.
pub(super) fn keep_the_dead() -> io::Result<()> {
    if tokio::runtime::Handle::try_current().is_ok() {
        return signal(SignalKind::child()).map(drop);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let _guard = runtime.enter();
    signal(SignalKind::child()).map(drop)
}
