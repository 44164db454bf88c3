//! Runs Toolwharf in the foreground of a command.
//!
//! Toolwharf runs in a separate process group, so that Ctrl-C reaches only this process. It passes the signal on once,
//! as SIGTERM, and exits after Toolwharf has.

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

use crate::{daemon, http, shell::Cmd};

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Polls until Toolwharf must be ready: 30 s.
const MAX_READY_POLLS: u32 = 300;
/// Polls until Toolwharf must have exited after SIGTERM: 30 s.
const MAX_STOP_POLLS: u32 = 300;

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
        let interrupted = daemon::interruption()?;
        let child = serve.into_command().process_group(0).spawn();
        let child = child.context("cannot start toolwharf")?;
        Ok(Self {
            child,
            interrupted,
            told_to_stop: false,
        })
    }

    /// Returns whether a signal has requested a stop.
    pub(crate) fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Waits until Toolwharf reports readiness.
    ///
    /// # Errors
    ///
    /// If it exits, is not ready in time, or a signal arrives.
    pub(crate) fn wait_until_ready(&mut self, address: SocketAddr) -> Result<()> {
        for _ in 0..MAX_READY_POLLS {
            if let Some(status) = self.child.try_wait()? {
                bail!("toolwharf ended before it was ready: {status}");
            }
            ensure!(!self.interrupted(), "interrupted");
            let status = http::get_status(address, "/readyz", Duration::from_secs(2));
            if status.is_ok_and(|status| status == 200) {
                return Ok(());
            }
            thread::sleep(POLL_INTERVAL);
        }
        bail!("toolwharf is not ready: /readyz at {address} does not answer 200")
    }

    /// Waits until it exits or a signal requests a stop.
    ///
    /// # Errors
    ///
    /// If it fails or does not exit.
    pub(crate) fn wait(mut self) -> Result<()> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "toolwharf ended: {status}");
                return Ok(());
            }
            if self.interrupted() {
                return self.stop();
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Stops it and waits until it has exited.
    ///
    /// # Errors
    ///
    /// If it fails or does not exit.
    pub(crate) fn stop(&mut self) -> Result<()> {
        if !self.told_to_stop && self.child.try_wait()?.is_none() {
            self.told_to_stop = true;
            kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        }
        for _ in 0..MAX_STOP_POLLS {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "toolwharf ended: {status}");
                return Ok(());
            }
            thread::sleep(POLL_INTERVAL);
        }
        bail!("toolwharf does not end on SIGTERM")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if self.stop().is_err() {
            // It has been reaped or does not react. There is nothing to report in either case.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
