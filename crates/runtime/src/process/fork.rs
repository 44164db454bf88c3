//! What has to be right at the moment of a fork. All of the crate's unsafe code is here.

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;

use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::process::{Resource, Signal};

use tokio::signal::unix::{SignalKind, signal};

use super::{cage::Door, files};
use crate::sentinel::announce;

/// Makes the child that `command` will fork listed, alone in its session, and bound to the
/// life of this process and of the calling thread. With a `door` it goes through that before
/// anything else of it runs.
#[expect(
    unsafe_code,
    reason = "std has no other way to run something between fork and exec"
)]
pub(super) fn bind(command: &mut Command, socket: Arc<UnixStream>, door: Option<Arc<Door>>) {
    let host = rustix::process::getpid();
    let files = files::given();
    let before_exec = move || -> io::Result<()> {
        // Before it is listed, since what is listed is taken for a session and a group.
        rustix::process::setsid()?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The host may have died just before that, and then there is no signal any more.
        if rustix::process::getppid() != Some(host) {
            return Err(Errno::SRCH.into());
        }
        // Our allocator does without huge pages to stay small, and that would be handed on.
        let _ = rustix::thread::disable_transparent_huge_pages(false);
        // Programs of old take a high limit badly: they close each number up to it, or use `select`.
        if let Some(files) = files {
            let _ = rustix::process::setrlimit(Resource::Nofile, files);
        }
        if let Some(door) = &door {
            for group in &door.join {
                // "0" is whoever writes it.
                rustix::io::write(group, b"0")?;
            }
            for kept in &door.pass {
                fcntl_setfd(kept, FdFlags::empty())?;
            }
        }
        announce(&socket)
    };
    // SAFETY: between fork and exec in a process that had several threads only
    // async-signal-safe functions may be called. The closure makes plain system calls, walks two
    // slices and formats a number on the stack: it does not allocate, lock, panic or unwind, and
    // its errors are bare numbers. Nothing is dropped in the child: it executes or exits.
    unsafe { command.pre_exec(before_exec) };
}

/// Keeps from children what this process was itself given by its parent: a shell's or a
/// service manager's descriptors. Those that Rust code opens are never inherited.
#[expect(
    unsafe_code,
    reason = "a descriptor that nobody here owns can only be borrowed by its number"
)]
pub(crate) fn seal_inherited() {
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten();
    let numbers = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    for number in numbers.filter(|&number: &i32| number > 2) {
        // SAFETY: the descriptor is not used but for its close-on-exec flag, which takes
        // nothing from its owner. If it was closed meanwhile, the call fails; if its number was
        // given to another, that one has the flag already, as all that this program opens.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        if let Ok(flags) = fcntl_getfd(descriptor)
            && !flags.contains(FdFlags::CLOEXEC)
        {
            let _ = fcntl_setfd(descriptor, flags | FdFlags::CLOEXEC);
        }
    }
}

/// A descriptor that the parent left open for this process, by the number that it told.
///
/// # Errors
///
/// `EBADF` if there is none of that number.
#[expect(
    unsafe_code,
    reason = "a descriptor that nobody here owns can only be borrowed by its number"
)]
pub(crate) fn inherited(number: i32) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: it is borrowed for one call, which makes a copy or fails; who calls this has no
    // other thread yet that could close it meanwhile.
    unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned()
}

/// Makes sure that dead children wait to be reaped. A parent that ignores `SIGCHLD` hands that
/// on, and then the kernel reaps: exit codes are lost, and numbers are free to be reused while
/// they are still in use here. A handler that does nothing sets it right, also for the children.
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
