//! The first process of a container (process id 1).
//!
//! The kernel gives it all orphans, so it has to reap processes that it did not start. In the gateway, that would race
//! with waiting for servers. The first process therefore runs the gateway as its child, passes signals on, and reaps.

use std::{
    io::{self, IsTerminal as _},
    process::{Command, ExitCode},
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait},
};
use tokio::signal::unix::{SignalKind, signal};

/// Set for the gateway that runs as the child of the first process. The container ends with it.
pub(crate) const VARIABLE: &str = "TOOLWHARF_FIRST_PROCESS";
/// Added to the number of the signal that ended the child, as shells do.
const SIGNAL_EXIT_CODE: i32 = 128;

pub(crate) fn is_this() -> bool {
    std::process::id() == 1
}

/// Runs this program with the same arguments as a child, and exits as the child does.
pub(crate) fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    match runtime.and_then(|runtime| runtime.block_on(run())) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: cannot start the gateway: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> io::Result<u8> {
    let mut ended = signal(SignalKind::child())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // A terminal sends Ctrl-C to the child itself.
    let passes_on = !io::stdin().is_terminal();
    let started = Command::new("/proc/self/exe")
        .args(std::env::args_os().skip(1))
        .env(VARIABLE, "1")
        .spawn()?;
    let child = Pid::from_child(&started);
    loop {
        let passed = tokio::select! {
            _ = ended.recv() => match reap(child)? {
                Some(code) => return Ok(code),
                None => continue,
            },
            _ = terminate.recv() => Signal::TERM,
            _ = interrupt.recv(), if passes_on => Signal::INT,
        };
        // This fails only if the child has just ended.
        let _ = kill_process(child, passed);
    }
}

/// Reaps all processes that have ended. Returns the exit code if the child is one of them.
fn reap(child: Pid) -> io::Result<Option<u8>> {
    let mut code = None;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == child => code = Some(exit_code(status)),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) | Err(Errno::CHILD) => return Ok(code),
            Err(error) => return Err(error.into()),
        }
    }
}

fn exit_code(status: WaitStatus) -> u8 {
    let killed = status.terminating_signal();
    let code = status
        .exit_status()
        .or(killed.map(|signal| SIGNAL_EXIT_CODE + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}
