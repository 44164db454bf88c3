//! A Toolwharf that one of these commands runs in the foreground.
//!
//! It is in a process group of its own: a Ctrl-C reaches only this process, which passes it on once, as SIGTERM, and ends
//! after Toolwharf has.

use std::{
    net::SocketAddr,
    os::unix::process::CommandExt,
    process::Child,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::{http, shell::Cmd};

const POLL: Duration = Duration::from_millis(100);
/// Polls until Toolwharf has to be ready: 30 s.
const READY_POLLS: u32 = 300;
/// Polls until Toolwharf has to be gone after SIGTERM: 30 s.
const STOP_POLLS: u32 = 300;

/// The running Toolwharf. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct Gateway {
    child: Child,
    interrupted: Arc<AtomicBool>,
    told_to_stop: bool,
}

impl Gateway {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub(crate) fn start(serve: Cmd) -> Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        // Before the child is there, so that no signal can leave it behind.
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
        }
        let child = serve.into_command().process_group(0).spawn();
        let child = child.context("cannot start toolwharf")?;
        Ok(Self {
            child,
            interrupted,
            told_to_stop: false,
        })
    }

    /// Whether a signal has asked for the end.
    pub(crate) fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Waits until it says that it is ready.
    ///
    /// # Errors
    ///
    /// If it ends, or is not ready in time, or a signal came.
    pub(crate) fn wait_until_ready(&mut self, address: SocketAddr) -> Result<()> {
        for _ in 0..READY_POLLS {
            if let Some(status) = self.child.try_wait()? {
                bail!("toolwharf ended before it was ready: {status}");
            }
            ensure!(!self.interrupted(), "interrupted");
            let answer = http::request(address, "GET", "/readyz", &[], "", Duration::from_secs(2));
            if answer.is_ok_and(|answer| answer.status == 200) {
                return Ok(());
            }
            thread::sleep(POLL);
        }
        bail!("toolwharf is not ready: /readyz at {address} does not answer 200")
    }

    /// Waits until it ends by itself or a signal asks for its end.
    ///
    /// # Errors
    ///
    /// If it fails, or does not end.
    pub(crate) fn wait(mut self) -> Result<()> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "toolwharf ended: {status}");
                return Ok(());
            }
            if self.interrupted() {
                return self.stop();
            }
            thread::sleep(POLL);
        }
    }

    /// Has it end, and waits for that.
    ///
    /// # Errors
    ///
    /// If it fails, or does not end.
    pub(crate) fn stop(&mut self) -> Result<()> {
        if !self.told_to_stop && self.child.try_wait()?.is_none() {
            self.told_to_stop = true;
            kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        }
        for _ in 0..STOP_POLLS {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "toolwharf ended: {status}");
                return Ok(());
            }
            thread::sleep(POLL);
        }
        bail!("toolwharf does not end on SIGTERM")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if self.stop().is_err() {
            // It has been reaped, or is beyond asking; in both cases there is nothing to report.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
